"""Numbers over many rollouts (scoring contract, section 13): means with intervals, pairs of models, repeats, the judge.

Pure: the same scores in any order give the same bytes. Tasks are the unit, so every argument that holds scores maps a
task to the scores of its counted rollouts; a void rollout is not in it, and shows as coverage only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import stdtr, stdtrit

Scores = Mapping[str, Sequence[float]]
"""Scores in [0, 1] of counted rollouts, by task."""

LEVEL: Final = 0.95
# With fewer tasks than this the t interval leans on a shape that nobody has seen, so the bootstrap stands beside it.
BOOTSTRAP_BELOW_TASKS: Final = 30
BOOTSTRAP_RESAMPLES: Final = 10_000
# Any constant: it only has to be the same in every run of the report.
BOOTSTRAP_SEED: Final = 13
PASS_THRESHOLD: Final = 0.9
# How far judge and deterministic score may be apart before a person should look.
REVIEW_ABOVE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends of a 95 % interval. Not cut to [0, 1]: an end outside says that the data do not carry an interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, what it rests on, and how sure it is.

    `coverage` is `count` over `expected`. `mean` is over all counted rollouts, and `clustered` its interval with errors
    clustered by task. `task_mean` averages the repeats of each task first, and `t` is its interval; without repeats, or
    with equally many of each task, both pairs are the same. An interval is null with fewer than two tasks.
    """

    count: int
    expected: int
    coverage: float
    task_count: int
    mean: float | None
    standard_error: float | None
    clustered: Interval | None
    task_mean: float | None
    t: Interval | None
    bootstrap: Interval | None


@dataclass(frozen=True, slots=True)
class Paired:
    """The first model minus the second, on the tasks that both have counted rollouts of.

    `p_value` is two-sided, from the t distribution; null when the differences have no spread to judge by.
    """

    difference: float | None
    standard_error: float | None
    interval: Interval | None
    p_value: float | None
    tasks: tuple[str, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PassRate:
    """`pass@k` and `pass^k`, averaged over the tasks with at least `k` counted repeats."""

    k: int
    task_count: int
    any_of_k: float
    all_of_k: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """The judge beside the deterministic score. `spearman` is null when either of them is constant."""

    count: int
    spearman: float | None
    mean_absolute_difference: float
    # Positions in the pairs that were handed in.
    for_review: tuple[int, ...]


def estimate(scores: Scores, *, expected: int) -> Estimate:
    """The mean of all scores out of `expected` rollouts."""
    kept = _kept(scores)
    count = sum(len(values) for values in kept.values())
    assert count <= expected, f"{count} scores of {expected} rollouts"
    mean, standard_error = clustered_mean(kept)
    task_means = [statistics.fmean(values) for values in kept.values()]
    degrees = len(kept) - 1
    return Estimate(
        count=count,
        expected=expected,
        coverage=count / expected if expected else 0.0,
        task_count=len(kept),
        mean=mean,
        standard_error=standard_error,
        clustered=_around(mean, standard_error, degrees),
        task_mean=statistics.fmean(task_means) if task_means else None,
        t=t_interval(task_means),
        bootstrap=bootstrap_interval(kept) if 2 <= len(kept) < BOOTSTRAP_BELOW_TASKS else None,
    )


def clustered_mean(scores: Scores) -> tuple[float | None, float | None]:
    """The mean over all rollouts and its standard error, clustered by task; the error is null below two tasks."""
    kept = _kept(scores)
    if not kept:
        return None, None
    values = [value for group in kept.values() for value in group]
    mean = statistics.fmean(values)
    clusters = len(kept)
    if clusters < 2:
        return mean, None
    squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in kept.values())
    return mean, math.sqrt(clusters / (clusters - 1) * squares) / len(values)


def t_interval(values: Sequence[float]) -> Interval | None:
    """Mean ± t · s / √n; null with fewer than two values."""
    if len(values) < 2:
        return None
    return _around(statistics.fmean(values), _standard_error(values), len(values) - 1)


