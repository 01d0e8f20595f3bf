"""From stored answers of the vision judge to J and to the final score (scoring contract, sections 10.3 to 10.5, 12).

Everything here is a pure function of records: scoring again gives the same bytes and asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from statistics import fmean, median, stdev
from typing import Final

from contract.errors import EvaluationError
from contract.judge_records import JudgeAnswer, JudgeAttempt, JudgeRepeat, JudgeRequest, JudgeScore, JudgeUsage, Order
from contract.pricing import PriceRow, Usage, cost_of
from contract.score_records import JudgeSummary, Score

# Section 10.3: what each grade of 0 to 4 weighs; together 1.
WEIGHTS: Final = {
    "shape_fidelity": 0.30,
    "proportions": 0.20,
    "completeness": 0.25,
    "annotation": 0.15,
    "extraneous": 0.10,
}
GRADE_MAX: Final = 4
# Section 10.3: what one repeat may be worth at most with any critical error, and with one of the worst.
CRITICAL_MAX: Final = 0.5
WORST_MAX: Final = 0.1
_WORST: Final = frozenset({"blank", "wrong_object"})
# Section 10.4: answers further apart than this are asked for twice more.
STABLE_RANGE_MAX: Final = 0.25
EXTRA_REPEATS: Final = 2
# Section 12: the judge's share of the final score, and how far it can lift it.
JUDGE_SHARE: Final = 0.2
LIFT_MAX: Final = 0.10
_DIGITS: Final = 6
# Differences of decimal fractions in binary: 0.85 - 0.6 is a little more than 0.25.
_SLACK: Final = 1e-9

JUDGE_FILE: Final = "vision-judge/score.json"


def order_of(repeat: int) -> Order:
    """Which picture comes first in this repeat, counted from 1: the orders alternate."""
    return "reference_first" if repeat % 2 else "candidate_first"


def repeat_score(answer: JudgeAnswer) -> float:
    """What one answer is worth, in [0, 1]."""
    grades = answer.model_dump()
    score = sum(weight * int(grades[name]) for name, weight in WEIGHTS.items()) / GRADE_MAX
    errors = set(answer.critical_errors) - {"none"}
    if errors & _WORST:
        score = min(score, WORST_MAX)
    elif errors:
        score = min(score, CRITICAL_MAX)
    return round(score, _DIGITS)


def repeats_needed(scores: Sequence[float], wanted: int) -> int:
    """How many answers this judgement needs, once the first `wanted` are there: two more when they differ much."""
    first = scores[:wanted]
    if len(first) == wanted and max(first) - min(first) > STABLE_RANGE_MAX + _SLACK:
        return wanted + EXTRA_REPEATS
    return wanted


def verdict(
    request: JudgeRequest, attempts: Sequence[JudgeAttempt], score: Score, *, price: PriceRow | None
) -> JudgeScore:
    """J of one drawing, from every stored attempt.

    Raises `EvaluationError` (`judge_unusable`) when answers are missing: there is no partial judge score.
    """
    by_text = "evaluator_addressed_text" in score.flags
    return judged_of(request, attempts, price=price, deterministic=score.deterministic, by_text=by_text)


def judged_of(
    request: JudgeRequest,
    attempts: Sequence[JudgeAttempt],
    *,
    price: PriceRow | None,
    deterministic: float,
    by_text: bool,
) -> JudgeScore:
    """What the answers come to. `by_text`: the drawing has text that speaks to whoever evaluates it.

    J is held to `deterministic` when that is so, or when a repeat saw such text. Raises like `verdict`.
    """
    answers = _answers(attempts)
    found = [repeat_score(answer) for answer in answers.values()]
    needed = repeats_needed(found, request.repeats)
    if list(answers) != list(range(1, needed + 1)):
        raise EvaluationError(
            f"the judge {request.judge_id} answered {len(answers)} of {needed} repeats",
            code="judge_unusable",
            hint="Evaluate this rollout again; a part of the answers is no score.",
        )
    unstable = needed > request.repeats
    judged = median(found) if unstable else fmean(found)
    by_sight = any(answer.text_addresses_evaluator for answer in answers.values())
    is_held = (by_text or by_sight) and judged > deterministic
    usage = usage_total(attempts)
    cost, note = cost_of_attempts(attempts, price)
    return JudgeScore(
        judge_id=request.judge_id,
        score=round(min(judged, deterministic) if is_held else judged, _DIGITS),
        stdev=round(stdev(found), _DIGITS) if len(found) > 1 else 0.0,
        order_gap=_order_gap(found),
        unstable=unstable,
        repeats=[_repeat(number, answer) for number, answer in answers.items()],
        flags=[
            *(["evaluator_addressed_text"] if by_text else []),
            *(["judge_saw_addressed_text"] if by_sight else []),
            *(["held_to_deterministic"] if is_held else []),
        ],
        cost_usd=cost,
        cost_note=note,
        usage_total=usage,
    )


def with_judge(score: Score, judged: JudgeScore) -> Score:
    """The score with the judge's part: at most a fifth, and never more than 0.10 above the deterministic score."""
    assert score.valid, "an invalid drawing is never shown to a judge"
    deterministic = score.deterministic
    mixed = (1 - JUDGE_SHARE) * deterministic + JUDGE_SHARE * judged.score
    return score.model_copy(
        update={
            "vision_judge": JudgeSummary(
                status="complete", score=judged.score, judge_id=judged.judge_id, file=JUDGE_FILE
            ),
            "final": round(min(mixed, deterministic + LIFT_MAX), _DIGITS),
            "final_basis": "deterministic+judge",
        }
    )


