"""Time and chance, handed in, so that a test can play a day of waiting in a tenth of a second."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import anyio


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Ambient:
    """Time and chance. Production takes the defaults; a test hands in its own.

    Durations are differences of `elapsed_s`, records are stamped with `utc_now`; the two are never mixed.
    """

    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    elapsed_s: Callable[[], float] = time.monotonic
    utc_now: Callable[[], datetime] = _utc_now
    chance: random.Random = field(default_factory=random.Random)
