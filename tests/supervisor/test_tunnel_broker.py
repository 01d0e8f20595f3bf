"""A whole rollout's calls to the real broker through relay, tunnel and a plugin that fails somewhere on the way.

Whatever the tunnel does, in whatever phase, each action is carried out exactly once and no frame is wrong.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import anyio
import pytest
from pydantic import SecretStr

from contract.actions import Action, TypeText
from contract.bridge import ThreadBridge
from contract.broker_api import FrameInfo, LeaseRequest
from contract.broker_client import BrokerClient, Patience
from contract.errors import BrokerError
from supervisor.hosts.relay import StablePort
from supervisor.hosts.ssm_tunnel import SsmTunnel
from supervisor.hosts.tunnel import BrokerProbe, Probed
from tests.lab.plugin import PluginFaults
from tests.tunnel_fakes import BROKER_TOKEN, PATIENCE_S, PaperBroker, PongServer, TunnelWorld, reset_of

# An answer that is lost is asked for again until it comes: how long that takes is the machine's business.
PATIENCE = Patience(read_s=PATIENCE_S, actions_s=PATIENCE_S, pause_s=0.01, lost_s=PATIENCE_S, pause_s_max=0.05)
DRAWING = bytes(range(256)) * 40
TURNS: tuple[tuple[Action, ...], ...] = (
    (TypeText(text="line 0,0 100,100\n"), TypeText(text="circle 50,50 20\n")),
    (TypeText(text="line 5,5 " + " ".join(f"{x},{x * 7 % 900}" for x in range(400)) + "\n"),),
)
ACTIONS = [action for turn in TURNS for action in turn]
SOUND = PluginFaults(damages_lf=True)


@dataclass
class Played:
    """What the client of one rollout saw. `marks` are its bytes (up, down) before each call and after the last."""

    frames: list[str] = field(default_factory=list)
    replays: int = 0
    error: BrokerError | None = None
    marks: list[tuple[int, int]] = field(default_factory=list)


class Road:
    """One rollout's way: broker, sessions, plugin, tunnel and the port that stays. Mended as the supervisor does.

    Every plugin has the fault that the real one is known for: it damages a newline at certain sizes.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.broker = PaperBroker(folder / "broker")
        self.world = TunnelWorld(folder, port=self.broker.port)
        self.world.stand_in.fail_always(SOUND)
        self.mended = 0

    def play(self, *faults: PluginFaults, turns_max: int = 2, patience: Patience = PATIENCE) -> Played:
        """Lease, reset, all turns with heartbeats and frames; each start of the plugin has its fault."""
        self.world.stand_in.fail_next(*(replace(fault, damages_lf=True) for fault in faults))

        async def work() -> Played:
            with anyio.fail_after(4 * PATIENCE_S):
                async with anyio.create_task_group() as group:
                    relay = StablePort.bound(say=self.world.said.append)
                    tunnel = self.world.tunnel(probe=self._probe)
                    group.start_soon(relay.serve)
                    relay.point_to(await tunnel.open())
                    group.start_soon(self._keep, tunnel, relay)
                    played = await anyio.to_thread.run_sync(
                        lambda: _call(relay.port, TURNS[:turns_max], patience), abandon_on_cancel=True
                    )
                    group.cancel_scope.cancel()
                await tunnel.close()
                return played

        return anyio.run(work)

    def close(self) -> None:
        """End plugin and broker."""
        self.world.close()
        self.broker.close()

    async def _keep(self, tunnel: SsmTunnel, relay: StablePort) -> None:
        while True:
            async with anyio.create_task_group() as group:
                for wait in (tunnel.wait_broken, self._wait_hung):

                    async def watch(wait: Callable[[], Awaitable[None]] = wait) -> None:
                        await wait()
                        group.cancel_scope.cancel()

                    group.start_soon(watch)
            relay.point_to(None)
            relay.point_to(await tunnel.open())
            self.mended += 1

    async def _wait_hung(self) -> None:
        pid = self.world.stand_in.pids()[-1]
        while not any(event["pid"] == pid for event in self.world.stand_in.events("hung")):
            await anyio.sleep(0.02)

    async def _probe(self, port: int) -> Probed:
        """The real probe; silence is what the stand-in tells of itself, so that no machine is too slow for it."""
        found = Probed.SILENT
        ask = BrokerProbe(SecretStr(BROKER_TOKEN), ThreadBridge(1, is_abandonable=True), read_s=PATIENCE_S)
        async with anyio.create_task_group() as group:

            async def give_up_when_hung() -> None:
                while not self.world.is_hung(port):
                    await anyio.sleep(0.02)
                group.cancel_scope.cancel()

            group.start_soon(give_up_when_hung)
            found = await ask(port)
            group.cancel_scope.cancel()
        return found


