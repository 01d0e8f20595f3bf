"""`geometry`: is the ink where it should be? Recall, precision and duplicates of sampled curves (section 6.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evaluator_client.canonical import Primitives
from evaluator_client.samples import TANGENT_COS, Samples, sample
from evaluator_client.strokes import Ints
from evaluator_client.tolerances import Array, Tolerances, row_dots, row_lengths

_NEAREST: Final = 8
# Of a sample's neighbours only so many are looked at: enough for a few copies, and bounded where very many crowd.
_NEIGHBOURS: Final = 24
_CHUNK: Final = 50_000


@dataclass(frozen=True, slots=True)
class Geometry:
    """`excess` is the length of duplicates beyond the gold's, in drawing units."""

    score: float
    precision: float
    recall: float
    excess: float


class Ink:
    """One drawing's samples, their index, and how much of them lies twice."""

    def __init__(self, primitives: Primitives, tolerances: Tolerances) -> None:
        from scipy.spatial import cKDTree

        self.tolerances = tolerances
        self.samples = sample(primitives, tolerances.h)
        self.tree: Any = cKDTree(self.samples.position) if len(self.samples.weight) else None
        self.duplicates = primitives.dup_exact + _near_duplicates(self.samples, self.tree, tolerances)


def compare_geometry(gold: Ink, candidate: Ink, offset: Array) -> Geometry:
    """Compare the gold with the candidate moved by `offset`."""
    excess = max(0.0, candidate.duplicates - gold.duplicates)
    gold_total, candidate_total = gold.samples.total, candidate.samples.total
    if not gold_total or not candidate_total:
        return Geometry(0.0, 0.0, 0.0, excess)
    # The index of the candidate stands still, so the gold moves the other way.
    recall = _covered(gold.samples.moved(-offset), candidate) / gold_total
    precision = _covered(candidate.samples.moved(offset), gold) / (candidate_total + excess)
    score = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return Geometry(score, precision, recall, excess)


def _covered(samples: Samples, other: Ink) -> float:
    """Weight of the samples times the best credit that any of the nearest samples of `other` gives them."""
    total, k = 0.0, min(_NEAREST, len(other.samples.weight))
    for begin in range(0, len(samples.weight), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        position, tangent = samples.position[part], samples.tangent[part]
        credit = _best_credit(position, tangent, other, nearest=1)
        # Nothing is better than full credit, and most samples have it from the nearest.
        rest = np.flatnonzero(credit < 1.0)
        if len(rest) and k > 1:
            credit[rest] = _best_credit(position[rest], tangent[rest], other, nearest=k)
        total += float(np.dot(samples.weight[part], credit))
    return total


def _best_credit(position: Array, tangent: Array, other: Ink, *, nearest: int) -> Array:
    """The best credit that so many nearest samples of `other` give each place."""
    tolerances = other.tolerances
    near = other.tree.query(position, k=nearest, distance_upper_bound=tolerances.tau1 + tolerances.h, workers=-1)[1]
    this, column = np.nonzero(near.reshape(len(position), nearest) < len(other.samples.weight))
    which = near.reshape(len(position), nearest)[this, column]
    their_tangent = other.samples.tangent[which]
    is_parallel = np.abs(row_dots(tangent[this], their_tangent)) >= TANGENT_COS
    this, which, their_tangent = this[is_parallel], which[is_parallel], their_tangent[is_parallel]
    apart = position[this] - other.samples.position[which]
    along = row_dots(apart, their_tangent)
    aside = row_lengths(apart - along[:, None] * their_tangent)
    distance = np.hypot(aside, np.maximum(0.0, np.abs(along) - 0.75 * tolerances.h))
    best = np.zeros(len(position))
    np.maximum.at(best, this, tolerances.credit(distance))
    return best


def _near_duplicates(samples: Samples, tree: Any, tolerances: Tolerances) -> float:
    """Length that lies alongside other primitives of the same drawing: weight * m / (m + 1) with m of them."""
    count = len(samples.weight)
    if count < 2:
        return 0.0
    half = samples.weight / 2 + tolerances.epsilon
    reach = float(np.hypot(2 * tolerances.tau0, half.max()))
    copies = np.zeros(count)
    k = min(_NEIGHBOURS, count)
    for begin in range(0, count, _CHUNK):
        position = samples.position[begin : begin + _CHUNK]
        # Most samples have nothing near but themselves.
        crowded = np.flatnonzero(tree.query(position, k=2, distance_upper_bound=reach, workers=-1)[1][:, 1] < count)
        near = tree.query(position[crowded], k=k, distance_upper_bound=reach, workers=-1)[1].reshape(-1, k)
        this, column = np.nonzero(near < count)
        other = near[this, column]
        this = crowded[this] + begin
        is_other = samples.owner[this] != samples.owner[other]
        this, other = this[is_other], other[is_other]
        is_copy = _lies_alongside(samples, this, other, half[other], 2 * tolerances.tau0)
        copies += _distinct_owners(this[is_copy], samples.owner[other[is_copy]], count)
    return float(np.dot(samples.weight, copies / (copies + 1)))


def _lies_alongside(samples: Samples, this: Ints, other: Ints, half: Array, aside_max: float) -> NDArray[np.bool_]:
    """Whether the foot of each sample falls on the other's piece: what only continues a line does not copy it."""
    alongside = np.zeros(len(this), dtype=bool)
    tangent = samples.tangent[other]
    parallel = np.flatnonzero(np.abs(row_dots(samples.tangent[this], tangent)) >= TANGENT_COS)
    tangent = tangent[parallel]
    apart = samples.position[this[parallel]] - samples.position[other[parallel]]
    along = row_dots(apart, tangent)
    aside = row_lengths(apart - along[:, None] * tangent)
    alongside[parallel] = (np.abs(along) <= half[parallel]) & (aside <= aside_max)
    return alongside


def _distinct_owners(this: Ints, owner: Ints, count: int) -> Array:
    """How many different primitives each sample has beside it."""
    order = np.lexsort((owner, this))
    this, owner = this[order], owner[order]
    is_first = np.ones(len(this), dtype=bool)
    is_first[1:] = (np.diff(this) != 0) | (np.diff(owner) != 0)
    return np.bincount(this[is_first], minlength=count).astype(np.float64)
