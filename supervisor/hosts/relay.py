"""A port on loopback that stays the same while what is behind it is replaced.

A pilot keeps one address for its whole rollout; the tunnel behind the address is opened anew whenever it breaks. Bytes
are copied by the event loop, and an idle connection costs two sockets and no buffer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio

# What a connection waits for a tunnel that is being opened again; then it is dropped, and its owner asks anew.
WAIT_S: Final = 30.0
# A rollout uses three at a time: pilot, heartbeat, evaluation. A stranger on this machine may not use up our files.
CONNECTIONS_MAX: Final = 64
BACKLOG: Final = 128
# A frame of 80 KB in two pieces; held only while it is passed on.
PIECE_BYTES: Final = 65_536
# The plugin hands on 1,024 bytes each millisecond. Waking up for each of them costs 120 ms of CPU for a MB, and 50 ms
# with this pause after a small piece, in which others gather (measured on two cores). A piece that comes alone does not
# begin a pause: an answer's head must not keep its body waiting.
GATHER_S: Final = 0.01
GATHER_BYTES: Final = 16_384
# After an accept that failed for want of files or memory.
ACCEPT_AGAIN_S: Final = 0.2
# The state of a TCP connection that stands, as TCP_INFO tells in its first byte (linux/tcp_states.h).
ESTABLISHED: Final = 1


class StablePort:
    """Copies each connection to the port that it points to at the moment, both ways, until one end closes.

    Nothing is half closed: the plugin behind it could not pass that on either. `say` prints one line for people.
    """

    def __init__(self, listener: socket.socket, *, wait_s: float, say: Callable[[str], None]) -> None:
        self._listener = listener
        self._wait_s = wait_s
        self._say = say
        self._target: int | None = None
        self._changed = anyio.Event()
        self._scopes: set[anyio.CancelScope] = set()
        self._connections = 0
        self._serving: anyio.CancelScope | None = None
        self._is_closed = False
        self.port: int = listener.getsockname()[1]

    @classmethod
    def bound(cls, *, wait_s: float = WAIT_S, say: Callable[[str], None]) -> StablePort:
        """Take a free port; it listens from now on, and `serve` answers. Raises `OSError`."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        listener.setblocking(False)
        return cls(listener, wait_s=wait_s, say=say)

    @property
    def connections(self) -> int:
        """How many are open now, with those that wait."""
        return self._connections

    def point_to(self, port: int | None) -> None:
        """From now on connections go to this port on loopback, or wait where it is null. What stands is dropped."""
        self._target = port
        changed, self._changed = self._changed, anyio.Event()
        for scope in tuple(self._scopes):
            scope.cancel()
        changed.set()

    async def serve(self) -> None:
        """Serve until `close` is called, or cancelled. All sockets are closed then."""
        try:
            with anyio.CancelScope() as self._serving:
                if self._is_closed:
                    return
                async with anyio.create_task_group() as group:
                    while True:
                        client = await self._accept()
                        if self._connections >= CONNECTIONS_MAX:
                            client.close()
                            continue
                        self._connections += 1
                        group.start_soon(self._carry, client)
        finally:
            self._is_closed = True
            self._listener.close()

    def close(self) -> None:
        """Stop. Idempotent; `serve` returns once all its connections are closed."""
        self._is_closed = True
        if self._serving is None:
            self._listener.close()
        else:
            self._serving.cancel()

    async def _accept(self) -> socket.socket:
        while True:
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                await anyio.wait_readable(self._listener)
            except ConnectionAbortedError:
                # The client left before its turn came.
                continue
            except OSError as error:
                # Out of files: that must not end anything else.
                self._say(f"port {self.port} cannot take a connection: {error.strerror}")
                await anyio.sleep(ACCEPT_AGAIN_S)
            else:
                client.setblocking(False)
                return client

    async def _carry(self, client: socket.socket) -> None:
        try:
            # What fails here fails for this connection only.
            with client, suppress(OSError):
                target = await self._reach(client)
                if target is not None:
                    with target, anyio.CancelScope() as scope:
                        self._scopes.add(scope)
                        try:
                            await _copy_both(client, target)
                        finally:
                            self._scopes.discard(scope)
        finally:
            self._connections -= 1

    async def _reach(self, client: socket.socket) -> socket.socket | None:
        """A connection to whatever this port points to, or null after `wait_s`, or when the client has left."""
        with anyio.move_on_after(self._wait_s):
            while True:
                changed = self._changed
                if self._target is not None:
                    target = await _connect(self._target)
                    if target is not None:
                        # What a client asked for that has left is not asked for any more.
                        if changed is self._changed and _stands(client):
                            return target
                        target.close()
                        if not _stands(client):
                            return None
                        continue
                # Refused: that tunnel has ended, and nobody has said so yet.
                await changed.wait()
        return None


async def _connect(port: int) -> socket.socket | None:
    """A connection to a port on loopback, which answers at once: null when it refuses."""
    made = socket.socket()
    made.setblocking(False)
    try:
        with suppress(BlockingIOError):
            made.connect(("127.0.0.1", port))
        await anyio.wait_writable(made)
        if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            return made
    except OSError:
        made.close()
        return None
    except BaseException:
        made.close()
        raise
    made.close()
    return None


async def _copy_both(client: socket.socket, target: socket.socket) -> None:
    for end in (client, target):
        # Small messages must not wait for the acknowledgement of the one before.
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    async with anyio.create_task_group() as group:

        async def copy(source: socket.socket, sink: socket.socket) -> None:
            passed_s = -GATHER_S
            with suppress(OSError):
                while piece := await _receive(source):
                    await _send(sink, piece)
                    is_alone = anyio.current_time() - passed_s >= GATHER_S
                    if len(piece) < GATHER_BYTES and not is_alone:
                        await anyio.sleep(GATHER_S)
                    passed_s = anyio.current_time()
            group.cancel_scope.cancel()

        group.start_soon(copy, client, target)
        group.start_soon(copy, target, client)


async def _receive(source: socket.socket) -> bytes:
    """The next bytes; empty at the end. Raises `OSError`."""
    while True:
        # First wait, then read: so a fast sender never keeps the loop from anybody else.
        await anyio.wait_readable(source)
        with suppress(BlockingIOError):
            return source.recv(PIECE_BYTES)


async def _send(sink: socket.socket, piece: bytes) -> None:
    """All of it. Raises `OSError`."""
    left = memoryview(piece)
    while left:
        with suppress(BlockingIOError):
            left = left[sink.send(left) :]
            continue
        await anyio.wait_writable(sink)


def _stands(connection: socket.socket) -> bool:
    """False when the other end has closed it, even when there is still something to read."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED
