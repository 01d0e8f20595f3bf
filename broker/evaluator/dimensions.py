"""Dimensions from their definition points: what is measured, what is written, and the strokes that show it.

Their rendered block is never read: it may be missing, and it may show anything.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ezdxf.math import Matrix44, Vec3

from broker.evaluator.curves import Geom, map_direction, map_point, xyz
from broker.evaluator.texts import plain_line, plain_paragraphs

# Lower three bits of group 70 (DXF reference).
_KINDS: Final = {
    0: "linear",
    1: "aligned",
    2: "angular",
    3: "diameter",
    4: "radius",
    5: "angular",
    6: "ordinate",
}
_POINT_NAMES: Final = {
    "linear": ("defpoint2", "defpoint3", "defpoint"),
    "aligned": ("defpoint2", "defpoint3", "defpoint"),
    "angular": ("defpoint2", "defpoint3", "defpoint4", "defpoint", "defpoint5"),
    "diameter": ("defpoint", "defpoint4"),
    "radius": ("defpoint", "defpoint4"),
    "ordinate": ("defpoint", "defpoint2", "defpoint3"),
    "arc_length": ("defpoint2", "defpoint3", "defpoint4", "defpoint"),
}
# Defaults of a dimension style (DXF reference).
_DEFAULTS: Final[dict[str, Any]] = {
    "dimdec": 4,
    "dimadec": 0,
    "dimzin": 8,
    "dimlfac": 1.0,
    "dimrnd": 0.0,
    "dimdsep": ord("."),
    "dimpost": "",
    "dimtxt": 2.5,
    "dimscale": 1.0,
    "dimasz": 2.5,
}


class Dimension(NamedTuple):
    """A dimension record and what is needed to draw it, in drawing units."""

    geom: Geom
    text_height: float
    text_rotation_deg: float
    strokes: list[list[Vec3]]


def dimension_of(entity: Any, frame: Matrix44 | None) -> Dimension:
    """Any DIMENSION; `frame` maps the world of its block to the drawing's."""
    dxf = entity.dxf
    kind = "arc_length" if entity.dxftype() == "ARC_DIMENSION" else _KINDS.get(int(dxf.get("dimtype", 0)) & 7, "linear")
    points = [map_point(frame, Vec3(dxf.get(name))) for name in _POINT_NAMES[kind] if dxf.hasattr(name)]
    along = _measuring_direction(entity, frame, kind, points)
    measured = _measure(entity, kind, points, along)
    style = _style(entity)
    override = str(dxf.get("text", ""))
    middle = map_point(frame, entity.ocs().to_wcs(Vec3(dxf.text_midpoint))) if dxf.hasattr("text_midpoint") else None
    scale = map_direction(frame, Vec3(0, 1, 0)).magnitude
    factor = (float(style["dimscale"]) or 1.0) * scale
    geom = {
        "dim_kind": kind,
        "points": [xyz(point) for point in points],
        "measurement": measured,
        "text_shown": _shown(override, kind, measured, style),
        "text_override": "" if override == "<>" else override,
        "text_center": None if middle is None else xyz(middle),
    }
    arrow = float(style["dimasz"]) * factor
    turn_deg = math.degrees(math.atan2(along.y, along.x)) if kind in ("linear", "aligned") else 0.0
    # Written so that it is read from below or from the right.
    turn_deg = turn_deg - 180.0 if 90.0 + 1e-6 < turn_deg % 360.0 <= 270.0 + 1e-6 else turn_deg
    return Dimension(geom, float(style["dimtxt"]) * factor, turn_deg, _strokes(kind, points, along, middle, arrow))


def _measuring_direction(entity: Any, frame: Matrix44 | None, kind: str, points: list[Vec3]) -> Vec3:
    if kind == "linear":
        local = Vec3.from_deg_angle(float(entity.dxf.get("angle", 0.0)))
        direction = map_direction(frame, entity.ocs().to_wcs(local))
    elif kind == "aligned" and len(points) >= 2:
        direction = points[1] - points[0]
    else:
        direction = map_direction(frame, Vec3(1, 0, 0))
    return direction.normalize() if direction.magnitude else Vec3(1, 0, 0)


