"""Scores a test corpus and checks the orderings that it demands (scoring contract, section 16)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from contract.broker_api import Sha256
from contract.errors import BenchError, StateError
from contract.gold import Placement, Profile
from contract.records import Record, read_record
from contract.score_records import Score
from evaluator_client.gold import GoldEntry
from evaluator_client.pair import DrawingReader, gold_of, score_file


class CorpusGold(Record):
    """One reference; `modelspace_entities` is for readers of the manifest."""

    file: str
    sha256: Sha256
    profile: Profile
    placement: Placement
    modelspace_entities: int | None = None


class CorpusCase(Record):
    """One candidate of one gold."""

    id: str
    gold: str
    candidate: str
    sha256: Sha256


class Expectation(Record):
    """What must hold. `left` and `right` are ids of cases; an invalid case has the value 0 for every metric.

    `eq`: no further apart than `tol`; `gt`: left larger by `margin`; `ge`: left no more than `tol` smaller; `value`: no
    further than `tol` from `value`; `max` and `min`: at most and at least `value`; `invalid`: one of `codes`.
    """

    op: Literal["eq", "gt", "ge", "value", "max", "min", "invalid"]
    left: str
    why: str
    right: str | None = None
    metric: str = "deterministic"
    tol: float = 0.0
    margin: float = 0.0
    value: float = 0.0
    codes: tuple[str, ...] = ()


class CorpusManifest(Record):
    """`manifest.json` of a corpus; files are named from its own folder."""

    corpus: str
    corpus_version: Literal[1]
    golds: dict[str, CorpusGold]
    cases: list[CorpusCase]
    expect: list[Expectation]


@dataclass(frozen=True, slots=True)
class Violation:
    """An expectation that does not hold, and the values that break it."""

    expectation: Expectation
    left: float | str | None
    right: float | None


@dataclass(frozen=True, slots=True)
class CorpusResult:
    """Scores by case id, cases that could not be evaluated with the reason, and expectations that do not hold."""

    scores: dict[str, Score]
    failures: dict[str, str]
    violations: list[Violation]
    expectation_count: int
    is_partial: bool

    def document(self) -> dict[str, Any]:
        """One object by case id. A failed case is left out: a fault of ours is no zero."""
        return {case_id: self._case(score) for case_id, score in self.scores.items()}

    def _case(self, score: Score) -> dict[str, Any]:
        row: dict[str, Any] = {
            "valid": score.valid,
            "invalid_code": score.invalid.code if score.invalid else None,
            "deterministic": score.deterministic,
            "components": {str(name): part.score for name, part in score.components.items()},
        }
        return row | {"partial": True} if self.is_partial else row


def score_corpus(
    manifest_path: Path,
    reader: DrawingReader,
    *,
    scratch: Path,
    has_render: bool = True,
    on_scored: Callable[[str, Score], None] = lambda _, __: None,
) -> CorpusResult:
    """Score every case, and check every expectation; `scratch` is where facts and pictures go.

    Raises `StateError` for a manifest that cannot be used or a file that is not the one it names, and what `gold_of`
    raises for a gold that cannot be built.
    """
    manifest = read_record(manifest_path, CorpusManifest)
    _demand_whole(manifest, manifest_path)
    root = manifest_path.parent
    golds: dict[str, GoldEntry] = {
        name: gold_of(
            reader,
            task_id=name,
            drawing=root / gold.file,
            profile=gold.profile,
            placement=gold.placement,
            folder=scratch / "gold" / name,
            has_render=has_render,
        )
        for name, gold in sorted(manifest.golds.items())
    }
    scores: dict[str, Score] = {}
    failures: dict[str, str] = {}
    for number, case in enumerate(manifest.cases):
        folder = scratch / f"{number:04d}"
        try:
            scored = score_file(
                reader, drawing=root / case.candidate, gold=golds[case.gold], folder=folder, has_render=has_render
            )
        except BenchError as error:
            failures[case.id] = str(error)
            continue
        scores[case.id] = scored.score
        on_scored(case.id, scored.score)
    violations = check_expectations(manifest.expect, scores)
    return CorpusResult(scores, failures, violations, len(manifest.expect), is_partial=not has_render)


def check_expectations(expected: list[Expectation], scores: Mapping[str, Score]) -> list[Violation]:
    """Those that do not hold, in their order. A case without a score fulfils nothing."""
    return [violation for expectation in expected if (violation := _violation(expectation, scores)) is not None]


def _violation(expectation: Expectation, scores: Mapping[str, Score]) -> Violation | None:
    ours = scores.get(expectation.left)
    if expectation.op == "invalid":
        code = ours.invalid.code if ours is not None and ours.invalid is not None else None
        return None if code in expectation.codes else Violation(expectation, code, None)
    left = _value(ours, expectation.metric)
    right = expectation.value
    if expectation.right is not None:
        other = _value(scores.get(expectation.right), expectation.metric)
        if other is None:
            return Violation(expectation, left, None)
        right = other
    if left is not None and _holds(expectation, left, right):
        return None
    return Violation(expectation, left, right)


def _value(score: Score | None, metric: str) -> float | None:
    """Null without a score, and for a component that does not apply."""
    if score is None:
        return None
    if not score.valid:
        return 0.0
    if metric == "deterministic":
        return score.deterministic
    components = {str(name): part.score for name, part in score.components.items()}
    return components.get(metric)


def _holds(expectation: Expectation, left: float, right: float) -> bool:
    match expectation.op:
        case "eq" | "value":
            return abs(left - right) <= expectation.tol
        case "gt":
            return left - right >= expectation.margin
        case "ge":
            return left >= right - expectation.tol
        case "max":
            return left <= right
        case _:
            return left >= right


def _demand_whole(manifest: CorpusManifest, path: Path) -> None:
    ids = [case.id for case in manifest.cases]
    known = set(ids)
    if len(known) != len(ids):
        raise _broken(path, "two cases have the same id")
    for case in manifest.cases:
        if case.gold not in manifest.golds:
            raise _broken(path, f"case {case.id!r} names the gold {case.gold!r}, which is not listed")
    for expectation in manifest.expect:
        for case_id in (expectation.left, expectation.right):
            if case_id is not None and case_id not in known:
                raise _broken(path, f"an expectation names the case {case_id!r}, which is not listed")
        if expectation.op in ("eq", "gt", "ge") and expectation.right is None:
            raise _broken(path, f"an expectation of {expectation.left!r} lacks its right side")
    files = {gold.file: gold.sha256 for gold in manifest.golds.values()}
    files |= {case.candidate: case.sha256 for case in manifest.cases}
    for name, digest in sorted(files.items()):
        file = path.parent / name
        try:
            content = file.read_bytes()
        except OSError as error:
            raise _broken(path, f"cannot read {file}: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise _broken(path, f"{file} is not the file that the manifest names")


def _broken(path: Path, message: str) -> StateError:
    return StateError(f"{path}: {message}", hint="Restore the corpus; its drawings and its manifest belong together.")
