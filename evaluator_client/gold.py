"""The gold cache: read with every checksum verified, written only with a self check (scoring contract, section 5)."""

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
    GoldTolerances,
    Manifest,
    ManifestEntry,
    PinnedEvaluator,
    Placement,
    Profile,
    SelfCheck,
    entry_digest,
)
from contract.metadata import Metadata
from contract.records import dump_pretty, parse_record, replace_file
from evaluator_client.combine import SCORE_VERSION

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
    except OSError as error:
        raise EvaluationError(
            f"cannot read {path}: {error.strerror or error}",
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
        metadata = parse_record(files["metadata.json"], Metadata, source=f"metadata.json of {task_id}")
    except BenchError as error:
        raise EvaluationError(error.message, code="cache_schema", hint=_RESTORE) from error
    _demand_usable(task_id, manifest, pinned, entry, metadata)
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


def _demand_usable(task_id: str, manifest: Manifest, pinned: ManifestEntry, entry: Entry, metadata: Metadata) -> None:
    made_by = (metadata.evaluator.name, metadata.evaluator.version)
    if made_by != (manifest.evaluator.name, manifest.evaluator.version):
        raise _unusable(f"the facts of {task_id!r} were made by {' '.join(made_by)}")
    told = (pinned.schema_version, pinned.profile, pinned.placement, task_id)
    if told != (metadata.schema_version, entry.profile, entry.placement, entry.task_id):
        raise _unusable(f"manifest and entry of {task_id!r} do not agree")
    if entry.profile == "3d" and metadata.schema_version < 4:
        raise _unusable(f"profile 3d needs schema 4, the gold of {task_id!r} has {metadata.schema_version}")
    if metadata.status != "ok":
        raise _unusable(f"the gold of {task_id!r} is an invalid drawing")


def _unusable(message: str) -> EvaluationError:
    hint = "Build the gold again with an evaluator that writes the schema that this task needs."
    return EvaluationError(message, code="cache_schema", hint=hint)


def write_entry(
    gold_dir: Path,
    *,
    task_id: str,
    profile: Profile,
    placement: Placement,
    metadata_json: bytes,
    render_png: bytes,
    reference_png: bytes,
    window: tuple[float, float, float, float],
    size_px: tuple[int, int],
    tolerances: GoldTolerances | None = None,
) -> GoldEntry:
    """Add one entry to a cache, and make its manifest when it is the first.

    The gold is refused (`EvaluationError` `gold_self_check`) unless it scores exactly 1 against itself in every
    component that applies. An entry that stands is never changed (`gold_exists`).
    """
    metadata = parse_record(metadata_json, Metadata, source="metadata.json of the gold")
    made_by = metadata.evaluator
    evaluator = PinnedEvaluator(name=made_by.name, version=made_by.version, config_sha256=made_by.config_sha256)
    manifest = _manifest_for(gold_dir, evaluator)
    entry = Entry(
        task_id=task_id,
        profile=profile,
        placement=placement,
        window=window,
        size_px=size_px,
        tolerances=tolerances,
        self_check=SelfCheck(deterministic=1.0, blank="invalid"),
    )
    contents = {
        "entry.json": dump_pretty(entry),
        "metadata.json": metadata_json,
        "render.png": render_png,
        "reference.png": reference_png,
    }
    digests = {
        name: FileDigest(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        for name, content in contents.items()
    }
    pinned = ManifestEntry(
        schema_version=metadata.schema_version,
        profile=profile,
        placement=placement,
        files=digests,
        entry_sha256=entry_digest(digests),
    )
    gold = GoldEntry(entry, metadata, render_png, pinned.entry_sha256)
    known = manifest.entries.get(task_id)
    if known is not None and known != pinned:
        raise EvaluationError(
            f"the gold of {task_id!r} stands already and is another",
            code="gold_exists",
            hint="Build into a new cache folder; an old cache stays readable for scoring again.",
        )
    _demand_usable(task_id, manifest, pinned, entry, metadata)
    _demand_self_check(gold)
    folder = entry_folder(gold_dir, evaluator, task_id)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        replace_file(folder / name, content)
    replace_file(
        gold_dir / MANIFEST_NAME,
        dump_pretty(manifest.model_copy(update={"entries": {**manifest.entries, task_id: pinned}})),
    )
    return gold


def _manifest_for(gold_dir: Path, evaluator: PinnedEvaluator) -> Manifest:
    if not (gold_dir / MANIFEST_NAME).exists():
        return Manifest(evaluator=evaluator, score_version=SCORE_VERSION, entries={})
    manifest = read_manifest(gold_dir)
    if manifest.evaluator != evaluator:
        raise EvaluationError(
            "the gold cache was made by another evaluator or with other settings",
            code="evaluator_version_mismatch",
            hint="Build into a new cache folder.",
        )
    return manifest


def _demand_self_check(gold: GoldEntry) -> None:
    from evaluator_client.score import score_drawing

    score = score_drawing(candidate=gold.metadata, render=gold.render, gold=gold).score
    below = [name for name, part in sorted(score.components.items()) if part.applicable and part.score != 1.0]
    if score.deterministic != 1.0 or below:
        raise EvaluationError(
            f"the gold of {gold.task_id!r} scores {score.deterministic} against itself: {', '.join(below) or 'capped'}",
            code="gold_self_check",
            hint="Remove what no drawing can match (pictures, degenerate curves), then build it again.",
        )
    blank = gold.metadata.model_copy(update={"entities": [], "inserts": []})
    verdict = score_drawing(candidate=blank, render=None, gold=gold).score.invalid
    assert verdict is not None, "an empty drawing is always invalid"
