"""Canonical primitives: the same picture gives the same primitives, however it was built (scoring contract, 6.3).

Pieces of one line or one circle that touch or overlap become one; runs of nearly straight pieces become one segment;
what is left is sorted by rounded coordinates. What disappears by overlapping is counted as `dup_exact`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator_client.strokes import TURN, Ints, Strokes, polyline_length
from evaluator_client.tolerances import Array, Tolerances, row_dots

Sources = tuple[int, ...]

_DIRECTION_RAD: Final = 1e-5
# Pieces of a run continue each other when they turn by at most this much, as tangents that count as equal do.
_RUN_TURN_COS: Final = math.cos(math.radians(20.0))
# An end where more pieces meet than this is a hub, and no joint.
_JOINT_ENDS_MAX: Final = 8
# Below this a direction's component is zero when its sign is chosen.
_ZERO_COMPONENT: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Primitives:
    """`segments` (n, 2, 3), `arcs` (m, 6), `polylines` as in `Strokes`; in this order they are numbered.

    `group` is the look that all sources of a primitive share (0 without grouping), `sources` their entity indices.
    """

    segments: Array
    arcs: Array
    polylines: list[Array]
    lengths: Array
    group: Ints
    sources: list[Sources]
    dup_exact: float

    @property
    def length(self) -> float:
        """Of all primitives together."""
        return float(self.lengths.sum())

    def moved(self, offset: Array) -> Primitives:
        """The same primitives elsewhere."""
        arcs = self.arcs.copy()
        arcs[:, :3] += offset
        polylines = [points + offset for points in self.polylines]
        return Primitives(
            self.segments + offset, arcs, polylines, self.lengths, self.group, self.sources, self.dup_exact
        )


def canonicalise(strokes: Strokes, look: Ints | None, tolerances: Tolerances) -> Primitives:
    """Merge, join and sort. `look` gives each curve entity's group; only pieces of one group become one."""
    groups = np.zeros(_entity_count(strokes), dtype=np.int64) if look is None else look
    segments, segment_sources, segment_group, segment_dup = _merge_segments(strokes, groups, tolerances.epsilon)
    segments, segment_sources, segment_group = _join_runs(
        segments, segment_sources, segment_group, tau0=tolerances.tau0
    )
    arcs, arc_sources, arc_group, arc_dup = _merge_arcs(strokes, groups, tolerances.epsilon)
    order = _segment_order(segments, segment_group, tolerances.epsilon)
    segments = segments[order]
    arc_order = _order(np.round(arcs / tolerances.epsilon), arc_group)
    arcs = arcs[arc_order]
    curve_group = groups[np.array(strokes.polyline_entity, dtype=np.int64)]
    keys = [_polyline_key(points, tolerances.epsilon) for points in strokes.polylines]
    curve_order = _order(np.array(keys, dtype=np.float64).reshape(-1, 7), curve_group)
    polylines = [strokes.polylines[i] for i in curve_order]
    lengths = np.concatenate(
        [
            np.linalg.norm(segments[:, 1] - segments[:, 0], axis=1),
            arcs[:, 3] * arcs[:, 5],
            np.array([polyline_length(points) for points in polylines], dtype=np.float64),
        ]
    )
    return Primitives(
        segments=segments,
        arcs=arcs,
        polylines=polylines,
        lengths=lengths,
        group=np.concatenate([segment_group[order], arc_group[arc_order], curve_group[curve_order]]).astype(np.int64),
        sources=[
            *(segment_sources[i] for i in order),
            *(arc_sources[i] for i in arc_order),
            *((strokes.polyline_entity[i],) for i in curve_order),
        ],
        dup_exact=segment_dup + arc_dup,
    )


def _entity_count(strokes: Strokes) -> int:
    highest = [int(indices.max()) for indices in (strokes.segment_entity, strokes.arc_entity) if len(indices)]
    return 1 + max([*highest, *strokes.polyline_entity], default=0)