def _call(port: int, turns: Sequence[Sequence[Action]], patience: Patience) -> Played:
    played = Played()
    client = BrokerClient(f"http://127.0.0.1:{port}", SecretStr(BROKER_TOKEN), patience=patience)

    def mark(_: object = None) -> None:
        played.marks.append(_bytes_of(client))

    def look(info: FrameInfo) -> None:
        mark()
        png = client.frame(info)
        assert info.sha256 == hashlib.sha256(png).hexdigest()
        played.frames.append(info.sha256)
        mark()

    try:
        lease = client.lease(LeaseRequest(request_id="lease-1", rollout_id="rollout", lease_s=3_600))
        mark()
        look(client.reset(reset_of(lease, DRAWING)).frame)
        for number, actions in enumerate(turns, start=1):
            client.heartbeat(lease.lease_id)
            mark()
            receipt = client.act(lease_id=lease.lease_id, sequence=number, actions=actions)
            played.replays += receipt.is_replay
            look(receipt.frame)
    except BrokerError as error:
        played.error = error
    finally:
        client.close()
    return played


def _bytes_of(client: BrokerClient) -> tuple[int, int]:
    """What its one connection has sent and received so far (tcpi_bytes_acked and tcpi_bytes_received of TCP_INFO)."""
    http = client._connection._http
    if http is None or http.sock is None:
        return 0, 0
    acked, received = struct.unpack_from("QQ", http.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 120)
    return acked - 1, received


@dataclass(frozen=True)
class Clean:
    """A rollout without a fault: its frames, and the plugin's bytes (up, down) at the end of each call."""

    frames: list[str]
    marks: list[tuple[int, int]]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """What the others are compared with."""
    road = Road(tmp_path_factory.mktemp("clean") / "road")
    played = road.play()
    (end,) = road.world.stand_in.events("interrupted")
    performed = list(road.broker.driver.performed)
    road.close()
    assert (None, ACTIONS, 3, []) == (played.error, performed, len(played.frames), road.world.left())
    # The probe of the opening came first.
    up, down = end["up"] - played.marks[-1][0], end["down"] - played.marks[-1][1]
    return Clean(played.frames, [(up, down), *((up + sent, down + got) for sent, got in played.marks)])


