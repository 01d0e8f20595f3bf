"""The two signals that end a batch, while it listens to them."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def listening() -> Iterator[AsyncIterator[signal.Signals]]:
    """Every SIGINT and SIGTERM that comes inside of the block; afterwards the program's own handlers are back.

    The event loop would leave SIGTERM to the kernel, and a signal between the end of a batch and that of its program
    would then take away summary and exit status.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
