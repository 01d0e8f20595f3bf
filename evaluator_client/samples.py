"""Samples along canonical primitives: midpoints of equal pieces, with tangent and weight (scoring contract, 6.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evaluator_client.canonical import Primitives
from evaluator_client.strokes import TURN, Ints
from evaluator_client.tolerances import SAMPLES_MAX, Array

_CURVE_SAMPLES_MIN: Final = 8
# A candidate far longer than any gold is sampled more coarsely, or it would use up all memory.
_CANDIDATE_SAMPLES_MAX: Final = 2 * SAMPLES_MAX


@dataclass(frozen=True, slots=True)
class Samples:
    """`position` and `tangent` (n, 3), `weight` the length each stands for, `owner` its primitive's number."""

    position: Array
    tangent: Array
    weight: Array
    owner: Ints

    @property
    def total(self) -> float:
        """Length of everything sampled."""
        return float(self.weight.sum())

    def moved(self, offset: Array) -> Samples:
        """The same samples elsewhere."""
        return replace(self, position=self.position + offset)


def sample(primitives: Primitives, h: float) -> Samples:
    """Sample every primitive at pieces of at most `h`."""
    h = max(h, primitives.length / _CANDIDATE_SAMPLES_MAX)
    segments, arcs = primitives.segments, primitives.arcs
    lengths = primitives.lengths
    counts = np.maximum(1, np.ceil(lengths / h * (1 - 1e-12))).astype(np.int64)
    counts[len(segments) :] = np.maximum(counts[len(segments) :], _CURVE_SAMPLES_MIN)
    # Full circles are cut at 0 degrees wherever they were drawn from: a quarter turn must not move their samples.
    arc_counts = counts[len(segments) : len(segments) + len(arcs)]
    arc_counts[arcs[:, 5] >= TURN - 1e-9] += -arc_counts[arcs[:, 5] >= TURN - 1e-9] % 4
    parts = [
        _on_segments(segments, counts[: len(segments)]),
        _on_arcs(arcs, counts[len(segments) : len(segments) + len(arcs)]),
        *(
            _on_polyline(points, int(count))
            for points, count in zip(primitives.polylines, counts[len(segments) + len(arcs) :], strict=True)
        ),
    ]
    return Samples(
        position=np.concatenate([part[0] for part in parts]),
        tangent=np.concatenate([part[1] for part in parts]),
        weight=np.repeat(lengths / counts, counts),
        owner=np.repeat(np.arange(len(lengths)), counts),
    )


def _shares(counts: Ints) -> tuple[Ints, Array]:
    """For each sample: the row it belongs to, and its place along it in (0, 1)."""
    row = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, (index + 0.5) / counts[row]


def _on_segments(segments: Array, counts: Ints) -> tuple[Array, Array]:
    row, share = _shares(counts)
    start, step = segments[row, 0], segments[row, 1] - segments[row, 0]
    if not len(row):
        return start, step
    return start + share[:, None] * step, step / np.linalg.norm(step, axis=1)[:, None]


def _on_arcs(arcs: Array, counts: Ints) -> tuple[Array, Array]:
    row, share = _shares(counts)
    angle = arcs[row, 4] + share * arcs[row, 5]
    cos, sin, zero = np.cos(angle), np.sin(angle), np.zeros(len(row))
    position = arcs[row, :3] + arcs[row, 3][:, None] * np.stack([cos, sin, zero], axis=1)
    return position, np.stack([-sin, cos, zero], axis=1)


def _on_polyline(points: Array, count: int) -> tuple[Array, Array]:
    steps = np.diff(points, axis=0)
    sizes = np.linalg.norm(steps, axis=1)
    along = np.concatenate([[0.0], np.cumsum(sizes)])
    at = (np.arange(count) + 0.5) / count * along[-1]
    piece = np.clip(np.searchsorted(along, at, side="right") - 1, 0, len(steps) - 1)
    # A repeated point makes a piece without direction; the next one has it.
    while not np.all(sizes[piece] > 0):
        piece = np.where(sizes[piece] > 0, piece, np.maximum(piece - 1, 0))
    share = (at - along[piece]) / sizes[piece]
    return points[piece] + share[:, None] * steps[piece], steps[piece] / sizes[piece][:, None]


def polyline_points(points: Array, count: int) -> Array:
    """`count` points (count, 3) at equal distances along a polyline, both ends included."""
    sizes = np.linalg.norm(np.diff(points, axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(sizes)])
    at = np.linspace(0.0, along[-1], count)
    result: Array = np.stack([np.interp(at, along, points[:, k]) for k in range(3)], axis=1)
    return result


TANGENT_COS: Final = math.cos(math.radians(20.0))