def bootstrap_interval(scores: Scores) -> Interval | None:
    """The percentile interval of the mean when whole tasks are drawn again; null with fewer than two tasks."""
    kept = _kept(scores)
    if len(kept) < 2:
        return None
    sums = np.array([math.fsum(values) for values in kept.values()])
    counts = np.array([len(values) for values in kept.values()])
    chance = np.random.Generator(np.random.PCG64(BOOTSTRAP_SEED))
    drawn = chance.integers(0, len(kept), size=(BOOTSTRAP_RESAMPLES, len(kept)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def compare_paired(first: Scores, second: Scores) -> Paired:
    """Compare two models task by task. Repeats are averaged first, so a task is one difference."""
    left, right = _kept(first), _kept(second)
    tasks = [task for task in left if task in right]
    differences = [statistics.fmean(left[task]) - statistics.fmean(right[task]) for task in tasks]
    difference = statistics.fmean(differences) if differences else None
    error = _standard_error(differences) if len(differences) > 1 else None
    return Paired(
        difference=difference,
        standard_error=error,
        interval=t_interval(differences),
        p_value=_p_value(difference, error, len(differences) - 1),
        tasks=tuple(tasks),
        only_first=tuple(task for task in left if task not in right),
        only_second=tuple(task for task in right if task not in left),
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Each p-value raised for how many there are (Holm 1979), so that one of many pairs is not lucky unseen."""
    known = sorted((value, index) for index, value in enumerate(p_values) if value is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    floor = 0.0
    for rank, (value, index) in enumerate(known):
        floor = max(floor, min(1.0, value * (len(known) - rank)))
        adjusted[index] = floor
    return adjusted


def pass_at_k(repeats: int, passes: int, k: int) -> float:
    """The chance that at least one of `k` repeats passes, without bias from `repeats` of which `passes` did."""
    _check_counts(repeats, passes, k)
    return 1.0 - math.prod((repeats - passes - i) / (repeats - i) for i in range(k))


def pass_hat_k(repeats: int, passes: int, k: int) -> float:
    """The chance that all of `k` repeats pass."""
    _check_counts(repeats, passes, k)
    return math.prod(max(0, passes - i) / (repeats - i) for i in range(k))


def pass_rates(scores: Scores) -> list[PassRate]:
    """Every `k` that at least one task has repeats for. A pass is a score of at least `PASS_THRESHOLD`."""
    counts = [(len(values), sum(value >= PASS_THRESHOLD for value in values)) for values in _kept(scores).values()]
    rates = []
    for k in range(1, max((repeats for repeats, _ in counts), default=0) + 1):
        enough = [(repeats, passes) for repeats, passes in counts if repeats >= k]
        rates.append(
            PassRate(
                k=k,
                task_count=len(enough),
                any_of_k=statistics.fmean(pass_at_k(repeats, passes, k) for repeats, passes in enough),
                all_of_k=statistics.fmean(pass_hat_k(repeats, passes, k) for repeats, passes in enough),
            )
        )
    return rates


def judge_agreement(pairs: Sequence[tuple[float, float]]) -> Agreement | None:
    """How far the judge follows the deterministic score, from pairs (deterministic, judge); null without any."""
    if not pairs:
        return None
    apart = [abs(judge - deterministic) for deterministic, judge in pairs]
    return Agreement(
        count=len(pairs),
        spearman=_spearman(pairs),
        mean_absolute_difference=statistics.fmean(apart),
        for_review=tuple(index for index, distance in enumerate(apart) if distance > REVIEW_ABOVE),
    )


def _kept(scores: Scores) -> dict[str, Sequence[float]]:
    # In order of name, so that nothing depends on the order in which tasks were met.
    return {task: scores[task] for task in sorted(scores) if scores[task]}


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _around(mean: float | None, standard_error: float | None, degrees: int) -> Interval | None:
    if mean is None or standard_error is None:
        return None
    half = float(stdtrit(degrees, (1 + LEVEL) / 2)) * standard_error
    return Interval(mean - half, mean + half)


def _p_value(difference: float | None, error: float | None, degrees: int) -> float | None:
    if difference is None or error is None:
        return None
    if error == 0.0:
        return 1.0 if difference == 0.0 else None
    return float(2 * stdtr(degrees, -abs(difference / error)))


def _check_counts(repeats: int, passes: int, k: int) -> None:
    assert 0 <= passes <= repeats, f"{passes} of {repeats} passed"
    assert 1 <= k <= repeats, f"k = {k} needs as many repeats, not {repeats}"


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    ranks = [_ranks([pair[side] for pair in pairs]) for side in (0, 1)]
    if any(len(set(side)) < 2 for side in ranks):
        return None
    return statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    ordered = sorted(values)
    first = {value: index for index, value in reversed(list(enumerate(ordered, start=1)))}
    last = {value: index for index, value in enumerate(ordered, start=1)}
    return [(first[value] + last[value]) / 2 for value in values]
