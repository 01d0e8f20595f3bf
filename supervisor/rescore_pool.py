"""Scores many archived rollouts again on all cores: each worker is a process, because scoring is pure computing.

Which worker scores what changes nothing: a score is a function of the rollout's own files and its gold.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import orjson
from pydantic import ValidationError

from supervisor.rescore_worker import RescoreOrder, RescoreReply, score_again

# A worker needs about a second to start, in which it could have scored as many as this.
ORDERS_PER_WORKER_MIN: Final = 8
# The largest drawing that is legal needs minutes; longer than this means that it hangs.
REPLY_S_MAX: Final = 1_800.0
# Nothing of ours is handed on: a worker needs no key and no other setting.
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    # There is a worker for each core already.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
_COMMAND: Final = (sys.executable, "-I", "-m", "supervisor.rescore_worker")


def score_all(
    orders: Sequence[RescoreOrder], *, workers_max: int | None = None, command: tuple[str, ...] = _COMMAND
) -> list[RescoreReply]:
    """One reply for each order, in their order. Few orders are scored here, many on `workers_max` cores or all."""
    workers = min(workers_max or os.cpu_count() or 1, len(orders) // ORDERS_PER_WORKER_MIN)
    if workers < 2:
        return [score_again(order) for order in orders]
    replies: list[RescoreReply | None] = [None] * len(orders)
    queue = _Queue(orders)
    with ExitStack() as undo:
        members = [_Worker(command) for _ in range(workers)]
        threads = [threading.Thread(target=_work, args=(worker, queue, replies)) for worker in members]
        # Undone in this order: no further orders, no worker that answers, then each thread ends by itself.
        for thread in threads:
            undo.callback(thread.join)
        for worker in members:
            undo.callback(worker.close)
        undo.callback(queue.stop)
        for thread in threads:
            thread.start()
        queue.wait_done()
    return [reply for reply in replies if reply is not None]


class _Queue:
    """Hands out each order once, and says when all are answered."""

    def __init__(self, orders: Sequence[RescoreOrder]) -> None:
        self._orders = list(enumerate(orders))
        self._next = 0
        self._open = len(orders)
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[tuple[int, RescoreOrder]]:
        while True:
            with self._changed:
                if self._next >= len(self._orders):
                    return
                taken = self._orders[self._next]
                self._next += 1
            yield taken
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._next = len(self._orders)

    def wait_done(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)


class _Worker:
    """One process, replaced when it has died."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._guard = threading.Lock()

    def ask(self, order: RescoreOrder) -> RescoreReply:
        """Its reply; that it died or hung is one too."""
        child = self._running()
        if child is None:
            return _without("scoring was interrupted")
        assert child.stdin is not None
        assert child.stdout is not None
        alarm = threading.Timer(REPLY_S_MAX, child.kill)
        alarm.start()
        try:
            child.stdin.write(orjson.dumps(order.model_dump(mode="json")) + b"\n")
            child.stdin.flush()
            return RescoreReply.model_validate_json(child.stdout.readline())
        except (OSError, ValueError, ValidationError):
            child.kill()
            return _without(f"the process that scored it ended without a reply (status {child.wait()})")
        finally:
            alarm.cancel()

    def close(self) -> None:
        """End it, also in the middle of an order. From any thread."""
        with self._guard:
            self._is_closed = True
            child = self._child
        if child is not None:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    # What is still buffered for a dead process cannot be delivered, and need not be.
                    with suppress(OSError):
                        stream.close()

    def _running(self) -> subprocess.Popen[bytes] | None:
        with self._guard:
            if self._is_closed:
                return None
            if self._child is None or self._child.poll() is not None:
                self._child = subprocess.Popen(
                    self._command,
                    env=dict(_ENVIRONMENT),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # An interruption of ours is answered by us.
                    start_new_session=True,
                )
            return self._child


def _work(worker: _Worker, queue: _Queue, replies: list[RescoreReply | None]) -> None:
    for number, order in queue:
        replies[number] = worker.ask(order)


def _without(reason: str) -> RescoreReply:
    return RescoreReply(folder=None, delta=None, error=reason)
