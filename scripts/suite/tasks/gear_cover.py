"""A gear housing cover: arch, foot with fillets, bolt pattern, linear, diameter and radius dimensions, texts."""

from __future__ import annotations

from ezdxf.document import Drawing

from scripts.suite.model import Layer, TaskDefinition
from scripts.suite.seed import View
from scripts.suite.sheet import Sheet, polar
from scripts.suite.steps import click, drag, fillet, focus, mirror_and_keep, new_layer, place_text, run

VIEW = View(center=(0, -5), px_per_unit=3.8, annotation_scale=1.5)
OUTLINE = Layer("OUTLINE", width_mm=0.5)
HOLES = Layer("HOLES", "red", width_mm=0.25)
CENTER = Layer("CENTER", "cyan", "center")
TEXT = Layer("TEXT", "yellow")
DIM = Layer("DIM", "green")
LAYERS = (OUTLINE, HOLES, CENTER, TEXT, DIM)

BRIEF = """\
The front view of a gear housing cover: a round arch on a wide foot, symmetrical about x = 0. The origin (0, 0) is \
the axis of the large bore and the centre of the arch.

OUTLINE
- The contour: a half circle of radius 70 about (0, 0) from (70, 0) over (0, 70) to (-70, 0); from both its ends \
vertical sides down towards y = -60; there the foot begins, 200 wide and 25 high, with its top on y = -60, its ends \
on x = -100 and x = 100, and its bottom from (-100, -85) to (100, -85).
- The inner corners (70, -60) and (-70, -60) are rounded with fillets of radius 12 (arc centres (82, -48) and (-82, \
-48)).
- The upper outer corners of the foot, (100, -60) and (-100, -60), are rounded with fillets of radius 8 (arc centres \
(92, -68) and (-92, -68)). The lower corners stay sharp. Straight sides end where the arcs begin.
- A boss around the large bore: a circle of diameter 76 (radius 38) about (0, 0).
- A boss around the small bore: a circle of diameter 36 (radius 18) about (0, -58).

HOLES
- The large bore: diameter 56 (radius 28) about (0, 0). The small bore: diameter 24 (radius 12) about (0, -58).
- Six screw holes of diameter 9 (radius 4.5) at distance 57 from (0, 0), at 0°, 36°, 72°, 108°, 144° and 180°.
- Two foot holes of diameter 11 (radius 5.5) with centres at (-85, -72.5) and (85, -72.5).

CENTER
- The line of the screw holes: a half circle of radius 57 about (0, 0) from (57, 0) over (0, 57) to (-57, 0).
- Horizontal lines from (-80, 0) to (80, 0) and from (-25, -58) to (25, -58).
- Vertical lines from (0, -92) to (0, 80), from (-85, -81) to (-85, -64) and from (85, -81) to (85, -64).

TEXT (single-line texts; the insertion point is the left end of the baseline)
- "GEAR COVER" at (-125, 85), height 8.
- "6 x M8" at (-110, 55), height 5.
- "2 x Ø11" at (-70, -81), height 5.

DIM
- The width of the foot, 200: a horizontal dimension from (-100, -85) to (100, -85) with its line at y = -103.
- The height of the foot, 25: a vertical dimension from (100, -85) to (100, -60) with its line at x = 118.
- The full height, 155: a vertical dimension from (-100, -85) to (0, 70) with its line at x = -120.
- The diameter of the large bore, 56: a diameter dimension of its circle along the direction of 135°.
- The radius of the arch, 70: a radius dimension of its arc, from (0, 0) along the direction of 54°."""

SCREW_ANGLES_DEG = (0, 36, 72, 108, 144, 180)


