"""Small drawings as facts, without any drawing program: what the scorer's tests are made of."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from contract.gold import Entry, GoldTolerances, Placement, Profile, SelfCheck
from contract.metadata import Metadata
from contract.score_records import Score
from evaluator_client.gold import GoldEntry
from evaluator_client.score import score_drawing

Sketch = dict[str, Any]
Point = tuple[float, float]
Corner = tuple[float, float, float]
RGB = {"OUTLINE": "#ffffff", "HOLES": "#ff0000", "CENTER": "#00ffff", "0": "#ffffff"}
LINETYPE = {"CENTER": "CENTER"}


def entity(kind: str, geom: Sketch, layer: str = "OUTLINE", **changes: Any) -> Sketch:
    """One entity record; the handle is given when the drawing is made."""
    record = {
        "id": "",
        "space": "model",
        "kind": kind,
        "dxf_type": kind.upper(),
        "layer": layer,
        "aci": 7,
        "rgb": RGB.get(layer, "#ffffff"),
        "linetype": LINETYPE.get(layer, "CONTINUOUS"),
        "lineweight_mm": 0.25,
        "is_visible": True,
        "hidden_by": [],
        "is_plottable": True,
        "extents": None,
        "geom": geom,
    }
    return record | changes


def at(x: float, y: float) -> tuple[float, float, float]:
    return (x, y, 0.0)


def line(a: Point, b: Point, layer: str = "OUTLINE") -> Sketch:
    return entity("line", {"start": at(*a), "end": at(*b)}, layer)


def circle(center: Point, radius: float, layer: str = "HOLES") -> Sketch:
    return entity("circle", {"center": at(*center), "radius": radius}, layer)


def arc(center: Point, radius: float, start_deg: float, end_deg: float, layer: str = "OUTLINE") -> Sketch:
    geom = {"center": at(*center), "radius": radius, "start_deg": start_deg % 360, "end_deg": end_deg % 360}
    return entity("arc", geom, layer)


def polyline(points: Sequence[Point], bulges: Sequence[float] | None = None, *, is_closed: bool = True) -> Sketch:
    vertices = [at(*point) for point in points]
    return entity(
        "polyline",
        {
            "vertices": vertices,
            "bulges": list(bulges) if bulges else [0.0] * len(vertices),
            "is_closed": is_closed,
            "is_exact": True,
        },
    )


def text(content: str, center: Point, height: float = 5.0) -> Sketch:
    geom = {
        "text": content,
        "raw": content,
        "anchor": at(*center),
        "center": at(*center),
        "height": height,
        "rotation_deg": 0.0,
        "width_factor": 1.0,
        "style": "Standard",
        "source": "TEXT",
    }
    return entity("text", geom, "0")


def dimension(a: Point, b: Point) -> Sketch:
    length = math.dist(a, b)
    geom = {
        "dim_kind": "aligned",
        "points": [at(*a), at(*b), at(*b)],
        "measurement": length,
        "text_shown": f"{length:g}",
        "text_override": "",
        "text_center": at((a[0] + b[0]) / 2, (a[1] + b[1]) / 2),
    }
    return entity("dimension", geom, "0")


def hatch(points: Sequence[Point], pattern: str = "ANSI31") -> Sketch:
    pairs = zip(points, [*points[1:], points[0]], strict=True)
    area = abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in pairs)) / 2
    loop = {"vertices": [at(*point) for point in points], "bulges": [0.0] * len(points)}
    geom = {"pattern": pattern, "is_solid": False, "scale": 1.0, "rotation_deg": 0.0, "loops": [loop], "area": area}
    return entity("hatch", geom)


def raster() -> Sketch:
    return entity("raster", {"corners": [at(0, 0), at(200, 0), at(200, 120), at(0, 120)], "name": "picture.png"}, "0")


def box(low: Corner, high: Corner, layer: str = "BODY", *, volume: float | None = -1.0) -> Sketch:
    """A block between two corners, as the solid that an evaluator measures; `volume` is its own when left out."""
    size = [b - a for a, b in zip(low, high, strict=True)]
    volume = math.prod(size) if volume == -1.0 else volume
    geom = {"volume": volume, "area": None, "centroid": None, "method": "modeler"}
    return entity("solid", geom, layer, extents={"min": low, "max": high}, dxf_type="3DSOLID")


def view(width: float = 180.0, height: float = 160.0, scale: float | None = 1.0, **changes: Any) -> Sketch:
    """One viewport of a sheet."""
    record = {
        "id": "V",
        "center": at(0, 0),
        "width": width,
        "height": height,
        "view_center": at(0, 0),
        "view_height": height,
        "view_direction": (0.0, 0.0, 1.0),
        "scale": scale,
        "is_on": True,
        "frozen_layers": [],
    }
    return record | changes


def sheet(views: Sequence[Sketch], tab_order: int = 1) -> Sketch:
    """One paper layout of A4."""
    return {
        "name": f"Sheet {tab_order}",
        "kind": "paper",
        "tab_order": tab_order,
        "paper_size_mm": (297.0, 210.0),
        "plot_rotation_deg": 0.0,
        "entity_count": 0,
        "viewports": [record | {"id": f"V{number}"} for number, record in enumerate(views)],
    }


def hidden(record: Sketch) -> Sketch:
    return record | {"is_visible": False, "hidden_by": ["layer_off"]}


def plate() -> list[Sketch]:
    """A plate of 200 by 120 with rounded corners, holes, centre lines, a hatch, texts and a dimension."""
    corner = math.tan(math.radians(90) / 4)
    outline = polyline(
        [(10, 0), (190, 0), (200, 10), (200, 110), (190, 120), (10, 120), (0, 110), (0, 10)],
        [0.0, corner, 0.0, corner, 0.0, corner, 0.0, corner],
    )
    holes = [circle((x, y), 6) for x in (25, 175) for y in (25, 95)]
    bores = [circle((100, 60), radius) for radius in (20.0, 28.0)]
    centres = [line((60, 60), (140, 60), "CENTER"), line((100, 20), (100, 100), "CENTER")]
    slot = [
        line((40, 95), (160, 95)),
        line((40, 101), (160, 101)),
        arc((40, 98), 3, 90, 270),
        arc((160, 98), 3, 270, 90),
    ]
    notes = [text("BASE PLATE", (40, 135)), text("4x ⌀12", (150, 135)), dimension((0, -15), (200, -15))]
    return [outline, *holes, *bores, *centres, *slot, hatch([(20, 40), (50, 40), (50, 70), (20, 70)]), *notes]


def metadata(entities: Iterable[Sketch], *, insunits: int = 4, **changes: Any) -> Metadata:
    """The facts of a drawing made of these entities, numbered as they come; `changes` are further top-level fields."""
    records = [record | {"id": f"{index + 32:X}"} for index, record in enumerate(entities)]
    return Metadata.model_validate(
        {
            "schema_version": 3,
            "evaluator": {"name": "ezdxf", "version": "1.0.0", "application": "sketch", "config_sha256": "0" * 64},
            "source": {"format": "DXF", "acad_version": "AC1021", "sha256": "0" * 64, "size_bytes": 1},
            "status": "ok",
            "invalid": None,
            "units": {"insunits": insunits, "name": "millimetre", "to_mm": 1.0, "measurement": 1},
            "layers": [],
            "blocks": [],
            "inserts": [],
            "entities": records,
            "extents": {"visible": None, "all": None},
            "layouts": [],
            "extents_3d": None,
            "counts": {},
            "warnings": [],
        }
        | changes
    )


def metadata_3d(entities: Iterable[Sketch], *, unsupported: Sequence[str] = (), **changes: Any) -> Metadata:
    """The same as schema 4: its visible solids are its physical bodies."""
    records = [record | {"id": f"{index + 32:X}"} for index, record in enumerate(entities)]
    bodies = [_body(record) for record in records if record["kind"] == "solid" and record["is_visible"]]
    bodies = [body for body in bodies if body["entity_id"] not in unsupported]
    physical = None
    if bodies or unsupported:
        low, high = _around([body["min"] for body in bodies]), _around([body["max"] for body in bodies])
        outer = {"min": low and low[0], "max": high and high[1], "size": None}
        physical = outer | {"bodies": bodies, "unsupported": list(unsupported)}
    return metadata(records, schema_version=4, physical_extents_3d=physical, **changes)


def _body(record: Sketch) -> Sketch:
    geom = record["geom"]
    known = {name: geom[name] for name in ("volume", "area", "centroid", "method")}
    return known | {"entity_id": record["id"], "kind": "solid", "layer": record["layer"]} | record["extents"]


def _around(points: Sequence[Corner]) -> tuple[Corner, Corner] | None:
    if not points:
        return None
    xs, ys, zs = zip(*points, strict=True)
    return (min(xs), min(ys), min(zs)), (max(xs), max(ys), max(zs))


def gold(
    entities: Iterable[Sketch],
    *,
    placement: Placement = "absolute",
    render: bytes = b"",
    size_px: tuple[int, int] = (400, 300),
    tolerances: GoldTolerances | None = None,
    profile: Profile = "2d",
    **facts: Any,
) -> GoldEntry:
    """A gold entry of these entities."""
    entry = Entry(
        task_id="sketch",
        profile=profile,
        placement=placement,
        window=(-50.0, -50.0, 250.0, 175.0),
        size_px=size_px,
        tolerances=tolerances,
        self_check=SelfCheck(deterministic=1.0, blank="invalid"),
    )
    make = metadata if profile == "2d" else metadata_3d
    return GoldEntry(entry, make(entities, **facts), render, "0" * 64)


def score(reference: GoldEntry, entities: Iterable[Sketch], **facts: Any) -> Score:
    """What a drawing of these entities scores, without a render."""
    make = metadata if reference.profile == "2d" else metadata_3d
    return score_drawing(candidate=make(entities, **facts), render=None, gold=reference).score


def moved(entities: Iterable[Sketch], dx: float, dy: float) -> list[Sketch]:
    """All of it, elsewhere."""
    return [mapped(record, lambda x, y: (x + dx, y + dy)) for record in entities]


def scaled(entities: Iterable[Sketch], factor: float) -> list[Sketch]:
    """All of it, larger about the origin."""
    return [mapped(record, lambda x, y: (x * factor, y * factor), scale=factor) for record in entities]


def turned(entities: Iterable[Sketch]) -> list[Sketch]:
    """All of it, a quarter turn counter-clockwise about the origin."""
    return [mapped(record, lambda x, y: (-y, x), turn_deg=90.0) for record in entities]


def mapped(record: Sketch, move: Any, *, scale: float = 1.0, turn_deg: float = 0.0) -> Sketch:
    """One entity under a similarity."""
    geom = dict(record["geom"])
    for name, value in geom.items():
        if name in ("radius", "height", "measurement") and value is not None:
            geom[name] = value * scale
        elif name in ("start_deg", "end_deg", "rotation_deg"):
            geom[name] = (value + turn_deg) % 360
        elif name == "area":
            geom[name] = value * scale * scale
        elif name in ("start", "end", "center", "anchor", "text_center"):
            geom[name] = at(*move(value[0], value[1]))
        elif name in ("vertices", "points", "corners"):
            geom[name] = [at(*move(x, y)) for x, y, _ in value]
        elif name == "loops":
            geom[name] = [loop | {"vertices": [at(*move(x, y)) for x, y, _ in loop["vertices"]]} for loop in value]
    return record | {"geom": geom}


def worse(entities: Sequence[Sketch], seed: int) -> list[Sketch]:
    """An imperfect copy: some entities missing, some moved a little, some on another layer, some extra."""
    chance = random.Random(seed)
    kept = [record for record in entities if chance.random() > 0.2] or list(entities[:1])
    copy = []
    for record in kept:
        if chance.random() < 0.4:
            record = moved([record], chance.uniform(-2, 2), chance.uniform(-2, 2))[0]
        if chance.random() < 0.2:
            record = record | {"layer": "OTHER", "rgb": "#00ff00"}
        copy.append(record)
    for _ in range(chance.randrange(4)):
        x, y = chance.uniform(0, 200), chance.uniform(0, 120)
        copy.append(line((x, y), (x + chance.uniform(5, 60), y + chance.uniform(-30, 30))))
    return copy


def exploded(entities: Iterable[Sketch]) -> list[Sketch]:
    """Polylines as their segments and arcs."""
    pieces: list[Sketch] = []
    for record in entities:
        if record["kind"] != "polyline":
            pieces.append(record)
            continue
        geom = record["geom"]
        points = [(x, y) for x, y, _ in geom["vertices"]]
        count = len(points) if geom["is_closed"] else len(points) - 1
        for i in range(count):
            a, b = points[i], points[(i + 1) % len(points)]
            pieces.append(_piece(record, a, b, geom["bulges"][i]))
    return pieces


def _piece(record: Sketch, a: Point, b: Point, bulge: float) -> Sketch:
    if not bulge:
        return record | {"kind": "line", "geom": {"start": at(*a), "end": at(*b)}}
    offset = (1 - bulge * bulge) / (4 * bulge)
    center = ((a[0] + b[0]) / 2 - (b[1] - a[1]) * offset, (a[1] + b[1]) / 2 + (b[0] - a[0]) * offset)
    first, last = (a, b) if bulge > 0 else (b, a)
    angles = [math.degrees(math.atan2(p[1] - center[1], p[0] - center[0])) for p in (first, last)]
    shape = arc(center, math.dist(center, a), *angles)
    return record | {"kind": "arc", "geom": shape["geom"]}


def split(entities: Iterable[Sketch], seed: int) -> list[Sketch]:
    """Every line, arc and circle in touching parts."""
    chance = random.Random(seed)
    parts: list[Sketch] = []
    for record in exploded(entities):
        geom, count = record["geom"], chance.randint(1, 4)
        cuts = [0.0, *sorted(chance.uniform(0.05, 0.95) for _ in range(count - 1)), 1.0]
        if record["kind"] == "line":
            (ax, ay, _), (bx, by, _) = geom["start"], geom["end"]
            points = [(ax + t * (bx - ax), ay + t * (by - ay)) for t in cuts]
            points[-1] = (bx, by)
            parts += [record | {"geom": {"start": at(*a), "end": at(*b)}} for a, b in pairwise(points)]
        elif record["kind"] in ("arc", "circle") and count > 1:
            first = geom.get("start_deg", 0.0)
            sweep = 360.0 if record["kind"] == "circle" else (geom["end_deg"] - first) % 360.0
            angles = [first + t * sweep for t in cuts]
            for a, b in pairwise(angles):
                shape = {"center": geom["center"], "radius": geom["radius"], "start_deg": a % 360, "end_deg": b % 360}
                parts.append(record | {"kind": "arc", "geom": shape})
        else:
            parts.append(record)
    return parts


def reversed_(entities: Iterable[Sketch]) -> list[Sketch]:
    """Lines from end to start, polylines the other way round."""
    turned_round: list[Sketch] = []
    for record in entities:
        geom = record["geom"]
        if record["kind"] == "line":
            geom = {"start": geom["end"], "end": geom["start"]}
        elif record["kind"] == "polyline":
            bulges = [-bulge for bulge in geom["bulges"]]
            # The piece before a vertex is now the one after it.
            bulges = [*bulges[:-1][::-1], bulges[-1]]
            geom = geom | {"vertices": geom["vertices"][::-1], "bulges": bulges}
        turned_round.append(record | {"geom": geom})
    return turned_round
