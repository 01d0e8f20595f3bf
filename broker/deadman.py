"""The dead-man file: until when this instance may live without another word from its controller.

A timer of the system, not of the broker, reads it and shuts the instance down when the time has passed, so that an
instance whose broker hangs, or was killed, ends too. The file is one line, unix seconds in decimal.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contract.errors import DiskError
from contract.records import Durability, replace_file

# A controller that plays makes several calls a second; the timer looks every 30 s.
FEED_PAUSE_S: Final = 10.0

_log = logging.getLogger(__name__)


class Deadman:
    """Writes the file. Any thread may call."""

    def __init__(
        self,
        path: Path,
        *,
        ends_at: float,
        unix_s: Callable[[], float] = time.time,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ends_at` (unix seconds) is when the instance ends whatever its controller says."""
        self._path = path
        self._ends_at = ends_at
        self._unix_s = unix_s
        self._elapsed_s = elapsed_s
        self._fed_at: float | None = None
        self._bound_s = 0.0
        self._lock = threading.Lock()
        self._is_broken = False

    def feed(self, bound_s: float) -> None:
        """The controller was heard: `bound_s` seconds of silence are allowed from now on.

        Writes at most each 10 s, or when the bound has become another. What is skipped meanwhile is added, so the
        timer is never sooner than the lease. A disk that refuses is logged, and the old deadline stands: the instance
        then ends too early rather than never.
        """
        with self._lock:
            now = self._elapsed_s()
            is_fresh = self._fed_at is not None and now - self._fed_at < FEED_PAUSE_S
            if is_fresh and bound_s == self._bound_s:
                return
            deadline = min(self._unix_s() + bound_s + FEED_PAUSE_S, self._ends_at)
            self._fed_at, self._bound_s = now, bound_s
            try:
                # Only a machine that goes down could lose it, and that one is ended already.
                replace_file(self._path, f"{int(deadline)}\n".encode(), durability=Durability.PROCESS)
                self._is_broken = False
            except DiskError as error:
                if not self._is_broken:
                    _log.error("the dead-man file is not fed: %s", error)
                self._is_broken = True

    def lifetime_left_s(self) -> float:
        """How much of the instance's whole life is left; negative when it is over."""
        return self._ends_at - self._unix_s()
