"""Hosts on EC2 from the launch on: the way to them, their proof, their end, and finding them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from contract.broker_api import Identity
from contract.errors import BrokerError, HostError
from contract.phases import Cause
from supervisor.cloud.ports import FaultKind
from supervisor.hosts.ec2 import Ec2Hosts
from supervisor.hosts.ec2_leftovers import end, find_expired, find_owned, look
from supervisor.hosts.lease import Host
from supervisor.ledger import HostHistory
from tests.batch_fakes import in_virtual_time, virtual_ambient
from tests.ec2_world import BATCH_ID, Ec2Broker, Ec2World, Notes, ec2_config
from tests.fake_cloud import START, FakeCloud, Trouble, fault

Work = Callable[[Ec2World, Ec2Hosts, Notes], Awaitable[None]]


def play(cloud: FakeCloud, work: Work, **config: Any) -> Notes:
    notes = Notes()

    async def whole() -> None:
        world = Ec2World(cloud=cloud)
        async with world.hosts(ec2_config(**config), ledger=notes.ledger) as hosts:
            await work(world, hosts, notes)

    in_virtual_time(whole, seed=3)
    return notes


async def bring_up(world: Ec2World, hosts: Ec2Hosts, notes: Notes, number: int = 0) -> tuple[Host, Ec2Broker]:
    """A host that is proven, and its broker as it is reached."""
    host = await hosts.launch(notes.order(f"r-{number}", f"h-{number}"))
    broker = Ec2Broker(world, host, await hosts.open_tunnel(host))
    return await hosts.prove(host, broker), broker


def test_a_host_is_reached_at_one_address_whatever_tunnel_is_behind_it() -> None:
    """A pilot keeps its base URL for hours, and tunnels do not live that long."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, broker = await bring_up(world, hosts, notes)
        for times in range(1, 4):
            list(world.tunnels.values())[-1].break_down()
            await hosts.wait_tunnel_broken(host.host_id)
            with pytest.raises(BrokerError):
                await broker.health()
            await hosts.mend_tunnel(host.host_id, misses=1)
            assert host.boot_id == (await broker.health()).boot_id
            assert times + 1 == len(world.opened)
        await hosts.close_tunnel(host.host_id)
        assert {} == world.relays
        assert world.opened == world.closed

    play(cloud, work)


def test_a_tunnel_that_looks_whole_is_replaced_after_two_misses_and_only_if_it_carries_nothing() -> None:
    """The plugin may live, hold its port open and carry nothing; one lost answer is no proof of that."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, _ = await bring_up(world, hosts, notes)
        await hosts.mend_tunnel(host.host_id, misses=1)
        await hosts.mend_tunnel(host.host_id, misses=2)
        assert 1 == len(world.opened)
        tunnel = list(world.tunnels.values())[-1]

        async def carries_nothing() -> bool:
            return False

        tunnel.healthy = carries_nothing  # type: ignore[method-assign]
        await hosts.mend_tunnel(host.host_id, misses=2)
        assert 2 == len(world.opened)

    play(cloud, work)


def test_a_broken_tunnel_is_told_once_so_that_nobody_spins() -> None:
    """What cannot be mended now is looked at again at the pace of heartbeats."""
    cloud = FakeCloud()
    told: list[float] = []

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, _ = await bring_up(world, hosts, notes)
        list(world.tunnels.values())[-1].break_down()
        with anyio.move_on_after(60):
            for _ in range(10):
                await hosts.wait_tunnel_broken(host.host_id)
                told.append(anyio.current_time())

    play(cloud, work)

    assert 1 == len(told)


def test_a_network_that_is_down_for_minutes_costs_no_host() -> None:
    """Nobody can be asked for a tunnel then; the host waits for its lease, and so do those who speak to it."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, broker = await bring_up(world, hosts, notes)
        tunnel = list(world.tunnels.values())[-1]
        down_until = anyio.current_time() + 400

        async def network(step: str, rollout_id: str) -> None:
            if step == "tunnel":
                tunnel.is_cut_off = True
                await anyio.sleep(max(0.0, down_until - anyio.current_time()))
                tunnel.is_cut_off = False

        world.trouble = network
        tunnel.break_down()
        await hosts.wait_tunnel_broken(host.host_id)
        tries = 0
        while len(world.opened) < 2:
            tries += 1
            await hosts.mend_tunnel(host.host_id, misses=tries)
        assert 400 <= anyio.current_time() - (down_until - 400) <= 500
        assert host.boot_id == (await broker.health()).boot_id
        assert hosts.timing.patience.lost_s >= 3000

    play(cloud, work, lease_s=3000)


