"""Splits curves into segments, arcs and dense polylines, and boxes what takes part (scoring contract, 6.2 and 6.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contract.entities import (
    ArcEntity,
    CircleEntity,
    EllipseEntity,
    EllipseGeom,
    FillEntity,
    HatchEntity,
    LineEntity,
    PolylineEntity,
    SplineEntity,
)
from evaluator_client.facts import CurveEntity, Facts
from evaluator_client.splines import flatten_spline
from evaluator_client.tolerances import Array, Tolerances

TURN: Final = 2 * math.pi
Point = tuple[float, float, float]
Arc = tuple[float, float, float, float, float, float]
Ints = NDArray[np.int64]
# An arc that leaves its chord by half of this share of the chord's length is straight.
_STRAIGHT_BULGE: Final = 1e-9
_ELLIPSE_POINTS_MAX: Final = 4_000
_ELLIPSE_POINTS_MIN: Final = 16
# All smooth curves of a drawing together, so that no candidate uses up the memory of everything else: honest drawings
# need some hundred points for each of some dozen curves.
_SMOOTH_POINTS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Strokes:
    """Curves as they are drawn, degenerate ones left out and counted.

    `segments` (n, 2, 3); `arcs` (m, 6): centre, radius, start and counter-clockwise sweep in radians; `polylines` a
    list of (k, 3). Each `*_entity` names the row's entity by its index among the facts' curves.
    """

    segments: Array
    segment_entity: Ints
    arcs: Array
    arc_entity: Ints
    polylines: list[Array]
    polyline_entity: list[int]
    degenerate_count: int


@dataclass(frozen=True, slots=True)
class RawStrokes:
    """Curves split before any tolerance is known: ellipses and splines are still themselves."""

    segments: Array
    segment_entity: Ints
    arcs: Array
    arc_entity: Ints
    smooth: list[tuple[int, EllipseEntity | SplineEntity]]
    entity_count: int


def split_curves(curves: Sequence[CurveEntity]) -> RawStrokes:
    """Take lines, polylines, arcs and circles apart."""
    segments: list[tuple[Point, Point]] = []
    segment_entity: list[int] = []
    arcs: list[Arc] = []
    arc_entity: list[int] = []
    smooth: list[tuple[int, EllipseEntity | SplineEntity]] = []
    for index, entity in enumerate(curves):
        if isinstance(entity, LineEntity):
            line = entity.geom
            segments.append((line.start, line.end))
            segment_entity.append(index)
        elif isinstance(entity, CircleEntity):
            circle = entity.geom
            arcs.append((*circle.center, circle.radius, 0.0, TURN))
            arc_entity.append(index)
        elif isinstance(entity, ArcEntity):
            arc = entity.geom
            start, end = math.radians(arc.start_deg), math.radians(arc.end_deg)
            arcs.append((*arc.center, arc.radius, start % TURN, (end - start) % TURN or TURN))
            arc_entity.append(index)
        elif isinstance(entity, PolylineEntity):
            for piece in bulged_pieces(entity.geom.vertices, entity.geom.bulges, is_closed=entity.geom.is_closed):
                if len(piece) == 2:
                    segments.append(piece)
                    segment_entity.append(index)
                else:
                    arcs.append(piece)
                    arc_entity.append(index)
        elif isinstance(entity, EllipseEntity) and abs(entity.geom.ratio - 1) <= 1e-6:
            arcs.append(_round_ellipse(entity.geom))
            arc_entity.append(index)
        else:
            smooth.append((index, entity))
    return RawStrokes(
        segments=np.array(segments, dtype=np.float64).reshape(-1, 2, 3),
        segment_entity=np.array(segment_entity, dtype=np.int64),
        arcs=np.array(arcs, dtype=np.float64).reshape(-1, 6),
        arc_entity=np.array(arc_entity, dtype=np.int64),
        smooth=smooth,
        entity_count=len(curves),
    )


def strokes_of(raw: RawStrokes, tolerances: Tolerances) -> Strokes:
    """Flatten what is smooth, and leave out what has no length."""
    segment_length = np.linalg.norm(raw.segments[:, 1] - raw.segments[:, 0], axis=1)
    arc_length = raw.arcs[:, 3] * raw.arcs[:, 5]
    length = np.zeros(raw.entity_count)
    np.add.at(length, raw.segment_entity, segment_length)
    np.add.at(length, raw.arc_entity, arc_length)
    polylines: list[Array] = []
    polyline_entity: list[int] = []
    points_max = _share(raw)
    for index, entity in raw.smooth:
        points = _flattened(entity, tolerances.tau0 / 10, points_max=points_max)
        length[index] = polyline_length(points)
        if length[index] > tolerances.degenerate:
            polylines.append(points)
            polyline_entity.append(index)
    segment_kept, arc_kept = segment_length > tolerances.degenerate, arc_length > tolerances.degenerate
    return Strokes(
        segments=raw.segments[segment_kept],
        segment_entity=raw.segment_entity[segment_kept],
        arcs=raw.arcs[arc_kept],
        arc_entity=raw.arc_entity[arc_kept],
        polylines=polylines,
        polyline_entity=polyline_entity,
        degenerate_count=int((length <= tolerances.degenerate).sum()),
    )


def bulged_pieces(
    vertices: Sequence[Point], bulges: Sequence[float], *, is_closed: bool
) -> Iterator[tuple[Point, Point] | Arc]:
    """Segments and arcs of a polyline, in order."""
    count = len(vertices) if is_closed else len(vertices) - 1
    for i in range(count):
        start, end, bulge = vertices[i], vertices[(i + 1) % len(vertices)], bulges[i]
        if abs(bulge) <= _STRAIGHT_BULGE:
            yield start, end
            continue
        dx, dy = end[0] - start[0], end[1] - start[1]
        sweep = 4 * math.atan(bulge)
        offset = (1 - bulge * bulge) / (4 * bulge)
        x, y = (start[0] + end[0]) / 2 - dy * offset, (start[1] + end[1]) / 2 + dx * offset
        radius = math.hypot(dx, dy) * (1 + bulge * bulge) / (4 * abs(bulge))
        first = start if sweep > 0 else end
        yield x, y, first[2], radius, math.atan2(first[1] - y, first[0] - x) % TURN, abs(sweep)


def _round_ellipse(geom: EllipseGeom) -> Arc:
    (cx, cy, cz), (ux, uy, _) = geom.center, geom.major_axis
    sweep = geom.end_rad - geom.start_rad
    is_full = sweep >= TURN - 1e-9
    start = 0.0 if is_full else (math.atan2(uy, ux) + geom.start_rad) % TURN
    return cx, cy, cz, math.hypot(ux, uy), start, TURN if is_full else sweep


def _share(raw: RawStrokes) -> int:
    """Points that one smooth curve may have."""
    return max(_ELLIPSE_POINTS_MIN, _SMOOTH_POINTS_MAX // max(1, len(raw.smooth)))


def _flattened(entity: EllipseEntity | SplineEntity, sagitta: float, *, points_max: int) -> Array:
    if isinstance(entity, SplineEntity):
        return flatten_spline(entity.geom, sagitta=sagitta, points_max=points_max)
    geom = entity.geom
    (ux, uy, uz), sweep = geom.major_axis, geom.end_rad - geom.start_rad
    size = math.sqrt(ux * ux + uy * uy + uz * uz)
    # A chord over the parameter step d leaves the curve by at most size * d^2 / 8.
    step = math.sqrt(8 * sagitta / size) if size else TURN
    # A multiple of four, so that an ellipse and its mirror image meet the same points.
    count = min(_ELLIPSE_POINTS_MAX, points_max // 4 * 4, max(_ELLIPSE_POINTS_MIN, 4 * math.ceil(sweep / step / 4)))
    t = geom.start_rad + sweep * np.linspace(0.0, 1.0, count + 1)
    u, v = np.array([ux, uy, uz]), np.array([-uy, ux, 0.0]) * geom.ratio
    points: Array = np.array(geom.center) + np.outer(np.cos(t), u) + np.outer(np.sin(t), v)
    return points


def polyline_length(points: Array) -> float:
    """Length along the points."""
    return float(np.linalg.norm(np.diff(points, axis=0), axis=1).sum())


def area_points(entity: FillEntity | HatchEntity) -> list[Point]:
    """The corners of an area's boundary."""
    if isinstance(entity, FillEntity):
        return list(entity.geom.corners)
    return [point for loop in entity.geom.loops for point in loop.vertices]