def gold() -> Drawing:
    """The cover."""
    sheet = Sheet(VIEW, LAYERS)
    sheet.arc("OUTLINE", (0, 0), 70, 0, 180)
    for side in (1, -1):
        sheet.lines("OUTLINE", (side * 70, 0), (side * 70, -48))
        sheet.lines("OUTLINE", (side * 82, -60), (side * 92, -60))
        sheet.lines("OUTLINE", (side * 100, -68), (side * 100, -85))
    sheet.arc("OUTLINE", (82, -48), 12, 180, 270)
    sheet.arc("OUTLINE", (-82, -48), 12, 270, 0)
    sheet.arc("OUTLINE", (92, -68), 8, 0, 90)
    sheet.arc("OUTLINE", (-92, -68), 8, 90, 180)
    sheet.lines("OUTLINE", (-100, -85), (100, -85))
    sheet.circles("OUTLINE", 38, (0, 0))
    sheet.circles("OUTLINE", 18, (0, -58))
    sheet.circles("HOLES", 28, (0, 0))
    sheet.circles("HOLES", 12, (0, -58))
    sheet.circles("HOLES", 4.5, *polar(57, SCREW_ANGLES_DEG))
    sheet.circles("HOLES", 5.5, (-85, -72.5), (85, -72.5))
    sheet.arc("CENTER", (0, 0), 57, 0, 180)
    sheet.lines("CENTER", (-80, 0), (80, 0))
    sheet.lines("CENTER", (-25, -58), (25, -58))
    sheet.lines("CENTER", (0, -92), (0, 80))
    sheet.lines("CENTER", (-85, -81), (-85, -64))
    sheet.lines("CENTER", (85, -81), (85, -64))
    sheet.text("TEXT", "GEAR COVER", (-125, 85), 8)
    sheet.text("TEXT", "6 x M8", (-110, 55), 5)
    sheet.text("TEXT", "2 x Ø11", (-70, -81), 5)
    sheet.horizontal("DIM", (-100, -85), (100, -85), -103)
    sheet.vertical("DIM", (100, -85), (100, -60), 118)
    sheet.vertical("DIM", (-100, -85), (0, 70), -120)
    sheet.diameter("DIM", (0, 0), 28, 135)
    sheet.radius("DIM", (0, 0), 70, 54)
    return sheet.drawing


# A few pixels beside each side, where the arc's centre lies: LibreCAD rounds the corner towards the second pick.
_SIDE, _TOP_ABOVE = VIEW.to_px(70.8, -25), VIEW.to_px(87, -59.2)
_TOP_BELOW, _END = VIEW.to_px(87, -60.8), VIEW.to_px(99.2, -77)

TASK = TaskDefinition(
    task_id="gear-cover",
    title="Gear housing cover",
    view=VIEW,
    layers=LAYERS,
    brief=BRIEF,
    gold=gold,
    turns=(
        [focus(), *new_layer(OUTLINE)],
        run("arc 70,0 0,70 -70,0 k", "line 70,0 70,-60 100,-60 100,-85 k"),
        # The right side with its fillets, then the left one as its mirror image.
        fillet("12", [(_SIDE, _TOP_ABOVE)]),
        fillet("8", [(_TOP_BELOW, _END)]),
        [drag(VIEW.to_px(60, 5), VIEW.to_px(110, -95)), *mirror_and_keep("0,0", "0,10")],
        run("line -100,-85 100,-85 k", "circle 0,0 38 k", "circle 0,-58 18 k"),
        [
            *new_layer(HOLES),
            *run("circle 0,0 28 k", "circle 0,-58 12 k", "circle -85,-72.5 5.5 k", "circle 85,-72.5 5.5 k"),
        ],
        run(*(f"circle 57<{angle} 4.5 k" for angle in SCREW_ANGLES_DEG)),
        [*new_layer(CENTER), *run("arc 57,0 0,57 -57,0 k", "line -80,0 80,0 k", "line -25,-58 25,-58 k")],
        run("line 0,-92 0,80 k", "line -85,-81 -85,-64 k", "line 85,-81 85,-64 k"),
        [*new_layer(TEXT), *place_text("GEAR COVER", height="8", at="-125,85")],
        [*place_text("6 x M8", height="5", at="-110,55"), *place_text("2 x Ø11", height="5", at="-70,-81")],
        [
            *new_layer(DIM),
            *run("dh -100,-85 100,-85 0,-103 k", "dv 100,-85 100,-60 118,-72 k", "dv -100,-85 0,70 -120,0 k"),
        ],
        # Circle and arc by mouse, directions by a point on them.
        [*run("dimdiametric"), click(VIEW.to_px(-19.8, 19.8)), focus(), *run("-40,40", "k")],
        [*run("dimradial"), click(VIEW.to_px(-49.5, 49.5)), focus(), *run("80<54", "k")],
    ),
    summary="The cover is drawn on five layers with texts and dimensions, and saved.",
)
