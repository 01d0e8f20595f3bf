"""Every answer of a model API is exactly one thing, whatever it says and however it is broken."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr

from contract.phases import Cause
from contract.profiles import HistoryKind, Profile, Wire
from pilot.models.answers import QUOTE_CHARS, failed_body, read_answer, telemetry
from pilot.models.waits import WAIT_S_MAX, duration_s, wait_s
from pilot.models.wire import Answer
from pilot.ports import (
    ContextFull,
    CredentialsExpired,
    ProviderError,
    Refused,
    ServerError,
    Throttled,
    TooLarge,
    TransportFailed,
)

WIRE_FILES = Path(__file__).parent / "wire"
CASES = json.loads((WIRE_FILES / "index.json").read_text())["cases"]
# The date that the stored answers carry.
NOW = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)
CANARY = SecretStr("canary/key+of=this test")

PROFILES = {
    provider: Profile(provider=provider, wire=wire, history=HistoryKind.APPEND)
    for provider, wire in (
        ("openai", Wire.RESPONSES),
        ("openrouter", Wire.RESPONSES),
        ("anthropic", Wire.MESSAGES),
        ("fireworks", Wire.CHAT),
        ("mantle", Wire.CHAT),
        ("bedrock", Wire.CONVERSE),
    )
}
CLASSES: dict[str, type[ProviderError]] = {
    "rate_limited": Throttled,
    "server_error": ServerError,
    "too_early": ServerError,
    "transient": TransportFailed,
    "too_large": TooLarge,
    "fatal": Refused,
}
MODEL_ANSWERS = {"action", "action_compacted", "compacted", "invalid_batch", "malformed"}
OK = {
    "openai": {"status": "completed", "output": []},
    "openrouter": {"status": "completed", "output": []},
    "anthropic": {"type": "message", "content": []},
    "fireworks": {"choices": [{"message": {"role": "assistant"}}]},
    "mantle": {"choices": [{"message": {"role": "assistant"}}]},
    "bedrock": {"output": {"message": {"content": []}}},
}


def answer_of(file: str) -> Answer:
    """A stored answer as the HTTP client hands it over."""
    stored = json.loads((WIRE_FILES / file).read_text())
    body = stored["body"]
    content = body if isinstance(body, str) else json.dumps(body)
    return Answer(stored["status"], stored["headers"], content.encode())


def said(status: int, body: Any, **headers: str) -> Answer:
    """An answer with this JSON body; underscores of header names are dashes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, content)


def error_of(answer: Answer, provider: str = "openai") -> ProviderError:
    """What `read_answer` raises for it."""
    with pytest.raises(ProviderError) as caught:
        read_answer(answer, PROFILES[provider], now=NOW, secrets=[CANARY])
    return caught.value


def cases(*outcomes: str) -> list[Any]:
    return [pytest.param(case, id=case["file"]) for case in CASES if case.get("outcome") in outcomes]


@pytest.mark.parametrize("case", cases(*CLASSES))
def test_a_stored_failure_is_what_the_case_table_says(case: dict[str, Any]) -> None:
    """Retrying what is final burns a night, and ending what would have healed burns the rollout."""
    provider = case["file"].partition("/")[0]

    error = error_of(answer_of(case["file"]), provider)

    wanted = CLASSES[case["outcome"]]
    assert isinstance(error, wanted)
    assert case["outcome"] != "fatal" or not isinstance(error, TooLarge)
    assert f"{provider} answered" in error.message
    if "code" in case:
        assert case["code"] in error.message
    if "wait_s" in case:
        assert case["wait_s"] == error.retry_after_s  # type: ignore[attr-defined]  # only those that wait have one


@pytest.mark.parametrize("case", cases(*MODEL_ANSWERS))
def test_a_stored_answer_of_a_model_is_let_through_whole(case: dict[str, Any]) -> None:
    """Whether it holds a usable call is for the wire to say: it was answered, and paid for."""
    answer = answer_of(case["file"])

    body = read_answer(answer, PROFILES[case["file"].partition("/")[0]], now=NOW)

    assert json.loads(answer.body) == body


def test_the_case_table_has_all_the_answers() -> None:
    """A table that lost its rows would pass."""
    responses = [case for case in CASES if case["kind"] == "response"]

    assert 154 == len(responses)
    assert {"catalog"} == {case["outcome"] for case in responses} - CLASSES.keys() - MODEL_ANSWERS


