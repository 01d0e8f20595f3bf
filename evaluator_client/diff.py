"""`diff.png`: what is missing in red, what is extra in blue, the rest in grey (scoring contract, section 9)."""

from __future__ import annotations

import io
from typing import Final

import numpy as np

from evaluator_client.renders import Mask
from evaluator_client.tolerances import Array

TOLERANCE_PX: Final = 2.0
_WHITE: Final = (0xFF, 0xFF, 0xFF)
GREY: Final = (0x44, 0x44, 0x44)
RED: Final = (0xD6, 0x27, 0x28)
BLUE: Final = (0x1F, 0x77, 0xB4)


def diff_png(gold: Mask, candidate: Mask, *, from_gold: Array, from_candidate: Array) -> bytes:
    """8-bit RGB, of the renders' size, without metadata. Distances as in `compare_ink`."""
    from PIL import Image

    picture = np.zeros(gold.shape, dtype=np.uint8)
    picture[gold | candidate] = 1
    for ink, distance, colour in ((gold, from_gold, 2), (candidate, from_candidate, 3)):
        places = np.flatnonzero(ink)
        picture.ravel()[places[distance > TOLERANCE_PX]] = colour
    # Painted in one byte a pixel, which is a third of the work.
    image = Image.fromarray(picture, "P")
    image.putpalette([part for shade in (_WHITE, GREY, RED, BLUE) for part in shade])
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()
