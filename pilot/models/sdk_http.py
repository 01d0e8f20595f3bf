"""What the OpenAI and the Anthropic SDK share: their HTTP client, tamed, and one request sent through it.

Only the modules of those SDKs import this one, because it needs their HTTP library.
"""

from __future__ import annotations

import platform
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import urlsplit

import anyio
import httpx2
from pydantic import SecretStr

from contract.errors import StateError
from contract.phases import Cause
from pilot.models.body import Body
from pilot.models.echoes import without_secrets
from pilot.models.wire import Answer, Request
from pilot.ports import Refused, TransportFailed

CONNECT_TIMEOUT_S: Final = 10.0
# For one chunk of a body, which is about a quarter of a megabyte.
WRITE_TIMEOUT_S: Final = 120.0
# A whole exchange may take this many read timeouts: an answer that trickles in would never run into one.
EXCHANGE_READ_TIMEOUTS: Final = 2
# A desktop turn lies between two requests, and the default of 5 s would mean a TLS handshake for each of them.
KEEPALIVE_S: Final = 120.0
# An answer is some kilobytes; the longest output that a profile allows stays far below.
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
# One chunk of a body, and all chunks of a process together.
CHUNK_BYTES_MAX: Final = 768 * 1024
CHUNK_BYTES_MIN: Final = 128 * 1024
CHUNKS_BYTES_MAX: Final = 12 * 1024 * 1024
# What the SDKs send of their own accord. Anything else came from environment variables, which are not for us.
OWN_HEADERS: Final = frozenset(
    {"accept", "content-type", "user-agent", "authorization", "x-api-key", "anthropic-version"}
)
TELEMETRY_PREFIX: Final = "x-stainless-"


class AnswerTooLong(httpx2.RequestError):
    """The answer has more than `ANSWER_BYTES_MAX` bytes."""


class TamedHttp(httpx2.AsyncClient):
    """Mixed into an SDK's own HTTP client: answers are read whole, up to a limit, and no cookie is kept."""

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send once. The returned response is read and closed, whatever `stream` says."""
        response = await super().send(request, stream=True, **options)
        try:
            content = await _read(response)
        finally:
            await response.aclose()
            # Rollouts that share this client must not be told apart, or together, by a cookie.
            self.cookies.clear()
        # The content is decoded already, and its length is its own.
        headers = [
            (name, value)
            for name, value in response.headers.multi_items()
            if name.lower() not in {"content-encoding", "transfer-encoding", "content-length"}
        ]
        return httpx2.Response(response.status_code, headers=headers, content=content, request=request)


def http_options(read_timeout_s: float) -> dict[str, Any]:
    """Arguments for an SDK's HTTP client: no proxy from the environment, no redirect, idle connections kept."""
    return {
        "trust_env": False,
        "verify": _tls(),
        "follow_redirects": False,
        "timeout": timeouts(read_timeout_s),
        # Bounded by the number of rollouts, each of which sends one request at a time.
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S),
    }


def timeouts(read_timeout_s: float) -> httpx2.Timeout:
    """Explicit ones: connect, one chunk of the body, the answer, and no wait for the pool, which is unbounded."""
    return httpx2.Timeout(connect=CONNECT_TIMEOUT_S, write=WRITE_TIMEOUT_S, read=read_timeout_s, pool=CONNECT_TIMEOUT_S)


