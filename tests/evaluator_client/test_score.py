"""Orderings that hold between real drawings, the difference picture, and what the gold cache refuses."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from broker.evaluator.export import Facts
from broker.evaluator.render import render_flats
from broker.evaluator.version import EVALUATOR_VERSION
from contract.entities import EllipseEntity, EllipseGeom, SplineGeom
from contract.errors import EvaluationError
from contract.gold import Entry, SelfCheck
from contract.metadata import Metadata
from contract.records import dump_pretty
from evaluator_client.gold import GoldEntry, load_entry, verify_cache
from evaluator_client.gold_writer import write_entry
from evaluator_client.score import ScoredDrawing, score_drawing
from evaluator_client.splines import flatten_spline
from evaluator_client.strokes import split_curves, strokes_of
from evaluator_client.tolerances import tolerances_for
from tests.sketches import gold, line, metadata, plate

DATA = Path(__file__).parent / "data"
WINDOW = (-40.0, -40.0, 240.0, 170.0)
SIZE_PX = (400, 300)


@cache
def drawn(name: str) -> tuple[Metadata, bytes]:
    """Facts and render of one drawing, in the gold's window."""
    facts = Facts.of((DATA / f"{name}.dxf").read_bytes())
    return facts.metadata(None), render_flats(facts.flats, window=WINDOW, size_px=SIZE_PX, offset=(0.0, 0.0))


@cache
def plate_gold() -> GoldEntry:
    facts, render = drawn("plate")
    entry = Entry(
        task_id="plate",
        profile="2d",
        placement="absolute",
        window=WINDOW,
        size_px=SIZE_PX,
        tolerances=None,
        self_check=SelfCheck(deterministic=1.0, blank="invalid"),
    )
    return GoldEntry(entry, facts, render, "0" * 64)


@cache
def scored(name: str) -> ScoredDrawing:
    facts, render = drawn(name)
    return score_drawing(candidate=facts, render=render, gold=plate_gold())


def value(name: str) -> float:
    return scored(name).score.deterministic


def test_the_gold_scores_exactly_one_render_included() -> None:
    """I1 with every component that a drawing has."""
    assert 1.0 == value("plate")
    assert {1.0} == {part.score for part in scored("plate").score.components.values()}


@pytest.mark.parametrize("variant", ["split", "exploded", "circles2arcs"])
def test_the_same_picture_built_differently_is_worth_the_same(variant: str) -> None:
    """Facts give the same score; pixels may differ by rounding."""
    components = scored(f"plate__{variant}").score.components

    assert [1.0, 1.0, 1.0, 1.0] == [
        components[name].score for name in ("geometry", "entities", "annotation", "structure")
    ]
    assert 1.0 == pytest.approx(value(f"plate__{variant}"), abs=0.005)


@pytest.mark.parametrize(
    ("variant", "least", "most"),
    [
        ("circle_poly64", 0.80, 0.99),
        ("missing_30", 0.60, 0.90),
        ("layers_zero", 0.85, 0.99),
        ("dup_all", 0.60, 0.95),
        ("scaled_102pc", 0.20, 0.80),
        ("raster_plus", 0.60, 0.60),
        ("text_typo", 0.90, 0.995),
        ("dim_none", 0.80, 0.97),
    ],
)
def test_every_fault_costs_in_proportion(variant: str, least: float, most: float) -> None:
    """A wrong layer is a moderate fault, a wrong scale a grave one."""
    assert least <= value(f"plate__{variant}") <= most


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes_in_any_process() -> None:
    """I16: whatever the hash seed and the number of threads."""
    program = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1]);"
        "from tests.sketches import gold, metadata, plate, worse;"
        "from evaluator_client.score import score_drawing;"
        "scored = score_drawing(candidate=metadata(worse(plate(), 7)), render=None, gold=gold(plate()));"
        "print(hashlib.sha256(scored.score_json).hexdigest())"
    )
    root = str(Path(__file__).resolve().parents[2])
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, root],
            env={"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, threads in (("1", "1"), ("2", "4"))
    }

    assert 1 == len(digests)


