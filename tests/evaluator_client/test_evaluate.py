"""The evaluation stage: our faults end as failed, the drawing's as invalid, and neither ever as the other."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from broker.evaluator.version import EVALUATOR_VERSION
from contract.broker_api import (
    ARTIFACT_BYTES_MAX,
    FACTS_BYTES_MAX,
    ArtifactReply,
    ErrorCode,
    ExportRequest,
    RenderRequest,
    SaveRequest,
    UploadGrant,
)
from contract.errors import BrokerError, DiskError, EvaluationError, StateError
from contract.evaluation_records import EvaluationStatus, EvaluatorName, Stage
from contract.phases import Cause
from contract.records import read_record
from contract.run_dir import RunDir
from evaluator_client.evaluate import EvaluationResult, evaluate_rollout
from evaluator_client.judge import Question
from evaluator_client.ports import EvaluationHost
from evaluator_client.rescore import rescore
from tests.judge_fakes import ScriptedModel, grades, judge_of, judge_with

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
GOLD = ROOT / "configs" / "gold"
TASK = "plate"
ENTRY = GOLD / f"ezdxf-{EVALUATOR_VERSION}" / TASK
EZDXF = EvaluatorName(name="ezdxf", version=EVALUATOR_VERSION)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Inline:
    """A bridge without threads."""

    async def call(self, work: Callable[[], T]) -> T:
        return work()


@dataclass
class Desk:
    """A host and its uploads in one: what is sent arrives at once, unless a fault is in the way.

    `faults` maps an artifact's name to what goes wrong at its first calls, in order.
    """

    drawing: bytes | None = b"0\nEOF\n"
    metadata: bytes = field(default_factory=lambda: (ENTRY / "metadata.json").read_bytes())
    render_png: bytes = field(default_factory=lambda: (ENTRY / "render.png").read_bytes())
    faults: dict[str, list[ErrorCode | str]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)
    _places: dict[str, Path] = field(default_factory=dict)

    def grant(self, name: str, *, bytes_max: int, dest: Path) -> UploadGrant:
        url = f"http://desk/{len(self._places)}"
        self._places[url] = dest
        return UploadGrant(url=url, headers={}, bytes_max=bytes_max)

    async def collect(self, grant: UploadGrant, *, sha256: str, size_bytes: int) -> Path:
        dest = self._places[grant.url]
        if not dest.exists() or hashlib.sha256(dest.read_bytes()).hexdigest() != sha256:
            raise EvaluationError("the upload is not as announced", code="evaluator_transport", is_retryable=True)
        return dest

    def save(self, request: SaveRequest) -> ArtifactReply:
        return self._send("attempt", self.drawing, request)

    def export(self, request: ExportRequest) -> ArtifactReply:
        return self._send("metadata", self.metadata, request)

    def render(self, request: RenderRequest) -> ArtifactReply:
        return self._send("render", self.render_png, request)

    def _send(
        self, name: str, content: bytes | None, request: SaveRequest | ExportRequest | RenderRequest
    ) -> ArtifactReply:
        self.calls.append(name)
        assert request.request_id not in self.requests, "a new upload needs a new request"
        self.requests.add(request.request_id)
        pending = self.faults.get(name)
        fault = pending.pop(0) if pending else None
        if isinstance(fault, ErrorCode):
            raise BrokerError(f"{name}: {fault}", code=fault, cause=Cause.BROKER_UNREACHABLE)
        if content is None:
            return ArtifactReply(name=name, is_present=False, sha256=None, size_bytes=0)
        arrived = content[:-1] if fault == "torn" else content
        self._places[request.upload.url].parent.mkdir(parents=True, exist_ok=True)
        self._places[request.upload.url].write_bytes(arrived)
        digest = hashlib.sha256(content).hexdigest()
        return ArtifactReply(name=name, is_present=True, sha256=digest, size_bytes=len(content))


def evaluate(
    desk: Desk, folder: Path, *, gold: Path = GOLD, evaluator: EvaluatorName = EZDXF, **more: Any
) -> EvaluationResult:
    """Run one evaluation against the desk."""
    inline = Inline()
    host = EvaluationHost(
        broker=desk, lease_id="l-1", uploads=desk, host_bridge=inline, score_bridge=inline, utc_now=lambda: NOON
    )

    def run() -> Awaitable[EvaluationResult]:
        return evaluate_rollout(
            run_dir=RunDir(folder),
            host=host,
            gold_dir=gold,
            task_id=TASK,
            evaluator=evaluator,
            extension="dxf",
            **more,
        )

    return anyio.run(run)


def status_of(folder: Path) -> EvaluationStatus:
    return read_record(RunDir(folder).evaluation.status, EvaluationStatus)


def invalid_metadata(code: str) -> bytes:
    """What the evaluator reports of a drawing that is worth nothing."""
    facts = json.loads((ENTRY / "metadata.json").read_bytes())
    facts |= {"status": "invalid", "invalid": {"code": code, "message": "made for a test"}}
    for name in ("layers", "blocks", "inserts", "entities", "layouts", "warnings"):
        facts[name] = []
    facts |= {"extents": {"visible": None, "all": None}, "extents_3d": None}
    facts["counts"] = dict.fromkeys(facts["counts"], 0)
    return json.dumps(facts).encode()


def test_the_gold_itself_scores_one_and_every_stage_is_on_disk(tmp_path: Path) -> None:
    """The straight way: each stage is entered once, in order, and the files are listed with their sums."""
    result = evaluate(Desk(), tmp_path)
    status = status_of(tmp_path)

    assert (Stage.COMPLETE, 1.0) == (result.state, result.score.deterministic if result.score else None)
    assert [
        Stage.QUEUED,
        Stage.EXPORTING,
        Stage.EXPORTED,
        Stage.RENDERING,
        Stage.RENDERED,
        Stage.SCORING,
        Stage.SCORED,
        Stage.COMPLETE,
    ] == [entry.state for entry in status.history]
    assert {"metadata.json", "render.png", "score.json", "diff.png", "overlay.png"} == set(status.files)


@pytest.mark.parametrize(
    "code", ["wrong_format", "too_large", "unreadable", "untouched", "nonfinite_geometry", "empty_drawing"]
)
def test_a_broken_drawing_is_a_complete_zero_without_a_picture(tmp_path: Path, code: str) -> None:
    """The model's fault counts as 0, with its code, and no render is asked for."""
    desk = Desk(metadata=invalid_metadata(code))
    result = evaluate(desk, tmp_path)
    score = result.score
    evaluation = RunDir(tmp_path).evaluation

    assert Stage.INVALID == result.state
    assert score is not None
    assert (code, 0.0, 0.0) == (score.invalid.code if score.invalid else None, score.deterministic, score.final)
    assert ["attempt", "metadata"] == desk.calls
    assert not evaluation.render.exists()
    assert not evaluation.diff.exists()


