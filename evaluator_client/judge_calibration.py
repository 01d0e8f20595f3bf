"""Whether a judge may be used: what it says about drawings whose worth is known (scoring contract, 10.6).

Four questions for each gold: beside itself, beside an empty sheet, beside the gold of another task, and beside itself
with more and more of its ink taken away.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np

from contract.config import JudgeConfig
from contract.errors import BenchError, EvaluationError
from contract.evaluation_records import EvaluatorName
from contract.judge_records import Calibration, GoldCalibration
from contract.records import parse_record
from evaluator_client.gold import GoldEntry, load_entry, read_manifest
from evaluator_client.judge_prompt import PROMPT_SHA256, PROMPT_VERSION, SCHEMA_SHA256, Pictures, parameters_of
from evaluator_client.renders import INK_GREY_MAX, Mask, ink_of

# Scoring contract, section 10.6.
GOLDS_MIN: Final = 5
SAME_MIN: Final = 0.95
BLANK_MAX: Final = 0.10
OTHER_MAX: Final = 0.30
# Shares of the ink that are taken away, each clearly more than the last.
MISSING_SHARES: Final = (0.25, 0.5, 0.75)
_PAPER: Final = 255

Kind = Literal["same", "blank", "other", "missing-25", "missing-50", "missing-75"]
KINDS: Final[tuple[Kind, ...]] = ("same", "blank", "other", "missing-25", "missing-50", "missing-75")
_MISSING: Final = dict(zip(KINDS[3:], MISSING_SHARES, strict=True))


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair of pictures that the judge is shown."""

    task_id: str
    kind: Kind
    pictures: Pictures


@dataclass(frozen=True, slots=True)
class CalibrationGold:
    """One gold, and the other task's that it is compared with."""

    gold: GoldEntry
    other: GoldEntry

    def pairs(self) -> tuple[Pair, ...]:
        """The pairs in the order of `KINDS`. Raises `EvaluationError` for a render that cannot be read."""
        reference = self.gold.render
        ink = ink_of(reference, size_px=self.gold.size_px, whose="gold")
        shown: dict[Kind, bytes] = {
            "same": reference,
            "blank": _without_ink(reference, np.ones_like(ink)),
            "other": self.other.render,
        }
        # From the left, column by column, so that each amount contains the last and what is left stays whole.
        gone = (np.cumsum(ink.T).reshape(ink.T.shape) / max(1, int(ink.sum()))).T
        for kind, share in _MISSING.items():
            shown[kind] = _without_ink(reference, gone <= share)
        return tuple(Pair(self.gold.task_id, kind, Pictures(reference, shown[kind])) for kind in KINDS)


def choose_golds(
    gold_dir: Path, evaluator: EvaluatorName, tasks: Sequence[str] = (), *, count: int = GOLDS_MIN
) -> list[CalibrationGold]:
    """The golds of `tasks`, or the first `count` of the cache by name, each with the next one of its picture size.

    Raises `EvaluationError`: what `load_entry` raises, and `calibration_golds` when there are too few of them.
    """
    names = list(dict.fromkeys(tasks)) or sorted(read_manifest(gold_dir).entries)[:count]
    golds = [
        load_entry(gold_dir, name, evaluator_name=evaluator.name, evaluator_version=evaluator.version) for name in names
    ]
    if len(golds) < GOLDS_MIN:
        raise EvaluationError(
            f"a calibration needs at least {GOLDS_MIN} golds, and {len(golds)} of {gold_dir} are chosen",
            code="calibration_golds",
            hint="Name more tasks, or a gold cache that has more.",
        )
    chosen = []
    for index, gold in enumerate(golds):
        others = [*golds[index + 1 :], *golds[:index]]
        other = next((each for each in others if each.size_px == gold.size_px), None)
        if other is None:
            raise EvaluationError(
                f"no other gold has a picture as large as that of {gold.task_id!r}",
                code="calibration_golds",
                hint="Choose golds of which two have the same picture size.",
            )
        chosen.append(CalibrationGold(gold, other))
    return chosen


def faults_of(golds: Sequence[GoldCalibration]) -> list[str]:
    """Every demand of section 10.6 that these numbers do not meet, in one line each; empty when all are met."""
    faults = []
    if len({gold.task_id for gold in golds}) < GOLDS_MIN:
        faults.append(f"it covers {len(golds)} golds, at least {GOLDS_MIN} are needed")
    for gold in golds:
        task = gold.task_id
        if gold.same < SAME_MIN:
            faults.append(f"{task} beside itself is {gold.same}, at least {SAME_MIN} is needed")
        if gold.blank > BLANK_MAX:
            faults.append(f"{task} beside an empty sheet is {gold.blank}, at most {BLANK_MAX} is allowed")
        if gold.other > OTHER_MAX:
            faults.append(f"{task} beside {gold.other_task_id} is {gold.other}, at most {OTHER_MAX} is allowed")
        missing = sorted(gold.missing, key=lambda part: part.share)
        scores = [part.score for part in missing]
        if len(scores) < len(MISSING_SHARES) or any(a <= b for a, b in pairwise(scores)):
            faults.append(f"{task} with more and more missing is {scores}, which does not fall from each to the next")
    return faults


def calibration_path(gold_dir: Path, evaluator: EvaluatorName, judge_id: str) -> Path:
    """Where the record of a judge stands in a gold cache (scoring contract, section 5)."""
    return gold_dir / f"{evaluator.name}-{evaluator.version}" / "judge" / f"{judge_id}.json"


def demand_calibrated(config: JudgeConfig, gold_dir: Path, evaluator: EvaluatorName) -> Calibration:
    """The record of this very judge. Raises `EvaluationError` (`judge_uncalibrated`) that names file and reason."""
    path = calibration_path(gold_dir, evaluator, config.judge_id)
    try:
        record = parse_record(path.read_bytes(), Calibration, source=str(path))
    except OSError as error:
        raise _uncalibrated(f"cannot read its calibration {path}: {error.strerror or error}", config) from error
    except BenchError as error:
        raise _uncalibrated(error.message, config) from error
    wanted = {
        "judge_id": config.judge_id,
        "provider": config.provider,
        "model": config.model,
        "prompt_version": PROMPT_VERSION,
        "prompt_sha256": PROMPT_SHA256,
        "schema_sha256": SCHEMA_SHA256,
        "parameters": parameters_of(config),
        "evaluator": f"{evaluator.name} {evaluator.version}",
    }
    other = [name for name, value in wanted.items() if getattr(record, name) != value]
    if other:
        raise _uncalibrated(f"{path} is about a judge with another {', '.join(other)}", config)
    faults = faults_of(record.golds)
    if faults:
        raise _uncalibrated(f"{path} does not allow it: {faults[0]}", config)
    return record


def _uncalibrated(why: str, config: JudgeConfig) -> EvaluationError:
    return EvaluationError(
        f"the judge {config.judge_id!r} is not calibrated: {why}",
        code="judge_uncalibrated",
        hint="Run `autocad-bench gold calibrate` with this config, under a judge_id that has no record yet.",
    )


def _without_ink(png: bytes, where: Mask) -> bytes:
    """The picture with paper in place of everything `where` covers, as an 8-bit grey PNG without metadata."""
    from PIL import Image

    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        grey = np.array(image.convert("L"))
    grey[where] = _PAPER
    assert INK_GREY_MAX < _PAPER, "paper is no ink"
    out = io.BytesIO()
    Image.fromarray(grey).save(out, "PNG", optimize=False)
    return out.getvalue()
