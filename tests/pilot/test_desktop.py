"""The desktop behind a broker, over HTTP, and the composition root that puts it there."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from contract.actions import Click, Drag, TypeText, Wait
from contract.ambient import Ambient
from contract.bridge import ThreadBridge
from contract.broker_api import ErrorCode
from contract.broker_client import BrokerClient
from contract.errors import BrokerError
from contract.phases import EndedBy
from contract.records import read_record
from contract.rollout_records import RunState
from contract.run_dir import RunDir
from pilot.bridge import Threads
from pilot.compose import build_world
from pilot.desktop import BrokerDesktop, allowance_s
from pilot.rollout import run_rollout
from tests.fakes import TOKEN, FakeBroker, FakeHost, InlineBridge, make_spec, refusal

CLICK = Click(x=1, y=2, button="left", clicks=1, modifiers=[])


def desktop_on(broker: FakeBroker, ambient: Ambient | None = None) -> BrokerDesktop:
    client = BrokerClient(broker.base_url, SecretStr(TOKEN))
    return BrokerDesktop(client, lease_id="lease-1", bridge=InlineBridge(), ambient=ambient or Ambient())


@pytest.mark.anyio
async def test_acting_brings_the_receipt_and_the_frame() -> None:
    """What the loop stores is what the host holds."""
    host = FakeHost()
    with FakeBroker(host) as broker:
        desktop = desktop_on(broker)
        acted = await desktop.act(1, [CLICK])
        again = await desktop.act(1, [CLICK])
        first = await desktop.fetch(host.frame_info(0))
        health = await desktop.health()
        await desktop.aclose()

    assert (1, host.frame(1)) == (acted.receipt.sequence, acted.png)
    assert again.receipt.is_replay
    assert host.frame(0) == first
    assert 1 == health.last_sequence
    assert 1 == len(host.performed)


@pytest.mark.anyio
async def test_a_broker_that_is_still_busy_with_the_same_batch_is_waited_for() -> None:
    """It went on acting when the connection was lost; its receipt will come."""
    refusals = [ErrorCode.BUSY] * 3

    def refuse(sequence: int) -> None:
        if refusals:
            raise refusal(refusals.pop())

    with FakeBroker(FakeHost(refuse=refuse)) as broker:
        acted = await desktop_on(broker, Ambient(elapsed_s=anyio.current_time)).act(1, [CLICK, Wait(seconds=5)])

    assert 1 == acted.receipt.sequence
    assert 1.5 == pytest.approx(anyio.current_time())


@pytest.mark.anyio
async def test_a_broker_that_stays_busy_is_given_up() -> None:
    """No longer than its actions may take."""

    def refuse(sequence: int) -> None:
        raise refusal(ErrorCode.BUSY)

    with FakeBroker(FakeHost(refuse=refuse)) as broker, pytest.raises(BrokerError) as caught:
        await desktop_on(broker, Ambient(elapsed_s=anyio.current_time)).act(1, [CLICK, Wait(seconds=5)])

    assert ErrorCode.BUSY == caught.value.code
    assert 7 == pytest.approx(anyio.current_time())


def test_a_legal_batch_never_meets_a_deadline() -> None:
    """Long waits, long texts, long ways and long batches take the time they take."""
    assert 31 == allowance_s([Wait(seconds=30)])
    assert 201 == allowance_s([TypeText(text="x" * 20_000)])
    assert 101 == allowance_s([Drag(path=[[0, 0]] * 10_000, button="left", modifiers=[])])
    way = [[0, 0], [1_000, 900]] * 500
    assert pytest.approx(1 + 10 + 199.8) == allowance_s([Drag(path=way, button="left", modifiers=[])])
    assert 5_000 == allowance_s([CLICK] * 5_000)


def test_a_rollout_is_played_over_real_threads_and_sockets(tmp_path: Path) -> None:
    """The world that both modes are given, on the event loop that both run on."""
    host = FakeHost()
    told: list[RunState] = []

    async def play(base_url: str) -> RunState:
        spec = make_spec(tmp_path, host, base_url=base_url, provider="random", seed=3)
        world = build_world(
            spec, broker_token=SecretStr(TOKEN), provider_key=None, on_progress=told.append, threads=Threads()
        )
        return await run_rollout(spec, world)

    with FakeBroker(host) as broker:
        state = anyio.run(play, broker.base_url)

    assert (EndedBy.FINISHED, 41) == (state.ended_by, state.turn)
    assert state == told[-1]


def test_many_rollouts_share_a_process_and_its_threads(tmp_path: Path) -> None:
    """Each leaves what it would have left alone."""
    hosts = [FakeHost(host_id=f"h-{n}") for n in range(4)]

    async def play(urls: list[str]) -> None:
        threads = Threads(broker=ThreadBridge(3, is_abandonable=True), disk=ThreadBridge(2))

        async def one(number: int) -> None:
            spec = make_spec(
                tmp_path,
                hosts[number],
                base_url=urls[number],
                provider="random",
                seed=number % 2,
                rollout_id=f"r-{number}",
            )
            await run_rollout(
                spec, build_world(spec, broker_token=SecretStr(TOKEN), provider_key=None, threads=threads)
            )

        async with anyio.create_task_group() as tasks:
            for number in range(len(hosts)):
                tasks.start_soon(one, number)

    brokers = [FakeBroker(host) for host in hosts]
    for broker in brokers:
        broker.__enter__()
    anyio.run(play, [broker.base_url for broker in brokers])
    for broker in brokers:
        broker.__exit__()

    assert hosts[0].performed == hosts[2].performed != hosts[1].performed
    assert {EndedBy.FINISHED} == {
        read_record(RunDir(tmp_path / "rollouts" / f"r-{number}").run_state, RunState).ended_by for number in range(4)
    }


def test_a_cancelled_rollout_does_not_wait_for_a_host_that_hangs(tmp_path: Path) -> None:
    """The thread that waits is let go, and its connection is closed, so it ends, too."""

    has_ended = threading.Event()
    hung_to_the_end: list[bool] = []

    def hang(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path == "/v1/actions":
            hung_to_the_end.append(has_ended.wait(60))
        return False

    host = FakeHost()

    async def play(base_url: str) -> None:
        spec = make_spec(tmp_path, host, base_url=base_url, provider="random")
        world = build_world(spec, broker_token=SecretStr(TOKEN), provider_key=None)
        with anyio.move_on_after(0.3):
            await run_rollout(spec, world)

    with FakeBroker(host, meddle=hang) as broker:
        anyio.run(play, broker.base_url)
        has_ended.set()

    assert [True] == hung_to_the_end
    state = read_record(RunDir(tmp_path / "rollouts" / "rollout-a").run_state, RunState)
    assert EndedBy.INTERRUPTED == state.ended_by


@pytest.mark.anyio
async def test_a_bridge_bounds_what_crosses_it() -> None:
    """A slow broker holds its own threads and nobody else's."""
    bridge = ThreadBridge(1)

    with pytest.raises(ZeroDivisionError):
        await bridge.call(lambda: 1 // 0)
    assert 3 == await bridge.call(lambda: 3)
