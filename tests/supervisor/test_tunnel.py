"""The tunnel against a plugin that fails in every way that is known of the real one: it opens, or nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.abc
import pytest
from pydantic import SecretStr

from contract.bridge import ThreadBridge
from contract.errors import HostError, HostsRefused
from contract.phases import Cause
from supervisor.cloud.ports import Agent, FaultKind
from supervisor.hosts.ssm_plugin import Plugin
from supervisor.hosts.ssm_tunnel import SsmTunnel
from supervisor.hosts.tunnel import BrokerProbe, Probed
from tests.lab.plugin import PluginFaults
from tests.tunnel_fakes import (
    INSTANCE,
    PATIENCE_S,
    SECRET_KEY,
    TOKEN,
    PaperBroker,
    PongServer,
    TunnelWorld,
    cloud_error,
    open_files,
)

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parents[2]
ZOMBIE = PluginFaults(hangs_after_bytes=0)
EXITS = PluginFaults(start="exits", says="Cannot perform start session: websocket: bad handshake\n")
WRONG_SESSION = PluginFaults(session_id="operator-ffffffff")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TunnelWorld]:
    """A tunnel world whose host answers; whatever plugin a test leaves is ended."""
    server = PongServer()
    made = TunnelWorld(tmp_path, port=server.port)
    yield made
    made.close()
    server.close()


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run on the loop that production uses, and never hang."""

    async def bounded() -> T:
        with anyio.fail_after(2 * PATIENCE_S):
            return await work()

    return anyio.run(bounded)


def opened(tunnel: SsmTunnel) -> int:
    """Open and close it; the port that it had."""

    async def work() -> int:
        port = await tunnel.open()
        await tunnel.close()
        return port

    return run(work)


def refused(tunnel: SsmTunnel) -> HostError:
    """The error that its opening ends with."""
    with pytest.raises(HostError) as caught:
        run(tunnel.open)
    return caught.value


def test_an_open_tunnel_carries_bytes_to_the_host(world: TunnelWorld) -> None:
    """And when it is closed, plugin, session and folder are gone, in good order."""

    async def work() -> tuple[bytes, bool, bool]:
        tunnel = world.tunnel()
        port = await tunnel.open()
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"ping\n")
            answer = await stream.receive()
        before = await tunnel.healthy()
        await tunnel.close()
        return answer, before, await tunnel.healthy()

    assert (b"pong\n", True, False) == run(work)
    assert [] == world.left()
    (interrupted,) = world.stand_in.events("interrupted")
    session_id = interrupted["session_id"]
    assert [f"StartSession {INSTANCE} 8765", f"TerminateSession {session_id}"] == world.cloud.calls


def test_the_plugin_sees_only_what_it_needs(world: TunnelWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response by its variable, credentials, PATH, and a private TMPDIR; nothing of this process's environment."""
    monkeypatch.setenv("CANARY_OF_THE_OPERATOR", "1")
    opened(world.tunnel())

    (started,) = world.stand_in.events("started")
    names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SSM_START_SESSION_RESPONSE", "PATH", "TMPDIR"]
    assert names == [name for name in started["environment"] if name != "LC_CTYPE"]
    assert (str(world.tmpdir), "0o700") == (started["tmpdir"], started["tmpdir_mode"])
    assert [] == world.stand_in.events("secret_in_argv")


def test_no_secret_is_in_arguments_logs_or_words(world: TunnelWorld) -> None:
    """Whatever other users can see while the tunnel is open, and whatever stays."""
    world.stand_in.fail_next(
        PluginFaults(start="exits", says=f"Cannot perform start session: token {TOKEN}-operator-00000000\n")
    )

    async def work() -> bytes:
        tunnel = world.tunnel()
        await tunnel.open()
        found = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in world.stand_in.pids()[-1:])
        await tunnel.close()
        return found

    arguments = run(work)
    kept = world.log.read_bytes() + "".join(world.said).encode()
    assert b"StartSession" in arguments
    assert b"[secret]" in kept
    assert [] == [secret for secret in (TOKEN, SECRET_KEY) if secret.encode() in arguments + kept]


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        PluginFaults(splits_port_line=True),
        PluginFaults(noise="warning: a proxy is set\nPort of call\n\n"),
        PluginFaults(ignores_sigint=True),
    ],
    ids=["torn", "noise", "deaf"],
)
def test_a_strange_plugin_that_works_is_used(world: TunnelWorld, faults: PluginFaults) -> None:
    """None of this is a reason to start another; one that ignores SIGINT is killed, and its socket removed."""
    world.stand_in.fail_always(faults)
    opened(world.tunnel())

    assert (1, []) == (len(world.stand_in.pids()), world.left())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (EXITS, "the plugin said: Cannot perform start session: websocket: bad handshake"),
        (PluginFaults(start="exits", says="Cannot perform start session: no end"), "start session: no end"),
        (PluginFaults(start="exits"), "exit status 0): it did not say why"),
        (PluginFaults(start="port_taken"), "address already in use"),
        (PluginFaults(dies_after_bytes=0), "killed by SIGKILL"),
        (PluginFaults(ends_after_bytes=0, says="\n\nSession: x timed out.\n"), "Session: x timed out."),
        (WRONG_SESSION, "another session"),
        (ZOMBIE, "nothing came through an open port, 2 times"),
        (PluginFaults(hangs_after_bytes=5), "nothing came through an open port, 2 times"),
    ],
)
def test_a_plugin_that_fails_is_followed_by_a_fresh_one(world: TunnelWorld, faults: PluginFaults, says: str) -> None:
    """Each in a session of its own; the third process is the last that may be tried, and may be the good one."""
    world.stand_in.fail_next(faults, faults)
    opened(world.tunnel())

    assert (3, []) == (len(world.stand_in.pids()), world.left())
    assert 3 == len({event["session_id"] for event in world.stand_in.events("started")})
    assert 2 == sum(says in line for line in world.said), world.said


