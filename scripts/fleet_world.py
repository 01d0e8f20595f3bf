"""What `bench_fleet` plays in: a stand-in AWS, a model API that takes its time, and the command on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from contract.batch_records import BatchState  # noqa: E402  # the script's own repository comes first
from tests.lab.commands import write_config  # noqa: E402
from tests.lab.fleet import FleetLab  # noqa: E402

PROVIDER: Final = "openrouter"
TASKS: Final = ("plate", "shaft", "flange", "bracket", "gasket", "stair", "floor-plan", "gear-cover")
# A terminal of a person: the table is drawn on it.
ROWS, COLUMNS = 50, 160
END_S_MAX: Final = 120.0


@dataclass
class Fleet:
    """Everything around the controller."""

    lab: FleetLab
    folder: Path
    config: Path
    model: subprocess.Popen[str]

    @contextmanager
    def controller(self, mode: str, *, profile: Path | None = None) -> Iterator[Controller]:
        """The command, playing the batch, until the block ends."""
        controller = Controller.started(self, mode, profile)
        try:
            yield controller
        finally:
            controller.end()

    def turns_played(self) -> int:
        """How many requests the model API has had."""
        assert self.model.stdin is not None
        assert self.model.stdout is not None
        self.model.stdin.write("\n")
        self.model.stdin.flush()
        return int(self.model.stdout.readline())


class Controller:
    """`autocad-bench batch` on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int, out: Path) -> None:
        self._process = process
        self._terminal = terminal
        self._out = out
        self._said = bytearray()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @classmethod
    def started(cls, world: Fleet, mode: str, profile: Path | None) -> Controller:
        """Start it."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        out = world.folder / f"out-{mode}"
        profiling = ["-m", "cProfile", "-o", str(profile)] if profile is not None else []
        process = subprocess.Popen(
            [
                *(sys.executable, *profiling, "-m", "supervisor.cli", "batch", "--config", str(world.config)),
                *("--execute", "--mode", mode, "--output-dir", str(out), "--skip-direct-model-check"),
            ],
            env={**world.lab.environment, "OPENROUTER_API_KEY": "sk-or-fleet", "TERM": "xterm-256color"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        return cls(process, ours, out)

    @property
    def pid(self) -> int:
        """The controller's process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def complaints(self) -> list[str]:
        """The first of its plan's issues, or its last lines."""
        lines = [line.strip() for line in self._said.decode(errors="replace").splitlines()]
        return [line for line in lines if line.startswith(('"message"', '"hint"'))][:6] or lines[-6:]

    def ledger(self) -> list[dict[str, object]]:
        """The lines of `hosts.jsonl` so far."""
        path = self._out / "hosts.jsonl"
        return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def handed_off(self) -> int:
        """How many rollouts have begun."""
        return sum(line["event"] == "handed_off" for line in self.ledger())

    def has_begun(self) -> bool:
        """True once the batch has its folder."""
        return (self._out / "batch-state.json").exists()

    def phases(self) -> Counter[str]:
        """How many rollouts are in which phase."""
        return Counter(row.phase.value for row in self._state().rollouts)

    def outcomes(self) -> Counter[str]:
        """How many rollouts ended how; those without an outcome by cause and phase."""
        return Counter(
            str(row.outcome or f"{row.phase.value} ({row.cause}: {row.cause_detail})") for row in self._state().rollouts
        )

    def open_files(self) -> int:
        """File descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        """Threads."""
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def waited_share(self) -> float:
        """How long its threads were ready and had no core, as a multiple of the time in which they had one.

        On a machine that others use too, times say little; this says so (`/proc/PID/task/TID/schedstat`).
        """
        ran_ns = waited_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            # A thread may have ended meanwhile.
            with suppress(OSError):
                ran, waited, _ = (task / "schedstat").read_text().split()
                ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
        return waited_ns / max(1, ran_ns)

    def end(self) -> None:
        """End it as an operator does who is in a hurry."""
        for _ in range(2):
            if self.is_alive():
                self._process.send_signal(signal.SIGINT)
                time.sleep(0.5)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S_MAX)
        if self.is_alive():
            self._process.kill()
            self._process.wait()
        self._reading.join(5)

    def _state(self) -> BatchState:
        return BatchState.model_validate_json((self._out / "batch-state.json").read_bytes())

    def _read(self) -> None:
        with suppress(OSError):
            while chunk := os.read(self._terminal, 65_536):
                self._said += chunk
                del self._said[:-1_000_000]
        os.close(self._terminal)


@contextmanager
def fleet(folder: Path, *, rollouts: int, think_s: float, turns: int, boot_s: float) -> Iterator[Fleet]:
    """A world for one batch of so many rollouts, each of which ends after `turns` turns."""
    with (
        _model(think_s, turns) as (model, endpoint),
        FleetLab.of_paper(folder / "lab", boot_s=boot_s, agent_s=boot_s) as lab,
    ):
        config = write_config(
            lab,
            count=rollouts,
            endpoints={PROVIDER: endpoint},
            pricing="unpriced",
            rollouts=[
                # A model plays a task once.
                {
                    "rollout_id": f"r-{number}",
                    "task": TASKS[number % len(TASKS)],
                    "provider": PROVIDER,
                    "model": f"fleet/model-{number // len(TASKS)}",
                }
                for number in range(rollouts)
            ],
        )
        yield Fleet(lab, folder, config, model)


@contextmanager
def _model(think_s: float, turns: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.providers.light", "--turns", str(turns), "--latency-s", str(think_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield server, server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait(30)
