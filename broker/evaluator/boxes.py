"""Boxes around records, from their own points: header variables and library boxes are not trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ezdxf.math import Vec3

from broker.evaluator.curves import TURN, bulge_arc

Point = tuple[float, float, float]
Box = dict[str, Point]


def box_of_points(points: Iterable[Point]) -> Box | None:
    """The box around all points, or None without any."""
    listed = list(points)
    if not listed:
        return None
    xs, ys, zs = zip(*listed, strict=True)
    return {"min": (min(xs), min(ys), min(zs)), "max": (max(xs), max(ys), max(zs))}


def box_of_boxes(boxes: Iterable[Box | None]) -> Box | None:
    """The box around all boxes."""
    return box_of_points(corner for box in boxes if box for corner in (box["min"], box["max"]))


def sized(box: Box | None) -> dict[str, Point] | None:
    """The box with its edge lengths."""
    if box is None:
        return None
    low, high = box["min"], box["max"]
    return {"min": low, "max": high, "size": (high[0] - low[0], high[1] - low[1], high[2] - low[2])}


def diagonal(box: Box | None) -> float:
    """Corner to corner; 0 without a box."""
    return math.dist(box["min"], box["max"]) if box else 0.0


def box_of_curve(kind: str, geom: dict[str, Any]) -> Box | None:
    """The tight box around a curve or a point; None for other kinds."""
    match kind:
        case "line":
            return box_of_points((geom["start"], geom["end"]))
        case "polyline":
            return box_of_bulged(geom["vertices"], geom["bulges"], is_closed=geom["is_closed"])
        case "circle":
            return box_of_points(_arc_points(geom["center"], geom["radius"], 0.0, TURN))
        case "arc":
            start, end = math.radians(geom["start_deg"]), math.radians(geom["end_deg"])
            return box_of_points(_arc_points(geom["center"], geom["radius"], start, (end - start) % TURN or TURN))
        case "ellipse":
            return box_of_points(_ellipse_points(geom))
        case "point":
            return box_of_points((geom["position"],))
        case _:
            return None


def box_of_bulged(vertices: Sequence[Point], bulges: Sequence[float], *, is_closed: bool) -> Box | None:
    """The tight box around a polyline whose arcs lie parallel to XY."""
    points = list(vertices)
    count = len(vertices) if is_closed else len(vertices) - 1
    for i in range(count if any(bulges) else 0):
        start, end = Vec3(vertices[i]), Vec3(vertices[(i + 1) % len(vertices)])
        if bulges[i] and not start.isclose(end, abs_tol=0.0):
            center, radius, first, sweep = bulge_arc(start, end, bulges[i])
            first, sweep = (first, sweep) if sweep > 0 else (first + sweep, -sweep)
            points += _extremes((center.x, center.y, center.z), radius, first, sweep)
    return box_of_points(points)


def _arc_points(center: Point, radius: float, start: float, sweep: float) -> list[Point]:
    x, y, z = center
    ends = [(x + radius * math.cos(t), y + radius * math.sin(t), z) for t in (start, start + sweep)]
    # A full circle's end points carry rounding; its extremes do not.
    return ([] if sweep >= TURN else ends) + _extremes(center, radius, start, sweep)


def _extremes(center: Point, radius: float, start: float, sweep: float) -> list[Point]:
    x, y, z = center
    axes = ((1, 0), (0, 1), (-1, 0), (0, -1))
    return [
        (x + dx * radius, y + dy * radius, z)
        for k, (dx, dy) in enumerate(axes)
        if (k * math.pi / 2 - start) % TURN <= sweep
    ]


def _ellipse_points(geom: dict[str, Any]) -> list[Point]:
    cx, cy, cz = geom["center"]
    ux, uy, _ = geom["major_axis"]
    vx, vy = -uy * geom["ratio"], ux * geom["ratio"]
    start, sweep = geom["start_rad"], geom["end_rad"] - geom["start_rad"]
    # Where the derivative of one coordinate is zero.
    in_x, in_y = math.atan2(vx, ux), math.atan2(vy, uy)
    turning = [t for t in (in_x, in_x + math.pi, in_y, in_y + math.pi) if (t - start) % TURN <= sweep]
    return [
        (cx + ux * math.cos(t) + vx * math.sin(t), cy + uy * math.cos(t) + vy * math.sin(t), cz)
        for t in (start, start + sweep, *turning)
    ]
