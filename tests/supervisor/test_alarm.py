"""What a rollout waits for: in its row, in the table, and as one line when nobody but a person can help."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from contract.batch_records import RolloutRow
from contract.phases import Outcome, Phase
from contract.rollout_records import RolloutSpec, Waiting
from contract.run_dir import BatchDir
from supervisor.batch import execute
from supervisor.progress import batch_table
from tests.batch_fakes import (
    START,
    FakeWorld,
    batch_state,
    in_virtual_time,
    prepare,
    printed,
    quiet_console,
    read_state,
    virtual_ambient,
)

ALARM = "no answer for 5 min: the credit is gone"


def waiting(since_s: float, until_s: float, *, alarm: str | None = None) -> Waiting:
    return Waiting(
        for_="quota_exhausted",
        since=START + timedelta(seconds=since_s),
        until=START + timedelta(seconds=until_s),
        alarm=alarm,
    )


def play(world: FakeWorld, tmp_path: Path, console: Console) -> BatchDir:
    prepared = prepare(tmp_path, count=1)
    batch_dir = BatchDir(tmp_path / "out")

    async def work() -> int:
        return await execute(
            prepared,
            batch_dir,
            rerun_of=None,
            console=console,
            ambient=virtual_ambient(),
            equipment=world.equipment(),
        )

    assert 0 == in_virtual_time(work)
    return batch_dir


def waits_in_turn_two(spec: RolloutSpec, turn: int) -> Sequence[Waiting]:
    """An ordinary wait first, then three with the alarm, all since the same failure."""
    if turn != 2:
        return ()
    return (waiting(10, 70), *(waiting(10, 310 + 60 * number, alarm=ALARM) for number in range(3)))


def test_an_alarm_is_one_line_when_it_begins_and_one_when_it_is_over(tmp_path: Path) -> None:
    """However often the request is tried again meanwhile; an ordinary wait is no news."""
    console = quiet_console()
    play(FakeWorld(waiting=waits_in_turn_two), tmp_path, console)

    said = printed(console)
    assert 1 == said.count(f"r-0: ALARM: {ALARM}")
    assert 1 == said.count("r-0: the model answers again")
    assert said.index("ALARM") < said.index("answers again")


def test_a_wait_of_its_own_is_an_alarm_of_its_own(tmp_path: Path) -> None:
    """The next turn that waits in vain is told again."""
    console = quiet_console()
    world = FakeWorld(turns=3, waiting=lambda spec, turn: [waiting(turn * 1000, turn * 1000 + 300, alarm=ALARM)])
    play(world, tmp_path, console)

    assert 3 == printed(console).count("ALARM")


def test_the_row_says_what_is_waited_for_until_the_model_answers(tmp_path: Path) -> None:
    """`{for, since, until, alarm}` in batch-state.json, null before and afterwards."""
    seen: list[Waiting | None] = []

    async def look(step: str, rollout_id: str) -> None:
        if step in {"turn", "evaluate"}:
            seen.append(read_state(BatchDir(tmp_path / "out")).rollouts[0].waiting)

    world = FakeWorld(waiting=waits_in_turn_two, trouble=look, turn_s=3)
    batch_dir = play(world, tmp_path, quiet_console())

    # When turn two ends, what was written last is the wait before its answer.
    assert [None, waiting(10, 430, alarm=ALARM), None, None] == seen
    assert (Outcome.SCORED, None) == (
        read_state(batch_dir).rollouts[0].outcome,
        read_state(batch_dir).rollouts[0].waiting,
    )


@pytest.mark.parametrize(("alarm", "style"), [(None, "yellow"), (ALARM, "bold red")])
def test_the_table_says_what_is_waited_for_and_until_when(alarm: str | None, style: str) -> None:
    """In the cell of the phase, and in red once somebody should look."""
    row = RolloutRow(
        rollout_id="r-0",
        task_id="dot",
        provider="openai",
        model="m",
        profile=None,
        phase=Phase.HANDED_OFF,
        waiting=waiting(0, 90, alarm=alarm),
    )
    table = batch_table(batch_state(row), now=START)
    console = Console(file=io.StringIO(), width=160)
    console.print(table)

    assert isinstance(console.file, io.StringIO)
    assert "waits: quota exhausted until 00:01:30Z" in console.file.getvalue()
    [phases] = table.columns[3].cells
    assert isinstance(phases, Text)
    assert [style] == [str(span.style) for span in phases.spans]
