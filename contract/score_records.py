"""`score.json`: the deterministic result of one rollout and its final combination (scoring contract, section 8)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from contract.broker_api import Sha256
from contract.gold import Placement, Profile
from contract.metadata import Invalid
from contract.records import Record

ComponentName = Literal["geometry", "entities", "annotation", "structure", "raster", "solids", "extents", "layouts"]
Flag = Literal[
    "foreign_raster",
    "foreign_xref",
    "hidden_clutter",
    "duplicate_geometry",
    "outside_window",
    "unit_mismatch",
    "evaluator_addressed_text",
    "offset_applied",
]


class Component(Record):
    """One part of the score. `score` is null when the gold does not have what this part looks at."""

    score: float | None
    weight: float
    applicable: bool
    detail: dict[str, float | int | bool | None]


class Adjustments(Record):
    """What was done to the weighted mean; `core_gate` is the highest value that the core component allows."""

    clutter: int
    clutter_factor: float
    core_gate: float
    caps: list[str]


class Unmatched(Record):
    """Ids of source entities without a partner, largest weight first, at most 200 a side."""

    gold: list[str]
    candidate: list[str]
    truncated: bool


class JudgeSummary(Record):
    """What became of the vision judge. Fields that do not apply are left out."""

    status: Literal["complete", "skipped", "disabled", "failed"]
    score: float | None
    judge_id: str | None = None
    file: str | None = None
    reason: str | None = None

    @model_serializer(mode="wrap")
    def _leave_out_what_does_not_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        return {name: value for name, value in document.items() if name in ("status", "score") or value is not None}


class ToleranceValues(Record):
    """The lengths that decided, in drawing units."""

    tau0: float
    tau1: float
    h: float
    diagonal: float


class Inputs(Record):
    """Which bytes were compared. A digest is null when that file does not exist."""

    candidate_metadata_sha256: Sha256 | None
    candidate_render_sha256: Sha256 | None
    gold_entry_sha256: Sha256
    evaluator: str
    tolerances: ToleranceValues


class Artifacts(Record):
    """Pictures beside the score, by base name."""

    render_png: str | None
    diff_png: str | None


class Score(Record):
    """The whole document."""

    score_version: str
    task_id: str
    profile: Profile
    placement: Placement
    valid: bool
    invalid: Invalid | None
    deterministic: float
    components: dict[ComponentName, Component]
    adjustments: Adjustments
    offset: tuple[float, float, float]
    flags: list[Flag]
    unmatched: Unmatched
    diagnostics: dict[str, float | bool]
    vision_judge: JudgeSummary
    final: float | None
    final_basis: Literal["deterministic+judge", "deterministic_only", "invalid", "judge_failed"]
    inputs: Inputs
    artifacts: Artifacts
