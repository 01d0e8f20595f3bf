"""`metadata.json`: facts about one drawing, as a trusted evaluator reports them (scoring contract, section 3).

Coordinates are world coordinates in drawing units; angles are counter-clockwise in degrees unless a name ends in
`_rad`; areas and volumes are in drawing units squared and cubed. An evaluator never judges.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from contract.broker_api import Sha256
from contract.entities import Box, Entity, Point
from contract.records import Record

InvalidCode = Literal[
    "missing_artifact",
    "wrong_format",
    "too_large",
    "unreadable",
    "untouched",
    "nonfinite_geometry",
    "empty_drawing",
]


class Evaluator(Record):
    """Who made the facts. `config_sha256` covers every setting that can change the output."""

    name: Literal["autocad", "ezdxf"]
    version: str
    application: str
    config_sha256: Sha256


class Source(Record):
    """The drawing file. `acad_version` is null when the file does not say."""

    format: Literal["DWG", "DXF"] | None
    acad_version: str | None
    sha256: Sha256
    size_bytes: int


class Invalid(Record):
    """Why the drawing itself cannot be scored (scoring contract, section 7)."""

    code: InvalidCode
    message: str


class Units(Record):
    """Declared units; `insunits` is the DXF code, `measurement` is 0 for imperial and 1 for metric."""

    insunits: int
    name: str
    to_mm: float | None
    measurement: int


class Layer(Record):
    """One row of the layer table; `entity_count` counts flattened entities of all spaces."""

    name: str
    aci: int | None
    rgb: str
    linetype: str
    lineweight_mm: float
    is_on: bool
    is_frozen: bool
    is_locked: bool
    is_plottable: bool
    entity_count: int


class Block(Record):
    """One block definition that is not a layout."""

    name: str
    is_anonymous: bool
    is_xref: bool
    entity_count: int
    reference_count: int


class Insert(Record):
    """One block reference; its content is flattened into the entities."""

    id: str
    space: str
    block: str
    layer: str
    position: Point
    scale: Point
    rotation_deg: float
    is_visible: bool
    attributes: dict[str, str]


class SizedBox(Record):
    """An axis-aligned box and its edge lengths."""

    min: Point
    max: Point
    size: Point


class Extents(Record):
    """Boxes around model space, from its entities and never from header variables."""

    visible: Box | None
    all: Box | None


class Viewport(Record):
    """One viewport of a layout, in paper units except for its view; `scale` is paper per drawing unit."""

    id: str
    center: Point
    width: float
    height: float
    view_center: Point
    view_height: float
    view_direction: Point
    scale: float | None
    is_on: bool
    frozen_layers: list[str]


class Layout(Record):
    """Model space or one paper layout."""

    name: str
    kind: Literal["model", "paper"]
    tab_order: int
    paper_size_mm: tuple[float, float]
    plot_rotation_deg: float
    entity_count: int
    viewports: list[Viewport]


class Counts(Record):
    """How many entities of each sort there are; `degenerate` are curves without length in their own drawing."""

    entities: int = 0
    visible: int = 0
    hidden: int = 0
    degenerate: int = 0
    raster: int = 0
    ole: int = 0
    underlay: int = 0
    wipeout: int = 0
    xref: int = 0
    proxy: int = 0
    other: int = 0


class Warn(Record):
    """Something that was skipped or approximated."""

    code: str
    message: str
    entity_id: str | None


class Body(Record):
    """One physical body, measured alone."""

    entity_id: str
    kind: Literal["solid", "mesh"]
    layer: str
    min: Point
    max: Point
    volume: float | None
    area: float | None
    centroid: Point | None
    method: Literal["modeler", "vertices"]


class PhysicalExtents(Record):
    """The box around physical bodies only; `unsupported` lists bodies that could not be measured.

    The box is null when none of the bodies could be measured.
    """

    min: Point | None
    max: Point | None
    size: Point | None
    bodies: list[Body]
    unsupported: list[str]


class Metadata(Record):
    """The whole document. Schema 4 has `physical_extents_3d` (possibly null); schema 3 does not have the field."""

    schema_version: Literal[3, 4]
    evaluator: Evaluator
    source: Source
    status: Literal["ok", "invalid"]
    invalid: Invalid | None
    units: Units
    layers: list[Layer]
    blocks: list[Block]
    inserts: list[Insert]
    entities: list[Entity]
    extents: Extents
    layouts: list[Layout]
    extents_3d: SizedBox | None
    physical_extents_3d: PhysicalExtents | None = None
    counts: Counts
    warnings: list[Warn]

    @model_validator(mode="after")
    def _has_the_fields_of_its_schema(self) -> Metadata:
        if (self.schema_version == 4) != ("physical_extents_3d" in self.model_fields_set):
            raise ValueError("physical_extents_3d belongs to schema 4, and to no other")
        return self

    @model_validator(mode="after")
    def _says_why_it_is_invalid(self) -> Metadata:
        if (self.status == "invalid") != (self.invalid is not None):
            raise ValueError("status and invalid do not agree")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_what_schema_3_lacks(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        if self.schema_version == 3:
            del document["physical_extents_3d"]
        return document