def test_the_difference_picture_shows_missing_in_red_and_extra_in_blue() -> None:
    """Only these colours, and no metadata."""
    facts, _ = drawn("plate")
    ours, theirs = _picture([10]), _picture([30])
    reference = GoldEntry(plate_gold().entry, facts, ours, "0" * 64)

    pictures = score_drawing(candidate=facts, render=theirs, gold=reference).pictures

    assert pictures is not None
    with Image.open(io.BytesIO(pictures.diff_png)) as image:
        assert ("RGB", SIZE_PX, {}) == (image.mode, image.size, image.info)
        pixels = np.asarray(image)
    assert (0xD6, 0x27, 0x28) == tuple(pixels[10, 200])
    assert (0x1F, 0x77, 0xB4) == tuple(pixels[30, 200])
    assert (255, 255, 255) == tuple(pixels[20, 200])


def test_the_overlay_shows_both_drawings_side_by_side() -> None:
    """For people: left what is missing, right what is extra, and the shares in words."""
    facts, _ = drawn("plate")
    reference = GoldEntry(plate_gold().entry, facts, _picture([10, 20]), "0" * 64)

    first, second = (
        score_drawing(candidate=facts, render=_picture([20, 30]), gold=reference).pictures for _ in range(2)
    )

    assert first is not None
    assert first == second
    with Image.open(io.BytesIO(first.overlay_png)) as image:
        assert (2 * SIZE_PX[0] + 2, SIZE_PX[1] + 24) == image.size
        pixels = np.asarray(image.convert("RGB"))
    left, right = pixels[24:, 200], pixels[24:, SIZE_PX[0] + 202]
    grey, white = (0x44, 0x44, 0x44), (255, 255, 255)
    assert [(0xD6, 0x27, 0x28), grey, white] == [tuple(left[row]) for row in (10, 20, 30)]
    assert [white, grey, (0x1F, 0x77, 0xB4)] == [tuple(right[row]) for row in (10, 20, 30)]


def _picture(rows: list[int]) -> bytes:
    grey = np.full(SIZE_PX[::-1], 255, dtype=np.uint8)
    grey[rows] = 0
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_render_of_another_size_is_our_fault() -> None:
    """It is never scored."""
    facts, _ = drawn("plate")
    buffer = io.BytesIO()
    Image.new("L", (10, 10), 255).save(buffer, "PNG")

    with pytest.raises(EvaluationError) as caught:
        score_drawing(candidate=facts, render=buffer.getvalue(), gold=plate_gold())

    assert "render_size_mismatch" == caught.value.code


def test_facts_of_another_evaluator_are_refused() -> None:
    """There is no compatible enough."""
    facts, render = drawn("plate")
    other = facts.model_copy(update={"evaluator": facts.evaluator.model_copy(update={"version": "0.9.9"})})

    with pytest.raises(EvaluationError) as caught:
        score_drawing(candidate=other, render=render, gold=plate_gold())

    assert "evaluator_version_mismatch" == caught.value.code


def test_facts_that_another_font_or_library_made_are_scored_and_marked() -> None:
    """What they may differ in is small, and whoever reads the score must know."""
    facts, render = drawn("plate")
    other = facts.model_copy(update={"evaluator": facts.evaluator.model_copy(update={"config_sha256": "0" * 64})})
    same, marked = (score_drawing(candidate=made, render=render, gold=plate_gold()).score for made in (facts, other))

    assert ({}, {"other_build": True}) == (same.diagnostics, marked.diagnostics)
    assert 1.0 == marked.deterministic


def test_a_drawing_without_anything_is_a_complete_zero() -> None:
    """Every component is there, and none has earned anything."""
    found = score_drawing(candidate=metadata([]), render=None, gold=gold(plate()))

    score = found.score
    assert (False, 0.0, 0.0, "invalid") == (score.valid, score.deterministic, score.final, score.final_basis)
    assert {0.0} == {part.score for part in score.components.values()}
    assert b'"reason": "invalid_artifact"' in found.score_json
    assert None is found.pictures


def _write(folder: Path, facts: Metadata, render: bytes, task_id: str = "plate") -> GoldEntry:
    return write_entry(
        folder,
        task_id=task_id,
        profile="2d",
        placement="absolute",
        metadata_json=dump_pretty(facts),
        render_png=render,
        reference_png=render,
        window=WINDOW,
        size_px=SIZE_PX,
    )


def test_what_is_written_is_what_is_loaded(tmp_path: Path) -> None:
    """A cache of two tasks, verified."""
    written = _write(tmp_path, *drawn("plate"))
    _write(tmp_path, *drawn("plate__missing_30"), task_id="other")

    assert written == load_entry(tmp_path, "plate", evaluator_name="ezdxf", evaluator_version=EVALUATOR_VERSION)
    assert [] == verify_cache(tmp_path)


