"""A rectangular plate with holes on three layers."""

from __future__ import annotations

from ezdxf.document import Drawing

from scripts.suite.model import Layer, TaskDefinition
from scripts.suite.seed import View
from scripts.suite.sheet import Sheet
from scripts.suite.steps import click, focus, new_layer, run

VIEW = View(center=(70, 50), px_per_unit=5)
OUTLINE = Layer("OUTLINE", width_mm=0.5)
HOLES = Layer("HOLES", "red", width_mm=0.25)
CENTER = Layer("CENTER", "cyan", "center")
LAYERS = (OUTLINE, HOLES, CENTER)

BRIEF = """\
A rectangular plate, 140 wide and 100 high, seen from above.

OUTLINE
- A rectangle from (0, 0) to (140, 100).

HOLES
- A bore of diameter 44 (radius 22) with its centre at (70, 50).
- Four corner holes of diameter 10 (radius 5) with centres at (15, 15), (125, 15), (125, 85) and (15, 85).
- Two dowel holes of diameter 6 (radius 3) with centres at (30, 50) and (110, 50).

CENTER
- A horizontal centre line from (40, 50) to (100, 50).
- A vertical centre line from (70, 20) to (70, 80)."""

# The toolbar button "Snap on grid" below the canvas.
SNAP_GRID_PX = (95, 996)


def gold() -> Drawing:
    """The plate."""
    sheet = Sheet(VIEW, LAYERS)
    sheet.rectangle("OUTLINE", (0, 0), (140, 100))
    sheet.circles("HOLES", 22, (70, 50))
    sheet.circles("HOLES", 5, (15, 15), (125, 15), (125, 85), (15, 85))
    sheet.circles("HOLES", 3, (30, 50), (110, 50))
    sheet.lines("CENTER", (40, 50), (100, 50))
    sheet.lines("CENTER", (70, 20), (70, 80))
    return sheet.drawing


TASK = TaskDefinition(
    task_id="plate",
    title="Plate with holes",
    view=VIEW,
    layers=LAYERS,
    brief=BRIEF,
    gold=gold,
    turns=(
        [focus(), *new_layer(OUTLINE)],
        run("rec 0,0 140,100 k"),
        [*new_layer(HOLES), *run("circle 70,50 22 k")],
        run("circle 15,15 5 k", "circle 125,15 5 k", "circle 125,85 5 k", "circle 15,85 5 k"),
        run("circle 30,50 3 k", "circle 110,50 3 k"),
        new_layer(CENTER),
        # Two lines by mouse alone: with the snap on, a click near a grid point is that point. The grid is 10 apart.
        [
            *run("line"),
            click(SNAP_GRID_PX),
            click(VIEW.to_px(40.6, 49.5)),
            click(VIEW.to_px(99.5, 50.7)),
            focus(),
            *run("k", "line"),
            click(VIEW.to_px(70.4, 20.4)),
            click(VIEW.to_px(69.6, 79.5)),
            focus(),
            *run("k"),
        ],
    ),
    summary="The plate is drawn on layers OUTLINE, HOLES and CENTER, and saved.",
)
