"""Marks a start drawing as the gold itself, so that opening and saving it is no untouched task.

A gold is made on a host as a candidate is: the drawing is opened, saved, exported and rendered. Only one rule must not
hold there, that a drawing equal to the start drawing is worth nothing. The mark stands in the start drawing, which the
controller sends and no model can change.
"""

from __future__ import annotations

from typing import Final

# A comment of a DXF file (DXF reference, group 999); every reader steps over it.
_MARK: Final = b"999\nautocad-bench: the start drawing is the gold\n"


def mark_gold(drawing: bytes) -> bytes:
    """The DXF drawing with the mark before everything else."""
    return drawing if is_marked_gold(drawing) else _MARK + drawing


def is_marked_gold(drawing: bytes) -> bool:
    """Whether these bytes begin with the mark."""
    return drawing.startswith(_MARK)
