"""A child process that the event loop can wait for, read from and end, without a thread for any of it.

Children are started from the loop's own thread, which lives as long as the program: a child that asks the kernel to die
with its parent is bound to the thread that started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import anyio

from contract.records import disk_error
from supervisor.processes import facts_of, is_alive, open_process

# A line longer than this is no message of ours; the rest of it is dropped.
LINE_BYTES_MAX: Final = 1024 * 1024
_READ_BYTES: Final = 64 * 1024


class Child:
    """One process in a session of its own, with pipes on stdin and stdout and a file on stderr."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        # True once SIGKILL came from us: then the signal in the exit status says nothing about the child.
        self.was_killed_by_us = False
        self._pidfd = os.pidfd_open(process.pid)
        facts = facts_of(process.pid)
        # Not reaped yet, so the kernel still knows it even if it has ended.
        assert facts is not None, f"child {process.pid} vanished before it was waited for"
        self.started_s = facts.started_s

    @classmethod
    def spawn(cls, command: Sequence[str], *, environment: Mapping[str, str], log: Path, cwd: Path) -> Child:
        """Start `command` with exactly this environment; its stderr is appended to `log`. Raises `OSError`.

        Raises `DiskError` when the log cannot be opened.
        """
        with open_log(log) as stderr:
            process = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                close_fds=True,
                bufsize=0,
            )
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        return cls(process)

    async def send(self, content: bytes) -> None:
        """Write all of `content` to stdin, which stays open. A child that has ended already is not an error."""
        pipe = self._process.stdin
        assert pipe is not None
        left = memoryview(content)
        with suppress(BrokenPipeError):
            while left:
                with suppress(BlockingIOError):
                    left = left[os.write(pipe.fileno(), left) :]
                    continue
                await anyio.wait_writable(pipe)

    def close_stdin(self) -> None:
        """End stdin: to a broker or a pilot this says that its owner is gone."""
        pipe = self._process.stdin
        if pipe is not None:
            with suppress(OSError):
                pipe.close()

    async def read(self) -> bytes:
        """The next bytes of stdout, as soon as there are any; empty at its end. One task reads at a time."""
        pipe = self._process.stdout
        assert pipe is not None
        while True:
            try:
                return os.read(pipe.fileno(), _READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(pipe)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Each whole line of stdout, without its newline, until stdout ends."""
        buffer = bytearray()
        while chunk := await self.read():
            buffer += chunk
            *whole, rest = bytes(buffer).split(b"\n")
            buffer = bytearray(rest[:LINE_BYTES_MAX])
            for line in whole:
                yield line

    async def wait(self) -> int:
        """Wait for the end; the status is negative for a signal. Any number of tasks may wait."""
        while self._process.poll() is None:
            # One descriptor per waiter: an event loop watches a descriptor for one task only.
            own = os.dup(self._pidfd)
            try:
                await anyio.wait_readable(own)
            finally:
                os.close(own)
        return self._process.returncode

    @property
    def status(self) -> int | None:
        """The exit status if it has ended, negative for a signal; else null."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; one that has ended is not an error."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def end(self, *, grace_s: float) -> int:
        """SIGTERM, and after `grace_s` seconds SIGKILL to its whole group. Returns the exit status.

        Call it shielded: it always ends the child and waits for that.
        """
        if self._process.poll() is None and grace_s > 0:
            self.signal(signal.SIGTERM)
            with anyio.move_on_after(grace_s):
                await self.wait()
        if self._process.poll() is None:
            self.was_killed_by_us = True
            # Not reaped yet, so the group number cannot have been given to anybody else.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return await self.wait()

    def close(self) -> None:
        """Close all pipes. The process must have ended."""
        self.close_stdin()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class AdoptedProcess:
    """A process that another controller started and that we go on with. Its exit status cannot be known to us."""

    def __init__(self, pid: int, started_s: float, pidfd: int) -> None:
        self.pid = pid
        self.started_s = started_s
        self._pidfd = pidfd

    @classmethod
    def find(cls, pid: int, started_s: float) -> AdoptedProcess | None:
        """Exactly that process, or null when it has ended."""
        descriptor = open_process(pid, started_s)
        if descriptor is None:
            return None
        if not is_alive(pid, started_s):
            os.close(descriptor)
            return None
        return cls(pid, started_s, descriptor)

    @property
    def status(self) -> int | None:
        """Null while it lives; else 0, whatever it really was."""
        return None if is_alive(self.pid, self.started_s) else 0

    async def wait(self) -> int:
        """Wait for the end. Returns 0."""
        while self.status is None:
            own = os.dup(self._pidfd)
            try:
                await anyio.wait_readable(own)
            finally:
                os.close(own)
        return 0

    async def end(self, *, grace_s: float) -> int:
        """SIGTERM, and after `grace_s` seconds SIGKILL. Call it shielded."""
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 1.0)):
            if self.status is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)
                with anyio.move_on_after(patience_s):
                    await self.wait()
        return 0

    def close_stdin(self) -> None:
        """Its stdin ended with the controller that started it."""

    def close(self) -> None:
        """Close our view of it."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def open_log(log: Path) -> IO[bytes]:
    """A log file for a child to append to. Raises `DiskError`."""
    try:
        return log.open("ab")
    except OSError as error:
        raise disk_error(log, error) from error


def describe_status(status: int) -> str:
    """`killed by SIGKILL` or `exit status 3`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
