"""The rollouts behind a report, one a line: every number of it follows from them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from supervisor.report.runs import Played, Run

COLUMNS: Final = (
    "run",
    "batch_id",
    "benchmark",
    "rollout_id",
    "provider",
    "model",
    "profile",
    "task",
    "phase",
    "outcome",
    "cause",
    "ended_by",
    "invalid_code",
    "score_version",
    "evaluator",
    "score",
    "judge_id",
    "judge_score",
    "final",
    "turns",
    "actions",
    "duration_s",
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_usd",
    "requests_of_unknown_cost",
    "judge_cost_usd",
)
# A spreadsheet takes a cell that begins so for a formula (OWASP, "CSV Injection").
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_bytes(runs: Sequence[Run]) -> bytes:
    """UTF-8 with a header; an empty cell is unknown, or does not apply. Scores of void rollouts are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        for played in run.rollouts:
            writer.writerow([_cell(value) for value in _values(run, played)])
    return text.getvalue().encode()


def _values(run: Run, played: Played) -> tuple[object, ...]:
    row, result, score = played.row, played.result, played.score
    usage = result.usage if result is not None else None
    return (
        run.label,
        run.state.batch_id,
        run.state.benchmark,
        row.rollout_id,
        row.provider,
        row.model,
        row.profile,
        row.task_id,
        row.phase.value,
        row.outcome.value if row.outcome else None,
        row.cause.value if row.cause else None,
        row.ended_by.value if row.ended_by else None,
        result.invalid_code if result is not None else None,
        score.score_version if score is not None else None,
        score.inputs.evaluator if score is not None else None,
        score.deterministic if score is not None else None,
        score.vision_judge.judge_id if score is not None else None,
        score.vision_judge.score if score is not None else None,
        score.final if score is not None else None,
        row.turns,
        row.actions_used,
        result.duration_s if result is not None else None,
        usage.input_total if usage is not None else None,
        usage.cached_input if usage is not None else None,
        usage.cache_write + usage.cache_write_long if usage is not None else None,
        usage.output if usage is not None else None,
        usage.reasoning if usage is not None else None,
        # A number in plain digits: `0E-6` is no cell for a spreadsheet.
        f"{row.cost_usd:f}" if row.cost_usd is not None else None,
        row.requests_of_unknown_cost,
        f"{row.judge_cost_usd:f}" if row.judge_cost_usd is not None else None,
    )


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value
