"""The judge's stage of one evaluation, and how an evaluation ends.

Until the judge has spoken, `score.json` says `judge_failed` with the reason `judge_interrupted`: whatever happens to
this process, no file ever claims a final score that the judge had no part in. The deterministic score stands in it from
the beginning and is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

import anyio

from contract.errors import BenchError, EvaluationError
from contract.evaluation_records import Failure, Stage
from contract.judge_records import JudgeResponses
from contract.phases import Cause
from contract.records import read_record, write_record
from contract.run_dir import EvaluationDir
from contract.score_records import Score
from evaluator_client.judge import Judge, ask_judge, known_attempts, open_judging
from evaluator_client.judge_prompt import Pictures, request_of
from evaluator_client.judge_verdict import cost_of_attempts, verdict, with_judge, with_judge_failed
from evaluator_client.status import StatusFile

INTERRUPTED: Final = "judge_interrupted"


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """How an evaluation ended: `complete` and `invalid` have a score, `failed` has a cause and a failure code.

    When only the judge failed there is a score too, without a final one. `judge_cost_usd` is what its answers cost,
    null when no judge was asked or nobody knows.
    """

    state: Stage
    score: Score | None
    cause: Cause | None = None
    failure_code: str | None = None
    failure_message: str | None = None
    judge_cost_usd: Decimal | None = None


async def judge_rollout(
    evaluation: EvaluationDir, status: StatusFile, judge: Judge, score: Score, pictures: Pictures
) -> EvaluationResult:
    """Write the score, ask the judge, and write the score with its part.

    Raises `DiskError`, `StateError` for torn answers of an earlier evaluation, and `EvaluationError` for pictures that
    cannot be compared. When it is cancelled, `status.json` says `failed` with `judge_interrupted`.
    """
    judge_id = judge.config.judge_id
    # A controller that died while it judged left answers that are paid for.
    known = known_attempts(evaluation, request_of(judge.config, pictures))
    request = open_judging(evaluation, judge.config, pictures, known=known)
    write_record(evaluation.score, with_judge_failed(score, judge_id=judge_id, reason=INTERRUPTED))
    status.enter(Stage.SCORED)
    status.enter(Stage.JUDGING)
    try:
        attempts = await ask_judge(
            evaluation,
            judge,
            request,
            pictures,
            known=known,
            on_attempt=lambda: status.count_attempt(Stage.JUDGING),
        )
        judged = verdict(request, attempts, score, price=judge.price)
    except EvaluationError as error:
        failed = with_judge_failed(score, judge_id=judge_id, reason=error.code)
        write_record(evaluation.score, failed)
        ended = fail(status, code=error.code, error=error, cause=Cause.JUDGE_FAILED, score=failed)
        stored = read_record(evaluation.judge_responses, JudgeResponses).attempts
        return replace(ended, judge_cost_usd=cost_of_attempts(stored, judge.price)[0])
    except anyio.get_cancelled_exc_class():
        interrupted = EvaluationError(
            f"the judge {judge_id} was not waited for",
            code=INTERRUPTED,
            is_retryable=True,
            hint="Judge this rollout again, with `autocad-bench evaluate` and --judge-config.",
        )
        fail(status, code=INTERRUPTED, error=interrupted, cause=Cause.JUDGE_FAILED)
        raise
    final = with_judge(score, judged)
    write_record(evaluation.judge_score, judged)
    write_record(evaluation.score, final)
    status.enter(Stage.COMPLETE)
    return EvaluationResult(state=Stage.COMPLETE, score=final, judge_cost_usd=judged.cost_usd)


def fail(
    status: StatusFile, *, code: str, error: BenchError, cause: Cause, score: Score | None = None
) -> EvaluationResult:
    """Write why the evaluation failed. That is never a score of zero."""
    failure = Failure(
        stage=status.status.state,
        code=code,
        message=error.message,
        is_retryable=isinstance(error, EvaluationError) and error.is_retryable,
    )
    status.enter(Stage.FAILED, failure=failure)
    return EvaluationResult(state=Stage.FAILED, score=score, cause=cause, failure_code=code, failure_message=str(error))
