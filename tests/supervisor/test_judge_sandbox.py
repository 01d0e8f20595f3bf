"""What a judge means for the sandbox around it: more time, a host that is not needed, and a cost of its own."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest

from contract.phases import Cause, Outcome
from contract.records import read_record
from contract.rollout_records import Result
from contract.run_dir import BatchDir
from supervisor.batch import execute
from supervisor.outcome import Evaluation
from tests.batch_fakes import (
    FakeWorld,
    assert_nothing_is_left,
    in_virtual_time,
    prepare,
    quiet_console,
    read_state,
    virtual_ambient,
)
from tests.judge_fakes import judge_config

JUDGED = Evaluation(state="complete", score=0.9, judge_score=0.5, final=0.82, judge_cost_usd=Decimal("0.0072"))


def play(world: FakeWorld, tmp_path: Path, **judge: Any) -> BatchDir:
    """One rollout whose config has a judge."""
    prepared = prepare(tmp_path, count=1)
    prepared = replace(prepared, config=prepared.config.model_copy(update={"judge": judge_config(**judge)}))
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

    in_virtual_time(work)
    return batch_dir


def result_of(batch_dir: BatchDir) -> Result:
    return read_record(batch_dir.rollout("r-0").result, Result)


@pytest.mark.parametrize("dies", [False, True])
def test_a_judge_has_its_whole_deadline_and_needs_no_host(tmp_path: Path, dies: bool) -> None:
    """Ten minutes are for the host; a judge that is throttled may take longer, whatever happens to the host then."""
    world = FakeWorld(evaluation=JUDGED)

    async def wait_long(step: str, rollout_id: str) -> None:
        if step == "judge":
            if dies:
                for host in world.alive.values():
                    host.die()
            await anyio.sleep(890)

    world.trouble = wait_long
    batch_dir = play(world, tmp_path)
    result = result_of(batch_dir)

    assert (Outcome.SCORED, 0.9, 0.5, 0.82) == (result.outcome, result.score, result.judge_score, result.final)
    assert_nothing_is_left(world, batch_dir)


def test_a_host_that_dies_before_its_drawing_is_here_takes_it_along(tmp_path: Path) -> None:
    """Until everything is fetched, a lost host is a void rollout."""
    world = FakeWorld(evaluation=JUDGED)

    async def die(step: str, rollout_id: str) -> None:
        if step == "evaluate":
            for host in world.alive.values():
                host.die()

    world.trouble = die

    assert (Outcome.VOID, Cause.BROKER_DIED) == (
        (result := result_of(play(world, tmp_path))).outcome,
        result.cause,
    )


def test_a_failed_judge_is_void_and_the_deterministic_score_stays_known(tmp_path: Path) -> None:
    """It does not enter a mean, it is no zero, and nobody has to score again to see it."""
    failed = Evaluation(
        state="failed",
        score=0.9,
        cause=Cause.JUDGE_FAILED,
        failure="judge_unusable",
        judge_cost_usd=Decimal("0.01"),
    )
    result = result_of(play(FakeWorld(evaluation=failed), tmp_path))

    assert (Outcome.VOID, Cause.JUDGE_FAILED, 0.9, None) == (result.outcome, result.cause, result.score, result.final)
    assert Decimal("0.01") == result.judge_cost_usd


def test_the_cost_of_the_judge_stands_apart_from_that_of_the_model(tmp_path: Path) -> None:
    """Models are compared by what they cost themselves."""
    batch_dir = play(FakeWorld(evaluation=JUDGED), tmp_path)
    result, (row,) = result_of(batch_dir), read_state(batch_dir).rollouts

    assert Decimal("0.0072") == result.judge_cost_usd == row.judge_cost_usd
    assert result.cost_usd == row.cost_usd
