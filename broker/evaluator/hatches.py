"""Hatches: boundary loops, the area they enclose, and the strokes of their pattern."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from ezdxf.math import Matrix44, Vec3
from numpy.typing import NDArray

from broker.evaluator.curves import (
    Geom,
    degrees_in_turn,
    flatten_bulges,
    map_point,
    plane_of,
    xyz,
)

# Step of flattened boundary arcs: a sagitta of 1e-4 of the diameter (scoring contract, 3.3).
_STEP_RAD: Final = 2 * math.acos(1 - 2e-4)
_TEXT_BOX_FLAG: Final = 8
# A pattern with more strokes than this is drawn as a filled area would be: by its outline alone.
STROKES_MAX: Final = 50_000
# Families of lines, and dashes of a line, beyond these are left out; no pattern of a CAD program has as many.
FAMILIES_MAX: Final = 100
DASHES_MAX: Final = 20

Loop = tuple[list[Vec3], list[float]]
Polygon = NDArray[np.float64]


class Hatch:
    """One HATCH or MPOLYGON, its boundary in the local plane of `frame`."""

    def __init__(self, entity: Any, frame: Matrix44 | None) -> None:
        elevation = Vec3(entity.dxf.get("elevation", (0, 0, 0))).z
        self._entity = entity
        self._frame = frame
        self._elevation = elevation
        self._loops = [loop for path in entity.paths if (loop := _loop_of(path, elevation)) is not None]
        self._polygons = [
            np.array([(p.x, p.y) for p in flatten_bulges(points, bulges, is_closed=True, step_rad=_STEP_RAD)])
            for points, bulges in self._loops
        ]

    def geom(self) -> Geom:
        """The record, in world coordinates."""
        dxf, plane = self._entity.dxf, plane_of(self._frame)
        loops = []
        for (points, bulges), polygon in zip(self._loops, self._polygons, strict=True):
            if plane.is_horizontal and plane.is_similar:
                signed = [(-bulge if plane.is_mirrored else bulge) + 0.0 for bulge in bulges]
            else:
                points = [Vec3(x, y, self._elevation) for x, y in polygon]
                signed = [0.0] * len(points)
            loops.append({"vertices": [xyz(map_point(self._frame, p)) for p in points], "bulges": signed})
        is_solid = bool(dxf.get("solid_fill", 0))
        turn_deg = 0.0
        if self._frame is not None:
            x = self._frame.transform_direction(Vec3(1, 0, 0))
            turn_deg = math.degrees(math.atan2(x.y, x.x))
        angle_deg = float(dxf.get("pattern_angle", 0.0)) * (-1.0 if plane.is_mirrored else 1.0)
        return {
            "pattern": "SOLID" if is_solid else str(dxf.get("pattern_name", "")).upper(),
            "is_solid": is_solid,
            "scale": float(dxf.get("pattern_scale", 1.0)) * plane.scale,
            "rotation_deg": 0.0 if is_solid else degrees_in_turn(angle_deg + turn_deg),
            "loops": loops,
            "area": _enclosed_area(self._polygons) * plane.scale**2,
        }

    def outlines(self) -> list[list[Vec3]]:
        """The loops as closed polygons of world points."""
        return [[map_point(self._frame, Vec3(x, y, self._elevation)) for x, y in polygon] for polygon in self._polygons]

    def strokes(self, gap_min: float) -> Iterator[tuple[Vec3, Vec3]]:
        """The pattern's strokes in world coordinates; families of lines closer than `gap_min` are left out."""
        pattern = self._entity.pattern
        if pattern is None or self._entity.dxf.get("solid_fill", 0) or not self._polygons:
            return
        scale = plane_of(self._frame).scale or 1.0
        for family in pattern.lines[:FAMILIES_MAX]:
            found = _family_strokes(family, self._polygons, gap_min / scale)
            for ax, ay, bx, by in found:
                start, end = Vec3(ax, ay, self._elevation), Vec3(bx, by, self._elevation)
                yield map_point(self._frame, start), map_point(self._frame, end)


def _loop_of(path: Any, elevation: float) -> Loop | None:
    if path.path_type_flags & _TEXT_BOX_FLAG:
        return None
    points: list[Vec3] = []
    bulges: list[float] = []
    if hasattr(path, "vertices"):
        for x, y, bulge in path.vertices:
            points.append(Vec3(x, y, elevation))
            bulges.append(float(bulge))
    else:
        for edge in path.edges:
            for x, y, bulge in _edge_vertices(edge):
                point = Vec3(x, y, elevation)
                if points and not bulges[-1] and points[-1].isclose(point, rel_tol=1e-12, abs_tol=1e-9):
                    points.pop()
                    bulges.pop()
                points.append(point)
                bulges.append(bulge)
    if len(points) > 1 and points[0].isclose(points[-1], rel_tol=1e-12, abs_tol=1e-9) and not bulges[-1]:
        points.pop()
        bulges.pop()
    return (points, bulges) if len(points) > 1 else None


def _edge_vertices(edge: Any) -> Iterator[tuple[float, float, float]]:
    """Vertices of one edge with the bulge of what follows each; the last has none."""
    name = edge.EDGE_TYPE
    if name == "LineEdge":
        yield edge.start.x, edge.start.y, 0.0
        yield edge.end.x, edge.end.y, 0.0
    elif name == "ArcEdge":
        yield from _arc_vertices(edge)
    else:
        points = [Vec3(p) for p in _flattened_edge(edge)]
        for point in points if getattr(edge, "ccw", True) else reversed(points):
            yield point.x, point.y, 0.0


