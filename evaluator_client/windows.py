"""The part of a gold's sheet that canonical renders show (scoring contract, section 4)."""

from __future__ import annotations

from typing import Final

from contract.metadata import Metadata

RENDER_SIZE_PX: Final = (1600, 1200)
# Left free on each side of the drawing, as a share of it: room for dimension texts, and for strokes that are too long.
_MARGIN_SHARE: Final = 0.1

Window = tuple[float, float, float, float]


def window_of(gold: Metadata) -> Window:
    """The visible gold with a margin, in the proportions of the picture: xmin, ymin, xmax, ymax in drawing units."""
    box = gold.extents.visible
    assert box is not None, "a gold has something visible"
    (left, low, _), (right, high, _) = box.min, box.max
    width, height = (right - left) * (1 + 2 * _MARGIN_SHARE), (high - low) * (1 + 2 * _MARGIN_SHARE)
    aspect = RENDER_SIZE_PX[0] / RENDER_SIZE_PX[1]
    # A single point has no size of its own.
    width, height = (width, height) if width or height else (aspect, 1.0)
    width, height = max(width, height * aspect), max(height, width / aspect)
    x, y = (left + right) / 2, (low + high) / 2
    sides = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return tuple(round(side, 6) for side in sides)  # type: ignore[return-value]  # four of them