@pytest.mark.slow
@pytest.mark.parametrize("faults", [EXITS, ZOMBIE, WRONG_SESSION, PluginFaults(dies_after_bytes=0)])
def test_three_plugins_are_all_that_is_tried(world: TunnelWorld, faults: PluginFaults) -> None:
    """The host is then given up, with nothing left of the attempts."""
    world.stand_in.fail_always(faults)
    error = refused(world.tunnel())

    assert Cause.TUNNEL == error.cause
    assert "no tunnel after 3 plugin processes" in error.message
    assert (3, []) == (len(world.stand_in.pids()), world.left())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (PluginFaults(start="never_ready"), "said nothing"),
        (PluginFaults(has_waiting_line=False), "opened a port for one client only"),
    ],
)
def test_a_plugin_that_stays_silent_is_ended_by_our_own_deadline(
    world: TunnelWorld, faults: PluginFaults, says: str
) -> None:
    """A wrong token or a dead WebSocket leaves it alive and silent for ever."""
    world.stand_in.fail_always(faults)
    error = refused(world.tunnel(ready_s=0.5))

    # One that a busy machine has not even started in that time has said nothing, whatever it would have said.
    assert any(says in line for line in [*world.said, error.message])
    assert [] == world.left()


def test_a_host_that_is_not_up_is_waited_for_in_the_same_session(world: TunnelWorld) -> None:
    """A connection that is closed at once is a good tunnel to a host without a broker: no reason to start another."""
    answers = iter([Probed.REFUSED] * 40 + [Probed.SILENT, Probed.REFUSED, Probed.SILENT, Probed.ANSWERED])

    async def probe(port: int) -> Probed:
        return next(answers)

    opened(world.tunnel(probe=probe))

    assert (1, 41) == (len(world.stand_in.pids()), len(world.waits))
    assert [] == world.left()


def test_the_real_words_of_a_closed_port_are_a_refusal(tmp_path: Path) -> None:
    """Nobody listens behind the stand-in: its client is closed, and the probe calls that by its name."""
    world = TunnelWorld(tmp_path, port=free_port())

    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(world.tunnel().open)
            while len(world.probes) < 3:
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()

    run(work)
    left = world.left()
    world.close()

    assert {Probed.REFUSED} == set(world.probes)
    assert (1, []) == (len(world.stand_in.pids()), left)


