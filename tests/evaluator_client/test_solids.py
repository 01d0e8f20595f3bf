"""What three-dimensional tasks are scored by: bodies, the box around everything, and windows on sheets."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import EvaluationError
from contract.records import dump_pretty
from contract.score_records import Component, Score
from evaluator_client.gold_writer import write_entry
from tests.sketches import Sketch, box, gold, hidden, line, metadata, metadata_3d, score, sheet, text, view

QUICK = settings(max_examples=10, deadline=None, derandomize=True)


def bracket() -> list[Sketch]:
    """A base, a wall and a boss, with a centre line and a note."""
    return [
        box((0, 0, 0), (100, 60, 10)),
        box((0, 0, 10), (10, 60, 70)),
        box((60, 20, 10), (80, 40, 30)),
        line((-10, 30), (110, 30), "CENTER"),
        text("BRACKET", (20, -20)),
    ]


SHEETS = [sheet([view()])]
EXTENTS = {"min": (-10.0, 0.0, 0.0), "max": (110.0, 60.0, 70.0), "size": (120.0, 60.0, 70.0)}
GOLD = gold(bracket(), profile="3d", layouts=SHEETS)


def solids(entities: list[Sketch]) -> float:
    return _of(score(GOLD, entities, layouts=SHEETS), "solids")


def _of(found: Score, name: Any) -> float:
    component: Component = found.components[name]
    assert component.score is not None
    return component.score


def test_i1_a_3d_gold_scores_exactly_one_against_itself() -> None:
    """Every component of the profile that the gold has."""
    found = score(GOLD, bracket(), layouts=SHEETS)

    assert 1.0 == found.deterministic
    assert {"solids", "layouts"} <= {name for name, part in found.components.items() if part.applicable}
    assert {1.0, None} == {part.score for part in found.components.values()}


@QUICK
@given(st.integers(0, 1_000))
def test_i15_the_order_of_bodies_does_not_matter(seed: int) -> None:
    """Bodies are matched, not counted off."""
    drawing = [*bracket()[1:], box((0, 0, 0), (90, 60, 10))]
    shuffled = list(drawing)
    random.Random(seed).shuffle(shuffled)

    assert solids(drawing) == pytest.approx(solids(shuffled), abs=1.5e-6)


def test_i15_two_tiny_bodies_that_span_the_same_box_are_worth_nothing() -> None:
    """The outer box alone earns nothing."""
    assert 0.1 >= solids([box((0, 0, 0), (1, 1, 1)), box((99, 59, 69), (100, 60, 70)), *bracket()[3:]])


def test_i15_a_far_note_leaves_the_bodies_alone() -> None:
    """It is an annotation fault only."""
    found = score(GOLD, [*bracket(), text("NOTE", (9_000, 9_000))], layouts=SHEETS)

    assert 1.0 == _of(found, "solids")
    assert 1.0 > _of(found, "annotation")


def test_lines_where_the_bodies_should_be_are_no_bodies() -> None:
    """The core gate keeps a wireframe at a quarter."""
    found = score(GOLD, [*bracket()[3:], line((0, 0), (100, 0))], layouts=SHEETS)

    assert 0.0 == _of(found, "solids")
    assert 0.25 >= found.deterministic


def test_a_hidden_body_is_no_body() -> None:
    """It is worth as much as a missing one, and is clutter besides."""
    missing, out_of_sight = bracket()[1:], [hidden(bracket()[0]), *bracket()[1:]]

    assert solids(missing) == solids(out_of_sight)
    assert score(GOLD, out_of_sight).deterministic < score(GOLD, missing).deterministic


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        # Half the box: IoU 1/2, volume ratio 1/2; the other two bodies are right.
        (box((0, 0, 0), (50, 60, 10)), (2 + 0.6 * 0.25 + 0.4 * 0.25) / 3),
        # The right box, half the volume.
        (box((0, 0, 0), (100, 60, 10), volume=30_000.0), (2 + 0.6 + 0.4 * 0.25) / 3),
        # The right box, and no volume to compare.
        (box((0, 0, 0), (100, 60, 10), volume=None), 1.0),
        # Next to where it should be.
        (box((0, 200, 0), (100, 260, 10)), 2 / 3),
    ],
)
def test_a_wrong_body_costs_by_box_and_volume(wrong: Sketch, expected: float) -> None:
    """By hand from the formula; boxes are grown by a little, so digits beyond the second differ."""
    found = score(GOLD, [wrong, *bracket()[1:]], layouts=SHEETS).components["solids"]

    assert expected == pytest.approx(found.detail["bodies"], abs=0.01)


def test_a_body_on_another_layer_costs_structure() -> None:
    """Bodies are organised too."""
    right = score(GOLD, bracket(), layouts=SHEETS)
    wrong = score(GOLD, [bracket()[0] | {"layer": "WRONG"}, *bracket()[1:]], layouts=SHEETS)

    assert _of(wrong, "structure") < _of(right, "structure")
    assert 1.0 == _of(wrong, "solids")


def test_bodies_without_a_partner_are_named() -> None:
    """By the entity that each is named after."""
    found = score(GOLD, [*bracket()[1:], box((500, 0, 0), (600, 60, 10))], layouts=SHEETS)

    assert ["20"] == found.unmatched.gold
    assert ["24"] == found.unmatched.candidate


def test_where_placement_is_free_bodies_move_too() -> None:
    """The offset is found by the lines and applies to everything."""
    free = gold(bracket(), profile="3d", placement="translation")
    away = [
        box((40, 30, 0), (140, 90, 10)),
        box((40, 30, 10), (50, 90, 70)),
        box((100, 50, 10), (120, 70, 30)),
        line((30, 60), (150, 60), "CENTER"),
        text("BRACKET", (60, 10)),
    ]

    assert 1.0 == score(free, away).deterministic


@pytest.mark.parametrize("profile", ["3d", "3d-extents"])
def test_a_body_that_could_not_be_measured_is_our_fault(profile: Any) -> None:
    """Neither a zero nor a score without it."""
    reference = gold(bracket(), profile=profile)

    with pytest.raises(EvaluationError) as caught:
        score(reference, bracket(), unsupported=["20"])

    assert "evaluator_unsupported" == caught.value.code


def test_in_a_flat_task_an_unmeasured_body_does_not_matter() -> None:
    """Nobody can void a rollout by adding a sphere to a plan."""
    plan = [line((0, 0), (100, 0)), line((0, 0), (0, 60))]
    sphere = box((0, 0, 0), (1, 1, 1), volume=None)
    sphere = sphere | {"extents": None, "geom": sphere["geom"] | {"method": "unsupported"}}

    assert 1.0 == score(gold(plan), [*plan, sphere]).deterministic


def test_the_outer_box_is_scored_where_that_is_all_there_is() -> None:
    """Profile 3d-extents: the square of the share that both boxes have in common."""
    reference = gold(bracket(), profile="3d-extents", extents_3d=EXTENTS)
    halved = EXTENTS | {"max": (50.0, 60.0, 70.0)}

    assert 1.0 == _of(score(reference, bracket(), extents_3d=EXTENTS), "extents")
    assert 0.25 == pytest.approx(_of(score(reference, bracket(), extents_3d=halved), "extents"), abs=0.01)
    assert 0.0 == _of(score(reference, bracket(), extents_3d=None), "extents")


@pytest.mark.parametrize(
    ("sheets", "expected"),
    [
        ([sheet([view(183.0, 163.0, 1.015)])], 1.0),
        ([sheet([view(scale=1.05)])], 0.0),
        ([sheet([view(190.0)])], 0.0),
        ([sheet([view(scale=None)])], 0.0),
        ([sheet([view(), view()])], 2 / 3),
        ([sheet([view(is_on=False)])], 0.0),
        ([sheet([], 1), sheet([view()], 2)], 0.0),
        ([sheet([view()], 2), sheet([], 3)], 1.0),
        ([], 0.0),
    ],
)
def test_windows_agree_by_scale_and_size_on_the_same_sheet(sheets: list[Sketch], expected: float) -> None:
    """Two percent of the scale, two percent of the paper's diagonal; sheets in the order of their tabs."""
    assert expected == pytest.approx(_of(score(GOLD, bracket(), layouts=sheets), "layouts"), abs=1e-6)


