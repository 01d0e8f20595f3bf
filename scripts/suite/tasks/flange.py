"""A square flange: rounded corners, a hole pattern on a bolt circle, centre lines."""

from __future__ import annotations

from ezdxf.document import Drawing

from scripts.suite.model import Layer, TaskDefinition
from scripts.suite.seed import View
from scripts.suite.sheet import Sheet, polar
from scripts.suite.steps import fillet, focus, new_layer, run

VIEW = View(center=(0, 0), px_per_unit=5)
OUTLINE = Layer("OUTLINE", width_mm=0.5)
HOLES = Layer("HOLES", "red", width_mm=0.25)
CENTER = Layer("CENTER", "cyan", "center")
LAYERS = (OUTLINE, HOLES, CENTER)

BRIEF = """\
The front view of a square flange whose middle is the origin (0, 0).

OUTLINE
- A square of 130 x 130 from (-65, -65) to (65, 65). Its four corners are rounded with fillets of radius 20 (arc \
centres (45, 45), (-45, 45), (-45, -45), (45, -45)); the straight sides end where the arcs begin.
- The raised face: a circle of diameter 68 (radius 34) about (0, 0).

HOLES
- The bore: diameter 44 (radius 22) about (0, 0).
- Eight bolt holes of diameter 9 (radius 4.5), their centres evenly spread on the bolt circle of radius 46 about (0, \
0), at 0°, 45°, 90°, 135°, 180°, 225°, 270° and 315°.
- Four corner holes of diameter 12 (radius 6) with centres at (50, 50), (-50, 50), (-50, -50) and (50, -50).

CENTER
- The bolt circle: diameter 92 (radius 46) about (0, 0).
- A horizontal centre line from (-75, 0) to (75, 0) and a vertical one from (0, -75) to (0, 75)."""

BOLT_ANGLES_DEG = (0, 45, 90, 135, 180, 225, 270, 315)


def gold() -> Drawing:
    """The flange."""
    sheet = Sheet(VIEW, LAYERS)
    for start, end in (((-45, -65), (45, -65)), ((65, -45), (65, 45)), ((45, 65), (-45, 65)), ((-65, 45), (-65, -45))):
        sheet.lines("OUTLINE", start, end)
    for center, start_deg in (((45, 45), 0), ((-45, 45), 90), ((-45, -45), 180), ((45, -45), 270)):
        sheet.arc("OUTLINE", center, 20, start_deg, start_deg + 90)
    sheet.circles("OUTLINE", 34, (0, 0))
    sheet.circles("HOLES", 22, (0, 0))
    sheet.circles("HOLES", 4.5, *polar(46, BOLT_ANGLES_DEG))
    sheet.circles("HOLES", 6, (50, 50), (-50, 50), (-50, -50), (50, -50))
    sheet.circles("CENTER", 46, (0, 0))
    sheet.lines("CENTER", (-75, 0), (75, 0))
    sheet.lines("CENTER", (0, -75), (0, 75))
    return sheet.drawing


# Three pixels inside each side: LibreCAD rounds the corner towards the second pick.
_BOTTOM, _RIGHT = VIEW.to_px(0, -64.4), VIEW.to_px(64.4, 0)
_TOP, _LEFT = VIEW.to_px(0, 64.4), VIEW.to_px(-64.4, 0)

TASK = TaskDefinition(
    task_id="flange",
    title="Square flange with a bolt circle",
    view=VIEW,
    layers=LAYERS,
    brief=BRIEF,
    gold=gold,
    turns=(
        [focus(), *new_layer(OUTLINE)],
        run("line -65,-65 65,-65 65,65 -65,65 close k"),
        fillet("20", [(_BOTTOM, _RIGHT), (_RIGHT, _TOP), (_TOP, _LEFT), (_LEFT, _BOTTOM)]),
        run("circle 0,0 34 k"),
        [*new_layer(HOLES), *run("circle 0,0 22 k")],
        # Polar coordinates: distance from the origin < angle.
        run(*(f"circle 46<{angle} 4.5 k" for angle in BOLT_ANGLES_DEG)),
        run("circle 50,50 6 k", "circle -50,50 6 k", "circle -50,-50 6 k", "circle 50,-50 6 k"),
        [*new_layer(CENTER), *run("circle 0,0 46 k", "line -75,0 75,0 k", "line 0,-75 0,75 k")],
    ),
    summary="The flange is drawn on layers OUTLINE, HOLES and CENTER, and saved.",
)
