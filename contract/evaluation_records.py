"""`evaluation/status.json`: the state machine of one evaluation, and what a later scoring found."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from contract.broker_api import Sha256
from contract.records import Record, UtcTime


class Stage(StrEnum):
    """Where an evaluation is (scoring contract, section 11)."""

    QUEUED = "queued"
    EXPORTING = "exporting"
    EXPORTED = "exported"
    RENDERING = "rendering"
    RENDERED = "rendered"
    SCORING = "scoring"
    SCORED = "scored"
    JUDGING = "judging"
    COMPLETE = "complete"
    INVALID = "invalid"
    FAILED = "failed"


NEXT_STAGE: Final[dict[Stage, frozenset[Stage]]] = {
    # Without a drawing there is nothing to export: the candidate is invalid at once.
    Stage.QUEUED: frozenset({Stage.EXPORTING, Stage.FAILED}),
    Stage.EXPORTING: frozenset({Stage.EXPORTED, Stage.INVALID, Stage.FAILED}),
    Stage.EXPORTED: frozenset({Stage.RENDERING, Stage.INVALID, Stage.FAILED}),
    Stage.RENDERING: frozenset({Stage.RENDERED, Stage.FAILED}),
    Stage.RENDERED: frozenset({Stage.SCORING, Stage.INVALID, Stage.FAILED}),
    Stage.SCORING: frozenset({Stage.SCORED, Stage.FAILED}),
    # Without a judge a score is complete.
    Stage.SCORED: frozenset({Stage.JUDGING, Stage.COMPLETE, Stage.FAILED}),
    Stage.JUDGING: frozenset({Stage.COMPLETE, Stage.FAILED}),
    Stage.COMPLETE: frozenset(),
    Stage.INVALID: frozenset(),
    # An explicit new evaluation begins again.
    Stage.FAILED: frozenset({Stage.QUEUED}),
}

FINAL_STAGES: Final = frozenset({Stage.COMPLETE, Stage.INVALID, Stage.FAILED})


def advance_stage(now: Stage, to: Stage) -> Stage:
    """Return `to`; a move that the table does not allow is a bug in our code."""
    assert to in NEXT_STAGE[now], f"evaluation may not go from {now} to {to}"
    return to


class StageEntry(Record):
    """When a stage was entered."""

    state: Stage
    at: UtcTime


class Failure(Record):
    """Why an evaluation failed: our fault, never a score."""

    stage: Stage
    code: str
    message: str
    is_retryable: bool


class EvaluatorName(Record):
    """The one evaluator that may have made the facts."""

    name: str
    version: str


class EvaluationStatus(Record):
    """`evaluation/status.json`, replaced at each stage."""

    status_version: Literal[1] = 1
    state: Stage
    updated_at: UtcTime
    history: list[StageEntry]
    evaluator: EvaluatorName
    # Calls made, by stage, repeated ones too; exporting takes two, of which the first saves the drawing.
    attempts: dict[str, int]
    failure: Failure | None
    files: dict[str, Sha256]


class ScoreDelta(Record):
    """`delta.json` beside a later score: what changed from the first."""

    delta_version: Literal[1] = 1
    task_id: str
    old_score_version: str
    new_score_version: str
    old_deterministic: float
    new_deterministic: float
    old_final: float | None
    new_final: float | None
    changed_components: dict[str, tuple[float | None, float | None]]
    is_identical: bool