AUTH = Cause.PROVIDER_AUTH
NO = Cause.PROVIDER_REFUSED
OTHERS: list[tuple[str, Answer, type[ProviderError], Cause | None]] = [
    # Codes of AWS decide before the status does.
    ("bedrock", said(400, {"message": "slow"}, x_amzn_errortype="TooManyRequestsException"), Throttled, None),
    ("bedrock", said(400, {"__type": "com.amazon.coral#ThrottlingException"}), Throttled, None),
    ("bedrock", said(503, {}, x_amzn_errortype="ThrottlingException"), Throttled, None),
    ("bedrock", said(200, {}, x_amzn_errortype="ThrottlingException:http://x/"), Throttled, None),
    ("bedrock", said(200, {}, x_amzn_errortype="InternalServerException"), ServerError, None),
    ("bedrock", said(500, {}, x_amzn_errortype="ValidationException"), ServerError, None),
    ("bedrock", said(424, {"originalStatusCode": 500}, x_amzn_errortype="ModelErrorException"), ServerError, None),
    ("bedrock", said(424, {"originalStatusCode": 400}, x_amzn_errortype="ModelErrorException"), Refused, NO),
    ("bedrock", said(424, {"originalStatusCode": 429}, x_amzn_errortype="ModelErrorException"), Throttled, None),
    ("bedrock", said(400, {}, x_amzn_errortype="RequestExpired"), CredentialsExpired, AUTH),
    ("mantle", said(403, {}, x_amzn_errortype="ExpiredToken"), CredentialsExpired, AUTH),
    ("bedrock", said(403, {}, x_amzn_errortype="UnrecognizedClientException"), Refused, AUTH),
    ("bedrock", said(403, {}, x_amzn_errortype="AccessDeniedException"), Refused, AUTH),
    ("mantle", said(400, {}, x_amzn_errortype="IncompleteSignature"), Refused, AUTH),
    # The code of another vendor in a header of AWS means nothing where there is no AWS.
    ("openai", said(400, {}, x_amzn_errortype="ThrottlingException"), Refused, NO),
    # Statuses.
    ("openai", said(429, b"<html>slow down</html>"), Throttled, None),
    ("openai", said(429, b""), Throttled, None),
    ("openai", said(599, b"\xff\xfe"), ServerError, None),
    ("anthropic", said(504, {"type": "error", "error": {"type": "timeout_error"}}), ServerError, None),
    ("openrouter", said(529, {"error": {"code": 529}}), ServerError, None),
    ("openai", said(425, b""), ServerError, None),
    ("openai", said(408, b""), TransportFailed, None),
    ("openai", said(413, b""), TooLarge, NO),
    ("openai", said(401, b""), Refused, AUTH),
    ("openai", said(403, {"error": {"code": "unsupported_country_region_territory"}}), Refused, NO),
    ("openai", said(403, b"<html>blocked</html>"), Refused, NO),
    ("fireworks", said(403, {"error": {"code": "FORBIDDEN", "type": "error"}}), Refused, AUTH),
    ("openrouter", said(403, {"error": {"code": 403, "message": "Key limit exceeded"}}), Refused, AUTH),
    ("anthropic", said(403, {"type": "error", "error": {"type": "permission_error"}}), Refused, AUTH),
    ("fireworks", said(412, {"error": {"code": "PRECONDITION_FAILED"}}), Refused, NO),
    ("fireworks", said(422, {"error": {"type": "invalid_request_error"}}), Refused, NO),
    ("openai", said(400, {"error": {"code": "rate_limit_exceeded"}}), Refused, NO),
    ("openrouter", said(402, {"error": {"code": 402, "message": "no credit"}}), Refused, NO),
    (
        "openrouter",
        said(402, {"error": {"code": 402, "metadata": {"limit_source": "openrouter_in_flight_budget"}}}),
        Throttled,
        None,
    ),
    ("openai", said(400, {"error": {"code": "context_length_exceeded", "type": "x"}}), ContextFull, NO),
    # Words alone decide nothing, but for the body's length at Mantle.
    ("openai", said(400, {"error": {"message": "rate limit: request body too large, context length"}}), Refused, NO),
    ("bedrock", said(400, {"message": "length limit exceeded"}), Refused, NO),
    ("mantle", said(400, {"error": {"message": "Payload is too large"}}), TooLarge, NO),
    ("mantle", said(400, {"error": {"message": "Request too large"}}), TooLarge, NO),
    ("mantle", said(400, {"error": {"code": "request_too_large", "message": "no"}}), TooLarge, NO),
    ("mantle", said(400, {"error": {"message": "body: too many tokens exceed the context length"}}), Refused, NO),
    # Statuses that no model API has.
    ("openai", said(100, b""), Refused, NO),
    ("openai", said(302, b"", location="https://login.example/?token=canary"), Refused, NO),
    ("openai", said(0, b""), Refused, NO),
    ("openai", said(600, b""), Refused, NO),
    # A 2xx that carries an error is that error.
    ("openai", said(200, {"error": {"code": 503}, "output": []}), ServerError, None),
    ("openai", said(200, {"error": {"code": "503"}}), ServerError, None),
    ("openrouter", said(200, {"error": {"code": 401, "message": "no"}}), Refused, AUTH),
    ("openrouter", said(200, {"error": {"code": 408}}), TransportFailed, None),
    ("openai", said(200, {"status": "failed", "error": {"code": "invalid_prompt"}}), Refused, NO),
    ("openai", said(200, {"status": "failed", "error": {"code": "insufficient_quota"}}), Throttled, None),
    ("openai", said(200, {"status": "failed", "error": None, "output": []}), TransportFailed, None),
    ("openai", said(200, {"error": "upstream connect error", "output": []}), TransportFailed, None),
    ("openai", said(200, {"error": {"message": "unknown"}}), TransportFailed, None),
    ("openai", said(200, {"error": {"code": "some_new_code"}}), Refused, NO),
    ("openai", said(200, {"error": ["x"]}), TransportFailed, None),
    ("anthropic", said(200, {"type": "error", "error": {"type": "overloaded_error"}}), ServerError, None),
    ("anthropic", said(200, {"type": "error", "error": {"type": "rate_limit_error"}}), Throttled, None),
    ("anthropic", said(200, {"type": "error"}), TransportFailed, None),
    # A 2xx that is no answer of a model.
    ("openai", said(200, []), TransportFailed, None),
    ("openai", said(200, 7), TransportFailed, None),
    ("openai", said(200, "text"), TransportFailed, None),
    ("openai", said(204, b""), TransportFailed, None),
    ("openai", said(200, {}), TransportFailed, None),
    ("openai", said(200, {"output": None, "error": None}), TransportFailed, None),
    ("openai", said(200, {"output": {}, "status": "completed"}), TransportFailed, None),
    ("openai", said(200, {"output": ["text"], "status": "completed"}), TransportFailed, None),
    ("openai", said(200, {"output": [], "status": "in_progress"}), TransportFailed, None),
    ("openai", said(200, {"output": [], "status": "cancelled"}), TransportFailed, None),
    ("openai", said(200, {"output": [], "usage": [1]}), TransportFailed, None),
    ("openai", said(200, b'{"output": [], "x": "\xff"}'), TransportFailed, None),
    ("openai", said(200, b'{"output": [], "x": NaN}'), TransportFailed, None),
    ("openai", said(200, b"[" * 100_000), TransportFailed, None),
    ("fireworks", said(200, {"choices": []}), TransportFailed, None),
    ("fireworks", said(200, {"choices": [{"message": "text"}]}), TransportFailed, None),
    ("anthropic", said(200, {"type": "message", "content": "text"}), TransportFailed, None),
    ("anthropic", said(200, {"type": "ping", "content": []}), TransportFailed, None),
    ("bedrock", said(200, {"output": {"message": "text"}}), TransportFailed, None),
    ("bedrock", said(200, {"output": "text"}), TransportFailed, None),
]


