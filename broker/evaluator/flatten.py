"""Walks a drawing with every block reference resolved into its content (scoring contract, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ezdxf.document import Drawing
from ezdxf.math import Matrix44, Vec3

from broker.evaluator.curves import degrees_in_turn, map_direction, map_point, xyz
from broker.evaluator.properties import LayerTable, Look, look_of
from broker.evaluator.reading import Unusable
from broker.evaluator.settings import COORDINATE_MAX, DEPTH_MAX, ENTITIES_MAX, REFERENCES_MAX
from broker.evaluator.shapes import Shape, shapes_of
from broker.evaluator.texts import plain_line

# Parts of their owner, listed with the layout, or ends of a list: nothing of their own to report.
_NOT_REPORTED = frozenset({"VIEWPORT", "SEQEND", "VERTEX", "ENDBLK", "BLOCK"})


class Flat(NamedTuple):
    """One flattened entity: the JSON object of its record, and what only the render needs."""

    record: dict[str, Any]
    shape: Shape


class _Place(NamedTuple):
    """Where in the tree of references we are."""

    space: str
    prefix: str
    frame: Matrix44 | None
    reference: Look | None
    blocks: tuple[str, ...]


@dataclass(slots=True)
class Walk:
    """Collects the entities, references and warnings of one drawing."""

    document: Drawing
    layers: LayerTable
    flats: list[Flat] = field(default_factory=list)
    inserts: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    xref_count: int = 0
    _references: int = 0

    def space(self, name: str, entities: Iterable[Any]) -> None:
        """Flatten one layout. Raises `Unusable` for too many entities and for coordinates that are no numbers."""
        self._visit(entities, _Place(name, "", None, None, ()))

    def _visit(self, entities: Iterable[Any], place: _Place) -> None:
        for entity in entities:
            kind = entity.dxftype()
            if kind == "INSERT":
                self._insert(entity, place)
            elif kind not in _NOT_REPORTED and not self._is_template(entity, kind, place):
                self._entity(
                    entity, place, place.prefix + _handle(entity), look_of(entity, self.layers, place.reference)
                )

    @staticmethod
    def _is_template(entity: Any, kind: str, place: _Place) -> bool:
        return kind == "ATTDEF" and bool(place.blocks) and not int(entity.dxf.get("flags", 0)) & 2

    def _entity(self, entity: Any, place: _Place, entity_id: str, look: Look) -> None:
        for shape in self._shapes(entity, place.frame, entity_id):
            _demand_finite(shape.geom, entity_id)
            part_id = entity_id if shape.part is None else f"{entity_id}.{shape.part}"
            if shape.warning is not None:
                self._warn(*shape.warning, part_id)
            if len(self.flats) >= ENTITIES_MAX:
                raise Unusable("too_large", f"the drawing has more than {ENTITIES_MAX} entities")
            self.flats.append(Flat(_record(entity, part_id, place.space, look, shape), shape))

    def _shapes(self, entity: Any, frame: Matrix44 | None, entity_id: str) -> list[Shape]:
        try:
            return list(shapes_of(entity, frame))
        except (MemoryError, RecursionError, Unusable):
            raise
        except Exception as error:  # noqa: BLE001 - one entity that cannot be read must not hide all others
            _demand_finite(entity.dxfattribs(), entity_id)
            reason = f"{entity.dxftype()} cannot be read ({type(error).__name__})"
            return [Shape("other", {}, None, warning=("unreadable_entity", reason))]

    def _insert(self, insert: Any, place: _Place) -> None:
        self._references += 1
        if self._references > REFERENCES_MAX:
            raise Unusable("too_large", f"the drawing has more than {REFERENCES_MAX} block references")
        look = look_of(insert, self.layers, place.reference)
        insert_id = place.prefix + _handle(insert)
        name = str(insert.dxf.get("name", ""))
        _demand_finite(insert.dxfattribs(), insert_id)
        self._note_insert(insert, insert_id, place, look, name)
        for attrib in insert.attribs:
            if not attrib.is_invisible:
                own = look_of(attrib, self.layers, look)
                self._entity(attrib, place, f"{insert_id}/{_handle(attrib)}", own)
        block = self.document.blocks.get(name)
        if block is None or block.block is None:
            self._unresolved(insert, insert_id, place, look, "missing_block", f"block {name!r} is not defined")
            return
        if block.block.is_xref or block.block.is_xref_overlay:
            self.xref_count += 1
            self._unresolved(insert, insert_id, place, look, "external_reference", "external references are not loaded")
            return
        key = name.casefold()
        if key in place.blocks or len(place.blocks) >= DEPTH_MAX:
            self._warn("block_cycle", f"block {name!r} contains itself or is nested too deep", insert_id)
            return
        for suffix, frame in _frames(insert, place.frame):
            inner = _Place(place.space, f"{insert_id}{suffix}/", frame, look, (*place.blocks, key))
            self._visit(block, inner)

    def _unresolved(self, insert: Any, insert_id: str, place: _Place, look: Look, code: str, message: str) -> None:
        shape = Shape("other", {}, None)
        self._warn(code, message, insert_id)
        self.flats.append(Flat(_record(insert, insert_id, place.space, look, shape), shape))

    def _note_insert(self, insert: Any, insert_id: str, place: _Place, look: Look, name: str) -> None:
        dxf, ocs = insert.dxf, insert.ocs()
        along = map_direction(place.frame, ocs.to_wcs(Vec3.from_deg_angle(float(dxf.get("rotation", 0.0)))))
        self.inserts.append(
            {
                "id": insert_id,
                "space": place.space,
                "block": name,
                "layer": look.layer,
                "position": xyz(map_point(place.frame, ocs.to_wcs(Vec3(dxf.get("insert", (0, 0, 0)))))),
                "scale": tuple(float(dxf.get(axis, 1.0)) for axis in ("xscale", "yscale", "zscale")),
                "rotation_deg": degrees_in_turn(math.degrees(math.atan2(along.y, along.x))),
                "is_visible": not look.hidden_by,
                "attributes": {
                    str(a.dxf.get("tag", "")): plain_line(str(a.dxf.get("text", ""))) for a in insert.attribs
                },
            }
        )

    def _warn(self, code: str, message: str, entity_id: str | None) -> None:
        self.warnings.append({"code": code, "message": message, "entity_id": entity_id})


def _frames(insert: Any, outer: Matrix44 | None) -> Iterator[tuple[str, Matrix44]]:
    """One frame for each cell of the reference's array, with the cell's part of the id."""
    dxf = insert.dxf
    own = insert.matrix44()
    rows, columns = max(1, int(dxf.get("row_count", 1))), max(1, int(dxf.get("column_count", 1)))
    row_spacing, column_spacing = float(dxf.get("row_spacing", 0.0)), float(dxf.get("column_spacing", 0.0))
    if rows * columns > ENTITIES_MAX:
        raise Unusable("too_large", f"an array has {rows * columns} cells")
    ocs = insert.ocs()
    for row in range(rows):
        for column in range(columns):
            # The grid is rotated with the reference, but not scaled.
            step = Vec3(column * column_spacing, row * row_spacing).rotate_deg(float(dxf.get("rotation", 0.0)))
            shift = ocs.to_wcs(step)
            frame = own * Matrix44.translate(shift.x, shift.y, shift.z)
            suffix = f"#{row},{column}" if rows * columns > 1 else ""
            yield suffix, frame if outer is None else frame * outer


def _record(entity: Any, entity_id: str, space: str, look: Look, shape: Shape) -> dict[str, Any]:
    return {
        "id": entity_id,
        "space": space,
        "kind": shape.kind,
        "dxf_type": entity.dxftype(),
        "layer": look.layer,
        "aci": look.aci,
        "rgb": look.rgb,
        "linetype": look.linetype,
        "lineweight_mm": look.lineweight_mm,
        "is_visible": not look.hidden_by,
        "hidden_by": list(look.hidden_by),
        "is_plottable": look.is_plottable,
        "extents": shape.box,
        "geom": shape.geom,
    }


def _handle(entity: Any) -> str:
    return str(entity.dxf.handle or "0")


def _demand_finite(value: Any, entity_id: str) -> None:
    """Raises `Unusable` when any number in `value` is not finite or far beyond every drawing."""
    if isinstance(value, float):
        # Written so that NaN fails too.
        if not abs(value) <= COORDINATE_MAX:
            raise Unusable("nonfinite_geometry", f"entity {entity_id} has the coordinate {value}")
    elif isinstance(value, dict):
        for item in value.values():
            _demand_finite(item, entity_id)
    elif isinstance(value, list | tuple):
        for item in value:
            _demand_finite(item, entity_id)
    elif isinstance(value, Vec3):
        _demand_finite(value.xyz, entity_id)
