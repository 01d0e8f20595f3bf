"""Where a candidate may be moved to before it is compared: a fixed list of offsets (scoring contract, 6.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from evaluator_client.canonical import Primitives
from evaluator_client.geometry import Ink, compare_geometry
from evaluator_client.strokes import Ints
from evaluator_client.tolerances import Array, Tolerances

_LONGEST: Final = 64
_VOTED: Final = 6
_DIRECTION_COS: Final = math.cos(math.radians(1.0))
# Differences of scores below this are rounding, and the earlier offset wins.
_TIE: Final = 1e-9

Box = tuple[Array, Array]


def best_offset(
    gold: Ink,
    candidate: Ink,
    *,
    gold_primitives: Primitives,
    candidate_primitives: Primitives,
    gold_box: Box,
    candidate_box: Box,
    tolerances: Tolerances,
) -> Array:
    """The offset (3,) for the candidate with the best `geometry`; the first of equals."""
    best, best_score = np.zeros(3), -1.0
    for offset in _offsets(gold_primitives, candidate_primitives, gold_box, candidate_box, tolerances):
        score = compare_geometry(gold, candidate, offset).score
        if score > best_score + _TIE:
            best, best_score = offset, score
    return best


def _offsets(
    gold: Primitives, candidate: Primitives, gold_box: Box, candidate_box: Box, tolerances: Tolerances
) -> Iterator[Array]:
    yield np.zeros(3)
    yield gold_box[0] - candidate_box[0]
    yield gold_box[1] - candidate_box[1]
    yield (gold_box[0] + gold_box[1] - candidate_box[0] - candidate_box[1]) / 2
    yield from _voted(gold, candidate, tolerances)


def _voted(gold: Primitives, candidate: Primitives, tolerances: Tolerances) -> Iterator[Array]:
    """Offsets that bring most of the gold's longest primitives onto like ones of the candidate."""
    if not len(gold.lengths) or not len(candidate.lengths):
        return
    longest = np.lexsort((np.arange(len(gold.lengths)), -gold.lengths))[:_LONGEST]
    our_kind, our_place, our_direction = _features(gold)
    their_kind, their_place, their_direction = _features(candidate)
    votes: list[Array] = []
    for i in longest.tolist():
        is_like = (their_kind == our_kind[i]) & (np.abs(candidate.lengths - gold.lengths[i]) <= tolerances.tau0)
        is_like &= np.abs(their_direction @ our_direction[i]) >= _DIRECTION_COS * (np.linalg.norm(our_direction[i]) > 0)
        votes.append(our_place[i] - their_place[is_like])
    offsets = np.concatenate(votes)
    if not len(offsets):
        return
    cells, cell, counts = np.unique(
        np.round(offsets / tolerances.tau1), axis=0, return_inverse=True, return_counts=True
    )
    for winner in np.lexsort((*cells.T[::-1], -counts))[:_VOTED].tolist():
        members = offsets[cell.reshape(-1) == winner]
        # The middle one: a few that only happen to fall near do not move it.
        yield members[np.argsort(np.linalg.norm(members - np.median(members, axis=0), axis=1), kind="stable")[0]]


def _features(primitives: Primitives) -> tuple[Ints, Array, Array]:
    """Kind, place and direction of each primitive; only segments have a direction."""
    segments, arcs, polylines = primitives.segments, primitives.arcs, primitives.polylines
    kind = np.repeat([0, 1, 2], [len(segments), len(arcs), len(polylines)])
    middles = [points.min(axis=0) / 2 + points.max(axis=0) / 2 for points in polylines]
    place = np.concatenate([segments.mean(axis=1), arcs[:, :3], np.array(middles).reshape(-1, 3)])
    step = segments[:, 1] - segments[:, 0]
    direction = np.zeros((len(kind), 3))
    if len(segments):
        direction[: len(segments)] = step / np.linalg.norm(step, axis=1)[:, None]
    return kind, place, direction