@pytest.mark.parametrize(("provider", "answer", "kind", "cause"), OTHERS)
def test_other_answers_are_classified_by_the_same_rules(
    provider: str, answer: Answer, kind: type[ProviderError], cause: Cause | None
) -> None:
    """The table is finite; what providers and the boxes before them send is not."""
    error = error_of(answer, provider)

    assert kind is type(error)
    assert cause == getattr(error, "cause", None)


@pytest.mark.parametrize("provider", PROFILES)
@pytest.mark.parametrize("more", [{}, {"error": None}, {"error": {}}, {"usage": None}, {"unknown": [1]}])
@pytest.mark.parametrize("content_type", ["application/json", "text/html", ""])
def test_the_shape_makes_an_answer_and_no_header_or_empty_error_unmakes_it(
    provider: str, more: dict[str, Any], content_type: str
) -> None:
    """A model's answer that is thrown away was paid for."""
    body = {**OK[provider], **more}

    assert body == read_answer(said(200, body, content_type=content_type), PROFILES[provider], now=NOW)
    assert body == read_answer(said(201, body), PROFILES[provider], now=NOW)


@pytest.mark.parametrize(
    ("provider", "error"),
    [
        ("openai", {"type": "insufficient_quota", "code": "insufficient_quota"}),
        ("openai", {"type": "insufficient_quota", "code": "credit_balance_exhausted"}),
        ("openai", {"code": "project_spend_limit_exceeded"}),
        ("anthropic", {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}),
    ],
)
def test_a_quota_that_is_used_up_does_not_heal(provider: str, error: dict[str, Any]) -> None:
    """It is asked again like every 429, and after some minutes somebody is told."""
    caught = error_of(said(429, {"error": error}), provider)

    assert isinstance(caught, Throttled)
    assert not caught.heals
    burst = error_of(said(429, {"error": {"type": "rate_limit_error", "code": "rate_limit_exceeded"}}), provider)
    assert isinstance(burst, Throttled)
    assert burst.heals


