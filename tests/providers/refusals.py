"""How each vendor says no: one exception, six envelopes."""

from __future__ import annotations

from typing import Any, Final

import orjson

from tests.providers.http import Reply

JSON: Final = {"content-type": "application/json"}


class Refusal(Exception):
    """A request that the vendor would not serve. `code` is the vendor's own word where it has one.

    `is_front_door`: said by AWS before the service saw the request (signatures, tokens).
    """

    def __init__(self, status: int, message: str, *, code: str | None = None, is_front_door: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.is_front_door = is_front_door
        self.headers: dict[str, str] = {}


ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}


def invalid(message: str, *, code: str | None = None) -> Refusal:
    """HTTP 400."""
    return Refusal(400, message, code=code)


def reply_of(provider: str, refusal: Refusal) -> Reply:
    """The answer in the provider's own envelope."""
    status, message, code = refusal.status, refusal.message, refusal.code
    if provider == "anthropic" and status == 413:
        html = b"<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n</html>\r\n"
        return Reply(413, html, {"content-type": "text/html", "server": "cloudflare"})
    if provider == "mantle" and status == 404 and code is None:
        return Reply(404, b"", {"content-type": "text/plain"})
    headers = {**JSON, **refusal.headers}
    body: dict[str, Any]
    match provider:
        case "anthropic":
            error: dict[str, Any] = {"type": ANTHROPIC_TYPES.get(status, "api_error"), "message": message}
            if code is not None:
                error["details"] = {"error_code": code}
            body = {"type": "error", "error": error, "request_id": "req_sim"}
            headers["request-id"] = "req_sim"
        case "openrouter":
            body = {"error": {"code": status, "message": message}, "user_id": "user_sim"}
        case "fireworks":
            kind = "invalid_request_error" if status == 400 else "error"
            body = {"error": {"object": "error", "type": kind, "code": code, "message": message}}
            headers["x-request-id"] = "fw-sim"
        case "mantle" if not refusal.is_front_door:
            kind = "invalid_request_error" if status == 400 else "permission_error"
            body = {"error": {"code": code or "validation_error", "message": message, "param": None, "type": kind}}
            headers["x-amzn-requestid"] = "11111111-2222-3333-4444-555555555555"
        case "mantle" | "bedrock":
            body = {"message": message}
            headers["x-amzn-errortype"] = code or "ValidationException"
            headers["x-amzn-requestid"] = "11111111-2222-3333-4444-555555555555"
        case _:
            body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
            headers["x-request-id"] = "req_sim"
    return Reply(status, orjson.dumps(body), headers)


def fields(
    value: Any, where: str, *, required: frozenset[str] = frozenset(), optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The object `value`, when it has every required field and none that the API does not know. Raises `Refusal`."""
    if not isinstance(value, dict):
        raise invalid(f"{where}: an object is expected")
    missing = sorted(required - value.keys())
    if missing:
        raise invalid(f"{where}: missing required field {missing[0]!r}")
    unknown = sorted(value.keys() - required - optional)
    if unknown:
        raise invalid(f"{where}: extra inputs are not permitted, field: {unknown[0]}")
    return value


def one_of(value: Any, where: str, allowed: frozenset[str]) -> str:
    """`value`, when it is one of these words. Raises `Refusal`."""
    if value not in allowed:
        raise invalid(f"{where}: {value!r} is not one of {sorted(allowed)}")
    return str(value)


def non_empty_list(value: Any, where: str) -> list[Any]:
    """`value`, when it is a list with something in it. Raises `Refusal`."""
    if not isinstance(value, list) or not value:
        raise invalid(f"{where}: a non-empty list is expected")
    return value
