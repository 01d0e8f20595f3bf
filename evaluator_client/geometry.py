"""`geometry`: is the ink where it should be? Recall, precision and duplicates of sampled curves (section 6.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evaluator_client.canonical import Primitives
from evaluator_client.samples import TANGENT_COS, Samples, sample
from evaluator_client.strokes import Ints
from evaluator_client.tolerances import Array, Tolerances

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
    tolerances, total = other.tolerances, 0.0
    count = len(other.samples.weight)
    k = min(_NEAREST, count)
    for begin in range(0, len(samples.weight), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        position, tangent = samples.position[part], samples.tangent[part]
        near = other.tree.query(position, k=k, distance_upper_bound=tolerances.tau1 + tolerances.h, workers=-1)[1]
        near = near.reshape(len(position), k)
        is_there = near < count
        near = np.where(is_there, near, 0)
        their_tangent = other.samples.tangent[near]
        apart = position[:, None] - other.samples.position[near]
        along = np.einsum("ijk,ijk->ij", apart, their_tangent)
        aside = np.linalg.norm(apart - along[..., None] * their_tangent, axis=2)
        distance = np.hypot(aside, np.maximum(0.0, np.abs(along) - 0.75 * tolerances.h))
        is_parallel = np.abs(np.einsum("ik,ijk->ij", tangent, their_tangent)) >= TANGENT_COS
        credit = np.where(is_there & is_parallel, tolerances.credit(distance), 0.0).max(axis=1)
        total += float(np.dot(samples.weight[part], credit))
    return total


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
        near = tree.query(position, k=k, distance_upper_bound=reach, workers=-1)[1].reshape(len(position), k)
        this, column = np.nonzero(near < count)
        other = near[this, column]
        this = this + begin
        is_other = samples.owner[this] != samples.owner[other]
        this, other = this[is_other], other[is_other]
        is_copy = _lies_alongside(samples, this, other, half[other], 2 * tolerances.tau0)
        copies += _distinct_owners(this[is_copy], samples.owner[other[is_copy]], count)
    return float(np.dot(samples.weight, copies / (copies + 1)))


def _lies_alongside(samples: Samples, this: Ints, other: Ints, half: Array, aside_max: float) -> NDArray[np.bool_]:
    """Whether the foot of each sample falls on the other's piece: what only continues a line does not copy it."""
    tangent = samples.tangent[other]
    parallel = np.abs(np.einsum("ij,ij->i", samples.tangent[this], tangent)) >= TANGENT_COS
    apart = samples.position[this] - samples.position[other]
    along = np.einsum("ij,ij->i", apart, tangent)
    aside = np.linalg.norm(apart - along[:, None] * tangent, axis=1)
    alongside: NDArray[np.bool_] = parallel & (np.abs(along) <= half) & (aside <= aside_max)
    return alongside


def _distinct_owners(this: Ints, owner: Ints, count: int) -> Array:
    """How many different primitives each sample has beside it."""
    order = np.lexsort((owner, this))
    this, owner = this[order], owner[order]
    is_first = np.ones(len(this), dtype=bool)
    is_first[1:] = (np.diff(this) != 0) | (np.diff(owner) != 0)
    return np.bincount(this[is_first], minlength=count).astype(np.float64)
