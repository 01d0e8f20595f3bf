"""One small world for whole batches: hosts, brokers, pilots and an evaluator in memory, in virtual time.

Every call of ours to the outside goes through `FakeWorld.step`, where a test makes it fail, hang, be cancelled or kill
something.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import anyio.lowlevel
import trio
from pydantic import SecretStr
from rich.console import Console
from trio.testing import MockClock

from contract.ambient import Ambient
from contract.batch_records import BatchState, RolloutRow
from contract.broker_api import (
    ArtifactReply,
    ErrorCode,
    FrameInfo,
    Health,
    Identity,
    Lease,
    LeaseRequest,
    ResetReply,
    ResetRequest,
    SaveRequest,
    UploadGrant,
    Verdict,
)
from contract.broker_client import CAUSES
from contract.config import BatchConfig, Task
from contract.errors import BrokerError, HostError
from contract.phases import BatchStatus, Cause, EndedBy, Phase
from contract.pricing import Usage
from contract.records import Durability, read_lines, read_record, write_record
from contract.rollout_records import Result, Retries, RolloutSpec, RunState, Waiting
from contract.run_dir import BatchDir, RunDir
from supervisor.admission import MachineCapacity, admit, host_needs
from supervisor.equipment import CredentialsLender, Equipment
from supervisor.hosts.lease import Host, HostBroker, HostOrder, LostState
from supervisor.hosts.local import LOCAL_TIMING
from supervisor.hosts.proof import prove_twice
from supervisor.launch import OnProgress, PilotEnd, PilotSecrets, Progress
from supervisor.ledger import HostHistory
from supervisor.outcome import Evaluation
from supervisor.prepared import PreparedBatch, PreparedRollout
from supervisor.state import read_run_state

T = TypeVar("T")
GIB = 1024**3
START = datetime(2024, 5, 1, tzinfo=UTC)
PROVIDER_KEY = "canary-provider-key-77aa"

Step = Callable[[str, str], Awaitable[None]]


def in_virtual_time(work: Callable[[], Awaitable[T]], *, seed: int | None = None) -> T:
    """Run `work` under a clock that jumps to the next deadline as soon as nothing else can happen.

    With a seed, tasks that are ready at the same time run in the same order each time.
    """
    if seed is not None:
        # What pytest-trio does for the same end; trio has no public name for it.
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
        trio._core._run._r.seed(seed)  # type: ignore[attr-defined]
    return anyio.run(work, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})  # type: ignore[arg-type]


def virtual_ambient() -> Ambient:
    """Time that follows the clock of the event loop."""
    return Ambient(elapsed_s=anyio.current_time, utc_now=lambda: START + timedelta(seconds=anyio.current_time()))


class InlineBridge:
    """Does blocking work where it stands."""

    async def call(self, work: Callable[[], T]) -> T:
        await anyio.lowlevel.checkpoint()
        return work()


@dataclass(slots=True)
class FakeMachineHost:
    """One host in memory."""

    host_id: str
    rollout_id: str
    boot_id: str
    token: SecretStr
    ended: anyio.Event = field(default_factory=anyio.Event)
    # Set when the host says by itself that its CAD program is lost.
    lost: anyio.Event = field(default_factory=anyio.Event)
    driver_state: Literal["stopped", "ready", "cad_died", "cad_hung", "display_died"] = "stopped"
    last_sequence: int = 0
    lease: Lease | None = None
    resets: list[str] = field(default_factory=list)

    def die(self) -> None:
        self.ended.set()


async def no_trouble(step: str, rollout_id: str) -> None:
    """Nothing happens."""


@dataclass(slots=True)
class FakeWorld:
    """Everything that exists outside of the supervisor.

    `trouble(step, rollout_id)` is awaited before each deed. `play` is what a pilot does with its world.
    """

    trouble: Step = no_trouble
    alive: dict[str, FakeMachineHost] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)
    played: list[str] = field(default_factory=list)
    specs: list[RolloutSpec] = field(default_factory=list)
    evaluated: list[str] = field(default_factory=list)
    # What each pilot was given, by rollout.
    secrets: dict[str, PilotSecrets] = field(default_factory=dict)
    aws: CredentialsLender | None = None
    places_held: int = 0
    places_held_max: int = 0
    turns: int = 3
    turn_s: float = 2.0
    evaluation: Evaluation = field(default_factory=lambda: Evaluation(state="complete", score=1.0, final=1.0))
    on_turn: Callable[[RolloutSpec, int], None] = lambda spec, turn: None
    ending: Callable[[RolloutSpec], PilotEnd | None] = lambda spec: None
    # What a rollout has cost after each of its turns; None is unknown.
    cost: Callable[[RolloutSpec, int], Decimal | None] = lambda spec, turn: None
    # What it waits for while it takes its turn.
    waiting: Callable[[RolloutSpec, int], Sequence[Waiting]] = lambda spec, turn: ()

    async def step(self, name: str, rollout_id: str) -> None:
        self.steps.append((name, rollout_id))
        await anyio.lowlevel.checkpoint()
        await self.trouble(name, rollout_id)

    def host_of(self, rollout_id: str) -> FakeMachineHost:
        # The newest: an earlier one that could not be ended may still be there.
        return [host for host in self.alive.values() if host.rollout_id == rollout_id][-1]

    def equipment(self) -> Equipment:
        return Equipment(
            hosts=FakeHosts(self),
            reach=lambda host, base_url: FakeHostBroker(self, host),
            reach_for_heartbeat=lambda host, base_url: FakeHostBroker(self, host),
            pilots=FakePilots(self),
            evaluator=FakeEvaluator(self),
            uploads=FakeUploads(),
            aws=self.aws,
            slots=FakeSlots(self),
            disk=InlineBridge(),
            ambient=virtual_ambient(),
        )


class FakeHosts:
    """Hosts that live in a dictionary until they are terminated."""

    def __init__(self, world: FakeWorld) -> None:
        self.kind: Literal["local", "ec2"] = "local"
        self.extension = "dxf"
        self.timing = LOCAL_TIMING
        self._world = world

    async def launch(self, order: HostOrder) -> Host:
        world = self._world
        host = FakeMachineHost(
            order.host_id, order.rollout_id, f"boot-{order.host_id}", SecretStr(f"canary-token-of-{order.host_id}")
        )
        # As in life: the host exists before anybody hears of it.
        world.alive[order.host_id] = host
        world.launched.append(order.host_id)
        await world.step("launch", order.rollout_id)
        return Host(
            host_id=host.host_id,
            rollout_id=host.rollout_id,
            boot_id=host.boot_id,
            base_url="http://127.0.0.1:1",
            token=host.token,
            facts={"pid": 1, "pid_started": 1.0, "boot_id": host.boot_id, "base_url": "http://127.0.0.1:1"},
        )

    async def open_tunnel(self, host: Host) -> str:
        await self._world.step("tunnel", host.rollout_id)
        return host.base_url

    async def prove(self, host: Host, broker: HostBroker) -> Host:
        await prove_twice(host, broker)
        return host

    async def wait_tunnel_broken(self, host_id: str) -> None:
        await anyio.sleep_forever()

    async def mend_tunnel(self, host_id: str, *, misses: int) -> None:
        host = self._world.alive.get(host_id)
        if host is not None:
            await self._world.step("mend", host.rollout_id)

    async def close_tunnel(self, host_id: str) -> None:
        await anyio.lowlevel.checkpoint()

    async def wait_ended(self, host_id: str) -> str:
        await self._world.alive[host_id].ended.wait()
        return f"host {host_id} ended"

    async def wait_lost(self, host_id: str) -> LostState:
        host = self._world.alive[host_id]
        await host.lost.wait()
        assert host.driver_state not in ("stopped", "ready")
        return host.driver_state

    def has_ended(self, host_id: str) -> bool:
        host = self._world.alive.get(host_id)
        return host is not None and host.ended.is_set()

    async def terminate(self, host_id: str, *, batch_id: str) -> None:
        host = self._world.alive.get(host_id)
        if host is not None:
            await self._world.step("terminate", host.rollout_id)
        self._world.alive.pop(host_id, None)

    async def terminate_all(self, host_ids: Collection[str], *, batch_id: str) -> None:
        for host_id in host_ids:
            self._world.alive.pop(host_id, None)

    async def reattach(self, history: HostHistory, *, batch_id: str) -> Host | None:
        host = self._world.alive.get(history.host_id)
        if host is None or host.ended.is_set():
            return None
        return Host(host.host_id, host.rollout_id, host.boot_id, "http://127.0.0.1:1", host.token)

    def renew(self, host: Host) -> None:
        """Nothing to keep fresh."""

    async def find_leftovers(self, host_ids: Collection[str], *, batch_id: str) -> dict[str, str]:
        await self._world.step("reconcile", "")
        return {host_id: "alive" for host_id in host_ids if host_id in self._world.alive}


class FakeHostBroker:
    """The calls that bring a rollout to hand-off, on a host in memory."""

    def __init__(self, world: FakeWorld, host: Host) -> None:
        self._world = world
        self._host = host

    async def identity(self) -> Identity:
        host = await self._at("identity")
        return Identity(
            nonce="n", host_id=host.host_id, boot_id=host.boot_id, broker_version="1.0", started_at="", proof="0" * 64
        )

    async def lease(self, request: LeaseRequest) -> Lease:
        host = await self._at("lease")
        host.lease = Lease(lease_id=f"l-{host.host_id}", generation=1, rollout_id=request.rollout_id, expires_in_s=60)
        return host.lease

    async def heartbeat(self, lease_id: str) -> Lease:
        host = await self._at("heartbeat")
        if host.lease is None or host.lease.lease_id != lease_id:
            raise broker_error(ErrorCode.LEASE_UNKNOWN)
        return host.lease

    async def reset(self, request: ResetRequest) -> ResetReply:
        host = await self._at("reset")
        host.resets.append(request.request_id)
        host.driver_state = "ready"
        return ResetReply(frame=frame_info(), attempts=1, reset_s=0.1)

    async def health(self) -> Health:
        host = await self._at("health")
        return Health(
            broker_version="1.0",
            boot_id=host.boot_id,
            host_id=host.host_id,
            driver="paper",
            driver_state=host.driver_state,
            lease_generation=1,
            last_sequence=host.last_sequence,
        )

    async def save(self, request: SaveRequest) -> ArtifactReply:
        await self._at("save")
        return ArtifactReply(name="attempt", is_present=True, sha256="0" * 64, size_bytes=1)

    def close(self) -> None:
        """Nothing is open."""

    async def _at(self, step: str) -> FakeMachineHost:
        await self._world.step(step, self._host.rollout_id)
        host = self._world.alive.get(self._host.host_id)
        if host is None or host.ended.is_set():
            raise broker_error(ErrorCode.UNREACHABLE)
        return host


class FakePilots:
    """Plays `turns` turns of `turn_s` seconds each, then says that the model has finished."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    async def play(
        self, spec: RolloutSpec, secrets: PilotSecrets, *, log: Path, stop: anyio.Event, on_progress: OnProgress
    ) -> PilotEnd:
        world = self._world
        world.played.append(spec.rollout_id)
        world.specs.append(spec)
        world.secrets[spec.rollout_id] = secrets
        await world.step("pilot", spec.rollout_id)
        run_dir = RunDir(Path(spec.run_dir))
        for turn in range(1, world.turns + 1):
            before = world.cost(spec, turn - 1)
            if stop.is_set():
                return _leave(run_dir, turn - 1, EndedBy.INTERRUPTED, cost_usd=before)
            for waiting in world.waiting(spec, turn):
                on_progress(Progress(turn=turn - 1, actions_used=turn * 2 - 2, cost_usd=before, waiting=waiting))
                await anyio.sleep(world.turn_s)
            await anyio.sleep(world.turn_s)
            await world.step("turn", spec.rollout_id)
            world.on_turn(spec, turn)
            if (end := world.ending(spec)) is not None:
                return end
            host = world.alive.get(spec.host.host_id)
            if host is None or host.ended.is_set():
                return _leave(run_dir, turn, EndedBy.HOST_LOST, Cause.BROKER_UNREACHABLE)
            host.last_sequence = turn
            cost_usd = world.cost(spec, turn)
            write_state(run_dir, turn, None, cost_usd=cost_usd)
            on_progress(Progress(turn=turn, actions_used=turn * 2, cost_usd=cost_usd))
        return _leave(run_dir, world.turns, EndedBy.FINISHED, cost_usd=world.cost(spec, world.turns))

    async def aclose(self) -> None:
        """Nothing is shared."""


