"""`limits.batch_cost_usd`: the sum over all rollouts, what it stops, and what the records say afterwards."""

from __future__ import annotations

import io
import json
import signal
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from contract.phases import BatchStatus, Cause, EndedBy, Outcome, Phase
from contract.records import read_record, write_record
from contract.rollout_records import RolloutSpec, RunState
from contract.run_dir import BatchDir
from supervisor.batch import execute
from supervisor.costs import BatchCosts, shown_cost
from supervisor.launch import PilotEnd
from supervisor.resume import resume
from supervisor.summary import print_summary
from tests.batch_fakes import (
    FakeWorld,
    assert_nothing_is_left,
    in_virtual_time,
    prepare,
    printed,
    quiet_console,
    read_result,
    read_state,
    virtual_ambient,
    write_state,
)


def play(world: FakeWorld, tmp_path: Path, limit_usd: str | None, *, count: int = 4) -> tuple[int, BatchDir, str]:
    """A batch of rollouts, two at once. Returns exit status, folder and what was printed."""
    limits = {} if limit_usd is None else {"batch_cost_usd": limit_usd}
    prepared = prepare(tmp_path, count=count, limits=limits)
    batch_dir = BatchDir(tmp_path / "out")
    console = quiet_console()

    async def work() -> int:
        return await execute(
            prepared,
            batch_dir,
            rerun_of=None,
            console=console,
            ambient=virtual_ambient(),
            equipment=world.equipment(),
        )

    return in_virtual_time(work), batch_dir, printed(console)


def test_a_batch_that_has_cost_its_limit_ends_what_plays_and_starts_nothing_more(tmp_path: Path) -> None:
    """What plays ends at its turn's boundary and says why; what waits says why it was not started. Not interrupted."""
    world = FakeWorld(turns=50, cost=lambda spec, turn: Decimal("0.25") * turn)

    code, batch_dir, said = play(world, tmp_path, "1.00")

    state = read_state(batch_dir)
    reason = "the batch has cost $1.00, and `limits.batch_cost_usd` is $1.00"
    assert (1, BatchStatus.FINISHED) == (code, state.status)
    assert [Phase.FAILED, Phase.FAILED, Phase.NOT_STARTED, Phase.NOT_STARTED] == [row.phase for row in state.rollouts]
    assert [(Cause.COST_LIMIT, reason)] * 4 == [(row.cause, row.cause_detail) for row in state.rollouts]
    # The one that had begun its next turn when the other reached the limit has played that turn to its end.
    assert {2, 3} >= {row.turns for row in state.rollouts[:2]}
    assert all(row.cost_usd == Decimal("0.25") * row.turns for row in state.rollouts[:2])
    result = read_result(batch_dir, "r-0")
    assert (Outcome.VOID, EndedBy.COST_LIMIT, Cause.COST_LIMIT) == (result.outcome, result.ended_by, result.cause)
    assert 1 == said.count(f"{reason}; no rollout is started any more")
    assert_nothing_is_left(world, batch_dir)


def test_below_the_limit_nothing_changes(tmp_path: Path) -> None:
    """Costs that end just below it are no reason to stop."""
    world = FakeWorld(turns=3, cost=lambda spec, turn: Decimal("0.25") * turn)

    code, batch_dir, _ = play(world, tmp_path, "3.01")

    assert (0, [Outcome.SCORED] * 4) == (code, [row.outcome for row in read_state(batch_dir).rollouts])


def test_what_has_ended_counts_into_the_sum(tmp_path: Path) -> None:
    """Two rollouts of $0.75 leave $0.50 for the next two."""
    world = FakeWorld(turns=3, cost=lambda spec, turn: Decimal("0.25") * turn)

    _, batch_dir, _ = play(world, tmp_path, "2.00")

    rows = read_state(batch_dir).rollouts
    assert [Outcome.SCORED] * 2 + [Outcome.VOID] * 2 == [row.outcome for row in rows]
    assert [EndedBy.COST_LIMIT] * 2 == [row.ended_by for row in rows[2:]]
    assert {1, 2} >= {row.turns for row in rows[2:]}


