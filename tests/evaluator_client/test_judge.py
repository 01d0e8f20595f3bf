"""The vision judge's arithmetic, and a later scoring that uses its stored answers without asking again."""

from __future__ import annotations

import hashlib
import shutil
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.evaluator.version import EVALUATOR_VERSION
from contract.errors import EvaluationError, StateError
from contract.evaluation_records import EvaluationStatus, EvaluatorName, Stage, StageEntry
from contract.judge_records import (
    JudgeAnswer,
    JudgeAttempt,
    JudgeImage,
    JudgeParameters,
    JudgeRequest,
    JudgeResponses,
    JudgeScore,
    JudgeUsage,
)
from contract.pricing import PriceRow
from contract.records import read_record, write_record
from contract.run_dir import EvaluationDir, RunDir
from contract.score_records import Score
from evaluator_client.collector import parse_metadata
from evaluator_client.gold import load_entry
from evaluator_client.judge_verdict import (
    order_of,
    repeat_score,
    repeats_needed,
    verdict,
    with_judge,
    with_judge_failed,
)
from evaluator_client.rescore import rescore
from evaluator_client.score import score_drawing

ROOT = Path(__file__).resolve().parents[2]
GOLD = ROOT / "configs" / "gold"
TASK = "plate"
ENTRY = GOLD / f"ezdxf-{EVALUATOR_VERSION}" / TASK
EZDXF = EvaluatorName(name="ezdxf", version=EVALUATOR_VERSION)
PRICE = PriceRow(input=Decimal(2), cached_input=Decimal("0.5"), output=Decimal(10))
BEST = {"shape_fidelity": 4, "proportions": 4, "completeness": 4, "annotation": 4, "extraneous": 4}
USAGE = JudgeUsage(
    input_tokens=1000,
    cached_input_tokens=400,
    cache_write_tokens=0,
    output_tokens=100,
    reasoning_tokens=20,
    total_tokens=1100,
)


def answer(*errors: str, text: bool = False, **grades: int) -> JudgeAnswer:
    facts = {
        **BEST,
        **grades,
        "critical_errors": list(errors),
        "text_addresses_evaluator": text,
        "evidence": "seen",
    }
    return JudgeAnswer.model_validate(facts)


def alike(grade: int) -> JudgeAnswer:
    """An answer that is worth `grade` / 4."""
    return answer(**dict.fromkeys(BEST, grade))


def attempt(
    repeat: int, parsed: JudgeAnswer | None, *, outcome: str = "ok", usage: JudgeUsage | None = USAGE
) -> JudgeAttempt:
    facts = {
        "repeat": repeat,
        "order": order_of(repeat),
        "attempt": 1,
        "outcome": outcome,
        "http_status": 200,
        "response_id": f"resp_{repeat}",
        "model_reported": "seer-1",
        "latency_s": 1.5,
        "usage": usage,
        "output_text": None if parsed is None else parsed.model_dump_json(),
        "parsed": parsed,
        "error": None,
    }
    return JudgeAttempt.model_validate(facts)


def request(candidate: bytes = b"candidate", reference: bytes = b"reference") -> JudgeRequest:
    def image(role: str, file: str, content: bytes) -> JudgeImage:
        facts = {
            "role": role,
            "file": file,
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_bytes": len(content),
            "width_px": 1600,
            "height_px": 1200,
        }
        return JudgeImage.model_validate(facts)

    return JudgeRequest(
        judge_id="vj-1",
        provider="openai",
        model="seer-1",
        prompt_version="1.0",
        prompt_sha256="0" * 64,
        schema_sha256="1" * 64,
        parameters=JudgeParameters(),
        images=[image("reference", "gold:render.png", reference), image("candidate", "render.png", candidate)],
        repeats=3,
        instructions="Compare.",
    )


def gold_score() -> Score:
    """A perfect deterministic score, as the scorer gives it."""
    gold = load_entry(GOLD, TASK, evaluator_name="ezdxf", evaluator_version=EVALUATOR_VERSION)
    content = (ENTRY / "metadata.json").read_bytes()
    metadata = parse_metadata(content, source="metadata.json")
    digest = hashlib.sha256(content).hexdigest()
    return score_drawing(candidate=metadata, render=gold.render, gold=gold, candidate_sha256=digest).score


@pytest.fixture(scope="module")
def perfect() -> Score:
    return gold_score()


def judged_with(score: Score, *answers: JudgeAnswer) -> JudgeScore:
    attempts = [attempt(number, given_answer) for number, given_answer in enumerate(answers, 1)]
    return verdict(request(), attempts, score, price=PRICE)


