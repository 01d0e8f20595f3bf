"""Waiting for something that must come. How soon it comes is for the benchmarks: no test asserts a time."""

from __future__ import annotations

import time
from collections.abc import Callable

# Nothing that a test waits for takes as long, on however busy a machine.
PATIENCE_S = 60.0
LOOK_S = 0.02


def until(is_so: Callable[[], bool]) -> None:
    """Return as soon as it is so, and fail when it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(LOOK_S)
