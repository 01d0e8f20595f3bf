"""The port that stays: bytes are copied as they are, tunnels are replaced under it, and nothing of it is left over."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.abc
import pytest

from supervisor.hosts.relay import CONNECTIONS_MAX, StablePort
from tests.tunnel_fakes import PATIENCE_S, open_files

T = TypeVar("T")
MIB = 1024 * 1024


def run(work: Callable[[], Awaitable[T]], *, backend: str = "asyncio") -> T:
    """Run, and never hang."""

    async def bounded() -> T:
        with anyio.fail_after(PATIENCE_S):
            return await work()

    return anyio.run(bounded, backend=backend)


def served(work: Callable[[StablePort], Awaitable[T]], *, wait_s: float = PATIENCE_S, backend: str = "asyncio") -> T:
    """What `work` gives with a relay that serves; afterwards no descriptor is open that was not before."""

    async def whole() -> T:
        before = open_files()
        async with anyio.create_task_group() as group:
            relay = StablePort.bound(wait_s=wait_s, say=print)
            group.start_soon(relay.serve)
            try:
                result = await work(relay)
            finally:
                relay.close()
        # Servers of these tests close theirs on threads of their own.
        await until(lambda: open_files() <= before)
        return result

    return run(whole, backend=backend)


class Server:
    """Runs `act` with each connection, on a thread each; listens until it is closed."""

    def __init__(self, act: Callable[[socket.socket], Any]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._act = act
        self.port = int(self._listener.getsockname()[1])
        self.accepted = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self._act(client)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def echo(client: socket.socket) -> None:
    """Send back what comes, until it ends."""
    while piece := client.recv(65_536):
        client.sendall(piece)


def swallow(client: socket.socket) -> None:
    """Never answer."""
    while client.recv(65_536):
        pass


def name(tag: bytes) -> Callable[[socket.socket], None]:
    """Answer each request with `tag`."""

    def answer(client: socket.socket) -> None:
        while client.recv(1_000):
            client.sendall(tag)

    return answer


async def ask(relay: StablePort, question: bytes = b"?") -> bytes:
    """One request on a connection of its own: its answer, or nothing when it was dropped."""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        async with await anyio.connect_tcp("127.0.0.1", relay.port) as stream:
            await stream.send(question)
            return await stream.receive()
    return b""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens on another thread or in the kernel."""
    while not condition():
        await anyio.sleep(0.005)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_big_bodies_cross_byte_exact_both_ways_at_the_same_time(backend: str) -> None:
    """Frames one way and start drawings the other; pieces of any size."""
    server = Server(echo)
    body = random.Random(1).randbytes(5 * MIB + 7)

    async def work(relay: StablePort) -> str:
        relay.point_to(server.port)
        received = bytearray()
        async with await anyio.connect_tcp("127.0.0.1", relay.port) as stream, anyio.create_task_group() as group:

            async def send() -> None:
                at, chance = 0, random.Random(2)
                while at < len(body):
                    size = chance.choice([1, 100, 1_024, 65_536, 500_000])
                    await stream.send(body[at : at + size])
                    at += size

            group.start_soon(send)
            while len(received) < len(body):
                received += await stream.receive()
        return hashlib.sha256(received).hexdigest()

    assert hashlib.sha256(body).hexdigest() == served(work, backend=backend)
    server.close()


def test_twenty_connections_at_once_do_not_mix() -> None:
    """Each gets its own bytes back."""
    server = Server(echo)

    async def work(relay: StablePort) -> list[bool]:
        relay.point_to(server.port)
        same: list[bool] = []

        async def one(number: int) -> None:
            body = random.Random(number).randbytes(100_000)
            received = bytearray()
            async with await anyio.connect_tcp("127.0.0.1", relay.port) as stream, anyio.create_task_group() as group:
                group.start_soon(stream.send, body)
                while len(received) < len(body):
                    received += await stream.receive()
            same.append(bytes(received) == body)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, number)
        return same

    result = served(work)
    server.close()

    assert [True] * 20 == result


def test_a_slow_reader_keeps_nobody_else_waiting() -> None:
    """Nor is what it does not read piled up here."""
    flood = Server(lambda client: client.sendall(b"x" * (64 * MIB)))
    quick = Server(echo)

    async def work(relay: StablePort) -> list[bytes]:
        relay.point_to(flood.port)
        slow = socket.create_connection(("127.0.0.1", relay.port))
        await until(lambda: flood.accepted == 1)
        # A second port, because the first points elsewhere: the loop is the same.
        other = StablePort.bound(say=print)
        async with anyio.create_task_group() as group:
            group.start_soon(other.serve)
            other.point_to(quick.port)
            answers = [await ask(other, b"%d" % number) for number in range(50)]
            other.close()
        slow.close()
        return answers

    assert [b"%d" % number for number in range(50)] == served(work)
    flood.close()
    quick.close()