def test_an_opening_is_bounded_and_says_what_it_waited_for(world: TunnelWorld) -> None:
    """An instance whose agent never comes up must not be paid for all day."""
    world.cloud.start_errors = [cloud_error(FaultKind.NOT_CONNECTED)] * 1_000_000
    error = refused(world.tunnel(open_s=0.5))

    assert Cause.TUNNEL == error.cause
    assert "no tunnel after 0 s; it was waiting for this: StartSession failed (not_connected)" in error.message


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_an_agent_that_is_not_there_yet_is_waited_for(world: TunnelWorld) -> None:
    """A Windows instance needs minutes for its boot."""
    world.cloud.start_errors = [cloud_error(FaultKind.NOT_CONNECTED)] * 30 + [cloud_error(FaultKind.NOT_FOUND)]
    opened(world.tunnel())

    assert [5.0] * 31 == world.waits
    assert [] == world.left()


def test_a_throttled_start_backs_off_with_jitter(world: TunnelWorld) -> None:
    """Never more than half a minute, and not all at the same time."""
    world.cloud.start_errors = [cloud_error(FaultKind.THROTTLE)] * 12
    opened(world.tunnel())

    assert 12 == len(set(world.waits))
    assert 1.0 <= min(world.waits)
    assert max(world.waits) <= 30.0


def test_a_lost_answer_is_said_and_asked_again(world: TunnelWorld) -> None:
    """The session that it may have opened has no name that we know; by what it was opened for it is found and ended."""
    world.cloud.start_errors = [cloud_error(FaultKind.AMBIGUOUS)]
    world.cloud.is_carried_out = True
    opened(world.tunnel())

    assert [] == world.left()
    assert 1 == world.cloud.calls.count(f"DescribeSessions {INSTANCE}")
    assert 1 == sum("the answer to StartSession is lost" in line for line in world.said)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_lost_session_that_is_not_listed_yet_is_said_and_looked_for_again(
    world: TunnelWorld, is_refused: bool
) -> None:
    """Lists of AWS follow a little later, and a permission may be missing; other people's sessions stay."""
    world.cloud.start_errors = [cloud_error(FaultKind.AMBIGUOUS)]
    world.cloud.is_carried_out = True
    world.cloud.open_sessions["operator-by-hand"] = "a look"
    if is_refused:
        world.cloud.find_errors = [cloud_error(FaultKind.DENIED, "DescribeSessions")]
    else:
        world.cloud.lists = 1
    tunnel = world.tunnel()
    opened(tunnel)
    assert ["operator-00000000", "operator-by-hand"] == world.left()
    assert "may stay open until their idle timeout: one whose id was lost" in world.said[-1]
    run(tunnel.close)
    assert ["operator-by-hand"] == world.left()
    run(tunnel.close)

    assert 2 == world.cloud.calls.count(f"DescribeSessions {INSTANCE}")


@pytest.mark.parametrize(
    ("kind", "is_cut_off"),
    [(FaultKind.AMBIGUOUS, True), (FaultKind.THROTTLE, True), (FaultKind.NOT_CONNECTED, False)],
)
def test_a_way_out_that_is_down_is_not_taken_for_a_lost_host(
    world: TunnelWorld, kind: FaultKind, is_cut_off: bool
) -> None:
    """Whoever holds the tunnel learns whether AWS was reached at all; once it was, that is over."""
    tunnel = world.tunnel()
    world.cloud.start_errors = [cloud_error(kind), cloud_error(FaultKind.DENIED)]
    seen: list[bool] = []
    world.on_wait = lambda: seen.append(tunnel.is_cut_off)
    refused(tunnel)

    assert [is_cut_off] == seen
    assert not tunnel.is_cut_off


def test_a_refused_signature_is_tried_with_fresh_credentials_twice(world: TunnelWorld) -> None:
    """Then it is the operator's turn, whether there are new ones or none."""
    world.cloud.start_errors = [cloud_error(FaultKind.SIGNING)] * 2
    opened(world.tunnel())
    world.cloud.start_errors = [cloud_error(FaultKind.SIGNING)] * 3
    world.cloud.is_logged_out = True
    error = refused(world.tunnel())

    assert isinstance(error, HostsRefused)
    assert Cause.TUNNEL == error.cause
    assert 4 == world.cloud.calls.count("refresh")
    assert [] == world.left()


def test_a_host_that_works_waits_until_the_operator_has_logged_in_again(world: TunnelWorld) -> None:
    """Its tunnel broke while the credentials had expired: that is no verdict on the host, which is paid for."""
    tunnel = world.tunnel()
    seen: list[bool] = []
    world.on_wait = lambda: seen.append(tunnel.is_cut_off)

    async def work() -> bool:
        await tunnel.open()
        world.cloud.start_errors = [cloud_error(FaultKind.SIGNING)] * 20
        world.cloud.is_logged_out = True
        await tunnel.open()
        try:
            return await tunnel.healthy()
        finally:
            await tunnel.close()

    assert run(work)
    assert [True] * 18 == seen
    assert [] == world.left()


