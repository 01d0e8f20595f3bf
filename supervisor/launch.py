"""The only door into the pilot: as a child process of its own, or as a task in this event loop.

Both ways play the same coroutine, leave the same files and end in the same record; which one it was can be seen
nowhere else.
"""

from __future__ import annotations

import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import orjson
from pydantic import SecretStr

from contract.bridge import ThreadBridge
from contract.config import Mode
from contract.errors import DiskError
from contract.rollout_records import (
    BROKER_TOKEN_VARIABLE,
    DISK_EXIT_STATUS,
    PROVIDER_KEY_VARIABLE,
    RolloutSpec,
    RunState,
    Waiting,
)
from contract.run_dir import RunDir
from supervisor.child import Child, describe_status, open_log
from supervisor.hosts.folders import SCRATCH, pilot_home
from supervisor.hosts.local import BASE_ENVIRONMENT
from supervisor.state import read_run_state

if TYPE_CHECKING:
    from pilot.bridge import Threads
    from pilot.models.clients import Clients

# The longest legal turn is one model request (minutes) and an ActionBatch with waits; a pilot that is told to stop and
# still plays after this is killed.
STOP_S: Final = 120.0
# When the host is gone or the operator has said it twice: long enough to write one document.
KILL_GRACE_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class PilotSecrets:
    """The only two secrets that a pilot may hold."""

    broker_token: SecretStr
    provider_key: SecretStr | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pilot is, and what it waits for. Known again from its run state when it has ended."""

    turn: int
    actions_used: int
    cost_usd: Decimal | None
    requests_of_unknown_cost: int = 0
    waiting: Waiting | None = None


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class PilotEnd:
    """How a pilot ended.

    `state` is what stands in run-state.json, null when nothing readable does. `status` is the exit status, negative for
    a signal; a task that raised counts as 1. `problem` is a line for people when it did not end by itself.
    `is_stopped`: we told it to stop, and it ended by the signal that said so, before it could write a last word.
    """

    state: RunState | None
    status: int
    problem: str = ""
    is_stopped: bool = False

    @property
    def is_final(self) -> bool:
        """True when the pilot itself said how it ended."""
        return self.status == 0 and self.state is not None and self.state.ended_by is not None


class PilotLauncher(Protocol):
    """Plays one rollout to its end."""

    async def play(
        self, spec: RolloutSpec, secrets: PilotSecrets, *, log: Path, stop: anyio.Event, on_progress: OnProgress
    ) -> PilotEnd:
        """Return when the pilot has ended, however. `stop` ends it at its turn's boundary; a cancellation at once."""
        ...

    async def aclose(self) -> None:
        """Let go of what the pilots shared. Nothing plays any more."""
        ...


def launcher_for(mode: Mode, *, max_concurrency: int) -> PilotLauncher:
    """The launcher of this mode."""
    return ChildPilot() if mode == "process" else SharedPilot(max_concurrency=max_concurrency)


class ChildPilot:
    """An interpreter of its own per rollout: isolated, with an environment that is built and not inherited."""

    def __init__(
        self, *, command: tuple[str, ...] = (sys.executable, "-I", "-m", "pilot"), scratch: Path = SCRATCH
    ) -> None:
        self._command = command
        self._scratch = scratch

    async def play(
        self, spec: RolloutSpec, secrets: PilotSecrets, *, log: Path, stop: anyio.Event, on_progress: OnProgress
    ) -> PilotEnd:
        """Start the process, follow it, and see it end. Raises `DiskError`."""
        home = pilot_home(self._scratch, spec.host.host_id)
        try:
            # It may be there already: a rollout that goes on has the host of the controller that died.
            home.mkdir(mode=0o700, exist_ok=True)
            environment = _environment(secrets, home=home)
            child = Child.spawn(self._command, environment=environment, log=log, cwd=Path("/"))
            try:
                status = await _follow(child, spec, stop=stop, on_progress=on_progress)
            finally:
                with anyio.CancelScope(shield=True):
                    await child.end(grace_s=KILL_GRACE_S)
                    child.close()
        finally:
            shutil.rmtree(home, ignore_errors=True)
        if status == DISK_EXIT_STATUS:
            hint = "Free space on that disk, or make its folder writable, then resume the batch."
            raise DiskError(f"the pilot cannot write into {spec.run_dir}", hint=hint)
        state = read_run_state(RunDir(Path(spec.run_dir)).run_state)
        problem = "" if status == 0 else f"the pilot process ended: {describe_status(status)}"
        # A SIGTERM of ours may arrive while the interpreter still starts, and a turn may last longer than our patience.
        is_stopped = stop.is_set() and (status == -signal.SIGTERM or child.was_killed_by_us)
        return PilotEnd(state=state, status=status, problem=problem, is_stopped=is_stopped)

    async def aclose(self) -> None:
        """Nothing is shared."""


