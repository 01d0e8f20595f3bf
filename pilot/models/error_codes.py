"""The codes and types of providers' errors, in lower case, and the HTTP status that each stands for.

Sources: the error references of OpenAI, Anthropic, OpenRouter and Fireworks, and the exceptions of the Bedrock runtime
API with those that every AWS service has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

AWS_PROVIDERS: Final = frozenset({"mantle", "bedrock"})

# What is used up until somebody pays or raises a limit. OpenAI's type and codes, Anthropic's `details.error_code`.
DOES_NOT_HEAL: Final = frozenset(
    {
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "billing_hard_limit_reached",
        "billing_not_active",
        "enforced_spend_limit_reached",
        "billing_error",
        "servicequotaexceededexception",
    }
)
# OpenRouter's `metadata.limit_source` of a 402 that ends when the requests that run now are paid for.
RESERVED_CREDIT: Final = "openrouter_in_flight_budget"
CONTEXT_FULL: Final = frozenset({"context_length_exceeded"})
TOO_LARGE: Final = frozenset({"request_too_large", "payload_too_large", "requestentitytoolargeexception", "413"})
CREDENTIALS_EXPIRED: Final = frozenset({"expiredtoken", "expiredtokenexception", "requestexpired"})
UNKNOWN_MODEL: Final = frozenset(
    {"model_not_found", "not_found_error", "resourcenotfoundexception", "invalid_model", "not_found"}
)
AWS_KEY_REFUSED: Final = frozenset(
    {
        "accessdenied",
        "accessdeniedexception",
        "incompletesignature",
        "incompletesignatureexception",
        "invalidclienttokenid",
        "invalidsignatureexception",
        "missingauthenticationtoken",
        "missingauthenticationtokenexception",
        "notauthorized",
        "optinrequired",
        "signaturedoesnotmatch",
        "unrecognizedclientexception",
    }
)
# A 403 with one of these is about the key; others are about the place or the content. OpenRouter's code is the status.
KEY_REFUSED: Final = frozenset(
    {
        "403",
        "access_denied",
        "authentication_error",
        "forbidden",
        "invalid_api_key",
        "permission_denied",
        "permission_error",
        "unauthorized",
    }
)

_THROTTLED: Final = 429
# AWS codes that decide whatever the status is: some come with 400.
_AWS_STATUS: Final[Mapping[str, int]] = {
    "throttling": _THROTTLED,
    "throttlingexception": _THROTTLED,
    "throttledexception": _THROTTLED,
    "toomanyrequestsexception": _THROTTLED,
    "requestthrottled": _THROTTLED,
    "requestthrottledexception": _THROTTLED,
    "requestlimitexceeded": _THROTTLED,
    "provisionedthroughputexceededexception": _THROTTLED,
    "slowdown": _THROTTLED,
    "modelnotreadyexception": _THROTTLED,
    "internalfailure": 500,
    "internalserverexception": 500,
    "serviceunavailable": 503,
    "serviceunavailableexception": 503,
    "modeltimeoutexception": 408,
    "requestentitytoolargeexception": 413,
}
_AWS_MODEL_ERROR: Final = frozenset({"modelerrorexception", "modelstreamerrorexception"})

# What the code of an error means that came with status 200.
_STATUS: Final[Mapping[str, int]] = {
    **dict.fromkeys(DOES_NOT_HEAL, _THROTTLED),
    "rate_limit_exceeded": _THROTTLED,
    "rate_limit_error": _THROTTLED,
    "too_many_requests": _THROTTLED,
    "server_error": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "api_error": 500,
    "bad_gateway": 502,
    "provider_unavailable": 502,
    "service_unavailable": 503,
    "timeout_error": 504,
    "overloaded_error": 529,
    "request_timeout": 408,
    "request_too_large": 413,
    "payload_too_large": 413,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    # AWS exceptions in a 200; with another status they are found by name.
    **dict.fromkeys(CREDENTIALS_EXPIRED | AWS_KEY_REFUSED, 403),
    "validationexception": 400,
    "resourcenotfoundexception": 404,
}


def status_of(status: int, names: frozenset[str], *, aws_code: str, body: Mapping[str, Any]) -> int | None:
    """The HTTP status that an error is treated as; null for a 2xx whose code means none that is known.

    `names` and `aws_code` are in lower case.
    """
    meaning = _AWS_STATUS.get(aws_code)
    if meaning is not None and (meaning == _THROTTLED or not 500 <= status <= 599):
        return meaning
    if aws_code in _AWS_MODEL_ERROR and not 500 <= status <= 599:
        return _status_of_model_error(body.get("originalStatusCode"))
    if not 200 <= status <= 299:
        return status
    numbers = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) == 3]
    known = [_STATUS[name] for name in names if name in _STATUS]
    meant = [number for number in numbers if 400 <= number <= 599] or known
    # Of a code and its type the higher one is the more precise: types are `invalid_request_error` for almost anything.
    return max(meant, default=None)


def _status_of_model_error(original: object) -> int:
    """A model that failed behind the API: what it said itself, where that was a refusal."""
    return original if isinstance(original, int) and 400 <= original <= 499 and original != 424 else 500
