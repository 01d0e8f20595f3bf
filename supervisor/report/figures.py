"""The shape of a report: every number beside what it rests on. Its JSON is the report's JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contract.phases import BatchStatus, Cause
from contract.pricing import Usage
from contract.records import Record, Usd, UtcTime
from evaluator_client.statistics import Agreement, Estimate, Paired, PassRate


class RunFacts(Record):
    """One run folder, and what its scores were made with."""

    label: str
    folder: str
    batch_id: str
    benchmark: str
    status: BatchStatus
    created_at: UtcTime
    config_sha256: str
    evaluators: list[str]
    score_versions: list[str]
    judge_ids: list[str]
    counted: int
    enabled: int
    coverage: float
    coverage_floor: float
    # How many of the counted are reported with a later score than their first.
    rescored: int
    # "batch id/rollout id" of the first play, when this is a manual re-run.
    rerun_of: str | None


class Spread(Record):
    """One quantity over the counted rollouts; all but `count` are null without any."""

    count: int
    total: float | None
    mean: float | None
    median: float | None
    maximum: float | None


class Cost(Record):
    """US dollars.

    `known_usd` is what all played rollouts are known to have cost, the void ones too; it is a lower bound when a
    rollout or a request is of unknown cost. `mean_usd` is over counted rollouts, so that a fault of ours makes no model
    dearer; null when one of them is of unknown cost, a lower bound when `is_lower_bound`. `judge_usd` is what the
    vision judge is known to have cost, and is in neither of them.
    """

    known_usd: Usd
    mean_usd: Usd | None
    is_lower_bound: bool
    rollouts_of_unknown_cost: int
    requests_of_unknown_cost: int
    judge_usd: Usd


class TaskFigures(Record):
    """One model on one task. `mean` is null when no rollout counted."""

    task_id: str
    expected: int
    scores: list[float]
    mean: float | None


class Review(Record):
    """A rollout on which judge and deterministic score are far apart."""

    run: str
    rollout_id: str
    deterministic: float
    judge: float


class ModelFigures(Record):
    """One model in one group."""

    model: str
    deterministic: Estimate
    # With the judge's part, over rollouts that it has judged; null without a judge or with more than one.
    final: Estimate | None
    judge: Estimate | None
    judge_ids: list[str]
    agreement: Agreement | None
    reviews: list[Review]
    coverage_floor: float
    is_below_floor: bool
    pass_rates: list[PassRate]
    tasks: list[TaskFigures]
    # How many rollouts: by outcome or, when they have none, by phase; by cause of a void or of not being started; by
    # the rule that ended those that count; by code of an invalid drawing; by flag of a score.
    outcomes: dict[str, int]
    causes: dict[str, int]
    ended_by: dict[str, int]
    invalid_codes: dict[str, int]
    flags: dict[str, int]
    # How many turns, over all rollouts.
    turn_results: dict[str, int]
    turns: Spread
    actions: Spread
    duration_s: Spread
    input_tokens: Spread
    output_tokens: Spread
    # Over all rollouts that have ended, the void ones too.
    usage: Usage
    cost: Cost


class Comparison(Record):
    """The first model minus the second on their common tasks; `p_holm` is raised for all pairs of its group."""

    first: str
    second: str
    paired: Paired
    p_holm: float | None


class Uncounted(Record):
    """One enabled rollout that is in no mean, and why."""

    run: str
    rollout_id: str
    model: str
    task_id: str
    state: str
    cause: Cause | None
    detail: str


class Group(Record):
    """One run, or several pooled: what its means are over. Models are in order of their mean, best first."""

    label: str
    runs: list[str]
    # Pooled runs of several configs may have had other limits: their repeats are not quite of one kind.
    config_count: int
    tasks: list[str]
    models: list[ModelFigures]
    comparisons: list[Comparison]
    uncounted: list[Uncounted]


class TrendPoint(Record):
    """One model in one run. `change` is this run minus the one before; null when `break_reason` says why not."""

    run: str
    created_at: UtcTime
    estimate: Estimate
    change: Paired | None
    break_reason: str | None


class Trend(Record):
    """One model over the runs of one benchmark, oldest first."""

    benchmark: str
    model: str
    points: list[TrendPoint]


class Report(Record):
    """The whole document."""

    schema_: Annotated[Literal["autocad-bench.report/1"], Field(alias="schema")] = "autocad-bench.report/1"
    is_pooled: bool
    interval_level: float
    pass_threshold: float
    runs: list[RunFacts]
    groups: list[Group]
    trends: list[Trend]
    # Re-runs, which are in no pool and in no trend: a person chose them after seeing a result.
    left_out: list[str]
    is_below_floor: bool
