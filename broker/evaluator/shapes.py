"""Turns one DXF entity into its records: one, or several where a mapped polyline falls into exact pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ezdxf.math import Matrix44, Vec3

from broker.evaluator.acis import polyhedron_of
from broker.evaluator.bodies import Mesh, mesh_of
from broker.evaluator.boxes import Box, box_of_boxes, box_of_bulged, box_of_curve, box_of_points
from broker.evaluator.curves import (
    TURN,
    Geom,
    Piece,
    arc,
    circle,
    conic,
    map_point,
    polyline,
    straight_polyline,
    xyz,
)
from broker.evaluator.dimensions import dimension_of
from broker.evaluator.hatches import Hatch
from broker.evaluator.texts import Text, mtext_of, text_of

Strokes = Callable[[float], Iterable[Sequence[Vec3]]]

RASTER_TYPES: Final = {
    "IMAGE": "raster",
    "WIPEOUT": "wipeout",
    "OLEFRAME": "ole",
    "OLE2FRAME": "ole",
    "PDFUNDERLAY": "underlay",
    "DWFUNDERLAY": "underlay",
    "DGNUNDERLAY": "underlay",
    "UNDERLAY": "underlay",
    "POINTCLOUD": "raster",
    "POINTCLOUDEX": "raster",
    "ACDBPOINTCLOUD": "raster",
    "ACDBPOINTCLOUDEX": "raster",
}
_SURFACES: Final = ("EXTRUDED", "LOFTED", "PLANE", "REVOLVED", "SWEPT", "")
_SOLID_TYPES: Final = frozenset(["3DSOLID", "BODY", "REGION", "NURBSURFACE", *(f"{name}SURFACE" for name in _SURFACES)])


class Lettering(NamedTuple):
    """Lines of text as they are drawn, from the top; lengths in drawing units."""

    lines: tuple[str, ...]
    center: tuple[float, float, float]
    height: float
    spacing: float
    rotation_deg: float
    width_factor: float


class Shape(NamedTuple):
    """One record's kind and geometry, its box, and what the render needs beyond the record."""

    kind: str
    geom: Geom
    box: Box | None
    part: int | None = None
    strokes: Strokes | None = None
    lettering: Lettering | None = None
    # Why the record is less than the entity: a warning's code and message.
    warning: tuple[str, str] | None = None
    # The faces of a body; a body that cannot be measured exactly has `is_measured` false.
    mesh: Mesh | None = None
    is_measured: bool = True