def test_what_was_answered_before_the_other_end_closed_arrives_whole() -> None:
    """A reader that is behind still gets every byte."""
    body = random.Random(3).randbytes(3 * MIB)
    server = Server(lambda client: (client.recv(10), client.sendall(body)))

    async def work(relay: StablePort) -> bytes:
        relay.point_to(server.port)
        received = bytearray()
        async with await anyio.connect_tcp("127.0.0.1", relay.port) as stream:
            await stream.send(b"go")
            await anyio.sleep(0.05)
            with suppress(anyio.EndOfStream):
                while True:
                    received += await stream.receive(10_000)
        return bytes(received)

    assert body == served(work)
    server.close()


def test_a_client_that_leaves_ends_its_connection_and_no_other() -> None:
    """Whether it closes, closes one half or resets: a host that never answers must not keep it alive."""
    server = Server(swallow)

    async def work(relay: StablePort) -> list[int]:
        relay.point_to(server.port)
        made = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(4)]
        for connection in made:
            connection.sendall(b"request")
        await until(lambda: relay.connections == 4)
        counts = [relay.connections]
        made[0].close()
        await until(lambda: relay.connections == 3)
        made[1].shutdown(socket.SHUT_WR)
        await until(lambda: relay.connections == 2)
        made[2].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        made[2].close()
        await until(lambda: relay.connections == 1)
        counts.append(relay.connections)
        for connection in made:
            connection.close()
        return counts

    assert [4, 1] == served(work)
    server.close()


def test_a_replaced_tunnel_drops_what_stands_and_takes_what_comes() -> None:
    """The client asks again at the same address and reaches the new one; the old answer never comes."""
    old, new = Server(swallow), Server(name(b"new"))

    async def work(relay: StablePort) -> list[bytes]:
        answers: list[bytes] = []

        async def client() -> None:
            answers.append(await ask(relay))
            answers.append(await ask(relay))

        relay.point_to(old.port)
        async with anyio.create_task_group() as group:
            group.start_soon(client)
            await until(lambda: old.accepted == 1)
            relay.point_to(new.port)
        return answers

    result = served(work)
    assert [b"", b"new"] == result
    old.close()
    new.close()


def test_the_same_port_again_is_a_new_tunnel() -> None:
    """The number may come back by chance, and what stands still belongs to the old one."""
    server = Server(swallow)

    async def work(relay: StablePort) -> bytes:
        relay.point_to(server.port)
        async with anyio.create_task_group() as group:
            answers: list[bytes] = []

            async def client() -> None:
                answers.append(await ask(relay))

            group.start_soon(client)
            await until(lambda: server.accepted == 1)
            relay.point_to(server.port)
        return answers[0]

    assert b"" == served(work)
    server.close()


