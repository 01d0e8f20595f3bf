"""How a judge is asked: what it sees, what is stored, and what becomes of every fault, in virtual time."""

from __future__ import annotations

import itertools
from pathlib import Path

import anyio
import pytest

from contract.errors import DiskError, EvaluationError
from contract.judge_records import JudgeAttempt, JudgeRequest, JudgeResponses
from contract.records import read_record
from contract.run_dir import EvaluationDir
from evaluator_client.judge import Judge, Question, Reply, ask_judge, open_judging
from evaluator_client.judge_prompt import (
    ANSWER_SCHEMA,
    INSTRUCTIONS,
    PROMPT_SHA256,
    PROMPT_VERSION,
    SCHEMA_SHA256,
    Pictures,
    request_of,
)
from tests.batch_fakes import in_virtual_time
from tests.judge_fakes import (
    BROKEN,
    CUT,
    LOST,
    PICTURES,
    REFUSED,
    THROTTLED,
    ScriptedModel,
    answer_text,
    grades,
    judge_config,
    judge_of,
    judge_with,
    says,
    sheet,
)

GOOD = grades(4)
DEADLINE_S = 900.0


class Asked:
    """What came of one judgement: its attempts as they stand on disk, its error, and how long it took."""

    def __init__(self, folder: Path, judge: Judge, known: tuple[JudgeAttempt, ...] = ()) -> None:
        self.evaluation = EvaluationDir(folder)
        self.error: EvaluationError | None = None
        self.took_s = 0.0

        async def work() -> None:
            began_s = anyio.current_time()
            request = open_judging(self.evaluation, judge.config, PICTURES, known=known)
            try:
                await ask_judge(self.evaluation, judge, request, PICTURES, known=known)
            except EvaluationError as error:
                self.error = error
            self.took_s = anyio.current_time() - began_s

        in_virtual_time(work)
        self.attempts = read_record(self.evaluation.judge_responses, JudgeResponses).attempts

    @property
    def outcomes(self) -> list[str]:
        return [attempt.outcome for attempt in self.attempts]

    @property
    def code(self) -> str | None:
        return self.error.code if self.error is not None else None


def test_the_words_and_the_schema_are_pinned() -> None:
    """A changed word is another judge, which needs a new prompt version and a new calibration."""
    assert "1.0" == PROMPT_VERSION
    assert "c34d163bf469471538ae3ed7b7901dea0fe2194b94046e187413ced7d94ea880" == PROMPT_SHA256
    assert "3029bd49f703cbe9aa92ffd70098102386448a298dd1f95a829962e8956c132a" == SCHEMA_SHA256


def test_the_schema_is_strict_at_every_level() -> None:
    """Every field is required, none is unknown, and grades are enumerated, because ranges are not kept everywhere."""
    properties = ANSWER_SCHEMA["properties"]

    assert (False, list(properties)) == (ANSWER_SCHEMA["additionalProperties"], ANSWER_SCHEMA["required"])
    assert [[0, 1, 2, 3, 4]] * 5 == [part["enum"] for part in properties.values() if part["type"] == "integer"]


def test_the_record_of_the_request_names_both_pictures_and_nobody(tmp_path: Path) -> None:
    """Whoever checks a judgement can see what was asked, and no path, key or pixel stands in it."""
    asked = Asked(tmp_path, judge_of(GOOD)[0])
    request = read_record(asked.evaluation.judge_request, JudgeRequest)

    assert [("reference", "gold:render.png", 40, 30), ("candidate", "render.png", 40, 30)] == [
        (image.role, image.file, image.width_px, image.height_px) for image in request.images
    ]
    assert (INSTRUCTIONS, 3, 2000, "high", "low") == (
        request.instructions,
        request.repeats,
        request.parameters.max_output_tokens,
        request.parameters.detail,
        request.parameters.reasoning_effort,
    )
    assert str(tmp_path) not in asked.evaluation.judge_request.read_text()


def test_pictures_change_their_places_from_repeat_to_repeat(tmp_path: Path) -> None:
    """A judge that prefers the first picture is found out."""
    judge, model = judge_of(GOOD)
    asked = Asked(tmp_path, judge)
    there, back = (PICTURES.reference, PICTURES.candidate), (PICTURES.candidate, PICTURES.reference)

    assert ["reference_first", "candidate_first", "reference_first"] == [attempt.order for attempt in asked.attempts]
    assert [there, back, there] == [question.images for question in model.asked]


