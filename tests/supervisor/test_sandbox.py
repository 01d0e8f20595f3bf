"""The acquire chain of one sandbox: fail each step, cancel in each step, repeat each step; nothing is left."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import pytest

from contract.broker_api import ErrorCode, Verdict
from contract.phases import Cause, Outcome, Phase
from contract.rollout_records import RolloutSpec
from contract.run_dir import BatchDir
from supervisor.batch import execute
from tests.batch_fakes import (
    FakeWorld,
    assert_nothing_is_left,
    broker_error,
    host_error,
    in_virtual_time,
    ledger_events,
    prepare,
    quiet_console,
    read_state,
    virtual_ambient,
)

BEFORE_HAND_OFF = {
    "launch": Cause.HOST_LAUNCH,
    "tunnel": Cause.TUNNEL,
    "identity": Cause.HOST_IDENTITY,
    "lease": Cause.LEASE,
    "reset": Cause.RESET,
}
AFTER_HAND_OFF = ("pilot", "turn", "evaluate")


def play(world: FakeWorld, tmp_path: Path, *, replacements: int = 1) -> tuple[int, BatchDir]:
    """Play `r-0`, which has trouble, and `r-1`, which has none."""
    prepared = prepare(tmp_path, count=2, replacements=replacements)
    batch_dir = BatchDir(tmp_path / "out")

    async def work() -> int:
        return await execute(
            prepared,
            batch_dir,
            rerun_of=None,
            console=quiet_console(),
            ambient=virtual_ambient(),
            equipment=world.equipment(),
        )

    return in_virtual_time(work), batch_dir


def failure_of(step: str) -> Exception:
    if step in {"launch", "tunnel"}:
        return host_error(BEFORE_HAND_OFF[step])
    return broker_error(ErrorCode.UNREACHABLE)


class Once:
    """Trouble for `r-0` at the first `times` arrivals at one step."""

    def __init__(self, step: str, times: int, failure: Exception) -> None:
        self.step, self.times, self.failure = step, times, failure

    async def __call__(self, step: str, rollout_id: str) -> None:
        if step == self.step and rollout_id == "r-0" and self.times > 0:
            self.times -= 1
            raise self.failure


@pytest.mark.parametrize("step", BEFORE_HAND_OFF)
def test_a_host_that_fails_once_before_hand_off_is_replaced(tmp_path: Path, step: str) -> None:
    """The replacement plays the sample; the first host is gone, and the ledger says what it was."""
    times = 2 if step == "reset" else 1
    world = FakeWorld(trouble=Once(step, times, failure_of(step)))

    code, batch_dir = play(world, tmp_path)

    row = read_state(batch_dir).rollouts[0]
    assert 0 == code
    assert (Outcome.SCORED, 1) == (row.outcome, row.host_replacements)
    assert 3 == len(set(world.launched))
    ended = "launch_failed" if step == "launch" else "replaced"
    assert ended in ledger_events(batch_dir, "r-0")
    assert "released" == ledger_events(batch_dir, "r-0")[-1]
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("step", BEFORE_HAND_OFF)
def test_a_step_that_always_fails_ends_as_not_started_with_its_own_cause(tmp_path: Path, step: str) -> None:
    """Two hosts, no third; no sample, so no result."""
    world = FakeWorld(trouble=Once(step, 100, failure_of(step)))

    code, batch_dir = play(world, tmp_path)

    row = read_state(batch_dir).rollouts[0]
    assert 1 == code
    assert (Phase.NOT_STARTED, None, BEFORE_HAND_OFF[step]) == (row.phase, row.outcome, row.cause)
    assert Outcome.SCORED == read_state(batch_dir).rollouts[1].outcome
    assert_nothing_is_left(world, batch_dir)


def test_without_replacements_the_first_failure_is_the_last(tmp_path: Path) -> None:
    """`limits.host_replacements` is the operator's number, also when it is 0."""
    world = FakeWorld(trouble=Once("lease", 100, broker_error(ErrorCode.LEASE_HELD)))

    _, batch_dir = play(world, tmp_path, replacements=0)

    row = read_state(batch_dir).rollouts[0]
    assert (Phase.NOT_STARTED, Cause.LEASE, 0) == (row.phase, row.cause, row.host_replacements)
    assert ["intent", "launched", "released"] == ledger_events(batch_dir, "r-0")


