"""Dimensions as LibreCAD writes them: the definition, and a block that shows it with line, arrows and text."""

from __future__ import annotations

from dataclasses import dataclass
from math import atan2, cos, degrees, dist, hypot, radians, sin
from typing import Any

from ezdxf.document import Drawing

from scripts.suite.seed import DIMENSION_TEXT_MM

Point = tuple[float, float]

# Sizes on paper in millimetres, equal to the header values of the start drawing.
_ARROW_MM = DIMENSION_TEXT_MM
_GAP_MM = 1.0
_EXTENSION_OFFSET_MM = 1.0
_EXTENSION_BEYOND_MM = 2.0
# DXF group 70 of DIMENSION: kind, plus 32 because the block is this dimension's own.
_LINEAR, _DIAMETER, _RADIUS = 32, 35, 36
_ATTACH_MIDDLE_CENTER = 5


@dataclass(frozen=True, slots=True)
class DimensionStyle:
    """How many drawing units a millimetre on paper is."""

    scale: float

    @property
    def text_height(self) -> float:
        """In drawing units."""
        return DIMENSION_TEXT_MM * self.scale

    @property
    def arrow(self) -> float:
        """Length of an arrow in drawing units."""
        return _ARROW_MM * self.scale

    @property
    def text_offset(self) -> float:
        """From the dimension line to the middle of the text."""
        return (_GAP_MM + DIMENSION_TEXT_MM / 2) * self.scale


def add_linear(
    drawing: Drawing,
    layer: str,
    style: DimensionStyle,
    *,
    first: Point,
    second: Point,
    line_at: float,
    is_vertical: bool,
) -> None:
    """A horizontal or vertical dimension between two points; its line runs through y (x when vertical) = `line_at`."""
    ends = [(line_at, y) if is_vertical else (x, line_at) for x, y in (first, second)]
    block = _Block(drawing, layer, style)
    for origin, end in zip((first, second), ends, strict=True):
        block.extension(origin, end)
    middle = block.dimension_line(ends[0], ends[1], arrows="both")
    definition = {"dimtype": _LINEAR, "defpoint": ends[1], "defpoint2": first, "defpoint3": second}
    if is_vertical:
        definition["angle"] = 90.0
    block.define(definition, middle)


def add_diameter(
    drawing: Drawing, layer: str, style: DimensionStyle, *, center: Point, radius: float, angle_deg: float
) -> None:
    """A diameter through the centre; the second point lies at `angle_deg`."""
    near, far = _on(center, radius, angle_deg), _on(center, radius, angle_deg + 180)
    block = _Block(drawing, layer, style)
    middle = block.dimension_line(far, near, arrows="both")
    block.define({"dimtype": _DIAMETER, "defpoint": far, "defpoint4": near, "leader_length": 0.0}, middle)


def add_radius(
    drawing: Drawing, layer: str, style: DimensionStyle, *, center: Point, radius: float, angle_deg: float
) -> None:
    """A radius from the centre to the curve at `angle_deg`."""
    end = _on(center, radius, angle_deg)
    block = _Block(drawing, layer, style)
    middle = block.dimension_line(center, end, arrows="end")
    block.define({"dimtype": _RADIUS, "defpoint": center, "defpoint4": end, "leader_length": 0.0}, middle)


def _on(center: Point, radius: float, angle_deg: float) -> Point:
    angle = radians(angle_deg)
    return (round(center[0] + radius * cos(angle), 9), round(center[1] + radius * sin(angle), 9))


class _Block:
    """The picture of one dimension, and at last the dimension itself."""

    def __init__(self, drawing: Drawing, layer: str, style: DimensionStyle) -> None:
        self._space = drawing.modelspace()
        self._layer = layer
        self._style = style
        self._block = drawing.blocks.new_anonymous_block(type_char="D")
        # By block: the picture takes colour and line of the dimension.
        self._by_block = {"layer": layer, "color": 0, "linetype": "BYBLOCK"}
        self._text = ""
        self._text_deg = 0.0

    def extension(self, origin: Point, end: Point) -> None:
        length = dist(origin, end)
        along = ((end[0] - origin[0]) / length, (end[1] - origin[1]) / length)
        offset = _EXTENSION_OFFSET_MM * self._style.scale
        beyond = length + _EXTENSION_BEYOND_MM * self._style.scale
        start, stop = ((origin[0] + along[0] * way, origin[1] + along[1] * way) for way in (offset, beyond))
        self._block.add_line(start, stop, dxfattribs=self._by_block)

    def dimension_line(self, start: Point, end: Point, *, arrows: str) -> Point:
        """The line with its arrows and the measured length above its middle. Returns the middle of the text."""
        self._block.add_line(start, end, dxfattribs=self._by_block)
        if arrows == "both":
            self._arrow(start, end)
        self._arrow(end, start)
        length = dist(start, end)
        self._text = f"{length:.2f}".rstrip("0").rstrip(".")
        angle_deg = degrees(atan2(end[1] - start[1], end[0] - start[0]))
        # Readable from below or from the right.
        self._text_deg = angle_deg - 180 if angle_deg > 90 else angle_deg + 180 if angle_deg <= -90 else angle_deg
        up = radians(self._text_deg + 90)
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        offset = self._style.text_offset
        return (round(middle[0] + offset * cos(up), 9), round(middle[1] + offset * sin(up), 9))

    def _arrow(self, tip: Point, tail: Point) -> None:
        length = hypot(tail[0] - tip[0], tail[1] - tip[1])
        along = ((tail[0] - tip[0]) / length, (tail[1] - tip[1]) / length)
        # A third as wide as long.
        back, half = self._style.arrow, self._style.arrow / 6
        left, right = (
            (tip[0] + along[0] * back - side * along[1] * half, tip[1] + along[1] * back + side * along[0] * half)
            for side in (1, -1)
        )
        self._block.add_solid([tip, left, right, right], dxfattribs=self._by_block)

    def define(self, definition: dict[str, Any], text_middle: Point) -> None:
        """Add the dimension to model space."""
        self._block.add_mtext(
            self._text,
            dxfattribs=self._by_block
            | {
                "insert": text_middle,
                "char_height": self._style.text_height,
                "attachment_point": _ATTACH_MIDDLE_CENTER,
                "rotation": self._text_deg,
                "style": "Standard",
            },
        )
        self._space.new_entity(
            "DIMENSION",
            definition
            | {
                "layer": self._layer,
                "geometry": self._block.name,
                "dimstyle": "Standard",
                "text_midpoint": text_middle,
                "attachment_point": _ATTACH_MIDDLE_CENTER,
            },
        )
