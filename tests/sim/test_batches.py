"""Whole batches with seeded faults in virtual time. A failure names its seed; `make sim SEED=n` plays it again.

Each seed makes a batch of its own size and trouble: steps that fail, hang or take long, hosts that die or lose their
desktop at any moment, pilots that crash or are killed, and now and then an operator who interrupts once or twice. Then
the batch is resumed until it is whole. What must hold holds for all of them.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from contract.broker_api import ErrorCode
from contract.phases import BatchStatus, Cause, Outcome, Phase
from contract.rollout_records import RolloutSpec
from contract.run_dir import BatchDir
from supervisor.batch import execute
from supervisor.launch import PilotEnd
from supervisor.resume import resume
from tests.batch_fakes import (
    FakeWorld,
    assert_nothing_is_left,
    broker_error,
    died_pilot,
    host_error,
    in_virtual_time,
    ledger_events,
    prepare,
    quiet_console,
    read_result,
    read_state,
    virtual_ambient,
)

_CHOSEN = os.environ.get("AUTOCAD_BENCH_SIM_SEED", "").strip()
FEW = [int(_CHOSEN)] if _CHOSEN else list(range(8))
MANY = [] if _CHOSEN else list(range(8, 120))
# A batch that plays for longer than this hangs: its rollouts take a minute each.
VIRTUAL_S_MAX = 50_000.0
TRUE_CAUSES = {
    "die": {Cause.BROKER_DIED},
    "cad_died": {Cause.CAD_DIED},
    "display_died": {Cause.DISPLAY_DIED},
    "killed": {Cause.PILOT_DIED},
    "crashed": {Cause.PILOT_ERROR},
}


@dataclass(slots=True)
class Chaos:
    """Trouble for one batch, all of it from one seed. `done_to` says what was last done to whom after hand-off."""

    world: FakeWorld
    chance: random.Random
    rate: float
    interrupts_left: int
    done_to: dict[str, str] = field(default_factory=dict)

    async def trouble(self, step: str, rollout_id: str) -> None:
        chance = self.chance
        if chance.random() < 0.3:
            await anyio.sleep(chance.expovariate(1.0))
        if chance.random() < 0.01 and self.interrupts_left:
            self.interrupts_left -= 1
            signal.raise_signal(signal.SIGINT)
        if chance.random() >= self.rate:
            return
        match step:
            case "launch":
                raise host_error()
            case "tunnel":
                raise host_error(Cause.TUNNEL)
            case "identity" | "lease" | "reset":
                raise broker_error(chance.choice([ErrorCode.UNREACHABLE, ErrorCode.INTERNAL]))
            case "health":
                raise broker_error(ErrorCode.UNREACHABLE)
            case "terminate":
                if chance.random() < 0.5:
                    raise host_error(Cause.UNKNOWN)
                await anyio.sleep_forever()
            case "save":
                await anyio.sleep(30)
            case "evaluate":
                self._break_host(rollout_id)

    def on_turn(self, spec: RolloutSpec, turn: int) -> None:
        if self.chance.random() < self.rate / 2:
            self._break_host(spec.rollout_id)

    def ending(self, spec: RolloutSpec) -> PilotEnd | None:
        if spec.rollout_id in self.done_to or self.chance.random() >= self.rate / 3:
            return None
        if self.chance.random() < 0.5:
            self.done_to[spec.rollout_id] = "killed"
            return died_pilot(spec, status=-9)
        self.done_to[spec.rollout_id] = "crashed"
        return died_pilot(spec, status=1)

    def _break_host(self, rollout_id: str) -> None:
        if rollout_id in self.done_to:
            return
        host = self.world.host_of(rollout_id)
        what = self.chance.choice(["die", "cad_died", "display_died"])
        self.done_to[rollout_id] = what
        if what == "die":
            host.die()
        else:
            host.driver_state = what  # type: ignore[assignment]


@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)])
def test_every_batch_ends_with_the_truth_and_with_nothing_left(tmp_path: Path, seed: int) -> None:
    """Each sample ends exactly once with its true cause, siblings play on, and no host outlives the batch."""
    print(f"seed {seed}: make sim SEED={seed}")
    chance = random.Random(seed)
    prepared = prepare(
        tmp_path,
        count=chance.randint(1, 12),
        max_concurrency=chance.randint(1, 5),
        replacements=chance.choice([0, 1, 1, 2]),
    )
    world = FakeWorld(turns=chance.randint(1, 12), turn_s=chance.uniform(0.2, 8))
    chaos = Chaos(world, chance, rate=chance.choice([0.0, 0.02, 0.1, 0.3]), interrupts_left=chance.choice([0, 0, 1, 2]))
    world.trouble, world.on_turn, world.ending = chaos.trouble, chaos.on_turn, chaos.ending
    batch_dir = BatchDir(tmp_path / "out")
    console = quiet_console()

    async def first() -> int:
        with anyio.fail_after(VIRTUAL_S_MAX):
            return await execute(
                prepared,
                batch_dir,
                rerun_of=None,
                console=console,
                ambient=virtual_ambient(),
                equipment=world.equipment(),
            )

    async def again() -> int:
        with anyio.fail_after(VIRTUAL_S_MAX):
            return await resume(
                batch_dir, prepared, console=console, ambient=virtual_ambient(), equipment=world.equipment()
            )

    code = in_virtual_time(first, seed=seed)
    _assert_truth(world, chaos, batch_dir, code)
    ended = {
        row.rollout_id: row for row in read_state(batch_dir).rollouts if row.phase in {Phase.FINISHED, Phase.FAILED}
    }
    while code == 130:
        code = in_virtual_time(again, seed=seed)
        _assert_truth(world, chaos, batch_dir, code)

    rows = {row.rollout_id: row for row in read_state(batch_dir).rollouts}
    assert ended == {rollout_id: rows[rollout_id] for rollout_id in ended}
    assert all(world.played.count(rollout_id) <= 1 for rollout_id in rows)


def _assert_truth(world: FakeWorld, chaos: Chaos, batch_dir: BatchDir, code: int) -> None:
    state = read_state(batch_dir)
    outcomes = [row.outcome for row in state.rollouts]
    whole = all(outcome is Outcome.SCORED for outcome in outcomes)

    assert_nothing_is_left(world, batch_dir)
    assert (BatchStatus.INTERRUPTED if code == 130 else BatchStatus.FINISHED) == state.status
    if code != 130:
        assert (0 if whole else 1) == code
    for row in state.rollouts:
        handed_off = ledger_events(batch_dir, row.rollout_id).count("handed_off")
        assert row.phase in {Phase.FINISHED, Phase.FAILED, Phase.NOT_STARTED, Phase.QUEUED}
        assert (1 if row.phase in {Phase.FINISHED, Phase.FAILED} else 0) == handed_off
        if handed_off:
            result = read_result(batch_dir, row.rollout_id)
            assert (row.outcome, row.cause, row.score) == (result.outcome, result.cause, result.score)
        what = chaos.done_to.get(row.rollout_id)
        if what is not None and row.outcome is Outcome.VOID:
            # An interruption, or silence that lasted too long, may have come first.
            assert row.cause in TRUE_CAUSES[what] | {Cause.INTERRUPTED, Cause.BROKER_UNREACHABLE}
        if what is None and row.outcome is Outcome.VOID:
            assert row.cause in {Cause.INTERRUPTED, Cause.BROKER_UNREACHABLE}
        if what in {"die", "killed", "crashed"}:
            assert row.outcome is Outcome.VOID
