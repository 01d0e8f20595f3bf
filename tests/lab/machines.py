"""The instances of the lab: how their states move, which of them have a real broker, and who shuts them down."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.errors import StateError
from contract.guest import GuestStart, read_guest_start

if TYPE_CHECKING:
    from tests.lab.lab import Lab

STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
ALIVE = ("pending", "running", "stopping", "stopped")


@dataclass
class Machine:
    """One instance. `model` is moto's; times are monotonic. `zone` is where its token is known."""

    model: Any
    token: str
    digest: str
    zone: str
    launched_s: float
    launched_at: datetime
    state: str = "pending"
    reason: str = ""
    ended_s: float | None = None
    running_s: float | None = None
    guest: subprocess.Popen[bytes] | None = None
    port_holder: socket.socket | None = None
    boots: int = 0
    booted_at: datetime | None = None
    is_deaf: bool = False

    @property
    def instance_id(self) -> str:
        return str(self.model.id)

    @property
    def start(self) -> GuestStart | None:
        """What its user data tells a broker; null when they are somebody else's."""
        try:
            return read_guest_start(self.user_data)
        except StateError:
            return None

    @property
    def user_data(self) -> str:
        return base64.b64decode(str(self.model.user_data or "")).decode()


@dataclass
class Machines:
    """All instances that were launched through the lab. Every method may be called from any thread."""

    lab: Lab
    all: dict[str, Machine] = field(default_factory=dict)
    tokens: dict[tuple[str, str], str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def digest_of(self, parameters: dict[str, Any]) -> str:
        """What makes two requests with one token the same."""
        kept = {name: value for name, value in parameters.items() if name not in ("ClientToken", "Action", "Version")}
        return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()

    def known(self, token: str, zone: str) -> Machine | None:
        """The machine of a token in a zone, dead or alive."""
        instance_id = self.tokens.get((zone, token))
        return self.all[instance_id] if instance_id is not None else None

    def launched(self, model: Any, *, token: str, digest: str, zone: str) -> Machine:
        """A new machine; `pending` until its boot time is over."""
        machine = Machine(model, token, digest, zone, time.monotonic(), datetime.now(UTC))
        with self.lock:
            self.all[machine.instance_id] = machine
            self.tokens[zone, token] = machine.instance_id
            self._set(machine, "pending")
        return machine

    def step(self) -> None:
        """Let time pass for all of them."""
        now_s = time.monotonic()
        with self.lock:
            for machine in self.all.values():
                if machine.state == "pending" and now_s - machine.launched_s >= self.lab.boot_s:
                    if machine.instance_id in self.lab.dies_in_pending:
                        self.shut_down(machine.instance_id, "Server.InsufficientInstanceCapacity")
                        continue
                    self._set(machine, "running")
                    machine.running_s = now_s
                    self._boot(machine)
                if machine.state == "shutting-down" and now_s - (machine.ended_s or 0) >= self.lab.stop_s:
                    self._set(machine, "terminated")

    def watch_guests(self) -> None:
        """Play the dead-man timer of each machine, and notice guests that have ended."""
        with self.lock:
            running = [machine for machine in self.all.values() if machine.state == "running"]
        for machine in running:
            if self._is_over(machine):
                self.shut_down(machine.instance_id, "Client.InstanceInitiatedShutdown")

    def shut_down(self, instance_id: str, reason: str = "Client.UserInitiatedShutdown") -> None:
        """End a machine that is alive: it terminates, because its launch asked for that."""
        with self.lock:
            machine = self.all[instance_id]
            if machine.state not in ALIVE:
                return
            machine.ended_s = time.monotonic()
            self._set(machine, "shutting-down", reason)
            self.lab.sessions.end_of(instance_id)
            self._kill(machine)

    def haunt(self, instance_id: str) -> None:
        """It is gone, and an index shows it running all the same."""
        with self.lock:
            machine = self.all[instance_id]
            self.shut_down(instance_id)
            self._set(machine, "terminated")
            machine.model._state.name, machine.model._state.code = "running", STATES["running"]
            self.lab.ghosts.add(instance_id)

    def reboot(self, instance_id: str) -> None:
        """Restart the guest's system: the same state folder, another boot."""
        with self.lock:
            machine = self.all[instance_id]
            self._kill(machine)
            self._boot(machine)

    def kill_guest(self, instance_id: str) -> None:
        """The guest's programs die, and the machine lives on."""
        with self.lock:
            self._kill(self.all[instance_id], keeps_port=True)

    def ids(self) -> list[str]:
        """Every instance that ever was."""
        with self.lock:
            return list(self.all)

    def is_hidden(self, instance_id: str) -> bool:
        """True while an index does not show it yet, and again when it has been terminated for long."""
        machine = self.all[instance_id]
        now_s = time.monotonic()
        if now_s - machine.launched_s < self.lab.visible_after_s:
            return True
        is_over = machine.state == "terminated" and machine.ended_s is not None
        return is_over and now_s - (machine.ended_s or 0.0) >= self.lab.forgotten_after_s

    def is_unknown(self, instance_id: str) -> bool:
        """True for an id that EC2 answers with NotFound: never launched, hidden, or a ghost of an index."""
        return instance_id not in self.all or self.is_hidden(instance_id) or instance_id in self.lab.ghosts

    def twice_alive(self) -> list[str]:
        """Hosts that had two instances alive at the same time, by the host id of their user data."""
        lives: dict[str, list[tuple[float, float]]] = {}
        with self.lock:
            for machine in self.all.values():
                if machine.start is not None:
                    ended_s = float("inf") if machine.ended_s is None else machine.ended_s
                    lives.setdefault(machine.start.host_id, []).append((machine.launched_s, ended_s))
        return [
            host_id
            for host_id, spans in lives.items()
            if any(end_s > begin_s for (_, end_s), (begin_s, _) in pairwise(sorted(spans)))
        ]

    def alive(self) -> list[str]:
        """What costs money."""
        self.step()
        with self.lock:
            return [machine.instance_id for machine in self.all.values() if machine.state in ALIVE]

    def is_agent_online(self, instance_id: str) -> bool:
        """True once the SSM agent has reported."""
        self.step()
        machine = self.all.get(instance_id)
        if machine is None or machine.state != "running" or machine.running_s is None or machine.is_deaf:
            return False
        return time.monotonic() - machine.running_s >= self.lab.agent_s

    def broker_port(self, instance_id: str) -> int:
        """Where its broker listens, or will."""
        holder = self.all[instance_id].port_holder
        return 9 if holder is None else int(holder.getsockname()[1])

    def metadata(self, instance_id: str, path: str) -> str | None:
        """What the metadata service of this instance says; null where it has nothing."""
        machine = self.all.get(instance_id)
        if machine is None:
            return None
        document = self.document_of(machine)
        return {
            "/latest/user-data": machine.user_data,
            "/latest/dynamic/instance-identity/document": document,
            "/latest/dynamic/instance-identity/signature": self.lab.signer.sign(document),
            "/latest/meta-data/instance-id": instance_id,
        }.get(path)

    def document_of(self, machine: Machine) -> str:
        """The identity document, in the form that AWS gives it."""
        facts = {
            "accountId": self.lab.account,
            "architecture": "x86_64",
            "availabilityZone": machine.zone,
            "imageId": machine.model.image_id,
            "instanceId": machine.instance_id,
            "instanceType": machine.model.instance_type,
            "pendingTime": machine.launched_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "privateIp": machine.model.private_ip,
            "region": self.lab.region,
            "version": "2017-09-30",
        }
        return json.dumps({**facts, **self.lab.document_changes}, indent=2)

    def close(self) -> None:
        """End every guest."""
        with self.lock:
            for machine in self.all.values():
                self._kill(machine)

    def _set(self, machine: Machine, state: str, reason: str = "") -> None:
        machine.state = state
        machine.model._state.name = state
        machine.model._state.code = STATES[state]
        if reason:
            machine.reason = reason
            machine.model.state_reason.code = reason
            machine.model.state_reason.message = f"{reason}: the lab says so"

    def _boot(self, machine: Machine) -> None:
        start = machine.start
        if not self.has_guests or start is None:
            return
        machine.boots += 1
        machine.booted_at = max(machine.launched_at, datetime.now(UTC) - timedelta(seconds=1))
        if machine.port_holder is None:
            # Bound and not listening: the broker may listen there because both ask for reuse, and nobody else gets it.
            machine.port_holder = socket.socket()
            machine.port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            machine.port_holder.bind(("127.0.0.1", 0))
        folder = self._folder(machine)
        folder.mkdir(parents=True, exist_ok=True)
        # It lies in memory, as /run does.
        (folder / "deadline").unlink(missing_ok=True)
        self._start_guest(machine, start, folder)

    @property
    def has_guests(self) -> bool:
        """Whether machines have a broker at all."""
        return self.lab.has_guests

    def _start_guest(self, machine: Machine, start: GuestStart, folder: Path) -> None:
        assert machine.booted_at is not None, "it boots now"
        ending = f"{sys.executable} {self.lab.shutdown_script} {machine.instance_id}"
        command = [
            *(sys.executable, "-I", "-m", "broker.instance"),
            *("--imds", f"{self.lab.url}/imds/{machine.instance_id}"),
            *("--state-dir", str(folder / "state")),
            *("--deadline-file", str(folder / "deadline")),
            *("--port", str(self.broker_port(machine.instance_id))),
            *("--shutdown-command", ending),
            *("--boot-count", str(machine.boots)),
            *("--booted-at", machine.booted_at.isoformat()),
        ]
        with (folder / "broker.log").open("ab") as log:
            machine.guest = subprocess.Popen(
                command,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "AUTOCAD_BENCH_HOST_ID": start.host_id},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end_guest(self, machine: Machine) -> None:
        guest, machine.guest = machine.guest, None
        if guest is not None:
            with suppress(ProcessLookupError):
                os.killpg(guest.pid, signal.SIGKILL)
            guest.wait()

    def _kill(self, machine: Machine, *, keeps_port: bool = False) -> None:
        self._end_guest(machine)
        if machine.port_holder is not None and not keeps_port and machine.state not in ALIVE:
            machine.port_holder.close()
            machine.port_holder = None

    def _is_over(self, machine: Machine) -> bool:
        """What the dead-man timer of the user data decides, by the lab's clock."""
        start = machine.start
        if start is None or machine.booted_at is None:
            return False
        now = time.time() + self.lab.ahead_s
        if now >= machine.launched_at.timestamp() + start.lifetime_s:
            return True
        try:
            deadline = float((self._folder(machine) / "deadline").read_text())
        except (OSError, ValueError):
            deadline = machine.booted_at.timestamp() + start.lease_s
        return now >= deadline

    def _folder(self, machine: Machine) -> Path:
        return self.lab.folder / "guests" / machine.instance_id
