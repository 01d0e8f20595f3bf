"""Turns a drawing's facts into arrays: curves, areas, points, texts and dimensions that take part in the score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from contract.metadata import (
    ArcEntity,
    CircleEntity,
    DimensionEntity,
    EllipseEntity,
    Entity,
    FillEntity,
    HatchEntity,
    LineEntity,
    MeshEntity,
    Metadata,
    OtherEntity,
    PointEntity,
    PolylineEntity,
    RasterEntity,
    SolidEntity,
    SplineEntity,
    TextEntity,
)
from evaluator_client.splines import flatten_spline
from evaluator_client.tolerances import Array

TURN: Final = 2 * math.pi
Point = tuple[float, float, float]
CurveEntity = LineEntity | PolylineEntity | ArcEntity | CircleEntity | EllipseEntity | SplineEntity
BodyEntity = MeshEntity | SolidEntity
# A bulge that leaves its chord by less than this share of the diagonal is straight.
_FLAT_SHARE: Final = 1e-10
_ELLIPSE_POINTS_MAX: Final = 4_000


@dataclass(frozen=True, slots=True)
class Facts:
    """The entities of one drawing's visible model space, by what they are compared as."""

    curves: list[CurveEntity]
    areas: list[FillEntity | HatchEntity]
    points: list[PointEntity]
    texts: list[TextEntity]
    dimensions: list[DimensionEntity]
    bodies: list[BodyEntity]
    hidden_count: int
    other_count: int
    raster_count: int
    xref_count: int
    insunits: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing takes part at all."""
        lists = (self.curves, self.areas, self.points, self.texts, self.dimensions, self.bodies)
        return not any(lists)


def facts_of(metadata: Metadata) -> Facts:
    """Sort the entities; hidden ones, paper space and pictures take no part."""
    model = [entity for entity in metadata.entities if entity.space == "model"]
    visible = [entity for entity in model if entity.is_visible]
    return Facts(
        curves=[e for e in visible if isinstance(e, CurveEntity)],
        areas=[e for e in visible if isinstance(e, FillEntity | HatchEntity)],
        points=[e for e in visible if isinstance(e, PointEntity)],
        texts=[e for e in visible if isinstance(e, TextEntity)],
        dimensions=[e for e in visible if isinstance(e, DimensionEntity)],
        bodies=[e for e in visible if isinstance(e, BodyEntity)],
        hidden_count=sum(not e.is_visible and not isinstance(e, RasterEntity) for e in model),
        other_count=sum(isinstance(e, OtherEntity) for e in visible),
        raster_count=sum(isinstance(e, RasterEntity) for e in model),
        xref_count=metadata.counts.xref,
        insunits=metadata.units.insunits,
    )


class Looks:
    """Layer, colour and linetype of every entity as numbers that mean the same in both drawings.

    Numbers follow the order of the names, so no order of entities in a file can matter.
    """

    def __init__(self, *drawings: Facts) -> None:
        looks = {look_of(entity) for facts in drawings for entity in _with_look(facts)}
        self._codes = {look: code for code, look in enumerate(sorted(looks))}
        parts = [sorted({look[part] for look in looks}) for part in range(3)]
        ranks = [{name: rank for rank, name in enumerate(names)} for names in parts]
        table = [[ranks[part][look[part]] for part in range(3)] for look in sorted(looks)]
        # Row `code`: rank of its layer, its colour and its linetype.
        self.table = np.array(table, dtype=np.int64).reshape(-1, 3)

    def code(self, entity: Entity) -> int:
        """The entity's row in `table`."""
        return self._codes[look_of(entity)]


def look_of(entity: Entity) -> tuple[str, str, str]:
    """Layer, colour and linetype by names that compare whatever their spelling."""
    return entity.layer.casefold(), entity.rgb.lower(), entity.linetype.upper()


def _with_look(facts: Facts) -> Iterator[Entity]:
    yield from facts.curves
    yield from facts.areas
    yield from facts.points
    yield from facts.texts
    yield from facts.dimensions
    yield from facts.bodies


