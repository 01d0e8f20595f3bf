"""A stepped shaft, symmetrical about its axis, with hidden edges and a keyway."""

from __future__ import annotations

from ezdxf.document import Drawing

from scripts.suite.model import Layer, TaskDefinition
from scripts.suite.seed import View
from scripts.suite.sheet import Point, Sheet
from scripts.suite.steps import drag, focus, mirror_and_keep, new_layer, run

VIEW = View(center=(95, 0), px_per_unit=6)
OUTLINE = Layer("OUTLINE", width_mm=0.5)
HIDDEN = Layer("HIDDEN", "yellow", "dash")
CENTER = Layer("CENTER", "red", "center")
LAYERS = (OUTLINE, HIDDEN, CENTER)

BRIEF = """\
The side view of a turned shaft. Its axis lies on y = 0, its left end on x = 0; it is 190 long and symmetrical about \
the axis.

OUTLINE
- The upper half of the contour runs straight from (0, 0) to (0, 13), (2, 15), (30, 15), (30, 25), (90, 25), (90, \
20), (150, 20), (150, 12.5), (188, 12.5), (190, 10.5) and (190, 0): diameters 30, 50, 40 and 25, and a chamfer of 2 x \
45° at each end. The lower half is its mirror image, down to y = -25.
- The edges seen as vertical lines, each from the contour above the axis to the contour below: x = 2 from y = -15 to \
15, x = 30 from -15 to 15, x = 90 from -20 to 20, x = 150 from -12.5 to 12.5, x = 188 from -12.5 to 12.5.
- A keyway: two lines from (105, 5) to (135, 5) and from (105, -5) to (135, -5), closed by half circles of radius 5 \
about (105, 0) on the left and (135, 0) on the right.

HIDDEN
- A blind hole of diameter 10 from the left end: lines from (0, 5) to (40, 5) to (43, 0) to (40, -5) to (0, -5), and \
a line from (40, 5) to (40, -5).

CENTER
- The axis, from (-10, 0) to (200, 0)."""

UPPER_HALF: tuple[Point, ...] = (
    (0, 0),
    (0, 13),
    (2, 15),
    (30, 15),
    (30, 25),
    (90, 25),
    (90, 20),
    (150, 20),
    (150, 12.5),
    (188, 12.5),
    (190, 10.5),
    (190, 0),
)


def gold() -> Drawing:
    """The shaft."""
    sheet = Sheet(VIEW, LAYERS)
    for side in (1, -1):
        sheet.lines("OUTLINE", *((x, side * y) for x, y in UPPER_HALF))
    for x, radius in ((2, 15), (30, 15), (90, 20), (150, 12.5), (188, 12.5)):
        sheet.lines("OUTLINE", (x, -radius), (x, radius))
    sheet.slot("OUTLINE", (105, 0), (135, 0), 5)
    sheet.lines("HIDDEN", (0, 5), (40, 5), (43, 0), (40, -5), (0, -5))
    sheet.lines("HIDDEN", (40, 5), (40, -5))
    sheet.lines("CENTER", (-10, 0), (200, 0))
    return sheet.drawing


TASK = TaskDefinition(
    task_id="shaft",
    title="Stepped shaft with hidden edges",
    view=VIEW,
    layers=LAYERS,
    brief=BRIEF,
    gold=gold,
    turns=(
        [focus(), *new_layer(OUTLINE)],
        # The upper half by steps from point to point.
        run("line 0,0 0,13 @2,2 @28,0 @0,10 @60,0 @0,-5 @60,0 @0,-7.5 @38,0 @2,-2 @0,-10.5 k"),
        run(
            "line 2,0 2,15 k",
            "line 30,0 30,15 k",
            "line 90,0 90,20 k",
            "line 150,0 150,12.5 k",
            "line 188,0 188,12.5 k",
        ),
        # The lower half by mirroring all that a window holds.
        [
            drag(VIEW.to_px(-20, 35), VIEW.to_px(205, -10)),
            *mirror_and_keep("0,0", "100,0"),
        ],
        run("line 105,5 135,5 k", "line 105,-5 135,-5 k", "arc 105,5 100,0 105,-5 k", "arc 135,-5 140,0 135,5 k"),
        [*new_layer(HIDDEN), *run("line 0,5 40,5 43,0 40,-5 0,-5 k", "line 40,5 40,-5 k")],
        [*new_layer(CENTER), *run("line -10,0 200,0 k")],
    ),
    summary="The shaft is drawn on layers OUTLINE, HIDDEN and CENTER, and saved.",
)