@pytest.fixture
def road(tmp_path: Path) -> Iterator[Callable[[], Road]]:
    """Makes roads, each with a broker of its own."""
    made: list[Road] = []

    def make() -> Road:
        made.append(Road(tmp_path / f"road-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def assert_whole(road: Road, played: Played, clean: Clean) -> None:
    """Each action once, in order, each frame right, nothing left, and no newline damaged on the way."""
    assert played.error is None, played.error
    assert ACTIONS == road.broker.driver.performed
    assert clean.frames == played.frames
    assert [] == road.world.stand_in.events("lf_damaged")
    assert [] == road.world.left()


def marks_of(clean: Clean) -> list[int]:
    """Bytes, both ways together: in the request and in the answer of each call, and in the middle of the long ones."""
    totals = [up + down for up, down in clean.marks]
    found: list[int] = []
    for before, after in pairwise(totals):
        found += [before + 60, (before + after) // 2, after - 10]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dies", "ends", "hangs"])
def test_a_plugin_may_fail_in_any_phase(road: Callable[[], Road], clean: Clean, kind: str) -> None:
    """The client asks again, the tunnel is opened again, the broker knows what it has done."""
    marks = marks_of(clean)
    for number, mark in enumerate(marks):
        # Each kind meets a third of them, and all meet all three parts of some call.
        if (number + number // 3 + ["dies", "ends", "hangs"].index(kind)) % 3:
            continue
        one = road()
        played = one.play(PluginFaults(**{f"{kind}_after_bytes": mark}))

        assert_whole(one, played, clean)
        assert 1 == one.mended, f"{kind} after {mark} bytes"


@pytest.mark.slow
def test_a_plugin_that_fails_again_and_again_is_survived(road: Callable[[], Road], clean: Clean) -> None:
    """Six in a row, each with another fault; some fail in their opening already."""
    third = marks_of(clean)[len(marks_of(clean)) // 3]
    one = road()
    played = one.play(
        PluginFaults(dies_after_bytes=third),
        PluginFaults(hangs_after_bytes=0),
        PluginFaults(start="exits", says="Cannot perform start session: no\n"),
        PluginFaults(hangs_after_bytes=third),
        PluginFaults(dies_after_bytes=0),
        PluginFaults(ends_after_bytes=third, says="\n\nSessionId: x : ended\n"),
    )

    assert_whole(one, played, clean)
    assert 3 == one.mended


@pytest.mark.parametrize("deed", ["reset", "act"])
def test_an_answer_that_is_lost_while_the_broker_acts_is_not_acted_twice(
    road: Callable[[], Road], clean: Clean, deed: str
) -> None:
    """The request has arrived, the plugin dies under it: the repetition gets the stored receipt."""
    one = road()
    killed: list[int] = []

    def kill(what: str) -> None:
        if what == deed and not killed:
            killed.append(one.world.stand_in.pids()[-1])
            os.kill(killed[0], signal.SIGKILL)

    one.broker.driver.on_deed = kill
    played = one.play()

    assert_whole(one, played, clean)
    assert (1, 1 if deed == "act" else 0) == (one.mended, played.replays)


@pytest.mark.slow
@pytest.mark.parametrize(("bytes_per_s", "turns"), [(1_000_000.0, 2), (20_000.0, 1)])
def test_a_tunnel_that_crawls_is_only_slow(
    road: Callable[[], Road], clean: Clean, bytes_per_s: float, turns: int
) -> None:
    """1 MB/s is what a good one carries; at 20 kB/s a frame takes four seconds."""
    one = road()
    played = one.play(PluginFaults(bytes_per_s=bytes_per_s), turns_max=turns)

    assert played.error is None
    assert [action for turn in TURNS[:turns] for action in turn] == one.broker.driver.performed
    assert clean.frames[: turns + 1] == played.frames
    assert (0, []) == (one.mended, one.world.left())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_byte_that_is_changed_never_makes_a_wrong_frame_or_a_second_action(
    road: Callable[[], Road], clean: Clean, way: Literal["up", "down"]
) -> None:
    """The client asks again or gives up; what was done is a beginning of what was asked, and was done once."""
    # Where a length is damaged, the broker waits for bytes that nobody sends.
    hasty = replace(PATIENCE, read_s=3.0, actions_s=3.0, lost_s=6.0)
    for number, (before, after) in enumerate(pairwise(mark[way == "down"] for mark in clean.marks)):
        # In the first line, in the middle, or in the last bytes.
        at = (before + 6, (before + after) // 2, after - 12)[number % 3]
        one = road()
        played = one.play(PluginFaults(corrupts=(way, at)), patience=hasty)

        performed = one.broker.driver.performed
        assert 1 == len(one.world.stand_in.events("corrupted")), f"{way} {at}"
        assert ACTIONS[: len(performed)] == performed, f"{way} {at}"
        assert clean.frames[: len(played.frames)] == played.frames, f"{way} {at}"
        assert played.error is not None or ACTIONS == performed, f"{way} {at}"
        assert [] == one.world.left()


def test_the_stand_in_does_damage_a_newline_at_the_sizes_that_are_known(tmp_path: Path) -> None:
    """Else it would prove nothing that no request of ours is damaged."""
    server = PongServer()
    world = TunnelWorld(tmp_path, port=server.port)
    world.stand_in.fail_always(SOUND)

    async def work() -> list[bytes]:
        tunnel = world.tunnel()
        port = await tunnel.open()
        found: list[bytes] = []
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            # 1,009 bytes on a fresh connection, 1,017 and 2,041 on one that was used, and sizes that do no harm.
            for size in (1_009, 1_017, 1_009, 2_041, 1_016):
                await stream.send(b"x" * (size - 1) + b"\n")
                received = b""
                while len(received) < size:
                    received += await stream.receive()
                found.append(received[-1:])
        await tunnel.close()
        return found

    found = anyio.run(work)
    world.close()
    server.close()

    assert [b"\r", b"\r", b"\n", b"\r", b"\n"] == found