@pytest.mark.parametrize("kind", [FaultKind.DENIED, FaultKind.PERMANENT, FaultKind.QUOTA, FaultKind.MISMATCH])
def test_an_error_for_good_ends_the_opening_at_once(world: TunnelWorld, kind: FaultKind) -> None:
    """Asking again would not help."""
    world.cloud.start_errors = [cloud_error(kind)]
    error = refused(world.tunnel())

    assert Cause.TUNNEL == error.cause
    assert (kind is FaultKind.DENIED) == isinstance(error, HostsRefused)
    assert f"StartSession failed ({kind})" in error.message
    assert ([], []) == (world.stand_in.pids(), world.left())


def test_an_agent_that_is_too_old_is_refused(world: TunnelWorld) -> None:
    """No process is started for it, and its session is ended."""
    world.cloud.agent = Agent(is_online=True, version="3.1.1400.0")
    error = refused(world.tunnel())

    assert "SSM agent 3.1.1400.0 is older than 3.1.1511" in error.message
    assert ([], []) == (world.stand_in.pids(), world.left())


def test_an_agent_that_nobody_can_name_is_judged_by_what_it_carries(world: TunnelWorld) -> None:
    """Its entry may be missing for a while after the boot."""
    world.cloud.agent = None
    opened(world.tunnel())

    assert [] == world.left()


def test_a_session_without_a_plugin_is_ended(world: TunnelWorld) -> None:
    """The program vanished after the plan: its own start fails, or that of the program which starts it."""
    gone = Plugin(world.tools / "gone", "1.2.896.0")
    said_by_setpriv = refused(world.tunnel(plugin=gone))
    world.search_path = "/nowhere"
    said_by_us = refused(world.tunnel(plugin=gone))

    assert "the plugin ended (exit status" in said_by_setpriv.message
    assert "the plugin cannot be started" in said_by_us.message
    assert [] == world.left()
    assert 4 == sum(call.startswith("TerminateSession") for call in world.cloud.calls)


def test_a_folder_that_is_too_long_is_named(world: TunnelWorld, tmp_path: Path) -> None:
    """The plugin itself would only be silent about it."""
    error = refused(world.tunnel(tmpdir=tmp_path / ("x" * 90)))

    assert "too long for a UNIX socket" in error.message
    assert [] == world.left()


def test_an_end_of_the_plugin_is_known_at_once(world: TunnelWorld) -> None:
    """To all who wait for it; and the tunnel can be opened again."""

    async def work() -> tuple[bool, bool, bool]:
        tunnel = world.tunnel()
        first = await tunnel.open()
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(tunnel.wait_broken)
            await anyio.lowlevel.checkpoint()
            os.kill(world.stand_in.pids()[-1], signal.SIGKILL)
        is_healthy = await tunnel.healthy()
        second = await tunnel.open()
        is_mended = await tunnel.healthy()
        await tunnel.close()
        await tunnel.wait_broken()
        return is_healthy, is_mended, first != second

    assert (False, True, True) == run(work)
    assert [] == world.left()


def test_an_end_that_is_only_told_counts_too(world: TunnelWorld) -> None:
    """The real one may say that its session is over and live on for a while."""
    world.stand_in.fail_next(PluginFaults(ends_after_bytes=20, says="\n\nSessionId: x : terminated\n"))

    async def work() -> None:
        tunnel = world.tunnel()
        port = await tunnel.open()
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"ping\n" * 10)
            await tunnel.wait_broken()
        await tunnel.close()

    run(work)
    assert [] == world.left()


def test_a_zombie_is_not_healthy(world: TunnelWorld) -> None:
    """Its process lives and its port is open; only an answer tells."""
    # The first probe takes ten bytes.
    world.stand_in.fail_next(PluginFaults(hangs_after_bytes=15))

    async def work() -> list[bool]:
        tunnel = world.tunnel()
        await tunnel.open()
        found = [await tunnel.healthy(), await tunnel.healthy()]
        await tunnel.open()
        found.append(await tunnel.healthy())
        await tunnel.close()
        return found

    assert [False, False, True] == run(work)
    assert [] == world.left()


