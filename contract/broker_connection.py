"""One kept-alive HTTP/1.1 connection to one broker on loopback, remade when it is lost.

Decides nothing: what to send again, and how often, is the client's business.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final
from urllib.parse import urlsplit

from contract.errors import ConfigError

# Two reads take a usual frame of 80 KB.
READ_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status and the whole body, or its first `bytes_max` + 1 bytes when there are more."""

    status: int
    body: bytes


class BrokerConnection:
    """Sends one request at a time. `close` may be called from another thread, and is final."""

    def __init__(self, base_url: str, *, connect_s: float) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(
                f"{base_url!r} is not the address of a broker",
                hint="Give http://HOST:PORT; a distant broker is reached through a tunnel on loopback.",
            )
        self._host = parts.hostname
        self._port = parts.port or 80
        self._connect_s = connect_s
        self._http: HTTPConnection | None = None
        self.is_closed = False

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, read_s: float, bytes_max: int
    ) -> Answer:
        """Send and read the whole answer within `read_s` seconds after the connection stands.

        Raises OSError or HTTPException when the answer is lost; the next exchange then connects anew.
        """
        try:
            http, sock = self._connected()
            deadline = time.monotonic() + read_s
            sock.settimeout(read_s)
            http.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers.items():
                http.putheader(name, value)
            if body:
                http.putheader("Content-Length", str(len(body)))
            http.endheaders(body or None)
            with http.getresponse() as response:
                return Answer(response.status, _read_body(response, sock, deadline=deadline, bytes_max=bytes_max))
        except (OSError, HTTPException):
            self._drop()
            raise

    def close(self) -> None:
        """End the connection and whatever call waits on it."""
        self.is_closed = True
        http = self._http
        if http is not None and http.sock is not None:
            # Closing alone would leave a reader in another thread asleep.
            with suppress(OSError):
                http.sock.shutdown(socket.SHUT_RDWR)
        self._drop()

    def _connected(self) -> tuple[HTTPConnection, socket.socket]:
        if self.is_closed:
            raise ConnectionError("this connection was closed by its owner")
        if self._http is not None and (self._http.sock is None or _has_news(self._http.sock)):
            self._drop()
        if self._http is None:
            http = HTTPConnection(self._host, self._port, timeout=self._connect_s)
            http.connect()
            self._http = http
        sock = self._http.sock
        assert sock is not None
        return self._http, sock

    def _drop(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            http.close()


def _has_news(sock: socket.socket) -> bool:
    """True when an idle connection can be read: the other end closed it, or sent what nobody asked for."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _read_body(response: HTTPResponse, sock: socket.socket, *, deadline: float, bytes_max: int) -> bytes:
    expected = response.length
    pieces: list[bytes] = []
    received = 0
    while received <= bytes_max and response.length != 0:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the answer did not arrive in time; {received} bytes did")
        sock.settimeout(left_s)
        piece = response.read1(READ_BYTES)
        if not piece:
            break
        pieces.append(piece)
        received += len(piece)
    if received > bytes_max:
        # The rest stays unread, so this connection cannot be used again.
        response.close()
        return b"".join(pieces)[: bytes_max + 1]
    if expected is not None and received < expected:
        raise ConnectionError(f"the answer was cut off: {received} of {expected} bytes")
    return b"".join(pieces)
