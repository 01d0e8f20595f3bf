"""The entities of a drawing, as a trusted evaluator reports them (scoring contract, section 3).

Units and angles are those of `contract/metadata.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from contract.records import Record

Point = tuple[float, float, float]
HiddenBy = Literal["layer_off", "layer_frozen", "entity_flag", "reference"]
DimensionKind = Literal["linear", "aligned", "angular", "diameter", "radius", "ordinate", "arc_length"]


class Box(Record):
    """An axis-aligned box."""

    min: Point
    max: Point


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
