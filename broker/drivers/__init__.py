"""What the broker needs from a CAD program: the `Driver` protocol.

`tests/broker/test_drivers.py` is its real documentation: one conformance suite that every driver passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from broker.frame import Frame
from contract.actions import Action

DriverState = Literal["stopped", "ready", "cad_died", "cad_hung", "display_died"]


@dataclass(frozen=True, slots=True)
class Acted:
    """The end of an ActionBatch: how many actions were carried out (a finish is not one), and the settled frame."""

    performed: int
    frame: Frame


class Driver(Protocol):
    """Moves one CAD program on one desktop.

    All methods but `state` and `abort` are called by one thread, which outlives the driver: the processes of a desktop
    die with the thread that started them. A deed that cannot be done raises `Refusal` with `cad_died`, `cad_hung`,
    `display_died`, `reset_failed` or `save_failed`; after the first three, only `reset` and `close` make sense.
    """

    @property
    def name(self) -> str:
        """`librecad`, `paper`: what the config and the health answer call this driver."""
        ...

    @property
    def artifact_name(self) -> str:
        """The file name under which the drawing is handed over, e.g. `attempt.dxf`."""
        ...

    def prepare(self) -> None:
        """Bring up what does not depend on the task, so that the first reset is as quick as the later ones."""
        ...

    def reset(self, start_drawing: bytes) -> Frame:
        """End the CAD program and start a fresh one on a fresh copy of the start drawing, settled.

        One attempt. The first frame is the same, pixel by pixel, for the same start drawing.
        """
        ...

    def act(self, actions: Sequence[Action]) -> Acted:
        """Carry the actions out in order, wait until the screen has settled, and look. Nothing stays pressed."""
        ...

    def save(self) -> Path:
        """Have the CAD program write its drawing; returns the file. An untouched drawing keeps its bytes."""
        ...

    def state(self) -> DriverState:
        """What the CAD program is doing. Any thread may ask, at any time."""
        ...

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called, on any thread, whenever the state may have become another, also between deeds."""
        ...

    def abort(self) -> None:
        """End everything at once, from any thread; the deed under way fails. Only `close` may follow."""
        ...

    def close(self) -> None:
        """End everything and remove what belongs to the desktop. A second call does nothing."""
        ...
