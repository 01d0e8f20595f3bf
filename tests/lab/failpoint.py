"""The real command, which strikes itself at its n-th write of state: `python -m tests.lab.failpoint ORDER ARGUMENTS`.

ORDER is a `WritePoint` as JSON; ARGUMENTS are those of `autocad-bench`. A write is a file that is synced or put into
its place. What the command does otherwise, it does unchanged.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tests.lab.victims import Victims, strike


@dataclass(frozen=True, slots=True)
class WritePoint:
    """The `number`-th write from 1, and who is hit before or after it.

    `torn`: before it, and the line that was not synced yet is lost by half, as when the whole machine loses its power.
    """

    number: int
    how: Literal["before", "after", "torn"]
    victims: Victims
    signals: tuple[int, ...]
    gap_s: float
    # A file that is made by the strike.
    told: str

    def order(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, order: str) -> WritePoint:
        """What `order` gave."""
        return cls(**json.loads(order))


class _Writes:
    """Counts, from all threads."""

    def __init__(self, point: WritePoint) -> None:
        self._point = point
        self._lock = threading.Lock()
        self._count = 0

    def guarded(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """`write`, with the strike around its n-th call."""

        def guarding(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._count += 1
                is_it = self._count == self._point.number
            if is_it and self._point.how == "torn":
                _tear(arguments[0])
            if is_it and self._point.how != "after":
                self._strike()
            done = write(*arguments, **options)
            if is_it and self._point.how == "after":
                self._strike()
            return done

        return guarding

    def _strike(self) -> None:
        point = self._point
        os.close(os.open(point.told, os.O_WRONLY | os.O_CREAT, 0o644))
        signals = [signal.Signals(number) for number in point.signals]

        def hit() -> None:
            strike(os.getpid(), point.victims, signals, gap_s=point.gap_s)

        if signals[0] is signal.SIGKILL:
            hit()
            return
        # The write goes on meanwhile.
        threading.Thread(target=hit, daemon=True).start()


def _tear(written: object) -> None:
    if not isinstance(written, int) or not os.readlink(f"/proc/self/fd/{written}").endswith(".jsonl"):
        return
    size = os.fstat(written).st_size
    last = os.pread(written, size, 0).rstrip(b"\n").rpartition(b"\n")[2]
    os.ftruncate(written, size - len(last) // 2 - 1)


def main() -> None:
    """Be the command."""
    writes = _Writes(WritePoint.of(sys.argv[1]))
    os.fsync, os.replace = writes.guarded(os.fsync), writes.guarded(os.replace)
    sys.argv = ["autocad-bench", *sys.argv[2:]]
    from supervisor.cli import main as command

    command()


if __name__ == "__main__":
    main()
