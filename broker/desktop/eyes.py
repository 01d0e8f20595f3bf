"""What is on the screen: whether it changes, how it looks, and what is to be thought of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.desktop.framebuffer import Framebuffer
from broker.desktop.png import BandEncoder
from broker.frame import Frame, frame_of
from contract.actions import SCREEN_HEIGHT_PX, SCREEN_WIDTH_PX
from contract.broker_api import Verdict

# Measured: 30 ms without a change after the barriers; anything shorter missed late repaints.
QUIET_S: Final = 0.03
HASH_EVERY_S: Final = 0.008
# The pointer alone is some 200 pixels; any CAD window lights hundreds of thousands.
BLACK_LIT_PIXELS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Settled:
    """Whether the screen came to rest in time, and how long that took."""

    is_quiet: bool
    took_s: float


class Eyes:
    """Look at one framebuffer. Used by one thread."""

    def __init__(self, framebuffer: Framebuffer) -> None:
        self._framebuffer = framebuffer
        self._encoder = BandEncoder(width_px=framebuffer.width_px, height_px=framebuffer.height_px)

    def digest(self) -> int:
        """A hash of what is on the screen now."""
        return self._framebuffer.digest()

    def wait_quiet(self, *, deadline: float, doze: Callable[[float], object]) -> int | None:
        """The hash of a screen that did not change for 30 ms; None when it still changed at the deadline.

        `deadline` is on the monotonic clock; `doze` lets so many seconds pass, or fewer when something has died.
        """
        digest = self.digest()
        quiet_since = time.monotonic()
        while (now := time.monotonic()) - quiet_since < QUIET_S:
            if now > deadline:
                return None
            doze(min(QUIET_S - (now - quiet_since), HASH_EVERY_S))
            latest = self.digest()
            if latest != digest:
                digest, quiet_since = latest, time.monotonic()
        return digest

    def look(self, settled: Settled, *, has_dialog: bool) -> Frame:
        """The screen as a PNG, with a verdict."""
        size_px = (self._framebuffer.width_px, self._framebuffer.height_px)
        # A copy, because the screen may change while it is encoded.
        encoded = self._encoder.encode(memoryview(bytes(self._framebuffer.pixels)))
        if size_px != (SCREEN_WIDTH_PX, SCREEN_HEIGHT_PX):
            verdict = Verdict.WRONG_SIZE
        elif encoded.lit_pixels <= BLACK_LIT_PIXELS_MAX:
            verdict = Verdict.BLACK
        elif not settled.is_quiet:
            verdict = Verdict.UNSETTLED
        else:
            verdict = Verdict.MODAL if has_dialog else Verdict.OK
        return frame_of(
            encoded.png, width_px=size_px[0], height_px=size_px[1], verdict=verdict, settle_s=settled.took_s
        )
