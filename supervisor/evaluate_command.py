"""`evaluate`: score stored artifacts again, beside the first score. No host, no network."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from contract.config import BatchConfig
from contract.errors import ConfigError, StateError
from contract.evaluation_records import EvaluatorName, ScoreDelta
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.inspecting import Inspection, inspect_attempt
from supervisor.issues import did_you_mean, few
from supervisor.rescore_pool import score_all
from supervisor.rescore_worker import NEVER_SCORED, RescoreOrder, was_scored

EVALUATE_SCHEMA: Final = "autocad-bench.evaluate/1"
TABLE_COLUMNS_MIN: Final = 120


@dataclass(frozen=True, slots=True)
class Row:
    """One rollout: its second score, or why there is none. `inspection` is of a DWG drawing that was asked for."""

    rollout_id: str
    folder: Path | None
    delta: ScoreDelta | None
    error: str | None
    inspection: Inspection | None = None


@dataclass(frozen=True, slots=True)
class Archive:
    """The rollouts of a finished batch that are to be scored again, and the gold for it."""

    batch_dir: BatchDir
    rollout_ids: tuple[str, ...]
    gold_dir: Path
    evaluator: EvaluatorName


def run_evaluate(
    *, folder: Path, rollout_id: str | None, gold_cache: Path | None, as_json: bool, stream: IO[str]
) -> int:
    """Score one rollout of the batch in `folder` again, or all that were enabled.

    When one rollout is named whose drawing is a DWG file, that is also read, to be looked at.

    Returns 1 when one of them could not be scored. Raises `ConfigError` for an unknown rollout or a folder that holds
    no batch.
    """
    archive = read_archive(folder, rollout_id, gold_cache)
    rows = _score_again(archive)
    if rollout_id is not None:
        found = inspect_attempt(archive.batch_dir.rollout(rollout_id))
        rows = [replace(row, inspection=found) for row in rows]
    return write_rows(archive, rows, as_json=as_json, stream=stream)


def read_archive(folder: Path, rollout_id: str | None, gold_cache: Path | None) -> Archive:
    """The batch in `folder`, with one rollout or all that were enabled. Raises `ConfigError`."""
    batch_dir = BatchDir(folder)
    try:
        config = read_record(batch_dir.config, BatchConfig)
    except StateError as error:
        hint = "Name the output folder of a batch."
        raise ConfigError(error.message, hint=hint, code="run_folder_invalid") from error
    ids = [entry.rollout_id for entry in config.rollouts if entry.enabled]
    if rollout_id is not None and rollout_id not in ids:
        hint = f"Name one of {few(ids)}.{did_you_mean(rollout_id, ids)}"
        raise ConfigError(f"{folder} has no rollout {rollout_id!r}", hint=hint, code="rollout_unknown")
    return Archive(
        batch_dir=batch_dir,
        rollout_ids=(rollout_id,) if rollout_id is not None else tuple(ids),
        gold_dir=gold_cache if gold_cache is not None else Path(config.evaluator.gold_cache),
        evaluator=EvaluatorName(name=config.evaluator.name, version=config.evaluator.version),
    )


def write_rows(archive: Archive, rows: list[Row], *, as_json: bool, stream: IO[str], is_judged: bool = False) -> int:
    """Print what came of each rollout; with `is_judged` the table has final scores. Returns 1 when one has no score."""
    if as_json:
        document = _document(archive.batch_dir.root, rows)
        stream.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        _print_table(rows, stream, is_judged=is_judged)
    stream.flush()
    return 0 if all(row.delta is not None for row in rows) else 1


def never_scored(archive: Archive, rollout_id: str) -> Row | None:
    """The row of a rollout that has nothing to score again, else null."""
    if was_scored(archive.batch_dir.rollout(rollout_id)):
        return None
    return Row(rollout_id, None, None, NEVER_SCORED)


def _score_again(archive: Archive) -> list[Row]:
    orders = [
        RescoreOrder(
            run_dir=str(archive.batch_dir.rollout(rollout_id).root),
            gold_dir=str(archive.gold_dir),
            evaluator=archive.evaluator,
        )
        for rollout_id in archive.rollout_ids
    ]
    return [
        Row(rollout_id, Path(reply.folder) if reply.folder is not None else None, reply.delta, reply.error)
        for rollout_id, reply in zip(archive.rollout_ids, score_all(orders), strict=True)
    ]


def _document(folder: Path, rows: list[Row]) -> dict[str, Any]:
    return {
        "schema": EVALUATE_SCHEMA,
        "batch_dir": str(folder),
        "ok": all(row.delta is not None for row in rows),
        "rollouts": [
            {
                "rollout_id": row.rollout_id,
                "folder": str(row.folder) if row.folder else None,
                "delta": row.delta.model_dump(mode="json") if row.delta else None,
                "error": row.error,
                **_inspection(row),
            }
            for row in rows
        ],
    }


def _inspection(row: Row) -> dict[str, Any]:
    if row.inspection is None:
        return {}
    folder = row.inspection.folder
    return {"inspection": {"folder": str(folder) if folder else None, "summary": row.inspection.summary}}


def _print_table(rows: list[Row], stream: IO[str], *, is_judged: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    scores = ("old", "new", "old final", "new final") if is_judged else ("old", "new")
    for name in ("rollout", *scores, "changed"):
        table.add_column(name, justify="right" if name in scores else "left", no_wrap=True)
    for row in rows:
        if row.delta is None:
            table.add_row(row.rollout_id, *("" for _ in scores), "not scored")
            continue
        changed = ", ".join(sorted(row.delta.changed_components)) or ("" if row.delta.is_identical else "other fields")
        shown = [f"{row.delta.old_deterministic:.6f}", f"{row.delta.new_deterministic:.6f}"]
        if is_judged:
            shown += [_final(row.delta.old_final), _final(row.delta.new_final)]
        table.add_row(row.rollout_id, *shown, changed or "identical bytes")
    console = Console(file=stream, highlight=False, markup=False)
    console.width = max(console.width, TABLE_COLUMNS_MIN)
    console.print(table)
    for row in rows:
        if row.error:
            console.print(f"not scored: {row.rollout_id}: {row.error}", soft_wrap=True)
        if row.inspection:
            console.print(f"{row.rollout_id}: {row.inspection.summary}", soft_wrap=True)


def _final(value: float | None) -> str:
    return "none" if value is None else f"{value:.6f}"
