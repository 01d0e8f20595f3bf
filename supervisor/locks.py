"""Locks between processes that the kernel gives back when their holder dies, however it dies.

Open-file-description locks: they belong to the open file, not to the process, so no other part of the program can drop
one by closing a file, and whether one is held can be asked without taking it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

# struct flock on 64-bit Linux: type, whence, start, length (0 = the whole file), pid (0 for this kind of lock).
_FLOCK: Final = struct.Struct("hhqqi4x")


class HeldLock:
    """A lock that this process holds until `release`, or until it dies."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self.path = path

    def write(self, content: bytes) -> None:
        """Replace what the lock file says about its holder. Meant for people: readers must expect a torn text."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def take(path: Path) -> HeldLock | None:
    """Take the exclusive lock of the file at `path`, which is made if it is missing; null when another holds it.

    Raises `OSError` when the file cannot be made or opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return HeldLock(descriptor, path)


def is_held(path: Path) -> bool:
    """True when somebody holds the lock of `path`. Looks only: takes nothing and makes no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(descriptor)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