def test_a_stopped_plugin_is_killed_and_reaped(world: TunnelWorld) -> None:
    """SIGINT does not reach a process that is stopped."""

    async def work() -> None:
        tunnel = world.tunnel()
        await tunnel.open()
        os.kill(world.stand_in.pids()[-1], signal.SIGSTOP)
        await tunnel.close()

    run(work)
    assert [] == world.left()


def test_closing_while_others_wait_and_probe_harms_nobody(world: TunnelWorld) -> None:
    """They are told that the way is broken; no descriptor is read after it was closed."""

    async def work() -> bool:
        tunnel = world.tunnel()
        await tunnel.open()
        async with anyio.create_task_group() as group:
            group.start_soon(tunnel.wait_broken)
            group.start_soon(tunnel.healthy)
            await anyio.lowlevel.checkpoint()
            await tunnel.close()
            await tunnel.close()
        return await tunnel.healthy()

    assert not run(work)
    assert [] == world.left()


def test_a_termination_that_fails_is_tried_again(world: TunnelWorld) -> None:
    """Twice at once; what is left then is said, and tried again with the next closing."""
    world.cloud.end_errors = [cloud_error(FaultKind.THROTTLE)] * 2
    opened(world.tunnel())
    assert [] == world.left()
    world.cloud.end_errors = [cloud_error(FaultKind.DENIED)] * 3
    tunnel = world.tunnel()
    opened(tunnel)
    assert ["operator-00000001"] == world.left()
    assert "may stay open until their idle timeout: operator-00000001" in world.said[-1]
    run(tunnel.close)

    assert [] == world.left()


def test_a_session_that_is_gone_needs_no_termination(world: TunnelWorld) -> None:
    """AWS forgot it."""
    world.cloud.end_errors = [cloud_error(FaultKind.NOT_FOUND, "TerminateSession")]
    tunnel = world.tunnel()
    opened(tunnel)
    run(tunnel.close)

    assert 1 == sum(call.startswith("Terminate") for call in world.cloud.calls)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["start_session", "spawned", "probing", "refused"])
def test_a_cancelled_opening_leaves_nothing(world: TunnelWorld, phase: str) -> None:
    """In each step: the session whose answer is under way, the silent plugin, the probe, the pause."""
    reached = anyio.Event()

    async def probe(port: int) -> Probed:
        if phase == "refused":
            if len(world.waits) > 2:
                reached.set()
            return Probed.REFUSED
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    if phase == "start_session":
        world.cloud.may_start.clear()
    if phase == "spawned":
        world.stand_in.fail_always(PluginFaults(start="never_ready"))

    async def wait_for_phase() -> None:
        if phase == "start_session":
            await anyio.to_thread.run_sync(world.cloud.is_starting.wait, PATIENCE_S)
        elif phase == "spawned":
            while not world.stand_in.pids():
                await anyio.sleep(0.01)
        else:
            await reached.wait()

    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(world.tunnel(probe=probe).open)
            await wait_for_phase()
            group.cancel_scope.cancel()
            # The answer comes when nobody wants it any more.
            threading.Timer(0.05, world.cloud.may_start.set).start()

    run(work)
    assert [] == world.left()
    assert 1 == sum(call.startswith("TerminateSession") for call in world.cloud.calls)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_opening_may_be_cancelled_at_any_moment(world: TunnelWorld, backend: str) -> None:
    """Each time a little later, until one is through: spawned or not, ready or not, nothing is left of any."""

    async def work() -> list[str]:
        tunnel = world.tunnel()
        for number in range(1_000):
            world.stand_in.fail_next(PluginFaults(splits_port_line=True))
            with anyio.move_on_after(0.007 * number) as in_time:
                await tunnel.open()
            if not in_time.cancelled_caught:
                break
            assert [] == world.left(), f"after {7 * number} ms"
        await tunnel.close()
        return world.left()

    assert [] == anyio.run(work, backend=backend)


def test_closing_ends_an_opening_of_another_task(world: TunnelWorld) -> None:
    """A host may be ended while its way is being mended: nothing is opened behind the back of who closes."""

    async def work() -> list[str]:
        errors: list[str] = []
        tunnel = world.tunnel()
        world.stand_in.fail_always(PluginFaults(start="never_ready"))

        async def open_it() -> None:
            try:
                await tunnel.open()
            except HostError as error:
                errors.append(error.message)

        async with anyio.create_task_group() as group:
            group.start_soon(open_it)
            while not world.stand_in.pids():
                await anyio.sleep(0.01)
            await tunnel.close()
            errors.append(str(world.left()))
        return errors

    assert {"[]", f"tunnel to {INSTANCE}: it was closed while it was being opened"} == set(run(work))
    assert (1, []) == (len(world.stand_in.pids()), world.left())


