"""Areas of hatches and fills, and how much of two areas is shared: exact for polygons (scoring contract, 6.6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from contract.entities import FillEntity, HatchEntity
from evaluator_client.strokes import TURN, bulged_pieces
from evaluator_client.tolerances import Array

_ARC_STEP_RAD: Final = math.radians(4.0)
# With more boundary edges than this, levels are taken at equal distances instead of at every corner and crossing.
_EXACT_EDGES_MAX: Final = 600
_LEVELS: Final = 1_024
_CELLS_MAX: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Area:
    """Boundary edges (n, 2, 2) in the drawing plane, taken by the even-odd rule."""

    edges: Array
    pattern: str
    size: float
    center: tuple[float, float, float]

    def moved(self, offset: Array) -> Area:
        """The same area elsewhere."""
        x, y, z = (float(part) for part in offset)
        center = (self.center[0] + x, self.center[1] + y, self.center[2] + z)
        return Area(self.edges + offset[:2], self.pattern, self.size, center)


def area_of(entity: FillEntity | HatchEntity) -> Area:
    """The comparable form of one entity; `size` is what its record says."""
    if isinstance(entity, FillEntity):
        loops = [np.array(entity.geom.corners, dtype=np.float64).reshape(-1, 3)]
        pattern = "SOLID"
    else:
        loops = [_flat_loop(loop.vertices, loop.bulges) for loop in entity.geom.loops]
        pattern = "SOLID" if entity.geom.is_solid else entity.geom.pattern.upper()
    points = np.concatenate(loops) if loops else np.zeros((1, 3))
    middle = (points.min(axis=0) + points.max(axis=0)) / 2 if len(points) else np.zeros(3)
    edges = [np.stack([loop, np.roll(loop, -1, axis=0)], axis=1)[:, :, :2] for loop in loops if len(loop)]
    return Area(
        edges=np.concatenate(edges) if edges else np.zeros((0, 2, 2)),
        pattern=pattern,
        size=entity.geom.area,
        center=(float(middle[0]), float(middle[1]), float(middle[2])),
    )


def _flat_loop(vertices: Sequence[tuple[float, float, float]], bulges: Sequence[float]) -> Array:
    points: list[tuple[float, float, float]] = []
    for i, piece in enumerate(bulged_pieces(vertices, bulges, is_closed=True)):
        points.append(vertices[i])
        if len(piece) == 2:
            continue
        x, y, z, radius, start, sweep = piece
        count = max(2, math.ceil(sweep / _ARC_STEP_RAD))
        shares = [k / count for k in range(1, count)]
        for share in shares if bulges[i] > 0 else reversed(shares):
            angle = (start + sweep * share) % TURN
            points.append((x + radius * math.cos(angle), y + radius * math.sin(angle), z))
    return np.array(points, dtype=np.float64).reshape(-1, 3)


def overlap(a: Area, b: Area) -> float:
    """Intersection over union, in [0, 1]."""
    low = np.maximum(a.edges.min(axis=(0, 1)), b.edges.min(axis=(0, 1))) if len(a.edges) and len(b.edges) else None
    if low is None or np.any(low >= np.minimum(a.edges.max(axis=(0, 1)), b.edges.max(axis=(0, 1)))):
        return 0.0
    if a.edges.shape == b.edges.shape and np.array_equal(a.edges, b.edges):
        return 1.0
    levels = _levels(a.edges, b.edges)
    height, middle = np.diff(levels), (levels[:-1] + levels[1:]) / 2
    both = only_a = only_b = 0.0
    chunk = max(1, _CELLS_MAX // (len(a.edges) + len(b.edges)))
    for begin in range(0, len(middle), chunk):
        for y, thick in zip(
            middle[begin : begin + chunk].tolist(), height[begin : begin + chunk].tolist(), strict=True
        ):
            row_a, row_b = _row(a.edges, y), _row(b.edges, y)
            shared = _shared(row_a, row_b)
            both += shared * thick
            only_a += (sum(row_a[1::2]) - sum(row_a[::2])) * thick
            only_b += (sum(row_b[1::2]) - sum(row_b[::2])) * thick
    union = only_a + only_b - both
    return min(1.0, max(0.0, both / union)) if union > 0 else 0.0


def _levels(a: Array, b: Array) -> Array:
    """Heights between which no edge begins, ends or crosses another; between them all widths are linear."""
    edges = np.concatenate([a, b])
    corners = np.unique(edges[:, :, 1])
    if len(edges) > _EXACT_EDGES_MAX:
        return np.linspace(corners[0], corners[-1], _LEVELS + 1)
    levels: Array = np.unique(np.concatenate([corners, _crossings(a, b)]))
    return levels


def _crossings(a: Array, b: Array) -> Array:
    p, r = a[:, None, 0], a[:, None, 1] - a[:, None, 0]
    q, s = b[None, :, 0], b[None, :, 1] - b[None, :, 0]
    cross = r[..., 0] * s[..., 1] - r[..., 1] * s[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = ((q - p)[..., 0] * s[..., 1] - (q - p)[..., 1] * s[..., 0]) / cross
        u = ((q - p)[..., 0] * r[..., 1] - (q - p)[..., 1] * r[..., 0]) / cross
    # Parallel edges give no number, and so fail.
    edge, _ = hit = np.nonzero((t > 0) & (t < 1) & (u > 0) & (u < 1))
    heights: Array = a[edge, 0, 1] + t[hit] * (a[edge, 1, 1] - a[edge, 0, 1])
    return heights


def _row(edges: Array, y: float) -> list[float]:
    """Where a horizontal line enters and leaves the area, in order."""
    (x0, y0), (x1, y1) = edges[:, 0].T, edges[:, 1].T
    is_cut = (y0 <= y) != (y1 <= y)
    x0, y0, x1, y1 = x0[is_cut], y0[is_cut], x1[is_cut], y1[is_cut]
    at: list[float] = np.sort(x0 + (y - y0) * (x1 - x0) / (y1 - y0)).tolist()
    return at


def _shared(a: Sequence[float], b: Sequence[float]) -> float:
    total, i, j = 0.0, 0, 0
    while i + 1 < len(a) and j + 1 < len(b):
        total += max(0.0, min(a[i + 1], b[j + 1]) - max(a[i], b[j]))
        if a[i + 1] <= b[j + 1]:
            i += 2
        else:
            j += 2
    return total