def test_a_cost_that_is_unknown_reaches_any_limit(tmp_path: Path) -> None:
    """A sum with an unknown part cannot be kept below anything; without a limit it stops nobody."""
    limited, free = FakeWorld(turns=3), FakeWorld(turns=3)

    code, batch_dir, said = play(limited, tmp_path / "limited", "1000")
    free_code, _, _ = play(free, tmp_path / "free", None)

    assert (1, 0) == (code, free_code)
    assert [Cause.COST_LIMIT] * 4 == [row.cause for row in read_state(batch_dir).rollouts]
    assert "has cost is unknown, so `limits.batch_cost_usd` cannot be kept" in said


def test_a_signal_that_came_first_stays_the_reason(tmp_path: Path) -> None:
    """The turn that is played to its end may still cost more than the limit."""
    world = FakeWorld(turns=50, cost=lambda spec, turn: Decimal("0.25") * turn)
    world.on_turn = lambda spec, turn: (
        signal.raise_signal(signal.SIGINT) if (spec.rollout_id, turn) == ("r-0", 1) else None
    )

    code, batch_dir, _ = play(world, tmp_path, "0.80")

    rows = read_state(batch_dir).rollouts
    assert 130 == code
    assert [Cause.INTERRUPTED] * 2 == [row.cause for row in rows[:2]]
    assert [Phase.QUEUED] * 2 == [row.phase for row in rows[2:]]


def test_a_host_that_is_starting_when_the_limit_is_reached_is_ended(tmp_path: Path) -> None:
    """Nothing was sampled on it, so its rollout was not started."""
    world = FakeWorld(turns=50, cost=lambda spec, turn: Decimal("0.25") * turn)

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "reset" and rollout_id == "r-1":
            await anyio.sleep(3600)

    world.trouble = trouble
    _, batch_dir, _ = play(world, tmp_path, "0.50", count=2)

    rows = read_state(batch_dir).rollouts
    assert [(Phase.FAILED, Cause.COST_LIMIT), (Phase.NOT_STARTED, Cause.COST_LIMIT)] == [
        (row.phase, row.cause) for row in rows
    ]
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize(("limit_usd", "played", "code"), [("1.00", [], 1), ("50", ["r-2", "r-3"], 1)])
def test_a_resumed_batch_remembers_what_it_has_cost(
    tmp_path: Path, limit_usd: str, played: list[str], code: int
) -> None:
    """At its limit it starts nothing again; with a higher one it plays what was not started, and the void stay void."""
    world = FakeWorld(turns=50, cost=lambda spec, turn: Decimal("0.25") * turn)
    _, batch_dir, _ = play(world, tmp_path, "1.00")
    again = FakeWorld(turns=2, cost=lambda spec, turn: Decimal("0.25") * turn)
    prepared = prepare(tmp_path, count=4, limits={"batch_cost_usd": limit_usd})

    async def work() -> int:
        return await resume(
            batch_dir, prepared, console=quiet_console(), ambient=virtual_ambient(), equipment=again.equipment()
        )

    assert code == in_virtual_time(work)
    assert played == sorted(again.played)
    rows = read_state(batch_dir).rollouts
    assert [Outcome.VOID, Outcome.VOID] == [row.outcome for row in rows[:2]]
    assert [Phase.FINISHED if played else Phase.NOT_STARTED] * 2 == [row.phase for row in rows[2:]]


def test_a_pilots_own_limit_is_void_with_its_words_and_its_siblings_play_on(tmp_path: Path) -> None:
    """`limits.cost_usd` is the pilot's to keep; its rollout is not counted, and is in the summary."""
    batch_dir, code, text = _with_own_limit(FakeWorld(), tmp_path)

    result = read_result(batch_dir, "r-0")
    assert 1 == code
    assert (Outcome.VOID, EndedBy.COST_LIMIT, Cause.COST_LIMIT) == (result.outcome, result.ended_by, result.cause)
    assert "the rollout has cost $2" == result.cause_detail
    assert "void: r-0: cost_limit: the rollout has cost $2" in text
    assert "over 1 counted of 2 enabled rollouts" in text


