"""A place in the vCPU quota while the batch runs: what shrinks only delays, and what is free is used."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from contract.ambient import Ambient
from contract.errors import HostsRefused
from supervisor.admission import host_needs
from supervisor.cloud.ports import FaultKind, Reservation
from supervisor.quota_gate import QuotaGate
from tests.batch_fakes import FakeSlots, FakeWorld, in_virtual_time, virtual_ambient
from tests.ec2_world import BATCH_ID, Ec2World, Notes, ec2_config
from tests.fake_cloud import CloudBridge, FakeCloud, Trouble, fault

NEEDS = host_needs(driver="paper", mode="shared", scripted=False)


def ambient(seed: int = 1) -> Ambient:
    return replace(virtual_ambient(), chance=random.Random(seed))


def gate_of(cloud: FakeCloud, world: FakeWorld | None = None) -> QuotaGate:
    return QuotaGate(
        FakeSlots(world or FakeWorld()),
        ec2_config(),
        cloud=cloud,
        bridge=CloudBridge(cloud),
        batch_id=BATCH_ID,
        ambient=ambient(),
    )


def take(gate: QuotaGate, rollout_id: str, on_wait: Callable[[str], None] = lambda reason: None, **changes: Any) -> Any:
    return gate.slot(NEEDS, batch_id=BATCH_ID, rollout_id=rollout_id, on_wait=on_wait, **changes)


def test_as_many_get_a_place_as_the_quota_has_room_for_before_anything_is_launched() -> None:
    """What was admitted and is not shown yet counts, or a whole wave would pass at once."""
    cloud = FakeCloud(quota_vcpus=14)
    world = FakeWorld()
    waits: list[str] = []

    async def work() -> None:
        gate = gate_of(cloud, world)

        async def hold(number: int) -> None:
            async with take(gate, f"r-{number}", waits.append):
                await anyio.sleep(1000)

        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(hold, number)
            await anyio.sleep(100)
            assert 3 == world.places_held
            group.cancel_scope.cancel()

    in_virtual_time(work, seed=1)

    assert 3 == len(waits)
    assert any("12 of 14 vCPUs" in reason for reason in waits)


def test_reservations_and_other_peoples_instances_take_their_part() -> None:
    """The quota is the account's, not ours."""
    cloud = FakeCloud(quota_vcpus=12, reservations=[Reservation("g4dn.xlarge", 2)])
    world = FakeWorld()

    async def work() -> None:
        gate = gate_of(cloud, world)
        async with take(gate, "r-0"):
            with anyio.move_on_after(100):
                async with take(gate, "r-1"):
                    raise AssertionError("there is room for one")

    in_virtual_time(work, seed=1)


def test_a_host_that_exists_already_does_not_wait_and_counts() -> None:
    """A resumed rollout's instance is in the quota, whether there is room or not."""
    cloud = FakeCloud(quota_vcpus=4)

    async def work() -> None:
        gate = gate_of(cloud)
        async with take(gate, "r-0", has_host=True), take(gate, "r-1", has_host=True):
            with anyio.move_on_after(100):
                async with take(gate, "r-2"):
                    raise AssertionError("there is no room")

    in_virtual_time(work, seed=1)


@pytest.mark.parametrize(("kind", "times"), [(FaultKind.THROTTLE, 9), (FaultKind.AMBIGUOUS, 9), (FaultKind.SIGNING, 3)])
def test_a_quota_that_cannot_be_read_for_a_while_is_waited_for(kind: FaultKind, times: int) -> None:
    """A bad minute of AWS is no reason to launch blindly."""
    left = [Trouble(fault(kind, "GetServiceQuota"))] * times
    cloud = FakeCloud(trouble=lambda action, order: left.pop() if action == "GetServiceQuota" and left else None)
    waits: list[str] = []

    async def work() -> None:
        async with take(gate_of(cloud), "r-0", waits.append):
            pass

    in_virtual_time(work, seed=1)

    assert times + 1 == len(cloud.calls("GetServiceQuota"))
    assert 1 == len(waits)


