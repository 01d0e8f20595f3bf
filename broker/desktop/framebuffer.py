"""Reads the X server's framebuffer file: pixels as they are on the screen, with the mouse pointer."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

import xxhash

from broker.refusal import Refusal
from contract.broker_api import ErrorCode

# Offsets in 32-bit words of the XWD header (X11/XWDFile.h).
_HEADER_SIZE: Final = 0
_PIXMAP_WIDTH: Final = 4
_PIXMAP_HEIGHT: Final = 5
_BITS_PER_PIXEL: Final = 11
_BYTES_PER_LINE: Final = 12
_COLORS: Final = 19
_XWD_COLOR_BYTES: Final = 12
_HEADER_WORDS: Final = 25


class Framebuffer:
    """The mapped screen of one X server: 4 bytes a pixel, blue first. `pixels` changes while the screen does."""

    def __init__(self, path: Path) -> None:
        """Map the file that Xvfb made for `-fbdir`. Raises `Refusal` when it is of another shape."""
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        words = struct.unpack_from(f">{_HEADER_WORDS}I", self._map)
        self.width_px: int = words[_PIXMAP_WIDTH]
        self.height_px: int = words[_PIXMAP_HEIGHT]
        if words[_BITS_PER_PIXEL] != 32 or words[_BYTES_PER_LINE] != self.width_px * 4:
            raise Refusal(
                ErrorCode.RESET_FAILED,
                f"the X server draws {words[_BITS_PER_PIXEL]} bits a pixel, not 32",
                hint="Use the Xvfb of Debian's package xvfb.",
            )
        start = words[_HEADER_SIZE] + words[_COLORS] * _XWD_COLOR_BYTES
        self.pixels = memoryview(self._map)[start : start + self.width_px * self.height_px * 4]

    def digest(self) -> int:
        """A 64-bit hash of what is on the screen now."""
        return xxhash.xxh3_64_intdigest(self.pixels)

    def close(self) -> None:
        """Unmap the file."""
        self.pixels.release()
        self._map.close()
