"""Reads canonical renders and tells ink from paper."""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contract.errors import EvaluationError
from evaluator_client.tolerances import Array

INK_GREY_MAX: Final = 222

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


def distance_to(ink: Mask) -> Array:
    """For each pixel, the distance in pixels to the nearest ink; infinite without any."""
    if not ink.any():
        return np.full(ink.shape, np.inf)
    from scipy.ndimage import distance_transform_edt

    distance: Array = distance_transform_edt(~ink)
    return distance