@pytest.mark.parametrize("is_logged_out", [False, True])
def test_credentials_that_stay_refused_end_the_wait_for_everybody(is_logged_out: bool) -> None:
    """Nobody would ever come out of that line, whether there are other credentials to try or none."""
    refusal = Trouble(fault(FaultKind.SIGNING, "GetServiceQuota"))
    cloud = FakeCloud(is_logged_out=is_logged_out)
    cloud.trouble = lambda action, order: refusal if action == "GetServiceQuota" else None
    refused: list[str] = []

    async def work() -> None:
        gate = gate_of(cloud)
        for number in range(2):
            with pytest.raises(HostsRefused):
                async with take(gate, f"r-{number}"):
                    pass
            refused.append(f"r-{number}")

    in_virtual_time(work, seed=1)

    assert ["r-0", "r-1"] == refused
    assert (8, 6) == (len(cloud.calls("GetServiceQuota")), cloud.refreshes)


def test_without_the_permission_to_read_it_aws_decides_at_the_launch() -> None:
    """Nobody waits for an answer that will never come."""
    refusal = Trouble(fault(FaultKind.DENIED, "GetServiceQuota"))
    cloud = FakeCloud(trouble=lambda action, order: refusal if action == "GetServiceQuota" else None)
    waits: list[str] = []

    async def work() -> None:
        async with take(gate_of(cloud), "r-0", waits.append):
            pass

    in_virtual_time(work, seed=1)

    assert 1 == len(waits)
    assert "cannot be read" in waits[0]


def test_whoever_is_cancelled_in_the_line_leaves_no_gap() -> None:
    """An interrupted rollout must not hold a place that nobody sees."""
    cloud = FakeCloud(quota_vcpus=4)
    world = FakeWorld()

    async def work() -> None:
        gate = gate_of(cloud, world)
        async with take(gate, "r-0"):
            for number in range(1, 4):
                with anyio.move_on_after(5 * number):
                    async with take(gate, f"r-{number}"):
                        raise AssertionError("there is no room")
        with anyio.fail_after(30):
            async with take(gate, "r-9"):
                pass
        assert 0 == world.places_held

    in_virtual_time(work, seed=1)


def test_a_hundred_rollouts_use_a_quota_that_shrinks_and_grows_and_none_fails(tmp_path: Path) -> None:
    """AWS takes back what it gave, others come and go: launches wait, and what is free is used within seconds."""
    cloud = FakeCloud(quota_vcpus=120, pending_s=15, agent_s=20, shutdown_s=30)
    notes = Notes()
    seconds: list[tuple[int, int]] = []
    done: list[str] = []
    waiting = {f"r-{number}" for number in range(100)}

    async def change() -> None:
        chance = random.Random(5)
        while True:
            await anyio.sleep(300)
            cloud.quota_vcpus = chance.choice([40, 60, 80, 120])

    async def watch() -> None:
        while True:
            await anyio.sleep(1)
            if waiting:
                seconds.append((min(cloud.used_vcpus(), cloud.quota_vcpus), cloud.quota_vcpus - cloud.quota_vcpus % 4))

    async def work() -> None:
        world = Ec2World(cloud=cloud)
        gate = gate_of(cloud, world)
        chance = random.Random(9)

        async def play(rollout_id: str) -> None:
            async with take(gate, rollout_id):
                waiting.discard(rollout_id)
                order = notes.order(rollout_id)
                await hosts.launch(order)
                for _ in range(int(chance.uniform(60, 180))):
                    await anyio.sleep(10)
                    cloud.hear(order.host_id)
                await hosts.terminate(order.host_id, batch_id=BATCH_ID)
                done.append(rollout_id)

        async with (
            world.hosts(ec2_config(), ledger=notes.ledger, ambient=ambient(), on_quota_refused=gate.expire) as hosts,
            anyio.create_task_group() as helpers,
        ):
            helpers.start_soon(change)
            helpers.start_soon(watch)
            async with anyio.create_task_group() as rollouts:
                for rollout_id in sorted(waiting):
                    rollouts.start_soon(play, rollout_id)
            helpers.cancel_scope.cancel()

    in_virtual_time(work, seed=2)
    used = sum(taken for taken, _ in seconds) / sum(room for _, room in seconds)

    assert 100 == len(set(done))
    assert used >= 0.95, f"{used:.3f} of the quota was used"
    assert [] == cloud.alive()
    assert 0 == sum(count for name, count in cloud.outcomes().items() if "RequestLimitExceeded" in name)