def test_a_gold_without_windows_does_not_ask_for_any() -> None:
    """Whether a component applies is up to the gold alone."""
    found = score(gold(bracket(), profile="3d"), bracket(), layouts=SHEETS)

    assert not found.components["layouts"].applicable
    assert 1.0 == found.deterministic


def _write(folder: Path, facts: Any, profile: Any) -> None:
    write_entry(
        folder,
        task_id="solid",
        profile=profile,
        placement="absolute",
        metadata_json=dump_pretty(facts),
        render_png=b"",
        reference_png=b"",
        window=(-50.0, -50.0, 250.0, 175.0),
        size_px=(400, 300),
    )


@pytest.mark.parametrize(
    ("facts", "profile", "what"),
    [
        (metadata(bracket()), "3d", "needs schema 4"),
        (metadata_3d(bracket()[3:]), "3d", "needs a body"),
        (metadata_3d(bracket(), unsupported=["20"]), "3d", "cannot measure"),
        (metadata_3d(bracket(), unsupported=["20"]), "3d-extents", "cannot measure"),
    ],
)
def test_a_gold_that_its_profile_cannot_use_is_refused(tmp_path: Path, facts: Any, profile: Any, what: str) -> None:
    """Before anything is written, and so before anything is launched."""
    with pytest.raises(EvaluationError, match=what) as caught:
        _write(tmp_path, facts, profile)

    assert "cache_schema" == caught.value.code
    assert [] == list(tmp_path.iterdir())