def shapes_of(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    """Records of one entity that is not a block reference; `frame` maps the world of its block to the drawing's."""
    kind = entity.dxftype()
    convert = _CONVERTERS.get(kind)
    if convert is not None:
        yield from convert(entity, frame)
    elif kind in RASTER_TYPES:
        yield _raster(entity, frame)
    elif kind in _SOLID_TYPES:
        yield _solid(entity, frame)
    else:
        yield Shape("other", {}, None, warning=("unsupported_entity", f"{kind} is not compared"))


def _own_frame(entity: Any, frame: Matrix44 | None) -> Matrix44 | None:
    """The map from the entity's own coordinate system to the world."""
    ocs = entity.ocs()
    if not ocs.transform:
        return frame
    return ocs.matrix if frame is None else ocs.matrix * frame


def _curve(piece: Piece) -> Shape:
    warning = None
    if piece.kind == "polyline" and not piece.geom["is_exact"]:
        warning = ("flattened_curve", "a curve of a tilted plane is reported as a polyline")
    return Shape(piece.kind, piece.geom, box_of_curve(piece.kind, piece.geom), piece.part, warning=warning)


def _line(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    ends = {"start": xyz(map_point(frame, entity.dxf.start)), "end": xyz(map_point(frame, entity.dxf.end))}
    yield _curve(Piece("line", ends))


def _circle(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    yield _curve(circle(_own_frame(entity, frame), Vec3(entity.dxf.center), float(entity.dxf.radius)))


def _arc(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    dxf = entity.dxf
    own = _own_frame(entity, frame)
    yield _curve(arc(own, Vec3(dxf.center), float(dxf.radius), float(dxf.start_angle), float(dxf.end_angle)))


def _ellipse(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    dxf = entity.dxf
    # An ellipse is stored in world coordinates; its normal says which way the minor axis points.
    major = Vec3(dxf.major_axis)
    minor = Vec3(dxf.get("extrusion", (0, 0, 1))).cross(major)
    minor = minor.normalize(major.magnitude * float(dxf.ratio)) if minor.magnitude else minor
    start, end = float(dxf.start_param), float(dxf.end_param)
    sweep = (end - start) % TURN
    # Writers round a full turn: what is left open by less than this is closed.
    sweep = TURN if sweep < 1e-9 or TURN - sweep < 1e-9 else sweep
    yield _curve(conic(frame, Vec3(dxf.center), major, minor, start, start + sweep))


def _lwpolyline(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    elevation = float(entity.dxf.get("elevation", 0.0))
    points, bulges = [], []
    for x, y, bulge in entity.get_points("xyb"):
        points.append(Vec3(x, y, elevation))
        bulges.append(float(bulge) + 0.0)
    yield from map(_curve, polyline(_own_frame(entity, frame), points, bulges, is_closed=bool(entity.closed)))


def _polyline(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    if entity.is_poly_face_mesh or entity.is_polygon_mesh:
        yield from _mesh(entity, frame)
        return
    # Frame points of a fitted curve are its construction, not its course.
    vertices = [v for v in entity.vertices if not int(v.dxf.get("flags", 0)) & 16]
    is_closed = bool(entity.is_closed)
    if entity.is_3d_polyline:
        yield _curve(straight_polyline([map_point(frame, Vec3(v.dxf.location)) for v in vertices], is_closed=is_closed))
        return
    elevation = Vec3(entity.dxf.get("elevation", (0, 0, 0))).z
    points = [Vec3(v.dxf.location).replace(z=elevation) for v in vertices]
    bulges = [float(v.dxf.get("bulge", 0.0)) + 0.0 for v in vertices]
    yield from map(_curve, polyline(_own_frame(entity, frame), points, bulges, is_closed=is_closed))


def _leader(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    yield _curve(straight_polyline([map_point(frame, Vec3(v)) for v in entity.vertices], is_closed=False))


def _spline(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    control = [Vec3(point) for point in entity.control_points]
    fit = [Vec3(point) for point in entity.fit_points]
    knots, weights = [float(k) for k in entity.knots], [float(w) for w in entity.weights]
    degree = int(entity.dxf.get("degree", 3))
    warning = None
    if not control and len(fit) > 1:
        curve = entity.construction_tool()
        control, knots, degree = list(curve.control_points), [float(k) for k in curve.knots()], int(curve.degree)
        weights = [float(w) for w in curve.weights()]
        warning = ("interpolated_spline", "a spline of fit points alone is reported by the curve through them")
    geom = {
        "degree": degree,
        "control_points": [xyz(map_point(frame, point)) for point in control],
        "knots": knots,
        "weights": weights,
        "fit_points": [xyz(map_point(frame, point)) for point in fit],
        "is_closed": bool(entity.closed),
    }
    yield Shape("spline", geom, _spline_box(geom), warning=warning)


def _spline_box(geom: Geom) -> Box | None:
    from ezdxf.math import BSpline

    points = geom["control_points"]
    if len(points) <= geom["degree"]:
        return box_of_points(points)
    curve = BSpline(points, order=geom["degree"] + 1, knots=geom["knots"] or None, weights=geom["weights"] or None)
    return box_of_points(xyz(point) for point in curve.approximate(min(2_000, 16 * len(points))))


def _point(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    yield _curve(Piece("point", {"position": xyz(map_point(frame, Vec3(entity.dxf.location)))}))


def _text(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    yield _written(text_of(entity, _own_frame(entity, frame)))


def _mtext(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    yield _written(mtext_of(entity, frame))


def _written(text: Text) -> Shape:
    geom = text.geom
    lettering = Lettering(
        text.lines, geom["center"], geom["height"], text.spacing, geom["rotation_deg"], geom["width_factor"]
    )
    return Shape("text", geom, box_of_points(text.corners), lettering=lettering)


def _dimension(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    dimension = dimension_of(entity, frame)
    geom = dimension.geom
    center = geom["text_center"]
    lettering = None
    if center is not None and geom["text_shown"]:
        lines = tuple(geom["text_shown"].split("\n"))
        height = dimension.text_height
        lettering = Lettering(lines, center, height, 1.6 * height, dimension.text_rotation_deg, 1.0)
    box = box_of_points([*geom["points"], *([center] if center is not None else [])])
    yield Shape("dimension", geom, box, strokes=lambda _: dimension.strokes, lettering=lettering)


def _hatch(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    hatch = Hatch(entity, _own_frame(entity, frame))
    geom = hatch.geom()
    box = box_of_boxes(box_of_bulged(loop["vertices"], loop["bulges"], is_closed=True) for loop in geom["loops"])
    yield Shape("hatch", geom, box, strokes=hatch.strokes)


def _fill(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    own = _own_frame(entity, frame)
    corners = [Vec3(entity.dxf.get(f"vtx{i}")) for i in (0, 1, 3, 2) if entity.dxf.hasattr(f"vtx{i}")]
    # The third and fourth corners are stored crosswise; a triangle repeats one of them.
    corners = [corner for i, corner in enumerate(corners) if not corner.isclose(corners[i - 1])] or corners[:1]
    world = [map_point(own, corner) for corner in corners]
    double = sum((a.cross(b) for a, b in zip(world, world[1:] + world[:1], strict=True)), Vec3())
    points = [xyz(point) for point in world]
    yield Shape("fill", {"corners": points, "area": double.magnitude / 2}, box_of_points(points))


def _mesh(entity: Any, frame: Matrix44 | None) -> Iterator[Shape]:
    mesh = mesh_of(entity, frame)
    warning = None
    if entity.dxftype() == "MESH" and int(entity.dxf.get("subdivision_levels", 0)) > 0:
        warning = ("unsmoothed_mesh", "a smoothed mesh is reported by its unsmoothed faces")
    box = box_of_points(xyz(point) for point in mesh.points)
    yield Shape(
        "mesh",
        mesh.geom(),
        box,
        strokes=lambda _: mesh.edges(),
        warning=warning,
        mesh=mesh,
        is_measured=warning is None,
    )


def _solid(entity: Any, frame: Matrix44 | None) -> Shape:
    mesh = polyhedron_of(entity, frame)
    if mesh is None:
        unknown = {"volume": None, "area": None, "centroid": None, "method": "unsupported"}
        warning = ("unsupported_body", f"{entity.dxftype()} cannot be measured without a modeler")
        return Shape("solid", unknown, None, warning=warning, is_measured=False)
    found = mesh.geom()
    geom = {name: found[name] for name in ("volume", "area", "centroid")} | {"method": "vertices"}
    return Shape("solid", geom, box_of_points(mesh.corners()), strokes=lambda _: mesh.edges(), mesh=mesh)


def _raster(entity: Any, frame: Matrix44 | None) -> Shape:
    corners: list[tuple[float, float, float]] = []
    name = ""
    if entity.dxftype() in ("IMAGE", "WIPEOUT"):
        dxf = entity.dxf
        origin, u, v = Vec3(dxf.insert), Vec3(dxf.u_pixel), Vec3(dxf.v_pixel)
        size = Vec3(dxf.get("image_size", (1, 1)))
        local = [origin, origin + u * size.x, origin + u * size.x + v * size.y, origin + v * size.y]
        corners = [xyz(map_point(frame, point)) for point in local]
    if entity.dxftype() == "IMAGE" and entity.image_def is not None:
        # Paths tell about the machine that the drawing was made on.
        name = str(entity.image_def.dxf.get("filename", "")).replace("\\", "/").rsplit("/", 1)[-1]
    return Shape("raster", {"corners": corners, "name": name}, box_of_points(corners))


_CONVERTERS: Final[dict[str, Callable[[Any, Matrix44 | None], Iterator[Shape]]]] = {
    "LINE": _line,
    "CIRCLE": _circle,
    "ARC": _arc,
    "ELLIPSE": _ellipse,
    "LWPOLYLINE": _lwpolyline,
    "POLYLINE": _polyline,
    "LEADER": _leader,
    "SPLINE": _spline,
    "HELIX": _spline,
    "POINT": _point,
    "TEXT": _text,
    "ATTRIB": _text,
    # Only a constant one comes here: the others are templates that every reference fills in.
    "ATTDEF": _text,
    "MTEXT": _mtext,
    "DIMENSION": _dimension,
    "ARC_DIMENSION": _dimension,
    "LARGE_RADIAL_DIMENSION": _dimension,
    "HATCH": _hatch,
    "MPOLYGON": _hatch,
    "SOLID": _fill,
    "TRACE": _fill,
    "MESH": _mesh,
    "3DFACE": _mesh,
}
