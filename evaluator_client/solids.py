"""`solids` and `extents`: are the bodies where they should be, each for itself? (scoring contract, 6.8)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from contract.metadata import Body, SizedBox
from evaluator_client.assignment import assign
from evaluator_client.strokes import Ints
from evaluator_client.structure import OBJECT_WEIGHT
from evaluator_client.tolerances import Array

_BOX_SHARE: Final = 0.6
_UNION_SHARE: Final = 0.25

Boxes = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Solids:
    """Partners by index, how well all bodies fit (0 to 1), and how well the boxes around all of them do."""

    gold: Ints
    candidate: Ints
    bodies: float
    union: float
    gold_count: int
    candidate_count: int

    @property
    def score(self) -> float:
        """Bodies count; the outer box alone earns nothing."""
        return self.bodies * (1 - _UNION_SHARE + _UNION_SHARE * self.union**2)

    @property
    def pair_weight(self) -> Array:
        """Weight of both partners of each pair in `structure`."""
        return np.full(len(self.gold), 2 * OBJECT_WEIGHT)

    @property
    def denominator(self) -> float:
        """What the pairs' weights are divided by in `structure`."""
        return OBJECT_WEIGHT * (self.gold_count + self.candidate_count)


def compare_solids(gold: Sequence[Body], candidate: Sequence[Body], *, tau0: float, offset: Array) -> Solids:
    """Match bodies one to one. Boxes grow by `tau0`, so a flat one has a volume. `offset` moves the candidate."""
    ours, theirs = _boxes(gold, tau0), _boxes(candidate, tau0)
    theirs = theirs[0] + offset, theirs[1] + offset
    our_volume, their_volume = _volumes(gold), _volumes(candidate)
    rows: list[Ints] = []
    columns: list[Ints] = []
    worths: list[Array] = []
    for i in range(len(gold)):
        shared = overlaps((ours[0][i], ours[1][i]), theirs)
        near = np.flatnonzero(shared > 0)
        rows.append(np.full(len(near), i))
        columns.append(near)
        worths.append(_worth(shared[near], float(our_volume[i]), their_volume[near]))
    none = np.zeros(0, dtype=np.int64)
    g, c = np.concatenate([none, *rows]), np.concatenate([none, *columns])
    worth = np.concatenate([np.zeros(0), *worths])
    chosen = assign(g, c, worth)
    total = len(gold) + len(candidate)
    bodies = 2 * float(worth[chosen].sum()) / total if total else 0.0
    union = 0.0
    if len(gold) and len(candidate):
        outer = theirs[0].min(axis=0)[None], theirs[1].max(axis=0)[None]
        union = float(overlaps((ours[0].min(axis=0), ours[1].max(axis=0)), outer)[0])
    return Solids(g[chosen], c[chosen], bodies, union, len(gold), len(candidate))


def compare_extents(gold: SizedBox, candidate: SizedBox | None, *, tau0: float, offset: Array) -> float:
    """How well the boxes around everything fit."""
    if candidate is None:
        return 0.0
    ours = np.array(gold.min) - tau0, np.array(gold.max) + tau0
    theirs = np.array([candidate.min]) - tau0 + offset, np.array([candidate.max]) + tau0 + offset
    return float(overlaps(ours, theirs)[0]) ** 2


def overlaps(box: Boxes, others: Boxes) -> Array:
    """Intersection over union of one box, two corners (3,), with each of others (n, 3)."""
    edges = np.minimum(box[1], others[1]) - np.maximum(box[0], others[0])
    both = np.where(np.all(edges > 0, axis=1), edges.prod(axis=1), 0.0)
    union = (box[1] - box[0]).prod() + (others[1] - others[0]).prod(axis=1) - both
    # Where sizes are so small or so large that products are not numbers any more, nothing is shared.
    with np.errstate(divide="ignore", invalid="ignore"):
        shared: Array = np.nan_to_num(np.clip(both / union, 0.0, 1.0), nan=0.0)
    return shared


def _worth(shared: Array, ours: float, theirs: Array) -> Array:
    square = shared**2
    larger = np.maximum(ours, theirs)
    has_both = np.isfinite(larger) & (larger > 0)
    ratio = np.where(has_both, np.minimum(ours, theirs) / np.where(has_both, larger, 1.0), 0.0)
    return np.where(has_both, _BOX_SHARE * square + (1 - _BOX_SHARE) * ratio**2, square)


def _boxes(bodies: Sequence[Body], tau0: float) -> Boxes:
    low = np.array([body.min for body in bodies], dtype=np.float64).reshape(-1, 3)
    high = np.array([body.max for body in bodies], dtype=np.float64).reshape(-1, 3)
    return low - tau0, high + tau0


def _volumes(bodies: Sequence[Body]) -> Array:
    """Not a number where a body has none."""
    return np.array([np.nan if body.volume is None else body.volume for body in bodies], dtype=np.float64)