def test_a_gold_whose_render_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    """No drawing could ever be scored against it, so nothing is written."""
    facts, _ = drawn("plate")
    blank = io.BytesIO()
    Image.new("L", (10, 10), 255).save(blank, "PNG")

    with pytest.raises(EvaluationError):
        _write(tmp_path, facts, blank.getvalue())

    assert [] == list(tmp_path.iterdir())


def test_a_standing_entry_is_never_replaced(tmp_path: Path) -> None:
    """Old scores must stay repeatable."""
    _write(tmp_path, *drawn("plate"))

    with pytest.raises(EvaluationError) as caught:
        _write(tmp_path, *drawn("plate__missing_30"))

    assert "gold_exists" == caught.value.code


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("metadata.json", b"{}", "cache_checksum"),
        ("reference.png", b"", "cache_checksum"),
        ("render.png", None, "cache_missing"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, name: str, content: bytes | None, code: str) -> None:
    """With the file, and with what to do."""
    _write(tmp_path, *drawn("plate"))
    path = tmp_path / f"ezdxf-{EVALUATOR_VERSION}" / "plate" / name
    path.unlink() if content is None else path.write_bytes(content)

    (issue,) = verify_cache(tmp_path)

    assert (code, "plate") == (issue.code, issue.task_id)
    assert name in issue.message
    assert issue.hint


def test_a_cache_of_another_evaluator_or_without_the_task_is_refused(tmp_path: Path) -> None:
    """Found before anything is launched."""
    _write(tmp_path, *drawn("plate"))

    codes = []
    for task_id, version in (("plate", "0.9.9"), ("nothing", EVALUATOR_VERSION)):
        with pytest.raises(EvaluationError) as caught:
            load_entry(tmp_path, task_id, evaluator_name="ezdxf", evaluator_version=version)
        codes.append(caught.value.code)

    assert ["evaluator_version_mismatch", "cache_missing"] == codes


def test_one_stray_line_is_scored_and_worth_nothing() -> None:
    """It is a drawing, so it is not invalid."""
    found = score_drawing(candidate=metadata([line((500, 500), (501, 500))]), render=None, gold=gold(plate()))

    assert (True, 0.0) == (found.score.valid, found.score.deterministic)


def test_the_gold_of_an_older_evaluator_stays_readable() -> None:
    """Schema 3, for archived rollouts that its evaluator made the facts of; each gold still scores 1."""
    folder = Path(__file__).resolve().parents[2] / "configs" / "gold-1.0.0"
    gold = load_entry(folder, "plate", evaluator_name="ezdxf", evaluator_version="1.0.0")

    assert [] == verify_cache(folder)
    assert 3 == gold.metadata.schema_version
    assert 1.0 == score_drawing(candidate=gold.metadata, render=gold.render, gold=gold).score.deterministic


def test_very_many_smooth_curves_share_a_bounded_number_of_points() -> None:
    """A candidate must not use up the memory of everything else that is played beside it."""
    geom = EllipseGeom(center=(0, 0, 0), major_axis=(1e5, 0, 0), ratio=0.5, start_rad=0.0, end_rad=math.tau)
    facts, _ = drawn("plate")
    look = facts.entities[0].model_dump() | {"kind": "ellipse", "dxf_type": "ELLIPSE", "geom": geom.model_dump()}
    ellipse = EllipseEntity.model_validate(look)

    strokes = [strokes_of(split_curves([ellipse] * count), tolerances_for(100.0, None)) for count in (1, 10_000)]

    assert [4_001, 1_010_000] == [sum(map(len, each.polylines)) for each in strokes]


def test_a_spline_has_no_more_points_than_it_may() -> None:
    """However many control points it has."""
    control = [(float(k), float(k * k % 7), 0.0) for k in range(60)]
    knots = [0.0] * 4 + [float(k) for k in range(1, 57)] + [57.0] * 4
    geom = SplineGeom(degree=3, control_points=control, knots=knots, weights=[], fit_points=[], is_closed=False)
    counts = [len(flatten_spline(geom, sagitta=1e-9, points_max=most)) for most in (10**6, 300, 50)]

    assert counts[0] > 2_000
    assert 57 < counts[1] <= 300
    assert len(control) == counts[2], "the control polygon"
