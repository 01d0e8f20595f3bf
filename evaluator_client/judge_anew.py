"""A finished rollout is shown to a judge later: to a new one, or again to one that failed or was interrupted.

The first score stays as it is. Whatever this very judge answered about these very pictures before is used and not paid
for again.
"""

from __future__ import annotations

from pathlib import Path

from contract.errors import EvaluationError
from contract.evaluation_records import EvaluatorName
from contract.records import write_record
from contract.run_dir import RunDir
from evaluator_client.judge import Judge, ask_judge, known_attempts, open_judging
from evaluator_client.judge_prompt import Pictures, request_of
from evaluator_client.judge_verdict import verdict, with_judge, with_judge_failed
from evaluator_client.judging import INTERRUPTED
from evaluator_client.rescore import Rescored, ScoredAgain, close_rescore, open_rescore, score_again


async def judge_anew(run_dir: RunDir, *, gold_dir: Path, evaluator: EvaluatorName, judge: Judge) -> Rescored:
    """Score the archive of one rollout again, beside the first score, with what `judge` says now.

    Raises `StateError` and `EvaluationError` like `rescore`, and then nothing is written; and `EvaluationError`
    (`judge_transport`, `judge_unusable`) when the judge fails: the later score stands then without a final one.
    """

    def prepare() -> ScoredAgain:
        return score_again(run_dir, gold_dir=gold_dir, evaluator=evaluator)

    evaluation = run_dir.evaluation
    scored = await judge.disk.call(prepare)
    score = scored.again.score
    if not score.valid:
        # There is no picture, and nothing that a judge could add to a zero.
        return close_rescore(evaluation, open_rescore(evaluation, scored.again), scored.first, score)
    pictures = Pictures(reference=scored.gold.render, candidate=evaluation.render.read_bytes())
    known = known_attempts(evaluation, request_of(judge.config, pictures))
    folder = open_rescore(evaluation, scored.again)
    judge_id = judge.config.judge_id
    request = open_judging(folder, judge.config, pictures, known=known)
    close_rescore(evaluation, folder, scored.first, with_judge_failed(score, judge_id=judge_id, reason=INTERRUPTED))
    try:
        attempts = await ask_judge(folder, judge, request, pictures, known=known)
        judged = verdict(request, attempts, score, price=judge.price)
    except EvaluationError as error:
        failed = with_judge_failed(score, judge_id=judge_id, reason=error.code)
        close_rescore(evaluation, folder, scored.first, failed)
        raise
    write_record(folder.judge_score, judged)
    return close_rescore(evaluation, folder, scored.first, with_judge(score, judged))
