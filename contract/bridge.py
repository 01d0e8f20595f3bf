"""How blocking work leaves the event loop: each kind crosses a bridge with a bound of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class Bridge(Protocol):
    """Carries one blocking call somewhere else and brings its result back."""

    def call(self, work: Callable[[], T]) -> Awaitable[T]: ...


class ThreadBridge:
    """At most `threads_max` calls at once, each on a worker thread.

    `is_abandonable`: a cancelled caller goes on at once and the thread is left to end by itself, which is right for
    calls with a deadline of their own (HTTP) and wrong for writes to disk.
    """

    def __init__(self, threads_max: int, *, is_abandonable: bool = False) -> None:
        self._threads_max = threads_max
        self._limiter: anyio.CapacityLimiter | None = None
        self._is_abandonable = is_abandonable

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread. Its exception is raised here."""
        if self._limiter is None:
            # A limiter belongs to the event loop that it was made in, and a bridge may be made before any runs.
            self._limiter = anyio.CapacityLimiter(self._threads_max)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=self._is_abandonable)
