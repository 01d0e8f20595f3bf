"""How wide texts are, and their glyphs as pixels: one font for everything, whatever the drawing asks for."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from broker.evaluator.settings import CAP_HEIGHT_EM, FONT, FONT_SIZE_PX

# Longer lines are measured by their beginning: only a hostile drawing has them.
_MEASURED_CHARS_MAX: Final = 2_000
_GLYPH_PIXELS_MAX: Final = 8_000_000


@lru_cache(maxsize=64)
def _font(size_px: int) -> ImageFont.FreeTypeFont:
    # The basic layout needs no shaping library, whose version would change the pixels.
    return ImageFont.truetype(str(FONT), size_px, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=4096)
def line_width(line: str) -> float:
    """Width of one line in multiples of its text height (the height of a capital letter)."""
    measured = line[:_MEASURED_CHARS_MAX]
    if not measured:
        return 0.0
    width_em = _font(FONT_SIZE_PX).getlength(measured) / FONT_SIZE_PX
    return width_em / CAP_HEIGHT_EM * (len(line) / len(measured))


def line_mask(line: str, *, height_px: float, width_factor: float) -> Image.Image | None:
    """White glyphs on black, capital letters in the vertical middle; None when too small or too large to draw."""
    size_px = round(height_px / CAP_HEIGHT_EM)
    if size_px < 3 or not line.strip():
        return None
    tall_px = 2 * size_px
    if len(line) * size_px * tall_px > _GLYPH_PIXELS_MAX or len(line) > _MEASURED_CHARS_MAX:
        return None
    # Hinting widens small glyphs, so the width at this size counts, and not the scaled one.
    width_px = max(1, math.ceil(_font(size_px).getlength(line)))
    mask = Image.new("L", (width_px, tall_px), 0)
    base_px = round(tall_px / 2 + height_px / 2)
    ImageDraw.Draw(mask).text((0, base_px), line, fill=255, font=_font(size_px), anchor="ls")
    if width_factor != 1.0:
        mask = mask.resize((max(1, min(16_000, round(width_px * width_factor))), tall_px), Image.Resampling.BILINEAR)
    return mask
