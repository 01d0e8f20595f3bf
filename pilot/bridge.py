"""Bounded thread bridges: how blocking calls leave the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

# One process plays one rollout, whose calls never overlap; two leaves room for a call that was abandoned.
THREADS_OF_ONE_ROLLOUT: Final = 2


class ThreadBridge:
    """Runs blocking work in a thread, at most as many at a time as its limiter has tokens.

    With `is_abandonable`, a cancelled caller leaves at once and the thread ends by itself; without, it waits, so
    that a write is never left half done.
    """

    def __init__(self, limiter: CapacityLimiter, *, is_abandonable: bool) -> None:
        self._limiter = limiter
        self._is_abandonable = is_abandonable

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return what it returns, or raise what it raises."""
        return await to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=self._is_abandonable)


@dataclass(frozen=True, slots=True)
class Threads:
    """The bounds of the two bridges. Rollouts that share a process share these, so that they are bounded together."""

    broker: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(THREADS_OF_ONE_ROLLOUT))
    disk: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(THREADS_OF_ONE_ROLLOUT))