@dataclass(frozen=True, slots=True)
class Strokes:
    """Curves as they are drawn: segments, arcs and dense polylines.

    `segments` (n, 2, 3); `arcs` (m, 6): centre, radius, start and counter-clockwise sweep in radians; `polylines` a
    list of (k, 3). Each `*_entity` names the row's entity by its index among the facts' curves.
    """

    segments: Array
    segment_entity: Array
    arcs: Array
    arc_entity: Array
    polylines: list[Array]
    polyline_entity: list[int]
    degenerate_count: int


def strokes_of(curves: Sequence[CurveEntity], *, tau0: float, diagonal: float, degenerate: float) -> Strokes:
    """Split curves; those of at most `degenerate` length are only counted."""
    segments: list[tuple[Point, Point]] = []
    segment_entity: list[int] = []
    arcs: list[tuple[float, float, float, float, float, float]] = []
    arc_entity: list[int] = []
    polylines: list[Array] = []
    polyline_entity: list[int] = []
    degenerate_count = 0
    for index, entity in enumerate(curves):
        length = 0.0
        for piece in _pieces(entity, tau0=tau0, flat=_FLAT_SHARE * diagonal):
            if isinstance(piece, np.ndarray):
                size = polyline_length(piece)
                if size > degenerate:
                    polylines.append(piece)
                    polyline_entity.append(index)
            elif len(piece) == 2:
                size = math.dist(piece[0], piece[1])
                if size > degenerate:
                    segments.append(piece)
                    segment_entity.append(index)
            else:
                size = piece[3] * piece[5]
                if size > degenerate:
                    arcs.append(piece)
                    arc_entity.append(index)
            length += size
        degenerate_count += length <= degenerate
    return Strokes(
        segments=np.array(segments, dtype=np.float64).reshape(-1, 2, 3),
        segment_entity=np.array(segment_entity, dtype=np.int64),
        arcs=np.array(arcs, dtype=np.float64).reshape(-1, 6),
        arc_entity=np.array(arc_entity, dtype=np.int64),
        polylines=polylines,
        polyline_entity=polyline_entity,
        degenerate_count=degenerate_count,
    )


Piece = tuple[Point, Point] | tuple[float, float, float, float, float, float] | Array


def _pieces(entity: CurveEntity, *, tau0: float, flat: float) -> Iterator[Piece]:
    match entity:
        case LineEntity(geom=geom):
            yield geom.start, geom.end
        case PolylineEntity(geom=geom):
            yield from bulged_pieces(geom.vertices, geom.bulges, is_closed=geom.is_closed, flat=flat)
        case CircleEntity(geom=geom):
            yield (*geom.center, geom.radius, 0.0, TURN)
        case ArcEntity(geom=geom):
            start, end = math.radians(geom.start_deg), math.radians(geom.end_deg)
            yield (*geom.center, geom.radius, start % TURN, (end - start) % TURN or TURN)
        case EllipseEntity(geom=geom):
            yield _ellipse(entity, tau0=tau0)
        case SplineEntity(geom=geom):
            yield flatten_spline(geom, sagitta=tau0 / 10)


def bulged_pieces(
    vertices: Sequence[Point], bulges: Sequence[float], *, is_closed: bool, flat: float
) -> Iterator[tuple[Point, Point] | tuple[float, float, float, float, float, float]]:
    """Segments and arcs of a polyline; an arc that leaves its chord by at most `flat` is a segment."""
    count = len(vertices) if is_closed else len(vertices) - 1
    for i in range(count):
        start, end, bulge = vertices[i], vertices[(i + 1) % len(vertices)], bulges[i]
        dx, dy = end[0] - start[0], end[1] - start[1]
        chord = math.hypot(dx, dy)
        if abs(bulge) * chord / 2 <= flat:
            yield start, end
            continue
        sweep = 4 * math.atan(bulge)
        offset = (1 - bulge * bulge) / (4 * bulge)
        x, y = (start[0] + end[0]) / 2 - dy * offset, (start[1] + end[1]) / 2 + dx * offset
        radius = chord * (1 + bulge * bulge) / (4 * abs(bulge))
        first = start if sweep > 0 else end
        yield x, y, first[2], radius, math.atan2(first[1] - y, first[0] - x) % TURN, abs(sweep)


