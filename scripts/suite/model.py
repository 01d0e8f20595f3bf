"""What one task of the suite consists of, before any file is made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ezdxf.document import Drawing

from scripts.suite.seed import View

Turn = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as the prompt asks for it, the oracle makes it and the gold has it.

    `color` is the name in LibreCAD's colour list; `linetype` the first word in its line type list; `width_mm` the
    line width, 0 for LibreCAD's default.
    """

    name: str
    color: str = "white"
    linetype: str = "continuous"
    width_mm: float = 0.0


# AutoCAD colour index of the colours that tasks use.
COLOR_INDEX = {"white": 7, "red": 1, "yellow": 2, "green": 3, "cyan": 4, "blue": 5, "magenta": 6}
# What LibreCAD writes for the line types that tasks use.
LINETYPE_NAME = {"continuous": "CONTINUOUS", "center": "CENTER", "dash": "DASHED"}


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """One task: what is asked, what is right, and how the oracle gets there.

    `brief` is the part of the prompt that is this task's own; `turns` are the oracle's ActionBatches without the last
    one, which saves and finishes.
    """

    task_id: str
    title: str
    view: View
    layers: tuple[Layer, ...]
    brief: str
    gold: Callable[[], Drawing]
    turns: tuple[Turn, ...]
    summary: str
