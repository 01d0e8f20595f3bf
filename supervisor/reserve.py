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


# Whoever plays still writes frames into what is given back, until a write of its own is refused; so it is given back
# in slices, each with room for a result and for the state of some hundred rollouts.
SLICE_BYTES: Final = 64 * 1024


class ReservingBridge:
    """Does disk work over `bridge`. What the disk refuses is tried again with a slice of the reserve given back."""

    def __init__(self, bridge: Bridge, reserve: Path) -> None:
        self._bridge = bridge
        self._reserve = reserve
        self._slices_given = 0

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work`, again after each slice. Raises `DiskError` when even the last did not help."""
        while True:
            given_before = self._slices_given
            try:
                return await self._bridge.call(work)
            except DiskError:
                # What another refused write gave back meanwhile may be enough for this one too.
                if self._slices_given == given_before and not self._give_slice():
                    raise

    def _give_slice(self) -> bool:
        try:
            left = max(0, self._reserve.stat().st_size - SLICE_BYTES)
            os.truncate(self._reserve, left)
            if left == 0:
                self._reserve.unlink()
        except OSError:
            return False
        self._slices_given += 1
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
