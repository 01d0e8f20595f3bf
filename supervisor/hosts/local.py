"""Hosts on this machine: one broker process each, which holds an X server and a CAD program of its own.

The broker keeps a pipe from us. When we die, however we die, the pipe ends and the desktop with it. It gets the SHA-256
of its token and never the token.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import orjson
from pydantic import Field, SecretStr, ValidationError

from contract.bridge import Bridge
from contract.broker_client import Patience
from contract.config import LocalHostConfig
from contract.errors import HostError
from contract.phases import Cause
from contract.records import Record
from supervisor.child import AdoptedProcess, Child, describe_status
from supervisor.hosts.folders import SCRATCH, host_folder, pilot_home
from supervisor.hosts.lease import Host, HostBroker, HostOrder, HostTiming, LostState
from supervisor.hosts.proof import prove_twice
from supervisor.keyring import TokenStore
from supervisor.ledger import HostHistory
from supervisor.processes import (
    BATCH_ID_VARIABLE,
    HOST_ID_VARIABLE,
    ROLLOUT_ID_VARIABLE,
    HostProcess,
    kill,
    open_process,
    processes_of_hosts,
)

# From exec to the ready line: 1 s on an idle machine; thirty cover one that starts a whole wave.
READY_S: Final = 30.0
# A broker that is told to end has its desktop gone within a second; after that it is killed.
GRACE_S: Final = 1.0
# Killed processes are gone within 50 ms (local desktop reference, section 9).
SWEEP_S: Final = 1.0
SWEEPS_MAX: Final = 3
LOCAL_TIMING: Final = HostTiming(
    # Two identity reads, lease, and two resets of 90 s each at most.
    hand_off_s=270.0,
    # Ending a local host takes tens of milliseconds, its own patience adds up to 5 s when everything hangs.
    release_s=20.0,
    # Saving the drawing of a void rollout: before the 2 s are over in which its end is to be known.
    hand_over_s=1.0,
    # Nor are they over after this.
    last_look_s=0.5,
    # A broker says at once that its CAD program died, but not to a controller that has taken it over, and then half a
    # second may pass until we ask.
    heartbeat_s=0.5,
    # Each miss costs up to 5 s of patience; a broker that was silent for half a minute is not coming back.
    misses_max=6,
    patience=Patience(),
    # A heartbeat asks once: the next one is the repetition, and a hung host must not keep a thread for long.
    heartbeat_patience=Patience(connect_s=2.0, read_s=5.0, tries=1),
)
# The token outlives a controller for as long as its host does, and a little longer: the host decides.
TOKEN_MARGIN_S: Final = 60.0

# The same on every machine and for every user, so that a host behaves the same; nothing comes from our environment.
BASE_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
}


class BrokerReady(Record):
    """What a broker prints once it listens."""

    schema_: Annotated[Literal["autocad-bench.broker-ready/1"], Field(alias="schema")]
    host_id: str
    boot_id: str
    port: int
    broker_version: str


class BrokerFailed(Record):
    """What a broker prints when it cannot start."""

    schema_: Annotated[Literal["autocad-bench.broker-failed/1"], Field(alias="schema")]
    code: str
    message: str
    hint: str = ""


class BrokerLost(Record):
    """What a broker prints when its CAD program is lost."""

    schema_: Annotated[Literal["autocad-bench.broker-lost/1"], Field(alias="schema")]
    driver_state: LostState


@dataclass(slots=True)
class _Live:
    process: Child | AdoptedProcess


class LocalHosts:
    """Launches and ends brokers on this machine.

    `command` starts one; `scratch` is the folder in which each host gets a private one; `tokens` is used only when
    hosts outlive their controller (`orphan_s`).
    """

    def __init__(
        self,
        config: LocalHostConfig,
        *,
        bridge: Bridge,
        tokens: TokenStore,
        scratch: Path = SCRATCH,
        command: tuple[str, ...] = (sys.executable, "-I", "-m", "broker"),
    ) -> None:
        self.kind: Literal["local", "ec2"] = "local"
        self.extension = "dxf"
        self.timing = LOCAL_TIMING
        self._config = config
        self._bridge = bridge
        self._tokens = tokens
        self._scratch = scratch
        self._command = command
        self._live: dict[str, _Live] = {}

    async def launch(self, order: HostOrder) -> Host:
        """Start a broker and wait for its ready line. Raises `HostError` (`host_launch`) in the broker's own words."""
        token = SecretStr(secrets.token_urlsafe(32))
        folder = self._folder(order.host_id)
        try:
            folder.mkdir(mode=0o700)
            child = Child.spawn(
                (*self._dying_with_us(), *self._command),
                environment=_environment(order, home=folder),
                log=order.log,
                cwd=Path("/"),
            )
        except OSError as error:
            raise _launch_error(f"the broker cannot be started: {error}") from error
        self._live[order.host_id] = _Live(child)
        await child.send(self._start_line(order, token, folder))
        ready = await self._ready_line(child)
        if self._config.orphan_s > 0:
            self._tokens.keep(order.host_id, token, lifetime_s=self._token_lifetime_s)
        return Host(
            host_id=order.host_id,
            rollout_id=order.rollout_id,
            boot_id=ready.boot_id,
            base_url=f"http://127.0.0.1:{ready.port}",
            token=token,
            facts={
                "pid": child.pid,
                "pid_started": child.started_s,
                "boot_id": ready.boot_id,
                "base_url": f"http://127.0.0.1:{ready.port}",
                "broker_version": ready.broker_version,
                "driver": self._config.driver,
            },
        )

    async def open_tunnel(self, host: Host) -> str:
        """A host on this machine is reached as it is."""
        return host.base_url

    async def prove(self, host: Host, broker: HostBroker) -> Host:
        """The broker told its boot when it got ready."""
        await prove_twice(host, broker)
        return host

    async def wait_tunnel_broken(self, host_id: str) -> None:
        """There is none that could break."""
        await anyio.sleep_forever()

    async def mend_tunnel(self, host_id: str, *, misses: int) -> None:
        """There is none to mend."""

    async def close_tunnel(self, host_id: str) -> None:
        """There is none."""

    async def wait_ended(self, host_id: str) -> str:
        """Wait for the broker process to end."""
        live = self._live.get(host_id)
        if live is None:
            await anyio.sleep_forever()
            raise AssertionError("unreachable")
        return f"the broker process {live.process.pid} ended ({describe_status(await live.process.wait())})"

    async def wait_lost(self, host_id: str) -> LostState:
        """Read what the broker says. One whose pipe went with an earlier controller says nothing."""
        live = self._live.get(host_id)
        if live is not None and isinstance(live.process, Child):
            async with aclosing(live.process.lines()) as lines:
                async for line in lines:
                    with suppress(ValidationError):
                        return BrokerLost.model_validate_json(line).driver_state
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    def has_ended(self, host_id: str) -> bool:
        """True when the broker process was ours and has ended."""
        live = self._live.get(host_id)
        return live is not None and live.process.status is not None

    async def terminate(self, host_id: str, *, batch_id: str) -> None:
        """SIGTERM, SIGKILL, then a sweep over whatever carries the host's tags; its private folder goes too."""
        await self.terminate_all([host_id], batch_id=batch_id)

    async def terminate_all(self, host_ids: Collection[str], *, batch_id: str) -> None:
        """End all of them side by side. Raises `HostError` when a process survives SIGKILL."""
        async with anyio.create_task_group() as group:
            for host_id in host_ids:
                group.start_soon(self._end_broker, host_id)
        left = await self._sweep(host_ids, batch_id)
        for host_id in host_ids:
            live = self._live.pop(host_id, None)
            if live is not None:
                live.process.close()
            if self._config.orphan_s > 0:
                self._tokens.forget(host_id)
            for folder in (self._folder(host_id), pilot_home(self._scratch, host_id)):
                await self._bridge.call(partial(_remove, folder))
        if left:
            raise HostError(
                f"processes {sorted(process.pid for process in left)} of host {left[0].host_id!r} outlived SIGKILL",
                cause=Cause.UNKNOWN,
                hint="They hang in the kernel or belong to another user; see `ps`.",
            )

    async def reattach(self, history: HostHistory, *, batch_id: str) -> Host | None:
        """The broker that an earlier controller launched, if exactly it still lives and its token is in the keyring."""
        detail = history.detail
        if not {"pid", "pid_started", "boot_id", "base_url"} <= detail.keys():
            return None
        token = self._tokens.recall(history.host_id)
        process = AdoptedProcess.find(int(detail["pid"]), float(detail["pid_started"]))
        if token is None or process is None:
            if process is not None:
                process.close()
            return None
        self._live[history.host_id] = _Live(process)
        return Host(
            host_id=history.host_id,
            rollout_id=history.rollout_id,
            boot_id=str(detail["boot_id"]),
            base_url=str(detail["base_url"]),
            token=token,
            facts=_facts_only(detail),
        )

    def renew(self, host: Host) -> None:
        """Keep the token in the keyring for a little longer than the host would live without us."""
        if self._config.orphan_s > 0:
            self._tokens.keep(host.host_id, host.token, lifetime_s=self._token_lifetime_s)

    async def find_leftovers(self, host_ids: Collection[str], *, batch_id: str) -> dict[str, str]:
        """The hosts of which a process is alive, with its numbers."""
        found = await self._bridge.call(lambda: processes_of_hosts(host_ids, batch_id=batch_id))
        numbers: dict[str, list[int]] = {}
        for process in found:
            numbers.setdefault(process.host_id, []).append(process.pid)
        return {host_id: "processes " + ", ".join(map(str, sorted(pids))) for host_id, pids in numbers.items()}

    @property
    def _token_lifetime_s(self) -> float:
        return self._config.orphan_s + TOKEN_MARGIN_S

    def _folder(self, host_id: str) -> Path:
        return host_folder(self._scratch, host_id)

    def _dying_with_us(self) -> tuple[str, ...]:
        """What makes the kernel send SIGTERM to the broker when this process ends, unless it is to outlive us.

        The end of its stdin says the same, but a broker that still loads its libraries reads it only when it has begun
        to listen: a second later on an idle machine, several on a busy one.
        """
        if self._config.orphan_s > 0:
            return ()
        setpriv = shutil.which("setpriv", path=BASE_ENVIRONMENT["PATH"])
        return () if setpriv is None else (setpriv, "--pdeathsig", "TERM", "--")

    def _start_line(self, order: HostOrder, token: SecretStr, folder: Path) -> bytes:
        start = {
            "schema": "autocad-bench.broker-start/1",
            "host_id": order.host_id,
            "token_sha256": hashlib.sha256(token.get_secret_value().encode()).hexdigest(),
            "driver": self._config.driver,
            "state_dir": str(folder),
            "port": 0,
            "lease_s": self._config.lease_s,
            "orphan_s": self._config.orphan_s,
            "isolation": self._config.isolation,
        }
        return orjson.dumps(start) + b"\n"

    async def _ready_line(self, child: Child) -> BrokerReady:
        with anyio.move_on_after(READY_S):
            async with aclosing(child.lines()) as lines:
                async for line in lines:
                    if ready := _parse_ready(line):
                        return ready
            status = describe_status(await child.wait())
            raise _launch_error(f"the broker ended before it was ready ({status})")
        raise _launch_error(f"the broker was not ready after {READY_S:.0f} s")

    async def _end_broker(self, host_id: str) -> None:
        live = self._live.get(host_id)
        if live is not None:
            live.process.close_stdin()
            await live.process.end(grace_s=GRACE_S)

    async def _sweep(self, host_ids: Collection[str], batch_id: str) -> list[HostProcess]:
        found: list[HostProcess] = []
        # More than once: a process that was being started during the first look is found by the second.
        for _ in range(SWEEPS_MAX):
            found = await self._bridge.call(lambda: processes_of_hosts(host_ids, batch_id=batch_id))
            if not found:
                break
            kill(found)
            with anyio.move_on_after(SWEEP_S):
                for process in found:
                    await _wait_gone(process)
        return found


def _parse_ready(line: bytes) -> BrokerReady | None:
    with suppress(ValidationError):
        return BrokerReady.model_validate_json(line)
    with suppress(ValidationError):
        failed = BrokerFailed.model_validate_json(line)
        raise _launch_error(failed.message, hint=failed.hint)
    return None


def _launch_error(message: str, *, hint: str = "") -> HostError:
    return HostError(message, cause=Cause.HOST_LAUNCH, hint=hint or "See the rollout's log for what the broker said.")


def _environment(order: HostOrder, *, home: Path) -> dict[str, str]:
    return {
        **BASE_ENVIRONMENT,
        "HOME": str(home),
        HOST_ID_VARIABLE: order.host_id,
        BATCH_ID_VARIABLE: order.batch_id,
        ROLLOUT_ID_VARIABLE: order.rollout_id,
    }


def _facts_only(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: detail[name] for name in ("pid", "pid_started", "boot_id", "base_url", "driver") if name in detail}


async def _wait_gone(process: HostProcess) -> None:
    descriptor = open_process(process.pid, process.started_s)
    if descriptor is not None:
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    # A process that died a moment ago may still have been writing; a second look finds what it left.
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.02)
