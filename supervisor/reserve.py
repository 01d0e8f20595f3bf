"""Space on the output disk, kept for the moment when there is none left: the ends must be recorded even then."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from contract.bridge import Bridge
from contract.errors import DiskError

T = TypeVar("T")

# Results and rows of some hundred rollouts take about 2 KB each, and the state is written twice for a moment.
RESERVE_BYTES: Final = 2 * 1024 * 1024


class ReservingBridge:
    """Does disk work over `bridge`. The first write that the disk refuses gives the reserve back and is tried again."""

    def __init__(self, bridge: Bridge, reserve: Path) -> None:
        self._bridge = bridge
        self._reserve = reserve
        self._is_spent = False

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work`, twice if need be. Raises `DiskError` when even that did not help."""
        had_reserve = not self._is_spent
        try:
            return await self._bridge.call(work)
        except DiskError:
            # Of several that are refused at once one gives the room back, and all of them have it.
            if not had_reserve or not self._spend():
                raise
        return await self._bridge.call(work)

    def _spend(self) -> bool:
        if not self._is_spent:
            try:
                self._reserve.unlink()
            except OSError:
                return False
            self._is_spent = True
        return True


@contextmanager
def reserved(path: Path) -> Iterator[None]:
    """Keep the reserve inside of the block. On a disk that has no room for it there is none, and that is no error."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
