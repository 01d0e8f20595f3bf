"""What a person sees while a batch runs: a table that is redrawn on a terminal, one line per change anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from contract.ambient import Ambient
from contract.batch_records import BatchState, RolloutRow
from contract.phases import Outcome, Phase, is_final
from supervisor.costs import shown_cost

# Clocks on it show seconds.
REDRAW_S: Final = 1.0
# A table of a hundred rollouts costs 10 ms. On a slow machine or terminal it is drawn less often, because what plays in
# this process waits meanwhile.
DRAWING_SHARE_MAX: Final = 0.02
# A longer table would scroll away what is playing; the caption counts the rest.
ROWS_MAX: Final = 24

_STYLES: Final = {
    Phase.STARTING: "yellow",
    Phase.HANDED_OFF: "cyan",
    Phase.EVALUATING: "blue",
    Phase.FINISHED: "green",
    Phase.FAILED: "red",
    Phase.NOT_STARTED: "red",
}
_PLAYING: Final = frozenset({Phase.STARTING, Phase.HANDED_OFF, Phase.EVALUATING})


class ProgressView:
    """Shows one batch on a console. `look` gives the batch as it is now."""

    def __init__(self, console: Console, look: Callable[[], BatchState], ambient: Ambient) -> None:
        self._console = console
        self._look = look
        self._ambient = ambient
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def shown(self) -> AbstractContextManager[object]:
        """Show the table inside of the block; nothing to do where lines are printed."""
        return self._live if self._live is not None else nullcontext()

    async def keep_drawing(self) -> None:
        """Redraw each second, or less often where that takes long, for as long as this runs."""
        while self._live is not None:
            began_s = self._ambient.elapsed_s()
            self._live.update(batch_table(self._look(), now=self._ambient.utc_now()), refresh=True)
            took_s = self._ambient.elapsed_s() - began_s
            await self._ambient.sleep(max(REDRAW_S, took_s / DRAWING_SHARE_MAX))

    def note_phase(self, row: RolloutRow, before: Phase) -> None:
        """A phase has changed: a line of its own where no table is."""
        if self._live is None:
            self.say(phase_line(row, before))

    def say(self, line: str) -> None:
        """One line for people, above the table if there is one."""
        self._console.print(Text(line), soft_wrap=True)


def phase_line(row: RolloutRow, before: Phase) -> str:
    """`bracket-1: handed_off -> evaluating, turn 12, 80 actions`."""
    parts = [f"{row.rollout_id}: {before.value} -> {row.phase.value}"]
    if row.turns:
        parts.append(f"turn {row.turns}, {row.actions_used} actions")
    if is_final(row.phase):
        parts.append(_ending(row))
    return ", ".join(parts)


def batch_table(state: BatchState, *, now: datetime) -> Table:
    """What plays first, then what ended last, then what waits."""
    mean_s = _mean_duration_s(state)
    rows = sorted(state.rollouts, key=lambda row: (_rank(row), -_when(row)))
    # Without lines between columns, which would take the place of the numbers on a terminal of 80 characters.
    table = Table(
        title=f"{state.benchmark}  {state.batch_id}",
        caption=_caption(state, mean_s),
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    # Columns that may wrap are the first to be made narrower; their cells are cut all the same.
    for name in ("rollout", "model", "task", "phase"):
        table.add_column(name, overflow="ellipsis")
    for name in ("turn", "actions", "cost", "elapsed", "ETA"):
        table.add_column(name, justify="right", no_wrap=True)
    columns: list[list[Text]] = [[] for _ in table.columns]
    for row in rows[:ROWS_MAX]:
        elapsed_s = _elapsed_s(row, now)
        left_s = mean_s - elapsed_s if mean_s and elapsed_s is not None and row.phase in _PLAYING else None
        cells: tuple[str | Text, ...] = (
            row.rollout_id,
            f"{row.provider}/{row.model}",
            row.task_id,
            _phase_cell(row),
            str(row.turns or ""),
            str(row.actions_used or ""),
            shown_cost(row.cost_usd, row.requests_of_unknown_cost, sign="$"),
            _clock(elapsed_s),
            "" if left_s is None else _clock(max(0.0, left_s)),
        )
        for column, cell in zip(columns, cells, strict=True):
            # Names are the operator's words, and no markup.
            column.append(Text(cell) if isinstance(cell, str) else cell)
    # One cell of many lines for each column: a row each would cost three times as much to draw.
    table.add_row(*(Text("\n", no_wrap=True, overflow="ellipsis").join(column) for column in columns))
    return table


def _caption(state: BatchState, mean_s: float | None) -> str:
    total = len(state.rollouts)
    ended = sum(is_final(row.phase) or row.phase is Phase.NOT_STARTED for row in state.rollouts)
    text = f"{ended} of {total} ended"
    if total > ROWS_MAX:
        text += f", {total - ROWS_MAX} not shown"
    if mean_s and ended < total:
        # Rollouts of one wave play side by side.
        left_s = mean_s * (total - ended) / max(1, min(state.max_concurrency, total - ended))
        text += f", about {_clock(left_s)} left"
    return text


def _phase_cell(row: RolloutRow) -> Text:
    waiting = row.waiting
    if waiting is not None and row.phase is Phase.HANDED_OFF:
        until = "" if waiting.until is None else f" until {waiting.until.astimezone(UTC):%H:%M:%S}Z"
        words = waiting.for_.replace("_", " ")
        return Text(f"waits: {words}{until}", style="yellow" if waiting.alarm is None else "bold red")
    return Text(_ending(row) if is_final(row.phase) else row.phase.value, style=_STYLES.get(row.phase, "dim"))


def _ending(row: RolloutRow) -> str:
    if row.outcome is Outcome.VOID:
        return f"void ({row.cause})"
    score = "" if row.score is None else f" {row.score:.3f}"
    return f"{row.outcome.value if row.outcome else row.phase.value}{score}"


def _rank(row: RolloutRow) -> int:
    if row.phase in _PLAYING:
        return 0
    return 2 if row.phase is Phase.QUEUED else 1


def _when(row: RolloutRow) -> float:
    return row.finished_at.timestamp() if row.finished_at is not None else 0.0


def _mean_duration_s(state: BatchState) -> float | None:
    durations = [
        (row.finished_at - row.started_at).total_seconds()
        for row in state.rollouts
        if row.finished_at is not None and row.started_at is not None and row.outcome is not Outcome.VOID
    ]
    return sum(durations) / len(durations) if durations else None


def _elapsed_s(row: RolloutRow, now: datetime) -> float | None:
    if row.started_at is None:
        return None
    return ((row.finished_at or now) - row.started_at).total_seconds()


def _clock(duration_s: float | None) -> str:
    return "" if duration_s is None else str(timedelta(seconds=round(duration_s)))
