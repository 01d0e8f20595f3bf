"""A pear-shaped gasket of arcs and their common tangents."""

from __future__ import annotations

from ezdxf.document import Drawing

from scripts.suite.model import Layer, TaskDefinition
from scripts.suite.seed import View
from scripts.suite.sheet import Sheet, polar
from scripts.suite.steps import drag, focus, mirror_and_keep, new_layer, run

VIEW = View(center=(35, 0), px_per_unit=5)
OUTLINE = Layer("OUTLINE", width_mm=0.5)
HOLES = Layer("HOLES", "red", width_mm=0.25)
CENTER = Layer("CENTER", "magenta", "center")
LAYERS = (OUTLINE, HOLES, CENTER)

BRIEF = """\
A flat gasket shaped like a pear, symmetrical about the axis y = 0. Three closed contours run around the two points A \
= (0, 0) and B = (100, 0), 14 wide in all. Each contour is a large arc about A on the left, a small arc about B on \
the right, and the two straight lines that touch both arcs (the outer common tangents). All meet smoothly.

OUTLINE
- Outer edge: radius 50 about A and radius 22 about B. The upper tangent touches at (14, 48) and (106.16, 21.12), the \
lower one at (14, -48) and (106.16, -21.12). The arc about A passes through (-50, 0), the arc about B through (122, \
0).
- Inner edge (the opening): radius 36 about A and radius 8 about B. The upper tangent touches at (10.08, 34.56) and \
(102.24, 7.68), the lower one at (10.08, -34.56) and (102.24, -7.68). The arc about A passes through (-36, 0), the \
arc about B through (108, 0).

CENTER
- The bolt line, midway: radius 43 about A and radius 15 about B. The upper tangent touches at (12.04, 41.28) and \
(104.2, 14.4), the lower one at (12.04, -41.28) and (104.2, -14.4). The arc about A passes through (-43, 0), the arc \
about B through (115, 0).
- The horizontal axis from (-60, 0) to (132, 0), a vertical line through A from (0, -60) to (0, 60), and a vertical \
line through B from (100, -32) to (100, 32).

HOLES
- Six bolt holes of diameter 7 (radius 3.5) on the bolt line: three about A at distance 43 and angles 120°, 180° and \
240°, one at (115, 0), and two in the middle of the tangents, at (58.12, 27.84) and (58.12, -27.84)."""

# Half of the angle that the arc about A leaves open, in degrees: cos = (50 - 22) / 100, and 28, 96, 100 is a triangle.
TANGENT_DEG = 73.73979529168804
CONTOURS = (("OUTLINE", 50.0, 22.0), ("OUTLINE", 36.0, 8.0), ("CENTER", 43.0, 15.0))


def gold() -> Drawing:
    """The gasket."""
    sheet = Sheet(VIEW, LAYERS)
    for layer, large, small in CONTOURS:
        for side in (1, -1):
            start = (round(0.28 * large, 9), round(0.96 * large * side, 9))
            end = (round(100 + 0.28 * small, 9), round(0.96 * small * side, 9))
            sheet.lines(layer, start, end)
        sheet.arc(layer, (0, 0), large, TANGENT_DEG, 360 - TANGENT_DEG)
        sheet.arc(layer, (100, 0), small, 360 - TANGENT_DEG, TANGENT_DEG)
    sheet.circles("HOLES", 3.5, *polar(43, (120, 180, 240)), (115, 0), (58.12, 27.84), (58.12, -27.84))
    sheet.lines("CENTER", (-60, 0), (132, 0))
    sheet.lines("CENTER", (0, -60), (0, 60))
    sheet.lines("CENTER", (100, -32), (100, 32))
    return sheet.drawing


TASK = TaskDefinition(
    task_id="gasket",
    title="Gasket of arcs and tangents",
    view=VIEW,
    layers=LAYERS,
    brief=BRIEF,
    gold=gold,
    turns=(
        [focus(), *new_layer(OUTLINE)],
        run("arc 14,48 -50,0 14,-48 k", "arc 106.16,-21.12 122,0 106.16,21.12 k", "line 14,48 106.16,21.12 k"),
        run("arc 10.08,34.56 -36,0 10.08,-34.56 k", "arc 102.24,-7.68 108,0 102.24,7.68 k"),
        run("line 10.08,34.56 102.24,7.68 k"),
        # The window holds the two upper tangents whole and of the arcs only parts: it selects the tangents alone.
        [drag(VIEW.to_px(5, 55), VIEW.to_px(112, 3)), *mirror_and_keep("0,0", "100,0")],
        new_layer(CENTER),
        run("arc 12.04,41.28 -43,0 12.04,-41.28 k", "arc 104.2,-14.4 115,0 104.2,14.4 k"),
        run("line 12.04,41.28 104.2,14.4 k", "line 12.04,-41.28 104.2,-14.4 k"),
        run("line -60,0 132,0 k", "line 0,-60 0,60 k", "line 100,-32 100,32 k"),
        [*new_layer(HOLES), *run("circle 43<120 3.5 k", "circle 43<180 3.5 k", "circle 43<240 3.5 k")],
        run("circle 115,0 3.5 k", "circle 58.12,27.84 3.5 k", "circle 58.12,-27.84 3.5 k"),
    ),
    summary="The gasket is drawn on layers OUTLINE, CENTER and HOLES, and saved.",
)
