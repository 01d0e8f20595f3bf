"""Reads canonical renders and tells ink from paper."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contract.errors import EvaluationError
from evaluator_client.tolerances import Array

INK_GREY_MAX: Final = 222
_LOOKED_UP_MAX: Final = 100_000

Mask = NDArray[np.bool_]


def ink_of(png: bytes, *, size_px: tuple[int, int], whose: str) -> Mask:
    """Where a render has ink, (height, width).

    Raises `EvaluationError`: `render_size_mismatch` for another size, `render_unreadable` for what is no PNG.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
            size = image.size
            # A wrong size is told before any pixel is unpacked.
            grey = np.asarray(image.convert("L")) if size == tuple(size_px) else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise EvaluationError(
            f"the {whose}'s render is no PNG: {error}", code="render_unreadable", hint="Have it rendered again."
        ) from error
    if grey is None:
        raise EvaluationError(
            f"the {whose}'s render has {size[0]}x{size[1]} pixels, not {size_px[0]}x{size_px[1]}",
            code="render_size_mismatch",
            hint="The evaluator must take the size from the gold entry.",
        )
    mask: Mask = grey <= INK_GREY_MAX
    return mask


@lru_cache(maxsize=16)
def ink_of_gold(png: bytes, *, size_px: tuple[int, int]) -> Mask:
    """Like `ink_of`, and kept for the next candidates of the same task; nobody can write to it."""
    mask = ink_of(png, size_px=size_px, whose="gold")
    mask.flags.writeable = False
    return mask


def distances(ink: Mask, other: Mask) -> Array:
    """For each ink pixel, row by row, the distance in pixels to the nearest ink of `other`; infinite without any."""
    count, other_count = int(ink.sum()), int(other.sum())
    if not count or not other_count:
        return np.full(count, np.inf)
    # Drawings are mostly paper: then looking up their ink beats a transform of every pixel.
    if max(count, other_count) <= _LOOKED_UP_MAX:
        from scipy.spatial import cKDTree

        found: Array = cKDTree(_places(other)).query(_places(ink))[0]
        return found
    from scipy.ndimage import distance_transform_edt

    transform: Array = distance_transform_edt(~other)
    return transform[ink]


def _places(ink: Mask) -> NDArray[np.int64]:
    """Row and column of each ink pixel; `argwhere` needs ten times as long for the same."""
    return np.stack(np.divmod(np.flatnonzero(ink), ink.shape[1]), axis=1)