def test_connections_wait_while_there_is_no_tunnel() -> None:
    """Before the first, between two, and behind one that refuses because it has just ended."""
    server = Server(name(b"here"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone_port = int(listener.getsockname()[1])

    async def work(relay: StablePort) -> list[bytes]:
        answers: list[bytes] = []

        async def client() -> None:
            answers.append(await ask(relay))

        for target in (None, gone_port):
            relay.point_to(target)
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(client)
                await until(lambda: relay.connections == 3)
                relay.point_to(server.port)
        return answers

    result = served(work)
    assert [b"here"] * 6 == result
    server.close()


def test_waiting_is_bounded() -> None:
    """A tunnel that is never opened again drops them, and their owner hears of it."""

    async def work(relay: StablePort) -> bytes:
        return await ask(relay)

    assert b"" == served(work, wait_s=0.05)


def test_what_a_client_asked_that_has_left_is_not_passed_on() -> None:
    """It gave up and asks anew; the old request would only be done twice, for nobody."""
    seen: list[bytes] = []
    server = Server(lambda client: seen.append(client.recv(100)))

    async def work(relay: StablePort) -> int:
        with socket.create_connection(("127.0.0.1", relay.port)) as left:
            left.sendall(b"old request")
            await until(lambda: relay.connections == 1)
        relay.point_to(server.port)
        await until(lambda: relay.connections == 0)
        await ask(relay, b"new request")
        return server.accepted

    served(work)
    assert [b"new request"] == [request for request in seen if request]
    server.close()


def test_no_more_than_so_many_connections_are_held() -> None:
    """Any user of the machine can connect to a port on loopback; ours may not run out of files."""

    async def work(relay: StablePort) -> tuple[int, bytes]:
        made = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(CONNECTIONS_MAX)]
        await until(lambda: relay.connections == CONNECTIONS_MAX)
        refused = await ask(relay)
        count = relay.connections
        for connection in made:
            connection.close()
        return count, refused

    count, refused = served(work, wait_s=1.0)
    assert (CONNECTIONS_MAX, b"") == (count, refused)


class Failing(socket.socket):
    """A listener whose first accepts fail as a machine without files does."""

    errors: list[OSError]

    def accept(self) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return super().accept()


def test_an_accept_that_fails_ends_nothing() -> None:
    """Out of files, or a client that left before its turn: the relay goes on, and says the first."""
    server = Server(echo)
    said: list[str] = []

    async def work() -> bytes:
        listener = Failing()
        listener.errors = [ConnectionAbortedError(), OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        relay = StablePort(listener, wait_s=PATIENCE_S, say=said.append)
        relay.point_to(server.port)
        async with anyio.create_task_group() as group:
            group.start_soon(relay.serve)
            answer = await ask(relay, b"still there")
            relay.close()
        return answer

    assert b"still there" == run(work)
    assert [True] == [line.endswith("cannot take a connection: Too many open files") for line in said]
    server.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("ending", ["close", "cancel"])
def test_its_end_leaves_no_task_and_no_socket(backend: str, ending: str) -> None:
    """In every state at once: idle, in the middle of an answer, waiting for a tunnel."""
    flood = Server(lambda client: client.sendall(b"x" * (64 * MIB)))
    idle = Server(swallow)

    async def work() -> int:
        before = open_files()
        clients: list[socket.socket] = []
        async with anyio.create_task_group() as group:
            relays = [StablePort.bound(say=print) for _ in range(3)]
            for relay, target in zip(relays, (flood.port, idle.port, None), strict=True):
                group.start_soon(relay.serve)
                relay.point_to(target)
                clients += [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(3)]
            await until(lambda: [relay.connections for relay in relays] == [3, 3, 3])
            await until(lambda: (flood.accepted, idle.accepted) == (3, 3))
            if ending == "cancel":
                group.cancel_scope.cancel()
            else:
                for relay in relays:
                    relay.close()
                    relay.close()
        for client in clients:
            client.close()
        # Each server's threads hold a descriptor until they notice.
        await until(lambda: open_files() <= before)
        return sum(relay.connections for relay in relays)

    assert 0 == run(work, backend=backend)
    flood.close()
    idle.close()


def test_one_that_is_closed_before_it_serves_never_serves() -> None:
    """Its owner may be cancelled between the two."""

    async def work() -> tuple[int, int]:
        before = open_files()
        relay = StablePort.bound(say=print)
        relay.close()
        await relay.serve()
        return before, open_files()

    before, after = run(work)
    assert before == after


def test_the_cost_of_a_megabyte_is_printed() -> None:
    """For people who run `pytest -s`. Small pieces are what a tunnel gives; nothing is asserted of the time."""
    found = {piece: cost_of(piece_bytes=piece, total_bytes=MIB) for piece in (1_024, 65_536)}
    for piece, (_, cpu_s) in found.items():
        print(f"relay: {1000 * cpu_s:.1f} ms of CPU for a MB that comes in pieces of {piece} bytes")

    assert [MIB] * 2 == [received for received, _ in found.values()]


def cost_of(*, piece_bytes: int, total_bytes: int) -> tuple[int, float]:
    """How much arrived, and the CPU seconds that the loop's thread took for it."""

    def send(client: socket.socket) -> None:
        """As the plugin does it: a small piece each millisecond."""
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(total_bytes // piece_bytes):
            client.sendall(b"x" * piece_bytes)
            pace.wait(0.001 if piece_bytes < 10_000 else 0)

    server = Server(send)
    pace = threading.Event()

    def receive(port: int) -> int:
        with socket.create_connection(("127.0.0.1", port)) as client:
            return sum(iter(lambda: len(client.recv(MIB)), 0))

    async def work(relay: StablePort) -> tuple[int, float]:
        relay.point_to(server.port)
        began_s = time.thread_time()
        received = await anyio.to_thread.run_sync(partial(receive, relay.port))
        return received, time.thread_time() - began_s

    result = served(work)
    server.close()
    return result
