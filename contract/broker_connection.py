"""One kept-alive HTTP/1.1 connection to one broker on loopback, remade when it is lost.

Speaks the small part of HTTP that a broker needs: a request with a known length, an answer with a known length or
until the end of the connection. Anything else is a lost answer. Decides nothing: what to send again, and how often,
is the client's business.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from contract.broker_api import HEAD_BYTES_MAX
from contract.errors import ConfigError

# Two reads take a usual frame of 80 KB.
READ_BYTES: Final = 65_536
ANSWER_HEAD_BYTES_MAX: Final = 16_384

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([2-5]\d\d)(?: |$)")


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
        self._address = (parts.hostname, parts.port or 80)
        self._connect_s = connect_s
        self._socket: socket.socket | None = None
        self.is_closed = False

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, read_s: float, bytes_max: int
    ) -> Answer:
        """Send and read the whole answer within `read_s` seconds after the connection stands.

        Raises OSError when the answer is lost; the next exchange then connects anew.
        """
        request = self._head(method, path, headers, body) + body
        try:
            sock = self._connected()
            deadline = time.monotonic() + read_s
            sock.settimeout(read_s)
            sock.sendall(request)
            answer, is_reusable = _read_answer(sock, deadline=deadline, bytes_max=bytes_max)
        except OSError:
            self._drop()
            raise
        if not is_reusable:
            self._drop()
        return answer

    def close(self) -> None:
        """End the connection and whatever call waits on it."""
        self.is_closed = True
        if self._socket is not None:
            # Closing alone would leave a reader in another thread asleep.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._drop()

    def _head(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        host, port = self._address
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"
        assert len(head) < HEAD_BYTES_MAX, f"request head of {len(head)} bytes is too long for the tunnel"
        return head

    def _connected(self) -> socket.socket:
        if self.is_closed:
            raise ConnectionError("this connection was closed by its owner")
        if self._socket is not None and _has_news(self._socket):
            self._drop()
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=self._connect_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _drop(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()


def _has_news(sock: socket.socket) -> bool:
    """True when an idle connection can be read: the other end closed it, or sent what nobody asked for."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _read_answer(sock: socket.socket, *, deadline: float, bytes_max: int) -> tuple[Answer, bool]:
    """The answer, and whether another may follow on this connection."""
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        if len(received) > ANSWER_HEAD_BYTES_MAX:
            raise ConnectionError("the head of the answer has no end")
        piece = _receive(sock, deadline)
        if not piece:
            raise ConnectionError(f"the connection ended after {len(received)} bytes of an answer's head")
        received += piece
    status_line, *lines = received[:end].split(b"\r\n")
    match = _STATUS_LINE.match(status_line)
    if match is None:
        raise ConnectionError("the answer is not HTTP")
    fields = {
        name.strip().lower(): value.strip().lower() for name, _, value in (line.partition(b":") for line in lines)
    }
    length = _length_of(fields)
    body = _read_body(sock, received[end + 4 :], length=length, deadline=deadline, bytes_max=bytes_max)
    is_kept = match[1] == b"1" and fields.get(b"connection") != b"close"
    return Answer(int(match[2]), body), is_kept and len(body) == length


def _length_of(fields: Mapping[bytes, bytes]) -> int | None:
    """The promised length of the body; None when it ends with the connection."""
    if b"transfer-encoding" in fields:
        raise ConnectionError("the answer comes in chunks, which no broker sends")
    value = fields.get(b"content-length")
    if value is None:
        return None
    if not value.isdigit():
        raise ConnectionError("the answer's length is not a number")
    return int(value)


def _read_body(sock: socket.socket, first: bytes, *, length: int | None, deadline: float, bytes_max: int) -> bytes:
    pieces, received = [first], len(first)
    while received <= bytes_max and (length is None or received < length):
        piece = _receive(sock, deadline)
        if not piece:
            break
        pieces.append(piece)
        received += len(piece)
    body = b"".join(pieces)
    if received > bytes_max:
        return body[: bytes_max + 1]
    if length is not None and received != length:
        raise ConnectionError(f"the answer has {received} bytes instead of {length}")
    return body


def _receive(sock: socket.socket, deadline: float) -> bytes:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the answer did not arrive in time")
    sock.settimeout(left_s)
    return sock.recv(READ_BYTES)