def _arc_vertices(edge: Any) -> Iterator[tuple[float, float, float]]:
    sweep = math.radians((edge.end_angle - edge.start_angle) % 360.0 or 360.0)
    first = math.radians(edge.start_angle)
    if not edge.ccw:
        first, sweep = first + sweep, -sweep
    # A bulge describes less than a full turn.
    pieces = 2 if abs(sweep) > math.pi else 1
    for k in range(pieces + 1):
        angle = first + sweep * k / pieces
        bulge = math.tan(sweep / pieces / 4) if k < pieces else 0.0
        yield edge.center.x + edge.radius * math.cos(angle), edge.center.y + edge.radius * math.sin(angle), bulge


def _flattened_edge(edge: Any) -> Sequence[Any]:
    tool = edge.construction_tool()
    if edge.EDGE_TYPE == "EllipseEdge":
        count = max(8, math.ceil(((edge.end_param - edge.start_param) % math.tau or math.tau) / _STEP_RAD))
        return list(tool.vertices(tool.params(count + 1)))
    return list(tool.approximate(max(64, 8 * len(tool.control_points))))


def _enclosed_area(polygons: Sequence[Polygon]) -> float:
    """The area by the even-odd rule, for loops that do not cross each other."""
    total = 0.0
    for i, polygon in enumerate(polygons):
        depth = sum(_contains(other, polygon[0]) for j, other in enumerate(polygons) if j != i)
        total += _area(polygon) * (-1.0 if depth % 2 else 1.0)
    return max(total, 0.0)


def _area(polygon: Polygon) -> float:
    x, y = (polygon - polygon[0]).T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def _contains(polygon: Polygon, point: Polygon) -> bool:
    x, y = polygon.T
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    crosses = (y <= point[1]) != (next_y <= point[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        at = x + (point[1] - y) * (next_x - x) / (next_y - y)
    return bool(np.count_nonzero(crosses & (at > point[0])) % 2)


def _family_strokes(
    family: Any, polygons: Sequence[Polygon], gap_min: float
) -> list[tuple[float, float, float, float]]:
    """Cut one family of parallel lines with the polygons, even-odd, and lay its dashes along them."""
    angle = math.radians(family.angle)
    cos, sin = math.cos(angle), math.sin(angle)
    base, offset = Vec3(family.base_point), Vec3(family.offset)
    gap, shift = -offset.x * sin + offset.y * cos, offset.x * cos + offset.y * sin
    if abs(gap) < max(gap_min, 1e-12):
        return []
    # In the family's own system lines are horizontal, line k at height k.
    rows: list[NDArray[np.float64]] = []
    for polygon in polygons:
        x, y = polygon[:, 0] - base.x, polygon[:, 1] - base.y
        u, v = x * cos + y * sin, (y * cos - x * sin) / gap
        rows.append(np.stack([u, v, np.roll(u, -1), np.roll(v, -1)], axis=1))
    edges = np.concatenate(rows)
    low, high = np.minimum(edges[:, 1], edges[:, 3]), np.maximum(edges[:, 1], edges[:, 3])
    # Half open, so that a line through a corner meets exactly one of its two edges.
    first, last = np.ceil(low), np.ceil(high) - 1
    counts = np.maximum(last - first + 1, 0)
    if counts.sum() > STROKES_MAX:
        return []
    counts = counts.astype(np.int64)
    edge = np.repeat(np.arange(len(edges)), counts)
    step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    line = first[edge] + step
    u0, v0, u1, v1 = edges[edge].T
    at = u0 + (line - v0) * (u1 - u0) / (v1 - v0)
    order = np.lexsort((at, line))
    at, line = at[order], line[order]
    items = list(family.dash_length_items)[:DASHES_MAX]
    if _dash_count(at[1::2] - at[: len(at) // 2 * 2 : 2], items) > STROKES_MAX:
        return []
    strokes: list[tuple[float, float, float, float]] = []
    for k, a, b in zip(line[::2], at[::2], at[1::2], strict=False):
        for u_start, u_end in _dashes(float(a), float(b), items, float(k) * shift):
            height = float(k) * gap
            strokes.append(
                (
                    base.x + u_start * cos - height * sin,
                    base.y + u_start * sin + height * cos,
                    base.x + u_end * cos - height * sin,
                    base.y + u_end * sin + height * cos,
                )
            )
    return strokes


def _dash_count(lengths: NDArray[np.float64], items: Sequence[float]) -> float:
    """About how many dashes lines of these lengths have: known before any is laid, however many there would be."""
    period = sum(abs(item) for item in items)
    if period <= 0:
        return float(len(lengths))
    repeats = lengths / period
    # A line of that many dashes is drawn whole.
    return float(np.where(repeats > STROKES_MAX, 1.0, repeats).sum()) * sum(item >= 0 for item in items)


def _dashes(start: float, end: float, items: Sequence[float], phase: float) -> Iterator[tuple[float, float]]:
    period = sum(abs(item) for item in items)
    if period <= 0 or (end - start) / period > STROKES_MAX:
        yield start, end
        return
    if max(items) < 0:
        return
    at = phase + math.floor((start - phase) / period) * period
    while at < end:
        for item in items:
            if item >= 0 and at + item >= start and at <= end:
                yield max(at, start), min(at + item, end)
            at += abs(item)
