"""`overlay.png`: for people. The gold on the left, the candidate on the right, each with what the other lacks.

Left, red ink is what the candidate has nothing for; right, blue ink is what the gold has nothing for. Ink, tolerance
and colours are those of `diff.png`. It is made beside the score and decides nothing.
"""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator_client.diff import BLUE, GREY, RED, TOLERANCE_PX
from evaluator_client.renders import Mask
from evaluator_client.tolerances import Array

_WHITE, _GREY, _RED, _BLUE, _LINE = range(5)
_PALETTE: Final = [(255, 255, 255), GREY, RED, BLUE, (0xBB, 0xBB, 0xBB)]
_CAPTION_PX: Final = 24
_GAP_PX: Final = 2
# Two large pictures of mostly paper: more effort would save little and cost more than all other pictures together.
_PNG_LEVEL: Final = 1


def overlay_png(gold: Mask, candidate: Mask, *, from_gold: Array, from_candidate: Array) -> bytes:
    """8-bit palette, both pictures in full size below a caption. Distances as in `diff_png`."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = gold.shape
    sheet = np.full((height + _CAPTION_PX, 2 * width + _GAP_PX), _WHITE, dtype=np.uint8)
    sheet[:, width : width + _GAP_PX] = _LINE
    sheet[_CAPTION_PX - 1] = _LINE
    sheet[_CAPTION_PX:, :width] = _marked(gold, from_gold, _RED)
    sheet[_CAPTION_PX:, width + _GAP_PX :] = _marked(candidate, from_candidate, _BLUE)
    picture = Image.fromarray(sheet, "P")
    picture.putpalette([part for colour in _PALETTE for part in colour])
    pen = ImageDraw.Draw(picture)
    # A bitmap font that comes with the library: the same picture wherever it is made.
    font = ImageFont.load_default_imagefont()
    for x, caption in (
        (0, _caption("gold", from_gold, "missing in the candidate")),
        (width + _GAP_PX, _caption("candidate", from_candidate, "not in the gold")),
    ):
        pen.text((x + 6, 6), caption, fill=_GREY, font=font)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def _marked(ink: Mask, distance: Array, colour: int) -> NDArray[np.uint8]:
    panel = np.full(ink.shape, _WHITE, dtype=np.uint8)
    panel[ink] = np.where(distance > TOLERANCE_PX, colour, _GREY)
    return panel


def _caption(whose: str, distance: Array, what: str) -> str:
    if not len(distance):
        return f"{whose}: no ink"
    share = float((distance > TOLERANCE_PX).mean())
    return f"{whose}: {share:.1%} of its ink is {what}"