def _ellipse(entity: EllipseEntity, *, tau0: float) -> Piece:
    geom = entity.geom
    (cx, cy, cz), (ux, uy, uz) = geom.center, geom.major_axis
    size, sweep = math.sqrt(ux * ux + uy * uy + uz * uz), geom.end_rad - geom.start_rad
    if abs(geom.ratio - 1) <= 1e-6:
        turn = math.atan2(uy, ux)
        is_full = sweep >= TURN - 1e-9
        return cx, cy, cz, size, 0.0 if is_full else (turn + geom.start_rad) % TURN, min(sweep, TURN)
    # A chord over the parameter step d leaves the curve by at most size * d^2 / 8.
    step = math.sqrt(8 * (tau0 / 10) / size) if size else TURN
    # A multiple of four, so that an ellipse and its mirror image meet the same points.
    count = min(_ELLIPSE_POINTS_MAX, max(16, 4 * math.ceil(sweep / step / 4)))
    t = geom.start_rad + sweep * np.linspace(0.0, 1.0, count + 1)
    u, v = np.array([ux, uy, uz]), np.array([-uy, ux, 0.0]) * geom.ratio
    points: Array = np.array([cx, cy, cz]) + np.outer(np.cos(t), u) + np.outer(np.sin(t), v)
    return points


def polyline_length(points: Array) -> float:
    """Length along the points."""
    return float(np.linalg.norm(np.diff(points, axis=0), axis=1).sum())


def reference_box(facts: Facts) -> tuple[Array, Array]:
    """Box around curves, areas and bodies; around points, then around texts, only when there is nothing else."""
    corners = [point for entity in facts.curves for point in _curve_corners(entity)]
    for area in facts.areas:
        corners += area_points(area)
    for body in facts.bodies:
        if body.extents is not None:
            corners += [body.extents.min, body.extents.max]
    corners = corners or [entity.geom.position for entity in facts.points]
    corners = corners or [entity.geom.anchor for entity in facts.texts]
    corners = corners or [point for entity in facts.dimensions for point in entity.geom.points]
    array = np.array(corners or [(0.0, 0.0, 0.0)], dtype=np.float64)
    return array.min(axis=0), array.max(axis=0)


def area_points(entity: FillEntity | HatchEntity) -> list[Point]:
    """The corners of an area's boundary."""
    if isinstance(entity, FillEntity):
        return list(entity.geom.corners)
    return [point for loop in entity.geom.loops for point in loop.vertices]


def _curve_corners(entity: CurveEntity) -> Iterable[Point]:
    if isinstance(entity, EllipseEntity):
        (cx, cy, cz), (ux, uy, _) = entity.geom.center, entity.geom.major_axis
        start, sweep = entity.geom.start_rad, entity.geom.end_rad - entity.geom.start_rad
        vx, vy = -uy * entity.geom.ratio, ux * entity.geom.ratio
        turning = [math.atan2(vx, ux), math.atan2(vy, uy)]
        inside = [t for base in turning for t in (base, base + math.pi) if (t - start) % TURN <= sweep]
        for t in (start, start + sweep, *inside):
            yield cx + ux * math.cos(t) + vx * math.sin(t), cy + uy * math.cos(t) + vy * math.sin(t), cz
        return
    if isinstance(entity, SplineEntity):
        for x, y, z in flatten_spline(entity.geom, sagitta=None).tolist():
            yield x, y, z
        return
    for piece in _pieces(entity, tau0=1.0, flat=0.0):
        if len(piece) == 2:
            yield from piece
        else:
            yield from _arc_corners(*piece)


def _arc_corners(x: float, y: float, z: float, radius: float, start: float, sweep: float) -> Iterator[Point]:
    if sweep < TURN:
        for t in (start, start + sweep):
            yield x + radius * math.cos(t), y + radius * math.sin(t), z
    for k, (dx, dy) in enumerate(((1, 0), (0, 1), (-1, 0), (0, -1))):
        if (k * math.pi / 2 - start) % TURN <= sweep:
            yield x + dx * radius, y + dy * radius, z
