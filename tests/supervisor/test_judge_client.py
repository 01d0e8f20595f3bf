"""The judge's way to the API: what is sent, what each answer means, and where the key is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from contract.bridge import ThreadBridge
from contract.judge_records import Order
from evaluator_client.judge import Question, Reply
from evaluator_client.judge_prompt import ANSWER_SCHEMA, INSTRUCTIONS, request_of
from supervisor.judge_client import ResponsesJudge, reply_of, request_body, retry_after_s, usage_of
from tests.judge_fakes import PICTURES, USAGE, answer_text, judge_config
from tests.judge_server import JudgeServer, Request, judge_server, refuses, response, says
from tests.list_server import recorded, send

KEY = "sk-canary-judge-0123456789abcdef"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with judge_server() as world:
        yield world


def question(order: Order = "reference_first", **fields: Any) -> Question:
    request = request_of(judge_config(**fields), PICTURES)
    return Question(request, order, PICTURES.in_order(order), request.parameters.max_output_tokens)


def ask(server: JudgeServer, *, key: str = KEY, answer_s: float = 20.0, base: str | None = None) -> Reply:
    bridge = ThreadBridge(1, is_abandonable=True)
    judge = ResponsesJudge(
        base=base or server.endpoint, key=SecretStr(key), bridge=bridge, utc_now=lambda: NOW, answer_s=answer_s
    )

    async def work() -> Reply:
        return await judge.ask(question())

    return anyio.run(work)


def meaning(status: int, body: Any, **headers: str) -> Reply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return reply_of(status, headers, content, secrets=(SecretStr(KEY),), now=NOW)


def test_the_request_is_the_rubric_two_pictures_and_nothing_else() -> None:
    """No task, no model name of the pilot, no score, no file name: whatever is not listed here is not sent."""
    body = json.loads(request_body(question("candidate_first")))
    parts = body["input"][0].pop("content")

    assert {
        "model": "seer-1",
        "instructions": INSTRUCTIONS,
        "input": [{"type": "message", "role": "user"}],
        "text": {
            "format": {"type": "json_schema", "name": "drawing_comparison", "strict": True, "schema": ANSWER_SCHEMA}
        },
        "max_output_tokens": 2000,
        "store": False,
        "reasoning": {"effort": "low"},
    } == body
    assert [
        {"type": "input_text", "text": "IMAGE 1 is the candidate. IMAGE 2 is the reference."},
        {"type": "input_text", "text": "IMAGE 1"},
        {"type": "input_image", "detail": "high"},
        {"type": "input_text", "text": "IMAGE 2"},
        {"type": "input_image", "detail": "high"},
    ] == [{name: value for name, value in part.items() if name != "image_url"} for part in parts]


def test_a_model_that_does_not_reason_is_not_told_to() -> None:
    """The field itself is refused by such models."""
    assert "reasoning" not in json.loads(request_body(question(reasoning_effort=None)))


def test_an_answer_comes_back_with_its_usage_and_the_key_went_in_the_header_alone(server: JudgeServer) -> None:
    """The stand-in sees what the vendor would see."""
    server.usual = says(answer_text())
    reply = ask(server)
    (seen,) = server.seen

    assert (
        Reply(
            "ok",
            http_status=200,
            response_id="resp_0a1",
            model_reported="seer-1-2026-09-01",
            usage=USAGE,
            output_text=answer_text(),
        )
        == reply
    )
    assert ("/v1/responses", f"Bearer {KEY}") == (seen.path, seen.headers["authorization"])
    assert KEY not in json.dumps(seen.body)
    assert (PICTURES.reference, PICTURES.candidate) == seen.pictures


@pytest.mark.parametrize(
    ("status", "body", "outcome", "is_final"),
    [
        (429, {"error": {"code": "rate_limit_exceeded"}}, "throttled", False),
        (429, {"error": {"code": "insufficient_quota"}}, "throttled", False),
        (429, b"", "throttled", False),
        (500, {"error": {"code": "server_error"}}, "server_error", False),
        (502, b"<html>bad gateway</html>", "server_error", False),
        (520, b"", "server_error", False),
        (408, b"", "transport", False),
        (409, {"error": {"message": "Conflict."}}, "transport", False),
        (400, {"error": {"code": "invalid_image"}}, "transport", True),
        (401, {"error": {"code": "invalid_api_key"}}, "transport", True),
        (404, {"error": {"code": "model_not_found"}}, "transport", True),
        (301, b"", "transport", True),
        (200, b"<html>checking your browser</html>", "transport", False),
        (200, b"null", "transport", False),
        (200, b'{"id": "x", "output": [{"ty', "transport", False),
        (200, {"object": "list", "data": []}, "transport", False),
        (200, {}, "transport", False),
        (200, {"error": {"code": "server_error"}}, "server_error", False),
        (200, {"error": {"code": "rate_limit_exceeded"}}, "throttled", False),
        (200, response(None, status="failed", error={"code": "server_error"}), "server_error", False),
        (200, response(None, status="failed", error={"code": "rate_limit_exceeded"}), "throttled", False),
        (200, response(None, status="failed", error={"code": "invalid_prompt"}), "malformed", False),
        (200, response(None), "malformed", False),
        (200, response("", output=None), "malformed", False),
        (200, response("text", status="in_progress"), "malformed", False),
        (
            200,
            response("cu", status="incomplete", incomplete_details={"reason": "content_filter"}),
            "incomplete",
            False,
        ),
        (200, recorded("openai/refusal"), "refusal", False),
        (200, recorded("openai/content_filter"), "incomplete", False),
        (200, recorded("openai/truncated_max_tokens"), "incomplete", False),
    ],
)
def test_each_answer_has_one_meaning(status: int, body: Any, outcome: str, is_final: bool) -> None:
    """What is tried again, what waits, and what ends at once is decided here and nowhere else."""
    reply = meaning(status, body)

    assert (outcome, is_final, status) == (reply.outcome, reply.is_final, reply.http_status)


def test_only_a_full_answer_is_cut_by_its_limit() -> None:
    """Twice the room helps there and nowhere else."""
    cut = recorded("openai/truncated_max_tokens")

    assert meaning(200, cut).is_cut
    assert not meaning(200, recorded("openai/content_filter")).is_cut
    assert meaning(200, cut).usage is not None


def test_a_refusal_is_found_in_a_completed_response(server: JudgeServer) -> None:
    """It comes with status 200 and no error; only its item tells."""
    server.usual = refuses

    assert ("refusal", USAGE) == (ask(server).outcome, ask(server).usage)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "2500", "retry-after": "9"}, 2.5),
        ({"retry-after": "Thu, 01 Jan 2026 12:01:00 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_the_wait_is_read_from_every_form_of_header(headers: dict[str, str], wait_s: float | None) -> None:
    """Milliseconds before seconds before dates, and nonsense counts as silence."""
    assert wait_s == retry_after_s(headers, NOW)


@pytest.mark.parametrize(
    "usage", [None, [], {}, {"input_tokens": -1, "output_tokens": 1}, {"input_tokens": "9", "output_tokens": 1}]
)
def test_usage_that_is_no_usage_is_unknown_and_not_zero(usage: Any) -> None:
    """A cost that nobody reported must not look like nothing."""
    assert usage_of(usage) is None


@pytest.mark.parametrize("answer_s", [0.5])
def test_an_answer_that_trickles_ends_in_time(server: JudgeServer, answer_s: float) -> None:
    """A byte now and then keeps every socket's own timeout quiet."""
    enough = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler, request: Request) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "100000")
        handler.end_headers()
        while not enough.wait(0.02):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    server.usual = trickle
    reply = ask(server, answer_s=answer_s)
    enough.set()

    assert ("transport", "it did not answer in time") == (reply.outcome, reply.error)


