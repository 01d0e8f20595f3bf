"""Compares any two drawings without a run: facts and renders of both, the score, and the pictures of what differs.

OUT/gold/metadata.json, gold/render.png     the reference
OUT/metadata.json, render.png               the candidate
OUT/score.json, diff.png, overlay.png       as in the evaluation folder of a rollout
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from contract.gold import Placement, Profile
from contract.run_dir import EvaluationDir
from evaluator_client.collector import parse_metadata
from evaluator_client.gold import GoldEntry
from evaluator_client.gold_writer import demand_self_check, draft_entry, gold_window
from evaluator_client.score import ScoredDrawing, placement_offset, score_drawing
from evaluator_client.windows import RENDER_SIZE_PX, Window

_NO_OFFSET = (0.0, 0.0, 0.0)


class DrawingReader(Protocol):
    """A trusted evaluator on this machine. Both calls raise a `BenchError` when it fails; both write `out`."""

    def export(self, *, drawing: Path, start_drawing: Path | None, out: Path) -> None:
        """Write the drawing's `metadata.json`; a drawing at fault has one too."""
        ...

    def render(
        self,
        *,
        drawing: Path,
        window: Window,
        size_px: tuple[int, int],
        offset: tuple[float, float, float],
        out: Path,
    ) -> None:
        """Write the canonical render of a valid drawing."""
        ...


def compare_pair(
    reader: DrawingReader,
    *,
    gold: Path,
    candidate: Path,
    profile: Profile,
    placement: Placement,
    out: Path,
    has_render: bool = True,
) -> ScoredDrawing:
    """Score one drawing against another; everything that was made stands in the folder `out`.

    Raises `EvaluationError` when the gold cannot be one (`gold_invalid`, `gold_self_check`, `cache_schema`) and when
    the candidate cannot be evaluated. A candidate at fault has a score of zeros.
    """
    entry = gold_of(
        reader,
        task_id=gold.stem,
        drawing=gold,
        profile=profile,
        placement=placement,
        folder=out / "gold",
        has_render=has_render,
    )
    return score_file(reader, drawing=candidate, gold=entry, folder=out, has_render=has_render)


def gold_of(
    reader: DrawingReader,
    *,
    task_id: str,
    drawing: Path,
    profile: Profile,
    placement: Placement,
    folder: Path,
    has_render: bool,
) -> GoldEntry:
    """The entry that a gold cache would hold for this drawing; its facts and render stay in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    evaluation = EvaluationDir(folder)
    reader.export(drawing=drawing, start_drawing=None, out=evaluation.metadata)
    content = evaluation.metadata.read_bytes()
    window = gold_window(content, what=f"the gold {drawing}")
    if has_render:
        reader.render(drawing=drawing, window=window, size_px=RENDER_SIZE_PX, offset=_NO_OFFSET, out=evaluation.render)
    draft = draft_entry(
        task_id=task_id,
        profile=profile,
        placement=placement,
        metadata_json=content,
        render_png=evaluation.render.read_bytes() if has_render else b"",
        window=window,
        size_px=RENDER_SIZE_PX,
    )
    demand_self_check(draft.gold)
    return draft.gold


def score_file(
    reader: DrawingReader, *, drawing: Path, gold: GoldEntry, folder: Path, has_render: bool
) -> ScoredDrawing:
    """Score the drawing in one file, by the same steps as a rollout's."""
    folder.mkdir(parents=True, exist_ok=True)
    evaluation = EvaluationDir(folder)
    reader.export(drawing=drawing, start_drawing=None, out=evaluation.metadata)
    content = evaluation.metadata.read_bytes()
    metadata = parse_metadata(content, source=str(evaluation.metadata))
    digest = hashlib.sha256(content).hexdigest()
    scored = score_drawing(candidate=metadata, render=None, gold=gold, candidate_sha256=digest)
    if scored.score.valid and has_render:
        offset = placement_offset(metadata, gold)
        reader.render(drawing=drawing, window=gold.window, size_px=gold.size_px, offset=offset, out=evaluation.render)
        render = evaluation.render.read_bytes()
        scored = score_drawing(candidate=metadata, render=render, gold=gold, candidate_sha256=digest)
    evaluation.score.write_bytes(scored.score_json)
    if scored.pictures is not None:
        evaluation.diff.write_bytes(scored.pictures.diff_png)
        evaluation.overlay.write_bytes(scored.pictures.overlay_png)
    return scored
