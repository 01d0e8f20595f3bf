"""The vision judge's way to OpenAI's Responses API: one request, no redirect, no hidden retry, an end to every wait.

The key is in the header of the request and nowhere else: not in a file, a log, a message or an argument.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import orjson
import requests
from pydantic import SecretStr
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from contract.bridge import Bridge
from contract.judge_records import JudgeUsage
from contract.redaction import redact
from evaluator_client.judge import Question, Reply
from evaluator_client.judge_prompt import ANSWER_SCHEMA, ORDER_LINES
from supervisor.addresses import is_loopback
from supervisor.http_words import reason_of

CONNECT_S: Final = 10.0
# Two pictures and some hundred tokens take well under a minute; reasoning may take longer.
ANSWER_S: Final = 180.0
# An answer of the largest output limit is far smaller.
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_WORD_CHARS_MAX: Final = 200
_RATE_CODES: Final = frozenset({"rate_limit_exceeded", "insufficient_quota"})


class ResponsesJudge:
    """A `JudgeModel` over HTTP. `base` is the complete base URL of the API, without a slash at the end."""

    def __init__(
        self, *, base: str, key: SecretStr, bridge: Bridge, utc_now: Callable[[], datetime], answer_s: float = ANSWER_S
    ) -> None:
        self._url = f"{base}/responses"
        self._key = key
        self._bridge = bridge
        self._utc_now = utc_now
        self._answer_s = answer_s

    async def ask(self, question: Question) -> Reply:
        """One request, at most `answer_s` seconds long."""
        with anyio.move_on_after(self._answer_s):
            return await self._bridge.call(lambda: self._ask(question))
        return Reply("transport", error="it did not answer in time")

    def _ask(self, question: Question) -> Reply:
        deadline = time.monotonic() + self._answer_s
        with requests.Session() as session:
            # A proxy of the environment is for the way out of this machine.
            session.trust_env = not is_loopback(urlsplit(self._url).hostname or "")
            try:
                with session.post(
                    self._url,
                    data=request_body(question),
                    auth=_Bearer(self._key),
                    headers={"content-type": "application/json", "user-agent": "autocad-bench"},
                    timeout=(CONNECT_S, self._answer_s),
                    allow_redirects=False,
                    stream=True,
                ) as answer:
                    content = _read(answer, deadline)
                    status, headers = answer.status_code, answer.headers
            except requests.RequestException as error:
                # What the library says about a request may quote its headers; its kind says enough.
                return Reply("transport", error=reason_of(error))
            except HTTPError:
                return Reply("transport", error="its answer was cut off")
            except _TooLong as error:
                return Reply("transport", error=str(error))
            except ValueError:
                return Reply("transport", error="the key has a character that no header may have", is_final=True)
        return reply_of(status, headers, content, secrets=(self._key,), now=self._utc_now())


def request_body(question: Question) -> bytes:
    """The request: fixed words, two pictures, the schema of the answer, and nothing about whose drawing it is."""
    request = question.request
    first, second = question.images

    def text(words: str) -> dict[str, Any]:
        return {"type": "input_text", "text": words}

    def image(png: bytes) -> dict[str, Any]:
        url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        return {"type": "input_image", "image_url": url, "detail": request.parameters.detail}

    body: dict[str, Any] = {
        "model": request.model,
        "instructions": request.instructions,
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    text(ORDER_LINES[question.order]),
                    text("IMAGE 1"),
                    image(first),
                    text("IMAGE 2"),
                    image(second),
                ],
            }
        ],
        "text": {
            "format": {"type": "json_schema", "name": "drawing_comparison", "strict": True, "schema": ANSWER_SCHEMA}
        },
        "max_output_tokens": question.max_output_tokens,
        "store": False,
    }
    if request.parameters.reasoning_effort is not None:
        body["reasoning"] = {"effort": request.parameters.reasoning_effort}
    return orjson.dumps(body)


def reply_of(
    status: int, headers: Mapping[str, str], content: bytes, *, secrets: tuple[SecretStr, ...], now: datetime
) -> Reply:
    """What one HTTP answer means. Prose of errors is left out: it may quote a key."""
    document = _parsed(content)
    if status == 200 and document is not None and document.get("object") in (None, "response"):
        return _response(document, secrets, retry_after_s=retry_after_s(headers, now))
    code = _error_code(document)
    said = redact(f"HTTP {status}{f' {code}' if code else ''}", secrets)
    wait_s = retry_after_s(headers, now)
    if status == 429 or (status == 200 and code in _RATE_CODES):
        return Reply("throttled", http_status=status, error=said, retry_after_s=wait_s)
    if 500 <= status <= 599:
        return Reply("server_error", http_status=status, error=said, retry_after_s=wait_s)
    if status in (408, 409):
        return Reply("transport", http_status=status, error=said, retry_after_s=wait_s)
    if 200 <= status <= 299:
        return Reply("transport", http_status=status, error=f"{said}, and its body is no response of this API")
    # Key, model, request or address: the same request is refused again.
    return Reply("transport", http_status=status, error=said, is_final=True)


def _response(document: dict[str, Any], secrets: tuple[SecretStr, ...], *, retry_after_s: float | None) -> Reply:
    """A response object. A refusal is an item of a completed one, and a failure comes with status 200."""
    facts: dict[str, Any] = {
        "http_status": 200,
        "response_id": _word(document.get("id"), secrets),
        "model_reported": _word(document.get("model"), secrets),
        "usage": usage_of(document.get("usage")),
    }
    status = document.get("status")
    if status == "failed" or (status is None and "output" not in document):
        code = _error_code(document)
        said = redact(f"the response failed{f': {code}' if code else ''}", secrets)
        if code in _RATE_CODES:
            return Reply("throttled", error=said, retry_after_s=retry_after_s, **facts)
        if code in ("", "server_error"):
            return Reply("server_error" if code or status == "failed" else "transport", error=said, **facts)
        return Reply("malformed", error=said, **facts)
    texts, has_refused = _said(document.get("output"))
    text = redact(texts, secrets) if texts else None
    if has_refused:
        return Reply("refusal", output_text=text, error="the model refused", **facts)
    if status == "incomplete":
        reason = _reason_of(document)
        is_cut = reason == "max_output_tokens"
        return Reply(
            "incomplete", output_text=text, error=f"incomplete: {reason or 'no reason'}", is_cut=is_cut, **facts
        )
    if status != "completed" or text is None:
        return Reply("malformed", output_text=text, error="the response holds no answer", **facts)
    return Reply("ok", output_text=text, **facts)


def _said(output: object) -> tuple[str, bool]:
    """All text of the messages, joined, and whether one of their parts is a refusal."""
    texts = []
    has_refused = False
    for item in output if isinstance(output, list) else []:
        content = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
        for part in content if isinstance(content, list) else []:
            kind = part.get("type") if isinstance(part, dict) else None
            has_refused |= kind == "refusal"
            if kind == "output_text" and isinstance(part.get("text"), str):
                texts.append(part["text"])
    return "".join(texts), has_refused


def usage_of(value: object) -> JudgeUsage | None:
    """The tokens of one response; null when it does not report them, or not as numbers."""
    if not isinstance(value, dict):
        return None

    def count(holder: object, name: str) -> int | None:
        found = holder.get(name, 0) if isinstance(holder, dict) else 0
        found = 0 if found is None else found
        return found if type(found) is int and found >= 0 else None

    total_in, total_out = count(value, "input_tokens"), count(value, "output_tokens")
    details_in, details_out = value.get("input_tokens_details"), value.get("output_tokens_details")
    cached, written = count(details_in, "cached_tokens"), count(details_in, "cache_write_tokens")
    reasoning = count(details_out, "reasoning_tokens")
    is_reported = "input_tokens" in value and "output_tokens" in value
    if not is_reported or total_in is None or total_out is None or None in (cached, written, reasoning):
        return None
    return JudgeUsage(
        input_tokens=total_in,
        cached_input_tokens=cached or 0,
        cache_write_tokens=written or 0,
        output_tokens=total_out,
        reasoning_tokens=reasoning or 0,
        total_tokens=count(value, "total_tokens") or total_in + total_out,
    )


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """How long the server asks us to wait: `retry-after-ms`, else `retry-after` in seconds or as a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = headers.get(name, "").strip()
        try:
            wait_s = float(said) * scale
        except ValueError:
            continue
        # Neither NaN nor infinity is a time.
        if 0 <= wait_s < 1e9:
            return wait_s
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - now).total_seconds())