class FakeEvaluator:
    """Says what the world says."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    async def evaluate(
        self,
        *,
        host: Host,
        base_url: str,
        lease_id: str,
        run_dir: RunDir,
        task_id: str,
        on_fetched: Callable[[], None],
    ) -> Evaluation:
        await self._world.step("evaluate", host.rollout_id)
        await anyio.sleep(1)
        on_fetched()
        await self._world.step("judge", host.rollout_id)
        self._world.evaluated.append(host.rollout_id)
        return self._world.evaluation


class FakeUploads:
    """Everything arrives."""

    def grant(self, name: str, *, bytes_max: int, dest: Path) -> UploadGrant:
        return UploadGrant(url=f"http://127.0.0.1:1/{dest}", headers={}, bytes_max=bytes_max)

    async def collect(self, grant: UploadGrant, *, sha256: str, size_bytes: int) -> Path:
        path = Path(grant.url.removeprefix("http://127.0.0.1:1/"))
        path.write_bytes(b"0")
        return path


class FakeSlots:
    """Always room; counts."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    @asynccontextmanager
    async def slot(
        self, needs: object, *, batch_id: str, rollout_id: str, has_host: bool = False, on_wait: Any = None
    ) -> Any:
        world = self._world
        await world.step("slot", rollout_id)
        world.places_held += 1
        world.places_held_max = max(world.places_held_max, world.places_held)
        try:
            yield
        finally:
            world.places_held -= 1


