"""Turns curves of any plane into exact world-coordinate records, or into polylines where no exact record exists.

A curve is given in local coordinates and a frame, the affine map from there to the world (None is the identity).
Every arc-like curve is kept as centre + u cos t + v sin t, a form that survives any affine map.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ezdxf.math import Matrix44, Vec3

from broker.evaluator.settings import SAGITTA_SHARE

TURN: Final = 2 * math.pi
# Relative: far above what matrix products lose, far below anything drawn on purpose.
_SAME: Final = 1e-9

Geom = dict[str, Any]


class Piece(NamedTuple):
    """One record: its kind, its geometry, and its place among the records of one entity (None when alone)."""

    kind: str
    geom: Geom
    part: int | None = None


def xyz(point: Vec3) -> tuple[float, float, float]:
    """A point for a record, without negative zeros."""
    return (point.x + 0.0, point.y + 0.0, point.z + 0.0)


def map_point(frame: Matrix44 | None, point: Vec3) -> Vec3:
    """The point in world coordinates."""
    return point if frame is None else frame.transform(point)


def map_direction(frame: Matrix44 | None, direction: Vec3) -> Vec3:
    """The direction in world coordinates, scaled as the frame scales."""
    return direction if frame is None else frame.transform_direction(direction)


class Plane(NamedTuple):
    """How a frame maps the local XY plane."""

    is_horizontal: bool
    is_similar: bool
    is_mirrored: bool
    scale: float


def plane_of(frame: Matrix44 | None) -> Plane:
    """Whether circles stay circles and whether the plane stays parallel to XY."""
    if frame is None:
        return Plane(is_horizontal=True, is_similar=True, is_mirrored=False, scale=1.0)
    x, y = frame.transform_direction(Vec3(1, 0, 0)), frame.transform_direction(Vec3(0, 1, 0))
    normal = x.cross(y)
    length = max(x.magnitude, y.magnitude)
    return Plane(
        is_horizontal=math.hypot(normal.x, normal.y) <= _SAME * normal.magnitude,
        is_similar=abs(x.magnitude - y.magnitude) <= _SAME * length and abs(x.dot(y)) <= _SAME * length * length,
        is_mirrored=normal.z < 0,
        scale=math.sqrt(normal.magnitude),
    )


def conic(frame: Matrix44 | None, center: Vec3, u: Vec3, v: Vec3, start: float, end: float) -> Piece:
    """The curve centre + u cos t + v sin t for t from start to end in radians; TURN apart is a full turn."""
    c, u, v = map_point(frame, center), map_direction(frame, u), map_direction(frame, v)
    normal = u.cross(v)
    if math.hypot(normal.x, normal.y) > _SAME * normal.magnitude or normal.magnitude == 0.0:
        return _flattened_conic(c, u, v, start, end)
    if normal.z < 0:
        v, start, end = -v, -end, -start
    is_full = abs(end - start) >= TURN - 1e-12
    size = max(u.magnitude, v.magnitude)
    if abs(u.magnitude - v.magnitude) <= _SAME * size and abs(u.dot(v)) <= _SAME * size * size:
        if is_full:
            return Piece("circle", {"center": xyz(c), "radius": u.magnitude})
        turn = math.degrees(math.atan2(u.y, u.x))
        start_deg, end_deg = degrees_in_turn(turn + math.degrees(start)), degrees_in_turn(turn + math.degrees(end))
        return Piece("arc", {"center": xyz(c), "radius": u.magnitude, "start_deg": start_deg, "end_deg": end_deg})
    return _ellipse(c, u, v, start, end, is_full=is_full)


def _ellipse(c: Vec3, u: Vec3, v: Vec3, start: float, end: float, *, is_full: bool) -> Piece:
    # Conjugate half diameters turned by this much are the main axes.
    turn = 0.5 * math.atan2(2 * u.dot(v), u.dot(u) - v.dot(v))
    if turn:
        u, v = u * math.cos(turn) + v * math.sin(turn), v * math.cos(turn) - u * math.sin(turn)
    if v.magnitude > u.magnitude:
        u, v, turn = v, -u, turn + math.pi / 2
    geom = {"center": xyz(c), "major_axis": xyz(u), "ratio": v.magnitude / u.magnitude}
    if is_full:
        return Piece("ellipse", geom | {"start_rad": 0.0, "end_rad": TURN})
    start_rad = (start - turn) % TURN
    return Piece("ellipse", geom | {"start_rad": start_rad, "end_rad": start_rad + (end - start)})


def _flattened_conic(c: Vec3, u: Vec3, v: Vec3, start: float, end: float) -> Piece:
    is_full = abs(end - start) >= TURN - 1e-12
    count = max(4, math.ceil(abs(end - start) / (2 * math.acos(1 - SAGITTA_SHARE))))
    angles = [start + (end - start) * i / count for i in range(count if is_full else count + 1)]
    points = [c + u * math.cos(t) + v * math.sin(t) for t in angles]
    return straight_polyline(points, is_closed=is_full, is_exact=False)


def arc(frame: Matrix44 | None, center: Vec3, radius: float, start_deg: float, end_deg: float) -> Piece:
    """A counter-clockwise arc of the local XY plane."""
    sweep_deg = (end_deg - start_deg) % 360.0
    if sweep_deg == 0.0:
        sweep_deg = 360.0
    if frame is None and sweep_deg < 360.0:
        angles = {"start_deg": degrees_in_turn(start_deg), "end_deg": degrees_in_turn(end_deg)}
        return Piece("arc", {"center": xyz(center), "radius": radius} | angles)
    start = math.radians(start_deg)
    return conic(frame, center, Vec3(radius, 0, 0), Vec3(0, radius, 0), start, start + math.radians(sweep_deg))


def circle(frame: Matrix44 | None, center: Vec3, radius: float) -> Piece:
    """A full circle of the local XY plane."""
    radius = abs(radius)
    if frame is None:
        return Piece("circle", {"center": xyz(center), "radius": radius})
    return conic(frame, center, Vec3(radius, 0, 0), Vec3(0, radius, 0), 0.0, TURN)


def degrees_in_turn(angle_deg: float) -> float:
    """The angle in [0, 360)."""
    angle_deg = angle_deg % 360.0
    return 0.0 if angle_deg >= 360.0 else angle_deg + 0.0


def straight_polyline(points: Sequence[Vec3], *, is_closed: bool, is_exact: bool = True) -> Piece:
    """A polyline of straight pieces through world points."""
    vertices = [xyz(point) for point in points]
    geom = {"vertices": vertices, "bulges": [0.0] * len(vertices), "is_closed": is_closed, "is_exact": is_exact}
    return Piece("polyline", geom)


def polyline(
    frame: Matrix44 | None, points: Sequence[Vec3], bulges: Sequence[float], *, is_closed: bool
) -> Iterator[Piece]:
    """A polyline of the local XY plane: one record, or exact pieces where arcs become parts of ellipses."""
    plane = plane_of(frame)
    world = [map_point(frame, point) for point in points]
    if not any(bulges):
        yield straight_polyline(world, is_closed=is_closed)
        return
    if plane.is_horizontal and plane.is_similar:
        vertices = [xyz(point) for point in world]
        signed = [(-bulge if plane.is_mirrored else bulge) + 0.0 for bulge in bulges]
        yield Piece("polyline", {"vertices": vertices, "bulges": signed, "is_closed": is_closed, "is_exact": True})
        return
    yield from _mapped_pieces(frame, points, bulges, is_closed=is_closed)


def _mapped_pieces(
    frame: Matrix44 | None, points: Sequence[Vec3], bulges: Sequence[float], *, is_closed: bool
) -> Iterator[Piece]:
    count = len(points) if is_closed else len(points) - 1
    for i in range(count):
        start, end, bulge = points[i], points[(i + 1) % len(points)], bulges[i]
        if not bulge or start.isclose(end, abs_tol=0.0):
            ends = {"start": xyz(map_point(frame, start)), "end": xyz(map_point(frame, end))}
            yield Piece("line", ends, i)
            continue
        center, radius, start_angle, sweep = bulge_arc(start, end, bulge)
        u = Vec3(radius, 0, 0)
        v = Vec3(0, radius, 0)
        first = start_angle if sweep > 0 else start_angle + sweep
        yield conic(frame, center, u, v, first, first + abs(sweep))._replace(part=i)


def bulge_arc(start: Vec3, end: Vec3, bulge: float) -> tuple[Vec3, float, float, float]:
    """Centre, radius, start angle and signed sweep (radians) of a bulged piece of the local XY plane."""
    chord = end - start
    length = math.hypot(chord.x, chord.y)
    sweep = 4 * math.atan(bulge)
    # The centre lies to the left of the chord for a positive bulge below 1, at this distance.
    offset = (1 - bulge * bulge) / (4 * bulge)
    middle = start + chord * 0.5
    center = Vec3(middle.x - chord.y * offset, middle.y + chord.x * offset, start.z)
    radius = length * (1 + bulge * bulge) / (4 * abs(bulge))
    return center, radius, math.atan2(start.y - center.y, start.x - center.x), sweep


def flatten_bulges(points: Sequence[Vec3], bulges: Sequence[float], *, is_closed: bool, step_rad: float) -> list[Vec3]:
    """Points along a bulged polyline of the local XY plane, at most `step_rad` of each arc apart."""
    flat: list[Vec3] = []
    count = len(points)
    for i in range(count):
        start = points[i]
        flat.append(start)
        is_last = i == count - 1
        if not bulges[i] or (is_last and not is_closed):
            continue
        end = points[(i + 1) % count]
        if start.isclose(end, abs_tol=0.0):
            continue
        center, radius, start_angle, sweep = bulge_arc(start, end, bulges[i])
        pieces = max(2, math.ceil(abs(sweep) / step_rad))
        for k in range(1, pieces):
            angle = start_angle + sweep * k / pieces
            flat.append(Vec3(center.x + radius * math.cos(angle), center.y + radius * math.sin(angle), start.z))
    return flat
