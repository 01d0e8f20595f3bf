"""Runs the evaluator in a process of its own: bounded in time and memory, and gone when its owner is.

A crash is a fault of ours, unless a second run over the same bytes ends in the same way: then the drawing is at
fault, and its facts say `unreadable` (scoring contract, section 7).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from broker.evaluator.settings import MEMORY_BYTES_MAX
from broker.refusal import Refusal
from contract.broker_api import ErrorCode
from contract.records import dump_pretty

START_S_MAX: Final = 60.0
EXPORT_S_MAX: Final = 120.0
RENDER_S_MAX: Final = 120.0

# A broken evaluator must not fill our memory either.
_LINE_BYTES_MAX: Final = 65_536


class _Ended(Exception):
    """The evaluator gave no answer; `how` is one word for what happened instead."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class EvaluatorProcess:
    """The driver that the broker uses. Calls come from one thread; `close` may come from any.

    `base_env` is what the child's environment begins with; nothing else of ours is inherited. An inspection also reads
    DWG files, and signs its facts with a version that is never pinned.
    """

    def __init__(
        self,
        base_env: Mapping[str, str],
        *,
        start_s_max: float = START_S_MAX,
        export_s_max: float = EXPORT_S_MAX,
        render_s_max: float = RENDER_S_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        module: str = "broker.evaluator",
        is_inspection: bool = False,
    ) -> None:
        # Idle threads of a linear algebra library would use up the address space.
        self._env = dict(base_env) | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self._start_s_max = start_s_max
        self._export_s_max = export_s_max
        self._render_s_max = render_s_max
        self._memory_bytes_max = memory_bytes_max
        self._module = module
        self._is_inspection = is_inspection
        self._lock = threading.Lock()
        self._is_closed = False
        self._child: subprocess.Popen[bytes] | None = None

    def warm(self) -> None:
        """Start it and have it load what renders need. Raises `Refusal`."""
        try:
            self._ask({"op": "warm"}, within_s=self._start_s_max)
        except _Ended:
            # One that died idle or while it was loading has said nothing about the drawing, and nothing about the next.
            try:
                self._ask({"op": "warm"}, within_s=self._start_s_max)
            except _Ended as error:
                raise _failed("the evaluator did not start", error) from error

    def export(self, *, drawing: Path, start_drawing: Path | None, out: Path) -> None:
        """Write `metadata.json` of `drawing` to `out`. Raises `Refusal` when we could not evaluate."""
        start = None if start_drawing is None else str(start_drawing)
        request = {"op": "export", "drawing": str(drawing), "start_drawing": start, "out": str(out)}
        self.warm()
        try:
            self._ask(request, within_s=self._export_s_max)
        except _Ended as first:
            self.warm()
            try:
                self._ask(request, within_s=self._export_s_max)
            except _Ended as second:
                if first.how != second.how:
                    raise _failed("the evaluator ended without an answer, twice", second) from second
                self._write_unreadable(drawing, out, how=second.how)

    def render(
        self,
        *,
        drawing: Path,
        window: tuple[float, float, float, float],
        size_px: tuple[int, int],
        offset: tuple[float, float, float],
        out: Path,
    ) -> None:
        """Write the canonical render of a valid drawing to `out`. Raises `Refusal`."""
        request = {
            "op": "render",
            "drawing": str(drawing),
            "window": list(window),
            "size_px": list(size_px),
            "offset": list(offset),
            "out": str(out),
        }
        self.warm()
        try:
            self._ask(request, within_s=self._render_s_max)
        except _Ended:
            self.warm()
            try:
                self._ask(request, within_s=self._render_s_max)
            except _Ended as error:
                raise _failed("the drawing could not be rendered", error) from error

    def close(self) -> None:
        """Kill it. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            child, self._child = self._child, None
        if child is not None:
            _end(child)

    def _ask(self, request: dict[str, Any], *, within_s: float) -> dict[str, Any]:
        """One request and its answer. Raises `_Ended` when there is none, and `Refusal` when it says no."""
        until = time.monotonic() + within_s
        child = self._running(until)
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            answer: dict[str, Any] = json.loads(_read_line(child.stdout, until))
        except (_Ended, OSError, ValueError) as error:
            self._drop(child)
            raise error if isinstance(error, _Ended) else _Ended("crashed") from error
        if answer.get("ok"):
            return answer
        code = str(answer.get("code"))
        if code in ("crashed", "out_of_memory"):
            self._drop(child)
            raise _Ended(code)
        raise Refusal(
            ErrorCode.EVALUATOR_FAILED,
            f"the evaluator refused: {answer.get('message')}",
            hint="Install the fonts with scripts/setup-desktop." if code == "font_missing" else "See the broker's log.",
        )

    def _running(self, until: float) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise Refusal(ErrorCode.EVALUATOR_FAILED, "the evaluator is closed", hint="Take another host.")
            if self._child is not None:
                return self._child
            child = self._child = subprocess.Popen(
                [*self._dying_with_us, sys.executable, "-I", "-m", self._module, *self._arguments],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        assert child.stdout is not None
        try:
            _read_line(child.stdout, until)
        except _Ended:
            self._drop(child)
            raise
        return child

    def _drop(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if self._child is child:
                self._child = None
        _end(child)

    @property
    def _dying_with_us(self) -> tuple[str, ...]:
        """What has the kernel kill the child when our thread ends, also while it is loading or at work.

        The end of its input alone would be noticed only after that.
        """
        setpriv = shutil.which("setpriv", path=self._env.get("PATH"))
        return () if setpriv is None else (setpriv, "--pdeathsig", "KILL", "--")

    @property
    def _arguments(self) -> tuple[str, ...]:
        return str(self._memory_bytes_max), *(("inspect",) if self._is_inspection else ())

    def _write_unreadable(self, drawing: Path, out: Path, *, how: str) -> None:
        from broker.evaluator.refusal import invalid_metadata
        from broker.evaluator.settings import inspector

        message = f"reading the drawing ended twice in the same way ({how})"
        evaluator = inspector() if self._is_inspection else None
        out.write_bytes(dump_pretty(invalid_metadata(drawing.read_bytes(), "unreadable", message, evaluator=evaluator)))


def _read_line(stream: IO[bytes], until: float) -> bytes:
    """The next line. Raises `_Ended` at the deadline and when the other side has ended."""
    descriptor, line = stream.fileno(), b""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN | select.POLLHUP)
    while not line.endswith(b"\n"):
        if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
            raise _Ended("timed out")
        piece = os.read(descriptor, 4096)
        if not piece or len(line) > _LINE_BYTES_MAX:
            raise _Ended("crashed")
        line += piece
    return line


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            # What is still buffered for a dead process cannot be delivered, and need not be.
            try:
                stream.close()
            except OSError:
                continue
    child.wait()


def _failed(what: str, error: _Ended) -> Refusal:
    code = ErrorCode.EVALUATOR_TIMEOUT if error.how == "timed out" else ErrorCode.EVALUATOR_FAILED
    return Refusal(code, f"{what} ({error.how})", hint="Evaluate the rollout again from its stored drawing.")