@pytest.mark.parametrize("step", AFTER_HAND_OFF)
def test_no_failure_after_hand_off_replaces_the_host(tmp_path: Path, step: str) -> None:
    """The sample counts: it ends once, as void, and is never silently played again."""
    world = FakeWorld(trouble=Once(step, 1, broker_error(ErrorCode.UNREACHABLE)))

    code, batch_dir = play(world, tmp_path)

    row = read_state(batch_dir).rollouts[0]
    assert 1 == code
    assert (Outcome.VOID, 0, 1) == (row.outcome, row.host_replacements, world.played.count("r-0"))
    assert 2 == len(world.launched)
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("step", ["slot", *BEFORE_HAND_OFF])
def test_a_cancellation_in_any_step_before_hand_off_undoes_it_all(tmp_path: Path, step: str) -> None:
    """The operator interrupts twice while that step hangs: the rollout is queued again, nothing is left."""
    world = FakeWorld()

    async def trouble(name: str, rollout_id: str) -> None:
        if name == step and rollout_id == "r-0":
            # Two of the same kind at one moment are one signal to a process.
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            await anyio.sleep_forever()

    world.trouble = trouble
    code, batch_dir = play(world, tmp_path)

    assert 130 == code
    assert (Phase.QUEUED, None) == (
        read_state(batch_dir).rollouts[0].phase,
        read_state(batch_dir).rollouts[0].outcome,
    )
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("step", AFTER_HAND_OFF)
def test_a_cancellation_in_any_step_after_hand_off_is_void_and_leaves_nothing(tmp_path: Path, step: str) -> None:
    """What was handed off has its one end on record even when everything is cut off."""
    world = FakeWorld()

    async def trouble(name: str, rollout_id: str) -> None:
        if name == step and rollout_id == "r-0":
            # Two of the same kind at one moment are one signal to a process.
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            await anyio.sleep_forever()

    world.trouble = trouble
    code, batch_dir = play(world, tmp_path)

    row = read_state(batch_dir).rollouts[0]
    assert 130 == code
    assert (Phase.FAILED, Outcome.VOID, Cause.INTERRUPTED) == (row.phase, row.outcome, row.cause)
    assert batch_dir.rollout("r-0").result.exists()
    assert_nothing_is_left(world, batch_dir)


def test_a_failed_reset_is_replayed_once_under_the_same_request_id(tmp_path: Path) -> None:
    """A replay is the same request: a host that had done it already does nothing."""
    world = FakeWorld()
    lost = Once("reset", 1, broker_error(ErrorCode.UNREACHABLE))
    resets: list[list[str]] = []
    world.trouble = lost
    world.on_turn = lambda spec, turn: resets.append(list(world.host_of("r-0").resets)) if turn == 1 else None

    code, batch_dir = play(world, tmp_path)

    assert 0 == code
    assert 0 == read_state(batch_dir).rollouts[0].host_replacements
    assert 2 == [step for step in world.steps if step[1] == "r-0"].count(("reset", "r-0"))
    assert 1 == len(resets[0])


def test_identity_is_read_twice_and_must_be_the_boot_that_was_launched(tmp_path: Path) -> None:
    """A host that restarted between launch and hand-off is another host."""
    world = FakeWorld()

    async def reboot(step: str, rollout_id: str) -> None:
        if step == "identity" and rollout_id == "r-0" and world.steps.count(("identity", "r-0")) == 2:
            world.host_of("r-0").boot_id = "boot-of-somebody-else"

    world.trouble = reboot
    code, batch_dir = play(world, tmp_path)

    assert 0 == code
    assert 1 == read_state(batch_dir).rollouts[0].host_replacements
    assert 4 == world.steps.count(("identity", "r-0"))


def test_the_pilot_is_told_the_host_that_was_handed_off(tmp_path: Path) -> None:
    """Its spec holds lease, boot and first frame, and no secret."""
    world = FakeWorld()
    said: list[RolloutSpec] = []
    world.on_turn = lambda spec, turn: said.append(spec)

    play(world, tmp_path)

    host = next(spec for spec in said if spec.rollout_id == "r-0").host
    assert (f"boot-{host.host_id}", f"l-{host.host_id}", 1, Verdict.OK) == (
        host.boot_id,
        host.lease_id,
        host.lease_generation,
        host.first_frame.verdict,
    )
    assert all("canary" not in spec.model_dump_json() for spec in said)
