"""The canonical render: black hairlines on white, made for comparison (scoring contract, section 4).

It is drawn from the same flattened entities as the facts, so nothing reaches it that was not reported: no picture,
no cover, no hidden entity, no file that the drawing refers to. Linetypes are continuous and all lines equally thin.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from ezdxf.math import BSpline, Vec3
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from broker.evaluator.curves import TURN, flatten_bulges
from broker.evaluator.flatten import Flat
from broker.evaluator.fonts import line_mask
from broker.evaluator.shapes import Lettering

Window = tuple[float, float, float, float]
Stroke = NDArray[np.float64]

_BLACK: Final = 0
_WHITE: Final = 255
# A curve is drawn by chords that leave it by at most this much.
_SAGITTA_PX: Final = 0.1
_CHORDS_MAX: Final = 4_000
_CHORDS_MIN: Final = 8
# Pattern lines closer than this would only make a grey area.
_PATTERN_GAP_PX: Final = 2.0
_PNG_LEVEL: Final = 6
# So much of patterns, areas and letters one picture takes; what comes after is left out of it, and out of nothing else.
# Without an end a few lines of a hostile file would keep the renderer busy until it is killed, and a drawing that
# cannot be rendered would be our fault. No honest sheet comes near: the area is that of five hundred black sheets.
PATTERN_STROKES_MAX: Final = 400_000
AREA_PX_MAX: Final = 1_000_000_000
# Curves behind this many chords are drawn by the fewest.
CHORDS_MAX: Final = 4_000_000
# Letters are drawn, turned and pasted: a pixel of theirs takes as long as so many of an area.
_LETTER_SHARE: Final = 10
# What a pattern counts for at least, in strokes.
_PATTERN_LOOK: Final = 20


def render_flats(
    flats: Sequence[Flat], *, window: Window, size_px: tuple[int, int], offset: tuple[float, ...]
) -> bytes:
    """PNG bytes of the visible entities of model space, 8-bit grey, without metadata.

    `window` is xmin, ymin, xmax, ymax in drawing units; it is fitted into `size_px` whole, centred. `offset` is added
    to the drawing's coordinates first. The same drawing gives the same bytes.
    """
    sheet = _Sheet(window, size_px, offset)
    for flat in flats:
        if flat.record["space"] == "model" and flat.record["is_visible"]:
            sheet.draw(flat)
    return sheet.png()


class _Sheet:
    """A white picture and the map from drawing units to its pixels."""

    def __init__(self, window: Window, size_px: tuple[int, int], offset: tuple[float, ...]) -> None:
        xmin, ymin, xmax, ymax = window
        width_px, height_px = size_px
        self._scale = min((width_px - 1) / (xmax - xmin), (height_px - 1) / (ymax - ymin))
        self._x0 = (width_px - 1) / 2 - ((xmin + xmax) / 2 - offset[0]) * self._scale
        self._y0 = (height_px - 1) / 2 + ((ymin + ymax) / 2 - offset[1]) * self._scale
        self._size_px = size_px
        self._image = Image.new("L", size_px, _WHITE)
        self._pen = ImageDraw.Draw(self._image)
        self._strokes_left = PATTERN_STROKES_MAX
        self._area_left_px = AREA_PX_MAX
        self._chords_left = CHORDS_MAX

    def draw(self, flat: Flat) -> None:
        """Add one entity."""
        kind, geom, shape = flat.record["kind"], flat.record["geom"], flat.shape
        box = flat.record["extents"]
        if kind in ("raster", "other") or (box is not None and self._is_outside(box)):
            return
        if kind == "hatch":
            self._hatch(geom, flat)
        elif kind == "fill":
            self._fill([_array(geom["corners"])])
        elif kind == "point":
            self._dot(geom["position"])
        elif kind in ("dimension", "mesh", "solid"):
            for points in shape.strokes(0.0) if shape.strokes else ():
                self._line(np.array([(p.x, p.y) for p in points]))
        else:
            detail = self._detail(len(geom["vertices"]) if kind == "polyline" else 1)
            for stroke in _curve(kind, geom, detail):
                self._chords_left -= len(stroke)
                self._line(stroke)
        if shape.lettering is not None:
            self._letter(shape.lettering)

    def png(self) -> bytes:
        """The picture as PNG, without any chunk that is not needed."""
        buffer = io.BytesIO()
        self._image.save(buffer, "PNG", compress_level=_PNG_LEVEL)
        return buffer.getvalue()

    def _detail(self, pieces: int) -> _Detail:
        """For a curve of so many pieces: once the picture's chords are used up, each gets only the fewest."""
        return _Detail(self._scale, min(_CHORDS_MAX, max(_CHORDS_MIN, self._chords_left // max(1, pieces))))

    def _is_outside(self, box: dict[str, Any]) -> bool:
        low, high = self._pixels(_array([box["min"]]))[0], self._pixels(_array([box["max"]]))[0]
        width_px, height_px = self._size_px
        return bool(high[0] < -1 or low[0] > width_px or low[1] < -1 or high[1] > height_px)

    def _pixels(self, points: Stroke) -> Stroke:
        return np.stack([self._x0 + points[:, 0] * self._scale, self._y0 - points[:, 1] * self._scale], axis=1)

    def _line(self, points: Stroke) -> None:
        if len(points) < 2:
            return
        pixels = self._pixels(points)
        self._pieces(pixels[:-1], np.diff(pixels, axis=0))

    def _pieces(self, start: Stroke, step: Stroke) -> None:
        """Straight pieces, one a row, in pixels."""
        for x0, y0, x1, y1 in _clipped(start, step, self._size_px):
            self._pen.line([(x0, y0), (x1, y1)], fill=_BLACK)

    def _dot(self, position: tuple[float, float, float]) -> None:
        x, y = self._pixels(_array([position]))[0]
        if -2 <= x <= self._size_px[0] + 1 and -2 <= y <= self._size_px[1] + 1:
            px, py = round(float(x)), round(float(y))
            self._pen.rectangle([px - 1, py - 1, px + 1, py + 1], fill=_BLACK)

    def _hatch(self, geom: dict[str, Any], flat: Flat) -> None:
        if geom["is_solid"]:
            detail = self._detail(sum(len(loop["vertices"]) for loop in geom["loops"]))
            loops = [(loop["vertices"], loop["bulges"]) for loop in geom["loops"]]
            outlines = [_polyline(vertices, bulges, is_closed=True, detail=detail) for vertices, bulges in loops]
            self._chords_left -= sum(map(len, outlines))
            self._fill(outlines)
            return
        if flat.shape.strokes is None or self._strokes_left <= 0:
            return
        strokes = flat.shape.strokes(_PATTERN_GAP_PX / self._scale)
        ends = [(a.x, a.y, b.x, b.y) for a, b in islice(strokes, self._strokes_left)]
        # A pattern without a stroke had to be looked at too, edge by edge.
        edges = sum(len(loop["vertices"]) for loop in geom["loops"])
        self._strokes_left -= max(_PATTERN_LOOK, edges, len(ends))
        if ends:
            pixels = self._pixels(np.array(ends).reshape(-1, 2)).reshape(-1, 2, 2)
            self._pieces(pixels[:, 0], pixels[:, 1] - pixels[:, 0])

    def _fill(self, outlines: Sequence[Stroke]) -> None:
        """Fill by the even-odd rule."""
        limit = 16 * max(self._size_px)
        loops = [np.rint(np.clip(self._pixels(outline), -limit, limit)) for outline in outlines if len(outline) > 2]
        if not loops:
            return
        corners = np.concatenate(loops)
        low = np.maximum(corners.min(axis=0), 0).astype(np.int64)
        high = np.minimum(corners.max(axis=0) + 1, self._size_px).astype(np.int64)
        width_px, height_px = (high - low).tolist()
        if width_px <= 0 or height_px <= 0:
            return
        self._area_left_px -= width_px * height_px * len(loops)
        if self._area_left_px < 0:
            return
        filled = Image.new("1", (width_px, height_px), 0)
        for loop in loops:
            one = Image.new("1", (width_px, height_px), 0)
            ImageDraw.Draw(one).polygon([(int(x), int(y)) for x, y in loop - low], fill=1)
            filled = ImageChops.logical_xor(filled, one)
        self._image.paste(_BLACK, (int(low[0]), int(low[1])), filled)

    def _letter(self, text: Lettering) -> None:
        height_px = text.height * self._scale
        turn = math.radians(text.rotation_deg)
        middle = (len(text.lines) - 1) / 2
        for i, line in enumerate(text.lines):
            if self._area_left_px <= 0:
                return
            mask = line_mask(line, height_px=height_px, width_factor=text.width_factor)
            if mask is None:
                continue
            self._area_left_px -= _LETTER_SHARE * mask.width * mask.height
            down = (i - middle) * text.spacing
            x = text.center[0] + down * math.sin(turn)
            y = text.center[1] - down * math.cos(turn)
            self._paste(mask, (x, y), text.rotation_deg)

    def _paste(self, mask: Image.Image, center: tuple[float, float], rotation_deg: float) -> None:
        turned = _turned(mask, rotation_deg % 360.0)
        x, y = self._pixels(_array([center]))[0]
        corner = (round(float(x) - turned.width / 2), round(float(y) - turned.height / 2))
        self._image.paste(_BLACK, corner, turned)


_QUARTERS: Final = {
    90.0: Image.Transpose.ROTATE_90,
    180.0: Image.Transpose.ROTATE_180,
    270.0: Image.Transpose.ROTATE_270,
}


def _turned(mask: Image.Image, rotation_deg: float) -> Image.Image:
    if not rotation_deg:
        return mask
    exact = _QUARTERS.get(round(rotation_deg, 6))
    if exact is not None:
        return mask.transpose(exact)
    return mask.rotate(rotation_deg, resample=Image.Resampling.BICUBIC, expand=True)


def _array(points: Sequence[Sequence[float]]) -> Stroke:
    return np.array([point[:2] for point in points], dtype=np.float64).reshape(-1, 2)


class _Detail(NamedTuple):
    """How finely curves are drawn: pixels of a drawing unit, and the most chords that a full turn has."""

    scale: float
    chords_max: int

    def chords(self, radius: float, sweep: float) -> int:
        radius_px = max(radius * self.scale, 1e-9)
        step = 2 * math.acos(max(0.0, 1 - _SAGITTA_PX / radius_px)) if radius_px > _SAGITTA_PX else math.pi / 2
        return min(self.chords_max, max(_CHORDS_MIN, math.ceil(sweep / step)))


def _curve(kind: str, geom: dict[str, Any], detail: _Detail) -> Iterator[Stroke]:
    match kind:
        case "line":
            yield _array([geom["start"], geom["end"]])
        case "polyline":
            yield _polyline(geom["vertices"], geom["bulges"], is_closed=geom["is_closed"], detail=detail)
        case "circle":
            yield _arc(geom["center"], geom["radius"], 0.0, TURN, detail)
        case "arc":
            start, end = math.radians(geom["start_deg"]), math.radians(geom["end_deg"])
            yield _arc(geom["center"], geom["radius"], start, (end - start) % TURN or TURN, detail)
        case "ellipse":
            yield _ellipse(geom, detail)
        case "spline":
            yield _spline(geom, detail)


def _polyline(
    vertices: Sequence[tuple[float, float, float]], bulges: Sequence[float], *, is_closed: bool, detail: _Detail
) -> Stroke:
    if any(bulges):
        size = max(math.dist(vertices[0], vertex) for vertex in vertices)
        step = TURN / detail.chords(size, TURN)
        flat = flatten_bulges([Vec3(v) for v in vertices], bulges, is_closed=is_closed, step_rad=step)
        points = np.fromiter((part for p in flat for part in (p.x, p.y)), dtype=np.float64).reshape(-1, 2)
    else:
        points = _array(vertices)
    return np.concatenate([points, points[:1]]) if is_closed and len(points) else points


def _arc(center: Sequence[float], radius: float, start: float, sweep: float, detail: _Detail) -> Stroke:
    angles = start + sweep * np.linspace(0.0, 1.0, detail.chords(radius, sweep) + 1)
    return np.stack([center[0] + radius * np.cos(angles), center[1] + radius * np.sin(angles)], axis=1)


def _ellipse(geom: dict[str, Any], detail: _Detail) -> Stroke:
    (cx, cy, _), (ux, uy, _) = geom["center"], geom["major_axis"]
    vx, vy = -uy * geom["ratio"], ux * geom["ratio"]
    sweep = geom["end_rad"] - geom["start_rad"]
    t = geom["start_rad"] + sweep * np.linspace(0.0, 1.0, detail.chords(math.hypot(ux, uy), sweep) + 1)
    return np.stack([cx + ux * np.cos(t) + vx * np.sin(t), cy + uy * np.cos(t) + vy * np.sin(t)], axis=1)


def _spline(geom: dict[str, Any], detail: _Detail) -> Stroke:
    points = geom["control_points"]
    if len(points) <= geom["degree"]:
        return _array(points)
    curve = BSpline(points, order=geom["degree"] + 1, knots=geom["knots"] or None, weights=geom["weights"] or None)
    return _array([point.xyz for point in curve.approximate(min(detail.chords_max, 24 * len(points)))])


def _clipped(start: Stroke, step: Stroke, size_px: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """The parts of straight pieces inside the picture, rounded to whole pixels (Liang and Barsky)."""
    near, far = np.zeros(len(start)), np.ones(len(start))
    with np.errstate(divide="ignore", invalid="ignore"):
        for axis in (0, 1):
            low = (-1.0 - start[:, axis]) / step[:, axis]
            high = (size_px[axis] - start[:, axis]) / step[:, axis]
            still = step[:, axis] == 0.0
            is_in = (start[:, axis] >= -1.0) & (start[:, axis] <= size_px[axis])
            near = np.maximum(near, np.where(still, np.where(is_in, 0.0, 2.0), np.minimum(low, high)))
            far = np.minimum(far, np.where(still, 1.0, np.maximum(low, high)))
    keep = near <= far
    first = np.rint(start + near[:, None] * step)[keep].astype(np.int64)
    last = np.rint(start + far[:, None] * step)[keep].astype(np.int64)
    for (x0, y0), (x1, y1) in zip(first.tolist(), last.tolist(), strict=True):
        # From left to right, so that a reversed line meets the same pixels.
        yield (x0, y0, x1, y1) if (x0, y0) <= (x1, y1) else (x1, y1, x0, y0)
