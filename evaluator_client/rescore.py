"""Scores a finished rollout again from its stored artifacts: without a host, and the first score stays as it is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from contract.errors import EvaluationError, StateError
from contract.evaluation_records import EvaluationStatus, EvaluatorName, ScoreDelta
from contract.records import Durability, disk_error, dump_pretty, read_record, replace_file
from contract.run_dir import EvaluationDir, RunDir
from contract.score_records import Score
from evaluator_client.collector import parse_metadata
from evaluator_client.gold import GoldEntry, load_entry
from evaluator_client.judge_again import judge_again
from evaluator_client.score import ScoredDrawing, missing_artifact_score, score_drawing


@dataclass(frozen=True, slots=True)
class Rescored:
    """A later scoring: where it stands, and what changed from the first."""

    folder: Path
    delta: ScoreDelta


@dataclass(frozen=True, slots=True)
class ScoredAgain:
    """The first score, the gold, and what the archive is worth now, without any judge."""

    first: Score
    gold: GoldEntry
    again: ScoredDrawing


def rescore(run_dir: RunDir, *, gold_dir: Path, evaluator: EvaluatorName) -> Rescored:
    """Score the archived evaluation of one rollout against a gold cache, beside the old result.

    Raises `StateError` when the archive lacks a file or one does not match its checksum, `EvaluationError` when the
    gold cannot serve. Nothing is written then.
    """
    evaluation = run_dir.evaluation
    scored = score_again(run_dir, gold_dir=gold_dir, evaluator=evaluator)
    judged = judge_again(evaluation, scored.again.score, scored.gold)
    folder = open_rescore(evaluation, scored.again)
    if judged.judge is not None:
        folder.vision_judge.mkdir()
        replace_file(folder.judge_score, dump_pretty(judged.judge))
    return close_rescore(evaluation, folder, scored.first, judged.score)


def score_again(run_dir: RunDir, *, gold_dir: Path, evaluator: EvaluatorName) -> ScoredAgain:
    """Check the archive and compare its drawing with the gold. Writes nothing; raises like `rescore`."""
    evaluation = run_dir.evaluation
    first = read_record(evaluation.score, Score)
    _check_archive(evaluation)
    gold = load_entry(gold_dir, first.task_id, evaluator_name=evaluator.name, evaluator_version=evaluator.version)
    return ScoredAgain(first, gold, _score(evaluation, first, gold))


def open_rescore(evaluation: EvaluationDir, again: ScoredDrawing) -> EvaluationDir:
    """The next free folder for a later score, with the pictures in it. Raises `DiskError`."""
    folder = _next_folder(evaluation)
    try:
        folder.root.mkdir(parents=True)
    except OSError as error:
        raise disk_error(folder.root, error) from error
    if again.pictures is not None:
        # Hundreds are written in a row, and a picture that a crash of the machine tears can be made again.
        replace_file(folder.diff, again.pictures.diff_png, durability=Durability.PROCESS)
        replace_file(folder.overlay, again.pictures.overlay_png, durability=Durability.PROCESS)
    return folder


def close_rescore(evaluation: EvaluationDir, folder: EvaluationDir, first: Score, score: Score) -> Rescored:
    """Write the later score and what changed from the first."""
    content = dump_pretty(score)
    # One sync of the folder, with its last file, makes the names of all durable.
    replace_file(folder.score, content, durability=Durability.CONTENT)
    delta = _delta(first, score, is_identical=content == evaluation.score.read_bytes())
    replace_file(folder.root / "delta.json", dump_pretty(delta))
    return Rescored(folder=folder.root, delta=delta)


def _score(evaluation: EvaluationDir, first: Score, gold: GoldEntry) -> ScoredDrawing:
    if first.invalid is not None and first.invalid.code == "missing_artifact":
        return missing_artifact_score(gold)
    content = _read(evaluation.metadata)
    metadata = parse_metadata(content, source=str(evaluation.metadata))
    pinned = (gold.metadata.evaluator.name, gold.metadata.evaluator.version)
    if (metadata.evaluator.name, metadata.evaluator.version) != pinned:
        raise EvaluationError(
            f"{evaluation.metadata} was made by {metadata.evaluator.name} {metadata.evaluator.version}, "
            f"the gold by {' '.join(pinned)}",
            code="evaluator_version_mismatch",
            hint="Name the gold cache of the evaluator version that made the archive.",
        )
    digest = hashlib.sha256(content).hexdigest()
    # What is invalid by its own facts, or beside the gold as nothing but dots of no length, was never rendered.
    if first.invalid is not None or metadata.status != "ok":
        verdict = score_drawing(candidate=metadata, render=None, gold=gold, candidate_sha256=digest)
        if not verdict.score.valid:
            return verdict
    render = _read(evaluation.render)
    return score_drawing(candidate=metadata, render=render, gold=gold, candidate_sha256=digest)


def _check_archive(evaluation: EvaluationDir) -> None:
    """Every file that the status lists must still be the one that was scored."""
    status = read_record(evaluation.status, EvaluationStatus)
    for name, digest in sorted(status.files.items()):
        path = evaluation.root / name
        if hashlib.sha256(_read(path)).hexdigest() != digest:
            raise StateError(
                f"{path} is not the file that was scored", hint="Restore the archive, or leave this rollout out."
            )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror}", hint="Restore the archive, or leave this rollout out."
        ) from error


def _next_folder(evaluation: EvaluationDir) -> EvaluationDir:
    number = 1
    while evaluation.rescore(number).root.exists():
        number += 1
    return evaluation.rescore(number)


def _delta(first: Score, new: Score, *, is_identical: bool) -> ScoreDelta:
    changed = {
        name: (first.components[name].score, component.score)
        for name, component in new.components.items()
        if name in first.components and first.components[name].score != component.score
    }
    return ScoreDelta(
        task_id=new.task_id,
        old_score_version=first.score_version,
        new_score_version=new.score_version,
        old_deterministic=first.deterministic,
        new_deterministic=new.deterministic,
        old_final=first.final,
        new_final=new.final,
        changed_components={str(name): values for name, values in changed.items()},
        is_identical=is_identical,
    )