def _clustered(labels: Ints, columns: Sequence[tuple[Array, float]]) -> Ints:
    """Split every label where, in some column, sorted values are further apart than that column's tolerance."""
    # A column that varies by less than its tolerance splits nothing.
    columns = [(values, tolerance) for values, tolerance in columns if len(values) and np.ptp(values) > tolerance]
    labels = np.unique(labels, return_inverse=True)[1].reshape(-1)
    count = -1
    while count != (count := int(labels.max()) if len(labels) else 0):
        for values, tolerance in columns:
            order = np.lexsort((values, labels))
            sorted_labels, sorted_values = labels[order], values[order]
            is_new = (np.diff(sorted_labels) != 0) | (np.diff(sorted_values) > tolerance)
            split = np.empty_like(labels)
            split[order] = np.concatenate([[0], np.cumsum(is_new)])
            labels = split
    return labels


def _merge_segments(strokes: Strokes, groups: Ints, epsilon: float) -> tuple[Array, list[Sources], Ints, float]:
    segments = strokes.segments
    if not len(segments):
        return segments, [], np.zeros(0, dtype=np.int64), 0.0
    group = groups[strokes.segment_entity]
    # Far from the origin rounding would hide what is compared; the median is not moved by a stray line.
    origin = np.median(segments.reshape(-1, 3), axis=0)
    start, end = segments[:, 0] - origin, segments[:, 1] - origin
    direction = (end - start) / np.linalg.norm(end - start, axis=1)[:, None]
    direction *= _sign(direction)[:, None]
    foot = start - np.einsum("ij,ij->i", start, direction)[:, None] * direction
    columns = [(direction[:, k], _DIRECTION_RAD) for k in range(3)] + [(foot[:, k], epsilon) for k in range(3)]
    label = _clustered(group, columns)
    # One direction for all pieces of a line, or their places along it would not compare.
    shared = np.zeros((int(label.max()) + 1, 3))
    np.add.at(shared, label, direction)
    shared = (shared / np.linalg.norm(shared, axis=1)[:, None])[label]
    at_start, at_end = np.einsum("ij,ij->i", start, shared), np.einsum("ij,ij->i", end, shared)
    low, high = np.minimum(at_start, at_end), np.maximum(at_start, at_end)
    low_point = np.where((at_start <= at_end)[:, None], segments[:, 0], segments[:, 1])
    high_point = np.where((at_start <= at_end)[:, None], segments[:, 1], segments[:, 0])
    order = np.lexsort((high, low, label))
    first, last, sources, dup = _unions(
        label[order], low[order], high[order], strokes.segment_entity[order].tolist(), epsilon
    )
    merged = np.stack([low_point[order[first]], high_point[order[last]]], axis=1)
    return merged, sources, group[order[first]], dup


def _sign(direction: Array) -> Array:
    """1 or -1, so that a direction and its opposite become the same."""
    x, y, z = direction.T
    flat_x, flat_y = np.abs(x) <= _ZERO_COMPONENT, np.abs(y) <= _ZERO_COMPONENT
    leading = np.where(~flat_x, x, np.where(~flat_y, y, z))
    return np.where(leading < 0, -1.0, 1.0)


def _unions(
    labels: Ints, low: Array, high: Array, entities: list[int], epsilon: float
) -> tuple[Ints, Ints, list[Sources], float]:
    """Unions of sorted intervals: index of the first, of the one that ends last, all sources, overlapped length."""
    count = len(labels)
    # Each interval is its own union, until one of the same label is found to go on from it.
    last = np.arange(count)
    sources: list[Sources] = [(entity,) for entity in entities]
    is_first = np.ones(count, dtype=bool)
    dup = 0.0
    for begin, stop in _stretches(labels):
        low_here, high_here = low[begin:stop].tolist(), high[begin:stop].tolist()
        first = 0
        while first < stop - begin:
            farthest, following, total = first, first + 1, high_here[first] - low_here[first]
            while following < stop - begin and low_here[following] <= high_here[farthest] + epsilon:
                total += high_here[following] - low_here[following]
                if high_here[following] > high_here[farthest]:
                    farthest = following
                following += 1
            if following > first + 1:
                is_first[begin + first + 1 : begin + following] = False
                last[begin + first] = begin + farthest
                sources[begin + first] = tuple(sorted(set(entities[begin + first : begin + following])))
                dup += max(0.0, total - (high_here[farthest] - low_here[first]))
            first = following
    kept = np.flatnonzero(is_first)
    return kept, last[kept], [sources[i] for i in kept.tolist()], dup