def test_a_drawing_that_is_too_large_to_travel_is_worth_nothing(tmp_path: Path) -> None:
    """A model must not escape a zero by a drawing that no host can send."""

    class Heavy(Desk):
        def save(self, request: SaveRequest) -> ArtifactReply:
            self.calls.append("attempt")
            return ArtifactReply(name="attempt", is_present=True, sha256="0" * 64, size_bytes=ARTIFACT_BYTES_MAX + 1)

    desk = Heavy(metadata=invalid_metadata("too_large"))
    result = evaluate(desk, tmp_path)

    assert Stage.INVALID == result.state
    assert ["attempt", "metadata"] == desk.calls
    assert not RunDir(tmp_path).attempt("dxf").exists()


def test_facts_may_be_longer_than_the_drawing_that_they_are_about(tmp_path: Path) -> None:
    """A legal drawing of many entities must not escape its score because the facts about it do not travel."""
    allowed: dict[str, int] = {}

    class Measured(Desk):
        def grant(self, name: str, *, bytes_max: int, dest: Path) -> UploadGrant:
            allowed[name] = bytes_max
            return super().grant(name, bytes_max=bytes_max, dest=dest)

    evaluate(Measured(), tmp_path)

    assert {"attempt": ARTIFACT_BYTES_MAX, "metadata": FACTS_BYTES_MAX, "render": ARTIFACT_BYTES_MAX} == allowed
    # 120,000 lines, a drawing of 21 MB, have facts of 91 MB, measured.
    assert 200_000 * 800 < FACTS_BYTES_MAX