def _half(handler: BaseHTTPRequestHandler, request: Request) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"id": ')


def _nothing(handler: BaseHTTPRequestHandler, request: Request) -> None:
    handler.close_connection = True


def _endless(handler: BaseHTTPRequestHandler, request: Request) -> None:
    send(handler, 200, b" " * (5 * 1024 * 1024))


@pytest.mark.parametrize("fault", [_half, _nothing, _endless])
def test_a_broken_connection_is_a_transport_failure(server: JudgeServer, fault: Any) -> None:
    """Whatever breaks on the way can be tried again."""
    server.usual = fault

    assert ("transport", False) == (ask(server).outcome, ask(server).is_final)


def test_nobody_at_the_address_is_a_transport_failure(server: JudgeServer) -> None:
    """The message names no address and no key."""
    reply = ask(server, base="http://127.0.0.1:9/v1")

    assert Reply("transport", error="no connection") == reply


def test_a_redirect_is_not_followed_with_the_key(server: JudgeServer) -> None:
    """A key goes to the configured address and to no other."""
    server.usual = lambda handler, request: send(handler, 307, b"", location=f"{server.endpoint}/elsewhere")
    reply = ask(server)

    assert (True, 1) == (reply.is_final, len(server.seen))


def test_a_key_that_no_header_may_have_is_said_without_the_key(server: JudgeServer) -> None:
    """The library's own message would quote it."""
    reply = ask(server, key="sk-canary\nx-evil: 1")

    assert reply.is_final
    assert "canary" not in repr(reply)
    assert not server.seen


def test_a_server_that_quotes_the_key_does_not_get_it_into_a_record(server: JudgeServer) -> None:
    """Errors lose their prose, and answers lose the key in whatever form it is quoted."""
    echo = json.dumps({"error": {"message": f"bad key {KEY}", "code": "invalid_api_key"}}).encode()
    server.answers = [
        lambda handler, request: send(handler, 401, echo),
        says(answer_text(evidence=f"your key is {KEY}"), model=KEY),
        says(f"prose with {KEY}"),
    ]

    assert KEY not in "".join(repr(ask(server)) for _ in range(3))
    assert 3 == len(server.seen)