@pytest.mark.parametrize(
    ("provider", "answer", "hint"),
    [
        ("openai", said(401, {"error": {"code": "invalid_api_key"}}), "OPENAI_API_KEY"),
        ("openrouter", said(401, b""), "OPENROUTER_API_KEY"),
        ("anthropic", said(401, b""), "ANTHROPIC_API_KEY"),
        ("fireworks", said(401, b""), "FIREWORKS_API_KEY"),
        ("mantle", said(403, {}, x_amzn_errortype="InvalidSignatureException"), "AWS profile"),
        ("bedrock", said(403, {}, x_amzn_errortype="ExpiredTokenException"), "AWS profile"),
        ("openai", said(404, {"error": {"code": "model_not_found"}}), "autocad-bench models --provider openai"),
        ("mantle", said(404, b""), "base path"),
        ("openai", said(302, b""), "endpoints.openai"),
        ("anthropic", said(402, {"error": {"type": "billing_error"}}), "credit"),
    ],
)
def test_a_refusal_says_what_to_check(provider: str, answer: Answer, hint: str) -> None:
    """It ends the rollout, so an operator reads it."""
    assert hint in error_of(answer, provider).hint


def test_a_message_names_provider_status_code_and_request_on_one_line() -> None:
    """Whoever asks the provider's support needs them all."""
    answer = said(
        400,
        {"type": "error", "error": {"type": "invalid_request_error", "message": "Image side\n\ttoo\x00 long."}},
        request_id="req_01E",
    )

    assert (
        "anthropic answered 400 invalid_request_error (request req_01E): Image side too long."
        == error_of(answer, "anthropic").message
    )


def test_a_quote_is_cut_and_holds_no_secret() -> None:
    """Also when the secret stands where the quote is cut, or in a place where no secret belongs."""
    secret = CANARY.get_secret_value()
    for start in range(QUOTE_CHARS - 30, QUOTE_CHARS + 10):
        body = {"error": {"message": "x" * start + " " + secret + " sk-Ab3dEf6hIj9kLm2nOp5qRs8t", "code": secret}}
        message = error_of(said(400, body, x_request_id=secret)).message

        assert "canary" not in message
        assert "sk-A" not in message
        assert len(message) < QUOTE_CHARS + 150


def test_a_page_is_quoted_as_a_reader_sees_it() -> None:
    """Tags say nothing."""
    assert (
        "anthropic answered 503: 503 Service Temporarily Unavailable 503 Service Temporarily Unavailable"
        == error_of(answer_of("anthropic/err_503_html.json"), "anthropic").message
    )


def test_what_the_provider_behind_a_route_said_is_quoted_and_what_it_flagged_is_not() -> None:
    """`Provider returned error` alone helps nobody; the flagged input is the task's."""
    limited = error_of(answer_of("openrouter/error_envelope_200_rate_limit.json"), "openrouter").message
    moderated = {"code": 403, "message": "Flagged.", "metadata": {"reasons": ["a"], "flagged_input": "draw a plate"}}

    assert "Provider returned error: rate_limit_error" in limited
    assert "plate" not in error_of(said(403, {"error": moderated}), "openrouter").message


def test_a_failed_answer_shows_what_it_used() -> None:
    """A run that failed in the middle is charged for its tokens; a refused request is not."""
    body = {"status": "failed", "error": {"code": "server_error"}, "usage": {"input_tokens": 7}}

    assert body == failed_body(said(200, body))
    assert failed_body(said(500, body)) is None
    assert failed_body(said(200, [1])) is None


def test_an_answer_that_is_none_may_have_been_charged_and_a_refused_one_was_not() -> None:
    """A cost that nobody can tell is counted as such."""
    lost = error_of(said(200, b"<html>"))
    refused = error_of(said(409, {}))
    assert isinstance(lost, TransportFailed)
    assert isinstance(refused, TransportFailed)

    assert (True, False) == (lost.is_charge_unknown, refused.is_charge_unknown)


def test_a_trace_keeps_the_headers_that_explain_an_answer() -> None:
    """Limits, timings and ids as they come; no cookie and no account."""
    kept = {
        "x-request-id": "r",
        "request-id": "r",
        "x-amzn-requestid": "r",
        "x-ratelimit-remaining-tokens-cache-adjusted-prompt": "1",
        "anthropic-ratelimit-input-tokens-reset": "t",
        "fireworks-server-time-to-first-token": "0.4",
        "openai-processing-ms": "12",
        "retry-after": "1",
        "x-should-retry": "false",
    }

    assert kept == telemetry({**kept, "set-cookie": "s", "anthropic-organization-id": "o", "content-type": "c"})


@pytest.mark.parametrize(
    ("provider", "headers", "expected"),
    [
        ("openai", {"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ("openai", {"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ("openai", {"retry-after": "1.5"}, 1.5),
        ("openai", {"retry-after": "Sun, 01 Nov 2026 12:00:30 GMT"}, 30.0),
        ("openai", {"retry-after": "Sun, 01 Nov 2026 11:59:00 GMT"}, 0.0),
        ("openai", {"retry-after": "-3"}, None),
        ("openai", {"retry-after": "nan"}, None),
        ("openai", {"retry-after": ""}, None),
        ("openai", {"x-ratelimit-reset-tokens": "6s"}, 6.0),
        ("openai", {"x-ratelimit-reset-tokens": "1m30s", "x-ratelimit-reset-requests": "12ms"}, 90.0),
        ("openai", {"retry-after": "2", "x-ratelimit-reset-tokens": "6s"}, 2.0),
        (
            "openai",
            {
                "x-ratelimit-reset-requests": "17h",
                "x-ratelimit-limit-requests": "10000",
                "x-ratelimit-remaining-requests": "9000",
                "x-ratelimit-reset-tokens": "20s",
                "x-ratelimit-limit-tokens": "30000",
                "x-ratelimit-remaining-tokens": "100",
            },
            20.0,
        ),
        ("anthropic", {"anthropic-ratelimit-input-tokens-reset": "2026-11-01T12:00:38Z"}, 38.0),
        ("anthropic", {"anthropic-ratelimit-input-tokens-reset": "2026-11-01T11:00:38Z"}, 0.0),
        ("anthropic", {"anthropic-ratelimit-input-tokens-reset": "2026-11-01"}, None),
        ("openrouter", {"x-ratelimit-reset": "1793534460000"}, 60.0),
        ("openrouter", {"x-ratelimit-reset": "1"}, 0.0),
        ("openrouter", {"x-ratelimit-reset": "999999999999999"}, None),
        ("fireworks", {"x-ratelimit-reset": "1793534460000"}, None),
        ("bedrock", {}, None),
        ("openai", {"retry-after": "7200"}, 7200.0),
        ("openai", {"retry-after": "1793534460"}, WAIT_S_MAX),
    ],
)
def test_the_time_to_wait_is_read_in_order(provider: str, headers: dict[str, str], expected: float | None) -> None:
    """Milliseconds, seconds or a date, then the provider's own; what cannot be read is passed over."""
    assert expected == wait_s(headers, provider, NOW)


def test_the_headers_that_openrouter_quotes_say_how_long_too() -> None:
    """Its own answer may have none of them."""
    limited = {"code": 429, "metadata": {"headers": {"X-RateLimit-Reset": "1793534460000"}}}
    error = error_of(said(429, {"error": limited}), "openrouter")
    assert isinstance(error, Throttled)

    assert 60.0 == error.retry_after_s


def test_the_limits_of_an_answer_do_not_delay_after_a_server_error() -> None:
    """They tell when the quota is full again, not when the server is well."""
    headers = {"x-ratelimit-reset-tokens": "6m"}
    error = error_of(Answer(500, headers, b""))
    assert isinstance(error, ServerError)

    assert error.retry_after_s is None


def test_a_long_wait_is_honoured_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """An operator wants to know it now."""
    with caplog.at_level(logging.WARNING, logger="pilot.models"):
        assert 3_600.0 == wait_s({"retry-after": "3600"}, "openai", NOW)
        assert [] == caplog.records
        assert 3_601.0 == wait_s({"retry-after": "3601"}, "openai", NOW)

    assert ["the provider asks to wait 3601 s"] == [record.getMessage() for record in caplog.records]


@given(st.timedeltas(timedelta(0), timedelta(hours=1)))
def test_every_duration_is_read_back(duration: timedelta) -> None:
    """Hours to milliseconds, with leading parts left out when they are zero."""
    millis = duration // timedelta(milliseconds=1)
    minutes, rest = divmod(millis, 60_000)
    seconds, rest = divmod(rest, 1_000)
    text = "".join(f"{count}{unit}" for count, unit in ((minutes, "m"), (seconds, "s"), (rest, "ms")) if count) or "0s"

    assert millis / 1000 == pytest.approx(duration_s(text))


HEADER_TEXT = st.one_of(
    st.text(max_size=40),
    st.from_regex(r"-?[0-9]{0,20}(\.[0-9]{0,5})?(ms|s|m|h|d|e9)?", fullmatch=True),
    st.datetimes().map(lambda when: when.isoformat() + "Z"),
    st.sampled_from(["Sun, 01 Nov 2026 12:00:30 GMT", "Sun, 99 Nov 9999 99:99:99 +9999", "inf", "1e308", "0", "１"]),
)
WAIT_HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "retry-after",
            "retry-after-ms",
            "x-ratelimit-reset",
            "x-ratelimit-reset-tokens",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-limit-tokens",
            "anthropic-ratelimit-tokens-reset",
            "anthropic-ratelimit-tokens-remaining",
            "x-amzn-errortype",
            "x-request-id",
            "x-should-retry",
        ]
    ),
    HEADER_TEXT,
)


