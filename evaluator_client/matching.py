"""`entities`: are they the right objects? One-to-one matching of primitives, areas and points (section 6.6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evaluator_client.areas import Area, overlap
from evaluator_client.assignment import assign
from evaluator_client.canonical import Primitives
from evaluator_client.samples import polyline_points
from evaluator_client.strokes import TURN, Ints
from evaluator_client.tolerances import Array, Tolerances, row_lengths

_CURVE_POINTS: Final = 65
# So many pieces of a polyline are compared with those points at once.
_PIECES: Final = 8_192
# So many possible partners are looked at: beyond it, only the nearest of each.
_PAIRS_MAX: Final = 4_000_000
_NEAREST: Final = 32
_AREA_NEAREST: Final = 64
# Decides between pairs of equal worth: equal layer before colour before linetype.
_TIE: Final = 1e-6 * np.array([4.0, 2.0, 1.0])


@dataclass(frozen=True, slots=True)
class Objects:
    """What one drawing brings to the matching. Numbered: primitives first, then areas, then points.

    `look` (n, 3) holds the ranks of layer, colour and linetype of each object, `other_ids` the entities of areas and
    points.
    """

    primitives: Primitives
    areas: list[Area]
    points: Array
    look: Ints
    other_ids: list[str]

    def moved(self, offset: Array) -> Objects:
        """The same objects elsewhere."""
        areas = [area.moved(offset) for area in self.areas]
        return Objects(self.primitives.moved(offset), areas, self.points + offset, self.look, self.other_ids)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.primitives.lengths) + len(self.areas) + len(self.points)


@dataclass(frozen=True, slots=True)
class Matches:
    """The assignment. `gold[i]` and `candidate[i]` are partners with `credit[i]`; weights are per object."""

    gold: Ints
    candidate: Ints
    credit: Array
    gold_weight: Array
    candidate_weight: Array
    # What all partners' weights are divided by, in `entities` and in `structure`.
    denominator: float

    @property
    def score(self) -> float:
        """Credit of all pairs over everything that is there or should be."""
        return float(np.dot(self.credit, self.pair_weight)) / self.denominator if self.denominator else 0.0

    @property
    def pair_weight(self) -> Array:
        """Weight of both partners of each pair."""
        weight: Array = self.gold_weight[self.gold] + self.candidate_weight[self.candidate]
        return weight


def match_objects(gold: Objects, candidate: Objects, tolerances: Tolerances, *, excess: float) -> Matches:
    """Find the assignment of largest worth. `excess` is the length of duplicates from `geometry`."""
    gold_weight, candidate_weight = _weights(gold, tolerances.h), _weights(candidate, tolerances.h)
    g, c, credit = _pairs(gold, candidate, tolerances)
    worth = credit * (gold_weight[g] + candidate_weight[c]) / 2
    worth = worth * (1 + (gold.look[g] == candidate.look[c]) @ _TIE)
    chosen = assign(g, c, worth)
    g, c, credit = g[chosen], c[chosen], credit[chosen]
    is_unmatched = np.ones(candidate.count, dtype=bool)
    is_unmatched[c] = False
    extra = _extra(gold, candidate, candidate_weight, is_unmatched, tolerances.h, excess)
    denominator = float(gold_weight.sum()) + float(candidate_weight[c].sum()) + extra
    return Matches(g, c, credit, gold_weight, candidate_weight, denominator)


def _weights(objects: Objects, h: float) -> Array:
    areas = np.array([area.size for area in objects.areas], dtype=np.float64)
    return np.concatenate(
        [np.log2(1 + objects.primitives.lengths / h), np.log2(1 + areas / (h * h)), np.ones(len(objects.points))]
    )


def _extra(
    gold: Objects, candidate: Objects, weight: Array, is_unmatched: NDArray[np.bool_], h: float, excess: float
) -> float:
    """What the candidate has too much. Many short pieces weigh no more than the length that they have."""
    curves = len(candidate.primitives.lengths)
    lengths = gold.primitives.lengths
    mean = float(lengths.mean()) if len(lengths) else h
    unit = math.log2(1 + mean / h)
    by_piece = float(weight[:curves][is_unmatched[:curves]].sum()) + excess / mean * unit
    length = float(candidate.primitives.lengths[is_unmatched[:curves]].sum())
    by_length = (length + excess) / mean * unit
    return min(by_piece, by_length) + float(weight[curves:][is_unmatched[curves:]].sum())


def _pairs(gold: Objects, candidate: Objects, tolerances: Tolerances) -> tuple[Ints, Ints, Array]:
    """Every pair with credit, numbered as the objects are."""
    ours, theirs = gold.primitives, candidate.primitives
    starts = [(0, 0), (len(ours.segments), len(theirs.segments))]
    starts.append((starts[1][0] + len(ours.arcs), starts[1][1] + len(theirs.arcs)))
    starts.append((len(ours.lengths), len(theirs.lengths)))
    starts.append((starts[3][0] + len(gold.areas), starts[3][1] + len(candidate.areas)))
    found = [
        _segment_pairs(ours.segments, theirs.segments, tolerances),
        _arc_pairs(ours.arcs, theirs.arcs, tolerances),
        _polyline_pairs(ours.polylines, theirs.polylines, tolerances),
        _area_pairs(gold.areas, candidate.areas, tolerances),
        _point_pairs(gold.points, candidate.points, tolerances),
    ]
    g = np.concatenate([pair[0] + start[0] for pair, start in zip(found, starts, strict=True)])
    c = np.concatenate([pair[1] + start[1] for pair, start in zip(found, starts, strict=True)])
    credit = np.concatenate([pair[2] for pair in found])
    kept = np.flatnonzero(credit > 0)
    return g[kept], c[kept], credit[kept]


Pairs = tuple[Ints, Ints, Array]
_NO_PAIRS: Final[Pairs] = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))


def neighbours(gold: Array, candidate: Array, radius: float, *, nearest: int = _NEAREST) -> tuple[Ints, Ints]:
    """Pairs of points within `radius`; only the nearest of each when there are far too many."""
    from scipy.spatial import cKDTree

    if not len(gold) or not len(candidate):
        return _NO_PAIRS[:2]
    tree: Any = cKDTree(candidate)
    ours: Any = cKDTree(gold)
    if int(ours.count_neighbors(tree, radius)) <= _PAIRS_MAX:
        found = ours.sparse_distance_matrix(tree, radius, output_type="ndarray")
        g, c = found["i"].astype(np.int64), found["j"].astype(np.int64)
        order = np.lexsort((c, g))
        return g[order], c[order]
    near = tree.query(gold, k=min(nearest, len(candidate)), distance_upper_bound=radius)[1].reshape(len(gold), -1)
    g, column = np.nonzero(near < len(candidate))
    return g, near[g, column]


def _segment_pairs(gold: Array, candidate: Array, tolerances: Tolerances) -> Pairs:
    g, c = neighbours(gold.mean(axis=1), candidate.mean(axis=1), tolerances.tau1)
    ours, theirs = gold[g], candidate[c]
    straight = np.maximum(row_lengths(ours[:, 0] - theirs[:, 0]), row_lengths(ours[:, 1] - theirs[:, 1]))
    reverse = np.maximum(row_lengths(ours[:, 0] - theirs[:, 1]), row_lengths(ours[:, 1] - theirs[:, 0]))
    return g, c, tolerances.credit(np.minimum(straight, reverse))


def _arc_pairs(gold: Array, candidate: Array, tolerances: Tolerances) -> Pairs:
    g, c = neighbours(gold[:, :3], candidate[:, :3], tolerances.tau1)
    ours, theirs = gold[g], candidate[c]
    distance = row_lengths(ours[:, :3] - theirs[:, :3])
    distance = np.maximum(distance, np.abs(ours[:, 3] - theirs[:, 3]))
    our_full, their_full = ours[:, 5] >= TURN - 1e-9, theirs[:, 5] >= TURN - 1e-9
    partial = np.zeros(len(g))
    for share in (0.0, 0.5, 1.0):
        apart = row_lengths(_arc_point(ours, share) - _arc_point(theirs, share))
        partial = np.maximum(partial, apart)
    distance = np.where(our_full & their_full, distance, np.maximum(distance, partial))
    return g, c, np.where(our_full == their_full, tolerances.credit(distance), 0.0)


def _arc_point(arcs: Array, share: float) -> Array:
    angle = arcs[:, 4] + share * arcs[:, 5]
    around = np.stack([np.cos(angle), np.sin(angle), np.zeros(len(arcs))], axis=1)
    point: Array = arcs[:, :3] + arcs[:, 3][:, None] * around
    return point


def _polyline_pairs(gold: Sequence[Array], candidate: Sequence[Array], tolerances: Tolerances) -> Pairs:
    if not gold or not candidate:
        return _NO_PAIRS
    # Boxes of two curves are no further apart than the curves; their centres not much more.
    g, c = neighbours(_middles(gold), _middles(candidate), 2 * tolerances.tau1)
    points: dict[tuple[bool, int], Array] = {}
    credit = np.zeros(len(g))
    for i, (ours, theirs) in enumerate(zip(g.tolist(), c.tolist(), strict=True)):
        for key, curve in (((True, ours), gold[ours]), ((False, theirs), candidate[theirs])):
            if key not in points:
                points[key] = polyline_points(curve, _CURVE_POINTS)
        distance = _farthest(points[True, ours], candidate[theirs], tolerances.tau1)
        if distance < tolerances.tau1:
            distance = max(distance, _farthest(points[False, theirs], gold[ours], tolerances.tau1))
        credit[i] = tolerances.credit(np.array([distance]))[0]
    return g, c, credit


def _middles(curves: Sequence[Array]) -> Array:
    return np.array([(points.min(axis=0) + points.max(axis=0)) / 2 for points in curves])


def _farthest(points: Array, polyline: Array, enough: float) -> float:
    """The largest distance of the points from a polyline; any value from `enough` on means too far."""
    start, step = polyline[:-1], np.diff(polyline, axis=0)
    square = np.einsum("ij,ij->i", step, step)
    square = np.where(square > 0, square, 1.0)
    # The first few points already tell most pairs apart.
    for part in (points[::16], points):
        nearest = np.full(len(part), np.inf)
        for begin in range(0, len(start), _PIECES):
            some = slice(begin, begin + _PIECES)
            apart = part[:, None] - start[some]
            share = np.clip(np.einsum("ijk,jk->ij", apart, step[some]) / square[some], 0.0, 1.0)
            distance = np.linalg.norm(apart - share[..., None] * step[some], axis=2)
            nearest = np.minimum(nearest, distance.min(axis=1))
        farthest = float(nearest.max())
        if farthest >= enough:
            return farthest
    return farthest


def _area_pairs(gold: Sequence[Area], candidate: Sequence[Area], tolerances: Tolerances) -> Pairs:
    if not gold or not candidate:
        return _NO_PAIRS
    ours, theirs = np.array([area.center for area in gold]), np.array([area.center for area in candidate])
    g, c = neighbours(ours, theirs, tolerances.tau1)
    if len(g) > _AREA_NEAREST * len(gold):
        rank = np.arange(len(g)) - np.searchsorted(g, g)
        g, c = g[rank < _AREA_NEAREST], c[rank < _AREA_NEAREST]
    credit = np.zeros(len(g))
    for i, (a, b) in enumerate(zip(g.tolist(), c.tolist(), strict=True)):
        shared = min(1.0, max(0.0, (overlap(gold[a], candidate[b]) - 0.5) / 0.45))
        credit[i] = shared * (1.0 if gold[a].pattern == candidate[b].pattern else 0.7)
    return g, c, credit


def _point_pairs(gold: Array, candidate: Array, tolerances: Tolerances) -> Pairs:
    g, c = neighbours(gold, candidate, tolerances.tau1)
    return g, c, tolerances.credit(np.linalg.norm(gold[g] - candidate[c], axis=1))
