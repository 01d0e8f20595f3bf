"""The gold cache: facts and canonical renders of the gold drawings, made by the code that evaluates candidates."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from broker.evaluator.export import Facts
from broker.evaluator.render import render_flats
from contract.metadata import Metadata
from contract.records import dump_pretty
from evaluator_client.gold_writer import write_entry

# Scoring contract, section 4.
RENDER_SIZE_PX = (1600, 1200)
# Left free on each side of the drawing, as a share of it: room for dimension texts, and for strokes that are too long.
MARGIN_SHARE = 0.1

Window = tuple[float, float, float, float]


def gold_cache_files(
    golds: Mapping[str, bytes], starts: Mapping[str, bytes], references: Mapping[str, bytes]
) -> dict[PurePosixPath, bytes]:
    """The whole cache, by path from its own folder; all arguments by task.

    Raises `EvaluationError` (`gold_self_check`) for a gold that does not score 1 against itself.
    """
    with tempfile.TemporaryDirectory(prefix="autocad-bench-gold-") as scratch:
        folder = Path(scratch)
        for task_id, content in golds.items():
            facts = Facts.of(content)
            metadata = facts.metadata(starts[task_id])
            assert metadata.status == "ok", f"the gold of {task_id} is invalid: {metadata.invalid}"
            window = window_of(metadata)
            write_entry(
                folder,
                task_id=task_id,
                profile="2d",
                placement="absolute",
                metadata_json=dump_pretty(metadata),
                render_png=render_flats(facts.flats, window=window, size_px=RENDER_SIZE_PX, offset=(0.0, 0.0)),
                reference_png=references[task_id],
                window=window,
                size_px=RENDER_SIZE_PX,
            )
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {PurePosixPath(path.relative_to(folder)): path.read_bytes() for path in paths}


def window_of(metadata: Metadata) -> Window:
    """The part of the sheet that renders show: the gold with a margin, in the proportions of the picture."""
    box = metadata.extents.visible
    assert box is not None, "a gold has something visible"
    (left, low, _), (right, high, _) = box.min, box.max
    width, height = (right - left) * (1 + 2 * MARGIN_SHARE), (high - low) * (1 + 2 * MARGIN_SHARE)
    aspect = RENDER_SIZE_PX[0] / RENDER_SIZE_PX[1]
    width, height = max(width, height * aspect), max(height, width / aspect)
    x, y = (left + right) / 2, (low + high) / 2
    sides = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return tuple(round(side, 6) for side in sides)  # type: ignore[return-value]  # four of them
