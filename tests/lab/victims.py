"""Whom a kill test hits, and what must not be left of them: by process number and by what they hold open.

Only processes that a test has started are ever signalled: a controller by its number, pilots as its own children.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

Victims = Literal["controller", "pilots", "both"]
_PILOT = b"-m\0pilot\0"


def strike(controller: int, victims: Victims, signals: Sequence[signal.Signals], *, gap_s: float) -> None:
    """Send the signals, `gap_s` seconds apart, to a controller, its pilots, or both; one that has ended is no error.

    The controller is this process or a child of it.
    """
    chosen = [(pid, controller) for pid in pilots_of(controller)] if victims != "controller" else []
    if victims != "pilots":
        chosen.append((controller, os.getpid()))
    # Numbers of processes are used again, within minutes on a busy machine; a descriptor means one process for ever.
    descriptors = [opened for pid, parent in chosen if (opened := _open_child(pid, parent)) is not None]
    try:
        for number, one in enumerate(signals):
            time.sleep(gap_s if number else 0.0)
            for descriptor in descriptors:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, one)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def pilots_of(controller: int) -> list[int]:
    """The pilots that this controller has as processes of their own."""
    return [pid for pid in _children(controller) if _PILOT in _read(f"/proc/{pid}/cmdline")]


def leavings_of(folder: Path, *, except_for: Collection[int]) -> list[str]:
    """Live processes with this folder in their arguments, their environment or their open files, for people."""
    name = os.fsencode(folder)
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) not in except_for and _holds(int(entry), name):
            command = _read(f"/proc/{entry}/cmdline").replace(b"\0", b" ").decode(errors="replace")
            found.append(f"{entry}: {command}")
    return found


def _open_child(pid: int, parent: int) -> int | None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    # The name in parentheses may hold anything; state and parent follow it.
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if pid == os.getpid() or (len(fields) > 1 and int(fields[1]) == parent):
        return descriptor
    os.close(descriptor)
    return None


def _holds(pid: int, name: bytes) -> bool:
    # A zombie has no arguments, no environment and no files.
    if name in _read(f"/proc/{pid}/cmdline") or name in _read(f"/proc/{pid}/environ"):
        return True
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for descriptor in descriptors:
        with suppress(OSError):
            if os.fsencode(os.readlink(f"/proc/{pid}/fd/{descriptor}")).startswith(name):
                return True
    return False


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
