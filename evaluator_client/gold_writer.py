"""Writes gold entries, each only when it passes its self check (scoring contract, section 5, rule 3)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from contract.errors import EvaluationError
from contract.gold import (
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
from contract.records import dump_pretty, replace_file
from evaluator_client.collector import parse_metadata
from evaluator_client.combine import SCORE_VERSION
from evaluator_client.gold import MANIFEST_NAME, GoldEntry, demand_usable, entry_folder, read_manifest
from evaluator_client.score import score_drawing
from evaluator_client.windows import Window, window_of


def gold_window(metadata_json: bytes, *, what: str) -> Window:
    """What the canonical render of a gold with these facts shows; `what` is how an error names the drawing.

    Raises `EvaluationError` (`gold_invalid`) for a drawing that no gold can be made of, `StateError` for facts of
    another shape.
    """
    metadata = parse_metadata(metadata_json, source=f"metadata.json of {what}")
    if metadata.invalid is not None:
        raise EvaluationError(
            f"{what} is no usable drawing: {metadata.invalid.message} ({metadata.invalid.code})",
            code="gold_invalid",
            hint="Name a drawing that can be opened and has something visible in model space.",
        )
    return window_of(metadata)


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
    draft = draft_entry(
        task_id=task_id,
        profile=profile,
        placement=placement,
        metadata_json=metadata_json,
        render_png=render_png,
        window=window,
        size_px=size_px,
        tolerances=tolerances,
        reference_png=reference_png,
    )
    evaluator = draft.evaluator
    manifest = _manifest_for(gold_dir, evaluator)
    known = manifest.entries.get(task_id)
    if known is not None and known != draft.pinned:
        raise EvaluationError(
            f"the gold of {task_id!r} stands already and is another",
            code="gold_exists",
            hint="Build into a new cache folder; an old cache stays readable for scoring again.",
        )
    demand_self_check(draft.gold)
    folder = entry_folder(gold_dir, evaluator, task_id)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in draft.contents.items():
        replace_file(folder / name, content)
    replace_file(
        gold_dir / MANIFEST_NAME,
        dump_pretty(manifest.model_copy(update={"entries": {**manifest.entries, task_id: draft.pinned}})),
    )
    return draft.gold


@dataclass(frozen=True, slots=True)
class Draft:
    """A gold entry before anything is written."""

    gold: GoldEntry
    evaluator: PinnedEvaluator
    pinned: ManifestEntry
    contents: dict[str, bytes]


def draft_entry(
    *,
    task_id: str,
    profile: Profile,
    placement: Placement,
    metadata_json: bytes,
    render_png: bytes,
    window: tuple[float, float, float, float],
    size_px: tuple[int, int],
    tolerances: GoldTolerances | None = None,
    reference_png: bytes = b"",
) -> Draft:
    """Put an entry together. Raises `EvaluationError` (`cache_schema`) when the facts cannot serve the profile."""
    metadata = parse_metadata(metadata_json, source="metadata.json of the gold")
    made_by = metadata.evaluator
    evaluator = PinnedEvaluator(name=made_by.name, version=made_by.version, config_sha256=made_by.config_sha256)
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
    demand_usable(task_id, evaluator, pinned, entry, metadata)
    return Draft(GoldEntry(entry, metadata, render_png, pinned.entry_sha256), evaluator, pinned, contents)


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


def demand_self_check(gold: GoldEntry) -> None:
    """Raises `EvaluationError` (`gold_self_check`) unless the gold scores exactly 1 against itself.

    A gold without a render is checked without.
    """
    score = score_drawing(candidate=gold.metadata, render=gold.render or None, gold=gold).score
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
