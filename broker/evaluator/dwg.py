"""Reads a DWG drawing (AutoCAD R14 to 2018) into the form that the rest of this evaluator knows, for inspection.

The reader is another program than the one that drew, and it does not know everything that a DWG may hold: so what comes
from here is never a pinned score. What it cannot read is still listed, with a warning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import ezdwg
from ezdwg import raw
from ezdxf.document import Drawing
from ezdxf.filemanagement import new as new_drawing

from broker.evaluator.dwg_entities import UNDRAWN, draw, place_attribute, placeholder

# Parts of other entities and marks of lists: their owners are drawn with them.
_PARTS: Final = ("VERTEX", "SEQEND", "BLOCK", "ENDBLK")
_MODEL: Final = "*MODEL_SPACE"
_PAPER: Final = "*PAPER_SPACE"
# `entity_placement`: the space that an entity without an owner belongs to.
_IN_ACTIVE_PAPER: Final = 1


@cache
def reader() -> str:
    """The library that reads DWG files, and its version."""
    return f"ezdwg {version('ezdwg')}"


@dataclass(frozen=True, slots=True)
class Unread:
    """Something in the file whose content could not be read."""

    handle: str
    kind: str


@dataclass(frozen=True, slots=True)
class DwgCopy:
    """A drawing, and what of it could not be read."""

    document: Drawing
    unread: tuple[Unread, ...]


def open_dwg(content: bytes) -> DwgCopy:
    """The drawing in these bytes. Raises whatever the reader raises for a file that it cannot read."""
    with tempfile.TemporaryDirectory(prefix="autocad-bench-dwg-") as folder:
        path = Path(folder) / "drawing.dwg"
        path.write_bytes(content)
        try:
            return _Copying(ezdwg.read(str(path))).made()
        finally:
            ezdwg.clear_decode_caches()


@dataclass(slots=True)
class _Copying:
    """Carries one document over. Handles stay, so that an entity has the name that the program gave it that drew it."""

    source: Any
    target: Drawing = field(default_factory=lambda: new_drawing("R2018"))
    unread: list[Unread] = field(default_factory=list)
    # By handle: names of layers and dimension styles, the places that own entities, drawn references.
    _layers: dict[int, str] = field(default_factory=dict)
    _styles: dict[int, str] = field(default_factory=dict)
    _owners: dict[int, Any] = field(default_factory=dict)
    _inserts: dict[int, Any] = field(default_factory=dict)
    _sheets: set[int] = field(default_factory=set)
    _active_paper: Any = None

    def made(self) -> DwgCopy:
        self._copy_tables()
        self._copy_places()
        self._copy_entities()
        return DwgCopy(self.target, tuple(self.unread))

    def _copy_tables(self) -> None:
        units = self.source.insunits
        self.target.header["$INSUNITS"] = units if units is not None else 0
        for name, line in self.source.linetypes().items():
            if name and name not in self.target.linetypes:
                dashes = [float(dash) for dash in line["dashes"]]
                pattern = [sum(map(abs, dashes)), *dashes] if dashes else [0.0]
                self.target.linetypes.add(name, pattern=pattern, description=line["description"])
        for layer in self.source.layers:
            self._copy_layer(layer)
        for name, style in self.source.dimstyles().items():
            self._styles[style["handle"]] = name
            if name not in self.target.dimstyles:
                self.target.dimstyles.add(name)
            row = self.target.dimstyles.get(name)
            row.dxf.dimscale, row.dxf.dimtxt, row.dxf.dimasz = style["dimscale"], style["dimtxt"], style["dimasz"]

    def _copy_layer(self, layer: Any) -> None:
        name = layer.name
        self._layers[layer.handle] = name
        row = self.target.layers.get(name) if name in self.target.layers else self.target.layers.add(name)
        row.dxf.color = layer.color
        row.dxf.linetype = layer.linetype or "Continuous"
        row.dxf.lineweight = layer.lineweight
        row.dxf.plot = int(layer.plot)
        if layer.true_color is not None:
            row.dxf.true_color = layer.true_color & 0xFFFFFF
        if not layer.on:
            row.off()
        if layer.frozen:
            row.freeze()
        if layer.locked:
            row.lock()

    def _copy_places(self) -> None:
        """Layouts and blocks, still empty."""
        layouts = self.source.layouts()
        for name, layout in layouts.items():
            place = self._place_of_layout(name, layout)
            self._owners[layout["block_record_handle"]] = place
            # The first viewport of a sheet is the sheet itself; before R2004 only the last one used is named.
            self._sheets.update([*layout["viewport_handles"], layout["last_active_viewport_handle"]][:1])
            if layout["active"]:
                self._active_paper = place
        if self._active_paper is None:
            # A drawing without layout objects (before R2000): what is on paper goes to the sheet of a new drawing.
            self._active_paper = self.target.paperspace()
        for name in self.target.layouts.names():
            if name not in layouts and name not in ("Model", self._active_paper.name):
                self.target.layouts.delete(name)
        for block in raw.decode_write_blocks(self.source.decode_path):
            handle, name = block["handle"], block["name"]
            if handle in self._owners:
                continue
            if name.upper().startswith(_MODEL):
                self._owners[handle] = self.target.modelspace()
            elif name.upper().startswith(_PAPER):
                self._owners[handle] = self._active_paper
            else:
                self._owners[handle] = self._new_block(name, block["base_point"])

    def _place_of_layout(self, name: str, layout: dict[str, Any]) -> Any:
        if layout["model"]:
            return self.target.modelspace()
        place = self.target.layouts.get(name) if name in self.target.layouts else self.target.layouts.new(name)
        place.dxf.taborder = layout["tab_order"]
        place.dxf.paper_width, place.dxf.paper_height = layout["paper_width"], layout["paper_height"]
        place.dxf.plot_rotation = layout["plot_rotation"]
        return place

    def _new_block(self, name: str, base_point: tuple[float, float, float]) -> Any:
        if name in self.target.blocks:
            return self.target.blocks.get(name)
        return self.target.blocks.new(name, base_point=base_point)

    def _copy_entities(self) -> None:
        drawn: set[int] = set()
        attributes = []
        for entity in self.source.entities().query():
            drawn.add(int(entity.handle))
            if entity.dxftype in UNDRAWN:
                self._note_unread(entity.handle, entity.dxftype)
            if entity.dxftype == "ATTRIB":
                attributes.append(entity)
                continue
            made = draw(self._place(int(entity.handle)), entity, self._look(entity), self._style_of(entity))
            made.dxf.handle = f"{entity.handle:X}"
            if entity.dxftype == "VIEWPORT":
                made.dxf.id = 1 if int(entity.handle) in self._sheets else 2
            if entity.dxftype in ("INSERT", "MINSERT"):
                self._inserts[int(entity.handle)] = made
        for entity in attributes:
            self._copy_attribute(entity)
        for handle, kind in self._others(drawn):
            self._note_unread(handle, kind)

    def _copy_attribute(self, entity: Any) -> None:
        owner = self._inserts.get(int(entity.dxf.get("owner_handle") or 0))
        if owner is None:
            self._note_unread(entity.handle, entity.dxftype)
            return
        place_attribute(owner, entity, self._look(entity)).dxf.handle = f"{entity.handle:X}"

    def _others(self, drawn: set[int]) -> Iterator[tuple[int, str]]:
        """Entities of kinds that the reader does not decode at all, each drawn as a placeholder."""
        for handle, _, _, _, kind, sort in raw.list_object_headers_with_type(self.source.decode_path):
            if sort == "E" and handle not in drawn and not kind.startswith(_PARTS):
                placeholder(self._place(handle), kind, {}).dxf.handle = f"{handle:X}"
                yield handle, kind

    def _place(self, handle: int) -> Any:
        placement = self.source.entity_placement(handle)
        if placement is None:
            return self.target.modelspace()
        space, owner = placement
        if owner is not None and owner in self._owners:
            return self._owners[owner]
        return self._active_paper if space == _IN_ACTIVE_PAPER else self.target.modelspace()

    def _look(self, entity: Any) -> dict[str, Any]:
        dxf = entity.dxf
        look = {
            "layer": self._layers.get(dxf.get("layer_handle"), "0"),
            "color": dxf.get("color_index", 256),
            "linetype": dxf.get("linetype") or "BYLAYER",
            "lineweight": dxf.get("lineweight", -1),
            "invisible": int(bool(dxf.get("invisible", False))),
        }
        if dxf.get("true_color") is not None:
            look["true_color"] = dxf["true_color"] & 0xFFFFFF
        return {name: value for name, value in look.items() if value is not None}

    def _style_of(self, entity: Any) -> str:
        return self._styles.get(entity.dxf.get("dimstyle_handle"), "Standard")

    def _note_unread(self, handle: int, kind: str) -> None:
        self.unread.append(Unread(f"{handle:X}", kind))