def write_state(
    run_dir: RunDir,
    turn: int,
    ended_by: EndedBy | None,
    error: Cause | None = None,
    phase: Phase = Phase.HANDED_OFF,
    *,
    cost_usd: Decimal | None = None,
    requests_of_unknown_cost: int = 0,
) -> RunState:
    """A run state as a pilot leaves it."""
    state = RunState(
        rollout_id=run_dir.rollout_id,
        phase=phase,
        turn=turn,
        actions_used=turn * 2,
        actions_max=5000,
        invalid_turns=0,
        invalid_turns_lifetime=0,
        retries=Retries(),
        usage=Usage(),
        cost_usd=cost_usd,
        requests_of_unknown_cost=requests_of_unknown_cost,
        updated_at=START,
        ended_by=ended_by,
        error=None if error is None else {"cause": error, "message": "what the pilot saw"},  # type: ignore[arg-type]
    )
    write_record(run_dir.run_state, state, durability=Durability.PROCESS)
    return state


def _leave(
    run_dir: RunDir, turn: int, ended_by: EndedBy, error: Cause | None = None, *, cost_usd: Decimal | None = None
) -> PilotEnd:
    return PilotEnd(state=write_state(run_dir, turn, ended_by, error, cost_usd=cost_usd), status=0)


def died_pilot(spec: RolloutSpec, status: int = -9) -> PilotEnd:
    """The end of a pilot that was killed."""
    return PilotEnd(read_run_state(RunDir(Path(spec.run_dir)).run_state), status, "the pilot process ended")