def test_a_tunnel_that_cannot_be_opened_ends_the_rollout_with_that_cause() -> None:
    """The record says what was lost: the way, not the host."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, _ = await bring_up(world, hosts, notes)

        async def hang(step: str, rollout_id: str) -> None:
            if step == "tunnel":
                await anyio.sleep_forever()

        world.trouble = hang
        list(world.tunnels.values())[-1].break_down()
        await hosts.wait_tunnel_broken(host.host_id)
        with pytest.raises(HostError) as failed:
            await hosts.mend_tunnel(host.host_id, misses=1)
        assert Cause.TUNNEL == failed.value.cause

    play(cloud, work, lease_s=3000)


def test_a_host_is_held_to_the_instance_that_was_launched() -> None:
    """A document of another instance, though signed by AWS, is somebody else's."""
    cloud = FakeCloud()

    class Liar(Ec2Broker):
        async def identity(self) -> Identity:
            found = await super().identity()
            assert found.instance is not None
            other = self._ec2.document_of("h-0").replace("i-", "i-f")
            return found.model_copy(update={"instance": found.instance.model_copy(update={"document": other})})

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host = await hosts.launch(notes.order("r-0", "h-0"))
        address = await hosts.open_tunnel(host)
        with pytest.raises(HostError) as failed:
            await hosts.prove(host, Liar(world, host, address))
        proven = await hosts.prove(host, Ec2Broker(world, host, address))
        assert Cause.HOST_IDENTITY == failed.value.cause
        assert ("", "boot-h-0") == (host.boot_id, proven.boot_id)

    play(cloud, work)


def test_an_instance_that_ends_is_told_with_its_reason() -> None:
    """A rollout whose machine is gone must not wait for an answer."""
    cloud = FakeCloud()
    said: list[str] = []

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, _ = await bring_up(world, hosts, notes)
        assert not hosts.has_ended(host.host_id)
        began_s = anyio.current_time()
        cloud.end(cloud.alive()[0], reason="Server.SpotInstanceShutdown")
        said.append(await hosts.wait_ended(host.host_id))
        assert hosts.has_ended(host.host_id)
        assert anyio.current_time() - began_s <= 11

    play(cloud, work)

    assert "shutting-down (Server.SpotInstanceShutdown)" in said[0]


def test_an_index_that_lags_behind_never_brings_an_ended_instance_back() -> None:
    """Eventual consistency may show what was true some seconds ago."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, _ = await bring_up(world, hosts, notes)
        cloud.end(cloud.alive()[0])
        await hosts.wait_ended(host.host_id)
        cloud.lag_s = 60
        await anyio.sleep(30)
        assert hosts.has_ended(host.host_id)

    play(cloud, work)


def test_ending_a_host_is_one_call_and_a_second_ending_is_none() -> None:
    """Sandbox and reconciler may both want it."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, _ = await bring_up(world, hosts, notes)
        await hosts.terminate(host.host_id, batch_id=BATCH_ID)
        assert [] == cloud.alive()
        assert {} == world.relays
        assert world.tokens.recall(host.host_id) is None
        await hosts.terminate(host.host_id, batch_id=BATCH_ID)

    play(cloud, work)

    assert 1 == len(cloud.calls("TerminateInstances"))


@pytest.mark.parametrize("kind", [FaultKind.THROTTLE, FaultKind.AMBIGUOUS, FaultKind.SIGNING, FaultKind.NOT_FOUND])
def test_an_ending_is_repeated_until_aws_accepts_it(kind: FaultKind) -> None:
    """A machine that is not ended costs money by the hour; right after its launch it may not even be known."""
    refusals = [Trouble(fault(kind, "TerminateInstances", names=()))] * 3
    cloud = FakeCloud(trouble=lambda action, order: refusals.pop() if action[:4] == "Term" and refusals else None)

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host = await hosts.launch(notes.order("r-0", "h-0"))
        await hosts.terminate(host.host_id, batch_id=BATCH_ID)
        assert [] == cloud.alive()

    play(cloud, work)


