"""Draws a gold with ezdxf: the entities that a careful draughtsman leaves, from numbers alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import cos, radians, sin

from ezdxf.document import Drawing

from scripts.suite.dimensions import DimensionStyle, add_diameter, add_linear, add_radius
from scripts.suite.model import COLOR_INDEX, LINETYPE_NAME, Layer
from scripts.suite.seed import View, new_drawing

Point = tuple[float, float]

# Dash, gap, dash, gap in millimetres, as LibreCAD 2.2 writes them into the files that it saves.
_PATTERNS = {
    "CENTER": ("Center ____ _ ____ _ ____ _ ____ _ ____ _ ____", [50.8, 31.75, -6.35, 6.35, -6.35]),
    "DASHED": ("Dashed _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _", [19.05, 12.7, -6.35]),
}


class Sheet:
    """A drawing with layers; every method adds entities to one of them, with all properties by layer."""

    def __init__(self, view: View, layers: Iterable[Layer]) -> None:
        self.drawing: Drawing = new_drawing(view)
        self._space = self.drawing.modelspace()
        self._style = DimensionStyle(view.annotation_scale)
        # LibreCAD names its stroke font so; the width of a text is estimated by the font that its style names.
        self.drawing.styles.get("Standard").dxf.font = "standard"
        for name, (description, pattern) in _PATTERNS.items():
            self.drawing.linetypes.add(name, pattern, description=description)
        for layer in layers:
            self.drawing.layers.add(
                layer.name,
                color=COLOR_INDEX[layer.color],
                linetype=LINETYPE_NAME[layer.linetype],
                # In 1/100 mm.
                lineweight=round(layer.width_mm * 100),
            )

    def lines(self, layer: str, *points: Point, close: bool = False) -> None:
        """Straight lines from point to point."""
        ends = [*points[1:], points[0]] if close else points[1:]
        for start, end in zip(points, ends, strict=False):
            self._space.add_line(start, end, dxfattribs={"layer": layer})

    def rectangle(self, layer: str, corner: Point, opposite: Point) -> None:
        """A closed polyline."""
        (x0, y0), (x1, y1) = corner, opposite
        corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
        self._space.add_lwpolyline(corners, close=True, dxfattribs={"layer": layer})

    def circles(self, layer: str, radius: float, *centers: Point) -> None:
        """Circles of one radius."""
        for center in centers:
            self._space.add_circle(center, radius, dxfattribs={"layer": layer})

    def arc(self, layer: str, center: Point, radius: float, start_deg: float, end_deg: float) -> None:
        """An arc, counter-clockwise."""
        self._space.add_arc(center, radius, start_deg, end_deg, dxfattribs={"layer": layer})

    def slot(self, layer: str, first: Point, second: Point, radius: float) -> None:
        """Two half circles about two points on a horizontal or vertical axis, and the two lines that touch them."""
        (x0, y0), (x1, y1) = sorted((first, second))
        if y0 == y1:
            self.lines(layer, (x0, y0 + radius), (x1, y1 + radius))
            self.lines(layer, (x0, y0 - radius), (x1, y1 - radius))
            self.arc(layer, (x0, y0), radius, 90, 270)
            self.arc(layer, (x1, y1), radius, 270, 90)
        else:
            assert x0 == x1, "a slot lies along an axis"
            self.lines(layer, (x0 + radius, y0), (x1 + radius, y1))
            self.lines(layer, (x0 - radius, y0), (x1 - radius, y1))
            self.arc(layer, (x0, y0), radius, 180, 0)
            self.arc(layer, (x1, y1), radius, 0, 180)

    def text(self, layer: str, content: str, at: Point, height: float) -> None:
        """A single line of text whose baseline begins at `at`."""
        self._space.add_text(content, height=height, dxfattribs={"layer": layer, "insert": at, "style": "Standard"})

    def horizontal(self, layer: str, first: Point, second: Point, line_y: float) -> None:
        """A horizontal dimension with its line at `line_y`."""
        add_linear(self.drawing, layer, self._style, first=first, second=second, line_at=line_y, is_vertical=False)

    def vertical(self, layer: str, first: Point, second: Point, line_x: float) -> None:
        """A vertical dimension with its line at `line_x`."""
        add_linear(self.drawing, layer, self._style, first=first, second=second, line_at=line_x, is_vertical=True)

    def diameter(self, layer: str, center: Point, radius: float, angle_deg: float) -> None:
        """A diameter dimension through the centre, along `angle_deg`."""
        add_diameter(self.drawing, layer, self._style, center=center, radius=radius, angle_deg=angle_deg)

    def radius(self, layer: str, center: Point, radius: float, angle_deg: float) -> None:
        """A radius dimension from the centre to the curve, along `angle_deg`."""
        add_radius(self.drawing, layer, self._style, center=center, radius=radius, angle_deg=angle_deg)


def polar(radius: float, angles_deg: Sequence[float]) -> list[Point]:
    """Points on a circle about the origin. Whole multiples of 90 degrees are exact."""
    return [(round(radius * cos(radians(a)), 9), round(radius * sin(radians(a)), 9)) for a in angles_deg]
