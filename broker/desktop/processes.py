"""Starts, watches and ends the processes of one desktop. Each leads a session of its own and dies with its owner."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

# A killed process is gone in a few milliseconds; one in uninterruptible sleep on a dead disk may never be.
DEATH_S_MAX: Final = 2.0


class Process:
    """One child in its own session, reaped by us. `exit_code` is negative for a death by signal."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.pid = popen.pid
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)

    @property
    def pidfd(self) -> int:
        """Becomes readable when the process has ended."""
        return self._pidfd

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """End it and all it started, at once. Safe from any thread, and when it is already dead."""
        # A sandbox is ended from within: the death of its first process takes every other along before it is reaped.
        for pid in [*_children(self.pid), *_members_of_session(self.pid)]:
            _kill(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._popen.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float = DEATH_S_MAX) -> bool:
        """True when it ended in time."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill, wait, and give the descriptor back. A second call does nothing."""
        if self._pidfd < 0:
            return
        self.kill()
        self.wait()
        for pid in _members_of_session(self.pid):
            _kill(pid)
        os.close(self._pidfd)
        self._pidfd = -1


def spawn(
    name: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
    pass_fds: Iterable[int] = (),
    setpriv_options: Sequence[str] = (),
    prefix: Sequence[str] = (),
) -> Process:
    """Start `argv` so that the kernel kills it when the thread that calls this ends, however it ends.

    `setpriv` sets the death signal in the child itself. The gap before that is covered too: an X server whose parent
    is gone cannot report its display and gives up, and the others lose their X server. `setpriv_options` change the
    child's user, which must happen in the same step, because a change of user clears the death signal.
    """
    popen = subprocess.Popen(
        [*prefix, "setpriv", "--pdeathsig", "KILL", *setpriv_options, "--", *argv],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
    )
    return Process(name, popen)


def when_ended(process: Process, tell: Callable[[], None]) -> None:
    """Have `tell` called once, on a thread of its own, as soon as the process has ended, however it did."""
    # A descriptor of our own: the process may be closed, and its number used again, while the thread wakes up.
    own = os.dup(process.pidfd)

    def wait() -> None:
        poller = select.poll()
        poller.register(own, select.POLLIN)
        poller.poll()
        os.close(own)
        tell()

    threading.Thread(target=wait, name=f"end of {process.name}", daemon=True).start()


def wait_readable(descriptors: Sequence[int], timeout_s: float) -> list[int]:
    """The descriptors that have something to say within the time; the poll of choice for pipes, sockets and pidfds."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(max(0.0, timeout_s) * 1000)]


def read_line(descriptor: int, *, until: float, process: Process) -> bytes | None:
    """Bytes up to a newline, which may come in pieces. None at the deadline, at the end, or when `process` died."""
    line = b""
    while not line.endswith(b"\n"):
        ready = wait_readable([descriptor, process.pidfd], until - time.monotonic())
        if descriptor not in ready:
            return None
        piece = os.read(descriptor, 64)
        if not piece:
            return None
        line += piece
    return line


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def _members_of_session(session_id: int) -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _session_of(entry) == session_id]


def _session_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command name may hold spaces and brackets; the session is the fourth field after its last bracket.
            return int(file.read().rpartition(b")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