def test_each_grade_weighs_as_the_contract_says() -> None:
    """One grade at a time falls from 4 to 0, and takes its own weight with it."""
    lost = {name: round(1 - repeat_score(answer(**{name: 0})), 6) for name in BEST}

    assert {
        "shape_fidelity": 0.3,
        "proportions": 0.2,
        "completeness": 0.25,
        "annotation": 0.15,
        "extraneous": 0.1,
    } == lost
    assert 1.0 == repeat_score(answer("none"))


@pytest.mark.parametrize(
    ("errors", "most"),
    [(("mirrored",), 0.5), (("none", "rotated"), 0.5), (("blank",), 0.1), (("mirrored", "wrong_object"), 0.1)],
)
def test_a_critical_error_limits_the_repeat(errors: tuple[str, ...], most: float) -> None:
    """Full grades beside a critical error contradict it, and the error wins."""
    assert most == repeat_score(answer(*errors))


@pytest.mark.parametrize("grades", [{"annotation": 5}, {"annotation": -1}, {"shape_fidelity": 3.5}])
def test_a_grade_outside_its_range_is_no_answer(grades: dict[str, int]) -> None:
    """The API's promise about its schema is checked here again."""
    with pytest.raises(ValidationError):
        answer(**grades)


def test_three_answers_that_agree_are_averaged_and_the_orders_alternate(perfect: Score) -> None:
    """J is the mean; what both orders differ by is kept for review."""
    judged = judged_with(perfect, alike(4), alike(3), alike(4))

    assert (round(2.75 / 3, 6), False, 0.25) == (judged.score, judged.unstable, judged.order_gap)
    assert ["reference_first", "candidate_first", "reference_first"] == [part.order for part in judged.repeats]


def test_answers_that_differ_ask_for_two_more_and_the_median_counts(perfect: Score) -> None:
    """A quarter apart is still stable; more is not."""
    judged = judged_with(perfect, alike(4), alike(2), alike(4), alike(1), alike(2))

    assert (0.5, True, 5) == (judged.score, judged.unstable, len(judged.repeats))
    assert [3, 5, 3] == [repeats_needed(found, 3) for found in ([0.85, 0.6, 0.7], [1.0, 0.7, 1.0], [1.0, 0.2])]


@pytest.mark.parametrize("answers", [(), (alike(4), alike(4)), (alike(4), alike(1), alike(4), alike(4))])
def test_too_few_answers_are_no_score(perfect: Score, answers: tuple[JudgeAnswer, ...]) -> None:
    """There is no partial judge score, and none of the missing ones is taken for a zero."""
    with pytest.raises(EvaluationError) as caught:
        judged_with(perfect, *answers)

    assert "judge_unusable" == caught.value.code


def test_text_that_speaks_to_the_judge_takes_its_lift_away(perfect: Score) -> None:
    """Whether our list or the judge saw it: J is no higher than the deterministic score, but may be lower."""
    poor = perfect.model_copy(update={"deterministic": 0.5})
    flagged = poor.model_copy(update={"flags": [*poor.flags, "evaluator_addressed_text"]})
    seen = judged_with(poor, alike(4), answer(text=True), alike(4))
    listed = judged_with(flagged, alike(4), alike(4), alike(4))
    low = judged_with(flagged, alike(1), alike(1), alike(1))

    assert [0.5, 0.5, 0.25] == [seen.score, listed.score, low.score]
    assert ["judge_saw_addressed_text", "held_to_deterministic"] == seen.flags
    assert ["evaluator_addressed_text"] == low.flags
    assert 0.5 == with_judge(poor, listed).final


@given(deterministic=st.floats(0, 1), grade=st.integers(0, 4))
def test_the_judge_moves_little_and_never_the_deterministic_score(
    perfect: Score, deterministic: float, grade: int
) -> None:
    """I17: at most a fifth of the way, at most 0.10 up."""
    score = perfect.model_copy(update={"deterministic": round(deterministic, 6)})
    final = with_judge(score, judged_with(score, *[alike(grade)] * 3))

    assert score.deterministic == final.deterministic
    assert final.final is not None
    assert 0.8 * score.deterministic - 1e-6 <= final.final <= min(1.0, score.deterministic + 0.10 + 1e-6)


def test_every_attempt_with_usage_is_paid_for(perfect: Score) -> None:
    """A refusal costs as much as an answer: 600 fresh, 400 cached and 100 output tokens, four times."""
    attempts = [attempt(1, None, outcome="refusal"), *(attempt(number, alike(4)) for number in (1, 2, 3))]
    judged = verdict(request(), attempts, perfect, price=PRICE)

    assert (Decimal("0.0096"), None, 4400) == (judged.cost_usd, judged.cost_note, judged.usage_total.total_tokens)


