"""What the vision judge was asked, what came back, and what it comes to: `vision-judge/*.json` of one evaluation.

Scoring contract, section 10. No record here holds a key, a header, an address, an absolute path or pixels.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contract.broker_api import Name, Sha256
from contract.records import Record, Usd, UtcTime

Grade = Annotated[int, Field(ge=0, le=4)]
CriticalError = Literal[
    "blank",
    "wrong_object",
    "mirrored",
    "rotated",
    "wrong_scale",
    "missing_view",
    "missing_main_outline",
    "unreadable_text",
    "none",
]
Order = Literal["reference_first", "candidate_first"]
Outcome = Literal["ok", "refusal", "incomplete", "malformed", "throttled", "server_error", "transport"]
Tokens = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class JudgeImage(Record):
    """One of the two pictures. `file` is `gold:render.png` or `render.png`, never a path."""

    role: Literal["reference", "candidate"]
    file: Literal["gold:render.png", "render.png"]
    sha256: Sha256
    size_bytes: Annotated[int, Field(ge=1)]
    width_px: Annotated[int, Field(ge=1)]
    height_px: Annotated[int, Field(ge=1)]


class JudgeParameters(Record):
    """What the model is told besides instructions and pictures."""

    max_output_tokens: Annotated[int, Field(ge=1)] = 2000
    detail: Literal["high"] = "high"
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = "low"


class JudgeRequest(Record):
    """`request.json`: everything that was asked, except the pixels."""

    request_version: Literal[1] = 1
    judge_id: Name
    provider: Literal["openai"]
    model: str
    api: Literal["responses"] = "responses"
    prompt_version: str
    prompt_sha256: Sha256
    schema_sha256: Sha256
    parameters: JudgeParameters
    images: Annotated[list[JudgeImage], Field(min_length=2, max_length=2)]
    repeats: Annotated[int, Field(ge=1, le=9)]
    instructions: str


class JudgeAnswer(Record):
    """The five grades, 4 is best, and what the judge noticed. The judge's own words are kept and never scored."""

    shape_fidelity: Grade
    proportions: Grade
    completeness: Grade
    annotation: Grade
    extraneous: Grade
    critical_errors: list[CriticalError]
    text_addresses_evaluator: bool
    evidence: str


class JudgeUsage(Record):
    """Tokens as the API counts them: cached and cache-write tokens are part of input, reasoning is part of output."""

    input_tokens: Tokens
    cached_input_tokens: Tokens
    cache_write_tokens: Tokens
    output_tokens: Tokens
    reasoning_tokens: Tokens
    total_tokens: Tokens


class JudgeAttempt(Record):
    """One HTTP attempt, failed ones included. `repeat` and `attempt` count from 1."""

    repeat: Annotated[int, Field(ge=1)]
    order: Order
    attempt: Annotated[int, Field(ge=1)]
    outcome: Outcome
    http_status: int | None
    response_id: str | None
    model_reported: str | None
    latency_s: Seconds
    usage: JudgeUsage | None
    output_text: str | None
    parsed: JudgeAnswer | None
    error: str | None


class JudgeResponses(Record):
    """`responses.json`: the record of every attempt, in the order they were made."""

    responses_version: Literal[1] = 1
    attempts: list[JudgeAttempt]


class JudgeRepeat(Record):
    """One answer that counts; `criteria` are its grades by name."""

    order: Order
    score: Share
    criteria: dict[str, Grade]
    critical_errors: list[CriticalError]
    text_addresses_evaluator: bool


class JudgeScore(Record):
    """`score.json` of the judge.

    `stdev` is over the repeats (n - 1); `order_gap` is the mean of those with the reference first less that of the
    others, null when one order has no repeat. `cost_usd` is null when `cost_note` says why it is unknown.
    """

    judge_id: Name
    status: Literal["complete"] = "complete"
    score: Share
    stdev: Annotated[float, Field(ge=0)]
    order_gap: float | None
    unstable: bool
    repeats: list[JudgeRepeat]
    flags: list[Literal["evaluator_addressed_text", "judge_saw_addressed_text", "held_to_deterministic"]]
    cost_usd: Usd | None
    cost_note: str | None
    usage_total: JudgeUsage


class MissingContent(Record):
    """J of a gold of which `share` of the ink was taken away."""

    share: Share
    score: Share


class GoldCalibration(Record):
    """J of one gold beside itself, an empty sheet, the gold of another task, and less and less of itself."""

    task_id: Name
    gold_entry_sha256: Sha256
    same: Share
    blank: Share
    other_task_id: Name
    other: Share
    missing: list[MissingContent]


class Calibration(Record):
    """`judge/<judge_id>.json` of a gold cache: what this judge said about drawings whose worth is known (10.6)."""

    calibration_version: Literal[1] = 1
    judge_id: Name
    provider: Literal["openai"]
    model: str
    models_reported: list[str]
    prompt_version: str
    prompt_sha256: Sha256
    schema_sha256: Sha256
    parameters: JudgeParameters
    repeats: Annotated[int, Field(ge=1, le=9)]
    evaluator: str
    calibrated_at: UtcTime
    golds: list[GoldCalibration]
    cost_usd: Usd | None
    cost_note: str | None
    usage_total: JudgeUsage
