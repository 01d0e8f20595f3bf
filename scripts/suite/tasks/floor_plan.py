"""A flat of three rooms: double walls, doors with their swings, windows, room names, dimensions."""

from __future__ import annotations

from ezdxf.document import Drawing

from scripts.suite.model import Layer, TaskDefinition
from scripts.suite.seed import View
from scripts.suite.sheet import Point, Sheet
from scripts.suite.steps import focus, new_layer, place_text, run

VIEW = View(center=(4500, 3500), px_per_unit=0.09, annotation_scale=60)
WALLS = Layer("WALLS", width_mm=0.5)
DOORS = Layer("DOORS", "yellow")
WINDOWS = Layer("WINDOWS", "cyan")
TEXT = Layer("TEXT", "green")
DIM = Layer("DIM", "red")
LAYERS = (WALLS, DOORS, WINDOWS, TEXT, DIM)

BRIEF = """\
The floor plan of a flat, 9000 x 7000 outside. The lower left outer corner is the origin (0, 0). Outer walls are 250 \
thick, inner walls 120. Every wall is drawn by its two faces; at door openings the faces stop and a short line (jamb) \
closes the wall.

WALLS (lines through the points given)
- Outer face: (1000, 0), (0, 0), (0, 7000), (9000, 7000), (9000, 0), (2000, 0). The gap is the entry door.
- Living room, left: (1000, 250), (250, 250), (250, 6750), (5000, 6750), (5000, 2100); and (5000, 1200), (5000, 250), \
(2000, 250).
- Bedroom 1, upper right: (5600, 3720), (5120, 3720), (5120, 6750), (8750, 6750), (8750, 3720), (6500, 3720).
- Bedroom 2, lower right: (5120, 2100), (5120, 3600), (5600, 3600); and (6500, 3600), (8750, 3600), (8750, 250), \
(5120, 250), (5120, 1200).
- Jambs: (1000, 0) to (1000, 250); (2000, 0) to (2000, 250); (5000, 1200) to (5120, 1200); (5000, 2100) to (5120, \
2100); (5600, 3600) to (5600, 3720); (6500, 3600) to (6500, 3720).

DOORS (each an open leaf and the quarter circle of its swing)
- Entry: leaf from (1000, 250) to (1000, 1250); arc of radius 1000 about (1000, 250) from (2000, 250) to (1000, 1250).
- Bedroom 2: leaf from (5000, 1200) to (4100, 1200); arc of radius 900 about (5000, 1200) from (5000, 2100) to (4100, \
1200).
- Bedroom 1: leaf from (5600, 3720) to (5600, 4620); arc of radius 900 about (5600, 3720) from (6500, 3720) to (5600, \
4620).

WINDOWS (each two lines across the wall and a pane along its middle)
- Living room, top: (1500, 6750) to (1500, 7000), (3900, 6750) to (3900, 7000), pane (1500, 6875) to (3900, 6875).
- Bedroom 1, top: (6000, 6750) to (6000, 7000), (7800, 6750) to (7800, 7000), pane (6000, 6875) to (7800, 6875).
- Bedroom 2, bottom: (6200, 0) to (6200, 250), (7800, 0) to (7800, 250), pane (6200, 125) to (7800, 125).

TEXT (single-line texts; the insertion point is the left end of the baseline)
- "LIVING" at (1500, 4200), height 300; below it "30.9 m²" at (1500, 3700), height 200.
- "BEDROOM 1" at (5900, 5300), height 300.
- "BEDROOM 2" at (5900, 1900), height 300.

DIM
- The full width, 9000: a horizontal dimension from (0, 7000) to (9000, 7000) with its line at y = 7500.
- The full depth, 7000: a vertical dimension from (9000, 0) to (9000, 7000) with its line at x = 9600.
- The entry door, 1000: a horizontal dimension from (1000, 0) to (2000, 0) with its line at y = -500."""

