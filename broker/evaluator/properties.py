"""Resolves layer, colour, linetype, lineweight and visibility through BYLAYER and BYBLOCK."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ezdxf import colors
from ezdxf.document import Drawing

_BYBLOCK_ACI: Final = 0
_BYLAYER_ACI: Final = 256
# DXF reference, group 370: -1 by layer, -2 by block, -3 default, which is 0.25 mm in every program we know.
_BYLAYER_WEIGHT: Final = -1
_BYBLOCK_WEIGHT: Final = -2
_DEFAULT_MM: Final = 0.25


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer as its entities inherit it."""

    name: str
    aci: int | None
    rgb: str
    linetype: str
    lineweight_mm: float
    is_on: bool
    is_frozen: bool
    is_locked: bool
    is_plottable: bool


@dataclass(frozen=True, slots=True)
class Look:
    """The resolved properties of an entity, or of the block reference that its content inherits from."""

    layer: str
    aci: int | None
    rgb: str
    linetype: str
    lineweight_mm: float
    hidden_by: tuple[str, ...]
    is_plottable: bool


class LayerTable:
    """All layers by name, whatever their spelling; a layer that the table lacks has the defaults."""

    def __init__(self, document: Drawing) -> None:
        self.rows: dict[str, LayerRow] = {}
        for layer in document.layers:
            self.rows[layer.dxf.name.casefold()] = _layer_row(layer)

    def get(self, name: str) -> LayerRow:
        """The layer by any spelling of its name."""
        row = self.rows.get(name.casefold())
        return row or LayerRow(name, 7, rgb_of_aci(7), "CONTINUOUS", _DEFAULT_MM, True, False, False, True)


def _layer_row(layer: Any) -> LayerRow:
    aci = abs(layer.dxf.get("color", 7)) or 7
    true_color = layer.dxf.get("true_color")
    name = layer.dxf.name
    return LayerRow(
        name=name,
        aci=aci if true_color is None else None,
        rgb=rgb_of_aci(aci) if true_color is None else rgb_of_true_color(true_color),
        linetype=str(layer.dxf.get("linetype", "CONTINUOUS")).upper(),
        lineweight_mm=_millimetres(layer.dxf.get("lineweight", -3)),
        is_on=layer.is_on(),
        is_frozen=layer.is_frozen(),
        is_locked=layer.is_locked(),
        # No program plots this layer, whatever its flag says.
        is_plottable=bool(layer.dxf.get("plot", 1)) and name.casefold() != "defpoints",
    )


def look_of(entity: Any, layers: LayerTable, reference: Look | None) -> Look:
    """Resolve one entity; `reference` is the look of the block reference that contains it."""
    dxf = entity.dxf
    own_layer = _read(dxf, "layer", "0")
    # Content on layer 0 of a block takes the reference's layer.
    layer = layers.get(reference.layer if reference and own_layer == "0" else own_layer)
    aci, rgb = _colour(dxf, layer, reference)
    return Look(
        layer=layer.name,
        aci=aci,
        rgb=rgb,
        linetype=_linetype(dxf, layer, reference),
        lineweight_mm=_lineweight(dxf, layer, reference),
        hidden_by=_hidden_by(dxf, layer, reference),
        is_plottable=layer.is_plottable,
    )


def _colour(dxf: Any, layer: LayerRow, reference: Look | None) -> tuple[int | None, str]:
    true_color = _read(dxf, "true_color")
    if true_color is not None:
        return None, rgb_of_true_color(true_color)
    aci = _read(dxf, "color", _BYLAYER_ACI)
    if aci == _BYLAYER_ACI:
        return layer.aci, layer.rgb
    if aci == _BYBLOCK_ACI:
        return (reference.aci, reference.rgb) if reference else (7, rgb_of_aci(7))
    return abs(aci), rgb_of_aci(abs(aci))


def _linetype(dxf: Any, layer: LayerRow, reference: Look | None) -> str:
    name = str(_read(dxf, "linetype", "BYLAYER")).upper()
    if name == "BYLAYER":
        return layer.linetype
    if name == "BYBLOCK":
        return reference.linetype if reference else "CONTINUOUS"
    return name


def _lineweight(dxf: Any, layer: LayerRow, reference: Look | None) -> float:
    weight = _read(dxf, "lineweight", _BYLAYER_WEIGHT)
    if weight == _BYLAYER_WEIGHT:
        return layer.lineweight_mm
    if weight == _BYBLOCK_WEIGHT:
        return reference.lineweight_mm if reference else _DEFAULT_MM
    return _millimetres(weight)


def _hidden_by(dxf: Any, layer: LayerRow, reference: Look | None) -> tuple[str, ...]:
    reasons = (
        ("layer_off", not layer.is_on),
        ("layer_frozen", layer.is_frozen),
        ("entity_flag", bool(_read(dxf, "invisible", 0))),
        ("reference", reference is not None and bool(reference.hidden_by)),
    )
    return tuple(reason for reason, holds in reasons if holds)


def _read(dxf: Any, name: str, default: Any = None) -> Any:
    # An entity of a type that nobody knows is kept as it is written, and raises when it is asked for an attribute.
    return dxf.get(name, default) if dxf.is_supported(name) else default


def _millimetres(weight: int) -> float:
    return weight / 100 if weight >= 0 else _DEFAULT_MM


@cache
def rgb_of_aci(aci: int) -> str:
    """`#rrggbb` of a colour index; anything outside 1 to 255 is white."""
    red, green, blue = colors.aci2rgb(aci) if 1 <= aci <= 255 else (255, 255, 255)
    return f"#{red:02x}{green:02x}{blue:02x}"


def rgb_of_true_color(value: int) -> str:
    """`#rrggbb` of a 24-bit colour."""
    return f"#{value & 0xFFFFFF:06x}"
