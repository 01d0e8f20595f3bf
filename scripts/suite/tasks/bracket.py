"""An L-shaped bracket with slots, fillets and dimensions."""

from __future__ import annotations

from ezdxf.document import Drawing

from scripts.suite.model import Layer, TaskDefinition
from scripts.suite.seed import View
from scripts.suite.sheet import Sheet
from scripts.suite.steps import click, fillet, focus, new_layer, run

VIEW = View(center=(60, 54), px_per_unit=5)
OUTLINE = Layer("OUTLINE", width_mm=0.5)
HOLES = Layer("HOLES", "red", width_mm=0.25)
CENTER = Layer("CENTER", "cyan", "center")
DIM = Layer("DIM", "green")
LAYERS = (OUTLINE, HOLES, CENTER, DIM)

BRIEF = """\
An L-shaped bracket cut from sheet, seen from above. The outer corner of the L is the origin (0, 0).

OUTLINE
- A closed contour with straight sides through (0, 0), (120, 0), (120, 40), (50, 40), (50, 110) and (0, 110).
- The inner corner (50, 40) is rounded with a fillet of radius 15 (arc centre (65, 55)).
- The four corners (120, 0), (120, 40), (50, 110) and (0, 110) are rounded with fillets of radius 10 (arc centres \
(110, 10), (110, 30), (40, 100), (10, 100)). The corner (0, 0) stays sharp.
- The straight sides end where the arcs begin.

HOLES
- A round hole of diameter 18 (radius 9) with its centre at (25, 20).
- A horizontal slot, 12 wide: half circles of radius 6 about (70, 20) on the left and (95, 20) on the right, joined \
by lines from (70, 26) to (95, 26) and from (70, 14) to (95, 14).
- A vertical slot, 12 wide: half circles of radius 6 about (25, 60) below and (25, 85) above, joined by lines from \
(19, 60) to (19, 85) and from (31, 60) to (31, 85).

CENTER
- A horizontal centre line from (10, 20) to (108, 20) and a vertical one from (25, 5) to (25, 98).

DIM
- The full width, 120: a horizontal dimension from (0, 0) to (120, 0) with its line at y = -15.
- The full height, 110: a vertical dimension from (0, 0) to (0, 110) with its line at x = -15.
- The width of the upright leg, 50: a horizontal dimension from (0, 110) to (50, 110) with its line at y = 122.
- The height of the foot, 40: a vertical dimension from (120, 0) to (120, 40) with its line at x = 135.
- The diameter of the round hole, 18: a diameter dimension of the circle about (25, 20) along the direction of 45°."""


def gold() -> Drawing:
    """The bracket."""
    sheet = Sheet(VIEW, LAYERS)
    sheet.lines("OUTLINE", (0, 100), (0, 0), (110, 0))
    sheet.arc("OUTLINE", (110, 10), 10, 270, 0)
    sheet.lines("OUTLINE", (120, 10), (120, 30))
    sheet.arc("OUTLINE", (110, 30), 10, 0, 90)
    sheet.lines("OUTLINE", (110, 40), (65, 40))
    sheet.arc("OUTLINE", (65, 55), 15, 180, 270)
    sheet.lines("OUTLINE", (50, 55), (50, 100))
    sheet.arc("OUTLINE", (40, 100), 10, 0, 90)
    sheet.lines("OUTLINE", (40, 110), (10, 110))
    sheet.arc("OUTLINE", (10, 100), 10, 90, 180)
    sheet.circles("HOLES", 9, (25, 20))
    sheet.slot("HOLES", (70, 20), (95, 20), 6)
    sheet.slot("HOLES", (25, 60), (25, 85), 6)
    sheet.lines("CENTER", (10, 20), (108, 20))
    sheet.lines("CENTER", (25, 5), (25, 98))
    sheet.horizontal("DIM", (0, 0), (120, 0), -15)
    sheet.vertical("DIM", (0, 0), (0, 110), -15)
    sheet.horizontal("DIM", (0, 110), (50, 110), 122)
    sheet.vertical("DIM", (120, 0), (120, 40), 135)
    sheet.diameter("DIM", (25, 20), 9, 45)
    return sheet.drawing


# Three pixels beside each side, where the arc's centre lies: LibreCAD rounds the corner towards the second pick.
_BASE, _END, _FOOT = VIEW.to_px(60, 0.6), VIEW.to_px(119.4, 20), VIEW.to_px(85, 39.4)
_LEG, _TOP, _BACK = VIEW.to_px(49.4, 75), VIEW.to_px(25, 109.4), VIEW.to_px(0.6, 55)
_FOOT_OUTSIDE, _LEG_OUTSIDE = VIEW.to_px(85, 40.6), VIEW.to_px(50.6, 75)

TASK = TaskDefinition(
    task_id="bracket",
    title="Bracket with slots and dimensions",
    view=VIEW,
    layers=LAYERS,
    brief=BRIEF,
    gold=gold,
    turns=(
        [focus(), *new_layer(OUTLINE)],
        run("line 0,0 120,0 120,40 50,40 50,110 0,110 close k"),
        fillet("15", [(_FOOT_OUTSIDE, _LEG_OUTSIDE)]),
        fillet("10", [(_BASE, _END), (_END, _FOOT), (_LEG, _TOP), (_TOP, _BACK)]),
        [*new_layer(HOLES), *run("circle 25,20 9 k")],
        run("line 70,26 95,26 k", "line 70,14 95,14 k", "arc 70,26 64,20 70,14 k", "arc 95,14 101,20 95,26 k"),
        run("line 19,60 19,85 k", "line 31,60 31,85 k", "arc 31,85 25,91 19,85 k", "arc 19,60 25,54 31,60 k"),
        [*new_layer(CENTER), *run("line 10,20 108,20 k", "line 25,5 25,98 k")],
        [*new_layer(DIM), *run("dh 0,0 120,0 60,-15 k", "dv 0,0 0,110 -15,55 k")],
        run("dh 0,110 50,110 25,122 k", "dv 120,0 120,40 135,20 k"),
        # The circle by mouse, the direction by its point at 45 degrees.
        [*run("dimdiametric"), click(VIEW.to_px(18.6, 26.4)), focus(), *run("35,30", "k")],
    ),
    summary="The bracket is drawn and dimensioned, and saved.",
)