def with_judge_failed(score: Score, *, judge_id: str, reason: str) -> Score:
    """The score without a final one: the deterministic score stands, and nothing becomes 0."""
    summary = JudgeSummary(status="failed", score=None, judge_id=judge_id, reason=reason)
    return score.model_copy(update={"vision_judge": summary, "final": None, "final_basis": "judge_failed"})


def _answers(attempts: Sequence[JudgeAttempt]) -> dict[int, JudgeAnswer]:
    """The first usable answer of each repeat, in order; a second one would be a choice."""
    answers: dict[int, JudgeAnswer] = {}
    for attempt in attempts:
        if attempt.outcome == "ok" and attempt.parsed is not None:
            answers.setdefault(attempt.repeat, attempt.parsed)
    return dict(sorted(answers.items()))


def _repeat(number: int, answer: JudgeAnswer) -> JudgeRepeat:
    grades = answer.model_dump()
    return JudgeRepeat(
        order=order_of(number),
        score=repeat_score(answer),
        criteria={name: int(grades[name]) for name in WEIGHTS},
        critical_errors=answer.critical_errors,
        text_addresses_evaluator=answer.text_addresses_evaluator,
    )


def _order_gap(found: Sequence[float]) -> float | None:
    first, second = found[0::2], found[1::2]
    return round(fmean(first) - fmean(second), _DIGITS) if first and second else None


def usage_total(attempts: Sequence[JudgeAttempt]) -> JudgeUsage:
    """The tokens of all attempts that reported them."""
    counted = [attempt.usage.model_dump() for attempt in attempts if attempt.usage is not None]
    return JudgeUsage(**{name: sum(usage[name] for usage in counted) for name in JudgeUsage.model_fields})


def cost_of_attempts(attempts: Sequence[JudgeAttempt], price: PriceRow | None) -> tuple[Decimal | None, str | None]:
    """What all attempts with usage cost in USD, the useless ones too, each priced alone; or null and why."""
    if price is None:
        return None, "no price for this judge"
    if any(attempt.outcome == "ok" and attempt.usage is None for attempt in attempts):
        return None, "an answer came without its usage"
    costs = [cost_of(_usage(attempt.usage), price) for attempt in attempts if attempt.usage is not None]
    return sum(costs, Decimal(0)), None


def _usage(usage: JudgeUsage) -> Usage:
    apart = usage.cached_input_tokens + usage.cache_write_tokens
    return Usage(
        input=max(usage.input_tokens - apart, 0),
        cached_input=usage.cached_input_tokens,
        cache_write=usage.cache_write_tokens,
        output=usage.output_tokens,
        reasoning=usage.reasoning_tokens,
    )
