"""Turns a drawing's facts into arrays: curves, areas, points, texts and dimensions that take part in the score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from contract.entities import (
    ArcEntity,
    CircleEntity,
    DimensionEntity,
    EllipseEntity,
    Entity,
    FillEntity,
    HatchEntity,
    LineEntity,
    MeshEntity,
    PointEntity,
    PolylineEntity,
    SolidEntity,
    SplineEntity,
    TextEntity,
)
from contract.metadata import Body, Layout, Metadata, SizedBox

CurveEntity = LineEntity | PolylineEntity | ArcEntity | CircleEntity | EllipseEntity | SplineEntity
BodyEntity = MeshEntity | SolidEntity
CURVE_KINDS: Final = frozenset({"line", "polyline", "arc", "circle", "ellipse", "spline"})


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
    # Bodies as they are measured, and those that could not be; both empty where the facts are of schema 3.
    physical: list[Body]
    unsupported: list[str]
    extents: SizedBox | None
    layouts: list[Layout]

    @property
    def is_empty(self) -> bool:
        """Whether nothing takes part at all."""
        lists = (self.curves, self.areas, self.points, self.texts, self.dimensions, self.bodies)
        return not any(lists)


def facts_of(metadata: Metadata) -> Facts:
    """Sort the entities; hidden ones, paper space and pictures take no part."""
    by_kind: dict[str, list[Any]] = {}
    curves: list[CurveEntity] = []
    hidden_count = raster_count = 0
    for entity in metadata.entities:
        if entity.space != "model":
            continue
        kind = entity.kind
        raster_count += kind == "raster"
        if not entity.is_visible:
            hidden_count += kind != "raster"
        elif kind in CURVE_KINDS:
            curves.append(entity)  # type: ignore[arg-type]  # its kind says so
        else:
            by_kind.setdefault(kind, []).append(entity)
    physical = metadata.physical_extents_3d
    return Facts(
        curves=curves,
        areas=by_kind.get("fill", []) + by_kind.get("hatch", []),
        points=by_kind.get("point", []),
        texts=by_kind.get("text", []),
        dimensions=by_kind.get("dimension", []),
        bodies=by_kind.get("mesh", []) + by_kind.get("solid", []),
        hidden_count=hidden_count,
        other_count=len(by_kind.get("other", [])),
        raster_count=raster_count,
        xref_count=metadata.counts.xref,
        insunits=metadata.units.insunits,
        physical=physical.bodies if physical is not None else [],
        unsupported=_unsupported(metadata, by_kind),
        extents=metadata.extents_3d,
        layouts=metadata.layouts,
    )


def _unsupported(metadata: Metadata, by_kind: Mapping[str, Sequence[Any]]) -> list[str]:
    """Bodies that could not be measured: by the evaluator's list, or where schema 3 has none by their own records."""
    if metadata.physical_extents_3d is not None:
        return metadata.physical_extents_3d.unsupported
    return [entity.id for entity in by_kind.get("solid", []) if entity.geom.method == "unsupported"]


class Looks:
    """Layer, colour and linetype of every entity as numbers that mean the same in both drawings.

    Numbers follow the order of the names, so no order of entities in a file can matter.
    """

    def __init__(self, *drawings: Facts) -> None:
        spelled = {(entity.layer, entity.rgb, entity.linetype) for facts in drawings for entity in _with_look(facts)}
        # Names compare whatever their spelling.
        looks = {raw: (raw[0].casefold(), raw[1].lower(), raw[2].upper()) for raw in spelled}
        rows = sorted(set(looks.values()))
        codes = {look: code for code, look in enumerate(rows)}
        self._codes = {raw: codes[look] for raw, look in looks.items()}
        ranks = [{name: rank for rank, name in enumerate(sorted({look[part] for look in rows}))} for part in range(3)]
        table = [[ranks[part][look[part]] for part in range(3)] for look in rows]
        # Row `code`: rank of its layer, its colour and its linetype.
        self.table = np.array(table, dtype=np.int64).reshape(-1, 3)

    def codes(self, entities: Iterable[Entity]) -> list[int]:
        """Each entity's row in `table`."""
        codes = self._codes
        return [codes[entity.layer, entity.rgb, entity.linetype] for entity in entities]


def _with_look(facts: Facts) -> Iterator[Entity]:
    yield from facts.curves
    yield from facts.areas
    yield from facts.points
    yield from facts.texts
    yield from facts.dimensions
    yield from facts.bodies