def strange_headers(default_headers: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of default headers that an SDK took from environment variables, to be left out."""
    return tuple(
        name
        for name in default_headers
        if name.lower() not in OWN_HEADERS and not name.lower().startswith(TELEMETRY_PREFIX)
    )


class Sdk(Protocol):
    """The one method of an SDK's client that we use."""

    async def post(self, path: str, *, cast_to: Any, content: Any, options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Errors:
    """The exception classes of one SDK."""

    status: type[Exception]
    any: type[Exception]


async def exchange(
    sdk: Sdk,
    errors: Errors,
    request: Request,
    *,
    endpoint: str,
    headers: Mapping[str, Any],
    secrets: Iterable[SecretStr],
    read_timeout_s: float,
) -> Answer:
    """Send once and return whatever came back, with no secret in it. Raises `TransportFailed` and `StateError`."""
    sending = Sending(request.body)
    options = {
        "headers": {
            **request.headers,
            **headers,
            "content-type": "application/json",
            "content-length": str(request.body.length),
        }
    }
    problem: str
    try:
        with anyio.fail_after(CONNECT_TIMEOUT_S + EXCHANGE_READ_TIMEOUTS * read_timeout_s):
            response = await sdk.post(request.path, cast_to=httpx2.Response, content=sending, options=options)
        return without_secrets(_answer(response), secrets)
    except errors.status as error:
        # Every status is an answer; what it means is decided elsewhere, for all providers alike.
        return without_secrets(_answer(error.response), secrets)  # type: ignore[attr-defined]  # both SDKs have it
    except StateError:
        raise
    except (errors.any, httpx2.HTTPError, httpx2.StreamError, anyio.EndOfStream, OSError, ValueError) as error:
        problem = reason(error)
    # Outside of the handler: the SDK's exceptions hold the request, and with it the key.
    if sending.error is not None:
        raise sending.error
    raise TransportFailed(
        f"no answer from {urlsplit(endpoint).hostname}: {problem}", is_charge_unknown=sending.is_all_handed_over
    )


class Sending:
    """A body on its way. Remembers how far it came, because an SDK's exception does not say.

    Each chunk costs a way through three libraries, so they are large while few bodies are on their way, and small when
    two hundred rollouts send through one slow line.
    """

    under_way: ClassVar[int] = 0

    def __init__(self, body: Body) -> None:
        self._body = body
        self._handed_over = 0
        self.error: StateError | None = None

    @property
    def is_all_handed_over(self) -> bool:
        """True once the last byte may have reached the provider, which may then charge for it."""
        return self._handed_over >= self._body.length

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        Sending.under_way += 1
        chunk_bytes = min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, CHUNKS_BYTES_MAX // Sending.under_way))
        try:
            for chunk in self._body.chunks(chunk_bytes):
                self._handed_over += len(chunk)
                yield chunk
        except StateError as error:
            self.error = error
            raise
        finally:
            Sending.under_way -= 1


def reason(error: BaseException) -> str:
    """Why there is no answer: kinds of errors and the system's own words, never text that may hold a header."""
    links = list(_causes(error))
    kinds = [type(link).__name__ for link in links if not type(link).__module__.startswith(("openai", "anthropic"))]
    words = next((link.strerror for link in reversed(links) if isinstance(link, OSError) and link.strerror), None)
    certificate = next((link for link in links if isinstance(link, ssl.SSLCertVerificationError)), None)
    if certificate is not None:
        words = certificate.verify_message
    kind = kinds[0] if kinds else type(error).__name__
    return f"{kind} ({words})" if words else kind


def header_key(key: SecretStr | None, provider: str) -> str:
    """The key, fit for a header. Raises `Refused` when it is missing or no header can carry it."""
    value = "" if key is None else key.get_secret_value()
    if value and value.isascii() and value.isprintable() and " " not in value:
        return value
    raise Refused(
        f"the key of provider {provider!r} is {'not one that a header can carry' if value else 'missing'}",
        cause=Cause.PROVIDER_AUTH,
        hint="Set the provider's key again, without spaces or line breaks in or around it.",
    )


def keep_freed_memory() -> None:
    """Make the allocator keep what one chunk needed for the next: making 18 MB of chunks took 9 ms, and takes 5.

    glibc gives every freed block above a limit back to the kernel, and the next one comes back page by page; freeing
    one larger block raises that limit for good (mallopt(3), "dynamic mmap threshold"). Elsewhere it does nothing.
    """
    bytes(4 * CHUNK_BYTES_MAX)


def ask_no_program_for_the_processor() -> None:
    """Make Python take the processor's name as unknown, which it is on most systems.

    The SDKs tell vendors the platform's name, and `platform` runs `uname -p` for it, with our environment and so with
    the keys in it. It caches the answer in the result of `platform.uname`.
    """
    vars(platform.uname())["processor"] = ""


@cache
def _tls() -> ssl.SSLContext:
    # Reading the certificates takes 40 ms, and every pool of a shared process would do it.
    return httpx2.create_ssl_context(trust_env=False)


async def _read(response: httpx2.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise AnswerTooLong(f"the answer has more than {ANSWER_BYTES_MAX} bytes", request=response.request)
        parts.append(part)
    return b"".join(parts)


def _answer(response: httpx2.Response) -> Answer:
    return Answer(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )


def _causes(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