def _stretches(labels: Ints) -> Iterator[tuple[int, int]]:
    """Where sorted labels repeat: begin and end of each stretch of two or more."""
    bounds = np.flatnonzero(np.concatenate([[True], np.diff(labels) != 0, [True]]))
    is_many = np.diff(bounds) > 1
    yield from zip(bounds[:-1][is_many].tolist(), bounds[1:][is_many].tolist(), strict=True)


def _merge_arcs(strokes: Strokes, groups: Ints, epsilon: float) -> tuple[Array, list[Sources], Ints, float]:
    arcs = strokes.arcs
    if not len(arcs):
        return arcs, [], np.zeros(0, dtype=np.int64), 0.0
    group = groups[strokes.arc_entity]
    label = _clustered(group, [(arcs[:, k], epsilon) for k in range(4)])
    order = np.lexsort((arcs[:, 5], arcs[:, 4], label))
    bounds = np.flatnonzero(np.concatenate([[True], np.diff(label[order]) != 0, [True]]))
    sizes = np.diff(bounds)
    # An arc that shares its circle with none stays as it is.
    alone = order[bounds[:-1][sizes == 1]]
    merged = [arcs[alone]]
    sources: list[Sources] = [(index,) for index in strokes.arc_entity[alone].tolist()]
    kept = alone.tolist()
    dup = 0.0
    for begin, stop in zip(bounds[:-1][sizes > 1].tolist(), bounds[1:][sizes > 1].tolist(), strict=True):
        members = order[begin:stop]
        rows, entities = arcs[members], strokes.arc_entity[members].tolist()
        starts, sweeps, radius = rows[:, 4].tolist(), rows[:, 5].tolist(), float(rows[0, 3])
        for start, sweep, which in _turn_unions(starts, sweeps, max(epsilon / radius, 1e-12)):
            row = rows[which[0]].copy()
            row[4], row[5] = start, sweep
            merged.append(row[None])
            sources.append(tuple(sorted({entities[i] for i in which})))
            kept.append(int(members[which[0]]))
            if len(which) > 1:
                dup += max(0.0, (sum(sweeps[i] for i in which) - sweep) * radius)
    found = np.concatenate(merged)
    found[found[:, 5] >= TURN - 1e-9, 4:] = (0.0, TURN)
    return found, sources, group[np.array(kept, dtype=np.int64)], dup


def _turn_unions(starts: list[float], sweeps: list[float], tolerance: float) -> list[tuple[float, float, list[int]]]:
    """Unions of angular intervals: start, sweep, and which intervals they came from. `starts` are sorted."""
    runs: list[tuple[float, float, list[int]]] = []
    for i, (start, sweep) in enumerate(zip(starts, sweeps, strict=True)):
        if runs and start <= runs[-1][0] + runs[-1][1] + tolerance:
            begin, so_far, which = runs[-1]
            which.append(i)
            runs[-1] = (begin, max(so_far, start + sweep - begin), which)
        else:
            runs.append((start, sweep, [i]))
    # The last run may reach over the start of the turn into the first ones.
    first = 0
    while first < len(runs) - 1 and runs[-1][0] + runs[-1][1] >= runs[first][0] + TURN - tolerance:
        begin, so_far, which = runs[-1]
        head, head_sweep, head_which = runs[first]
        which.extend(head_which)
        runs[-1] = (begin, max(so_far, head + TURN + head_sweep - begin), which)
        first += 1
    runs = runs[first:]
    if len(runs) == 1 and runs[0][1] >= TURN - tolerance:
        runs = [(0.0, TURN, runs[0][2])]
    return runs