FACES: tuple[tuple[Point, ...], ...] = (
    ((1000, 0), (0, 0), (0, 7000), (9000, 7000), (9000, 0), (2000, 0)),
    ((1000, 250), (250, 250), (250, 6750), (5000, 6750), (5000, 2100)),
    ((5000, 1200), (5000, 250), (2000, 250)),
    ((5600, 3720), (5120, 3720), (5120, 6750), (8750, 6750), (8750, 3720), (6500, 3720)),
    ((5120, 2100), (5120, 3600), (5600, 3600)),
    ((6500, 3600), (8750, 3600), (8750, 250), (5120, 250), (5120, 1200)),
)
JAMBS: tuple[tuple[Point, Point], ...] = (
    ((1000, 0), (1000, 250)),
    ((2000, 0), (2000, 250)),
    ((5000, 1200), (5120, 1200)),
    ((5000, 2100), (5120, 2100)),
    ((5600, 3600), (5600, 3720)),
    ((6500, 3600), (6500, 3720)),
)
# Left, right, lower and upper face of the wall.
WINDOW_FRAMES = ((1500, 3900, 6750, 7000), (6000, 7800, 6750, 7000), (6200, 7800, 0, 250))


def gold() -> Drawing:
    """The flat."""
    sheet = Sheet(VIEW, LAYERS)
    for points in (*FACES, *JAMBS):
        sheet.lines("WALLS", *points)
    sheet.lines("DOORS", (1000, 250), (1000, 1250))
    sheet.arc("DOORS", (1000, 250), 1000, 0, 90)
    sheet.lines("DOORS", (5000, 1200), (4100, 1200))
    sheet.arc("DOORS", (5000, 1200), 900, 90, 180)
    sheet.lines("DOORS", (5600, 3720), (5600, 4620))
    sheet.arc("DOORS", (5600, 3720), 900, 0, 90)
    for left, right, lower, upper in WINDOW_FRAMES:
        sheet.lines("WINDOWS", (left, lower), (left, upper))
        sheet.lines("WINDOWS", (right, lower), (right, upper))
        sheet.lines("WINDOWS", (left, (lower + upper) / 2), (right, (lower + upper) / 2))
    sheet.text("TEXT", "LIVING", (1500, 4200), 300)
    sheet.text("TEXT", "30.9 m²", (1500, 3700), 200)
    sheet.text("TEXT", "BEDROOM 1", (5900, 5300), 300)
    sheet.text("TEXT", "BEDROOM 2", (5900, 1900), 300)
    sheet.horizontal("DIM", (0, 7000), (9000, 7000), 7500)
    sheet.vertical("DIM", (9000, 0), (9000, 7000), 9600)
    sheet.horizontal("DIM", (1000, 0), (2000, 0), -500)
    return sheet.drawing


def _line(points: tuple[Point, ...]) -> str:
    return f"line {' '.join(f'{x:g},{y:g}' for x, y in points)} k"


TASK = TaskDefinition(
    task_id="floor-plan",
    title="Floor plan of a flat",
    view=VIEW,
    layers=LAYERS,
    brief=BRIEF,
    gold=gold,
    turns=(
        [focus(), *new_layer(WALLS)],
        run(*(_line(points) for points in FACES[:3])),
        run(*(_line(points) for points in FACES[3:])),
        run(*(_line(points) for points in JAMBS)),
        new_layer(DOORS),
        run("line 1000,250 1000,1250 k", "arc 2000,250 1707.106781,957.106781 1000,1250 k"),
        run("line 5000,1200 4100,1200 k", "arc 5000,2100 4363.603897,1836.396103 4100,1200 k"),
        run("line 5600,3720 5600,4620 k", "arc 6500,3720 6236.396103,4356.396103 5600,4620 k"),
        [*new_layer(WINDOWS), *run("line 1500,6750 1500,7000 k", "line 3900,6750 3900,7000 k")],
        run("line 1500,6875 3900,6875 k", "line 6000,6750 @0,250 k", "line 7800,6750 @0,250 k"),
        run("line 6000,6875 @1800,0 k", "line 6200,0 @0,250 k", "line 7800,0 @0,250 k", "line 6200,125 @1600,0 k"),
        [*new_layer(TEXT), *place_text("LIVING", height="300", at="1500,4200")],
        [
            *place_text("30.9 m²", height="200", at="1500,3700"),
            *place_text("BEDROOM 1", height="300", at="5900,5300"),
            *place_text("BEDROOM 2", height="300", at="5900,1900"),
        ],
        [
            *new_layer(DIM),
            *run("dh 0,7000 9000,7000 4500,7500 k", "dv 9000,0 9000,7000 9600,3500 k", "dh 1000,0 2000,0 1500,-500 k"),
        ],
    ),
    summary="Walls, doors, windows, room names and dimensions are drawn, and saved.",
)