def reference_box(facts: Facts, raw: RawStrokes) -> tuple[Array, Array]:
    """Box around curves, areas and bodies; around points, then around texts, only when there is nothing else."""
    points_max = _share(raw)
    corners = [point for _, entity in raw.smooth for point in _smooth_corners(entity, points_max=points_max)]
    for area in facts.areas:
        corners += area_points(area)
    for body in facts.bodies:
        if body.extents is not None:
            corners += [body.extents.min, body.extents.max]
    curves = np.concatenate([raw.segments.reshape(-1, 3), _arc_corners(raw.arcs)])
    if not len(curves):
        corners = corners or [entity.geom.position for entity in facts.points]
        corners = corners or [entity.geom.anchor for entity in facts.texts]
        corners = corners or [point for entity in facts.dimensions for point in entity.geom.points]
        corners = corners or [(0.0, 0.0, 0.0)]
    array = np.concatenate([curves, np.array(corners, dtype=np.float64).reshape(-1, 3)])
    return array.min(axis=0), array.max(axis=0)


def _arc_corners(arcs: Array) -> Array:
    """End points, and the extreme points that lie on each arc."""
    found = [_arc_points(arcs, arcs[:, 4]), _arc_points(arcs, arcs[:, 4] + arcs[:, 5])]
    for quarter in range(4):
        is_on = (quarter * math.pi / 2 - arcs[:, 4]) % TURN <= arcs[:, 5]
        axis = np.array([(1, 0, 0), (0, 1, 0), (-1, 0, 0), (0, -1, 0)][quarter])
        found.append(arcs[is_on, :3] + arcs[is_on, 3][:, None] * axis)
    return np.concatenate(found)


def _arc_points(arcs: Array, angle: Array) -> Array:
    around = np.stack([np.cos(angle), np.sin(angle), np.zeros(len(arcs))], axis=1)
    points: Array = arcs[:, :3] + arcs[:, 3][:, None] * around
    return points


def _smooth_corners(entity: EllipseEntity | SplineEntity, *, points_max: int) -> Iterator[Point]:
    if isinstance(entity, SplineEntity):
        points = flatten_spline(entity.geom, sagitta=None, points_max=points_max)
        if len(points):
            yield from (points.min(axis=0).tolist(), points.max(axis=0).tolist())
        return
    geom = entity.geom
    (cx, cy, cz), (ux, uy, _) = geom.center, geom.major_axis
    vx, vy = -uy * geom.ratio, ux * geom.ratio
    start, sweep = geom.start_rad, geom.end_rad - geom.start_rad
    turning = [t for base in (math.atan2(vx, ux), math.atan2(vy, uy)) for t in (base, base + math.pi)]
    for t in (start, start + sweep, *(t for t in turning if (t - start) % TURN <= sweep)):
        yield cx + ux * math.cos(t) + vx * math.sin(t), cy + uy * math.cos(t) + vy * math.sin(t), cz