def _with_own_limit(world: FakeWorld, tmp_path: Path) -> tuple[BatchDir, int, str]:
    def ending(spec: RolloutSpec) -> PilotEnd | None:
        if spec.rollout_id != "r-0":
            return None
        run_dir = BatchDir(tmp_path / "out").rollout(spec.rollout_id)
        state = write_state(run_dir, 1, EndedBy.COST_LIMIT, Cause.COST_LIMIT, cost_usd=Decimal(2))
        problem = state.error.model_copy(update={"message": "the rollout has cost $2"}) if state.error else None
        state = state.model_copy(update={"error": problem})
        write_record(run_dir.run_state, state)
        return PilotEnd(read_record(run_dir.run_state, RunState), 0)

    world.ending = ending
    code, batch_dir, _ = play(world, tmp_path, None, count=2)
    stream = io.StringIO()
    print_summary(batch_dir, as_json=False, stream=stream, exit_code=code)
    return batch_dir, code, stream.getvalue()


def test_the_summary_says_how_many_were_not_started_and_what_was_paid(tmp_path: Path) -> None:
    """One line for all that share a reason; the JSON has the sum and what is not in it."""
    world = FakeWorld(turns=50, cost=lambda spec, turn: Decimal("0.25") * turn)
    _, batch_dir, _ = play(world, tmp_path, "1.00", count=6)
    paid = sum(row.cost_usd or Decimal(0) for row in read_state(batch_dir).rollouts)
    table, document = io.StringIO(), io.StringIO()

    print_summary(batch_dir, as_json=False, stream=table, exit_code=1)
    print_summary(batch_dir, as_json=True, stream=document, exit_code=1)

    assert "not started: 4 rollouts: cost_limit: the batch has cost $1.00" in table.getvalue()
    assert {
        "known_usd": f"{paid:f}",
        "judge_usd": "0",
        "rollouts_of_unknown_cost": 0,
        "requests_of_unknown_cost": 0,
    } == json.loads(document.getvalue())["cost"]


def test_requests_without_an_answer_make_a_cost_a_lower_bound(tmp_path: Path) -> None:
    """They reach the result, the row and the summary, where the cost has a mark."""
    world = FakeWorld(
        ending=lambda spec: PilotEnd(
            write_state(
                BatchDir(tmp_path / "out").rollout(spec.rollout_id),
                1,
                EndedBy.FINISHED,
                cost_usd=Decimal("1.234"),
                requests_of_unknown_cost=2,
            ),
            0,
        )
    )
    code, batch_dir, _ = play(world, tmp_path, None, count=1)
    stream = io.StringIO()
    print_summary(batch_dir, as_json=False, stream=stream, exit_code=code)

    assert 0 == code
    assert 2 == read_result(batch_dir, "r-0").requests_of_unknown_cost
    assert 2 == read_state(batch_dir).rollouts[0].requests_of_unknown_cost
    assert ">= 1.23" in stream.getvalue()


def test_a_cost_is_shown_in_cents_with_its_mark() -> None:
    """Unknown is empty, and never a zero."""
    assert ["", "$1.23", ">= $1.23"] == [
        shown_cost(None, 0, sign="$"),
        shown_cost(Decimal("1.2301"), 0, sign="$"),
        shown_cost(Decimal("1.2301"), 1, sign="$"),
    ]


def test_the_sum_is_exact() -> None:
    """Ten times a tenth is one: money is decimal."""
    said: list[str] = []

    async def work() -> None:
        stop = anyio.Event()
        costs = BatchCosts(Decimal("1.0"), [], stop=stop, say=said.append)
        for number in range(9):
            costs.note(f"r-{number}", Decimal("0.1"))
        assert not stop.is_set()
        costs.note("r-9", Decimal("0.1"))
        assert stop.is_set()

    anyio.run(work)

    assert 1 == len(said)
