"""Commands that ask a judge apart from a batch: `gold calibrate`, and `evaluate` with `--judge-config`.

Both print a plan and what it would cost, and ask nobody, until they are told to with `--execute`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import anyio
from pydantic import SecretStr

from contract.ambient import Ambient
from contract.errors import BenchError, ConfigError
from contract.evaluation_records import EvaluatorName
from contract.records import disk_error, write_record
from evaluator_client.judge import Judge
from evaluator_client.judge_anew import judge_anew
from evaluator_client.judge_calibration import KINDS, calibration_path, choose_golds, faults_of
from supervisor.evaluate_command import Archive, Row, never_scored, read_archive, write_rows
from supervisor.issues import Issue, exit_code_of
from supervisor.judge_admission import calibration_issues
from supervisor.judge_calibrating import calibrate
from supervisor.judge_setup import JudgeSetup, read_judge_setup
from supervisor.plan_cost import SHOWN_STEP

PLAN_SCHEMA: Final = "autocad-bench.judge-plan/1"
CALIBRATE_SCHEMA: Final = "autocad-bench.gold-calibrate/1"
# So many pairs of pictures are before the judge at once.
AT_ONCE_MAX: Final = 4


def run_calibrate(
    *,
    config_path: Path,
    tasks: Sequence[str],
    output_dir: Path | None,
    is_execute: bool,
    keys: Mapping[str, SecretStr],
    ambient: Ambient,
    stream: IO[str],
) -> int:
    """Ask the config's judge about golds, and keep what it says as its calibration if that allows its use.

    `output_dir` gets every answer; the same folder again goes on where an earlier run stopped. Returns 0, 1 when the
    judge may not be used, 3 when it cannot be asked. Raises `ConfigError` and `EvaluationError`.
    """
    setup = read_judge_setup(config_path, keys)
    evaluator = _evaluator_of(setup)
    path = calibration_path(setup.gold_dir, evaluator, setup.judge.judge_id)
    if path.exists():
        raise ConfigError(
            f"{path} is there already, and a gold cache is never edited",
            hint="Give the judge a judge_id of its own.",
            code="calibration_exists",
            field="judge.judge_id",
        )
    golds = choose_golds(setup.gold_dir, evaluator, tasks)
    if setup.issues or not is_execute:
        what = {"golds": [gold.gold.task_id for gold in golds], "file": str(path)}
        return _print_plan(setup, setup.issues, stream, drawings=len(golds) * len(KINDS), what=what)
    assert output_dir is not None, "the command line asks for it"
    judge = setup.opened(ambient)
    record = anyio.run(partial(calibrate, judge, golds, evaluator, folder=output_dir, at_once_max=AT_ONCE_MAX))
    faults = faults_of(record.golds)
    if not faults:
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(path.parent, error) from error
        write_record(path, record)
    document = {
        "schema": CALIBRATE_SCHEMA,
        "ok": not faults,
        "file": str(path) if not faults else None,
        "faults": faults,
        "calibration": record.model_dump(mode="json"),
    }
    _write(document, stream)
    return 1 if faults else 0


def run_judge_again(
    *,
    folder: Path,
    rollout_id: str | None,
    gold_cache: Path | None,
    judge_config: Path,
    is_execute: bool,
    as_json: bool,
    keys: Mapping[str, SecretStr],
    ambient: Ambient,
    stream: IO[str],
) -> int:
    """Show the stored drawings of a batch to the judge of another config, beside their first scores.

    Returns 0, 1 when one of them could not be judged, 3 when the judge cannot be asked. Raises `ConfigError`.
    """
    archive = read_archive(folder, rollout_id, gold_cache)
    setup = read_judge_setup(judge_config, keys)
    issues = setup.issues + calibration_issues(setup.judge, archive.gold_dir, archive.evaluator)
    if issues or not is_execute:
        scored = [name for name in archive.rollout_ids if never_scored(archive, name) is None]
        return _print_plan(setup, issues, stream, drawings=len(scored), what={"rollouts": scored})
    rows = anyio.run(partial(_judge_all, archive, setup.opened(ambient)))
    return write_rows(archive, rows, as_json=as_json, stream=stream, is_judged=True)


async def _judge_all(archive: Archive, judge: Judge) -> list[Row]:
    rows: dict[str, Row] = {}
    limit = anyio.CapacityLimiter(AT_ONCE_MAX)

    async def judge_one(rollout_id: str) -> None:
        async with limit:
            rows[rollout_id] = never_scored(archive, rollout_id) or await _judge_one(archive, rollout_id, judge)

    async with anyio.create_task_group() as group:
        for rollout_id in archive.rollout_ids:
            group.start_soon(judge_one, rollout_id)
    return [rows[rollout_id] for rollout_id in archive.rollout_ids]


async def _judge_one(archive: Archive, rollout_id: str, judge: Judge) -> Row:
    run_dir = archive.batch_dir.rollout(rollout_id)
    try:
        again = await judge_anew(run_dir, gold_dir=archive.gold_dir, evaluator=archive.evaluator, judge=judge)
    # One rollout without artifacts, or one that the judge refuses, must not keep the others from being judged.
    except BenchError as error:
        return Row(rollout_id, None, None, str(error))
    return Row(rollout_id, again.folder, again.delta, None)


def _evaluator_of(setup: JudgeSetup) -> EvaluatorName:
    pinned = setup.config.evaluator
    return EvaluatorName(name=pinned.name, version=pinned.version)


def _print_plan(
    setup: JudgeSetup, issues: tuple[Issue, ...], stream: IO[str], *, drawings: int, what: Mapping[str, Any]
) -> int:
    found = setup.estimate
    document = {
        "schema": PLAN_SCHEMA,
        "ok": not issues,
        "judge": setup.judge.model_dump(mode="json"),
        **what,
        "drawings": drawings,
        "cost": {
            "currency": "USD",
            "expected": _shown(drawings * found.expected, ROUND_HALF_UP) if found is not None else None,
            "worst_case": _shown(drawings * found.worst_case, ROUND_UP) if found is not None else None,
        },
        "issues": [issue.to_json() for issue in issues],
    }
    _write(document, stream)
    return exit_code_of(issues)


def _shown(amount: Decimal, rounding: str) -> str:
    return f"{amount.quantize(SHOWN_STEP, rounding):f}"


def _write(document: Mapping[str, Any], stream: IO[str]) -> None:
    stream.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    stream.flush()
