"""Reads run folders for a report, read-only. A file that is missing, torn or foreign is one error that names it.

Nothing is half-read: a report that left out what it could not read would print a mean of the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import orjson
from pydantic import ValidationError

from contract.batch_records import BatchState, RolloutRow
from contract.config import BatchConfig
from contract.errors import ConfigError, StateError
from contract.phases import Outcome, is_final
from contract.records import first_problem, read_lines, read_record
from contract.rollout_records import ModelTurnSummary, Result
from contract.run_dir import BatchDir, RunDir
from contract.score_records import Score

COUNTED = frozenset({Outcome.SCORED, Outcome.MODEL_FAILED})


@dataclass(frozen=True, slots=True)
class Played:
    """One enabled rollout. `result` is null until it has ended, `score` unless it counts.

    `is_rescored` says that `score` is a later one than that of `result`.
    """

    row: RolloutRow
    result: Result | None
    score: Score | None
    # How many turns came to what: acted, invalid, malformed, finish, refusal.
    turn_results: Mapping[str, int]
    is_rescored: bool = False

    @property
    def model(self) -> str:
        """The model as tables name it; another profile is another model."""
        name = f"{self.row.provider}/{self.row.model}"
        return f"{name} [{self.row.profile}]" if self.row.profile else name

    @property
    def is_counted(self) -> bool:
        """True when its score enters a mean."""
        return self.score is not None


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder. `label` is unique in its report; rollouts are in the config's order."""

    label: str
    folder: Path
    state: BatchState
    coverage_floor: float
    rollouts: tuple[Played, ...]


def read_runs(folders: Sequence[Path], *, takes_rescored: bool = False) -> list[Run]:
    """All runs that `folders` name, oldest first. Each is a run folder, or a folder whose children are run folders.

    With `takes_rescored` the newest of a rollout's later scores takes the place of its first one, where it has any.
    Raises `ConfigError` for a folder without a run, a run that is named twice, and any file that cannot be used.
    """
    batch_dirs = [batch_dir for folder in folders for batch_dir in _batch_dirs(folder)]
    seen: dict[Path, Path] = {}
    for batch_dir in batch_dirs:
        place = batch_dir.root.resolve()
        if place in seen:
            raise _unusable(f"{batch_dir.root} is named twice", hint="Name each run folder once.")
        seen[place] = batch_dir.root
    names = Counter(place.name for place in seen)
    runs = [
        _read_run(
            BatchDir(folder),
            label=place.name if names[place.name] == 1 else str(folder),
            takes_rescored=takes_rescored,
        )
        for place, folder in seen.items()
    ]
    return sorted(runs, key=lambda run: (run.state.created_at, run.label))


def _batch_dirs(folder: Path) -> list[BatchDir]:
    if _is_run(folder):
        return [BatchDir(folder)]
    try:
        children = sorted(child for child in folder.iterdir() if child.is_dir())
    except OSError as error:
        raise _unusable(
            f"cannot read {folder}: {error.strerror or error}", hint="Name a run folder or a folder of runs."
        ) from error
    found = [BatchDir(child) for child in children if _is_run(child)]
    if not found:
        raise _unusable(
            f"{folder} is no run folder and holds none: there is no {BatchDir(folder).state.name}",
            hint="Name the --output-dir of a batch, or a folder of such folders.",
        )
    return found


def _is_run(folder: Path) -> bool:
    # Either of them makes it a run, so that one without the other is said and not passed over.
    batch_dir = BatchDir(folder)
    return batch_dir.state.is_file() or batch_dir.config.is_file()


def _read_run(batch_dir: BatchDir, *, label: str, takes_rescored: bool) -> Run:
    try:
        state = read_record(batch_dir.state, BatchState)
        config = read_record(batch_dir.config, BatchConfig)
        rollouts = tuple(_read_rollout(batch_dir, state, row, takes_rescored) for row in state.rollouts)
    except StateError as error:
        raise _unusable(error.message, hint=error.hint) from error
    return Run(label, batch_dir.root, state, config.coverage_floor, rollouts)


def _read_rollout(batch_dir: BatchDir, state: BatchState, row: RolloutRow, takes_rescored: bool) -> Played:
    run_dir = batch_dir.rollout(row.rollout_id)
    turn_results = _turn_results(run_dir)
    if not is_final(row.phase):
        return Played(row, None, None, turn_results)
    result = read_record(run_dir.result, Result)
    mine = (state.batch_id, row.rollout_id, row.task_id, row.provider, row.model, row.outcome, row.score)
    found = (
        result.batch_id,
        result.rollout_id,
        result.task_id,
        result.provider,
        result.model,
        result.outcome,
        result.score,
    )
    if mine != found:
        raise _foreign(run_dir.result, f"{batch_dir.state} says {mine}, it says {found}")
    if result.outcome not in COUNTED:
        return Played(row, result, None, turn_results)
    score = read_record(run_dir.evaluation.score, Score)
    if (result.task_id, result.score) != (score.task_id, score.deterministic):
        said = f"task {score.task_id!r} with {score.deterministic}, {run_dir.result.name} {result.task_id!r} with"
        raise _foreign(run_dir.evaluation.score, f"it says {said} {result.score}")
    later = _newest_rescore(run_dir) if takes_rescored else None
    if later is None:
        return Played(row, result, score, turn_results)
    again = read_record(later, Score)
    if score.task_id != again.task_id:
        raise _foreign(later, f"it says task {again.task_id!r}, {run_dir.result.name} {score.task_id!r}")
    return Played(row, result, again, turn_results, is_rescored=True)


def _newest_rescore(run_dir: RunDir) -> Path | None:
    newest = None
    for number in count(1):
        folder = run_dir.evaluation.rescore(number)
        if not folder.root.exists():
            break
        # The score comes last, so a folder without one is what an `evaluate` that was killed left.
        if folder.score.is_file():
            newest = folder.score
    return newest


def _turn_results(run_dir: RunDir) -> Mapping[str, int]:
    path = run_dir.model_turn_summaries
    counts: Counter[str] = Counter()
    try:
        for line in read_lines(path):
            # From JSON again: strings are times and money there, and only there.
            counts[ModelTurnSummary.model_validate_json(orjson.dumps(line)).result] += 1
    except ValidationError as error:
        raise StateError(
            f"{path} is not a list of {ModelTurnSummary.__name__}: {first_problem(error)}",
            hint="The file was made by another version; restore it or leave this run out.",
        ) from error
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror or error}", hint="Name an existing run folder that you may read."
        ) from error
    return counts


def _foreign(path: Path, what: str) -> StateError:
    return StateError(f"{path} belongs to another rollout: {what}", hint="Restore the file, or leave this run out.")


def _unusable(message: str, *, hint: str) -> ConfigError:
    return ConfigError(message, hint=hint, code="run_folder_invalid")