def _join_runs(
    segments: Array, sources: list[Sources], group: Ints, *, tau0: float
) -> tuple[Array, list[Sources], Ints]:
    """Replace each nearly straight run of pieces by the segment between its ends."""
    links = _links(segments, group, tau0)
    if not links:
        return segments, sources, group
    is_gone = np.zeros(len(segments), dtype=bool)
    joined: list[Array] = []
    joined_sources: list[Sources] = []
    joined_group: list[int] = []
    for run in _runs(links):
        points = np.array([segments[end // 2, end % 2] for end in run])
        chord = points[-1] - points[0]
        length = float(np.linalg.norm(chord))
        if length <= tau0:
            continue
        along = (points - points[0]) @ (chord / length)
        aside = np.linalg.norm(points - points[0] - along[:, None] * (chord / length), axis=1)
        # Beyond either end is off the run's own line too.
        if float(aside.max()) > tau0 or float(along.min()) < -tau0 or float(along.max()) > length + tau0:
            continue
        members = [end // 2 for end in run[::2]]
        is_gone[members] = True
        joined.append(np.stack([points[0], points[-1]]))
        joined_sources.append(tuple(sorted({source for i in members for source in sources[i]})))
        joined_group.append(int(group[members[0]]))
    if not joined:
        return segments, sources, group
    kept = np.flatnonzero(~is_gone)
    return (
        np.concatenate([segments[kept], np.array(joined)]),
        [sources[i] for i in kept] + joined_sources,
        np.concatenate([group[kept], np.array(joined_group, dtype=np.int64)]),
    )


def _links(segments: Array, group: Ints, tau0: float) -> dict[int, int]:
    """End to end, for pairs of ends of which each is the other's only continuation. End 2i + k is end k of piece i."""
    from scipy.spatial import cKDTree

    if len(segments) < 2:
        return {}
    ends = segments.reshape(-1, 3)
    outward = segments[:, 1] - segments[:, 0]
    outward = outward / np.linalg.norm(outward, axis=1)[:, None]
    outward = np.stack([-outward, outward], axis=1).reshape(-1, 3)
    tree = cKDTree(ends)
    count = len(ends)
    # Where nothing else comes near, nothing can go on.
    this = np.flatnonzero(tree.query(ends, k=2, distance_upper_bound=tau0)[1][:, 1] < count)
    near = tree.query(ends[this], k=min(_JOINT_ENDS_MAX + 1, count), distance_upper_bound=tau0)[1]
    is_there = near < count
    other = np.where(is_there, near, this[:, None])
    continues = (
        is_there
        & (other // 2 != this[:, None] // 2)
        & (group[other // 2] == group[this // 2][:, None])
        & (row_dots(outward[this][:, None], outward[other]) <= -_RUN_TURN_COS)
    )
    is_crowded = is_there.all(axis=1) & (near.shape[1] > _JOINT_ENDS_MAX)
    is_single = (continues.sum(axis=1) == 1) & ~is_crowded
    partner = np.arange(count)
    partner[this[is_single]] = other[is_single, np.argmax(continues[is_single], axis=1)]
    is_mutual = (partner[partner] == np.arange(count)) & (partner != np.arange(count))
    return {int(i): int(partner[i]) for i in np.flatnonzero(is_mutual)}


def _runs(links: dict[int, int]) -> list[list[int]]:
    """Chains of linked pieces as ends: first end of a piece, its other end, first end of the next, and so on.

    A chain that closes on itself has no ends to join, and is left out.
    """
    runs: list[list[int]] = []
    seen: set[int] = set()
    for end in sorted(links):
        if end // 2 in seen or (end ^ 1) in links:
            continue
        run = [end ^ 1, end]
        while run[-1] in links:
            following = links[run[-1]]
            run += [following, following ^ 1]
        seen.update(e // 2 for e in run)
        runs.append(run)
    return runs


def _segment_order(segments: Array, group: Ints, epsilon: float) -> Ints:
    rounded = np.round(segments / epsilon)
    a, b = rounded[:, 0], rounded[:, 1]
    is_swapped = _is_after(a, b)[:, None]
    return _order(np.concatenate([np.where(is_swapped, b, a), np.where(is_swapped, a, b)], axis=1), group)


def _is_after(a: Array, b: Array) -> NDArray[np.bool_]:
    ax, ay, az = a.T
    bx, by, bz = b.T
    after: NDArray[np.bool_] = (ax > bx) | ((ax == bx) & ((ay > by) | ((ay == by) & (az > bz))))
    return after


def _polyline_key(points: Array, epsilon: float) -> list[float]:
    box = np.concatenate([points.min(axis=0), points.max(axis=0), [polyline_length(points)]])
    key: list[float] = np.round(box / epsilon).tolist()
    return key


def _order(keys: Array, group: Ints) -> Ints:
    """Sorted by the key columns from left to right, then by look."""
    if not len(keys):
        return np.zeros(0, dtype=np.int64)
    order: Ints = np.lexsort((group, *keys.T[::-1]))
    return order
