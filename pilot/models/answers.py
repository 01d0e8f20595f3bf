"""What an HTTP answer is: a model's, or one of the failures that the loop knows what to do about.

`read_answer` decides by status, code and type. Texts are quoted and never read, but for one limit of Mantle that has
nothing else. What is not known fails closed: it ends the rollout and says what came.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from pydantic import SecretStr

from contract.credentials import KEY_VARIABLES
from contract.phases import Cause
from contract.profiles import Profile, Wire
from contract.redaction import redact
from pilot.models import error_codes as codes
from pilot.models.waits import retry_after_s, wait_s
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

log = logging.getLogger("pilot.models")

# How much of a provider's own words a message quotes, and how much of a name.
QUOTE_CHARS: Final = 300
NAME_CHARS: Final = 100
# A longer text is not searched for keys and therefore not quoted.
QUOTABLE_CHARS: Final = 16 * 1024


def read_answer(
    answer: Answer, profile: Profile, *, now: datetime, secrets: Iterable[SecretStr] = ()
) -> dict[str, Any]:
    """The JSON body of a model's answer, whose outer shape is that of the profile's wire.

    Raises a `ProviderError` for everything else. Its message names the provider, the status, the code and the request,
    and quotes the provider without any of the `secrets`. What a failed answer cost is in `failed_body`.
    """
    body = _json_object(answer.body)
    failure = _failure_of(answer, body, profile)
    if failure is not None:
        raise _Reading(answer, profile, failure, now, tuple(secrets)).error()
    if body is None or not _HAS_SHAPE[profile.wire](body):
        what = "no JSON object" if body is None else f"not what a {profile.wire.value} answer holds"
        message = f"{profile.provider} answered {answer.status} with {len(answer.body)} bytes that are {what}"
        raise TransportFailed(redact(message + _request_id(answer, body), secrets), is_charge_unknown=True)
    return body


def failed_body(answer: Answer) -> dict[str, Any] | None:
    """The JSON body of a failed answer that may hold a usage: those with status 2xx are charged for what they used."""
    return _json_object(answer.body) if _is_success(answer.status) else None


def telemetry(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a trace keeps: request ids, limits, timings, advice; nothing that names an account."""
    return {name: value for name, value in headers.items() if _KEPT_HEADER.fullmatch(name)}


_KEPT_HEADER: Final = re.compile(
    r"(x-)?request-id|x-amzn-(requestid|errortype)|x-generation-id|cf-ray|date|retry-after(-ms)?|x-should-retry"
    r"|openai-(processing-ms|version)|(x|anthropic)-ratelimit-.*|fireworks-.*|x-amzn-bedrock-.*"
)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What an answer says about its failure.

    `status` is the HTTP status, or in a 2xx the one that its code means; null when that means none. `names` are all the
    codes and types in lower case, `code` is the one to show, `message` the provider's own words.
    """

    status: int | None
    names: frozenset[str]
    code: str
    message: str
    metadata: Mapping[str, Any]
    request: str


def _failure_of(answer: Answer, body: dict[str, Any] | None, profile: Profile) -> _Failure | None:
    """Null when the answer carries no failure; whether it is a model's is another question."""
    envelope = _envelope(body)
    aws_code = _aws_code(answer, body) if profile.provider in codes.AWS_PROVIDERS else ""
    if _is_success(answer.status) and envelope is None and not aws_code:
        return None
    said = envelope or {}
    if "x-should-retry" in answer.headers:
        log.debug("%s advises x-should-retry: %s", profile.provider, answer.headers["x-should-retry"][:NAME_CHARS])
    details, metadata = _mapping(said.get("details")), _mapping(said.get("metadata"))
    told = (aws_code, said.get("code"), said.get("type"), details.get("error_code"))
    # A type of OpenAI's says less than its code, and a code that is a number says no more than the status.
    shown = [str(name) for name in told if isinstance(name, (str, int)) and not isinstance(name, bool) and name != ""]
    names = frozenset(name.lower() for name in shown)
    return _Failure(
        status=codes.status_of(answer.status, names, aws_code=aws_code.lower(), body=_mapping(body)),
        names=names,
        code=_text(details.get("error_code")) or (shown[0] if shown else ""),
        message=_words(answer, body, said, metadata),
        metadata=metadata,
        request=_request_id(answer, body),
    )


