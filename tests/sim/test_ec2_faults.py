"""Whole batches on a cloud with seeded faults and controllers that die. `make sim SEED=n` plays one point again.

Each seed makes a batch, a cloud with its own delays and its own rate of refused, lost and late answers, and a moment at
which the controller dies: before a call leaves, after it was carried out and before its answer, or between two writes.
From that moment on no call and no write of it has any effect, which is what SIGKILL looks like from outside. Then time
passes, and either nobody comes, or a reconciler, or a second controller, which may die too.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from contract.ambient import Ambient
from contract.broker_api import ErrorCode
from contract.errors import BenchError
from contract.phases import Cause, Outcome, Phase
from contract.rollout_records import RolloutSpec
from contract.run_dir import BatchDir
from supervisor.batch import EXIT_INTERRUPTED, execute
from supervisor.cloud.ports import FaultKind, LaunchOrder
from supervisor.equipment import Equipment
from supervisor.keepers import Keepers
from supervisor.launch import PilotEnd
from supervisor.prepared import PreparedBatch
from supervisor.reconcile import end as reconcile
from supervisor.resume import resume
from tests.batch_fakes import (
    broker_error,
    died_pilot,
    host_error,
    in_virtual_time,
    ledger_events,
    prepare,
    quiet_console,
    read_state,
    virtual_ambient,
)
from tests.ec2_world import Ec2World, ec2_config, ec2_host
from tests.fake_cloud import NEVER, Controller, FakeCloud, Trouble, fault

_CHOSEN = os.environ.get("AUTOCAD_BENCH_SIM_SEED", "").strip()
FEW = [int(_CHOSEN)] if _CHOSEN else list(range(12))
MANY = [] if _CHOSEN else list(range(12, 520))
LEASE_S = 300.0
VIRTUAL_S_MAX = 100_000.0
DECOYS_OF_A_KIND = 17

Play = Callable[[Equipment], Awaitable[int]]


@dataclass(slots=True)
class Chaos:
    """Trouble for one batch, all of it from one seed."""

    cloud: FakeCloud
    chance: random.Random
    rate: float
    interrupts_left: int
    world: Ec2World = field(init=False)

    def on_call(self, action: str, order: object) -> Trouble | None:
        chance = self.chance
        delay_s = chance.expovariate(1 / 5) if chance.random() < 0.1 else 0.0
        if chance.random() >= self.rate:
            return Trouble(delay_s=delay_s)
        kinds = [FaultKind.THROTTLE, FaultKind.AMBIGUOUS, FaultKind.AMBIGUOUS, FaultKind.SIGNING]
        if isinstance(order, LaunchOrder) and not self.cloud.has_launched(order):
            kinds += [FaultKind.AMBIGUOUS, FaultKind.CAPACITY, FaultKind.SUBNET_FULL, FaultKind.QUOTA]
        kind = chance.choice(kinds)
        is_carried_out = kind is FaultKind.AMBIGUOUS and chance.random() < 0.6
        return Trouble(fault(kind, action), is_carried_out=is_carried_out, delay_s=delay_s)

    async def on_step(self, step: str, rollout_id: str) -> None:
        if self.interrupts_left and self.chance.random() < 0.02:
            self.interrupts_left -= 1
            signal.raise_signal(signal.SIGTERM)
        if self.chance.random() >= self.rate / 3:
            return
        match step:
            case "tunnel":
                raise host_error(Cause.TUNNEL)
            case "identity" | "lease" | "reset" | "health":
                raise broker_error(self.chance.choice([ErrorCode.UNREACHABLE, ErrorCode.INTERNAL]))
            case "turn":
                list(self.world.tunnels.values())[-1].break_down()

    def on_turn(self, spec: RolloutSpec, turn: int) -> None:
        if self.chance.random() < self.rate / 5:
            machine = self.cloud.machine_of(spec.host.host_id)
            assert machine is not None
            self.cloud.end(machine.instance_id)

    def ending(self, spec: RolloutSpec) -> PilotEnd | None:
        return died_pilot(spec) if self.chance.random() < self.rate / 5 else None

    def stillborn(self, order: object) -> str | None:
        if self.chance.random() < self.rate / 4:
            return self.chance.choice(["Server.InsufficientInstanceCapacity", "Server.InternalError"])
        return None


@dataclass(slots=True)
class Stage:
    """One batch, its cloud and whoever controls it."""

    folder: Path
    cloud: FakeCloud
    world: Ec2World
    prepared: PreparedBatch
    ambient: Ambient

    @property
    def batch_dir(self) -> BatchDir:
        return BatchDir(self.folder / "out")

    async def control(self, play: Play, *, dies_at: float) -> int | None:
        """Let a controller run until it has done, or until it dies after so many deeds: null then."""
        copy = self.folder / "as-it-was"
        with anyio.CancelScope() as life:

            def die() -> None:
                # What is on disk now is what the next one finds, whatever the dying code still writes.
                if self.batch_dir.root.exists():
                    shutil.copytree(self.batch_dir.root, copy)
                life.cancel()

            self.cloud.controller = controller = Controller(dies_at=dies_at, on_death=die)
            code: int | None = None
            async with anyio.create_task_group() as group:
                equipment = self.world.late_equipment(
                    ec2_config(lease_s=LEASE_S), group, ledger_path=self.batch_dir.hosts, ambient=self.ambient
                )
                try:
                    code = await play(equipment)
                except BenchError:
                    assert controller.is_dead
                group.cancel_scope.cancel()
        if controller.is_dead:
            shutil.rmtree(self.batch_dir.root, ignore_errors=True)
            if copy.exists():
                copy.rename(self.batch_dir.root)
            # What holds places, ports and plugins dies with the process.
            self.world.relays.clear()
            self.world.tunnels.clear()
        self.cloud.controller = Controller()
        return None if controller.is_dead else code

    async def execute(self, equipment: Equipment) -> int:
        return await execute(
            self.prepared,
            self.batch_dir,
            rerun_of=None,
            console=quiet_console(),
            ambient=self.ambient,
            equipment=equipment,
        )

    async def resume(self, equipment: Equipment) -> int:
        return await resume(
            self.batch_dir, self.prepared, console=quiet_console(), ambient=self.ambient, equipment=equipment
        )

    def reconcile(self) -> None:
        """As its command does, in a loop and with threads of its own; virtual time stands still meanwhile."""
        cloud, clock, now_s, now = self.cloud, self.cloud.now_s, self.cloud.now_s(), self.ambient.utc_now()
        keepers = Keepers(lambda config: cloud)
        ambient = replace(self.ambient, utc_now=lambda: now)
        cloud.now_s = lambda: now_s
        command = threading.Thread(
            target=lambda: anyio.run(partial(reconcile, [self.batch_dir], keepers=keepers, ambient=ambient))
        )
        command.start()
        command.join()
        cloud.now_s = clock


def _stage(folder: Path, seed: int, chance: random.Random) -> tuple[Stage, Chaos]:
    count = chance.randint(1, 5)
    cloud = FakeCloud(
        quota_vcpus=chance.choice([4, 8, 12, 1000]),
        pending_s=chance.uniform(5, 40),
        agent_s=chance.uniform(5, 60),
        visible_s=chance.choice([0.0, 0.0, 5.0, 20.0]),
        lag_s=chance.choice([0.0, 0.0, 3.0, 10.0]),
        capacity=chance.choice([{}, {}, {"subnet-0000000a": 1}]),
        decoys_of_a_kind=DECOYS_OF_A_KIND,
    )
    chaos = Chaos(
        cloud,
        random.Random(seed + 1),
        rate=chance.choice([0.0, 0.05, 0.15, 0.3]),
        interrupts_left=chance.choice([0, 0, 0, 1, 2]),
    )
    prepared = prepare(
        folder, count=count, max_concurrency=chance.randint(1, count), host=ec2_host(lease_s=LEASE_S), mode="shared"
    )
    world = Ec2World(cloud=cloud, turns=chance.randint(1, 6), turn_s=chance.uniform(1, 20))
    chaos.world = world
    cloud.trouble, cloud.stillborn = chaos.on_call, chaos.stillborn
    world.trouble, world.on_turn, world.ending = chaos.on_step, chaos.on_turn, chaos.ending
    ambient = replace(virtual_ambient(), chance=random.Random(seed + 2))
    return Stage(folder, cloud, world, prepared, ambient), chaos


@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)])
def test_no_machine_outlives_its_lease_or_the_next_reconciler(tmp_path: Path, seed: int) -> None:
    """Whatever is refused, lost or late, and whoever dies when: no machine is left, doubled, or taken from others."""
    print(f"seed {seed}: make sim SEED={seed}")
    chance = random.Random(seed)
    stage, chaos = _stage(tmp_path, seed, chance)
    cloud = stage.cloud

    async def story() -> None:
        with anyio.fail_after(VIRTUAL_S_MAX):
            # A batch of this size does some hundred deeds; a few of the moments lie behind its end.
            dies_at = chance.randint(1, 60 + 60 * len(stage.prepared.rollouts))
            code = await stage.control(stage.execute, dies_at=dies_at)
            if code is None:
                if stage.batch_dir.state.exists():
                    await _after_a_death(stage, chance)
            else:
                await _after_an_end(stage, chaos, code)
            # The longest silence that a guest bears, the longest boot before it, and the look of its timer.
            await anyio.sleep(LEASE_S + 100)
            assert [] == cloud.alive()

    in_virtual_time(story, seed=seed)

    assert [] == cloud.doubles
    assert [] == cloud.touched_decoys
    if cloud.ours():
        assert 6 * DECOYS_OF_A_KIND == len(cloud.decoys())


async def _after_a_death(stage: Stage, chance: random.Random) -> None:
    cloud = stage.cloud
    calm = chance.random() < 0.7
    await anyio.sleep(chance.choice([0.0, 1.0, 30.0, 200.0, 700.0]))
    match chance.choice(["nobody", "reconcile", "resume", "resume", "resume, death", "resume, death, resume"]):
        case "nobody":
            return
        case "reconcile":
            await _reconcile(stage)
        case "resume":
            _calm_down(cloud, calm)
            code = await stage.control(stage.resume, dies_at=NEVER)
            assert code is not None
            _assert_each_ended_once(stage)
        case "resume, death":
            await stage.control(stage.resume, dies_at=chance.randint(1, 150))
            await _reconcile(stage)
        case _:
            await stage.control(stage.resume, dies_at=chance.randint(1, 150))
            await anyio.sleep(chance.choice([0.0, 30.0]))
            _calm_down(cloud, calm)
            await stage.control(stage.resume, dies_at=NEVER)
            _assert_each_ended_once(stage)


async def _reconcile(stage: Stage) -> None:
    """As cron does it, when every index shows what was launched: then nothing at all is alive."""
    cloud = stage.cloud
    _calm_down(cloud, True)
    await anyio.sleep(cloud.visible_s)
    before = len(cloud.calls("TerminateInstances"))
    stage.reconcile()

    assert [] == cloud.alive()
    assert len(cloud.calls("TerminateInstances")) - before <= 1


def _calm_down(cloud: FakeCloud, calm: bool) -> None:
    if calm:
        cloud.trouble = lambda action, order: None


async def _after_an_end(stage: Stage, chaos: Chaos, code: int) -> None:
    is_calm = chaos.rate == 0
    while True:
        _assert_each_ended_once(stage)
        assert 0 == stage.world.places_held
        if is_calm:
            assert [] == stage.cloud.alive()
        if code != EXIT_INTERRUPTED:
            break
        resumed = await stage.control(stage.resume, dies_at=NEVER)
        assert resumed is not None
        code = resumed
    rows = read_state(stage.batch_dir).rollouts
    assert Phase.QUEUED not in {row.phase for row in rows}
    if is_calm:
        assert {Outcome.SCORED, Outcome.VOID} >= {row.outcome for row in rows}
        assert {None, Cause.INTERRUPTED} >= {row.cause for row in rows}


def _assert_each_ended_once(stage: Stage) -> None:
    first_samples = Counter(spec.rollout_id for spec in stage.world.specs if not spec.is_resume)
    for row in read_state(stage.batch_dir).rollouts:
        handed_off = "handed_off" in ledger_events(stage.batch_dir, row.rollout_id)
        assert row.phase in {Phase.FINISHED, Phase.FAILED, Phase.NOT_STARTED, Phase.QUEUED}
        assert handed_off or row.phase not in {Phase.FINISHED, Phase.FAILED}
        assert first_samples[row.rollout_id] <= 1, "a sample was silently replaced"