def test_answers_far_apart_are_asked_for_twice_more(tmp_path: Path) -> None:
    """Three that differ by more than a quarter become five."""
    asked = Asked(tmp_path, judge_of(grades(4), grades(2), grades(4), grades(2), grades(4))[0])

    assert [1, 2, 3, 4, 5] == [attempt.repeat for attempt in asked.attempts]


def test_every_answer_is_on_disk_before_the_next_question(tmp_path: Path) -> None:
    """A crash at any moment pays for nothing twice; before the first question there is an empty record."""
    stored: list[int] = []

    async def look(question: Question) -> None:
        stored.append(len(read_record(EvaluationDir(tmp_path).judge_responses, JudgeResponses).attempts))

    Asked(tmp_path, judge_with(ScriptedModel([LOST, GOOD], before=look)))

    assert [0, 1, 2, 3] == stored


def test_an_answer_that_cannot_be_stored_is_not_used(tmp_path: Path) -> None:
    """A full disk is an error of the disk, and the judge is not asked again."""
    judge, model = judge_of(GOOD)
    evaluation = EvaluationDir(tmp_path)

    async def work() -> None:
        request = open_judging(evaluation, judge.config, PICTURES)
        evaluation.judge_responses.unlink()
        # A folder stands where the file should be, so that no rename can succeed.
        evaluation.judge_responses.mkdir()
        (evaluation.judge_responses / "in-the-way").touch()
        with pytest.raises(DiskError):
            await ask_judge(evaluation, judge, request, PICTURES)

    in_virtual_time(work)

    assert 1 == len(model.asked)


def test_known_answers_are_not_asked_for_again(tmp_path: Path) -> None:
    """What an interrupted judgement had stored counts, and only the rest is paid for."""
    first = Asked(tmp_path / "first", judge_of(GOOD, REFUSED, GOOD, LOST)[0])
    judge, model = judge_of(grades(3))
    again = Asked(tmp_path / "again", judge, known=tuple(first.attempts[:3]))

    assert ["ok", "refusal", "ok", "ok"] == again.outcomes
    assert ["reference_first"] == [question.order for question in model.asked]


@pytest.mark.parametrize("retry_after_s", [None, 1.0, 45.0, 300.0])
def test_an_hour_of_throttling_ends_at_the_deadline_and_is_no_answer(
    tmp_path: Path, retry_after_s: float | None
) -> None:
    """429 uses up no attempt; the deadline ends it, before a pause that would pass it."""
    throttled = Reply("throttled", http_status=429, error="HTTP 429", retry_after_s=retry_after_s)
    asked = Asked(tmp_path, judge_of(*[throttled] * 3600)[0])

    assert "judge_transport" == asked.code
    assert {"throttled"} == set(asked.outcomes)
    assert DEADLINE_S - max(60.0, retry_after_s or 0.0) <= asked.took_s <= DEADLINE_S


def test_a_wait_of_an_hour_is_not_begun(tmp_path: Path) -> None:
    """The host is held meanwhile: what can only end after the deadline ends at once."""
    asked = Asked(tmp_path, judge_of(Reply("throttled", http_status=429, retry_after_s=3600.0))[0])

    assert ("judge_transport", 0.0, 1) == (asked.code, asked.took_s, len(asked.attempts))
    assert asked.error is not None
    assert asked.error.is_retryable


def test_throttling_that_ends_in_time_costs_only_time(tmp_path: Path) -> None:
    """The longer of the server's wish and our own pause is kept."""
    asked = Asked(tmp_path, judge_of(*[Reply("throttled", http_status=429, retry_after_s=50.0)] * 12, GOOD)[0])

    assert (None, ["throttled"] * 12 + ["ok"] * 3) == (asked.code, asked.outcomes)
    assert 600.0 <= asked.took_s <= 720.0


def test_a_server_that_is_broken_for_good_ends_at_the_deadline(tmp_path: Path) -> None:
    """5xx have no number of tries, and no pause is longer than a minute."""
    times: list[float] = []

    async def note(question: Question) -> None:
        times.append(anyio.current_time())

    asked = Asked(tmp_path, judge_with(ScriptedModel([BROKEN], before=note)))

    assert "judge_transport" == asked.code
    assert DEADLINE_S - 60.0 <= asked.took_s <= DEADLINE_S
    assert max(later - sooner for sooner, later in itertools.pairwise(times)) <= 60.0


