"""Days and nights of failing providers, in virtual time: what waits for ever, what ends at the tenth, what at once.

The failures are the stored answers of the six APIs, read as they would be in production.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest

from contract.ambient import Ambient
from contract.phases import OUTCOME_OF_END, Cause, EndedBy, Outcome
from contract.pricing import Usage
from contract.profiles import HistoryKind, Profile, Wire
from contract.records import read_record
from contract.rollout_records import EventsFile, Retries, RunState, Waiting
from contract.run_dir import RunDir
from pilot.models.answers import read_answer
from pilot.models.wire import Answer
from pilot.ports import Charge, ModelReply, ProviderError, Refused, Throttled, TransportFailed
from pilot.rollout import run_rollout
from tests.fakes import FINISH, FakeHost, ScriptedModel, batch, click, make_spec, make_world

pytestmark = pytest.mark.anyio

WIRE_FILES = Path(__file__).parent / "wire"
DAWN = datetime(2026, 11, 1, tzinfo=UTC)
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
WIRES = {"anthropic": Wire.MESSAGES, "fireworks": Wire.CHAT, "mantle": Wire.CHAT, "bedrock": Wire.CONVERSE}
INVALID = {"actions": []}
ACT = batch(click())
REFUSAL = ModelReply(arguments=None, latency_s=0.1, usage=Usage(), cost_usd=Decimal(0), is_refusal=True)


def utc_now() -> datetime:
    """Wall-clock time that follows the virtual clock."""
    return DAWN + timedelta(seconds=anyio.current_time())


def failure(file: str, **headers: str) -> ProviderError:
    """The error that a stored answer is; `headers` are added to its own, with dashes for underscores."""
    stored = json.loads((WIRE_FILES / f"{file}.json").read_text())
    body = stored["body"] if isinstance(stored["body"], str) else json.dumps(stored["body"])
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    provider: Any = file.partition("/")[0]
    profile = Profile(provider=provider, wire=WIRES.get(provider, Wire.RESPONSES), history=HistoryKind.APPEND)
    with pytest.raises(ProviderError) as caught:
        read_answer(Answer(stored["status"], {**stored["headers"], **more}, body.encode()), profile, now=DAWN)
    return caught.value


@dataclass
class Played:
    """How a rollout went: its last state, what it was asked, and what it said while it waited."""

    state: RunState
    model: ScriptedModel
    run_dir: RunDir
    waits: list[Waiting] = field(default_factory=list)
    lasted_s: float = 0.0

    @property
    def events(self) -> list[str]:
        return [event.event for event in read_record(self.run_dir.events, EventsFile).events]


async def play(tmp_path: Path, items: Sequence[object]) -> Played:
    """Play a rollout whose model answers with these items, then finishes."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    model = ScriptedModel([*items, FINISH])
    waits: list[Waiting] = []

    def note(state: RunState) -> None:
        if state.waiting is not None:
            waits.append(state.waiting)

    world = make_world(model, host, ambient=Ambient(utc_now=utc_now), on_progress=note)
    state = await run_rollout(spec, world)
    return Played(state, model, RunDir(Path(spec.run_dir)), waits, anyio.current_time())


async def test_a_day_of_429s_is_waited_out(tmp_path: Path) -> None:
    """Every provider's throttling, as long as its own header says, with the turn unconsumed."""
    files = ["anthropic/err_429", "openai/err_429_no_headers", "openrouter/err_429", "fireworks/err_429"]
    files += ["mantle/err_429", "bedrock/err_429_model_not_ready", "bedrock/err_400_throttling"]
    files += [
        "openai/failed_200_rate_limit",
        "openrouter/error_envelope_200_rate_limit",
        "openrouter/failed_200_rate_limit",
    ]
    day = [failure(files[number % len(files)], retry_after="300") for number in range(288)]

    played = await play(tmp_path, [ACT, *day])

    assert EndedBy.FINISHED == played.state.ended_by
    assert Retries(rate_limited=288) == played.state.retries
    assert DAY_S == pytest.approx(played.lasted_s)
    assert {2} == {observation.turn for observation in played.model.observations[1:]}
    assert ({"rate_limited"}, {DAWN}) == ({wait.for_ for wait in played.waits}, {wait.since for wait in played.waits})
    assert [300.0] * 288 == [(wait.until - now).total_seconds() for wait, now in _starts(played.waits)]
    assert [None] * 288 == [wait.alarm for wait in played.waits]


def _starts(waits: list[Waiting]) -> list[tuple[Any, datetime]]:
    """Each wait with the moment it began: the end of the one before."""
    ends = [wait.until or DAWN for wait in waits]
    return list(zip(waits, [DAWN, *ends[:-1]], strict=True))


async def test_a_night_of_5xx_is_waited_out_and_never_a_minute_is_lost(tmp_path: Path) -> None:
    """Whatever the status, the body or the advice of a header: the cap is 60 seconds."""
    files = ["openai/err_500", "openai/err_503_should_retry_false", "openai/err_502_html", "openai/err_520_empty"]
    files += ["openrouter/err_524", "anthropic/err_529_should_retry_false", "fireworks/err_425", "mantle/err_503"]
    files += ["bedrock/err_424_model_error", "bedrock/err_503_html", "openai/failed_200_server_error"]
    night = [failure(files[number % len(files)], retry_after="7200") for number in range(480)]

    played = await play(tmp_path, night)

    assert (EndedBy.FINISHED, Retries(server_error=480)) == (played.state.ended_by, played.state.retries)
    assert 8 * HOUR_S == pytest.approx(played.lasted_s)
    assert all(now < wait.until <= now + timedelta(seconds=60) for wait, now in _starts(played.waits))


async def test_backoff_of_server_errors_grows_to_a_minute(tmp_path: Path) -> None:
    """One, two, four ... seconds, of which jitter takes up to half away."""
    played = await play(tmp_path, [failure("openai/err_500") for _ in range(9)])

    pauses = [(wait.until - now).total_seconds() for wait, now in _starts(played.waits)]
    assert all(
        full / 2 <= pause <= full for pause, full in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True)
    ), pauses


LOST = [
    TransportFailed("connection reset", is_charge_unknown=True),
    failure("openai/err_409"),
    failure("fireworks/err_408"),
    failure("bedrock/err_408_model_timeout"),
    failure("openai/bad_200_html"),
    failure("anthropic/bad_200_cut_json"),
    failure("openrouter/bad_200_null"),
    failure("mantle/bad_200_html"),
    TransportFailed("read timed out", is_charge_unknown=True),
]


@pytest.mark.parametrize("answer", [ACT, INVALID, None], ids=["valid", "invalid", "malformed"])
async def test_nine_transport_failures_and_then_an_answer_start_the_count_again(tmp_path: Path, answer: object) -> None:
    """Any real answer of the model resets the streak, also one that is of no use."""
    played = await play(tmp_path, [*LOST, answer, *LOST])

    assert EndedBy.FINISHED == played.state.ended_by
    assert 18 == played.state.retries.transport
    assert 12 == played.state.requests_of_unknown_cost


async def test_the_tenth_transport_failure_in_a_row_ends_it_without_a_wait(tmp_path: Path) -> None:
    """The rollout is void: nobody knows what the model would have said."""
    played = await play(tmp_path, [ACT, *LOST, LOST[0], ACT])

    assert EndedBy.TRANSPORT_FAILURES == played.state.ended_by
    assert played.state.error is not None
    assert Cause.PROVIDER_UNREACHABLE == played.state.error.cause
    assert (10, 9) == (played.state.retries.transport, len(played.waits))
    assert Outcome.VOID == OUTCOME_OF_END[EndedBy.TRANSPORT_FAILURES]


@pytest.mark.parametrize(
    "between",
    ["openai/err_429_no_headers", "openai/err_500", "fireworks/err_425", "openai/failed_200_server_error"],
)
async def test_throttling_and_server_errors_neither_use_up_the_streak_nor_end_it(tmp_path: Path, between: str) -> None:
    """A 200 that carries an error is no answer: the tenth lost one is still the tenth."""
    in_between = [failure(between) for _ in range(25)]

    played = await play(tmp_path, [*in_between, *LOST, *in_between, LOST[0]])
    kept = await play(tmp_path / "nine", [*in_between, *LOST, *in_between])

    assert (EndedBy.TRANSPORT_FAILURES, EndedBy.FINISHED) == (played.state.ended_by, kept.state.ended_by)
    assert (10, 50) == (
        played.state.retries.transport,
        played.state.retries.rate_limited + played.state.retries.server_error,
    )


@pytest.mark.parametrize(
    ("said", "ended_by"),
    [
        (None, EndedBy.MALFORMED_RESPONSES),
        (INVALID, EndedBy.INVALID_TURNS),
        (REFUSAL, EndedBy.REFUSAL),
    ],
    ids=["malformed", "invalid", "refusal"],
)
async def test_the_tenth_useless_answer_in_a_row_ends_it_as_the_models_failure(
    tmp_path: Path, said: object, ended_by: EndedBy
) -> None:
    """Nine and a valid one go on. It counts with the drawing as it was left, so there is no cause for a void."""
    nine = await play(tmp_path / "nine", [*[said] * 9, ACT, *[said] * 9])
    ten = await play(tmp_path / "ten", [ACT, *[said] * 10, ACT])

    assert (EndedBy.FINISHED, ended_by, None) == (nine.state.ended_by, ten.state.ended_by, ten.state.error)
    assert Outcome.MODEL_FAILED == OUTCOME_OF_END[ended_by]
    assert 11 == len(ten.model.observations)


async def test_no_failure_of_the_connection_uses_up_the_models_own_counts(tmp_path: Path) -> None:
    """Nine of everything at once: malformed, invalid, lost, with throttling and server errors between them all."""
    rough: list[object] = [failure("openai/err_429_no_headers"), failure("openai/err_503_should_retry_false"), LOST[0]]
    items = [item for _ in range(9) for item in (*rough, None)] + [item for _ in range(9) for item in (*rough, INVALID)]

    played = await play(tmp_path, items)

    assert EndedBy.FINISHED == played.state.ended_by
    assert Retries(rate_limited=18, server_error=18, transport=18, malformed=9) == played.state.retries
    assert 9 == played.state.invalid_turns_lifetime


async def test_refusals_among_other_malformed_answers_end_it_as_malformed(tmp_path: Path) -> None:
    """Only ten refusals are a refusal."""
    played = await play(tmp_path, [*[REFUSAL] * 5, None, *[REFUSAL] * 4])

    assert EndedBy.MALFORMED_RESPONSES == played.state.ended_by


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("openai/err_401", Cause.PROVIDER_AUTH),
        ("anthropic/err_403", Cause.PROVIDER_AUTH),
        ("mantle/err_403_signature", Cause.PROVIDER_AUTH),
        ("bedrock/err_403_expired", Cause.PROVIDER_AUTH),
        ("openrouter/err_404_no_endpoint", Cause.PROVIDER_REFUSED),
        ("anthropic/err_402", Cause.PROVIDER_REFUSED),
        ("openai/err_413", Cause.PROVIDER_REFUSED),
        ("openai/err_400_context_length", Cause.PROVIDER_REFUSED),
    ],
)
async def test_what_is_refused_is_asked_once_and_ends_it_with_what_to_check(
    tmp_path: Path, file: str, cause: Cause
) -> None:
    """A refused key is a void of the operator's, not a day of requests."""
    error = failure(file)
    assert isinstance(error, Refused)

    played = await play(tmp_path, [error, ACT])

    assert (EndedBy.PROVIDER_REFUSED, 1, []) == (played.state.ended_by, len(played.model.observations), played.waits)
    assert played.state.error is not None
    assert (cause, error.hint) == (played.state.error.cause, played.state.error.hint)
    assert error.hint
    assert 0.0 == played.lasted_s


async def test_a_quota_that_is_used_up_alarms_after_some_minutes_and_goes_on_when_it_is_paid(tmp_path: Path) -> None:
    """It is asked like every 429; an operator sees that waiting alone will not help, and one event says so."""
    played = await play(tmp_path, [failure("openai/err_429_insufficient_quota") for _ in range(40)])

    assert EndedBy.FINISHED == played.state.ended_by
    assert {"quota_exhausted"} == {wait.for_ for wait in played.waits}
    began = [now for _, now in _starts(played.waits)]
    alarmed = [(now - DAWN).total_seconds() for wait, now in zip(played.waits, began, strict=True) if wait.alarm]
    quiet = [(now - DAWN).total_seconds() for wait, now in zip(played.waits, began, strict=True) if not wait.alarm]
    assert max(quiet) < 300 <= min(alarmed) < 300 + 60
    assert "insufficient_quota" in str(played.waits[-1].alarm)
    assert 1 == played.events.count("alarm")
    assert played.state.waiting is None


async def test_a_burst_limit_never_alarms(tmp_path: Path) -> None:
    """It heals by itself, however long it lasts."""
    played = await play(tmp_path, [failure("anthropic/err_429_ramp") for _ in range(60)])

    assert (EndedBy.FINISHED, 0) == (played.state.ended_by, played.events.count("alarm"))
    assert {None} == {wait.alarm for wait in played.waits}


@pytest.mark.parametrize(("asked_s", "waited_s"), [("7200", 7_200.0), ("0.001", None)])
async def test_a_longer_wait_is_honoured_and_a_shorter_one_is_not(
    tmp_path: Path, asked_s: str, waited_s: float | None
) -> None:
    """The header is a lower bound to our own backoff."""
    played = await play(tmp_path, [failure("openai/err_429_no_headers", retry_after=asked_s)])

    if waited_s is None:
        assert 0.5 <= played.lasted_s <= 1.0
    else:
        assert waited_s == pytest.approx(played.lasted_s)


async def test_what_a_failed_answer_cost_is_paid_and_a_refused_request_is_free(tmp_path: Path) -> None:
    """The sum is what the provider will bill."""
    failed = failure("openai/failed_200_server_error")
    failed.charge = Charge(Usage(input=1_000, output=10), Decimal("0.0042"))
    free: list[ProviderError] = [failure("openai/err_500"), failure("openai/err_429_no_headers"), Throttled("429")]

    played = await play(tmp_path, [failed, *free])

    assert (Decimal("0.0042"), 1_000) == (played.state.cost_usd, played.state.usage.input)
    assert 0 == played.state.requests_of_unknown_cost
