"""What the broker needs from the trusted evaluator; `broker.evaluator.process` gives it in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from broker.refusal import Refusal
from contract.broker_api import ErrorCode


class Evaluator(Protocol):
    """Reads a drawing that a model has left. All methods but `close` are called by one thread.

    Raises `Refusal` with `evaluator_failed` or `evaluator_timeout`.
    """

    def warm(self) -> None:
        """Be ready, so that the next request is answered in a few 100 ms."""
        ...

    def export(self, *, drawing: Path, start_drawing: Path | None, out: Path) -> None:
        """Write the drawing's facts as JSON. A drawing that breaks a rule is a fact too, not an error."""
        ...

    def render(
        self,
        *,
        drawing: Path,
        window: tuple[float, float, float, float],
        size_px: tuple[int, int],
        offset: tuple[float, float, float],
        out: Path,
    ) -> None:
        """Write the canonical render as PNG; window and offset in drawing units."""
        ...

    def close(self) -> None:
        """End it, from any thread. A second call does nothing."""
        ...


class LateEvaluator:
    """Builds the evaluator when it is first needed: what it imports would slow every start of a broker."""

    def __init__(self, build: Callable[[], Evaluator]) -> None:
        self._build = build
        self._evaluator: Evaluator | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def warm(self) -> None:
        """See `Evaluator`."""
        self._built().warm()

    def export(self, *, drawing: Path, start_drawing: Path | None, out: Path) -> None:
        """See `Evaluator`."""
        self._built().export(drawing=drawing, start_drawing=start_drawing, out=out)

    def render(
        self,
        *,
        drawing: Path,
        window: tuple[float, float, float, float],
        size_px: tuple[int, int],
        offset: tuple[float, float, float],
        out: Path,
    ) -> None:
        """See `Evaluator`."""
        self._built().render(drawing=drawing, window=window, size_px=size_px, offset=offset, out=out)

    def close(self) -> None:
        """See `Evaluator`."""
        with self._lock:
            self._is_closed = True
            if self._evaluator is not None:
                self._evaluator.close()

    def _built(self) -> Evaluator:
        with self._lock:
            if self._is_closed:
                raise Refusal(ErrorCode.EVALUATOR_FAILED, "the broker is ending", hint="Take another host.")
            if self._evaluator is None:
                self._evaluator = self._build()
            return self._evaluator
