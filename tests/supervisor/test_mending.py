"""A host that is played on: its way is mended when it breaks, and another boot of it is not the host any more."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from contract.broker_api import ErrorCode
from contract.phases import Cause, EndedBy, Outcome
from contract.rollout_records import RolloutSpec
from contract.run_dir import BatchDir, RunDir
from supervisor.batch import execute
from supervisor.launch import PilotEnd
from tests.batch_fakes import (
    FakeWorld,
    assert_nothing_is_left,
    broker_error,
    host_error,
    in_virtual_time,
    prepare,
    quiet_console,
    read_state,
    virtual_ambient,
    write_state,
)


def play(world: FakeWorld, tmp_path: Path) -> BatchDir:
    """Play `r-0`, whose way breaks, and `r-1`, whose way does not."""
    batch_dir = BatchDir(tmp_path / "out")

    async def work() -> int:
        return await execute(
            prepare(tmp_path),
            batch_dir,
            rerun_of=None,
            console=quiet_console(),
            ambient=virtual_ambient(),
            equipment=world.equipment(),
        )

    in_virtual_time(work)
    return batch_dir


class Silence:
    """Heartbeats of `r-0` have no answer until its way was mended `mends` times; `mends_max` is all that is tried."""

    def __init__(self, *, mends: int, mends_max: int = 100) -> None:
        self.left, self.tried, self.mends_max = mends, 0, mends_max

    async def __call__(self, step: str, rollout_id: str) -> None:
        if rollout_id != "r-0":
            return
        if step == "mend":
            self.tried += 1
            if self.tried > self.mends_max:
                raise host_error(Cause.TUNNEL)
            self.left -= 1
        if step == "health" and self.left > 0:
            raise broker_error(ErrorCode.UNREACHABLE)


@pytest.mark.parametrize("mends", [1, 2, 5])
def test_a_way_that_is_mended_costs_the_rollout_nothing(tmp_path: Path, mends: int) -> None:
    """A tunnel breaks about every hour; that is no reason to lose a sample."""
    trouble = Silence(mends=mends)
    world = FakeWorld(trouble=trouble, turns=10)

    batch_dir = play(world, tmp_path)

    assert [Outcome.SCORED] * 2 == [row.outcome for row in read_state(batch_dir).rollouts]
    assert mends == trouble.tried
    assert_nothing_is_left(world, batch_dir)


def test_a_way_that_cannot_be_mended_voids_the_rollout_with_that_cause(tmp_path: Path) -> None:
    """The record says tunnel, and not that a broker or a model was at fault."""
    world = FakeWorld(trouble=Silence(mends=100, mends_max=3), turns=10)

    batch_dir = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert [(Outcome.VOID, Cause.TUNNEL), (Outcome.SCORED, None)] == [(row.outcome, row.cause) for row in rows]
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("moment", ["turn", "evaluate"])
def test_a_host_that_reboots_voids_the_rollout_once(tmp_path: Path, moment: str) -> None:
    """Its desktop is not the one that was sampled on, however well it answers."""

    async def reboot(step: str, rollout_id: str) -> None:
        if (step, rollout_id) == (moment, "r-0"):
            world.host_of("r-0").boot_id = "another boot"

    world = FakeWorld(trouble=reboot, turns=10)

    batch_dir = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert [(Outcome.VOID, Cause.HOST_REBOOTED), (Outcome.SCORED, None)] == [(row.outcome, row.cause) for row in rows]
    assert 2 == len(world.launched)
    assert_nothing_is_left(world, batch_dir)


def test_a_reboot_that_the_pilot_meets_first_is_told_as_what_it_is(tmp_path: Path) -> None:
    """A broker in another boot knows no lease and no receipt: what the pilot makes of that is a symptom."""

    def reboot(spec: RolloutSpec) -> PilotEnd | None:
        if spec.rollout_id != "r-0":
            return None
        world.host_of("r-0").boot_id = "another boot"
        state = write_state(RunDir(Path(spec.run_dir)), 1, EndedBy.HOST_LOST, Cause.ACTIONS_INDETERMINATE)
        return PilotEnd(state=state, status=0)

    world = FakeWorld(ending=reboot)

    batch_dir = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert [(Outcome.VOID, Cause.HOST_REBOOTED), (Outcome.SCORED, None)] == [(row.outcome, row.cause) for row in rows]
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("moment", ["identity", "lease", "reset"])
def test_a_way_that_breaks_before_hand_off_is_mended(tmp_path: Path, moment: str) -> None:
    """The call that was under way gets its answer then, and the host is not given up for its tunnel."""
    mended = anyio.Event()

    async def trouble(step: str, rollout_id: str) -> None:
        if rollout_id != "r-0" or mended.is_set():
            return
        if step == "mend":
            mended.set()
        if step == "health":
            raise broker_error(ErrorCode.UNREACHABLE)
        if step == moment:
            await mended.wait()

    world = FakeWorld(trouble=trouble)

    batch_dir = play(world, tmp_path)

    assert mended.is_set()
    assert [Outcome.SCORED] * 2 == [row.outcome for row in read_state(batch_dir).rollouts]
    assert 2 == len(world.launched)
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("moment", ["identity", "lease", "reset"])
def test_a_host_that_ends_before_hand_off_is_replaced_at_once(tmp_path: Path, moment: str) -> None:
    """Its calls would wait for as long as a lease lasts; nobody has to pay for that."""

    async def trouble(step: str, rollout_id: str) -> None:
        if (step, rollout_id) == (moment, "r-0") and len(world.launched) <= 2:
            world.host_of("r-0").ended.set()
            await anyio.sleep_forever()

    world = FakeWorld(trouble=trouble)

    batch_dir = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert [Outcome.SCORED] * 2 == [row.outcome for row in rows]
    assert [1, 0] == [row.host_replacements for row in rows]
    assert 3 == len(world.launched)
    assert_nothing_is_left(world, batch_dir)


def test_a_pilot_is_told_how_long_to_wait_for_a_way_that_is_mended(tmp_path: Path) -> None:
    """It is the provider of the host that knows; a local host has no way that could break."""
    specs: list[RolloutSpec] = []
    world = FakeWorld(on_turn=lambda spec, turn: specs.append(spec))

    play(world, tmp_path)

    assert {0.0} == {spec.host.lost_s for spec in specs}
