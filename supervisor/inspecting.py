"""Looks at an archived `attempt.dwg` on a machine without AutoCAD. What comes of it decides nothing.

<evaluation>/inspected/0001/metadata.json, render.png     what this machine's reader makes of the drawing
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contract.errors import BenchError
from contract.metadata import Metadata
from contract.run_dir import EvaluationDir, RunDir
from evaluator_client.collector import parse_metadata
from evaluator_client.windows import RENDER_SIZE_PX, window_of
from supervisor.scoring import is_dwg, local_evaluator

_NO_OFFSET: Final = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Inspection:
    """Where it stands and one line for people; without a folder the line says why there is nothing."""

    folder: Path | None
    summary: str


def inspect_attempt(run_dir: RunDir) -> Inspection | None:
    """Read a rollout's `attempt.dwg` once more, beside its evaluation; null when it has none. Never raises for it."""
    drawing = run_dir.attempt("dwg")
    if not is_dwg(drawing):
        return None
    folder = _next_folder(run_dir.evaluation)
    try:
        folder.root.mkdir(parents=True)
        return Inspection(folder.root, _inspected(drawing, folder))
    except (BenchError, OSError) as error:
        return Inspection(None, f"{drawing.name} could not be looked at: {error}")


def _inspected(drawing: Path, folder: EvaluationDir) -> str:
    with local_evaluator({}, is_inspection=True) as reader:
        reader.export(drawing=drawing, start_drawing=None, out=folder.metadata)
        metadata = parse_metadata(folder.metadata.read_bytes(), source=str(folder.metadata))
        if metadata.invalid is not None:
            return f"{drawing.name} cannot be read here: {metadata.invalid.message}"
        reader.render(
            drawing=drawing,
            window=window_of(metadata),
            size_px=RENDER_SIZE_PX,
            offset=_NO_OFFSET,
            out=folder.render,
        )
    return f"{drawing.name} was read to be looked at, not to be scored: {_counted(metadata)}"


def _counted(metadata: Metadata) -> str:
    kinds = Counter(entity.kind for entity in metadata.entities)
    unread = sum(warning.code == "dwg_unread" for warning in metadata.warnings)
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"
    return f"{found}; {unread} could not be read" if unread else found


def _next_folder(evaluation: EvaluationDir) -> EvaluationDir:
    number = 1
    while (folder := evaluation.root / "inspected" / f"{number:04d}").exists():
        number += 1
    return EvaluationDir(folder)