def test_no_drawing_at_all_is_invalid_too(tmp_path: Path) -> None:
    """A model that left nothing did not break us."""
    result = evaluate(Desk(drawing=None), tmp_path)

    assert Stage.INVALID == result.state
    assert result.score is not None
    assert result.score.invalid is not None
    assert "missing_artifact" == result.score.invalid.code


@pytest.mark.parametrize("name", ["attempt", "metadata", "render"])
@pytest.mark.parametrize("fault", [ErrorCode.UNREACHABLE, ErrorCode.UPLOAD_FAILED, "torn"])
def test_two_lost_tries_are_repeated_with_a_new_request_and_a_new_address(
    tmp_path: Path, name: str, fault: ErrorCode | str
) -> None:
    """An upload that was cut or expired is asked for again; the third try may still do it."""
    desk = Desk(faults={name: [fault, fault]})

    assert Stage.COMPLETE == evaluate(desk, tmp_path).state
    assert 3 == desk.calls.count(name)


@pytest.mark.parametrize("name", ["attempt", "metadata", "render"])
@pytest.mark.parametrize("fault", [ErrorCode.UNREACHABLE, ErrorCode.UPLOAD_FAILED, "torn"])
def test_the_third_lost_try_is_a_failure_and_never_a_zero(tmp_path: Path, name: str, fault: ErrorCode | str) -> None:
    """A fault of ours is missing coverage, not a score."""
    result = evaluate(Desk(faults={name: [fault] * 3}), tmp_path)
    failure = status_of(tmp_path).failure

    assert (Stage.FAILED, None, "evaluator_transport") == (result.state, result.score, result.failure_code)
    assert failure is not None
    assert not RunDir(tmp_path).evaluation.score.exists()


@pytest.mark.parametrize("code", [ErrorCode.CAD_DIED, ErrorCode.CAD_HUNG, ErrorCode.DISPLAY_DIED])
def test_a_host_that_is_gone_is_not_asked_again(tmp_path: Path, code: ErrorCode) -> None:
    """A dead host answers nothing; three tries would only keep its sandbox alive."""
    desk = Desk(faults={"attempt": [code]})

    assert Stage.FAILED == evaluate(desk, tmp_path).state
    assert ["attempt"] == desk.calls


def test_facts_of_another_evaluator_version_are_refused(tmp_path: Path) -> None:
    """There is no "compatible enough"."""
    facts = json.loads((ENTRY / "metadata.json").read_bytes())
    facts["evaluator"]["version"] = f"{EVALUATOR_VERSION}1"
    result = evaluate(Desk(metadata=json.dumps(facts).encode()), tmp_path)

    assert "evaluator_version_mismatch" == result.failure_code


def test_facts_that_do_not_fit_their_schema_are_never_used_in_part(tmp_path: Path) -> None:
    """An unknown field means another evaluator than the one that was pinned."""
    facts = json.loads((ENTRY / "metadata.json").read_bytes()) | {"surprise": 1}

    assert "metadata_schema" == evaluate(Desk(metadata=json.dumps(facts).encode()), tmp_path).failure_code