class SharedPilot:
    """The same coroutine as a task of this event loop. One that crashes or is cancelled takes nobody with it."""

    def __init__(self, *, max_concurrency: int) -> None:
        self._max_concurrency = max_concurrency
        self._threads: Threads | None = None
        self._clients: Clients | None = None

    async def play(
        self, spec: RolloutSpec, secrets: PilotSecrets, *, log: Path, stop: anyio.Event, on_progress: OnProgress
    ) -> PilotEnd:
        """Run the rollout here. Raises `DiskError`."""
        # Process mode never pays for these imports.
        from pilot.compose import build_world
        from pilot.rollout import run_rollout

        def forward(state: RunState) -> None:
            on_progress(
                Progress(
                    turn=state.turn,
                    actions_used=state.actions_used,
                    cost_usd=state.cost_usd,
                    requests_of_unknown_cost=state.requests_of_unknown_cost,
                    waiting=state.waiting,
                )
            )

        try:
            world = build_world(
                spec,
                broker_token=secrets.broker_token,
                provider_key=secrets.provider_key,
                on_progress=forward,
                threads=self._shared_threads(),
                clients=self._shared_clients(),
                stop=stop,
            )
            await run_rollout(spec, world)
        except DiskError:
            raise
        except Exception as error:  # noqa: BLE001  (a bug in one pilot is that rollout's record, not its siblings' end)
            return _crashed(spec, error, log)
        return PilotEnd(state=read_run_state(RunDir(Path(spec.run_dir)).run_state), status=0)

    async def aclose(self) -> None:
        """Close the connections that all rollouts shared."""
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.aclose()

    def _shared_clients(self) -> Clients:
        if self._clients is None:
            from pilot.models.clients import Clients

            self._clients = Clients()
        return self._clients

    def _shared_threads(self) -> Threads:
        if self._threads is None:
            from pilot.bridge import Threads

            # Rollouts wait for models most of the time; a thread each would be memory for nothing.
            count = max(2, min(32, self._max_concurrency))
            self._threads = Threads(broker=ThreadBridge(count, is_abandonable=True), disk=ThreadBridge(4))
        return self._threads


async def _follow(child: Child, spec: RolloutSpec, *, stop: anyio.Event, on_progress: OnProgress) -> int:
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            async with aclosing(child.lines()) as lines:
                async for line in lines:
                    progress = _parse_progress(line)
                    if progress is not None:
                        on_progress(progress)

        async def pass_on_stop() -> None:
            await stop.wait()
            await child.end(grace_s=STOP_S)

        group.start_soon(listen)
        group.start_soon(pass_on_stop)
        await child.send(orjson.dumps(spec.model_dump(mode="json")) + b"\n")
        status = await child.wait()
        group.cancel_scope.cancel()
    return status


def _environment(secrets: PilotSecrets, *, home: Path) -> dict[str, str]:
    environment = {
        **BASE_ENVIRONMENT,
        "HOME": str(home),
        BROKER_TOKEN_VARIABLE: secrets.broker_token.get_secret_value(),
    }
    if secrets.provider_key is not None:
        environment[PROVIDER_KEY_VARIABLE] = secrets.provider_key.get_secret_value()
    return environment


def _parse_progress(line: bytes) -> Progress | None:
    """The pilot is ours, yet what it prints is still input: a line of another shape is passed over."""
    try:
        value: Any = orjson.loads(line)
        cost, waiting = value["cost_usd"], value.get("waiting")
        return Progress(
            turn=int(value["turn"]),
            actions_used=int(value["actions_used"]),
            cost_usd=None if cost is None else Decimal(str(cost)),
            requests_of_unknown_cost=int(value.get("requests_of_unknown_cost", 0)),
            waiting=None if waiting is None else Waiting.model_validate(waiting),
        )
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, InvalidOperation):
        return None


def _crashed(spec: RolloutSpec, error: Exception, log: Path) -> PilotEnd:
    with suppress(DiskError), open_log(log) as file:
        file.write("".join(traceback.format_exception(error)).encode())
    if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    state = read_run_state(RunDir(Path(spec.run_dir)).run_state)
    return PilotEnd(state=state, status=1, problem=f"the pilot task ended: {type(error).__name__}: {error}")
