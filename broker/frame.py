"""One screenshot in the broker's memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from contract.broker_api import FrameInfo, Verdict


@dataclass(frozen=True, slots=True)
class Frame:
    """A PNG, its SHA-256 (hex), its size in pixels, and what the driver thinks of it.

    `settle_s` is how long the screen took to come to rest.
    """

    png: bytes
    sha256: str
    width_px: int
    height_px: int
    verdict: Verdict
    settle_s: float

    def info(self, sequence: int) -> FrameInfo:
        """What the wire and the receipt say about this frame."""
        return FrameInfo(
            sequence=sequence,
            sha256=self.sha256,
            size_bytes=len(self.png),
            width_px=self.width_px,
            height_px=self.height_px,
            verdict=self.verdict,
            settle_s=round(self.settle_s, 6),
        )


def frame_of(png: bytes, *, width_px: int, height_px: int, verdict: Verdict, settle_s: float) -> Frame:
    """Make a frame of an encoded screenshot."""
    return Frame(
        png=png,
        sha256=hashlib.sha256(png).hexdigest(),
        width_px=width_px,
        height_px=height_px,
        verdict=verdict,
        settle_s=settle_s,
    )
