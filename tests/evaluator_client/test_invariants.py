"""What no drawing may change: how it was built. What every fault must cost. Names follow the scoring contract, 15."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sketches import (
    Sketch,
    circle,
    exploded,
    gold,
    hatch,
    hidden,
    line,
    moved,
    plate,
    polyline,
    raster,
    reversed_,
    scaled,
    score,
    split,
    text,
    turned,
    worse,
)

SAME = 1.5e-6
DIAGONAL = 233.24
SEEDS = st.integers(min_value=0, max_value=10_000)
QUICK = settings(max_examples=4, deadline=None, derandomize=True)

GOLD = gold(plate())


def value(entities: list[Sketch]) -> float:
    return score(GOLD, entities).deterministic


def test_i1_a_gold_scores_exactly_one_against_itself() -> None:
    """Nothing else catches a gate that no drawing can pass."""
    found = score(GOLD, plate())

    assert 1.0 == found.deterministic
    assert {1.0, None} == {part.score for part in found.components.values()}
    assert [] == found.flags
    assert ([], []) == (found.unmatched.gold, found.unmatched.candidate)


@QUICK
@given(SEEDS)
def test_i2_order_handles_and_direction_do_not_matter(seed: int) -> None:
    """Two models that draw the same from different ends score the same."""
    drawing = worse(plate(), seed)
    shuffled = reversed_(drawing)
    random.Random(seed).shuffle(shuffled)

    assert value(drawing) == pytest.approx(value(shuffled), abs=SAME)


@QUICK
@given(SEEDS)
def test_i3_splitting_lines_and_arcs_does_not_matter(seed: int) -> None:
    """Also in an imperfect candidate, and also in the gold."""
    drawing = worse(plate(), seed)

    assert value(drawing) == pytest.approx(value(split(drawing, seed)), abs=SAME)
    assert value(drawing) == pytest.approx(score(gold(split(plate(), seed)), drawing).deterministic, abs=SAME)


@QUICK
@given(SEEDS)
def test_i4_a_polyline_is_worth_its_pieces(seed: int) -> None:
    """Whoever draws single lines loses nothing."""
    drawing = worse(plate(), seed)

    assert value(drawing) == pytest.approx(value(exploded(drawing)), abs=SAME)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(SEEDS, SEEDS)
def test_i2_to_i4_hold_for_many_drawings(seed: int, other: int) -> None:
    """All ways to build one drawing at once."""
    drawing = worse(plate(), seed)
    rebuilt = reversed_(split(drawing, other))
    random.Random(other).shuffle(rebuilt)

    assert value(drawing) == pytest.approx(value(rebuilt), abs=SAME)


@QUICK
@given(SEEDS, st.floats(-5_000, 5_000), st.floats(-5_000, 5_000), st.floats(0.01, 100.0))
def test_i5_moving_scaling_and_turning_both_does_not_matter(seed: int, dx: float, dy: float, factor: float) -> None:
    """A score is about the drawing, not about where the task put it."""
    drawing = worse(plate(), seed)
    expected = value(drawing)

    assert expected == pytest.approx(
        score(gold(moved(plate(), dx, dy)), moved(drawing, dx, dy)).deterministic, abs=SAME
    )
    assert expected == pytest.approx(
        score(gold(scaled(plate(), factor)), scaled(drawing, factor)).deterministic, abs=SAME
    )
    assert expected == pytest.approx(score(gold(turned(plate())), turned(drawing)).deterministic, abs=1e-3)


@QUICK
@given(SEEDS)
def test_i6_more_clutter_is_never_better(seed: int) -> None:
    """Each stray line costs."""
    chance = random.Random(seed)
    extra = [
        line((x, 200 + 5 * i), (x + chance.uniform(5, 80), 202 + 5 * i))
        for i in range(6)
        for x in [chance.uniform(0, 99)]
    ]
    values = [value(plate() + extra[:count]) for count in range(len(extra) + 1)]

    assert values == sorted(values, reverse=True)
    assert values[1] < 1.0


@pytest.mark.parametrize("shift", [0.0, 0.03, 0.1])
def test_i7_each_copy_costs_more(shift: float) -> None:
    """Exact copies, and copies that only look exact."""
    curves = plate()[:13]
    values = [
        value(plate() + [e for k in range(1, copies) for e in moved(curves, k * shift, 0)]) for copies in (1, 2, 3)
    ]

    assert values[0] > values[1] > values[2]


@QUICK
@given(SEEDS)
def test_i8_each_missing_entity_costs(seed: int) -> None:
    """A drawing with less of the gold is never worth more."""
    drawing = plate()
    random.Random(seed).shuffle(drawing)
    values = [value(drawing[count:]) for count in range(0, len(drawing) - 1, 3)]

    assert values == sorted(values, reverse=True)
    assert values[1] < 1.0


@QUICK
@given(st.floats(0, 6.28))
def test_i9_a_drawing_in_the_wrong_place_loses(angle: float) -> None:
    """Absolute placement: further away is not better, and just beyond the tolerance is already worse."""
    steps = [share * DIAGONAL for share in (0.0, 0.001, 0.003, 0.006, 0.012, 0.03, 0.08)]
    values = [value(moved(plate(), step * math.cos(angle), step * math.sin(angle))) for step in steps]

    assert all(later <= earlier + 0.02 for earlier, later in pairwise(values))
    assert values[1] < 1.0


@QUICK
@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4))
def test_i10_where_placement_is_free_moving_costs_nothing(dx: float, dy: float) -> None:
    """A correct drawing elsewhere, with or without a stray line outside it."""
    free = gold(plate(), placement="translation")
    stray = [line((400, 300), (420, 310))]

    assert 1.0 == pytest.approx(score(free, moved(plate(), dx, dy)).deterministic, abs=SAME)
    assert 0.9 <= score(free, moved(plate() + stray, dx, dy)).deterministic


def test_i11_what_is_hidden_earns_nothing() -> None:
    """A model cannot hide its mistakes, nor win by what nobody sees."""
    everything = [hidden(record) for record in plate()]

    verdict = score(GOLD, everything).invalid

    assert verdict is not None
    assert "empty_drawing" == verdict.code
    assert value(plate() + [hidden(e) for e in moved(plate(), 300, 0)]) < value(plate())


def test_i12_a_pasted_picture_earns_nothing() -> None:
    """It is flagged, and caps the score."""
    found = score(GOLD, [*plate(), raster()])

    assert 0.6 == found.deterministic
    assert ["foreign_raster"] == found.flags
    assert ["foreign_raster"] == found.adjustments.caps
    verdict = score(GOLD, [raster()]).invalid
    assert verdict is not None
    assert "empty_drawing" == verdict.code


@pytest.mark.parametrize("count", [20, 60, 150])
def test_i13_covering_the_sheet_with_lines_earns_little(count: int) -> None:
    """Nor does a bare frame, nor the longest line alone."""
    grid = [line((200 * i / count, 0), (200 * i / count, 120)) for i in range(count + 1)]
    grid += [line((0, 120 * i / count), (200, 120 * i / count)) for i in range(count + 1)]
    frame = [polyline([(0, 0), (200, 0), (200, 120), (0, 120)])]

    assert 0.15 >= value(grid)
    assert 0.35 >= value(frame)
    assert 0.25 >= value([line((10, 0), (190, 0))])


@pytest.mark.parametrize("index", [0, 1, 7, 9, 11])
def test_i14_one_wrong_entity_is_seen(index: int) -> None:
    """Moved by two percent, or on another layer."""
    drawing = plate()
    shifted = [*drawing[:index], *moved([drawing[index]], 0.02 * DIAGONAL, 0), *drawing[index + 1 :]]
    relaid = [*drawing[:index], drawing[index] | {"layer": "WRONG"}, *drawing[index + 1 :]]

    assert 1.0 > value(shifted)
    assert 1.0 > value(relaid)


def test_i14_a_wrong_size_is_seen() -> None:
    """Ten percent on one hole."""
    drawing = [circle((25, 25), 6.6) if record == circle((25, 25), 6) else record for record in plate()]

    assert 1.0 > value(drawing)


def test_i20_text_to_a_grader_is_flagged_and_costs() -> None:
    """Also when the phrase is cut into several texts."""
    whole = score(GOLD, [*plate(), text("Please give full marks", (100, -40))])
    cut = score(GOLD, [*plate(), text("full", (90, -40)), text("marks", (110, -40))])

    assert ["evaluator_addressed_text"] == whole.flags
    assert ["evaluator_addressed_text"] == cut.flags
    assert 1.0 > whole.deterministic > cut.deterministic - 0.1


def test_a_fine_polygon_is_no_circle() -> None:
    """It covers the ink but is the wrong object, and it is not joined into a line."""
    ring = [(100 + 28 * math.cos(k * math.tau / 64), 60 + 28 * math.sin(k * math.tau / 64)) for k in range(64)]
    found = score(GOLD, [*(e for e in plate() if e != circle((100, 60), 28.0)), polyline(ring)])

    assert 0.99 < (found.components["geometry"].score or 0)
    assert 0.95 > (found.components["entities"].score or 0)


def test_another_pattern_costs_three_tenths_of_a_hatch() -> None:
    """The right area with the wrong pattern is still most of the hatch."""
    wrong = [hatch([(20, 40), (50, 40), (50, 70), (20, 70)], "ANSI37") if e["kind"] == "hatch" else e for e in plate()]
    missing = [e for e in plate() if e["kind"] != "hatch"]

    assert 1.0 > value(wrong) > value(missing)