def test_a_render_of_another_size_is_our_fault(tmp_path: Path) -> None:
    """The gold says how large; an evaluator that disagrees cannot be compared with."""
    from io import BytesIO

    from PIL import Image

    picture = BytesIO()
    Image.new("L", (10, 10), 255).save(picture, "PNG")

    assert "render_size_mismatch" == evaluate(Desk(render_png=picture.getvalue()), tmp_path).failure_code


@pytest.mark.parametrize(
    ("damage", "code"), [("changed", "cache_checksum"), ("removed", "cache_missing"), ("unpinned", "cache_missing")]
)
def test_gold_that_changed_after_preflight_fails_the_evaluation(tmp_path: Path, damage: str, code: str) -> None:
    """The gold is checked again before it decides anything."""
    gold = tmp_path / "gold"
    shutil.copytree(GOLD, gold, ignore=shutil.ignore_patterns("sources"))
    file = gold / f"ezdxf-{EVALUATOR_VERSION}" / TASK / "metadata.json"
    match damage:
        case "changed":
            file.write_bytes(file.read_bytes().replace(b"0", b"1", 1))
        case "removed":
            file.unlink()
        case _:
            manifest = json.loads((gold / "manifest.json").read_bytes())
            del manifest["entries"][TASK]
            (gold / "manifest.json").write_text(json.dumps(manifest))
    result = evaluate(Desk(), tmp_path / "run", gold=gold)

    assert (Stage.FAILED, code) == (result.state, result.failure_code)


class StuckAt(Inline):
    """A bridge that never comes back from one of its calls."""

    def __init__(self, number: int) -> None:
        self._left = number

    async def call(self, work: Callable[[], T]) -> T:
        self._left -= 1
        if self._left == 0:
            await anyio.sleep_forever()
        return work()


@pytest.mark.parametrize(("number", "stage"), [(2, "exporting"), (4, "exporting"), (6, "rendering")])
def test_an_evaluation_that_is_cut_off_says_so(tmp_path: Path, number: int, stage: str) -> None:
    """A host that is lost, or a deadline, must not leave a file that says that it is still going on."""

    async def run() -> None:
        inline, desk = Inline(), Desk()
        host = EvaluationHost(
            broker=desk,
            lease_id="l-1",
            uploads=desk,
            host_bridge=StuckAt(number),
            score_bridge=inline,
            utc_now=lambda: NOON,
        )
        with anyio.move_on_after(0.01):
            await evaluate_rollout(
                run_dir=RunDir(tmp_path), host=host, gold_dir=GOLD, task_id=TASK, evaluator=EZDXF, extension="dxf"
            )

    anyio.run(run)
    status = status_of(tmp_path)

    assert status.failure is not None
    assert (Stage.FAILED, stage, "evaluation_interrupted") == (
        status.state,
        status.failure.stage,
        status.failure.code,
    )


def test_a_bug_of_ours_is_in_the_status_and_travels_on(tmp_path: Path) -> None:
    """Who caught it names it; the file must not claim that the evaluation goes on."""

    class Broken(Desk):
        def render(self, request: RenderRequest) -> ArtifactReply:
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        evaluate(Broken(), tmp_path)
    failure = status_of(tmp_path).failure

    assert failure is not None
    assert ("rendering", "evaluation_error", False) == (failure.stage, failure.code, failure.is_retryable)


def test_the_judge_is_asked_when_the_host_is_not_needed_any_more(tmp_path: Path) -> None:
    """A host that dies while the judge is waited for takes nothing with it, so the supervisor has to know."""
    fetched = False
    seen: list[tuple[bool, list[str]]] = []
    desk = Desk()

    def note() -> None:
        nonlocal fetched
        fetched = True

    async def look(question: Question) -> None:
        seen.append((fetched, list(desk.calls)))

    judge = judge_with(ScriptedModel([grades(4)], before=look))
    result = evaluate(desk, tmp_path, judge=judge, on_fetched=note)

    assert [(True, ["attempt", "metadata", "render"])] * 3 == seen
    assert (Stage.COMPLETE, "deterministic+judge") == (result.state, result.score.final_basis if result.score else None)


