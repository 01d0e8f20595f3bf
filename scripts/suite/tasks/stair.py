"""A double stair: equal steps and balusters, and one flight the mirror image of the other."""

from __future__ import annotations

from ezdxf.document import Drawing

from scripts.suite.model import Layer, TaskDefinition
from scripts.suite.seed import View
from scripts.suite.sheet import Sheet
from scripts.suite.steps import copy_times, drag, focus, mirror_and_keep, new_layer, place_text, run

VIEW = View(center=(2000, 850), px_per_unit=0.28, annotation_scale=40)
STAIR = Layer("STAIR", width_mm=0.5)
RAIL = Layer("RAIL", "cyan")
TEXT = Layer("TEXT", "yellow")
DIM = Layer("DIM", "green")
LAYERS = (STAIR, RAIL, TEXT, DIM)

BRIEF = """\
The side view of a double stair: up from the left to a landing, and down again to the right. It is symmetrical about \
the vertical line x = 2000. The floor is y = 0 and the stair begins at the origin (0, 0).

STAIR
- The left flight: six risers of 170 and five treads of 280. From (0, 0) up to (0, 170), right to (280, 170), up to \
(280, 340), right to (560, 340), and so on, until the sixth riser ends at (1400, 1020).
- The landing from (1400, 1020) to (2600, 1020).
- The right flight is the mirror image of the left one and ends at (4000, 0).
- The floor line from (0, 0) to (4000, 0).

RAIL
- A baluster stands on the middle of each tread: 900 high, so the first one runs from (140, 170) to (140, 1070), the \
second from (420, 340) to (420, 1240), and the fifth from (1260, 850) to (1260, 1750). The right flight has the \
mirror images: the last one runs from (3860, 170) to (3860, 1070).
- Three posts on the landing at x = 1540, x = 2000 and x = 2460, each from y = 1020 to y = 1920.
- The handrail: from (140, 1070) to (1540, 1920) to (2460, 1920) to (3860, 1070).

TEXT (single-line texts; the insertion point is the left end of the baseline)
- "UP" at (800, 200), height 150.
- "LANDING" at (1620, 600), height 150.
- "DOWN" at (2700, 200), height 150.

DIM
- The full length, 4000: a horizontal dimension from (0, 0) to (4000, 0) with its line at y = -350.
- The handrail over the landing, 920: a horizontal dimension from (1540, 1920) to (2460, 1920) with its line at y = \
2150.
- The total rise, 1020: a vertical dimension from (0, 0) to (1400, 1020) with its line at x = -350."""

STEPS = 5


def gold() -> Drawing:
    """The double stair."""
    sheet = Sheet(VIEW, LAYERS)
    flight = [(0.0, 0.0)]
    for step in range(STEPS + 1):
        flight += [(280.0 * step, 170.0 * (step + 1)), (280.0 * (step + 1), 170.0 * (step + 1))]
    # The sixth tread is the landing.
    flight[-1] = (2000, 1020)
    posts = [(140.0 + 280 * step, 170.0 * (step + 1)) for step in range(STEPS)] + [(1540, 1020)]
    for foot, way in ((0, 1), (4000, -1)):
        sheet.lines("STAIR", *((foot + way * x, y) for x, y in flight))
        for x, y in posts:
            sheet.lines("RAIL", (foot + way * x, y), (foot + way * x, y + 900))
    sheet.lines("STAIR", (0, 0), (4000, 0))
    sheet.lines("RAIL", (2000, 1020), (2000, 1920))
    sheet.lines("RAIL", (140, 1070), (1540, 1920), (2460, 1920), (3860, 1070))
    sheet.text("TEXT", "UP", (800, 200), 150)
    sheet.text("TEXT", "LANDING", (1620, 600), 150)
    sheet.text("TEXT", "DOWN", (2700, 200), 150)
    sheet.horizontal("DIM", (0, 0), (4000, 0), -350)
    sheet.horizontal("DIM", (1540, 1920), (2460, 1920), 2150)
    sheet.vertical("DIM", (0, 0), (1400, 1020), -350)
    return sheet.drawing


TASK = TaskDefinition(
    task_id="stair",
    title="Double stair of equal steps",
    view=VIEW,
    layers=LAYERS,
    brief=BRIEF,
    gold=gold,
    turns=(
        [focus(), *new_layer(STAIR)],
        # One step, then four copies of it.
        [
            *run("line 0,0 0,170 280,170 k"),
            drag(VIEW.to_px(-100, 250), VIEW.to_px(350, -100)),
            *copy_times(4, start="0,0", end="280,170"),
        ],
        run("line 1400,850 1400,1020 2000,1020 k", "line 0,0 2000,0 k"),
        [*new_layer(RAIL), *run("line 140,170 140,1070 k", "line 140,1070 1540,1920 k")],
        # The lowest baluster alone fits into this window, the handrail does not.
        [
            drag(VIEW.to_px(60, 1150), VIEW.to_px(230, 100)),
            *copy_times(4, start="0,0", end="280,170"),
            *run("line 1540,1020 1540,1920 k"),
        ],
        # Flight, balusters and handrail of the left side; copies keep the layers of their originals.
        [drag(VIEW.to_px(-150, 2050), VIEW.to_px(2060, -100)), *mirror_and_keep("2000,0", "2000,1000")],
        run("line 2000,1020 2000,1920 k", "line 1540,1920 2460,1920 k"),
        [
            *new_layer(TEXT),
            *place_text("UP", height="150", at="800,200"),
        ],
        [*place_text("LANDING", height="150", at="1620,600"), *place_text("DOWN", height="150", at="2700,200")],
        [
            *new_layer(DIM),
            *run("dh 0,0 4000,0 2000,-350 k", "dh 1540,1920 2460,1920 2000,2150 k", "dv 0,0 1400,1020 -350,500 k"),
        ],
    ),
    summary="Both flights, the landing, the rail, texts and dimensions are drawn, and saved.",
)
