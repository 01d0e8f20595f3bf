"""A sheet of paper in memory: the quickest driver, for tests and for measuring everything above the host.

One unit is one pixel, the origin is the bottom left corner. It understands a few typed commands, each ended by Enter:

    line x,y x,y ...      circle x,y r      rec x,y x,y      u (undo)

A left click makes a point, a left drag a polyline. Its artifact is a real DXF (R2007): the start drawing and what was
drawn. An untouched sheet hands the start drawing back byte by byte.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw

from broker.desktop.png import BandEncoder
from broker.drivers import Acted, DriverState
from broker.frame import Frame, frame_of
from broker.refusal import Refusal
from contract.actions import (
    SCREEN_HEIGHT_PX,
    SCREEN_WIDTH_PX,
    Action,
    Click,
    Drag,
    Finish,
    Keypress,
    Move,
    Scroll,
    TypeText,
    Wait,
)
from contract.broker_api import ErrorCode, Verdict

ARTIFACT_NAME: Final = "attempt.dxf"
# A LibreCAD frame has 79 KB. A patch of noise makes a sheet as heavy, so that what is measured with it is true.
GRAIN_SIZE_PX: Final = (216, 72)
GRAIN_SEED: Final = 1
SHAPES_MAX: Final = 100_000

_PAPER: Final = (30, 33, 40, 0)
_INK: Final = (240, 240, 240, 0)
_PROMPT_TOP_PX: Final = SCREEN_HEIGHT_PX - 40

PointXY = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PaperFaults:
    """What goes wrong, for tests: at which action since the reset (from 1), how slow, and what the frame looks like.

    `artifact_bytes`: what a saved drawing is padded to; 0 leaves it alone.
    """

    cad_dies_at: int | None = None
    cad_hangs_at: int | None = None
    display_dies_at: int | None = None
    resets_that_fail: int = 0
    action_s: float = 0.0
    verdict: Verdict = Verdict.OK
    artifact_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Shape:
    kind: str
    points: tuple[PointXY, ...]
    radius: float = 0.0


@dataclass(slots=True)
class _Sheet:
    shapes: list[_Shape] = field(default_factory=list)
    typed: str = ""
    pointer: tuple[int, int] = (SCREEN_WIDTH_PX // 2, SCREEN_HEIGHT_PX // 2)


class PaperDriver:
    """See `broker.drivers.Driver`."""

    name = "paper"
    artifact_name = ARTIFACT_NAME

    def __init__(self, state_dir: Path, *, faults: PaperFaults | None = None) -> None:
        """`state_dir` takes the drawing."""
        self._drawing = state_dir / "drawing" / ARTIFACT_NAME
        self._faults = faults or PaperFaults()
        self._failed_resets = 0
        self._state: DriverState = "stopped"
        self._start_drawing = b""
        self._sheet = _Sheet()
        self._acted = 0
        self._is_aborted = threading.Event()
        self._on_change: Callable[[], None] | None = None
        self._encoder = BandEncoder(width_px=SCREEN_WIDTH_PX, height_px=SCREEN_HEIGHT_PX)
        self._pixels = np.zeros((SCREEN_HEIGHT_PX, SCREEN_WIDTH_PX, 4), np.uint8)
        # Pillow draws straight into the array; the encoder reads blue first, so colours are grey or swapped.
        size = (SCREEN_WIDTH_PX, SCREEN_HEIGHT_PX)
        self._image = Image.frombuffer("RGBX", size, self._pixels, "raw", "RGBX", 0, 1)
        self._image.readonly = 0
        self._pen = ImageDraw.Draw(self._image)

    def prepare(self) -> None:
        """Nothing to bring up."""

    def reset(self, start_drawing: bytes) -> Frame:
        """A blank sheet; the start drawing is kept for the artifact, not drawn."""
        if self._failed_resets < self._faults.resets_that_fail:
            self._failed_resets += 1
            raise Refusal(ErrorCode.RESET_FAILED, "the sheet is torn", hint="Try again.")
        self._drawing.parent.mkdir(mode=0o700, exist_ok=True)
        self._drawing.write_bytes(start_drawing)
        self._start_drawing = start_drawing
        self._sheet = _Sheet()
        self._acted = 0
        self._paint_all()
        self._state = "ready"
        return self._look(time.monotonic())

    def act(self, actions: Sequence[Action]) -> Acted:
        """Draw at once; there is nothing to wait for."""
        self._demand_ready()
        performed = 0
        for action in actions:
            if isinstance(action, Finish):
                break
            self._meet_faults()
            self._perform(action)
            performed += 1
        began = time.monotonic()
        self._paint_prompt()
        return Acted(performed=performed, frame=self._look(began))

    def save(self) -> Path:
        """Write the drawing, unless nothing was drawn."""
        self._demand_ready()
        self._drawing.write_bytes(self._start_drawing)
        if self._sheet.shapes:
            _write_dxf(self._drawing, self._sheet.shapes)
        if self._faults.artifact_bytes:
            os.truncate(self._drawing, self._faults.artifact_bytes)
        return self._drawing

    def state(self) -> DriverState:
        """From any thread."""
        return self._state

    def watch(self, on_change: Callable[[], None]) -> None:
        """Only deeds change anything here."""
        self._on_change = on_change

    def abort(self) -> None:
        """Waits end; what is under way fails."""
        self._is_aborted.set()

    def close(self) -> None:
        """Put the sheet away; the drawing stays."""
        self._is_aborted.set()
        self._state = "stopped"

    def _demand_ready(self) -> None:
        codes: dict[DriverState, ErrorCode] = {
            "cad_died": ErrorCode.CAD_DIED,
            "cad_hung": ErrorCode.CAD_HUNG,
            "display_died": ErrorCode.DISPLAY_DIED,
        }
        if self._state != "ready":
            code = codes.get(self._state, ErrorCode.NOT_RESET)
            raise Refusal(code, "there is no sheet of paper", hint="Reset the desktop first.")

    def _meet_faults(self) -> None:
        self._acted += 1
        faults = self._faults
        if faults.action_s:
            self._pause(faults.action_s)
        if self._acted == faults.cad_dies_at:
            raise self._lost("cad_died", ErrorCode.CAD_DIED, "the sheet has burnt", hint="Take another.")
        if self._acted == faults.cad_hangs_at:
            raise self._lost("cad_hung", ErrorCode.CAD_HUNG, "the ink does not flow", hint="Take another.")
        if self._acted == faults.display_dies_at:
            raise self._lost("display_died", ErrorCode.DISPLAY_DIED, "the light went out", hint="Take another.")

    def _lost(self, state: DriverState, code: ErrorCode, message: str, *, hint: str) -> Refusal:
        self._state = state
        if self._on_change is not None:
            self._on_change()
        return Refusal(code, message, hint=hint)

    def _pause(self, seconds: float) -> None:
        if self._is_aborted.wait(seconds):
            raise Refusal(ErrorCode.INTERNAL, "the desktop is being ended", hint="Take another host.")

    # -- drawing ----------------------------------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case Move(x=x, y=y) | Scroll(x=x, y=y):
                self._sheet.pointer = (x, y)
            case Click(x=x, y=y, button=button):
                self._sheet.pointer = (x, y)
                if button == "left":
                    self._add(_Shape("point", (_unit(x, y),)))
            case Drag(path=path, button=button):
                self._sheet.pointer = (path[-1][0], path[-1][1])
                if button == "left":
                    self._add(_Shape("line", tuple(_unit(x, y) for x, y in path)))
            case TypeText(text=text):
                for char in text:
                    self._type(char)
            case Keypress(keys=keys):
                self._chord(keys)
            case Wait(seconds=seconds):
                self._pause(seconds)
            case Finish():
                pass

    def _type(self, char: str) -> None:
        if char != "\n":
            self._sheet.typed += char
            return
        command, self._sheet.typed = self._sheet.typed, ""
        if command.strip() == "u":
            self._undo()
            return
        shape = _shape_of(command)
        if shape is not None:
            self._add(shape)

    def _chord(self, keys: list[str]) -> None:
        match keys:
            case ["enter"]:
                self._type("\n")
            case ["backspace"]:
                self._sheet.typed = self._sheet.typed[:-1]
            case ["esc"]:
                self._sheet.typed = ""
            case ["space"]:
                self._type(" ")
            case ["ctrl", "z"]:
                self._undo()
            case [char] if len(char) == 1:
                self._type(char)
            case _:
                pass

    def _add(self, shape: _Shape) -> None:
        if len(self._sheet.shapes) < SHAPES_MAX:
            self._sheet.shapes.append(shape)
            self._paint(shape)

    def _undo(self) -> None:
        if self._sheet.shapes:
            self._sheet.shapes.pop()
            self._paint_all()

    def _paint_all(self) -> None:
        self._pixels[:] = _PAPER
        width, height = GRAIN_SIZE_PX
        self._pixels[:height, :width, :3] = np.frombuffer(_GRAIN, np.uint8).reshape(height, width, 3)
        for shape in self._sheet.shapes:
            self._paint(shape)
        self._paint_prompt()

    def _paint(self, shape: _Shape) -> None:
        pixels = [(x, SCREEN_HEIGHT_PX - 1 - y) for x, y in shape.points]
        x, y = pixels[0]
        match shape.kind:
            case "circle":
                self._pen.ellipse(
                    (x - shape.radius, y - shape.radius, x + shape.radius, y + shape.radius), outline=_INK
                )
            case "point":
                self._pen.rectangle((x - 1, y - 1, x + 1, y + 1), fill=_INK)
            case _:
                self._pen.line(pixels, fill=_INK)

    def _paint_prompt(self) -> None:
        self._pixels[_PROMPT_TOP_PX:] = _PAPER
        self._pen.text((8, _PROMPT_TOP_PX + 8), _plain(f"> {self._sheet.typed[-200:]}_"), fill=_INK)

    def _look(self, began: float) -> Frame:
        top, left, saved = self._show_pointer()
        encoded = self._encoder.encode(self._pixels.data.cast("B"))
        self._pixels[top : top + saved.shape[0], left : left + saved.shape[1]] = saved
        return frame_of(
            encoded.png,
            width_px=SCREEN_WIDTH_PX,
            height_px=SCREEN_HEIGHT_PX,
            verdict=self._faults.verdict,
            settle_s=time.monotonic() - began,
        )

    def _show_pointer(self) -> tuple[int, int, np.ndarray[Any, np.dtype[np.uint8]]]:
        left, top = self._sheet.pointer
        spot = self._pixels[top : top + 8, left : left + 8]
        saved = spot.copy()
        spot[:] = 255 - spot
        return top, left, saved


_GRAIN: Final = random.Random(GRAIN_SEED).randbytes(GRAIN_SIZE_PX[0] * GRAIN_SIZE_PX[1] * 3)


def _unit(x: int, y: int) -> PointXY:
    return float(x), float(SCREEN_HEIGHT_PX - 1 - y)


def _plain(text: str) -> str:
    # Pillow's built-in font has no more than Latin-1.
    return text.encode("latin-1", errors="replace").decode("latin-1")


def _shape_of(command: str) -> _Shape | None:
    """The shape that a typed command asks for; None for what the paper does not understand."""
    name, *arguments = command.split() or [""]
    try:
        match name:
            case "line" if len(arguments) >= 2:
                return _Shape("line", tuple(_point(argument) for argument in arguments))
            case "rec" if len(arguments) == 2:
                (x0, y0), (x1, y1) = (_point(argument) for argument in arguments)
                return _Shape("line", ((x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)))
            case "circle" if len(arguments) == 2 and 0 < float(arguments[1]) < 1e6:
                return _Shape("circle", (_point(arguments[0]),), radius=float(arguments[1]))
            case _:
                return None
    except ValueError:
        return None


def _point(argument: str) -> PointXY:
    x, y = (float(part) for part in argument.split(","))
    if not (abs(x) < 1e6 and abs(y) < 1e6):
        raise ValueError("a point off the table")
    return x, y


def _write_dxf(path: Path, shapes: Sequence[_Shape]) -> None:
    # Loading ezdxf takes most of a second, which a sheet that nobody draws on should not cost.
    import ezdxf

    document = _document(path, ezdxf)
    space = document.modelspace()
    for shape in shapes:
        match shape.kind:
            case "circle":
                space.add_circle(shape.points[0], shape.radius)
            case "point":
                space.add_point(shape.points[0])
            case _:
                for start, end in zip(shape.points, shape.points[1:], strict=False):
                    space.add_line(start, end)
    document.saveas(path)


def _document(path: Path, ezdxf: Any) -> Any:
    try:
        return ezdxf.readfile(path)
    except (OSError, ezdxf.DXFError):
        return ezdxf.new("R2007")
