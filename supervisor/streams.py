"""The three standard streams as a command needs them: open, and never the reason for which it ends.

What a batch says may meet a reader that has gone (`| head -1`), a terminal that was closed, or a full disk. Nobody can
be told then, and what it does goes on all the same.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ALL: Final[Collection[int]] = errno.errorcode.keys()


def secure_streams() -> None:
    """Open what is closed, and let nothing be ended by what refuses. Call it once, before anything is printed.

    A result that a full disk refuses is still an error (`OSError`); one that nobody reads is not.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Takes exactly this number, the lowest that is free. Else a file of ours would, and others print there.
            os.open(os.devnull, os.O_RDWR)
    is_terminal = os.isatty(1)
    # A terminal that was closed answers with EIO, as a broken disk does.
    gone = {errno.EPIPE, errno.EIO} if is_terminal else {errno.EPIPE}
    out, err = _Forgiving(1, forgives=gone), _Forgiving(2, forgives=_ALL)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(out), encoding=_encoding(sys.stdout), errors="backslashreplace", line_buffering=is_terminal
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(err), encoding=_encoding(sys.stderr), errors="backslashreplace", line_buffering=True
    )


class _Forgiving(io.FileIO):
    """A descriptor to write to. What it refuses with one of these error numbers counts as written."""

    def __init__(self, descriptor: int, *, forgives: Collection[int]) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._forgives = forgives

    def write(self, content: ReadableBuffer, /) -> int:
        left = memoryview(content).cast("B")
        size_bytes = len(left)
        try:
            while left:
                left = left[os.write(self.fileno(), left) :]
        except OSError as error:
            if error.errno in self._forgives:
                return size_bytes
            # Said once: what is still buffered must not fail again while the program ends.
            self._forgives = _ALL
            raise
        return size_bytes


def _encoding(stream: io.TextIOBase | object) -> str:
    # One that was closed when we were started is null.
    return str(getattr(stream, "encoding", None) or "utf-8")
