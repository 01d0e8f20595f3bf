"""`metadata.json`: facts about one drawing, as a trusted evaluator reports them (scoring contract, section 3).

Coordinates are world coordinates in drawing units; angles are counter-clockwise in degrees unless a name ends in
`_rad`; areas and volumes are in drawing units squared and cubed. An evaluator never judges.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from contract.broker_api import Sha256
from contract.records import Record

Point = tuple[float, float, float]
InvalidCode = Literal[
    "missing_artifact",
    "wrong_format",
    "too_large",
    "unreadable",
    "untouched",
    "nonfinite_geometry",
    "empty_drawing",
]
HiddenBy = Literal["layer_off", "layer_frozen", "entity_flag", "reference"]
DimensionKind = Literal["linear", "aligned", "angular", "diameter", "radius", "ordinate", "arc_length"]


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


class Box(Record):
    """An axis-aligned box."""

    min: Point
    max: Point


class SizedBox(Record):
    """An axis-aligned box and its edge lengths."""

    min: Point
    max: Point
    size: Point


class LineGeom(Record):
    """A straight piece."""

    start: Point
    end: Point


class PolylineGeom(Record):
    """`bulges[i]` belongs to the piece after `vertices[i]`; 0 is straight, signs are for a +Z normal."""

    vertices: list[Point]
    bulges: list[float]
    is_closed: bool
    is_exact: bool

    @model_validator(mode="after")
    def _has_one_bulge_per_vertex(self) -> PolylineGeom:
        if len(self.vertices) != len(self.bulges):
            raise ValueError("vertices and bulges differ in length")
        return self


class ArcGeom(Record):
    """From `start_deg` counter-clockwise to `end_deg`."""

    center: Point
    radius: float
    start_deg: float
    end_deg: float


class CircleGeom(Record):
    """A full turn."""

    center: Point
    radius: float


class EllipseGeom(Record):
    """`major_axis` is relative to the centre; parameters run counter-clockwise about +Z."""

    center: Point
    major_axis: Point
    ratio: float
    start_rad: float
    end_rad: float


class SplineGeom(Record):
    """A B-spline; no weights means that all are 1."""

    degree: int
    control_points: list[Point]
    knots: list[float]
    weights: list[float]
    fit_points: list[Point]
    is_closed: bool


class PointGeom(Record):
    """A node."""

    position: Point


class TextGeom(Record):
    """`text` is without formatting codes, `center` the middle of the estimated text box."""

    text: str
    raw: str
    anchor: Point
    center: Point
    height: float
    rotation_deg: float
    width_factor: float
    style: str
    source: Literal["TEXT", "MTEXT", "ATTRIB"]


class DimensionGeom(Record):
    """A dimension from its definition, not from its rendered block."""

    dim_kind: DimensionKind
    points: list[Point]
    measurement: float | None
    text_shown: str
    text_override: str
    text_center: Point | None


class Loop(Record):
    """One closed boundary."""

    vertices: list[Point]
    bulges: list[float]


class HatchGeom(Record):
    """`area` is what the loops enclose, holes taken out."""

    pattern: str
    is_solid: bool
    scale: float
    rotation_deg: float
    loops: list[Loop]
    area: float


class FillGeom(Record):
    """A filled polygon; corners run around the outline."""

    corners: list[Point]
    area: float


class MeshGeom(Record):
    """`volume` and `centroid` are null unless the mesh is closed."""

    vertex_count: int
    face_count: int
    is_closed: bool
    volume: float | None
    area: float
    centroid: Point | None


class SolidGeom(Record):
    """Mass properties; null where this evaluator cannot measure (`method` is then `unsupported`)."""

    volume: float | None
    area: float | None
    centroid: Point | None
    method: Literal["modeler", "vertices", "unsupported"]


class RasterGeom(Record):
    """A picture or a cover; `name` is a base name only."""

    corners: list[Point]
    name: str


class OtherGeom(Record):
    """Nothing is known about the shape."""


class EntityBase(Record):
    """What every entity has: identity, place in the file, resolved properties, visibility."""

    id: str
    space: str
    dxf_type: str
    layer: str
    aci: int | None
    rgb: str
    linetype: str
    lineweight_mm: float
    is_visible: bool
    hidden_by: list[HiddenBy]
    is_plottable: bool
    extents: Box | None


class LineEntity(EntityBase):
    """LINE."""

    kind: Literal["line"]
    geom: LineGeom


class PolylineEntity(EntityBase):
    """LWPOLYLINE, POLYLINE, LEADER, and curves of a plane that is not parallel to XY."""

    kind: Literal["polyline"]
    geom: PolylineGeom


class ArcEntity(EntityBase):
    """ARC."""

    kind: Literal["arc"]
    geom: ArcGeom


class CircleEntity(EntityBase):
    """CIRCLE."""

    kind: Literal["circle"]
    geom: CircleGeom


class EllipseEntity(EntityBase):
    """ELLIPSE, and a circle under non-uniform scale."""

    kind: Literal["ellipse"]
    geom: EllipseGeom


class SplineEntity(EntityBase):
    """SPLINE."""

    kind: Literal["spline"]
    geom: SplineGeom


class PointEntity(EntityBase):
    """POINT."""

    kind: Literal["point"]
    geom: PointGeom


class TextEntity(EntityBase):
    """TEXT, MTEXT, ATTRIB."""

    kind: Literal["text"]
    geom: TextGeom


class DimensionEntity(EntityBase):
    """DIMENSION of any kind."""

    kind: Literal["dimension"]
    geom: DimensionGeom


class HatchEntity(EntityBase):
    """HATCH, MPOLYGON."""

    kind: Literal["hatch"]
    geom: HatchGeom


class FillEntity(EntityBase):
    """SOLID, TRACE."""

    kind: Literal["fill"]
    geom: FillGeom


class MeshEntity(EntityBase):
    """MESH, polyface and polygon meshes, 3DFACE."""

    kind: Literal["mesh"]
    geom: MeshGeom


class SolidEntity(EntityBase):
    """3DSOLID, BODY, SURFACE, REGION."""

    kind: Literal["solid"]
    geom: SolidGeom


class RasterEntity(EntityBase):
    """IMAGE, OLE frames, underlays, point clouds, WIPEOUT."""

    kind: Literal["raster"]
    geom: RasterGeom


class OtherEntity(EntityBase):
    """Everything else, unresolved references and proxies."""

    kind: Literal["other"]
    geom: OtherGeom


Entity = Annotated[
    LineEntity
    | PolylineEntity
    | ArcEntity
    | CircleEntity
    | EllipseEntity
    | SplineEntity
    | PointEntity
    | TextEntity
    | DimensionEntity
    | HatchEntity
    | FillEntity
    | MeshEntity
    | SolidEntity
    | RasterEntity
    | OtherEntity,
    Field(discriminator="kind"),
]


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
