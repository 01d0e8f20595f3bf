"""Hands short-lived AWS credentials to pilots: an HTTP endpoint on the loopback interface, as AWS containers have one.

A pilot knows an address and a token of its own. The token opens this door for as long as its rollout lasts, and is
worth nothing anywhere else. AWS SDKs speak this protocol (`AWS_CONTAINER_CREDENTIALS_FULL_URI`).
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BufferedReader
from typing import Any, Final, Protocol, cast

import orjson
from pydantic import SecretStr

from contract.bridge import Bridge
from supervisor.aws_short_lived import NoCredentials, ShortLived

PATH: Final = "/credentials"
# The request of an SDK is a few hundred bytes.
REQUEST_BYTES_MAX: Final = 8 * 1024
# Whoever connects is on this machine and has its request ready.
SOCKET_TIMEOUT_S: Final = 5.0


class Source(Protocol):
    """Where the credentials come from."""

    def current(self) -> ShortLived:
        """Blocks, and may be called by many threads. Raises `NoCredentials`."""
        ...


@dataclass(frozen=True, slots=True)
class Loan:
    """What one pilot is told: where to ask, and the token to ask with."""

    url: str
    token: SecretStr


class AwsEndpoint:
    """The endpoint of one batch. Use `opened()`; it listens on 127.0.0.1 on a port that the system chooses."""

    def __init__(self, source: Source, *, bridge: Bridge) -> None:
        self._source = source
        self._bridge = bridge
        self._guard = threading.Lock()
        self._tokens: dict[str, bytes] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.endpoint = self

    @classmethod
    @contextmanager
    def opened(cls, source: Source, *, bridge: Bridge) -> Iterator[AwsEndpoint]:
        """Listen until the block ends."""
        endpoint = cls(source, bridge=bridge)
        serve = endpoint._server.serve_forever
        thread = threading.Thread(target=serve, args=(0.05,), name="aws-credentials", daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            endpoint._server.shutdown()
            thread.join()
            endpoint._server.server_close()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Loan]:
        """A token that is good until the block ends. Raises `NoCredentials` when there is nothing that it would open.

        The credentials are fetched before, so that the first request of a pilot does not wait for AWS.
        """
        await self._bridge.call(self._source.current)
        token, key = secrets.token_urlsafe(32), secrets.token_hex(8)
        with self._guard:
            self._tokens[key] = token.encode()
        try:
            host, port = self._server.server_address[:2]
            yield Loan(url=f"http://{host!s}:{port}{PATH}", token=SecretStr(token))
        finally:
            with self._guard:
                del self._tokens[key]

    def answer(self, path: str, presented: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON document for one request, on a thread of the server."""
        if path != PATH:
            return 404, _problem("not_found", "there is nothing here")
        if not self._is_lent(presented):
            return 401, _problem("token_unknown", "this token is not valid, or not any more")
        try:
            current = self._source.current()
        except NoCredentials as error:
            code = "unavailable" if error.is_temporary else "no_credentials"
            return (503 if error.is_temporary else 403), _problem(code, str(error))
        return 200, {
            "AccessKeyId": current.access_key_id,
            "SecretAccessKey": current.secret_access_key.get_secret_value(),
            "Token": current.session_token.get_secret_value(),
            "Expiration": f"{current.expires_at:%Y-%m-%dT%H:%M:%SZ}",
        }

    def _is_lent(self, presented: str) -> bool:
        with self._guard:
            tokens = list(self._tokens.values())
        # All of them, each in constant time: how long this takes says nothing about any token.
        content = presented.encode("latin-1", errors="replace")
        return sum(hmac.compare_digest(content, token) for token in tokens) > 0


def _problem(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Rollouts that start together ask together; a full queue would cost each a second.
    request_queue_size = 256
    endpoint: AwsEndpoint

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news, and a traceback might show what it sent."""


class _Capped:
    """Reads lines of the first bytes of a stream, and no more."""

    def __init__(self, stream: BufferedIOBase, bytes_max: int) -> None:
        self._stream = stream
        self.left = bytes_max

    def readline(self, size: int) -> bytes:
        line = self._stream.readline(min(size, self.left)) if self.left else b""
        self.left -= len(line)
        return line

    def close(self) -> None:
        self._stream.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    server_version = "credentials"
    sys_version = ""
    timeout = SOCKET_TIMEOUT_S
    server: _Server

    def setup(self) -> None:
        """Let nobody make us read more than a request of an SDK has."""
        super().setup()
        self._capped = _Capped(self.rfile, REQUEST_BYTES_MAX)
        # Lines are all that the base class reads.
        self.rfile = cast("BufferedReader", self._capped)

    def do_GET(self) -> None:
        """The one method."""
        if not self._capped.left:
            self._send(431, _problem("too_large", f"a request has at most {REQUEST_BYTES_MAX} bytes"))
            return
        self._send(*self.server.endpoint.answer(self.path, self.headers.get("Authorization", "")))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Requests that are none, and other methods. Nothing of what was sent is repeated."""
        self._send(404 if code == 501 else code, _problem("bad_request", "only GET is answered"))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = orjson.dumps(document)
        with suppress(OSError):
            # A request that could not be read has no version, and would be answered without a status line.
            self.request_version = "HTTP/1.0"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)
        self.close_connection = True
