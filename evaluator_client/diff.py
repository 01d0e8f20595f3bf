"""`diff.png`: what is missing in red, what is extra in blue, the rest in grey (scoring contract, section 9)."""

from __future__ import annotations

import io
from typing import Final

import numpy as np

from evaluator_client.renders import Mask
from evaluator_client.tolerances import Array

TOLERANCE_PX: Final = 2.0
GREY: Final = (0x44, 0x44, 0x44)
RED: Final = (0xD6, 0x27, 0x28)
BLUE: Final = (0x1F, 0x77, 0xB4)


def diff_png(gold: Mask, candidate: Mask, *, from_gold: Array, from_candidate: Array) -> bytes:
    """8-bit RGB, of the renders' size, without metadata. Distances as in `compare_ink`."""
    from PIL import Image

    picture = np.full((*gold.shape, 3), 255, dtype=np.uint8)
    picture[gold | candidate] = GREY
    for ink, distance, colour in ((gold, from_gold, RED), (candidate, from_candidate, BLUE)):
        alone = np.zeros_like(ink)
        alone[ink] = distance > TOLERANCE_PX
        picture[alone] = colour
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()
