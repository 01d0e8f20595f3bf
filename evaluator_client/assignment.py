"""One-to-one assignment of largest total worth over a sparse set of possible pairs (scoring contract, 6.6)."""

from __future__ import annotations

from typing import Final

import numpy as np

from evaluator_client.strokes import Ints
from evaluator_client.tolerances import Array

# A connected component with more cost cells than this is solved greedily.
CELLS_MAX: Final = 250_000


def assign(gold: Ints, candidate: Ints, worth: Array) -> Ints:
    """Which of the pairs (gold[i], candidate[i]) to take; pairs without worth never are. Indices, ascending."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    usable = np.flatnonzero(worth > 0)
    if not len(usable):
        return usable
    g = np.unique(gold[usable], return_inverse=True)[1]
    c = np.unique(candidate[usable], return_inverse=True)[1]
    gold_count, candidate_count = int(g.max()) + 1, int(c.max()) + 1
    size = gold_count + candidate_count
    graph = coo_array((np.ones(len(g), dtype=np.int8), (g, gold_count + c)), shape=(size, size))
    component = connected_components(graph, directed=False)[1][g]
    order = np.argsort(component, kind="stable")
    bounds = np.flatnonzero(np.concatenate([[True], np.diff(component[order]) != 0, [True]]))
    sizes = np.diff(bounds)
    # A pair on its own is its own best assignment.
    taken = [order[bounds[:-1][sizes == 1]]]
    for begin, stop in zip(bounds[:-1][sizes > 1].tolist(), bounds[1:][sizes > 1].tolist(), strict=True):
        members = order[begin:stop]
        taken.append(members[_best(g[members], c[members], worth[usable[members]])])
    chosen: Ints = np.sort(usable[np.concatenate(taken)])
    return chosen


def _best(g: Ints, c: Ints, worth: Array) -> Ints:
    from scipy.optimize import linear_sum_assignment

    rows, row = np.unique(g, return_inverse=True)
    columns, column = np.unique(c, return_inverse=True)
    if len(rows) == 1 or len(columns) == 1:
        return np.array([np.argmax(worth)], dtype=np.int64)
    if len(rows) * len(columns) > CELLS_MAX:
        return _greedy(g, c, worth)
    # Zero stands for no pair: an assignment that takes it takes nothing.
    cells = np.zeros((len(rows), len(columns)))
    which = np.full(cells.shape, -1, dtype=np.int64)
    cells[row, column] = worth
    which[row, column] = np.arange(len(worth))
    found = which[linear_sum_assignment(cells, maximize=True)]
    best: Ints = found[found >= 0]
    return best


def _greedy(g: Ints, c: Ints, worth: Array) -> Ints:
    order = np.lexsort((c, g, -worth))
    taken: list[int] = []
    is_used_gold, is_used_candidate = bytearray(int(g.max()) + 1), bytearray(int(c.max()) + 1)
    for i, ours, theirs in zip(order.tolist(), g[order].tolist(), c[order].tolist(), strict=True):
        if not is_used_gold[ours] and not is_used_candidate[theirs]:
            is_used_gold[ours] = is_used_candidate[theirs] = 1
            taken.append(i)
    return np.array(taken, dtype=np.int64)
