"""Comparing drawings without a run: a pair leaves all that a rollout's evaluation does, a corpus checks orderings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.evaluator.export import Facts, export_metadata
from broker.evaluator.render import render_flats
from contract.errors import EvaluationError, StateError
from contract.records import dump_pretty
from evaluator_client.corpus import CorpusResult, Expectation, check_expectations, score_corpus
from evaluator_client.pair import compare_pair
from tests.sketches import gold, line, plate, score

DATA = Path(__file__).parent / "data"
RIGHT, WORSE = DATA / "plate.dxf", DATA / "plate__missing_30.dxf"


@dataclass
class Reader:
    """The local evaluator without a process; `broken` are names of drawings that it fails on."""

    broken: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def export(self, *, drawing: Path, start_drawing: Path | None, out: Path) -> None:
        self.calls.append(f"export {drawing.name}")
        if drawing.name in self.broken:
            raise EvaluationError("the evaluator crashed", code="evaluator_failed")
        out.write_bytes(dump_pretty(export_metadata(drawing.read_bytes(), None)))

    def render(self, *, drawing: Path, window: Any, size_px: Any, offset: Any, out: Path) -> None:
        self.calls.append(f"render {drawing.name}")
        flats = Facts.of(drawing.read_bytes()).flats
        out.write_bytes(render_flats(flats, window=window, size_px=size_px, offset=offset))


def compared(out: Path, candidate: Path, **changes: Any) -> Any:
    how = {"gold": RIGHT, "profile": "2d", "placement": "absolute"} | changes
    return compare_pair(Reader(), candidate=candidate, out=out, **how)


def test_a_pair_leaves_what_an_evaluation_does(tmp_path: Path) -> None:
    """Facts and renders of both sides, the score, and the pictures of what differs."""
    scored = compared(tmp_path, WORSE)

    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    pictures = {"render.png", "diff.png", "overlay.png", "gold/render.png"}
    assert {"metadata.json", "score.json", "gold/metadata.json"} | pictures == files
    assert scored.score_json == (tmp_path / "score.json").read_bytes()
    assert 0.6 < scored.score.deterministic < 0.9


def test_a_drawing_scores_one_against_itself(tmp_path: Path) -> None:
    """With its picture and without."""
    assert 1.0 == compared(tmp_path / "a", RIGHT).score.deterministic
    without = compared(tmp_path / "b", RIGHT, has_render=False).score

    assert (1.0, False) == (without.deterministic, without.components["raster"].applicable)
    assert {"no_render": True} == without.diagnostics


def test_a_candidate_at_fault_has_zeros_and_no_picture(tmp_path: Path) -> None:
    """As in a rollout."""
    bad = tmp_path / "bad.dxf"
    bad.write_bytes(b"not a drawing")

    scored = compared(tmp_path / "out", bad)

    assert scored.score.invalid is not None
    assert "wrong_format" == scored.score.invalid.code
    assert not (tmp_path / "out" / "render.png").exists()


@pytest.mark.parametrize(
    ("content", "profile", "code"),
    [(b"", "2d", "gold_invalid"), (b"not a drawing", "2d", "gold_invalid"), (RIGHT.read_bytes(), "3d", "cache_schema")],
)
def test_a_gold_that_cannot_be_one_is_refused(tmp_path: Path, content: bytes, profile: str, code: str) -> None:
    """Nothing is half-scored."""
    wrong = tmp_path / "gold.dxf"
    wrong.write_bytes(content)

    with pytest.raises(EvaluationError) as caught:
        compared(tmp_path / "out", RIGHT, gold=wrong, profile=profile)

    assert code == caught.value.code
    assert not (tmp_path / "out" / "score.json").exists()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def corpus(folder: Path, expect: list[dict[str, Any]], change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """A corpus of one gold and three cases, one of them broken."""
    folder.mkdir()
    drawings = {"right.dxf": RIGHT.read_bytes(), "worse.dxf": WORSE.read_bytes(), "bad.dxf": b"not a drawing"}
    for name, content in drawings.items():
        (folder / name).write_bytes(content)
    manifest: dict[str, Any] = {
        "corpus": "test",
        "corpus_version": 1,
        "golds": {
            "plate": {
                "file": "right.dxf",
                "sha256": _digest(folder / "right.dxf"),
                "profile": "2d",
                "placement": "absolute",
            }
        },
        "cases": [
            {"id": name, "gold": "plate", "candidate": f"{name}.dxf", "sha256": _digest(folder / f"{name}.dxf")}
            for name in ("right", "worse", "bad")
        ],
        "expect": [dict(demand) for demand in expect],
    }
    if change is not None:
        change(manifest)
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest))
    return path


HOLDS = [
    {"op": "gt", "left": "right", "right": "worse", "margin": 0.01, "why": "less is worse"},
    {"op": "invalid", "left": "bad", "codes": ["wrong_format"], "why": "it is no drawing"},
    {"op": "value", "left": "right", "value": 1.0, "tol": 1e-9, "why": "it is the gold"},
]


def scored(path: Path, scratch: Path, **how: Any) -> CorpusResult:
    return score_corpus(path, how.pop("reader", Reader()), scratch=scratch, **how)


def test_a_corpus_is_scored_into_one_object(tmp_path: Path) -> None:
    """By case id, with the code of an invalid one, and every component."""
    result = scored(corpus(tmp_path / "corpus", HOLDS), tmp_path / "scratch", has_render=False)
    document = result.document()

    assert ([], {}) == (result.violations, result.failures)
    assert ["right", "worse", "bad"] == list(document)
    assert {"valid", "invalid_code", "deterministic", "components", "partial"} == set(document["right"])
    assert (True, None, 1.0) == tuple(document["right"][name] for name in ("valid", "invalid_code", "deterministic"))
    assert (False, "wrong_format", 0.0) == tuple(
        document["bad"][name] for name in ("valid", "invalid_code", "deterministic")
    )
    assert None is document["right"]["components"]["raster"]


def test_a_broken_ordering_is_named_with_its_values(tmp_path: Path) -> None:
    """So that its reader need not look for them."""
    wrong = {"op": "gt", "left": "worse", "right": "right", "margin": 0.01, "why": "turned round"}

    (violation,) = scored(corpus(tmp_path / "corpus", [*HOLDS, wrong]), tmp_path / "s", has_render=False).violations

    assert "turned round" == violation.expectation.why
    assert violation.left is not None
    assert 1.0 == violation.right


def test_a_case_that_we_could_not_evaluate_is_no_zero(tmp_path: Path) -> None:
    """It is left out, named, and holds up no other."""
    path = corpus(tmp_path / "corpus", HOLDS)

    result = scored(path, tmp_path / "s", has_render=False, reader=Reader(broken={"worse.dxf"}))

    assert ["right", "bad"] == list(result.document())
    assert ["worse"] == list(result.failures)
    assert ["less is worse"] == [violation.expectation.why for violation in result.violations]


def _set(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_set("cases", 0, "sha256", value="0" * 64), "not the file"),
        (_set("cases", 0, "candidate", value="none.dxf"), "cannot read"),
        (_set("cases", 0, "gold", value="other"), "not listed"),
        (_set("cases", 1, "id", value="right"), "same id"),
        (_set("expect", 0, "left", value="other"), "not listed"),
        (_set("expect", 0, "right", value=None), "lacks its right side"),
        (_set("corpus_version", value=2), "corpus_version"),
        (_set("surprise", value=1), "surprise"),
    ],
)
def test_a_corpus_that_is_not_whole_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], what: str
) -> None:
    """Before anything is read by the evaluator."""
    reader = Reader()

    with pytest.raises(StateError, match=what):
        scored(corpus(tmp_path / "corpus", HOLDS, change), tmp_path / "s", reader=reader)
    assert [] == reader.calls


@pytest.mark.parametrize(
    ("op", "fields", "expected"),
    [
        ("eq", {"right": "b", "tol": 0.5}, True),
        ("eq", {"right": "b", "tol": 0.01}, False),
        ("gt", {"right": "b", "margin": 0.01}, True),
        ("gt", {"right": "b", "margin": 0.9}, False),
        ("ge", {"right": "b"}, True),
        ("value", {"value": 1.0}, True),
        ("value", {"value": 0.9, "tol": 0.01}, False),
        ("max", {"value": 1.0}, True),
        ("max", {"value": 0.9}, False),
        ("min", {"value": 1.0}, True),
        ("min", {"value": 1.1}, False),
        ("eq", {"right": "b", "metric": "geometry", "tol": 0.5}, True),
        ("min", {"metric": "solids", "value": 0.0}, False),
        ("invalid", {"codes": ["empty_drawing"]}, False),
        ("gt", {"right": "unscored"}, False),
    ],
)
def test_an_expectation_holds_or_not(op: Any, fields: dict[str, Any], expected: bool) -> None:
    """Each operation both ways; `a` is the gold itself, `b` lacks its outline."""
    scores = {"a": score(gold(plate()), plate()), "b": score(gold(plate()), plate()[1:])}
    expectation = Expectation.model_validate({"op": op, "left": "a", "why": "", **fields})

    assert expected == (not check_expectations([expectation], scores))


def test_an_invalid_case_is_worth_nothing_in_every_metric() -> None:
    """Also in one that it does not have."""
    scores = {"a": score(gold([line((0, 0), (1, 0))]), [])}
    demands = [
        {"op": "value", "left": "a", "value": 0.0, "metric": metric, "why": ""} for metric in ("geometry", "solids")
    ]
    demands.append({"op": "invalid", "left": "a", "codes": ["empty_drawing"], "why": ""})

    assert [] == check_expectations([Expectation.model_validate(demand) for demand in demands], scores)
