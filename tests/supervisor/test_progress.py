"""What people see: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import anyio
from rich.console import Console

from contract.batch_records import BatchState, RolloutRow
from contract.phases import Cause, Outcome, Phase
from supervisor.progress import DRAWING_SHARE_MAX, REDRAW_S, ProgressView, batch_table, phase_line
from tests.batch_fakes import START, in_virtual_time, virtual_ambient
from tests.batch_fakes import batch_state as state


def row(number: int, phase: Phase, **changes: object) -> RolloutRow:
    return RolloutRow(
        rollout_id=f"r-{number}", task_id="dot", provider="noop", model="m", profile=None, phase=phase, **changes
    )


def drawn(batch: BatchState, *, after_s: float = 90, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(batch_table(batch, now=START + timedelta(seconds=after_s)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_says_what_changed_and_how_it_ended() -> None:
    """One line per phase, for logs and pipes."""
    playing = row(1, Phase.EVALUATING, turns=3, actions_used=9)
    void = row(1, Phase.FAILED, turns=3, actions_used=9, outcome=Outcome.VOID, cause=Cause.CAD_DIED)

    assert "r-1: handed_off -> evaluating, turn 3, 9 actions" == phase_line(playing, Phase.HANDED_OFF)
    assert "r-1: evaluating -> failed, turn 3, 9 actions, void (cad_died)" == phase_line(void, Phase.EVALUATING)


def test_the_table_shows_what_plays_first_and_when_it_may_end() -> None:
    """The ETA of a rollout is the mean of those that have ended, less what it has had."""
    ended = row(
        0,
        Phase.FINISHED,
        outcome=Outcome.SCORED,
        score=0.5,
        started_at=START,
        finished_at=START + timedelta(seconds=60),
    )
    text = drawn(state(ended, row(1, Phase.QUEUED), row(2, Phase.HANDED_OFF, started_at=START + timedelta(seconds=50))))

    order = [text.index(name) for name in ("r-2", "r-0", "r-1")]
    assert order == sorted(order)
    assert "scored 0.500" in text
    # 60 s of mean, 40 s had.
    assert "0:00:40" in text
    assert "0:00:20" in text
    assert "1 of 3 ended" in text


def test_a_terminal_of_80_characters_shows_every_number_whole() -> None:
    """Names are cut before numbers are: half a cost or half a clock says nothing."""
    playing = row(0, Phase.HANDED_OFF, turns=123, actions_used=4999, cost_usd=Decimal("12.34"), started_at=START)
    ended = row(1, Phase.FINISHED, outcome=Outcome.SCORED, started_at=START, finished_at=START + timedelta(hours=2))
    named = {"rollout_id": "claude-fable-gear-cover", "model": "a-model-with-a-long-name", "task_id": "gear-cover"}
    text = drawn(state(playing.model_copy(update=named), ended), after_s=3600, width=80)

    (line,) = (line for line in text.splitlines() if "4999" in line)
    assert ["123", "4999", "$12.34", "1:00:00", "1:00:00"] == line.split()[-5:]
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_batch_of_hundreds_stays_on_the_screen() -> None:
    """What does not fit is counted."""
    text = drawn(state(*(row(number, Phase.QUEUED) for number in range(300))))

    assert len(text.splitlines()) < 40
    assert "276 not shown" in text


def test_names_on_the_table_are_no_markup() -> None:
    """An operator may name a rollout with brackets."""
    text = drawn(state(row(1, Phase.QUEUED).model_copy(update={"model": "[red]m[/red]"})))

    assert "noop/[red]m[/red]" in text


def test_a_table_that_is_slow_to_draw_is_drawn_less_often() -> None:
    """What plays in the same process must not wait for a terminal."""

    def draw(*, takes_s: float) -> set[float]:
        pauses: list[float] = []
        ticks = itertools.count()

        async def sleep(delay_s: float) -> None:
            pauses.append(delay_s)
            await anyio.sleep(delay_s)

        console = Console(file=io.StringIO(), width=120, force_terminal=True)
        # The clock is looked at before and after each drawing.
        ambient = replace(virtual_ambient(), sleep=sleep, elapsed_s=lambda: next(ticks) * takes_s)
        view = ProgressView(console, lambda: state(row(1, Phase.HANDED_OFF)), ambient)

        async def work() -> None:
            with anyio.move_on_after(100):
                await view.keep_drawing()

        with view.shown():
            in_virtual_time(work)
        return {round(pause, 6) for pause in pauses}

    assert {REDRAW_S} == draw(takes_s=0.001)
    assert {0.5 / DRAWING_SHARE_MAX} == draw(takes_s=0.5)


def test_a_terminal_gets_a_table_and_a_pipe_gets_lines() -> None:
    """Nothing is redrawn where nobody looks."""

    def show(*, is_terminal: bool) -> str:
        console = Console(file=io.StringIO(), width=120, force_terminal=is_terminal)

        async def work() -> None:
            view = ProgressView(console, lambda: state(row(1, Phase.HANDED_OFF)), virtual_ambient())
            with view.shown():
                async with anyio.create_task_group() as group:
                    group.start_soon(view.keep_drawing)
                    view.note_phase(row(1, Phase.HANDED_OFF), Phase.STARTING)
                    await anyio.sleep(1)
                    group.cancel_scope.cancel()

        in_virtual_time(work)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "ETA" in show(is_terminal=True)
    assert "starting -> handed_off" not in show(is_terminal=True)
    assert "r-1: starting -> handed_off\n" == show(is_terminal=False)