def broker_error(code: ErrorCode) -> BrokerError:
    """What the client raises for this answer."""
    return BrokerError(f"the broker said {code}", code=code, cause=CAUSES.get(code, Cause.BROKER_REFUSED))


def host_error(cause: Cause = Cause.HOST_LAUNCH) -> HostError:
    return HostError("it did not start", cause=cause)


def frame_info(sequence: int = 0) -> FrameInfo:
    return FrameInfo(
        sequence=sequence,
        sha256="0" * 64,
        size_bytes=1,
        width_px=1920,
        height_px=1080,
        verdict=Verdict.OK,
        settle_s=0.1,
    )


# --- a batch to play -----------------------------------------------------------------------------------------------


def prepare(
    folder: Path,
    *,
    count: int = 2,
    max_concurrency: int = 2,
    mode: Literal["process", "shared"] = "process",
    provider: str = "noop",
    host: dict[str, Any] | None = None,
    start_drawing: bytes = b"start",
    reference: bytes = b"picture",
    script: Path | None = None,
    gold_dir: Path | None = None,
    replacements: int = 1,
    credentials: dict[str, SecretStr] | None = None,
    limits: dict[str, Any] | None = None,
    choice: dict[str, Any] | None = None,
) -> PreparedBatch:
    """A batch of `count` rollouts `r-0`, `r-1`, ... of one task, as preflight would hand it over.

    `choice` is how a vendor's model is asked: the last fields of a `PreparedRollout`.
    """
    task_dir = folder / "task"
    task_dir.mkdir(parents=True, exist_ok=True)
    (task_dir / "start.dxf").write_bytes(start_drawing)
    (task_dir / "reference.png").write_bytes(reference)
    task = Task.model_validate(
        {
            "schema": "autocad-bench.task/1",
            "task_id": "dot",
            "title": "dot",
            "prompt": "Draw a dot.",
            "start_drawing": "start.dxf",
            "start_drawing_sha256": hashlib.sha256(start_drawing).hexdigest(),
            "reference": "reference.png",
            "reference_sha256": hashlib.sha256(reference).hexdigest(),
            "oracle": None,
            "profile": "2d",
            "placement": "absolute",
        }
    )
    document = {
        "schema": "autocad-bench.config/1",
        "benchmark": "tiny",
        "mode": mode,
        "expected_rollouts": count,
        "max_concurrency": max_concurrency,
        "broker_version": "1.0",
        "host": host or {"kind": "local", "driver": "paper"},
        "evaluator": {"name": "ezdxf", "version": "1.0.0", "gold_cache": str(gold_dir or folder / "gold")},
        "limits": {"host_replacements": replacements, **(limits or {})},
        "rollouts": [
            {"rollout_id": f"r-{number}", "task": "dot", "provider": provider, "model": "m", "seed": number}
            for number in range(count)
        ],
    }
    content = json.dumps(document).encode()
    config = BatchConfig.model_validate_json(content)
    machine = MachineCapacity(memory_total_bytes=64 * GIB, memory_available_bytes=64 * GIB, cores=64)
    return PreparedBatch(
        config=config,
        config_bytes=content,
        config_sha256=hashlib.sha256(content).hexdigest(),
        root=folder,
        mode=config.mode,
        max_concurrency=max_concurrency,
        rollouts=tuple(
            PreparedRollout(
                assignment=assignment,
                task=task,
                task_dir=task_dir,
                host_notes="notes",
                script=script,
                price=None,
                **(choice or {}),
            )
            for assignment in config.rollouts
        ),
        gold_dir=gold_dir or folder / "gold",
        prices=None,
        credentials=credentials or {},
        judge_key=None,
        admission=admit(
            enabled_rollouts=count,
            max_concurrency=max_concurrency,
            capacity=machine,
            needs=host_needs(driver="paper", mode=mode, scripted=True),
            in_use=0,
        ),
    )


