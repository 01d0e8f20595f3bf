"""Sends requests to the simulator by hand, signed where they have to be, without any SDK."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from tests.providers.faults import WIRE
from tests.providers.http import Request
from tests.providers.sigv4 import ACCESS_KEY, ALGORITHM, SECRET_KEY, SESSION_TOKEN, signature_of
from tests.providers.simulator import Simulator

SERVICE: Final = {"mantle": "bedrock-mantle", "bedrock": "bedrock"}
NOW: Final = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Got:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        """The JSON value."""
        return orjson.loads(self.content)


def recorded_request(file: str) -> dict[str, Any]:
    """A request file of `tests/pilot/wire`: method, path, headers, body."""
    case: dict[str, Any] = orjson.loads((WIRE / file).read_bytes())
    return case


def signed(
    provider: str,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes,
    *,
    at: datetime = NOW,
    secret_key: str = SECRET_KEY,
    token: str | None = SESSION_TOKEN,
) -> dict[str, str]:
    """The headers with those of a signature."""
    stamped = at.strftime("%Y%m%dT%H%M%SZ")
    out = {**headers, "x-amz-date": stamped}
    if token is not None:
        out["x-amz-security-token"] = token
    path, _, query = target.partition("?")
    request = Request(provider, method, path, query, out, body, len(body))
    names = sorted(out)
    scope = (stamped[:8], "us-east-1", SERVICE[provider])
    signature = signature_of(request, signed=names, stamped=stamped, scope=scope, secret_key=secret_key)
    credential = f"{ACCESS_KEY}/{'/'.join(scope)}/aws4_request"
    out["authorization"] = (
        f"{ALGORITHM} Credential={credential}, SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return out


def headers_for(simulator: Simulator, provider: str, case: Mapping[str, Any], body: bytes) -> dict[str, str]:
    """The recorded headers with the placeholders filled in."""
    keep = {name: value for name, value in case["headers"].items() if not name.startswith("x-amz-") and name != "host"}
    if provider in SERVICE:
        keep.pop("authorization", None)
        keep["host"] = simulator.endpoints[provider].removeprefix("http://")
        return signed(provider, case["method"], case["path"], keep, body)
    key = simulator.keys[provider]
    return {name: value.replace(f"${provider.upper()}_API_KEY", key) for name, value in keep.items()}


def send(
    simulator: Simulator, provider: str, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
) -> Got:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(simulator.endpoints[provider].removeprefix("http://"), timeout=30)
    try:
        connection.request(method, target, body=body or None, headers=dict(headers))
        answer = connection.getresponse()
        return Got(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def send_case(simulator: Simulator, provider: str, case: Mapping[str, Any]) -> Got:
    """A recorded request, or one that was made from it."""
    body = b"" if case["body"] is None else orjson.dumps(case["body"])
    return send(simulator, provider, case["method"], case["path"], headers_for(simulator, provider, case, body), body)
