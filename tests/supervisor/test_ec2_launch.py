"""A launch against a cloud that refuses, forgets and loses answers: which subnet and token, how long, what ends."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import anyio
import pytest

from contract.ambient import Ambient
from contract.errors import HostError, HostsRefused
from contract.phases import Cause
from supervisor.cloud.ports import CloudError, FaultKind, LaunchOrder
from supervisor.hosts.ec2 import Ec2Hosts
from supervisor.hosts.ec2_names import client_token_of
from supervisor.hosts.lease import Host
from tests.batch_fakes import in_virtual_time, virtual_ambient
from tests.ec2_world import BATCH_ID, Ec2World, Notes, ec2_config, settle
from tests.fake_cloud import FakeCloud, Trouble, fault

A, B = "subnet-0000000a", "subnet-0000000b"


class Script:
    """Troubles for the first calls of some actions, in order; then all is well."""

    def __init__(self, **troubles: Sequence[Trouble | None]) -> None:
        self._left = {name: list(items) for name, items in troubles.items()}

    def __call__(self, action: str, order: object) -> Trouble | None:
        left = self._left.get(action)
        return left.pop(0) if left else None


def refused(kind: FaultKind, action: str = "RunInstances") -> Trouble:
    return Trouble(fault(kind, action))


def lost(action: str = "RunInstances") -> Trouble:
    """Carried out, and nobody hears of it."""
    return Trouble(fault(FaultKind.AMBIGUOUS, action), is_carried_out=True)


def play(cloud: FakeCloud, work: Callable[[Ec2Hosts, Notes], Awaitable[None]], **config: Any) -> Notes:
    """Do `work` with hosts on this cloud, in virtual time."""
    notes = Notes()

    async def whole() -> None:
        world = Ec2World(cloud=cloud)
        ambient = virtual_ambient()
        ambient = Ambient(elapsed_s=ambient.elapsed_s, utc_now=ambient.utc_now, chance=random.Random(7))
        async with world.hosts(ec2_config(**config), ledger=notes.ledger, ambient=ambient) as hosts:
            await work(hosts, notes)

    in_virtual_time(whole, seed=7)
    return notes


async def launched(hosts: Ec2Hosts, notes: Notes) -> None:
    await hosts.launch(notes.order(host_id="h-1"))


def launch_on(cloud: FakeCloud, **config: Any) -> tuple[Notes, HostError | None]:
    """Launch one host as the sandbox does: with what ends it behind."""
    failures: list[HostError] = []

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        try:
            await hosts.launch(notes.order(host_id="h-1"))
        except HostError as error:
            failures.append(error)

    notes = play(cloud, work, **config)
    return notes, failures[0] if failures else None


def runs(cloud: FakeCloud) -> list[LaunchOrder]:
    return [call.order for call in cloud.calls("RunInstances") if isinstance(call.order, LaunchOrder)]


def test_a_token_is_in_the_ledger_before_its_request_and_names_batch_host_number_and_subnet() -> None:
    """Whoever comes after a crash finds by the ledger what a lost request has launched."""
    cloud = FakeCloud()
    seen: list[list[str]] = []

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        def look(action: str, order: object) -> None:
            if action == "RunInstances":
                seen.append(notes.events())

        cloud.trouble = look
        await launched(hosts, notes)

    notes = play(cloud, work)
    token = client_token_of(batch_id=BATCH_ID, host_id="h-1", launch_no=0, subnet_id=A)

    assert [["intent"]] == seen
    assert ["intent", "instance"] == notes.events()
    assert [token] == notes.tokens() == [order.client_token for order in runs(cloud)]


def test_no_capacity_means_the_next_subnet_at_once_with_another_token() -> None:
    """Capacity is a matter of the zone; waiting in front of an empty one gains nothing."""
    cloud = FakeCloud(capacity={A: 0})
    notes, failure = launch_on(cloud)

    assert failure is None
    assert [A, B] == notes.subnets()
    assert 2 == len(set(notes.tokens()))
    assert cloud.journal[1].at_s - cloud.journal[0].at_s < 1


def test_no_capacity_anywhere_ends_after_six_rounds_with_pauses_between_them() -> None:
    """What is full for twenty minutes is not waited for: the operator must choose another type or zone."""
    cloud = FakeCloud(capacity={A: 0, B: 0})
    notes, failure = launch_on(cloud)
    times = [call.at_s for call in cloud.calls("RunInstances")]

    assert failure is not None
    assert Cause.HOST_LAUNCH == failure.cause
    assert "InsufficientInstanceCapacity" in failure.message
    assert [A, B] * 6 == notes.subnets()
    assert 12 == len(set(notes.tokens()))
    assert times[-1] - times[0] <= 1200
    assert [] == cloud.alive()


def test_a_subnet_without_addresses_rests_for_all_rollouts() -> None:
    """Addresses come back when instances leave; until then each try there is one of a scarce rate."""
    cloud = FakeCloud(addresses={A: 0})

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        for number in range(3):
            await hosts.launch(notes.order(f"r-{number}", f"h-{number}"))

    notes = play(cloud, work)

    assert [A, B, B, B] == notes.subnets()


def test_a_subnet_that_rests_is_tried_again_when_it_is_the_only_one() -> None:
    """Five minutes later there may be room."""
    cloud = FakeCloud(addresses={A: 0})

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(launched, hosts, notes)
            await anyio.sleep(200)
            cloud.addresses = {}

    play(cloud, work, subnet_ids=[A])
    times = [call.at_s for call in cloud.calls("RunInstances")]

    assert 2 == len(times)
    assert 300 <= times[1] - times[0] <= 330


def test_a_throttled_request_is_repeated_with_the_same_token() -> None:
    """Nothing was launched and nothing is known against the subnet."""
    cloud = FakeCloud(trouble=Script(RunInstances=[refused(FaultKind.THROTTLE)] * 20))
    notes, failure = launch_on(cloud)

    assert failure is None
    assert 21 == len(runs(cloud))
    assert 1 == len({order.client_token for order in runs(cloud)})
    assert ["intent", "instance"] == notes.events()


@pytest.mark.parametrize("lost_times", [1, 2, 5])
def test_a_lost_answer_never_launches_twice(lost_times: int) -> None:
    """The same token in the same subnet is the same launch, whatever the network did to the answers."""
    cloud = FakeCloud(trouble=Script(RunInstances=[lost()] * lost_times))
    notes, failure = launch_on(cloud)
    orders = runs(cloud)

    assert failure is None
    assert lost_times + 1 == len(orders)
    assert [orders[0]] * len(orders) == orders
    assert 1 == len(cloud.ours()) == len(cloud.alive())
    assert [] == cloud.doubles
    assert ["intent", "instance"] == notes.events()


def test_no_other_subnet_is_tried_while_an_answer_is_unknown() -> None:
    """A token is idempotent within its zone only: elsewhere it would be a second machine."""
    cloud = FakeCloud(trouble=Script(RunInstances=[refused(FaultKind.AMBIGUOUS)] * 3 + [refused(FaultKind.CAPACITY)]))
    notes, failure = launch_on(cloud)

    assert failure is None
    assert [A, A, A, A, B] == [order.subnet_id for order in runs(cloud)]
    assert [A, B] == notes.subnets()


def test_a_refusal_after_a_lost_answer_is_not_believed_before_the_token_was_looked_for() -> None:
    """EC2 promises that it cannot happen; if it did, going on would be a second machine for one host."""
    cloud = FakeCloud(trouble=Script(RunInstances=[lost(), refused(FaultKind.CAPACITY)]))
    notes, failure = launch_on(cloud)

    assert failure is None
    assert [A] == notes.subnets()
    assert 1 == len(cloud.ours())


def test_answers_that_stay_lost_are_looked_up_by_token_and_adopted() -> None:
    """EC2 knows what a token launched even when RunInstances itself never answers."""
    cloud = FakeCloud(trouble=Script(RunInstances=[lost()] * 6))
    notes, failure = launch_on(cloud)

    assert failure is None
    assert 6 == len(runs(cloud))
    assert {"client-token": [notes.tokens()[0]]} == cloud.calls("DescribeInstances")[0].order
    assert 1 == len(cloud.alive())


def test_a_launch_that_nobody_can_tell_of_keeps_the_ledger_open_and_is_ended_later() -> None:
    """An instance that no index shows yet is not gone; the reconciler finds it by its token."""
    cloud = FakeCloud(visible_s=60, trouble=Script(RunInstances=[lost()] + [refused(FaultKind.AMBIGUOUS)] * 5))
    refusals: list[HostError] = []

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        with pytest.raises(HostError, match="nobody knows whether"):
            await hosts.launch(notes.order(host_id="h-1"))
        try:
            await hosts.terminate("h-1", batch_id=BATCH_ID)
        except HostError as error:
            refusals.append(error)
        await anyio.sleep(60)
        left = await hosts.find_leftovers(["h-1"], batch_id=BATCH_ID)
        assert ["h-1"] == list(left)
        await hosts.terminate_all(list(left), batch_id=BATCH_ID)
        assert [] == cloud.alive()

    play(cloud, work)

    assert 1 == len(refusals)
    assert "nobody knows yet" in refusals[0].message
    assert 1 == len(cloud.calls("TerminateInstances"))


def test_a_launch_that_never_was_is_over_once_its_token_was_looked_for_long_enough() -> None:
    """Two minutes after the last request an instance would be shown."""
    cloud = FakeCloud(trouble=Script(RunInstances=[refused(FaultKind.AMBIGUOUS)] * 6))

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        with pytest.raises(HostError):
            await hosts.launch(notes.order(host_id="h-1"))
        with pytest.raises(HostError, match="nobody knows yet"):
            await hosts.terminate("h-1", batch_id=BATCH_ID)
        await anyio.sleep(120)
        await hosts.terminate("h-1", batch_id=BATCH_ID)

    play(cloud, work)

    assert [] == cloud.calls("TerminateInstances")


def test_a_refused_signature_is_signed_anew_three_times_and_then_names_clock_and_credentials() -> None:
    """Expired credentials may have been renewed meanwhile; a wrong clock is for the operator."""
    skewed = CloudError(
        "expired", kind=FaultKind.SIGNING, code="RequestExpired", action="RunInstances", clock_skew_s=-420
    )
    good = FakeCloud(trouble=Script(RunInstances=[refused(FaultKind.SIGNING)] * 3))
    bad = FakeCloud(trouble=Script(RunInstances=[Trouble(skewed)] * 9), is_logged_out=True)
    _, recovered = launch_on(good)
    _, failure = launch_on(bad)

    assert recovered is None
    assert 3 == good.refreshes
    assert isinstance(failure, HostsRefused)
    assert (4, 3) == (len(runs(bad)), bad.refreshes)
    assert "-420 s" in failure.message


def test_a_full_quota_is_waited_for_without_bound_while_a_host_of_the_batch_lives() -> None:
    """Our own hosts will leave; the rollout waits and does not fail."""
    cloud = FakeCloud(quota_vcpus=4)
    told: list[float] = []

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        await hosts.launch(notes.order("r-0", "h-0"))
        async with anyio.create_task_group() as group:
            group.start_soon(hosts.launch, notes.order("r-1", "h-1"))
            await anyio.sleep(1200)
            told.append(anyio.current_time())
            await hosts.terminate("h-0", batch_id=BATCH_ID)

    notes = play(cloud, work, lease_s=3000)
    times = [call.at_s for call in cloud.calls("RunInstances")]
    steps = [later - earlier for earlier, later in pairwise(times[1:])]

    assert times[-1] > told[0]
    assert all(30 <= step <= 61 for step in steps)
    assert 2 == len(set(notes.tokens()))


def test_a_full_quota_without_a_host_of_ours_ends_after_a_quarter_of_an_hour() -> None:
    """Then somebody else holds it, and nothing of ours will make room."""
    cloud = FakeCloud(quota_vcpus=0)
    _, failure = launch_on(cloud)
    times = [call.at_s for call in cloud.calls("RunInstances")]

    assert failure is not None
    assert "VcpuLimitExceeded" in failure.message
    assert 900 <= times[-1] - times[0] <= 970


def test_a_token_used_with_other_parameters_is_never_repeated_and_what_it_launched_is_ended() -> None:
    """Only a bug can cause it, and it must not cost an instance."""
    cloud = FakeCloud()

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        order = notes.order(host_id="h-1")
        token = client_token_of(batch_id=BATCH_ID, host_id="h-1", launch_no=0, subnet_id=A)
        user_data = '# autocad-bench-start: {"host_id":"h-1","token_sha256":"' + "0" * 64
        user_data += '","driver":"paper","port":1,"lease_s":300,"lifetime_s":3000}'
        cloud.run_instance(LaunchOrder(token, "ami-1", "g4dn.xlarge", A, "", "", user_data, {"HostId": "h-1"}))
        with pytest.raises(HostError, match="IdempotentParameterMismatch"):
            await hosts.launch(order)
        await hosts.terminate("h-1", batch_id=BATCH_ID)

    play(cloud, work)

    assert 2 == len(runs(cloud))
    assert [] == cloud.alive()


@pytest.mark.parametrize("kind", [FaultKind.DENIED, FaultKind.PERMANENT])
def test_what_will_never_be_granted_fails_at_once(kind: FaultKind) -> None:
    """A missing permission or a wrong parameter does not get better by asking; the first is so for every host."""
    cloud = FakeCloud(trouble=Script(RunInstances=[refused(kind)]))
    _, failure = launch_on(cloud)

    assert failure is not None
    assert (kind is FaultKind.DENIED) == isinstance(failure, HostsRefused)
    assert Cause.HOST_LAUNCH == failure.cause
    assert 1 == len(runs(cloud))


def test_an_instance_that_dies_in_pending_for_want_of_capacity_is_followed_by_one_elsewhere() -> None:
    """Its token is spent: asking with it again would give the dead one."""
    first: list[str] = []

    def stillborn(order: LaunchOrder) -> str | None:
        first.append(order.subnet_id)
        return "Server.InsufficientInstanceCapacity" if len(first) == 1 else None

    cloud = FakeCloud(stillborn=stillborn)
    notes, failure = launch_on(cloud)

    assert failure is None
    assert [A, B] == notes.subnets()
    assert ["intent", "instance", "intent", "instance"] == notes.events()
    assert 1 == len(cloud.alive())


def test_instances_that_keep_dying_end_the_launch_with_their_reason() -> None:
    """A volume limit or a missing key kills each of them, in every zone."""
    cloud = FakeCloud(stillborn=lambda order: "Client.VolumeLimitExceeded")
    notes, failure = launch_on(cloud)

    assert failure is not None
    assert "Client.VolumeLimitExceeded" in failure.message
    assert 3 == len(set(notes.tokens())) == len(cloud.ours())
    assert [] == cloud.alive()


def test_an_agent_that_never_reports_ends_the_launch_within_the_boot_time() -> None:
    """An image without a working agent must not hold a place for ever."""
    cloud = FakeCloud(agent_s=10_000)
    ended: list[float] = []

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        with pytest.raises(HostError, match="SSM agent"):
            await hosts.launch(notes.order(host_id="h-1"))
        ended.append(anyio.current_time())
        await hosts.terminate("h-1", batch_id=BATCH_ID)

    play(cloud, work, lease_s=3000)

    assert 290 <= ended[0] <= 310
    assert [] == cloud.alive()


def test_a_guest_that_dies_while_it_boots_ends_the_launch_at_once() -> None:
    """Nobody waits for the agent of a machine that is gone."""
    cloud = FakeCloud(agent_s=10_000)

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(_end_at, cloud, 60.0)
            with pytest.raises(HostError, match="while it booted"):
                await hosts.launch(notes.order(host_id="h-1"))
        assert anyio.current_time() < 70

    play(cloud, work, lease_s=3000)


async def _end_at(cloud: FakeCloud, at_s: float) -> None:
    await anyio.sleep(at_s)
    cloud.end(cloud.alive()[0])


@pytest.mark.parametrize("at_s", [0.0, 0.01, 0.03, 0.049, 0.06, 1.0, 5.0, 14.0, 16.0, 21.0, 40.0, 46.0])
@pytest.mark.parametrize("visible_s", [0.0, 30.0])
def test_a_launch_that_is_cancelled_at_any_step_leaves_nothing(at_s: float, visible_s: float) -> None:
    """A request that is under way is answered before the cancellation counts, and then ended by what it answered."""
    cloud = FakeCloud(visible_s=visible_s)

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        order = notes.order(host_id="h-1")
        with anyio.move_on_after(at_s):
            try:
                await hosts.launch(order)
            finally:
                await settle(hosts, order.host_id)
        assert [] == cloud.alive()

    play(cloud, work)

    assert [] == cloud.doubles


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_launch_that_is_cancelled_between_two_tries_of_a_lost_answer_leaves_nothing(lost_first: bool) -> None:
    """The token is looked up before the host counts as ended."""
    first = lost() if lost_first else refused(FaultKind.AMBIGUOUS)
    cloud = FakeCloud(trouble=Script(RunInstances=[first] + [refused(FaultKind.AMBIGUOUS)] * 9))

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        order = notes.order(host_id="h-1")
        with anyio.move_on_after(2):
            try:
                await hosts.launch(order)
            finally:
                await settle(hosts, order.host_id)
        assert [] == cloud.alive()

    play(cloud, work)


def test_a_hundred_launches_keep_ec2s_rates_and_share_one_reader() -> None:
    """RunInstances has a bucket of 5 and 2 more a second for the whole account; the rest of it is for others."""
    cloud = FakeCloud()
    hosts_up: list[Host] = []

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        async def one(number: int) -> None:
            hosts_up.append(await hosts.launch(notes.order(f"r-{number}", f"h-{number}")))

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(one, number)

    play(cloud, work)
    outcomes = cloud.outcomes()
    took_s = cloud.journal[-1].at_s

    assert 100 == len(hosts_up) == len(cloud.alive()) == outcomes["RunInstances:ok"]
    assert 0 == sum(count for name, count in outcomes.items() if "RequestLimitExceeded" in name)
    assert took_s < 130
    assert outcomes["DescribeInstances:ok"] <= took_s / 5 + 2
    assert outcomes["DescribeInstanceInformation:ok"] <= took_s / 5 + 2


def test_no_secret_is_in_what_an_instance_is_told_and_its_user_data_is_short() -> None:
    """Every process of the guest, and whoever may describe it, can read user data."""
    cloud = FakeCloud()
    up: list[Host] = []

    async def work(hosts: Ec2Hosts, notes: Notes) -> None:
        up.append(await hosts.launch(notes.order(host_id="h-1")))

    notes = play(cloud, work)
    secret = up[0].token.get_secret_value()

    assert secret not in repr(runs(cloud)) + repr(notes.lines) + repr(notes.said)
    assert len(runs(cloud)[0].user_data.encode()) < 16_384
    assert {"BatchId", "RolloutId", "HostId", "Owner", "ClientToken", "ExpiresAt", "Name"} == runs(cloud)[0].tags.keys()
