"""`metadata.json` of one drawing: facts, and no judgement beyond the closed list of invalid drawings."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ezdxf.document import Drawing

from broker.evaluator.boxes import box_of_boxes, diagonal, sized
from broker.evaluator.flatten import Flat, Walk
from broker.evaluator.gold_mark import is_marked_gold
from broker.evaluator.physical import physical_extents
from broker.evaluator.properties import LayerTable
from broker.evaluator.reading import Opened, Unusable, check_bytes, open_drawing
from broker.evaluator.refusal import invalid_metadata, source_of
from broker.evaluator.settings import FONT, identity, inspector
from broker.evaluator.shapes import RASTER_TYPES
from contract.metadata import Evaluator, Metadata

# Curves up to this share of the diagonal are degenerate (scoring contract, 6.1).
DEGENERATE_SHARE: Final = 1e-7
CURVE_KINDS: Final = frozenset({"line", "polyline", "arc", "circle", "ellipse", "spline"})
# DXF reference, $INSUNITS: name and length in millimetres.
_UNITS: Final[dict[int, tuple[str, float | None]]] = {
    0: ("unitless", None),
    1: ("inch", 25.4),
    2: ("foot", 304.8),
    3: ("mile", 1_609_344.0),
    4: ("millimetre", 1.0),
    5: ("centimetre", 10.0),
    6: ("metre", 1_000.0),
    7: ("kilometre", 1_000_000.0),
    8: ("microinch", 2.54e-5),
    9: ("mil", 0.0254),
    10: ("yard", 914.4),
    13: ("micron", 1e-3),
    14: ("decimetre", 100.0),
}


def export_metadata(drawing: bytes, start_drawing: bytes | None) -> Metadata:
    """Facts about `drawing`; empty bytes mean that the model left no file. `start_drawing` is what it was given.

    Raises `FontMissing`; a drawing at fault is a record with status `invalid`.
    """
    return Facts.of(drawing).metadata(start_drawing)


@dataclass(frozen=True)
class Facts:
    """One drawing, flattened once for its export and its renders. `refusal` says why it could not be.

    An inspection also reads DWG files, and signs all its facts with a version that is never pinned.
    """

    content: bytes
    opened: Opened | None
    walk: Walk | None
    refusal: Unusable | None
    is_inspection: bool = False

    @classmethod
    def of(cls, content: bytes, *, is_inspection: bool = False) -> Facts:
        """Read and flatten; never raises for what is in the bytes."""
        opened = None
        try:
            check_bytes(content, is_inspection=is_inspection)
            opened = open_drawing(content)
            walk = _walked(opened.document)
        except Unusable as refusal:
            return cls(content, opened, None, refusal, is_inspection)
        return cls(content, opened, walk, None, is_inspection)

    def metadata(self, start_drawing: bytes | None) -> Metadata:
        """The record, by the rules of section 7 in their order."""
        refusal = self.refusal
        is_read = refusal is None or refusal.code == "nonfinite_geometry"
        if start_drawing is not None and is_marked_gold(start_drawing):
            start_drawing = None
        if is_read and start_drawing is not None and self._is_untouched(start_drawing):
            refusal = Unusable("untouched", "the drawing has the same content as the start drawing")
        if refusal is None and not any(takes_part(flat.record) for flat in self.flats):
            refusal = Unusable("empty_drawing", "nothing visible in model space can be compared")
        if refusal is not None:
            return invalid_metadata(self.content, refusal.code, refusal.message, evaluator=self._signature)
        return Metadata.model_validate(_clean(self._document()))

    @property
    def flats(self) -> list[Flat]:
        """All flattened entities, sorted by space and id."""
        return [] if self.walk is None else self.walk.flats

    def _is_untouched(self, start_drawing: bytes) -> bool:
        if self.content == start_drawing:
            return True
        start = Facts.of(start_drawing, is_inspection=self.is_inspection)
        return self.walk is not None and start.walk is not None and self._content_key == start._content_key

    @property
    def _signature(self) -> Evaluator:
        return inspector() if self.is_inspection else identity()

    @cached_property
    def _content_key(self) -> list[str]:
        """What the entities say, without handles and without the last digits, which a program that saves may change."""
        return sorted(json.dumps(_essence(flat.record), sort_keys=True) for flat in self.flats)

    def _document(self) -> dict[str, Any]:
        assert self.opened is not None
        assert self.walk is not None
        document, walk = self.opened.document, self.walk
        records = [flat.record for flat in walk.flats]
        model = [record for record in records if record["space"] == "model"]
        visible = box_of_boxes(record["extents"] for record in model if record["is_visible"])
        return {
            "schema_version": 4,
            "evaluator": self._signature,
            "source": source_of(self.content, acad_version=document.dxfversion),
            "status": "ok",
            "invalid": None,
            "units": _units(document),
            "layers": _layers(walk.layers, records),
            "blocks": _blocks(document, walk.inserts),
            "inserts": sorted(walk.inserts, key=lambda insert: (insert["space"], insert["id"])),
            "entities": records,
            "extents": {"visible": visible, "all": box_of_boxes(record["extents"] for record in model)},
            "layouts": _layouts(document),
            "extents_3d": sized(visible),
            "physical_extents_3d": physical_extents(walk.flats, diagonal(visible)),
            "counts": _counts(model, walk.xref_count, diagonal(visible)),
            "warnings": [*_document_warnings(self.opened), *walk.warnings],
        }


def takes_part(record: dict[str, Any]) -> bool:
    """Whether an entity record is compared at all (scoring contract, 6.1)."""
    if record["space"] != "model" or not record["is_visible"]:
        return False
    kind = record["kind"]
    if kind in CURVE_KINDS:
        return diagonal(record["extents"]) > 0.0
    if kind in ("hatch", "fill"):
        return bool(record["geom"]["area"] > 0.0)
    return kind in ("point", "text", "dimension", "mesh", "solid")


def _walked(document: Drawing) -> Walk:
    walk = Walk(document, LayerTable(document))
    walk.space("model", document.modelspace())
    for layout in document.layouts:
        if layout.name != "Model":
            walk.space(layout.name, layout)
    walk.flats.sort(key=lambda flat: (flat.record["space"], flat.record["id"]))
    walk.warnings.sort(key=lambda warning: (warning["entity_id"] or "", warning["code"]))
    return walk


def _essence(record: dict[str, Any]) -> dict[str, Any]:
    geom = {name: _rounded(value) for name, value in record["geom"].items() if name not in ("raw", "style", "knots")}
    look = {name: record[name] for name in ("space", "kind", "rgb", "linetype", "is_visible")}
    return look | {"layer": record["layer"].casefold(), "geom": geom}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) + 0.0
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _document_warnings(opened: Opened) -> Iterator[dict[str, Any]]:
    if opened.was_recovered:
        yield {"code": "recovered", "message": "the DXF was damaged and was repaired when read", "entity_id": None}
    for code, message, entity_id in opened.notes:
        yield {"code": code, "message": message, "entity_id": entity_id}
    fonts = {str(style.dxf.get("font", "")).casefold() for style in opened.document.styles}
    for font in sorted(fonts - {"", FONT.name.casefold()}):
        name = font.replace("\\", "/").rsplit("/", 1)[-1]
        yield {"code": "font_substituted", "message": f"{name} is drawn with {FONT.name}", "entity_id": None}


def _units(document: Drawing) -> dict[str, Any]:
    code = _whole(document.header.get("$INSUNITS", 0))
    name, to_mm = _UNITS.get(code, (f"code {code}", None))
    measurement = 1 if _whole(document.header.get("$MEASUREMENT", 0)) == 1 else 0
    return {"insunits": code, "name": name, "to_mm": to_mm, "measurement": measurement}


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def _layers(table: LayerTable, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    used = Counter(record["layer"].casefold() for record in records)
    return [
        {
            "name": row.name,
            "aci": row.aci,
            "rgb": row.rgb,
            "linetype": row.linetype,
            "lineweight_mm": row.lineweight_mm,
            "is_on": row.is_on,
            "is_frozen": row.is_frozen,
            "is_locked": row.is_locked,
            "is_plottable": row.is_plottable,
            "entity_count": used[key],
        }
        for key, row in sorted(table.rows.items())
    ]


def _blocks(document: Drawing, inserts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    references = Counter(insert["block"].casefold() for insert in inserts)
    return [
        {
            "name": block.name,
            "is_anonymous": block.name.startswith("*"),
            "is_xref": bool(block.block and (block.block.is_xref or block.block.is_xref_overlay)),
            "entity_count": len(block),
            "reference_count": references[block.name.casefold()],
        }
        for block in sorted(document.blocks, key=lambda block: str(block.name))
        if not block.is_any_layout
    ]


def _layouts(document: Drawing) -> list[dict[str, Any]]:
    layouts = [
        {
            "name": layout.name,
            "kind": "model" if layout.name == "Model" else "paper",
            "tab_order": _whole(layout.dxf.get("taborder", 0)),
            "paper_size_mm": (_real(layout.dxf.get("paper_width", 0)), _real(layout.dxf.get("paper_height", 0))),
            "plot_rotation_deg": 90.0 * (_whole(layout.dxf.get("plot_rotation", 0)) % 4),
            "entity_count": len(layout),
            # Viewport 1 of a layout is the sheet itself.
            "viewports": [_viewport(v) for v in layout.query("VIEWPORT") if _whole(v.dxf.get("id", 0)) != 1],
        }
        for layout in document.layouts
    ]
    return sorted(layouts, key=lambda layout: (layout["tab_order"], layout["name"]))


def _viewport(viewport: Any) -> dict[str, Any]:
    dxf = viewport.dxf
    height, view_height = _real(dxf.get("height", 0)), _real(dxf.get("view_height", 0))
    return {
        "id": str(dxf.handle or "0"),
        "center": _point(dxf.get("center")),
        "width": _real(dxf.get("width", 0)),
        "height": height,
        "view_center": _point(dxf.get("view_center_point")),
        "view_height": view_height,
        "view_direction": _point(dxf.get("view_direction_vector", (0.0, 0.0, 1.0))),
        "scale": height / view_height if view_height else None,
        "is_on": _whole(dxf.get("status", 1)) != 0,
        "frozen_layers": sorted(str(name) for name in viewport.frozen_layers),
    }


def _point(value: Any) -> tuple[float, float, float]:
    parts = [_real(part) for part in (value or ())][:3]
    return tuple([*parts, 0.0, 0.0, 0.0][:3])  # type: ignore[return-value]  # always three


def _real(value: Any) -> float:
    number = float(value)
    return number + 0.0 if math.isfinite(number) else 0.0


def _counts(model: list[dict[str, Any]], xref_count: int, size: float) -> dict[str, int]:
    kinds = Counter(record["kind"] for record in model)
    rasters = Counter(RASTER_TYPES[record["dxf_type"]] for record in model if record["kind"] == "raster")
    visible = sum(record["is_visible"] for record in model)
    return {
        "entities": len(model),
        "visible": visible,
        "hidden": len(model) - visible,
        "degenerate": sum(_is_degenerate(record, size) for record in model),
        "raster": kinds["raster"],
        "ole": rasters["ole"],
        "underlay": rasters["underlay"],
        "wipeout": rasters["wipeout"],
        "xref": xref_count,
        "proxy": sum(record["dxf_type"] == "ACAD_PROXY_ENTITY" for record in model),
        "other": kinds["other"],
    }


def _is_degenerate(record: dict[str, Any], size: float) -> bool:
    if record["kind"] in CURVE_KINDS:
        return diagonal(record["extents"]) <= DEGENERATE_SHARE * size
    return record["kind"] in ("hatch", "fill") and record["geom"]["area"] <= 0.0


def _clean(value: Any) -> Any:
    """The same document without lone surrogates: a damaged text must not keep the facts from being written."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(name): _clean(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def drawing_digest(content: bytes) -> str:
    """What a drawing is cached by."""
    return hashlib.sha256(content).hexdigest()