def _measure(entity: Any, kind: str, points: list[Vec3], along: Vec3) -> float | None:
    dxf = entity.dxf
    if kind == "linear" and len(points) >= 2:
        return float(abs((points[1] - points[0]).dot(along)))
    if kind in ("aligned", "diameter", "radius") and len(points) >= 2:
        return float(points[0].distance(points[1]))
    if kind == "ordinate" and len(points) >= 2:
        offset = points[1] - points[0]
        return float(abs(offset.x if int(dxf.get("dimtype", 0)) & 64 else offset.y))
    if kind == "angular":
        return _angle_deg(int(dxf.get("dimtype", 0)) & 7, points)
    stored = dxf.get("actual_measurement")
    return None if stored is None else float(stored)


def _angle_deg(dim_type: int, points: list[Vec3]) -> float | None:
    if dim_type == 5 and len(points) >= 3:
        # Three points: two on the sides, then the vertex.
        first, second = points[0] - points[2], points[1] - points[2]
    elif len(points) >= 4:
        first, second = points[1] - points[0], points[3] - points[2]
    else:
        return None
    return float(second.angle_deg - first.angle_deg) % 360.0


def _style(entity: Any) -> dict[str, Any]:
    """The dimension variables: the entity's own, else its style's, else the defaults."""
    override = entity.override()
    return {name: override.get(name, default) for name, default in _DEFAULTS.items()}


def _shown(override: str, kind: str, measured: float | None, style: dict[str, Any]) -> str:
    if override == " ":
        return ""
    own = _formatted(kind, measured, style)
    if override in ("", "<>"):
        return own
    text = "\n".join(plain_paragraphs(override)) if "\\" in override or "{" in override else plain_line(override)
    return text.replace("<>", own)


def _formatted(kind: str, measured: float | None, style: dict[str, Any]) -> str:
    if measured is None:
        return ""
    if kind == "angular":
        return f"{_number(measured, int(style['dimadec']), style)}°"
    value = measured * float(style["dimlfac"])
    if style["dimrnd"]:
        value = round(value / float(style["dimrnd"])) * float(style["dimrnd"])
    number = {"diameter": "⌀", "radius": "R"}.get(kind, "") + _number(value, int(style["dimdec"]), style)
    post = plain_line(str(style["dimpost"]))
    return post.replace("<>", number) if "<>" in post else number + post


def _number(value: float, decimals: int, style: dict[str, Any]) -> str:
    text = f"{value:.{min(max(decimals, 0), 8)}f}"
    zeros = int(style["dimzin"])
    if zeros & 8 and "." in text:
        text = text.rstrip("0").rstrip(".")
    if zeros & 4 and text.startswith("0."):
        text = text[1:]
    separator = style["dimdsep"]
    return text.replace(".", chr(separator) if isinstance(separator, int) and separator > 32 else ".")


def _strokes(kind: str, points: list[Vec3], along: Vec3, middle: Vec3 | None, arrow: float) -> list[list[Vec3]]:
    if kind in ("linear", "aligned") and len(points) == 3:
        first, second, place = points
        foot = [p + _across(place - p, along) for p in (first, second)]
        lines = [[first, foot[0]], [second, foot[1]], [foot[0], foot[1]]]
        return lines + _arrow(foot[0], foot[1], arrow) + _arrow(foot[1], foot[0], arrow)
    if kind in ("diameter", "radius") and len(points) == 2:
        near, far = points
        lines = [[near, far], *_arrow(far, near, arrow)]
        if kind == "diameter":
            lines += _arrow(near, far, arrow)
        return lines if middle is None else [*lines, [far, middle]]
    return [[a, b] for a, b in pairwise(points)]


def _across(offset: Vec3, along: Vec3) -> Vec3:
    return offset - along * offset.dot(along)


def _arrow(tip: Vec3, toward: Vec3, size: float) -> list[list[Vec3]]:
    direction = toward - tip
    if not direction.magnitude:
        return []
    back = direction.normalize(min(size, direction.magnitude / 3))
    side = Vec3(-back.y, back.x) * (1 / 6)
    return [[tip, tip + back + side], [tip, tip + back - side]]