def test_an_ending_that_aws_never_accepts_is_said_in_time() -> None:
    """The sandbox gives an ending a bound; within it this says that the host may live."""
    troubled = [True]
    refusal = Trouble(fault(FaultKind.AMBIGUOUS, "TerminateInstances"))
    cloud = FakeCloud(trouble=lambda action, order: refusal if action[:4] == "Term" and troubled[0] else None)

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, _ = await bring_up(world, hosts, notes)
        with anyio.fail_after(hosts.timing.release_s), pytest.raises(HostError):
            await hosts.terminate(host.host_id, batch_id=BATCH_ID)
        troubled[0] = False
        left = await hosts.find_leftovers([host.host_id], batch_id=BATCH_ID)
        await hosts.terminate_all(list(left), batch_id=BATCH_ID)
        assert [] == cloud.alive()

    play(cloud, work, lease_s=3000)


def test_the_reconciler_looks_once_and_ends_all_in_one_call() -> None:
    """A batch of a hundred must not need a hundred calls, nor wait for what AWS has accepted."""
    cloud = FakeCloud(decoys_of_a_kind=4)

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        async with anyio.create_task_group() as group:
            for number in range(7):
                group.start_soon(bring_up, world, hosts, notes, number)
        with anyio.CancelScope() as scope:
            begun = len(cloud.journal)
            left = await hosts.find_leftovers([f"h-{number}" for number in range(7)], batch_id=BATCH_ID)
            await hosts.terminate_all(list(left), batch_id=BATCH_ID)
            scope.cancel()
        calls = [call.action for call in cloud.journal[begun:]]
        ended = calls.index("TerminateInstances")
        assert {f"h-{number}" for number in range(7)} == left.keys()
        assert 1 == calls.count("TerminateInstances")
        assert 3 == calls[:ended].count("DescribeInstances")
        assert ended == len(calls) - 1
        assert [] == cloud.alive()

    play(cloud, work)

    assert [] == cloud.touched_decoys


def test_nothing_is_ended_that_the_ledger_does_not_prove() -> None:
    """Tags can be copied; the ledger's ids and the client token that EC2 recorded cannot."""
    cloud = FakeCloud(decoys_of_a_kind=20)

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        await bring_up(world, hosts, notes)
        found = look(cloud, notes.ledger().values(), batch_id=BATCH_ID, owner="me")
        assert ["h-0"] == [left.host_id for left in found.ours]
        assert 20 == len(found.strangers)
        end(cloud, found, now=START + timedelta(hours=1))
        assert [] == cloud.alive()

    play(cloud, work)

    assert 120 == len(cloud.decoys())
    assert [] == cloud.touched_decoys


def test_an_id_that_is_gone_does_not_save_the_others() -> None:
    """AWS refuses a whole call for one wrong id; the index may still show what is gone."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        for number in range(3):
            await bring_up(world, hosts, notes, number)
        cloud.ours()[1].is_ghost = True
        ghost = cloud.ours()[1].instance_id
        with pytest.raises(HostError, match=ghost):
            # So young an instance may be unknown because it is new, not because it is gone.
            end(cloud, look(cloud, notes.ledger().values(), batch_id=BATCH_ID, owner="me"), now=START)
        assert [ghost] == cloud.alive()
        end(cloud, look(cloud, notes.ledger().values(), batch_id=BATCH_ID, owner="me"), now=START + timedelta(hours=1))

    play(cloud, work)

    outcomes = [call.outcome for call in cloud.calls("TerminateInstances")]
    assert ["InvalidInstanceID.NotFound", "ok", "InvalidInstanceID.NotFound"] == outcomes


def test_an_instance_is_found_by_its_token_when_nothing_else_is_known_of_it() -> None:
    """The controller died between the request and its answer, and somebody took the tags off."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        await hosts.launch(notes.order("r-0", "h-0"))
        machine = cloud.ours()[0]
        machine.order = replace(machine.order, tags={})
        history = HostHistory("h-0", "r-0", "ec2", ("intent",), {}, client_tokens=(machine.order.client_token,))
        found = look(cloud, [history], batch_id=BATCH_ID, owner="me")
        assert [machine.instance_id] == list(found.instance_ids)

    play(cloud, work)