def test_an_invalid_drawing_asks_no_judge(tmp_path: Path) -> None:
    """It has no picture, and its zero is final."""
    judge, model = judge_of(grades(4))
    result = evaluate(Desk(metadata=invalid_metadata("untouched")), tmp_path, judge=judge)

    assert (Stage.INVALID, []) == (result.state, model.asked)
    assert not RunDir(tmp_path).evaluation.vision_judge.exists()


def test_scoring_again_gives_identical_bytes_beside_the_first_score(tmp_path: Path) -> None:
    """The first score stays, and the second proves it."""
    evaluate(Desk(), tmp_path)
    run_dir = RunDir(tmp_path)
    first = run_dir.evaluation.score.read_bytes()
    again = [rescore(run_dir, gold_dir=GOLD, evaluator=EZDXF) for _ in range(2)]

    assert [True, True] == [scored.delta.is_identical for scored in again]
    assert ["0001", "0002"] == [scored.folder.name for scored in again]
    assert first == run_dir.evaluation.score.read_bytes() == (again[1].folder / "score.json").read_bytes()
    assert run_dir.evaluation.diff.read_bytes() == (again[0].folder / "diff.png").read_bytes()
    assert run_dir.evaluation.overlay.read_bytes() == (again[0].folder / "overlay.png").read_bytes()


def test_an_invalid_drawing_is_scored_again_to_the_same_zero(tmp_path: Path) -> None:
    """Zeros are scores too."""
    evaluate(Desk(metadata=invalid_metadata("untouched")), tmp_path)

    assert rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF).delta.is_identical


def test_a_drawing_that_is_empty_only_beside_its_gold_is_scored_again_without_a_picture(tmp_path: Path) -> None:
    """The evaluator calls it a drawing, the scorer finds nothing left to compare: its archive is whole all the same."""
    facts = json.loads((ENTRY / "metadata.json").read_bytes())
    line = next(entity for entity in facts["entities"] if entity["kind"] == "line")
    line["geom"]["end"] = [line["geom"]["start"][0] + 1e-6, *line["geom"]["start"][1:]]
    facts["entities"] = [line]
    first = evaluate(Desk(metadata=json.dumps(facts).encode()), tmp_path)

    assert (Stage.INVALID, False) == (first.state, RunDir(tmp_path).evaluation.render.exists())
    assert rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF).delta.is_identical


@pytest.mark.parametrize("name", ["metadata.json", "render.png", "score.json", "status.json"])
def test_an_archive_that_lacks_a_file_is_refused_whole(tmp_path: Path, name: str) -> None:
    """Nothing is half-scored: no folder is made, and the error names the file."""
    evaluate(Desk(), tmp_path)
    (RunDir(tmp_path).evaluation.root / name).unlink()

    with pytest.raises(StateError, match=name):
        rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF)
    assert not (RunDir(tmp_path).evaluation.root / "rescored").exists()


def test_an_archive_that_takes_no_more_files_is_an_error_of_its_own(tmp_path: Path) -> None:
    """One archive that cannot be written must not end the scoring of all the others."""
    evaluate(Desk(), tmp_path)
    (RunDir(tmp_path).evaluation.root / "rescored").write_text("in the way")

    with pytest.raises(DiskError, match="rescored"):
        rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF)


def test_an_archive_that_was_changed_is_refused(tmp_path: Path) -> None:
    """A score of other bytes than those that were judged would be a lie."""
    evaluate(Desk(), tmp_path)
    metadata = RunDir(tmp_path).evaluation.metadata
    metadata.write_bytes(metadata.read_bytes() + b" ")

    with pytest.raises(StateError, match="not the file that was scored"):
        rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF)
