"""The signals that end a batch, while it listens to them."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a program to clean up and end: SIGINT, SIGTERM, and SIGHUP unless it is ignored (`nohup`)."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


@contextmanager
def listening() -> Iterator[AsyncIterator[signal.Signals]]:
    """Every signal to end that comes inside of the block; afterwards the program's own handlers are back.

    The event loop would leave SIGTERM to the kernel, and a signal between the end of a batch and that of its program
    would then take away summary and exit status.
    """
    # Too heavy for `--help`, which asks for the signals too.
    import anyio

    before = {number: signal.getsignal(number) for number in ending_signals()}
    try:
        with anyio.open_signal_receiver(*before) as signals:
            yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