def test_a_cost_that_is_not_known_is_no_zero(perfect: Score) -> None:
    """Without a price, or without the usage of an answer, the reason stands in its place."""
    bare = [attempt(number, alike(4), usage=None) for number in (1, 2, 3)]
    full = [attempt(number, alike(4)) for number in (1, 2, 3)]
    found = [verdict(request(), bare, perfect, price=PRICE), verdict(request(), full, perfect, price=None)]

    assert [(None, "an answer came without its usage"), (None, "no price for this judge")] == [
        (judged.cost_usd, judged.cost_note) for judged in found
    ]


def archived(folder: Path, score: Score, *answers: JudgeAnswer) -> EvaluationDir:
    """A finished evaluation whose judge gave these answers, as it stands on disk."""
    evaluation = RunDir(folder).evaluation
    evaluation.vision_judge.mkdir(parents=True)
    for source in (ENTRY / "metadata.json", ENTRY / "render.png"):
        shutil.copyfile(source, evaluation.root / source.name)
    render = evaluation.render.read_bytes()
    asked = request(candidate=render, reference=render)
    attempts = [attempt(number, given_answer) for number, given_answer in enumerate(answers, 1)]
    write_record(evaluation.judge_request, asked)
    write_record(evaluation.judge_responses, JudgeResponses(attempts=attempts))
    try:
        judged = verdict(asked, attempts, score, price=PRICE)
    except EvaluationError as error:
        score = with_judge_failed(score, judge_id="vj-1", reason=error.code)
    else:
        write_record(evaluation.judge_score, judged)
        score = with_judge(score, judged)
    write_record(evaluation.score, score)
    noon = StageEntry.model_validate({"state": Stage.COMPLETE, "at": "2026-01-01T12:00:00Z"})
    files = {
        path.relative_to(evaluation.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (evaluation.score, evaluation.judge_request, evaluation.judge_responses)
    }
    status = EvaluationStatus(
        state=Stage.COMPLETE,
        updated_at=noon.at,
        history=[noon],
        evaluator=EZDXF,
        attempts={},
        failure=None,
        files=files,
    )
    write_record(evaluation.status, status)
    return evaluation


def test_scoring_again_uses_the_stored_answers_to_the_same_bytes(tmp_path: Path, perfect: Score) -> None:
    """Nobody is asked, and what was paid stays what was paid."""
    evaluation = archived(tmp_path, perfect, alike(3), alike(3), alike(3))
    again = rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF)
    later = EvaluationDir(again.folder)

    assert again.delta.is_identical
    assert (0.95, 0.95) == (again.delta.old_final, again.delta.new_final)
    assert evaluation.judge_score.read_bytes() == later.judge_score.read_bytes()


def test_scoring_again_leaves_a_failed_judge_failed(tmp_path: Path, perfect: Score) -> None:
    """Two answers of three stay too few; the deterministic score stands and the final one is missing, not 0."""
    archived(tmp_path, perfect, alike(3), alike(3))
    again = rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF)
    score = read_record(EvaluationDir(again.folder).score, Score)

    assert again.delta.is_identical
    assert (1.0, None, "judge_failed") == (score.deterministic, score.final, score.final_basis)


def test_stored_answers_that_were_changed_are_refused(tmp_path: Path, perfect: Score) -> None:
    """An answer that somebody edited is no answer of the judge; nothing is written."""
    evaluation = archived(tmp_path, perfect, alike(3), alike(3), alike(3))
    evaluation.judge_responses.write_bytes(evaluation.judge_responses.read_bytes().replace(b'": 3', b'": 4'))

    with pytest.raises(StateError, match=r"responses\.json is not the file"):
        rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF)
    assert not (evaluation.root / "rescored").exists()


def test_answers_about_other_pictures_are_not_used(tmp_path: Path, perfect: Score) -> None:
    """A judge that saw another drawing has said nothing about this one."""
    evaluation = archived(tmp_path, perfect, alike(3), alike(3), alike(3))
    other = request(candidate=b"other", reference=evaluation.render.read_bytes())
    write_record(evaluation.judge_request, other)
    status = read_record(evaluation.status, EvaluationStatus)
    write_record(evaluation.status, status.model_copy(update={"files": {}}))

    with pytest.raises(EvaluationError) as caught:
        rescore(RunDir(tmp_path), gold_dir=GOLD, evaluator=EZDXF)
    assert "judge_record_mismatch" == caught.value.code
    assert not (evaluation.root / "rescored").exists()