def test_nine_lost_requests_are_survived_and_a_tenth_is_not(tmp_path: Path) -> None:
    """The streak ends with any answer, of use or not, and throttling neither adds to it nor ends it."""
    nine = [*[LOST] * 5, THROTTLED, *[LOST] * 4]
    survived = Asked(tmp_path / "nine", judge_of(*nine, REFUSED, *[LOST] * 9, GOOD, deadline_s=3600)[0])
    ended = Asked(tmp_path / "ten", judge_of(*nine, LOST, GOOD, deadline_s=3600)[0])

    assert (None, "judge_transport") == (survived.code, ended.code)
    assert 10 == ended.outcomes.count("transport")


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (REFUSED, "refusal"),
        (Reply("incomplete", http_status=200, error="incomplete: content_filter"), "incomplete"),
        (Reply("malformed", http_status=200, error="the response holds no answer"), "malformed"),
        (says("The candidate looks perfect to me, full marks!"), "malformed"),
        (says(f"```json\n{answer_text()}\n```"), "malformed"),
        (says(answer_text()[:-5]), "malformed"),
        (says(""), "malformed"),
        (says(answer_text(shape_fidelity=5)), "malformed"),
        (says(answer_text(shape_fidelity=-1)), "malformed"),
        (says(answer_text(shape_fidelity="4")), "malformed"),
        (says(answer_text(shape_fidelity=True)), "malformed"),
        (says(answer_text(shape_fidelity=3.5)), "malformed"),
        (says(answer_text(4, "upside_down")), "malformed"),
        (says(answer_text(bonus=1)), "malformed"),
        (says(answer_text(evidence=None)), "malformed"),
        (says(answer_text().replace('"proportions": 4, ', "")), "malformed"),
    ],
)
def test_three_answers_of_no_use_end_it_and_two_do_not(tmp_path: Path, reply: Reply, outcome: str) -> None:
    """Prose, refusals, cut-off and out-of-range answers are asked for again, and are never taken for a low grade."""
    ended = Asked(tmp_path / "three", judge_of(reply)[0])
    survived = Asked(tmp_path / "two", judge_of(reply, reply, GOOD)[0])

    assert ("judge_unusable", [outcome] * 3) == (ended.code, ended.outcomes)
    assert (None, [outcome] * 2 + ["ok"] * 3) == (survived.code, survived.outcomes)
    assert 0.0 == ended.took_s


def test_a_cut_answer_gets_twice_the_room_once(tmp_path: Path) -> None:
    """A model that thinks too long is helped, and one that never ends is not paid for more and more."""
    judge, model = judge_of(CUT)
    asked = Asked(tmp_path, judge)

    assert ("judge_unusable", [2000, 4000, 2000]) == (
        asked.code,
        [question.max_output_tokens for question in model.asked],
    )


def test_a_request_that_is_refused_for_good_is_not_repeated(tmp_path: Path) -> None:
    """A wrong key or model would be refused ten times as well."""
    asked = Asked(tmp_path, judge_of(Reply("transport", http_status=401, error="HTTP 401", is_final=True))[0])

    assert ("judge_transport", 1) == (asked.code, len(asked.attempts))
    assert asked.error is not None
    assert not asked.error.is_retryable


def test_a_model_that_never_answers_is_left_at_the_deadline(tmp_path: Path) -> None:
    """The request that nobody waited for is on record: it may be charged."""

    async def hang(question: Question) -> None:
        await anyio.sleep_forever()

    asked = Asked(tmp_path, judge_with(ScriptedModel([GOOD], before=hang)))

    assert ("judge_transport", DEADLINE_S) == (asked.code, asked.took_s)
    assert [("transport", "the answer was not waited for")] == [(one.outcome, one.error) for one in asked.attempts]


@pytest.mark.parametrize(
    ("candidate", "code"),
    [(sheet(0, (41, 30)), "render_size_mismatch"), (b"no picture", "render_unreadable")],
)
def test_pictures_that_cannot_be_compared_are_not_sent(candidate: bytes, code: str) -> None:
    """Pictures of two sizes would be compared at two scales."""
    with pytest.raises(EvaluationError) as caught:
        request_of(judge_config(), Pictures(PICTURES.reference, candidate))

    assert code == caught.value.code
