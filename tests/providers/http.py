"""A small HTTP/1.1 server on loopback, one port for each name, in a thread of its own.

It does what servers do to clients on bad days: it can drop a connection before or after it has read a body, stop in
the middle of an answer, or wait until it is told to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

READ_BYTES: Final = 256 * 1024
HEAD_BYTES_MAX: Final = 64 * 1024
STOP_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Header names are in lower case; `path` is as it was sent, without the query."""

    server: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    body_bytes: int

    @property
    def parameters(self) -> dict[str, str]:
        """The query, decoded; the last of equal names counts."""
        return dict(parse_qsl(self.query, keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `cut_after` sends so many bytes of the body and then drops the connection; `is_lost` sends nothing."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    is_lost: bool = False


class Drop(Exception):
    """Raised by `before_body` to drop the connection without having read the body."""


Handler = Callable[[Request], Awaitable[Reply]]


class Server:
    """Listens on a free port of 127.0.0.1 for each of `names`. Use it as a context manager.

    `before_body` is called with the name and the path once the head is read, and may raise `Drop`. With `kept_bytes`
    only that much of the start of a body is kept, so that large bodies cost nothing.
    """

    def __init__(
        self,
        names: Sequence[str],
        handler: Handler,
        *,
        before_body: Callable[[str, str, str], None] = lambda name, method, path: None,
        kept_bytes: int | None = None,
    ) -> None:
        self.ports: dict[str, int] = {}
        self._names = tuple(names)
        self._handler = handler
        self._before_body = before_body
        self._kept_bytes = kept_bytes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(STOP_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S_MAX)
        assert not self._thread.is_alive()

    def url(self, name: str) -> str:
        """Where `name` listens, without a path."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def call_soon(self, work: Callable[[], object]) -> None:
        """Run `work` in the server's loop."""
        self._loop.call_soon_threadsafe(work)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        servers = []
        for name in self._names:
            server = await asyncio.start_server(self._connected(name), "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
            self.ports[name] = server.sockets[0].getsockname()[1]
            servers.append(server)
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, name: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._converse(name, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return connected

    async def _converse(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer_one(name, reader, writer):
                pass
        except Drop:
            _reset(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer_one(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        path, _, query = target.partition("?")
        headers = {}
        for line in lines:
            key, _, value = line.partition(":")
            headers[key.strip().lower()] = value.strip()
        self._before_body(name, method, path)
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, body_bytes = await self._body(reader, headers)
        reply = await self._handler(Request(name, method, path, query, headers, body, body_bytes))
        if reply.is_lost:
            raise Drop
        sent = reply.body if reply.cut_after is None else reply.body[: reply.cut_after]
        writer.write(_head_of(reply) + sent)
        await writer.drain()
        if reply.cut_after is not None:
            return False
        return headers.get("connection", "").lower() != "close"

    async def _body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> tuple[bytes, int]:
        kept = bytearray()
        size = 0

        async def take(count: int) -> None:
            nonlocal size
            left = count
            while left:
                part = await reader.read(min(left, READ_BYTES))
                if not part:
                    raise ConnectionResetError
                left -= len(part)
                size += len(part)
                if self._kept_bytes is None or len(kept) < self._kept_bytes:
                    kept.extend(part)

        if "chunked" in headers.get("transfer-encoding", ""):
            while chunk := int((await reader.readline()).split(b";")[0], 16):
                await take(chunk)
                await reader.readline()
            await reader.readline()
        else:
            await take(int(headers.get("content-length", "0")))
        return bytes(kept), size


def _head_of(reply: Reply) -> bytes:
    headers = {"content-length": str(len(reply.body)), **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} Answer", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: whoever reads at the other end gets "connection reset by peer", not an end of file."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
