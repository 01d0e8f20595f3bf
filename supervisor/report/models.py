"""One model's numbers over a set of rollouts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from contract.pricing import Usage
from contract.score_records import Score
from evaluator_client.statistics import Estimate, Scores, estimate, judge_agreement, pass_rates
from supervisor.report.figures import Cost, ModelFigures, Review, Spread, TaskFigures
from supervisor.report.runs import Played

# Finer than any price of one token.
USD_STEP: Final = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout and the label of its run."""

    run: str
    played: Played


def model_figures(
    model: str, samples: Sequence[Sample], *, tasks: Sequence[str], coverage_floor: float
) -> ModelFigures:
    """All numbers of `model` over its `samples`; `tasks` gives their order."""
    rollouts = [sample.played for sample in samples]
    counted = [(sample, score) for sample in samples if (score := sample.played.score) is not None]
    scores = [score for _, score in counted]
    deterministic = estimate(scores_by_task(rollouts), expected=len(rollouts))
    judge_ids = sorted({score.vision_judge.judge_id for score in scores if score.vision_judge.judge_id is not None})
    judged = [(sample, score) for sample, score in counted if score.vision_judge.score is not None]
    pairs = [(score.deterministic, score.vision_judge.score or 0.0) for _, score in judged]
    agreement = judge_agreement(pairs)
    results = [played.result for played in rollouts if played.result is not None]
    ended = [sample.played.result for sample, _ in counted if sample.played.result is not None]
    usage = Usage()
    for result in results:
        usage = usage.plus(result.usage)
    return ModelFigures(
        model=model,
        deterministic=deterministic,
        final=_final(scores, expected=len(rollouts)) if len(judge_ids) == 1 else None,
        judge=_judge(scores, expected=len(rollouts)) if len(judge_ids) == 1 else None,
        judge_ids=judge_ids,
        agreement=agreement,
        reviews=[
            Review(
                run=judged[index][0].run,
                rollout_id=judged[index][0].played.row.rollout_id,
                deterministic=pairs[index][0],
                judge=pairs[index][1],
            )
            for index in (agreement.for_review if agreement is not None else ())
        ],
        coverage_floor=coverage_floor,
        is_below_floor=deterministic.coverage < coverage_floor,
        pass_rates=pass_rates(scores_by_task(rollouts)),
        tasks=[_task(task, rollouts) for task in tasks if any(played.row.task_id == task for played in rollouts)],
        outcomes=_counts(played.row.outcome or played.row.phase for played in rollouts),
        causes=_counts(played.row.cause for played in rollouts if not played.is_counted),
        ended_by=_counts(result.ended_by for result in ended),
        invalid_codes=_counts(result.invalid_code for result in ended),
        flags=_counts(flag for score in scores for flag in score.flags),
        turn_results=dict(sorted(sum((Counter(played.turn_results) for played in rollouts), Counter()).items())),
        turns=_spread(result.turns for result in ended),
        actions=_spread(result.actions_used for result in ended),
        duration_s=_spread(result.duration_s for result in ended if result.duration_s is not None),
        input_tokens=_spread(result.usage.input_total for result in ended),
        output_tokens=_spread(result.usage.output for result in ended),
        usage=usage,
        cost=_cost(rollouts),
    )


def scores_by_task(rollouts: Iterable[Played]) -> Scores:
    """Deterministic scores of what counts."""
    return _by_task(played.score for played in rollouts if played.score is not None)


def _by_task(scores: Iterable[Score]) -> dict[str, list[float]]:
    by_task: dict[str, list[float]] = {}
    for score in scores:
        by_task.setdefault(score.task_id, []).append(score.deterministic)
    return by_task


def _final(scores: Sequence[Score], *, expected: int) -> Estimate:
    by_task: dict[str, list[float]] = {}
    for score in scores:
        # Without its judge a final score is another quantity.
        if score.final is not None and score.final_basis != "deterministic_only":
            by_task.setdefault(score.task_id, []).append(score.final)
    return estimate(by_task, expected=expected)


def _judge(scores: Sequence[Score], *, expected: int) -> Estimate:
    by_task: dict[str, list[float]] = {}
    for score in scores:
        if score.vision_judge.score is not None:
            by_task.setdefault(score.task_id, []).append(score.vision_judge.score)
    return estimate(by_task, expected=expected)


def _task(task: str, rollouts: Sequence[Played]) -> TaskFigures:
    mine = [played for played in rollouts if played.row.task_id == task]
    scores = [played.score.deterministic for played in mine if played.score is not None]
    mean = statistics.fmean(scores) if scores else None
    return TaskFigures(task_id=task, expected=len(mine), scores=scores, mean=mean)


def _counts(names: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(str(name) for name in names if name is not None).items()))


def _spread(values: Iterable[float]) -> Spread:
    known = list(values)
    if not known:
        return Spread(count=0, total=None, mean=None, median=None, maximum=None)
    return Spread(
        count=len(known),
        total=sum(known),
        mean=statistics.fmean(known),
        median=statistics.median(known),
        maximum=max(known),
    )


def _cost(rollouts: Sequence[Played]) -> Cost:
    played = [one.result or one.row for one in rollouts if one.row.started_at is not None]
    counted = [one.result for one in rollouts if one.is_counted and one.result is not None]
    costs = [result.cost_usd for result in counted if result.cost_usd is not None]
    is_known = bool(counted) and len(costs) == len(counted)
    mean_usd = (sum(costs, Decimal(0)) / len(costs)).quantize(USD_STEP) if is_known else None
    return Cost(
        known_usd=sum((one.cost_usd for one in played if one.cost_usd is not None), Decimal(0)),
        mean_usd=mean_usd,
        is_lower_bound=any(result.requests_of_unknown_cost for result in counted),
        rollouts_of_unknown_cost=sum(one.cost_usd is None for one in played),
        requests_of_unknown_cost=sum(one.requests_of_unknown_cost for one in played),
        judge_usd=sum((one.judge_cost_usd for one in played if one.judge_cost_usd is not None), Decimal(0)),
    )
