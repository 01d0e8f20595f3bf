"""The result of a batch for stdout: a table for people, or one JSON document for programs. Read from its state file."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Final

from contract.batch_records import BatchState, RolloutRow
from contract.config import BatchConfig
from contract.phases import Outcome, Phase
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.costs import shown_cost

SUMMARY_SCHEMA: Final = "autocad-bench.summary/1"
# Wide enough for every column of the demo; a file or a pipe has no width of its own.
TABLE_COLUMNS_MIN: Final = 140


def print_summary(batch_dir: BatchDir, *, as_json: bool, stream: IO[str], exit_code: int) -> None:
    """Print the final state of the batch in `batch_dir`. Raises `StateError` when it has none."""
    state = read_record(batch_dir.state, BatchState)
    floor = read_record(batch_dir.config, BatchConfig).coverage_floor
    if as_json:
        document = summary_document(state, folder=batch_dir.root, coverage_floor=floor, exit_code=exit_code)
        stream.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        _print_table(state, batch_dir.root, stream, coverage_floor=floor)
    stream.flush()


def summary_document(state: BatchState, *, folder: Path, coverage_floor: float, exit_code: int) -> dict[str, Any]:
    """The batch's result as plain JSON values, schema `autocad-bench.summary/1`."""
    counted = _counted(state)
    return {
        "schema": SUMMARY_SCHEMA,
        "batch_dir": str(folder),
        "batch_id": state.batch_id,
        "benchmark": state.benchmark,
        "status": state.status.value,
        "mode": state.mode,
        "exit_code": exit_code,
        "score": {
            "mean": _mean(counted),
            "counted": len(counted),
            "enabled": len(state.rollouts),
            "coverage": len(counted) / len(state.rollouts),
            "coverage_floor": coverage_floor,
        },
        "cost": _cost_document(state),
        "rollouts": [row.model_dump(mode="json") for row in state.rollouts],
    }


def _cost_document(state: BatchState) -> dict[str, Any]:
    """What is known to have been paid, in USD as a decimal string, and how much is not known."""
    played = [row for row in state.rollouts if row.started_at is not None]
    known = sum((row.cost_usd for row in played if row.cost_usd is not None), Decimal(0))
    judge = sum((row.judge_cost_usd for row in played if row.judge_cost_usd is not None), Decimal(0))
    return {
        "known_usd": f"{known:f}",
        "judge_usd": f"{judge:f}",
        "rollouts_of_unknown_cost": sum(row.cost_usd is None for row in played),
        "requests_of_unknown_cost": sum(row.requests_of_unknown_cost for row in played),
    }


def _counted(state: BatchState) -> list[RolloutRow]:
    return [row for row in state.rollouts if row.outcome in (Outcome.SCORED, Outcome.MODEL_FAILED)]


def _mean(counted: list[RolloutRow]) -> float | None:
    scores = [row.score for row in counted if row.score is not None]
    return statistics.fmean(scores) if scores else None


def _print_table(state: BatchState, folder: Path, stream: IO[str], *, coverage_floor: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{state.benchmark} ({state.status.value}, {state.mode} mode)", title_justify="left")
    for name in ("rollout", "task", "model", "outcome", "score", "ended by", "turns", "actions", "cost USD", "s"):
        right = name in ("score", "turns", "actions", "cost USD", "s")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in state.rollouts:
        table.add_row(*_cells(row))
    console = Console(file=stream, highlight=False, markup=False)
    console.width = max(console.width, TABLE_COLUMNS_MIN)
    console.print(table)
    counted = _counted(state)
    mean = _mean(counted)
    shown = "no score" if mean is None else f"mean score {mean:.4f}"
    console.print(f"{shown} over {len(counted)} counted of {len(state.rollouts)} enabled rollouts", soft_wrap=True)
    if len(counted) / len(state.rollouts) < coverage_floor:
        console.print(f"coverage is below the floor of {coverage_floor:g}: the mean is not to be relied on")
    for row in state.rollouts:
        if row.outcome is Outcome.VOID:
            cause = row.cause.value if row.cause else "unknown"
            console.print(f"void: {row.rollout_id}: {cause}: {row.cause_detail or ''}".rstrip(": "), soft_wrap=True)
    for (cause, detail), count in _not_started(state).items():
        rollouts = "1 rollout" if count == 1 else f"{count} rollouts"
        console.print(f"not started: {rollouts}: {cause}: {detail}".rstrip(": "), soft_wrap=True)
    console.print(f"run folder: {folder}", soft_wrap=True)


def _not_started(state: BatchState) -> Counter[tuple[str, str]]:
    """How many rollouts were not started, by cause and detail."""
    return Counter(
        (row.cause.value if row.cause else "unknown", row.cause_detail or "")
        for row in state.rollouts
        if row.phase is Phase.NOT_STARTED
    )


def _cells(row: RolloutRow) -> tuple[str, ...]:
    ended_by = row.ended_by.value if row.ended_by else (row.cause.value if row.cause else "")
    return (
        row.rollout_id,
        row.task_id,
        f"{row.provider}/{row.model}",
        row.outcome.value if row.outcome else row.phase.value,
        "" if row.score is None else f"{row.score:.4f}",
        ended_by,
        str(row.turns),
        str(row.actions_used),
        shown_cost(row.cost_usd, row.requests_of_unknown_cost),
        _seconds(row.started_at, row.finished_at),
    )


def _seconds(started_at: datetime | None, finished_at: datetime | None) -> str:
    if started_at is None or finished_at is None:
        return ""
    return f"{(finished_at - started_at).total_seconds():.1f}"
