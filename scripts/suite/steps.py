"""The oracle's hands: what a person at this desktop does, as actions.

The places of dialog fields are those of LibreCAD 2.2 on the 1920x1080 desktop of `broker/drivers/librecad.py`, where
dialogs open in the middle of the screen, always alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scripts.suite.model import Layer

Action = dict[str, Any]

# Layer dialog (Ctrl+L); the cursor is in its name field when it opens.
_LAYER_COLOR_PX = (985, 499)
_LAYER_WIDTH_PX = (985, 531)
_LAYER_LINETYPE_PX = (985, 562)
# Text dialog (`text`); the cursor is in its text field when it opens.
_TEXT_HEIGHT_PX = (886, 427)
# Dialog after `mi` (mirror): "Keep Original".
_MIRROR_KEEP_PX = (857, 492)
# Dialog after `mv` (move, copy): "Multiple Copies", and how many.
_COPY_MULTIPLE_PX = (840, 505)
_COPY_COUNT_PX = (868, 531)
# A place on the canvas where nothing reacts to the pointer.
_CANVAS_PX = ((700, 300), (706, 304))


def press(*keys: str) -> Action:
    """One chord."""
    return {"type": "keypress", "keys": list(keys)}


def write(text: str) -> Action:
    """Type text; a newline is Enter."""
    return {"type": "type", "text": text}


def run(*commands: str) -> list[Action]:
    """Type lines into the command line."""
    return [write(f"{command}\n") for command in commands]


def click(at: tuple[int, int], *, clicks: int = 1) -> Action:
    """Click with the left button."""
    return {"type": "click", "x": at[0], "y": at[1], "button": "left", "clicks": clicks, "modifiers": []}


def move(at: tuple[int, int]) -> Action:
    """Move the pointer."""
    return {"type": "move", "x": at[0], "y": at[1]}


def drag(start: tuple[int, int], end: tuple[int, int]) -> Action:
    """Drag with the left button; on the canvas, with no command active, this selects what the window holds."""
    return {"type": "drag", "path": [list(start), list(end)], "button": "left", "modifiers": []}


def focus() -> Action:
    """Put the cursor into the command line."""
    return press("ctrl", "m")


def new_layer(layer: Layer) -> list[Action]:
    """Make a layer and make it the current one; its name by keyboard, its pen by mouse."""
    actions = [press("ctrl", "l"), write(layer.name)]
    if layer.color != "white":
        actions += [click(_LAYER_COLOR_PX), write(layer.color), press("enter")]
    if layer.width_mm:
        actions += [click(_LAYER_WIDTH_PX), write(f"{layer.width_mm:.2f}"), press("enter")]
    if layer.linetype != "continuous":
        actions += [click(_LAYER_LINETYPE_PX), write(layer.linetype), press("enter")]
    return [*actions, press("enter"), focus()]


def place_text(content: str, *, height: str, at: str) -> list[Action]:
    """A single-line text. A typed insertion point counts only after the pointer has moved over the canvas."""
    fields = [*run("text"), write(content), click(_TEXT_HEIGHT_PX), press("ctrl", "a"), write(height), press("enter")]
    return [*fields, *(move(place) for place in _CANVAS_PX), focus(), *run(at, "k")]


def fillet(radius: str, picks: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> list[Action]:
    """Round corners of one radius, each by a click on both of its lines, beyond the tangent points."""
    actions = run(f"fillet radius {radius}")
    for first, second in picks:
        actions += [click(first), click(second)]
    return [*actions, focus(), *run("k")]


def mirror_and_keep(first: str, second: str) -> list[Action]:
    """Mirror what is selected about the line through two points, and keep the original."""
    return [focus(), *run(f"mi {first} {second}"), click(_MIRROR_KEEP_PX), press("enter"), focus()]


def copy_times(count: int, *, start: str, end: str) -> list[Action]:
    """Copy what is selected so many times, each copy further by the way from `start` to `end`."""
    fields = [click(_COPY_MULTIPLE_PX), click(_COPY_COUNT_PX), press("ctrl", "a"), write(str(count)), press("enter")]
    return [focus(), *run(f"mv {start} {end}"), *fields, focus()]


def finish(summary: str) -> list[Action]:
    """End the command, show everything, save, say that it is done."""
    done = {"type": "finish", "status": "done", "summary": summary}
    return [focus(), *run("k", "za"), press("ctrl", "s"), done]
