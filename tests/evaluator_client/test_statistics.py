"""Means, intervals, pairs, repeats and the judge, against scipy and against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import astuple

import pytest
from scipy import stats

from evaluator_client.statistics import (
    Interval,
    bootstrap_interval,
    clustered_mean,
    compare_paired,
    estimate,
    holm,
    judge_agreement,
    pass_at_k,
    pass_hat_k,
    pass_rates,
    t_interval,
)

NEAR = {"rel": 1e-9, "abs": 1e-12}
SCORES = {"a": [0.91], "b": [0.42], "c": [0.77], "d": [1.0], "e": [0.0]}
REPEATED = {"a": [0.9, 0.8, 1.0], "b": [0.2, 0.4], "c": [0.6]}


def test_the_t_interval_is_scipys() -> None:
    """The textbook interval, so that a reader can check it with any tool."""
    values = [values[0] for values in SCORES.values()]
    expected = stats.t.interval(0.95, df=4, loc=sum(values) / 5, scale=stats.sem(values))

    assert pytest.approx(expected, **NEAR) == astuple(t_interval(values))  # type: ignore[arg-type]


def test_without_repeats_the_clustered_interval_is_the_t_interval() -> None:
    """One rollout a task: each rollout is its own cluster, and both formulas are one."""
    found = estimate(SCORES, expected=5)

    assert found.clustered is not None
    assert found.t is not None
    assert pytest.approx(astuple(found.t), **NEAR) == astuple(found.clustered)
    assert pytest.approx(stats.sem([0.91, 0.42, 0.77, 1.0, 0.0]), **NEAR) == found.standard_error


def test_the_clustered_error_is_the_one_worked_out_by_hand() -> None:
    """Mean 3.9/6 = 0.65; sums of deviations by task 0.75, -0.7, -0.05; SE = sqrt(3/2 * 1.055)/6."""
    mean, error = clustered_mean(REPEATED)

    assert pytest.approx(0.65, **NEAR) == mean
    assert pytest.approx(math.sqrt(1.5 * (0.75**2 + 0.7**2 + 0.05**2)) / 6, **NEAR) == error


def test_repeats_of_one_task_make_a_mean_no_surer() -> None:
    """Ten equal rollouts of each task know no more about other tasks than one."""
    once = estimate({"a": [0.2], "b": [0.8], "c": [0.5]}, expected=3)
    often = estimate({"a": [0.2] * 10, "b": [0.8] * 10, "c": [0.5] * 10}, expected=30)

    assert once.clustered is not None
    assert often.clustered is not None
    assert pytest.approx(astuple(once.clustered), **NEAR) == astuple(often.clustered)


def test_what_is_missing_is_coverage_and_never_a_zero() -> None:
    """Two of four rollouts counted: the mean is theirs, and says so."""
    found = estimate({"a": [0.5], "b": [0.7], "c": []}, expected=4)

    assert (2, 4, 0.5, 2) == (found.count, found.expected, found.coverage, found.task_count)
    assert pytest.approx(0.6, **NEAR) == found.mean


@pytest.mark.parametrize(("scores", "mean"), [({}, None), ({"a": [0.4]}, 0.4), ({"a": [0.2, 0.6]}, 0.4)])
def test_fewer_than_two_tasks_have_no_interval(scores: dict[str, list[float]], mean: float | None) -> None:
    """One task says nothing about another."""
    found = estimate(scores, expected=3)

    assert (None, None, None) == (found.clustered, found.t, found.bootstrap)
    assert mean == (None if found.mean is None else pytest.approx(found.mean))


def test_the_bootstrap_covers_whole_tasks_and_is_the_same_each_time() -> None:
    """All means of three tasks drawn three times are known, so the quantiles are too."""
    means = sorted(sum(drawn) / 3 for drawn in itertools.product([0.0, 0.5, 1.0], repeat=3))
    found = bootstrap_interval({"a": [0.0], "b": [0.5], "c": [1.0]})

    assert found == bootstrap_interval({"c": [1.0], "a": [0.0], "b": [0.5]})
    # Each end has probability 1/27 > 2.5 %.
    assert Interval(means[0], means[-1]) == found


def test_the_bootstrap_stands_beside_the_interval_of_few_tasks_only() -> None:
    """Thirty tasks are enough for t."""
    scores = {f"t{number:02d}": [number / 40] for number in range(30)}

    assert estimate(scores, expected=30).bootstrap is None
    assert estimate({task: scores[task] for task in list(scores)[:29]}, expected=29).bootstrap is not None


def test_the_order_of_tasks_and_rollouts_changes_no_bit() -> None:
    """The same archive gives the same report."""
    shuffled = {task: list(reversed(values)) for task, values in reversed(REPEATED.items())}

    assert estimate(REPEATED, expected=6) == estimate(shuffled, expected=6)


def test_a_pair_is_scipys_paired_t_test() -> None:
    """The difference is taken task by task."""
    first = {"a": [0.9], "b": [0.5], "c": [0.7], "d": [0.8], "only": [0.1]}
    second = {"a": [0.7], "b": [0.45], "c": [0.72], "d": [0.5], "other": [1.0]}
    expected = stats.ttest_rel([0.9, 0.5, 0.7, 0.8], [0.7, 0.45, 0.72, 0.5])
    bounds = expected.confidence_interval(0.95)

    found = compare_paired(first, second)

    assert (("a", "b", "c", "d"), ("only",), ("other",)) == (found.tasks, found.only_first, found.only_second)
    assert pytest.approx(0.1325, **NEAR) == found.difference
    assert pytest.approx(expected.pvalue, **NEAR) == found.p_value
    assert found.interval is not None
    assert pytest.approx((bounds.low, bounds.high), **NEAR) == astuple(found.interval)


def test_overlapping_intervals_do_not_hide_a_sure_difference() -> None:
    """Tasks differ far more than models: only pairs see that one model is a little better everywhere."""
    chance = random.Random(3)
    first = {f"t{number}": [number / 12 + 0.03 + chance.uniform(-0.005, 0.005)] for number in range(12)}
    second = {f"t{number}": [number / 12] for number in range(12)}
    apart = [estimate(scores, expected=12).clustered for scores in (second, first)]

    assert apart[0] is not None
    assert apart[1] is not None
    assert apart[0].high > apart[1].low
    p_value = compare_paired(first, second).p_value
    assert p_value is not None
    assert p_value < 1e-6


@pytest.mark.parametrize(
    ("first", "second", "p_value"),
    [
        ({"a": [0.5], "b": [0.5]}, {"a": [0.5], "b": [0.5]}, 1.0),
        ({"a": [0.5], "b": [1.0]}, {"a": [0.25], "b": [0.75]}, None),
    ],
)
def test_differences_without_spread_have_no_p_value_of_zero(
    first: dict[str, list[float]], second: dict[str, list[float]], p_value: float | None
) -> None:
    """Two equal differences are no proof."""
    assert p_value == compare_paired(first, second).p_value


def test_models_without_a_task_in_common_are_not_compared() -> None:
    """There is no difference to print."""
    found = compare_paired({"a": [1.0]}, {"b": [0.0]})

    assert (None, None, None, None) == (found.difference, found.standard_error, found.interval, found.p_value)


def test_many_p_values_are_raised_as_holm_says() -> None:
    """Worked out by hand: 0.01*3, then max(0.03, 0.02*2), then max(0.04, 0.03*1)."""
    assert [pytest.approx(0.04), None, pytest.approx(0.03), pytest.approx(0.04)] == holm([0.03, None, 0.01, 0.02])


@pytest.mark.parametrize(("repeats", "passes"), [(n, c) for n in range(1, 6) for c in range(n + 1)])
def test_pass_rates_are_the_share_of_all_draws(repeats: int, passes: int) -> None:
    """Without bias: over all ways to draw k of n, how many hold a pass, and how many hold nothing else."""
    results = [True] * passes + [False] * (repeats - passes)
    for k in range(1, repeats + 1):
        draws = list(itertools.combinations(results, k))
        assert pytest.approx(sum(map(any, draws)) / len(draws)) == pass_at_k(repeats, passes, k)
        assert pytest.approx(sum(map(all, draws)) / len(draws)) == pass_hat_k(repeats, passes, k)


def test_a_task_with_too_few_repeats_is_left_out_of_a_k_and_counted() -> None:
    """a passes 2 of 3, b 0 of 2; the threshold itself passes."""
    rates = pass_rates({"a": [0.9, 1.0, 0.89], "b": [0.1, 0.2]})

    assert [(1, 2), (2, 2), (3, 1)] == [(rate.k, rate.task_count) for rate in rates]
    assert pytest.approx([1 / 3, 0.5, 1.0]) == [rate.any_of_k for rate in rates]
    assert pytest.approx([1 / 3, 1 / 6, 0.0]) == [rate.all_of_k for rate in rates]


def test_the_judge_is_measured_as_scipy_does() -> None:
    """With ties, which judges of few steps always have."""
    pairs = [(0.1, 0.25), (0.5, 0.25), (0.5, 0.75), (0.9, 1.0), (0.3, 0.65)]
    expected = stats.spearmanr([pair[0] for pair in pairs], [pair[1] for pair in pairs]).statistic

    found = judge_agreement(pairs)

    assert found is not None
    assert pytest.approx(expected, **NEAR) == found.spearman
    assert pytest.approx((0.15 + 0.25 + 0.25 + 0.1 + 0.35) / 5, **NEAR) == found.mean_absolute_difference
    assert (4,) == found.for_review


def test_a_constant_judge_has_no_correlation() -> None:
    """Nothing can be said, and nothing is; without a judge there is no agreement at all."""
    found = judge_agreement([(0.1, 0.5), (0.9, 0.5)])

    assert found is not None
    assert found.spearman is None
    assert judge_agreement([]) is None
