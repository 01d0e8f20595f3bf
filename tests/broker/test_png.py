"""The band encoder: pixels come out as they went in, and equal pictures give equal bytes."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from broker.desktop.png import BandEncoder


def noise(seed: int, *, width_px: int, height_px: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """Random pixels, blue first."""
    return np.random.default_rng(seed).integers(0, 256, (height_px, width_px, 4), dtype=np.uint8)


def test_every_pixel_survives_also_of_a_last_band_that_is_shorter() -> None:
    """PNG readers check the joined checksum, so a wrong one fails here too."""
    pixels = noise(1, width_px=64, height_px=101)

    encoded = BandEncoder(width_px=64, height_px=101).encode(pixels.data.cast("B"))
    decoded = np.asarray(Image.open(io.BytesIO(encoded.png)))

    assert np.array_equal(pixels[..., 2::-1], decoded)


def test_the_cache_does_not_show_in_the_bytes() -> None:
    """A frame's checksum must not depend on which frames came before it."""
    pixels = noise(2, width_px=1920, height_px=1080)
    used = BandEncoder(width_px=1920, height_px=1080)
    for step in range(3):
        pixels[step * 100, step] = 0
        latest = used.encode(pixels.data.cast("B"))

    assert BandEncoder(width_px=1920, height_px=1080).encode(pixels.data.cast("B")) == latest


def test_lit_pixels_are_counted() -> None:
    """A black frame is told from a drawing on black ground by this number; the fourth byte is no colour."""
    pixels = np.zeros((80, 100, 4), np.uint8)
    pixels[..., 3] = 255
    pixels[3, 4] = (0, 1, 0, 0)

    assert BandEncoder(width_px=100, height_px=80).encode(pixels.data.cast("B")).lit_pixels == 1