@pytest.mark.parametrize(("batch_id", "owner"), [("", "me"), (BATCH_ID, "")])
def test_a_look_without_a_batch_or_an_owner_is_refused(batch_id: str, owner: str) -> None:
    """Depending on the filter it would match nothing, or everything."""
    cloud = FakeCloud(now_s=lambda: 0.0)

    with pytest.raises(HostError):
        look(cloud, [], batch_id=batch_id, owner=owner)
    assert [] == cloud.journal


def test_instances_that_have_outlived_their_time_are_named_by_owner() -> None:
    """Anybody can sweep for them, whichever batch they were of."""
    cloud = FakeCloud(decoys_of_a_kind=1)

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        await hosts.launch(notes.order("r-0", "h-0"))
        now = START + timedelta(seconds=3599)
        assert [] == [item.tags["HostId"] for item in find_expired(cloud, owner="me", now=now) if "HostId" in item.tags]
        late = find_expired(cloud, owner="me", now=now + timedelta(seconds=10))
        assert cloud.alive()[0] in {item.instance_id for item in late}
        assert {"me"} == {item.tags["Owner"] for item in find_owned(cloud, owner="me")}

    play(cloud, work)


def test_a_closed_host_that_lives_on_is_found_at_the_end_of_a_batch_but_not_before_its_first_host() -> None:
    """An ending may be taken back; and at a resume the hosts that go on are not leftovers."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        await bring_up(world, hosts, notes, 0)
        await bring_up(world, hosts, notes, 1)
        notes.lines.append(("h-0", "released", {}))
        assert {"h-0"} == (await hosts.find_leftovers([], batch_id=BATCH_ID)).keys()
        async with world.hosts(ec2_config(), ledger=notes.ledger) as fresh:
            assert {} == await fresh.find_leftovers([], batch_id=BATCH_ID)
            assert {"h-1"} == (await fresh.find_leftovers(["h-1"], batch_id=BATCH_ID)).keys()

    play(cloud, work)


async def _handed_off(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> Host:
    host, _ = await bring_up(world, hosts, notes)
    notes.lines.append(("h-0", "launched", host.facts))
    notes.lines.append(("h-0", "handed_off", {"boot_id": host.boot_id}))
    return host


def test_a_new_controller_takes_a_host_up_again_with_its_token_and_its_boot() -> None:
    """A rollout goes on exactly, or not at all."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host = await _handed_off(world, hosts, notes)
        async with world.hosts(ec2_config(), ledger=notes.ledger) as fresh:
            found = await fresh.reattach(notes.ledger()["h-0"], batch_id=BATCH_ID)
            assert found is not None
            assert (host.boot_id, host.token) == (found.boot_id, found.token)
            broker = Ec2Broker(world, found, await fresh.open_tunnel(found))
            assert host.boot_id == (await fresh.prove(found, broker)).boot_id
            cloud.end(cloud.alive()[0])
            assert "shutting-down" in await fresh.wait_ended("h-0")
            await fresh.terminate("h-0", batch_id=BATCH_ID)

    play(cloud, work)