class _TooLong(Exception):
    """An answer that does not end in time, or at all."""


def _read(answer: requests.Response, deadline: float) -> bytes:
    pieces = []
    size = 0
    # Piece by piece as they arrive: one that waits for a full buffer could be held for hours by a byte a second.
    while piece := answer.raw.read1(65_536, decode_content=True):
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise _TooLong(f"its answer is longer than {ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise _TooLong("it did not answer in time")
    return b"".join(pieces)


class _Bearer(AuthBase):
    """Sets the key at the place where requests would put a password from a .netrc."""

    def __init__(self, key: SecretStr) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["authorization"] = f"Bearer {self._key.get_secret_value().strip()}"
        return request


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _error_code(document: dict[str, Any] | None) -> str:
    """The vendor's own word for what is wrong, when it is a word."""
    error = document.get("error") if document is not None else None
    found = (error.get("code") or error.get("type")) if isinstance(error, dict) else None
    word = found[:60] if isinstance(found, str) else ""
    return word if word.replace("_", "").replace("-", "").replace(".", "").isalnum() else ""


def _reason_of(document: dict[str, Any]) -> str:
    details = document.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) and reason.replace("_", "").isalnum() and len(reason) <= 60 else ""


def _word(value: object, secrets: tuple[SecretStr, ...]) -> str | None:
    return redact(value[:_WORD_CHARS_MAX], secrets) if isinstance(value, str) else None
