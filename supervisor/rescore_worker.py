"""`python -I -m supervisor.rescore_worker`: scores archived rollouts again, one request and one reply a line.

    {"run_dir": PATH, "gold_dir": PATH, "evaluator": {"name", "version"}}
    {"folder": PATH, "delta": {...}, "error": null}  or  {"folder": null, "delta": null, "error": TEXT}

It ends with its input.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import orjson

from contract.errors import BenchError, StateError
from contract.evaluation_records import EvaluationStatus, EvaluatorName, ScoreDelta
from contract.records import Record, read_record
from contract.rollout_records import Result
from contract.run_dir import RunDir

NEVER_SCORED: Final = "it was never scored, so there is nothing to score again"


class RescoreOrder(Record):
    """One rollout to score again."""

    run_dir: str
    gold_dir: str
    evaluator: EvaluatorName


class RescoreReply(Record):
    """Its second score, or why there is none."""

    folder: str | None
    delta: ScoreDelta | None
    error: str | None


def score_again(order: RescoreOrder) -> RescoreReply:
    """Never raises for what is in the archive or in the gold: one bad rollout must not keep the others from a score."""
    from evaluator_client.rescore import rescore

    run_dir = RunDir(Path(order.run_dir))
    if not was_scored(run_dir):
        return RescoreReply(folder=None, delta=None, error=NEVER_SCORED)
    try:
        again = rescore(run_dir, gold_dir=Path(order.gold_dir), evaluator=order.evaluator)
    except BenchError as error:
        return RescoreReply(folder=None, delta=None, error=str(error))
    return RescoreReply(folder=str(again.folder), delta=again.delta, error=None)


def was_scored(run_dir: RunDir) -> bool:
    """Whether there is or was a score. One that is gone is an archive that lacks a file, and not a missing score."""
    evaluation = run_dir.evaluation
    if evaluation.score.is_file():
        return True
    with suppress(StateError):
        return evaluation.score.name in read_record(evaluation.status, EvaluationStatus).files
    with suppress(StateError):
        return read_record(run_dir.result, Result).score is not None
    return False


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer until there are no more requests."""
    for line in requests:
        reply = score_again(RescoreOrder.model_validate_json(line))
        replies.write(orjson.dumps(reply.model_dump(mode="json")) + b"\n")
        replies.flush()


if __name__ == "__main__":
    answers = sys.stdout.buffer
    # What a library prints must not be taken for a reply.
    sys.stdout = sys.stderr
    serve(sys.stdin.buffer, answers)
