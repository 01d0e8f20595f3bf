"""One entity of a DWG drawing as the same entity of a DXF drawing. Points of flat entities are in their own plane."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from ezdxf.entities import factory
from ezdxf.entities.dxfentity import DXFTagStorage
from ezdxf.lldxf.const import DXFError
from ezdxf.lldxf.extendedtags import ExtendedTags

Attribs = dict[str, Any]

# Decoded without their shape: they are listed and cannot be compared.
UNDRAWN: Final = frozenset(
    {"3DSOLID", "BODY", "REGION", "SHAPE", "TOLERANCE", "MLINE", "OLEFRAME", "OLE2FRAME", "LONG_TRANSACTION"}
)
# Group 70 of a dimension (DXF reference), by the reader's names. 32: its block belongs to it alone.
_DIMENSIONS: Final = {
    "LINEAR": 0,
    "ALIGNED": 1,
    "ANG2LN": 2,
    "DIAMETER": 3,
    "RADIUS": 4,
    "ANG3PT": 5,
    "ORDINATE": 6,
}
_OWN_BLOCK: Final = 32
_ALONG_X: Final = 64
# Group 90 of a viewport (DXF reference).
_VIEWPORT_OFF: Final = 0x20000


def draw(place: Any, entity: Any, look: Attribs, dimstyle: str) -> Any:
    """Add the entity to a layout or a block of the copy, and return it. `look` is layer, colour and the like."""
    maker = _MAKERS.get(entity.dxftype)
    if maker is not None:
        return maker(place, entity.dxf, look)
    if entity.dxftype == "DIMENSION":
        return _dimension(place, entity.dxf, look | {"dimstyle": dimstyle})
    return placeholder(place, entity.dxftype, look)


def placeholder(place: Any, kind: str, look: Attribs) -> Any:
    """Add an entity of this kind without its shape, so that it is counted and listed."""
    try:
        return place.new_entity(kind, look)
    except DXFError:
        # A kind that cannot be made from nothing: as tags, the way in which a DXF reader keeps what it does not know.
        name, layer = _plain(kind), _plain(str(look.get("layer", "0")))
        tags = ExtendedTags.from_text(f"0\n{name}\n330\n0\n100\nAcDbEntity\n8\n{layer}\n")
        made = DXFTagStorage.load(tags, place.doc)
        factory.bind(made, place.doc)
        place.add_entity(made)
        return made


def _plain(name: str) -> str:
    """A name that cannot end its line: it comes from the file."""
    return re.sub(r"[^A-Za-z0-9_ .-]", "_", name)


def place_attribute(insert: Any, entity: Any, look: Attribs) -> Any:
    """Add an ATTRIB to its block reference, and return it."""
    dxf = entity.dxf
    made = insert.add_attrib(str(dxf["tag"]), str(dxf["text"]), dxf["insert"], dxfattribs=look | _written(dxf))
    made.dxf.flags = int(dxf.get("attribute_flags") or 0)
    return made


def _normal(dxf: Attribs) -> Attribs:
    return {"extrusion": dxf["extrusion"]} if dxf.get("extrusion") is not None else {}


def _line(place: Any, dxf: Attribs, look: Attribs) -> Any:
    return place.new_entity("LINE", look | {"start": dxf["start"], "end": dxf["end"]})


def _ray(place: Any, dxf: Attribs, look: Attribs) -> Any:
    return place.new_entity("RAY", look | {"start": dxf["start"], "unit_vector": dxf["unit_vector"]})


def _xline(place: Any, dxf: Attribs, look: Attribs) -> Any:
    return place.new_entity("XLINE", look | {"start": dxf["start"], "unit_vector": dxf["unit_vector"]})


def _circle(place: Any, dxf: Attribs, look: Attribs) -> Any:
    shape = {"center": dxf["center"], "radius": dxf["radius"]}
    return place.new_entity("CIRCLE", look | _normal(dxf) | shape)


def _arc(place: Any, dxf: Attribs, look: Attribs) -> Any:
    shape = {name: dxf[name] for name in ("center", "radius", "start_angle", "end_angle")}
    return place.new_entity("ARC", look | _normal(dxf) | shape)


def _ellipse(place: Any, dxf: Attribs, look: Attribs) -> Any:
    shape = {
        "center": dxf["center"],
        "major_axis": dxf["major_axis"],
        "ratio": dxf["axis_ratio"],
        "start_param": dxf["start_angle"],
        "end_param": dxf["end_angle"],
    }
    return place.new_entity("ELLIPSE", look | _normal(dxf) | shape)


def _point(place: Any, dxf: Attribs, look: Attribs) -> Any:
    return place.new_entity("POINT", look | {"location": dxf["location"]})


def _lwpolyline(place: Any, dxf: Attribs, look: Attribs) -> Any:
    attribs = look | _normal(dxf) | {"elevation": float(dxf.get("elevation") or 0.0)}
    points = [(x, y, bulge) for (x, y, _), bulge in zip(dxf["points"], dxf["bulges"], strict=True)]
    return place.add_lwpolyline(points, format="xyb", close=dxf["closed"], dxfattribs=attribs)


def _polyline_2d(place: Any, dxf: Attribs, look: Attribs) -> Any:
    attribs = look | _normal(dxf) | {"elevation": (0.0, 0.0, float(dxf.get("elevation") or 0.0))}
    points = [(x, y, bulge) for (x, y, _), bulge in zip(dxf["points"], dxf["bulges"], strict=True)]
    made = place.add_polyline2d(points, format="xyb", close=dxf["closed"], dxfattribs=attribs)
    # They tell the frame of a fitted curve from its course.
    for vertex, flags in zip(made.vertices, dxf["vertex_flags"], strict=False):
        vertex.dxf.flags = flags
    return made


def _polyline_3d(place: Any, dxf: Attribs, look: Attribs) -> Any:
    return place.add_polyline3d(dxf["points"], close=dxf["closed"], dxfattribs=look)


def _polygon_mesh(place: Any, dxf: Attribs, look: Attribs) -> Any:
    made = place.add_polymesh((dxf["m_vertex_count"], dxf["n_vertex_count"]), dxfattribs=look)
    made.dxf.flags |= dxf["flags"]
    for vertex, point in zip(made.vertices, dxf["points"], strict=True):
        vertex.dxf.location = point
    return made


def _polyface_mesh(place: Any, dxf: Attribs, look: Attribs) -> Any:
    made = place.add_polyface_mesh(dxfattribs=look)
    corners = dxf["vertices"]
    # Corners count from 1, a negative one hides the edge behind it, and 0 ends a triangle.
    made.append_faces([[corners[abs(index) - 1] for index in face if index] for face in dxf["faces"]])
    return made


def _corners(kind: str) -> Callable[[Any, Attribs, Attribs], Any]:
    def make(place: Any, dxf: Attribs, look: Attribs) -> Any:
        corners = {f"vtx{number}": point for number, point in enumerate(dxf["points"])}
        return place.new_entity(kind, look | (_normal(dxf) if kind != "3DFACE" else {}) | corners)

    return make


def _written(dxf: Attribs) -> Attribs:
    written = {
        "insert": dxf["insert"],
        "height": dxf["height"],
        "rotation": dxf["rotation"],
        "width": dxf["width"],
        "oblique": dxf["oblique"],
        "halign": dxf["halign"],
        "valign": dxf["valign"],
        "text_generation_flag": dxf["text_generation_flag"],
    }
    if dxf.get("align_point") is not None:
        written["align_point"] = dxf["align_point"]
    return written | _normal(dxf)


def _text(place: Any, dxf: Attribs, look: Attribs) -> Any:
    return place.new_entity("TEXT", look | _written(dxf) | {"text": dxf["text"]})


def _attdef(place: Any, dxf: Attribs, look: Attribs) -> Any:
    named = {"text": dxf["text"], "tag": dxf["tag"], "prompt": dxf.get("prompt") or ""}
    return place.new_entity("ATTDEF", look | _written(dxf) | named | {"flags": int(dxf.get("attribute_flags") or 0)})


def _mtext(place: Any, dxf: Attribs, look: Attribs) -> Any:
    attribs = {
        "insert": dxf["insert"],
        "char_height": dxf["char_height"],
        "width": dxf["rect_width"],
        "attachment_point": dxf["attachment_point"],
        "text_direction": dxf["text_direction"],
        "line_spacing_factor": dxf.get("line_spacing_factor") or 1.0,
    }
    return place.add_mtext(dxf["raw_text"], dxfattribs=look | _normal(dxf) | attribs)


def _leader(place: Any, dxf: Attribs, look: Attribs) -> Any:
    return place.add_leader(dxf["points"], dxfattribs=look)


def _spline(place: Any, dxf: Attribs, look: Attribs) -> Any:
    made = place.add_spline(degree=dxf["degree"], dxfattribs=look)
    made.control_points = dxf["control_points"]
    made.knots = dxf["knots"]
    made.weights = dxf["weights"]
    made.fit_points = dxf["fit_points"]
    made.dxf.flags = int(dxf["closed"]) | 2 * int(dxf["periodic"]) | 4 * int(dxf["rational"]) | 8
    return made


def _hatch(place: Any, dxf: Attribs, look: Attribs) -> Any:
    made = place.add_hatch(dxfattribs=look | _normal(dxf) | {"elevation": (0.0, 0.0, dxf["elevation"])})
    if not dxf["solid_fill"]:
        # Both files store the lines of a pattern as they are drawn, already turned and scaled.
        lines = [[line["angle"], line["base"], line["offset"], line["dashes"]] for line in dxf.get("pattern_lines", ())]
        made.set_pattern_fill(dxf["pattern_name"], definition=lines)
        made.dxf.pattern_scale = dxf.get("pattern_scale", 1.0)
        made.dxf.pattern_angle = dxf.get("pattern_angle", 0.0)
    for path in dxf["paths"]:
        made.paths.add_polyline_path([(x, y) for x, y, _ in path["points"]], is_closed=path["closed"])
    return made


def _dimension(place: Any, dxf: Attribs, look: Attribs) -> Any:
    kind = _DIMENSIONS[dxf["dimtype"]]
    attribs = look | _normal(dxf) | {"dimtype": kind | _OWN_BLOCK, "text": dxf["text"], "angle": dxf["angle"]}
    if kind == _DIMENSIONS["ORDINATE"] and dxf["dim_flags"] & _ALONG_X:
        attribs["dimtype"] |= _ALONG_X
    for name in ("defpoint", "defpoint2", "defpoint3", "defpoint4", "defpoint5", "text_midpoint", "actual_measurement"):
        if dxf.get(name) is not None:
            attribs[name] = dxf[name]
    if dxf.get("anonymous_block_name"):
        attribs["geometry"] = dxf["anonymous_block_name"]
    return place.new_entity("DIMENSION", attribs)


def _insert(place: Any, dxf: Attribs, look: Attribs) -> Any:
    names = ("insert", "xscale", "yscale", "zscale", "rotation")
    array = ("column_count", "row_count", "column_spacing", "row_spacing")
    attribs = {name: dxf[name] for name in (*names, *array) if name in dxf}
    return place.new_entity("INSERT", look | _normal(dxf) | attribs | {"name": dxf.get("name", "")})


def _viewport(place: Any, dxf: Attribs, look: Attribs) -> Any:
    attribs = {
        "center": dxf["center"],
        "width": dxf["width"],
        "height": dxf["height"],
        "view_center_point": dxf["view_center"],
        "view_height": dxf["view_height"],
        "view_direction_vector": dxf["view_direction"],
        "status": 0 if dxf["status_flags"] & _VIEWPORT_OFF else 1,
    }
    made = place.new_entity("VIEWPORT", look | attribs)
    made.frozen_layers = list(dxf["frozen_layers"])
    return made


def _image(place: Any, dxf: Attribs, look: Attribs) -> Any:
    columns, rows = dxf["size"]
    definition = place.doc.add_image_def(dxf.get("file_path") or "", (max(1, int(columns)), max(1, int(rows))))
    made = place.add_image(definition, dxf["insert"], (1.0, 1.0), dxfattribs=look)
    made.dxf.u_pixel, made.dxf.v_pixel, made.dxf.image_size = dxf["u_vector"], dxf["v_vector"], (columns, rows)
    return made


_MAKERS: Final[dict[str, Callable[[Any, Attribs, Attribs], Any]]] = {
    "LINE": _line,
    "RAY": _ray,
    "XLINE": _xline,
    "CIRCLE": _circle,
    "ARC": _arc,
    "ELLIPSE": _ellipse,
    "POINT": _point,
    "LWPOLYLINE": _lwpolyline,
    "POLYLINE_2D": _polyline_2d,
    "POLYLINE_3D": _polyline_3d,
    "POLYLINE_MESH": _polygon_mesh,
    "POLYLINE_PFACE": _polyface_mesh,
    "3DFACE": _corners("3DFACE"),
    "SOLID": _corners("SOLID"),
    "TRACE": _corners("TRACE"),
    "TEXT": _text,
    "ATTDEF": _attdef,
    "MTEXT": _mtext,
    "LEADER": _leader,
    "SPLINE": _spline,
    "HATCH": _hatch,
    "INSERT": _insert,
    "MINSERT": _insert,
    "VIEWPORT": _viewport,
    "IMAGE": _image,
}
