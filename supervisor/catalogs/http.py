"""One bounded GET of a JSON object: no redirect, no retry, no key from a .netrc, and an end to every wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import requests
from pydantic import SecretStr
from requests.auth import AuthBase

from contract.redaction import redact
from supervisor.addresses import is_loopback
from supervisor.catalogs.entries import CatalogError
from supervisor.credentials import KEY_VARIABLES
from supervisor.http_words import reason_of

# OpenRouter's list, the longest, is about one megabyte for some hundred models.
LIST_BYTES_MAX: Final = 32 * 1024 * 1024
# No vendor has more; a list whose pages never end is not a list.
PAGES_MAX: Final = 100
CONNECT_S: Final = 5.0
# AWS answers some of these with 400 ("Common errors", AWS Signature Version 4).
_AWS_REFUSALS: Final = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
Signer = Callable[[str], Mapping[str, str]]


class Getter:
    """Asks one provider until `deadline` (of `time.monotonic`). `sign` gives the headers that authenticate a URL."""

    def __init__(self, provider: str, *, sign: Signer, secrets: tuple[SecretStr, ...], deadline: float) -> None:
        self._provider = provider
        self._sign = sign
        self._secrets = secrets
        self._deadline = deadline

    def get(self, url: str, *, missing_ok: bool = False) -> dict[str, Any] | None:
        """The JSON object at `url`; null for a 404 with `missing_ok`. Raises `CatalogError`."""
        host = urlsplit(url).hostname or ""
        with requests.Session() as session:
            # A proxy of the environment is for the way out of this machine.
            session.trust_env = not is_loopback(host)
            try:
                with session.get(
                    url,
                    auth=_Headers(self._sign(url)),
                    headers={"accept": "application/json", "user-agent": "autocad-bench"},
                    timeout=(min(CONNECT_S, self._left_s(host)), self._left_s(host)),
                    allow_redirects=False,
                    stream=True,
                ) as answer:
                    content = self._read(answer, host)
            except requests.RequestException as error:
                # Not chained: what the library says about a request may quote its headers.
                raise self._unreachable(host, reason_of(error)) from None
            except ValueError:
                message = f"the credential of {self._provider} has a character that no HTTP header may have"
                raise CatalogError("catalog_refused", message, refused_hint(self._provider)) from None
        if answer.status_code == 404 and missing_ok:
            return None
        self._check_status(answer, content, host)
        return self._parsed(answer, content, host)

    def _read(self, answer: requests.Response, host: str) -> bytes:
        pieces = []
        size = 0
        for piece in answer.iter_content(65_536):
            pieces.append(piece)
            size += len(piece)
            self._left_s(host)
            if size > LIST_BYTES_MAX:
                raise self._unreachable(host, f"its answer is longer than {LIST_BYTES_MAX} bytes")
        return b"".join(pieces)

    def _left_s(self, host: str) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise self._unreachable(host, "it did not answer in time")
        return left_s

    def _check_status(self, answer: requests.Response, content: bytes, host: str) -> None:
        status = answer.status_code
        if status == 200:
            return
        code = _code_of(content, answer.headers)
        said = redact(f"HTTP {status}{f' {code}' if code else ''}", self._secrets)
        if status in (401, 403) or code in _AWS_REFUSALS:
            message = f"{self._provider} refused the credential for its model list: {said}"
            raise CatalogError("catalog_refused", message, refused_hint(self._provider))
        raise self._unreachable(host, f"it answered {said}")

    def _parsed(self, answer: requests.Response, content: bytes, host: str) -> dict[str, Any]:
        try:
            value = orjson.loads(content)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            return value
        kind = answer.headers.get("content-type", "no content type").split(";")[0][:60]
        raise self._unreachable(host, f"its answer is not a JSON object ({kind}, {len(content)} bytes)")

    def _unreachable(self, host: str, reason: str) -> CatalogError:
        return unreachable(self._provider, host, reason)


def unreachable(provider: str, host: str, reason: str) -> CatalogError:
    """The error for a list that could not be had, whatever the reason."""
    hint = f"Check the network and `endpoints.{provider}`, then plan again"
    hint += "." if provider in ("mantle", "bedrock") else ", or pass --skip-direct-model-check."
    return CatalogError(
        "catalog_unreachable", f"the model list of {provider} at {host!r} cannot be had: {reason}", hint
    )


def refused_hint(provider: str) -> str:
    """What to check when a provider refuses our credential."""
    variable = KEY_VARIABLES.get(provider)
    if variable is not None:
        return f"Check that {variable} holds a whole, valid key of this provider that may list models."
    return "Check the AWS profile and its session, this machine's clock, and that it may call " + (
        "bedrock-mantle:ListModels." if provider == "mantle" else "bedrock:ListFoundationModels."
    )


class _Headers(AuthBase):
    """Sets our own headers at the place where requests would put a password from a .netrc."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(self._headers)
        return request


def _code_of(content: bytes, headers: Mapping[str, str]) -> str:
    """The provider's own word for what is wrong. Its prose is left out: it may quote a key."""
    aws = headers.get("x-amzn-errortype", "").split(":")[0]
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    found = (error.get("code") or error.get("type")) if isinstance(error, dict) else None
    word = aws or (str(found) if isinstance(found, str) else "")
    return word[:60] if word.replace("_", "").replace("-", "").replace(".", "").isalnum() else ""