@given(WAIT_HEADERS, st.sampled_from(sorted(PROFILES)))
def test_no_header_makes_a_wait_that_is_negative_or_endless(headers: dict[str, str], provider: str) -> None:
    """Whatever it says, a finite time or nothing."""
    waited = wait_s(headers, provider, NOW)

    assert waited is None or 0 <= waited <= WAIT_S_MAX


WORDS = st.sampled_from(
    ["rate_limit_exceeded", "server_error", "insufficient_quota", "429", "500", "failed", "error", "message", "", "é"]
)
FIELDS = ["error", "code", "type", "message", "status", "output", "content", "choices", "usage", "metadata"]
FIELDS += ["details", "error_code", "headers", "raw", "limit_source", "__type", "originalStatusCode"]
FIELDS += ["request_id", "reasons"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
STATUSES = st.one_of(
    st.integers(0, 1000), st.sampled_from([200, 201, 204, 400, 401, 402, 403, 404, 408, 413, 424, 425, 429, 500, 503])
)


@given(
    STATUSES,
    WAIT_HEADERS,
    JSON.map(lambda value: json.dumps(value).encode()) | st.binary(),
    st.sampled_from(sorted(OK)),
)
@example(200, {}, b'{"error": {"code": true, "details": {"error_code": {}}, "metadata": [1]}}', "openai")
@example(403, {}, b'{"error": {"code": 403, "metadata": {"headers": [1], "raw": {}}}}', "openrouter")
def test_no_answer_is_anything_but_a_models_or_a_provider_error(
    status: int, headers: dict[str, str], body: bytes, provider: str
) -> None:
    """Another exception would be our bug in the provider's name, and end the rollout as one."""
    answer, message = Answer(status, headers, body), ""
    try:
        read = read_answer(answer, PROFILES[provider], now=NOW, secrets=[CANARY])
    except ProviderError as error:
        message = error.message

    if message:
        assert message.startswith(f"{provider} answered {status}")
        assert message.isprintable()
    else:
        assert 200 <= status <= 299
        assert json.loads(body) == read


def test_a_huge_answer_makes_a_short_message() -> None:
    """A box on the way may send anything; a field of a megabyte is not searched for keys, so it is not quoted."""
    page = error_of(said(502, b"body length " * 200_000))
    field = error_of(said(400, {"error": {"message": "x" * 1_000_000, "code": "y" * 1_000}}))

    assert len(page.message) < QUOTE_CHARS + 100
    assert "(1000000 characters, not quoted)" in field.message
    assert len(field.message) < 200