def spec_in(run_dir: Path, *, base_url: str = "http://127.0.0.1:1") -> RolloutSpec:
    """What a pilot is told about a rollout in this folder, on a host where nobody listens unless one is named."""
    return RolloutSpec.model_validate(
        {
            "batch_id": "b-1",
            "rollout_id": run_dir.name,
            "run_dir": str(run_dir),
            "task": {
                "task_id": "dot",
                "prompt": "Draw a dot.",
                "host_notes": "",
                "reference": str(run_dir / "reference.png"),
                "reference_sha256": "0" * 64,
            },
            "choice": {"provider": "noop", "model": "m"},
            "host": {
                "host_id": "h-1",
                "boot_id": "boot-1",
                "base_url": base_url,
                "lease_id": "l-1",
                "lease_generation": 1,
                "first_frame": frame_info().model_dump(mode="json"),
            },
            "limits": {},
            "price": None,
        }
    )


def batch_state(*rows: RolloutRow) -> BatchState:
    """A batch that is running, with these rows."""
    return BatchState(
        batch_id="b-1",
        benchmark="tiny",
        status=BatchStatus.RUNNING,
        mode="process",
        max_concurrency=2,
        created_at=START,
        updated_at=START,
        config_sha256="0" * 64,
        broker_version="1.0",
        evaluator_version="1.0.0",
        pricing=None,
        controller_pid=1,
        controller_started=1.0,
        rollouts=list(rows),
    )


def quiet_console() -> Console:
    """A console that prints lines into memory."""
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def printed(console: Console) -> str:
    """What a quiet console was told."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def read_state(batch_dir: BatchDir) -> BatchState:
    return read_record(batch_dir.state, BatchState)


def read_result(batch_dir: BatchDir, rollout_id: str) -> Result:
    return read_record(batch_dir.rollout(rollout_id).result, Result)


def ledger_events(batch_dir: BatchDir, rollout_id: str) -> list[str]:
    """What the ledger says about all hosts of one rollout, in order."""
    return [line["event"] for line in read_lines(batch_dir.hosts) if line["rollout_id"] == rollout_id]


def assert_nothing_is_left(world: FakeWorld, batch_dir: BatchDir) -> None:
    """No host is alive, no place is held, and the ledger has seen each launch end."""
    endings = {"released", "replaced", "launch_failed", "reconciled"}
    open_hosts: dict[str, str] = {}
    for line in read_lines(batch_dir.hosts):
        if line["event"] in endings:
            open_hosts.pop(line["host_id"], None)
        else:
            open_hosts[line["host_id"]] = line["event"]

    assert {} == world.alive
    assert 0 == world.places_held
    assert {} == open_hosts


def phases(batch_dir: BatchDir) -> Sequence[Phase]:
    return [row.phase for row in read_state(batch_dir).rollouts]
