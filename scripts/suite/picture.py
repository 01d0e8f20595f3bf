"""The reference picture: the gold as a person would print it, with colours, line types, dimensions and texts."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, cos, dist, radians, sin
from typing import Any

from ezdxf.document import Drawing
from PIL import Image, ImageDraw

from scripts.suite.strokes import GRID_HEIGHT, strokes, width

SIZE_PX = (1280, 960)
MARGIN_PX = 50
# Drawn so many times larger and averaged down: smooth lines without any library's idea of smoothing.
OVERSAMPLING = 3
WIDE_LINE_PX, LINE_PX, ANNOTATION_PX = 3.0, 1.67, 1.67
# Colours of the colour index, darkened so that they show on white paper.
INK = {
    7: (0, 0, 0),
    1: (204, 0, 0),
    2: (166, 124, 0),
    3: (0, 128, 40),
    4: (0, 126, 158),
    5: (0, 0, 204),
    6: (176, 0, 160),
}
# Dashes on the picture, in pixels: drawn, left out, drawn, ... The drawing's own lengths would be too long or too short
# to be told apart at some scales.
DASHES_PX = {"CENTER": (26.0, 5.0, 6.0, 5.0), "DASHED": (11.0, 6.0)}

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Pen:
    ink: tuple[int, int, int]
    width_px: float
    dashes_px: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _Path:
    points: list[Point]
    pen: _Pen
    is_filled: bool = False


def reference_picture(drawing: Drawing) -> bytes:
    """The picture as PNG, byte for byte the same for the same drawing and the same zlib."""
    paths = list(_paths(drawing))
    to_px = _fitting(paths)
    image = Image.new("RGB", (SIZE_PX[0] * OVERSAMPLING, SIZE_PX[1] * OVERSAMPLING), "white")
    draw = ImageDraw.Draw(image)
    for path in paths:
        points = [to_px(point) for point in path.points]
        if path.is_filled:
            draw.polygon(points, fill=path.pen.ink)
            continue
        pieces = (
            _dashed(points, [length * OVERSAMPLING for length in path.pen.dashes_px])
            if path.pen.dashes_px
            else [points]
        )
        for piece in pieces:
            draw.line(piece, fill=path.pen.ink, width=round(path.pen.width_px * OVERSAMPLING), joint="curve")
    return encode_png(image.reduce(OVERSAMPLING))


def _paths(drawing: Drawing) -> Iterator[_Path]:
    for entity in drawing.modelspace():
        layer = drawing.layers.get(entity.dxf.layer)
        ink = INK[layer.color]
        if entity.dxftype() == "DIMENSION":
            pen = _Pen(ink, ANNOTATION_PX)
            for part in drawing.blocks.get(entity.dxf.geometry):
                yield from _entity_paths(part, pen)
        else:
            line_px = WIDE_LINE_PX if layer.dxf.lineweight >= 50 else LINE_PX
            yield from _entity_paths(entity, _Pen(ink, line_px, DASHES_PX.get(layer.dxf.linetype, ())))


def _entity_paths(entity: Any, pen: _Pen) -> Iterator[_Path]:
    dxf = entity.dxf
    match entity.dxftype():
        case "LINE":
            yield _Path([_xy(dxf.start), _xy(dxf.end)], pen)
        case "LWPOLYLINE":
            points = [(float(x), float(y)) for x, y in entity.get_points("xy")]
            yield _Path([*points, points[0]] if entity.closed else points, pen)
        case "CIRCLE":
            yield _Path(_arc_points(_xy(dxf.center), dxf.radius, 0, 360), pen)
        case "ARC":
            sweep = (dxf.end_angle - dxf.start_angle) % 360 or 360
            yield _Path(_arc_points(_xy(dxf.center), dxf.radius, dxf.start_angle, sweep), pen)
        case "SOLID":
            yield _Path([_xy(dxf.vtx0), _xy(dxf.vtx1), _xy(dxf.vtx2)], pen, is_filled=True)
        case "TEXT":
            yield from _text_paths(dxf.text, _xy(dxf.insert), dxf.height, 0.0, pen, shift=(0.0, 0.0))
        case "MTEXT":
            # Attached by its middle.
            shift = (-width(entity.text) / 2, -GRID_HEIGHT / 2)
            yield from _text_paths(entity.text, _xy(dxf.insert), dxf.char_height, dxf.rotation, pen, shift=shift)
        case other:
            raise AssertionError(f"a gold with a {other} needs a way to draw it")


def _text_paths(
    text: str, at: Point, height: float, rotation_deg: float, pen: _Pen, *, shift: Point
) -> Iterator[_Path]:
    scale = height / GRID_HEIGHT
    along, across = cos(radians(rotation_deg)) * scale, sin(radians(rotation_deg)) * scale
    plain = _Pen(pen.ink, ANNOTATION_PX)
    for stroke in strokes(text):
        shifted = [(x + shift[0], y + shift[1]) for x, y in stroke]
        yield _Path([(at[0] + x * along - y * across, at[1] + x * across + y * along) for x, y in shifted], plain)


def _xy(vector: Any) -> Point:
    return (float(vector[0]), float(vector[1]))


def _arc_points(center: Point, radius: float, start_deg: float, sweep_deg: float) -> list[Point]:
    count = max(8, ceil(sweep_deg / 1.5))
    angles = (radians(start_deg + sweep_deg * step / count) for step in range(count + 1))
    return [(center[0] + radius * cos(angle), center[1] + radius * sin(angle)) for angle in angles]


def _fitting(paths: Sequence[_Path]) -> Any:
    """From drawing units to oversampled pixels, such that all paths are in the middle and as large as fits."""
    xs = [x for path in paths for x, _ in path.points]
    ys = [y for path in paths for _, y in path.points]
    (left, right), (low, high) = (min(xs), max(xs)), (min(ys), max(ys))
    room = [(size - 2 * MARGIN_PX) * OVERSAMPLING for size in SIZE_PX]
    scale = min(room[0] / (right - left), room[1] / (high - low))
    middle = (SIZE_PX[0] * OVERSAMPLING / 2, SIZE_PX[1] * OVERSAMPLING / 2)

    def to_px(point: Point) -> Point:
        x = middle[0] + scale * (point[0] - (left + right) / 2)
        y = middle[1] - scale * (point[1] - (low + high) / 2)
        # Whole pixels: how a library rounds must not matter.
        return (round(x), round(y))

    return to_px


def _dashed(points: Sequence[Point], pattern: Sequence[float]) -> Iterator[list[Point]]:
    """The drawn pieces of a polyline; the pattern runs on around corners."""
    index, left, is_drawn = 0, pattern[0], True
    piece = [points[0]]
    for start, end in pairwise(points):
        length, way = dist(start, end), 0.0
        while length - way > left:
            way += left
            at = (start[0] + (end[0] - start[0]) * way / length, start[1] + (end[1] - start[1]) * way / length)
            if is_drawn:
                yield [*piece, at]
            index = (index + 1) % len(pattern)
            left, is_drawn, piece = pattern[index], not is_drawn, [at]
        left -= length - way
        piece.append(end)
    if is_drawn and len(piece) > 1:
        yield piece


def encode_png(image: Image.Image) -> bytes:
    """An RGB picture as PNG without metadata, deflated by Python's own zlib."""
    raw = image.tobytes()
    row_bytes = image.width * 3
    rows = b"".join(b"\0" + raw[start : start + row_bytes] for start in range(0, len(raw), row_bytes))
    header = struct.pack(">IIBBBBB", image.width, image.height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