@pytest.mark.slow
def test_many_openings_leave_no_descriptor(world: TunnelWorld) -> None:
    """A host is mended many times in a long batch."""

    async def work() -> tuple[int, int]:
        tunnel = world.tunnel()
        await tunnel.open()
        await tunnel.close()
        before = open_files()
        for faults in (PluginFaults(), EXITS, PluginFaults(dies_after_bytes=0), PluginFaults()):
            world.stand_in.fail_next(faults)
            await tunnel.open()
        await tunnel.close()
        return before, open_files()

    before, after = run(work)
    assert before == after
    assert [] == world.left()


@pytest.mark.slow
def test_a_plugin_does_not_outlive_a_killed_controller(world: TunnelWorld, tmp_path: Path) -> None:
    """SIGKILL gives the controller no chance to end anything, so the kernel does."""
    script = tmp_path / "controller.py"
    script.write_text(CONTROLLER)
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), str(world.cloud.port)],
        cwd=REPOSITORY,
        # What it leaves in its folder goes with the world's own.
        env={"PATH": world.search_path, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(world.tmpdir.parent)},
        stdout=subprocess.PIPE,
    ) as controller:
        assert controller.stdout is not None
        pid = int(controller.stdout.readline())
        plugin = os.pidfd_open(pid)
        controller.kill()
        controller.wait()

    async def gone() -> None:
        with anyio.fail_after(PATIENCE_S):
            await anyio.wait_readable(plugin)

    anyio.run(gone)
    os.close(plugin)


CONTROLLER = """
import sys
from pathlib import Path
import anyio
from tests.tunnel_fakes import TunnelWorld

async def work():
    folder = Path(sys.argv[1]) / "other"
    folder.mkdir()
    world = TunnelWorld(folder, port=int(sys.argv[2]))
    await world.tunnel().open()
    print(world.stand_in.pids()[-1], flush=True)
    await anyio.sleep_forever()

anyio.run(work)
"""


class Peer:
    """A server that does one thing with each connection."""

    def __init__(self, act: Callable[[socket.socket], Any]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._act = act
        self._held: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            client.recv(1_000)
            if self._act(client) == "hold":
                self._held.append(client)
            else:
                client.close()


def ask(port: int, *, token: str = "wrong", read_s: float = PATIENCE_S) -> Probed:
    """What the probe says of it."""
    probe = BrokerProbe(SecretStr(token), ThreadBridge(1), read_s=read_s)
    return run(lambda: probe(port))


def test_the_probe_tells_a_refusal_from_a_silence() -> None:
    """One is a host that is not up, the other a tunnel that carries nothing."""
    found = {
        "nobody listens": ask(free_port()),
        "closed at once": ask(Peer(lambda client: None).port),
        "hangs": ask(Peer(lambda client: "hold").port, read_s=0.2),
        "garbage": ask(Peer(lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")).port),
    }

    expected = {
        "nobody listens": Probed.REFUSED,
        "closed at once": Probed.REFUSED,
        "hangs": Probed.SILENT,
        "garbage": Probed.SILENT,
    }
    assert expected == found


def test_a_broker_that_refuses_our_token_has_answered(tmp_path: Path) -> None:
    """The tunnel is good; whose broker that is, its identity shows."""
    broker = PaperBroker(tmp_path / "broker")
    found = (ask(broker.port, token="not-its-token"), ask(broker.port, token="canary-broker-token-of-the-tunnel-tests"))
    broker.close()

    assert (Probed.ANSWERED, Probed.ANSWERED) == found


def test_a_fault_can_be_ordered_for_one_start_or_for_all(world: TunnelWorld) -> None:
    """The stand-in itself: orders are used up one by one, and then what holds always."""
    world.stand_in.fail_always(replace(EXITS, says="always\n"))
    world.stand_in.fail_next(replace(EXITS, says="Cannot perform start session: once\n"))
    refused(world.tunnel())

    assert [True, False, False] == ["once" in line for line in world.said]
