"""Asks a judge about golds whose worth is known, and puts the numbers into one record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio

from contract.evaluation_records import EvaluatorName
from contract.judge_records import (
    Calibration,
    GoldCalibration,
    JudgeAttempt,
    JudgeScore,
    MissingContent,
)
from contract.records import write_record
from contract.run_dir import EvaluationDir
from evaluator_client.judge import Judge, ask_judge, known_attempts, open_judging
from evaluator_client.judge_calibration import KINDS, MISSING_SHARES, CalibrationGold, Kind, Pair
from evaluator_client.judge_prompt import (
    PROMPT_SHA256,
    PROMPT_VERSION,
    SCHEMA_SHA256,
    parameters_of,
    request_of,
)
from evaluator_client.judge_verdict import cost_of_attempts, judged_of, usage_total

_Key = tuple[str, Kind]
# What is measured is the judge alone: no deterministic score holds it down.
_UNHELD: Final = 1.0


async def calibrate(
    judge: Judge, golds: Sequence[CalibrationGold], evaluator: EvaluatorName, *, folder: Path, at_once_max: int
) -> Calibration:
    """Every pair of every gold, answers kept below `folder`; those that are there already are not asked for again.

    Raises `EvaluationError` when a pair gets no judgement, `StateError` for a torn file in `folder`, and `DiskError`.
    """
    scores: dict[_Key, JudgeScore] = {}
    attempts: dict[_Key, list[JudgeAttempt]] = {}
    limit = anyio.CapacityLimiter(at_once_max)

    async def ask(pair: Pair) -> None:
        async with limit:
            key = (pair.task_id, pair.kind)
            scores[key], attempts[key] = await _ask_pair(judge, pair, EvaluationDir(folder / pair.task_id / pair.kind))

    async with anyio.create_task_group() as group:
        for gold in golds:
            for pair in await judge.disk.call(gold.pairs):
                group.start_soon(ask, pair)
    asked = [attempt for gold in golds for kind in KINDS for attempt in attempts[gold.gold.task_id, kind]]
    cost_usd, note = cost_of_attempts(asked, judge.price)
    config = judge.config
    return Calibration(
        judge_id=config.judge_id,
        provider=config.provider,
        model=config.model,
        models_reported=sorted({found.model_reported for found in asked if found.model_reported is not None}),
        prompt_version=PROMPT_VERSION,
        prompt_sha256=PROMPT_SHA256,
        schema_sha256=SCHEMA_SHA256,
        parameters=parameters_of(config),
        repeats=config.repeats,
        evaluator=f"{evaluator.name} {evaluator.version}",
        calibrated_at=judge.ambient.utc_now(),
        golds=[_numbers(gold, scores) for gold in golds],
        cost_usd=cost_usd,
        cost_note=note,
        usage_total=usage_total(asked),
    )


async def _ask_pair(judge: Judge, pair: Pair, folder: EvaluationDir) -> tuple[JudgeScore, list[JudgeAttempt]]:
    known = known_attempts(folder, request_of(judge.config, pair.pictures))
    request = open_judging(folder, judge.config, pair.pictures, known=known)
    attempts = await ask_judge(folder, judge, request, pair.pictures, known=known)
    judged = judged_of(request, attempts, price=judge.price, deterministic=_UNHELD, by_text=False)
    write_record(folder.judge_score, judged)
    return judged, attempts


def _numbers(gold: CalibrationGold, scores: dict[_Key, JudgeScore]) -> GoldCalibration:
    found = {kind: scores[gold.gold.task_id, kind].score for kind in KINDS}
    missing = zip(MISSING_SHARES, KINDS[3:], strict=True)
    return GoldCalibration(
        task_id=gold.gold.task_id,
        gold_entry_sha256=gold.gold.entry_sha256,
        same=found["same"],
        blank=found["blank"],
        other_task_id=gold.other.task_id,
        other=found["other"],
        missing=[MissingContent(share=share, score=found[kind]) for share, kind in missing],
    )