def _envelope(body: dict[str, Any] | None) -> dict[str, Any] | None:
    """The error that a JSON body carries; null when it carries none."""
    if body is None:
        return None
    error = body.get("error")
    if isinstance(error, dict) and error:
        return error
    if error:
        return {"message": error}
    if body.get("status") == "failed" or body.get("type") == "error":
        return {"message": "it failed and does not say why"}
    return None


def _aws_code(answer: Answer, body: dict[str, Any] | None) -> str:
    """The exception's name: `com.amazon#ThrottlingException:http://...` is `ThrottlingException`."""
    told = answer.headers.get("x-amzn-errortype") or _mapping(body).get("__type")
    return told.partition(":")[0].rpartition("#")[2].strip() if isinstance(told, str) else ""


def _words(answer: Answer, body: dict[str, Any] | None, said: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """The provider's own words; of HTML what a browser would show."""
    if body is None:
        text = answer.body[: QUOTABLE_CHARS + 1].decode(errors="replace")
        return re.sub(r"<[^<>]*>", " ", text) if "<" in text else text
    told = (said.get("message"), body.get("message"), body.get("Message"), metadata.get("raw"))
    return ": ".join(text for text in told if isinstance(text, str) and text)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Makes the error of one failed answer."""

    answer: Answer
    profile: Profile
    failure: _Failure
    now: datetime
    secrets: tuple[SecretStr, ...]

    def error(self) -> ProviderError:
        """The error whose class says what the loop does next."""
        status, names = self.failure.status, self.failure.names
        if status is None:
            return self._unclassified()
        if status == 429 or (status == 402 and self._is_reserved_credit()):
            wait = wait_s(self._headers(), self.profile.provider, self.now)
            return Throttled(self._message(), retry_after_s=wait, heals=not names & codes.DOES_NOT_HEAL)
        if 500 <= status <= 599 or status == 425:
            return ServerError(self._message(), retry_after_s=retry_after_s(self.answer.headers, self.now))
        if status in (408, 409):
            return TransportFailed(self._message())
        if status == 413 or self._is_body_length():
            return TooLarge(self._message(), hint="Lower `body_bytes_max` in the model's profile.")
        if names & codes.CONTEXT_FULL:
            return ContextFull(self._message(), hint="Let the model's profile make its digest earlier.")
        if names & codes.CREDENTIALS_EXPIRED:
            return CredentialsExpired(self._message(), hint=self._what_to_check(), cause=Cause.PROVIDER_AUTH)
        if self._is_about_the_key(status):
            return Refused(self._message(), hint=self._what_to_check(), cause=Cause.PROVIDER_AUTH)
        return Refused(self._message(), hint=self._hint(status))

    def _unclassified(self) -> ProviderError:
        """A 2xx with an error that no status stands for."""
        if self.failure.names:
            return Refused(self._message(), hint="Look the code up in the provider's documentation.")
        # An error without a code is no error of this provider: something on the way made it, and may be gone soon.
        return TransportFailed(self._message())

    def _is_reserved_credit(self) -> bool:
        return self.failure.metadata.get("limit_source") == codes.RESERVED_CREDIT

    def _is_body_length(self) -> bool:
        if self.profile.provider != "mantle" or self.failure.status != 400:
            return False
        return bool(self.failure.names & codes.TOO_LARGE) or _is_about_body_length(self.failure.message)

    def _is_about_the_key(self, status: int) -> bool:
        if status == 401 or self.failure.names & codes.AWS_KEY_REFUSED:
            return True
        is_moderation = "reasons" in self.failure.metadata or "flagged_input" in self.failure.metadata
        return status == 403 and not is_moderation and bool(self.failure.names & codes.KEY_REFUSED)

    def _headers(self) -> Mapping[str, str]:
        """With those that OpenRouter quotes of the provider behind it, where it has none of its own."""
        quoted = _mapping(self.failure.metadata.get("headers"))
        return {
            **{str(name).lower(): value for name, value in quoted.items() if isinstance(value, str)},
            **self.answer.headers,
        }

    def _message(self) -> str:
        code = f" {_short(self.failure.code, NAME_CHARS, self.secrets)}" if self.failure.code else ""
        said = _short(self.failure.message, QUOTE_CHARS, self.secrets)
        start = f"{self.profile.provider} answered {self.answer.status}{code}{self.failure.request}"
        return redact(f"{start}: {said}" if said else start, self.secrets)

    def _what_to_check(self) -> str:
        variable = KEY_VARIABLES.get(self.profile.provider)
        if variable is not None:
            return f"Check that {variable} holds a key of this account that may use the model."
        return (
            "Check that the AWS profile (`aws.profile`, or the host's) is signed in and may use the model in this "
            "region, and that the clock of this machine is right."
        )

    def _hint(self, status: int) -> str:
        if status == 404 or self.failure.names & codes.UNKNOWN_MODEL:
            provider = self.profile.provider
            return (
                f"Check the model id with `autocad-bench models --provider {provider}`, and the provider's address and "
                "base path."
            )
        if status == 402:
            return "Add credit to the provider's account."
        if not 400 <= status <= 499:
            return f"Check `endpoints.{self.profile.provider}`: whoever answers there is no model API."
        return ""


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _is_success(status: int) -> bool:
    return 200 <= status <= 299


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _request_id(answer: Answer, body: dict[str, Any] | None) -> str:
    headers = ("x-request-id", "request-id", "x-amzn-requestid", "x-generation-id", "cf-ray")
    told = next((answer.headers[name] for name in headers if answer.headers.get(name)), None)
    told = told or _text(_mapping(body).get("request_id"))
    return f" (request {_short(told, NAME_CHARS, ())})" if told else ""


def _short(text: str, chars_max: int, secrets: Iterable[SecretStr]) -> str:
    """On one line, without secrets, and cut; in this order, because half a key has no shape."""
    if len(text) > QUOTABLE_CHARS:
        return f"({len(text)} characters, not quoted)"
    line = " ".join("".join(char if char.isprintable() else " " for char in redact(text, secrets)).split())
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"


def _is_about_body_length(message: str) -> bool:
    """Mantle's refusal of a long body, which has no code of its own: see `_BODY_LENGTH`."""
    text = message[:2_000].lower()
    return any(pattern.search(text) for pattern in _BODY_LENGTH) and not _OTHER_LENGTH.search(text)


# Parallel rollout operations, "Provider paths": a Mantle 400 about the body's length is a 413. No documentation has its
# words, so these are the usual ones; and the others are about something else that can be too long.
_BODY_LENGTH: Final = (
    re.compile(r"length limit"),
    re.compile(r"body.*(length|size|large|long|exceed)|(length|size|large|long|exceed).*body"),
    re.compile(r"payload.*(large|size)|(large|size).*payload"),
    re.compile(r"request.*too large|too large.*request"),
)
_OTHER_LENGTH: Final = re.compile(r"sanitize|context|token")


def _responses_shape(body: dict[str, Any]) -> bool:
    # `failed` is an error, and the other states are those of an answer that is not finished.
    is_over = body.get("status", "completed") in ("completed", "incomplete")
    return is_over and _is_list_of_objects(body.get("output")) and _is_usage(body)


def _chat_shape(body: dict[str, Any]) -> bool:
    choices = body.get("choices")
    if not _is_list_of_objects(choices) or not choices:
        return False
    return isinstance(choices[0].get("message"), dict) and _is_usage(body)


def _messages_shape(body: dict[str, Any]) -> bool:
    return body.get("type", "message") == "message" and _is_list_of_objects(body.get("content")) and _is_usage(body)


def _converse_shape(body: dict[str, Any]) -> bool:
    message = _mapping(_mapping(body.get("output")).get("message"))
    return _is_list_of_objects(message.get("content")) and _is_usage(body)


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _is_usage(body: dict[str, Any]) -> bool:
    return isinstance(body.get("usage"), (dict, type(None)))


_HAS_SHAPE: Final[Mapping[Wire, Callable[[dict[str, Any]], bool]]] = {
    Wire.RESPONSES: _responses_shape,
    Wire.CHAT: _chat_shape,
    Wire.MESSAGES: _messages_shape,
    Wire.CONVERSE: _converse_shape,
}
