"""The judge's part of a later scoring: its stored answers are used, and nobody is asked again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from contract.errors import EvaluationError
from contract.judge_records import JudgeRequest, JudgeResponses, JudgeScore
from contract.records import read_record
from contract.run_dir import EvaluationDir
from contract.score_records import Score
from evaluator_client.gold import GoldEntry
from evaluator_client.judge_verdict import verdict, with_judge, with_judge_failed


@dataclass(frozen=True, slots=True)
class JudgedAgain:
    """A score with what its judge said; `judge` is null when none was asked or its answers do not suffice."""

    score: Score
    judge: JudgeScore | None


def judge_again(evaluation: EvaluationDir, score: Score, gold: GoldEntry) -> JudgedAgain:
    """`score` with the archive's own judge in it, unchanged when no judge was ever asked.

    Raises `StateError` when a stored file is torn, `EvaluationError` (`judge_record_mismatch`) when the answers are
    about other pictures than those that are compared now.
    """
    if not score.valid or not evaluation.judge_request.exists():
        return JudgedAgain(score, None)
    request = read_record(evaluation.judge_request, JudgeRequest)
    _demand_same_pictures(request, evaluation, gold)
    responses = read_record(evaluation.judge_responses, JudgeResponses)
    try:
        judged = verdict(request, responses.attempts, score, price=None)
    except EvaluationError as error:
        reason = _first_reason(evaluation) or error.code
        return JudgedAgain(with_judge_failed(score, judge_id=request.judge_id, reason=reason), None)
    judged = _with_known_cost(judged, evaluation)
    return JudgedAgain(with_judge(score, judged), judged)


def _first_reason(evaluation: EvaluationDir) -> str | None:
    """Why the judge failed then, so that the same answers give the same bytes."""
    first = read_record(evaluation.score, Score).vision_judge
    return first.reason if first.status == "failed" else None


def _with_known_cost(judged: JudgeScore, evaluation: EvaluationDir) -> JudgeScore:
    """What was paid then was paid at the prices of then."""
    if not evaluation.judge_score.exists():
        return judged
    first = read_record(evaluation.judge_score, JudgeScore)
    return judged.model_copy(update={"cost_usd": first.cost_usd, "cost_note": first.cost_note})


def _demand_same_pictures(request: JudgeRequest, evaluation: EvaluationDir, gold: GoldEntry) -> None:
    shown: dict[str, str] = {image.role: image.sha256 for image in request.images}
    compared = {"reference": gold.render, "candidate": evaluation.render.read_bytes()}
    for role, content in compared.items():
        if shown.get(role) != hashlib.sha256(content).hexdigest():
            raise EvaluationError(
                f"the judge of {evaluation.root} was shown another {role} picture",
                code="judge_record_mismatch",
                hint="Name the gold cache that this rollout was judged with.",
            )
