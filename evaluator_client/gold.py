"""The gold cache, read with every checksum verified (scoring contract, section 5). `gold_writer` writes it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contract.errors import BenchError, EvaluationError
from contract.gold import (
    ENTRY_FILES,
    Entry,
    FileDigest,
    Manifest,
    ManifestEntry,
    PinnedEvaluator,
    Placement,
    Profile,
    entry_digest,
)
from contract.metadata import Metadata
from contract.records import parse_record
from evaluator_client.collector import parse_metadata

MANIFEST_NAME: Final = "manifest.json"
_RESTORE: Final = "Restore the gold cache from its repository; a cache is never edited."


@dataclass(frozen=True, slots=True)
class GoldEntry:
    """One task's gold, verified."""

    entry: Entry
    metadata: Metadata
    render: bytes
    entry_sha256: str

    @property
    def task_id(self) -> str:
        return self.entry.task_id

    @property
    def profile(self) -> Profile:
        return self.entry.profile

    @property
    def placement(self) -> Placement:
        return self.entry.placement

    @property
    def window(self) -> tuple[float, float, float, float]:
        """xmin, ymin, xmax, ymax in drawing units."""
        return self.entry.window

    @property
    def size_px(self) -> tuple[int, int]:
        return self.entry.size_px


@dataclass(frozen=True, slots=True)
class CacheIssue:
    """One thing that is wrong with a cache; `code` is an evaluation failure code."""

    code: str
    message: str
    hint: str
    task_id: str | None = None


def load_entry(gold_dir: Path, task_id: str, *, evaluator_name: str, evaluator_version: str) -> GoldEntry:
    """One task's gold, every file checked against size and digest.

    Raises `EvaluationError`: `cache_missing`, `cache_checksum`, `cache_schema` or `evaluator_version_mismatch`.
    """
    manifest = read_manifest(gold_dir)
    pinned = manifest.evaluator
    if (pinned.name, pinned.version) != (evaluator_name, evaluator_version):
        raise EvaluationError(
            f"the gold cache {gold_dir.name} was made by {pinned.name} {pinned.version}, not by"
            f" {evaluator_name} {evaluator_version}",
            code="evaluator_version_mismatch",
            hint="Pin the evaluator that made this gold, or name a cache that the pinned one made.",
        )
    return _load(gold_dir, manifest, task_id)


def read_manifest(gold_dir: Path) -> Manifest:
    """The cache's `manifest.json`. Raises `EvaluationError`: `cache_missing` or `cache_schema`."""
    path = gold_dir / MANIFEST_NAME
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        # A path with a null byte in it.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise EvaluationError(
            f"cannot read {path}: {reason}",
            code="cache_missing",
            hint="Name an existing gold cache in `evaluator.gold_cache`, or build one.",
        ) from error
    try:
        return parse_record(content, Manifest, source=str(path))
    except BenchError as error:
        raise EvaluationError(error.message, code="cache_schema", hint=_RESTORE) from error


def verify_cache(gold_dir: Path) -> list[CacheIssue]:
    """Everything that is wrong with a cache; empty when every entry can be used."""
    try:
        manifest = read_manifest(gold_dir)
    except EvaluationError as error:
        return [CacheIssue(error.code, error.message, error.hint)]
    issues = []
    for task_id in sorted(manifest.entries):
        try:
            _load(gold_dir, manifest, task_id)
        except EvaluationError as error:
            issues.append(CacheIssue(error.code, error.message, error.hint, task_id))
    return issues


def _load(gold_dir: Path, manifest: Manifest, task_id: str) -> GoldEntry:
    pinned = manifest.entries.get(task_id)
    if pinned is None:
        raise EvaluationError(
            f"the gold cache {gold_dir.name} has no entry {task_id!r}",
            code="cache_missing",
            hint="Build the gold of this task, or name the cache that has it.",
        )
    folder = entry_folder(gold_dir, manifest.evaluator, task_id)
    files = {name: _checked(folder, name, digest) for name, digest in sorted(pinned.files.items())}
    missing = sorted(set(ENTRY_FILES) - set(files))
    if missing:
        raise _unusable(f"the gold of {task_id!r} does not list {', '.join(missing)}")
    if entry_digest(pinned.files) != pinned.entry_sha256:
        raise EvaluationError(
            f"the digest of the gold of {task_id!r} does not fit its files", code="cache_checksum", hint=_RESTORE
        )
    try:
        entry = parse_record(files["entry.json"], Entry, source=f"entry.json of {task_id}")
        metadata = parse_metadata(files["metadata.json"], source=f"metadata.json of {task_id}")
    except BenchError as error:
        raise EvaluationError(error.message, code="cache_schema", hint=_RESTORE) from error
    demand_usable(task_id, manifest.evaluator, pinned, entry, metadata)
    return GoldEntry(entry, metadata, files["render.png"], pinned.entry_sha256)


def entry_folder(gold_dir: Path, evaluator: PinnedEvaluator, task_id: str) -> Path:
    """Where the files of one entry stand."""
    return gold_dir / f"{evaluator.name}-{evaluator.version}" / task_id


def _checked(folder: Path, name: str, digest: FileDigest) -> bytes:
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EvaluationError(
            f"cannot read {path}: {error.strerror or error}", code="cache_missing", hint=_RESTORE
        ) from error
    if len(content) != digest.size_bytes or hashlib.sha256(content).hexdigest() != digest.sha256:
        raise EvaluationError(f"{path} is not the file that the manifest pins", code="cache_checksum", hint=_RESTORE)
    return content


def demand_usable(
    task_id: str, evaluator: PinnedEvaluator, pinned: ManifestEntry, entry: Entry, metadata: Metadata
) -> None:
    """Raises `EvaluationError` (`cache_schema`) unless all parts of one entry agree and can serve its profile."""
    made_by = (metadata.evaluator.name, metadata.evaluator.version)
    if made_by != (evaluator.name, evaluator.version):
        raise _unusable(f"the facts of {task_id!r} were made by {' '.join(made_by)}")
    told = (pinned.schema_version, pinned.profile, pinned.placement, task_id)
    if told != (metadata.schema_version, entry.profile, entry.placement, entry.task_id):
        raise _unusable(f"manifest and entry of {task_id!r} do not agree")
    if entry.profile == "3d" and metadata.schema_version < 4:
        raise _unusable(f"profile 3d needs schema 4, the gold of {task_id!r} has {metadata.schema_version}")
    physical = metadata.physical_extents_3d
    if entry.profile == "3d" and (physical is None or not physical.bodies):
        # Without its core component a score would look like a good one.
        raise _unusable(f"profile 3d needs a body, the gold of {task_id!r} has none")
    if entry.profile != "2d" and physical is not None and physical.unsupported:
        raise _unusable(f"the gold of {task_id!r} has bodies that its evaluator cannot measure")
    if metadata.status != "ok":
        raise _unusable(f"the gold of {task_id!r} is an invalid drawing")


def _unusable(message: str) -> EvaluationError:
    hint = "Build the gold again with an evaluator that writes the schema that this task needs."
    return EvaluationError(message, code="cache_schema", hint=hint)
