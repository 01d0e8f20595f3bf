"""A lab for a hundred instances on two cores: its guests live in one process, and each answer has a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.guest import GuestStart
from tests.lab.faults import Call
from tests.lab.lab import Lab
from tests.lab.machines import Machine, Machines
from tests.lab.moto_shims import vcpus_of

ROOT = Path(__file__).resolve().parents[2]
# The HTTP status of RequestLimitExceeded; nothing else in the lab has it.
THROTTLED = 503


@dataclass(frozen=True, slots=True)
class Answered:
    """One call of the journal, the status of its answer, and when that went out (monotonic seconds)."""

    call: Call
    status: int | None
    at_s: float


class FarmProcess:
    """The process with the guests. `events` holds what they told, by instance and event, the newest of each."""

    def __init__(self, log: Path) -> None:
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        self._writing = threading.Lock()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.lab.farm"],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def order(self, **order: Any) -> None:
        """Send one line. After its end this does nothing."""
        assert self._process.stdin is not None
        with self._writing, suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End it, and all guests with it."""
        assert self._process.stdin is not None
        with self._writing, suppress(OSError):
            self._process.stdin.close()
        self._process.wait(30)
        self._listening.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "event" in told and "instance_id" in told:
                self.events[told["instance_id"], told["event"]] = told


@dataclass
class FarmMachines(Machines):
    """Machines whose guests live in one process."""

    farm: FarmProcess | None = None

    def vcpus_alive(self) -> int:
        """What counts against the quotas now."""
        with self.lock:
            counted = [machine for machine in self.all.values() if machine.state in ("pending", "running")]
        return sum(vcpus_of(machine.model.instance_type) for machine in counted)

    @property
    def has_guests(self) -> bool:
        """They live in the farm, once it is open."""
        return self.farm is not None

    def _start_guest(self, machine: Machine, start: GuestStart, folder: Path) -> None:
        assert self.farm is not None
        assert machine.booted_at is not None
        self.farm.order(
            boot={
                "instance_id": machine.instance_id,
                "imds": f"{self.lab.url}/imds/{machine.instance_id}",
                "folder": str(folder),
                "port": self.broker_port(machine.instance_id),
                "boots": machine.boots,
                "booted_at": machine.booted_at.isoformat(),
            }
        )

    def _end_guest(self, machine: Machine) -> None:
        if self.farm is not None and machine.boots:
            self.farm.order(end=machine.instance_id)


@dataclass
class FleetLab(Lab):
    """The account of a fleet. `answered` is its journal with the times of the answers."""

    answered: list[Answered] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.farm = FarmProcess(self.folder / "farm.log")
        self.machines = FarmMachines(self, farm=self.farm)

    @classmethod
    @contextmanager
    def of_paper(cls, folder: Path, **settings: Any) -> Iterator[FleetLab]:
        """`Lab.opened` with paper guests in one process."""
        with cls.opened(folder, **settings) as lab:
            assert isinstance(lab, FleetLab)
            try:
                yield lab
            finally:
                lab.farm.close()

    def throttled(self) -> int:
        """How many requests came above EC2's rates."""
        with self.lock:
            return sum(item.status == THROTTLED for item in self.answered)

    def note(self, call: Call, status: int | None) -> None:
        """Add to both journals."""
        super().note(call, status)
        with self.lock:
            self.answered.append(Answered(call, status, time.monotonic()))