@pytest.mark.parametrize("change", ["ended", "token", "restarted", "image", "no instance", "another's"])
def test_a_host_that_is_not_exactly_the_same_is_not_taken_up(change: str) -> None:
    """Everything else would be a silent second sample."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host = await _handed_off(world, hosts, notes)
        history, machine = notes.ledger()["h-0"], cloud.ours()[0]
        match change:
            case "ended":
                cloud.end(machine.instance_id)
            case "token":
                world.tokens.forget(host.host_id)
            case "restarted":
                machine.launched_s += 60
            case "image":
                machine.order = replace(machine.order, image_id="ami-0000000000000000f")
            case "no instance":
                history = replace(history, detail={}, instance_ids=())
            case "another's":
                machine.order = replace(machine.order, client_token="0" * 40)
        async with world.hosts(ec2_config(), ledger=notes.ledger) as fresh:
            assert await fresh.reattach(history, batch_id=BATCH_ID) is None

    play(cloud, work)


def test_a_schedule_of_awss_own_ends_an_instance_whose_controller_and_guest_hang() -> None:
    """Optional: with a role for it, EventBridge terminates the instance when its lifetime is over."""
    cloud = FakeCloud()
    role = "arn:aws:iam::123456789012:role/expiry"

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        await hosts.launch(notes.order("r-0", "h-0"))
        await hosts.launch(notes.order("r-1", "h-1"))
        await hosts.terminate("h-1", batch_id=BATCH_ID)
        assert ["autocad-bench-h-0"] == list(cloud.schedules)
        cloud.ours()[0].lease_s = cloud.ours()[0].lifetime_s = float("inf")
        await anyio.sleep(3600)
        assert [] == cloud.alive()

    play(cloud, work, expiry_role_arn=role)


def test_a_refused_schedule_is_said_and_fails_nothing() -> None:
    """The dead-man timer is there without it."""
    refusal = Trouble(fault(FaultKind.DENIED, "CreateSchedule"))
    cloud = FakeCloud(trouble=lambda action, order: refusal if action == "CreateSchedule" else None)

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        await hosts.launch(notes.order("r-0", "h-0"))

    notes = play(cloud, work, expiry_role_arn="arn:aws:iam::123456789012:role/expiry")

    assert any("no schedule will end instance" in line for line in notes.said)


def test_looks_that_aws_refuses_are_spread_out_said_once_and_harm_nobody() -> None:
    """While AWS has a bad quarter of an hour, hosts play on."""
    refusal = Trouble(fault(FaultKind.THROTTLE, "DescribeInstances"))
    troubled = [False]
    cloud = FakeCloud(trouble=lambda action, order: refusal if troubled[0] and action == "DescribeInstances" else None)

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, broker = await bring_up(world, hosts, notes)
        troubled[0], begun = True, len(cloud.journal)
        await anyio.sleep(900)
        assert len(cloud.journal) - begun < 60
        assert 1 == sum("cannot be looked at" in line for line in notes.said)
        troubled[0] = False
        await anyio.sleep(70)
        assert host.boot_id == (await broker.health()).boot_id

    play(cloud, work, lease_s=3000)


def test_looks_whose_signature_is_refused_take_new_credentials_as_soon_as_there_are_any() -> None:
    """Credentials that expire while a batch runs end nothing, and looking goes on when the operator has logged in."""
    refusal = Trouble(fault(FaultKind.SIGNING, "DescribeInstances"))
    cloud = FakeCloud()
    cloud.trouble = lambda action, order: refusal if cloud.is_logged_out and action == "DescribeInstances" else None

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        host, _ = await bring_up(world, hosts, notes)
        cloud.is_logged_out = True
        await anyio.sleep(200)
        assert 2 <= cloud.refreshes
        cloud.is_logged_out = False
        cloud.end(cloud.alive()[0])
        await anyio.sleep(100)
        assert hosts.has_ended(host.host_id)

    play(cloud, work, lease_s=3000)


def test_a_young_instance_is_ended_by_the_clock_of_this_machine() -> None:
    """Not known yet is not gone: a clock that is some minutes ahead of AWS's must not make it look old."""
    cloud = FakeCloud(visible_s=30)
    notes = Notes()

    async def whole() -> None:
        ambient = virtual_ambient()
        ahead = replace(ambient, utc_now=lambda: ambient.utc_now() + timedelta(seconds=200))
        async with Ec2World(cloud=cloud).hosts(ec2_config(), ledger=notes.ledger, ambient=ahead) as hosts:
            async with anyio.create_task_group() as group:
                group.start_soon(hosts.launch, notes.order("r-0", "h-0"))
                await anyio.sleep(1)
                await hosts.terminate("h-0", batch_id=BATCH_ID)
                group.cancel_scope.cancel()
            assert [] == cloud.alive()

    in_virtual_time(whole, seed=3)


def test_what_goes_wrong_inside_leaves_the_hosts_as_it_is() -> None:
    """An error of the batch must reach its command, not be wrapped in a group."""
    cloud = FakeCloud()

    async def work(world: Ec2World, hosts: Ec2Hosts, notes: Notes) -> None:
        with pytest.raises(HostError, match="as it is"):
            async with world.hosts(ec2_config(), ledger=notes.ledger):
                raise HostError("as it is", cause=Cause.UNKNOWN)

    play(cloud, work)
