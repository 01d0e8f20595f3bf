"""One instance for one host: which subnet, which token, how long, and what ends it. The error table as behaviour.

Two rules stand above the others. A token is in the ledger before its request leaves. And while the answer to a request
is unknown, nothing but that very request is sent: the same token in another subnet would be a second machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import anyio

from contract.ambient import Ambient
from contract.errors import HostError, HostsRefused
from contract.phases import Cause
from supervisor.cloud.ports import ALIVE, CloudError, FaultKind, Instance, InstanceState, LaunchOrder
from supervisor.hosts.ec2_asking import REFUSES_ALL, SIGNINGS_MAX, Asker, Pace, jittered_s
from supervisor.hosts.lease import HostOrder

# Capacity comes back within minutes or not at all: so many rounds over all subnets, and so long.
ROUNDS_MAX: Final = 6
CAPACITY_S_MAX: Final = 1200.0
ROUND_S: Final = 15.0
ROUND_S_MAX: Final = 120.0
# A subnet without free addresses gets some when instances leave it.
SUBNET_REST_S: Final = 300.0
# The vCPU limit: instances of ours leave at their own time, so looking twice a minute is enough.
QUOTA_S: Final = (30.0, 60.0)
# Without an instance of ours that could leave, somebody else holds the quota.
QUOTA_S_MAX: Final = 900.0
# A request whose answer was lost is sent so many times in all.
ASKED_MAX: Final = 6
# Then it is looked for by its token, for so long: what was launched is described within seconds.
LOOK_UP_S: Final = 20.0
# Throttled for so long without one answer, a launch is given up.
THROTTLED_S_MAX: Final = 900.0
# Instances that die before they run, for reasons that another subnet does not change.
DEATHS_MAX: Final = 3
# "Client.VolumeLimitExceeded" and "Server.InternalError" are of the other kind.
CAPACITY_REASONS: Final = frozenset({"Server.InsufficientInstanceCapacity"})


@dataclass(slots=True)
class Launch:
    """One token and what became of it. Times are of the wall clock.

    `is_open`: a request of it may have launched something that we do not know. `is_doubtful`: an answer was lost on the
    way to a definite one.
    """

    order: LaunchOrder
    asked_at: datetime
    instance: Instance | None = None
    is_open: bool = False
    is_doubtful: bool = False


@dataclass(slots=True)
class LaunchBook:
    """All launches of one host, in order. What ends a host reads it, whatever became of the launch itself."""

    launches: list[Launch] = field(default_factory=list)

    @property
    def instance_ids(self) -> list[str]:
        """What is known to have been launched."""
        return [launch.instance.instance_id for launch in self.launches if launch.instance is not None]


@dataclass(slots=True)
class Subnets:
    """The subnets of a batch in the operator's order. One that is full rests for a while, for all rollouts."""

    names: Sequence[str]
    elapsed_s: Callable[[], float]
    _resting: dict[str, float] = field(default_factory=dict)

    def awake(self) -> list[str]:
        """Those that may be tried now."""
        return [name for name in self.names if self._resting.get(name, 0.0) <= self.elapsed_s()]

    def rest(self, name: str) -> None:
        """Leave it alone for `SUBNET_REST_S`."""
        self._resting[name] = self.elapsed_s() + SUBNET_REST_S

    def soonest_s(self) -> float:
        """How long it takes until one may be tried."""
        return max(0.0, min(self._resting.get(name, 0.0) for name in self.names) - self.elapsed_s())


MakeOrder = Callable[[int, str], LaunchOrder]
"""The request for a launch by its number and subnet: equal arguments give equal bytes."""


class Launcher:
    """Launches instances for all rollouts of a batch, at EC2's pace."""

    def __init__(
        self,
        asker: Asker,
        ambient: Ambient,
        *,
        subnet_ids: Sequence[str],
        pace: Pace,
        wait_past_pending: Callable[[Instance], Awaitable[Instance]],
        on_quota_refused: Callable[[], None],
    ) -> None:
        """`wait_past_pending` returns the instance once it runs or is over. `on_quota_refused`: AWS's limit is less
        than somebody thought."""
        self._asker = asker
        self._ambient = ambient
        self._subnets = Subnets(subnet_ids, ambient.elapsed_s)
        self._pace = pace
        self._wait_past_pending = wait_past_pending
        self._on_quota_refused = on_quota_refused

    async def launch(
        self, host: HostOrder, make_order: MakeOrder, book: LaunchBook, *, are_others_alive: Callable[[], bool]
    ) -> Instance:
        """An instance that runs. Raises `HostError`; `book` then says what may be alive all the same.

        `are_others_alive`: whether another host of this batch lives, that will leave its part of the quota.
        """
        search = _Search(self._ambient.elapsed_s())
        while True:
            subnet_id = await self._next_subnet(host, search)
            order = make_order(len(book.launches), subnet_id)
            launch = Launch(order, self._ambient.utc_now())
            detail = {
                "client_token": order.client_token,
                "subnet_id": subnet_id,
                "launch_no": len(book.launches),
                "asked_at": launch.asked_at.isoformat(),
            }
            await host.note("intent", detail)
            book.launches.append(launch)
            found = await self._settle(host, launch, search, are_others_alive)
            if isinstance(found, FaultKind):
                search.tried.add(subnet_id)
                if found is FaultKind.SUBNET_FULL:
                    self._subnets.rest(subnet_id)
                continue
            instance = await self._wait_past_pending(found) if found.state in ALIVE else found
            if instance.state is InstanceState.RUNNING:
                return instance
            # Its token is spent: asking with it again gives the dead one, so the next try has another.
            self._count_death(host, instance, search)

    async def _next_subnet(self, host: HostOrder, search: _Search) -> str:
        while True:
            untried = [name for name in self._subnets.awake() if name not in search.tried]
            if untried:
                return untried[0]
            search.tried.clear()
            search.rounds += 1
            spent_s = self._ambient.elapsed_s() - search.began_s - search.quota_s
            if search.rounds >= ROUNDS_MAX or spent_s >= CAPACITY_S_MAX:
                raise _launch_error(
                    f"no subnet has room for one more instance (last reason: {search.last_reason or 'all are full'}; "
                    f"{search.rounds} rounds in {spent_s:.0f} s)",
                    hint="Add subnets in other Availability Zones, or take another instance type.",
                )
            pause_s = jittered_s(self._ambient, search.rounds, first_s=ROUND_S, most_s=ROUND_S_MAX)
            pause_s = max(pause_s, self._subnets.soonest_s())
            host.say(f"{host.rollout_id}: no subnet has room ({search.last_reason}); tried again in {pause_s:.0f} s")
            await self._ambient.sleep(pause_s)

    def _count_death(self, host: HostOrder, instance: Instance, search: _Search) -> None:
        reason = instance.reason or instance.state.value
        search.last_reason = reason
        host.say(f"{host.rollout_id}: instance {instance.instance_id} died before it ran ({reason})")
        if reason in CAPACITY_REASONS:
            search.tried.add(instance.subnet_id or "")
            return
        search.deaths += 1
        if search.deaths >= DEATHS_MAX:
            raise _launch_error(
                f"{search.deaths} instances died before they ran, the last one because of {reason}",
                hint="Look up the reason in EC2's list of state reasons; often a volume limit or an encryption key.",
            )

    async def _settle(
        self, host: HostOrder, launch: Launch, search: _Search, are_others_alive: Callable[[], bool]
    ) -> Instance | FaultKind:
        """The instance, or why it was definitely not launched: CAPACITY or SUBNET_FULL. Raises `HostError`."""
        asked = throttles = signings = 0
        throttled_s = quota_s = self._ambient.elapsed_s()
        while True:
            await self._pace.turn()
            try:
                return await self._run(host, launch)
            except CloudError as error:
                search.last_reason = error.code
                now_s = self._ambient.elapsed_s()
                if error.kind is not FaultKind.THROTTLE:
                    throttles, throttled_s = 0, now_s
                if error.kind is not FaultKind.QUOTA:
                    quota_s = now_s
                match error.kind:
                    case FaultKind.CAPACITY | FaultKind.SUBNET_FULL:
                        # EC2 answers a repeated request with what the first one launched. A look costs little, and
                        # going on without one would be a second machine if it ever did not.
                        found = await self._find(host, launch) if launch.is_doubtful else None
                        return found or error.kind
                    case FaultKind.QUOTA if are_others_alive() or now_s - quota_s < QUOTA_S_MAX:
                        self._on_quota_refused()
                        search.quota_s += await self._wait_for_quota(host)
                    case FaultKind.THROTTLE if now_s - throttled_s < THROTTLED_S_MAX:
                        throttles += 1
                        await self._ambient.sleep(jittered_s(self._ambient, throttles))
                    case FaultKind.AMBIGUOUS:
                        asked += 1
                        if asked >= ASKED_MAX:
                            return await self._look_up(host, launch, error)
                        await self._ambient.sleep(jittered_s(self._ambient, asked))
                    case FaultKind.SIGNING if signings < SIGNINGS_MAX:
                        signings += 1
                        await self._asker.renew_credentials()
                    case _:
                        raise _refused(error) from error

    async def _run(self, host: HostOrder, launch: Launch) -> Instance:
        # Shielded: a caller that is cancelled meanwhile still learns what was launched, within the client's timeouts.
        with anyio.CancelScope(shield=True):
            was_open, launch.is_open = launch.is_open, True
            launch.asked_at = self._ambient.utc_now()
            try:
                instance = await self._asker.once(lambda cloud: cloud.run_instance(launch.order))
            except CloudError as error:
                launch.is_open = _may_have_launched(error.kind, was_open=was_open)
                launch.is_doubtful |= launch.is_open
                raise
            await _own(host, launch, instance)
        return instance

    async def _look_up(self, host: HostOrder, launch: Launch, last: CloudError) -> Instance:
        """What the token launched, by its token: nobody answers to the request itself. Raises `HostError`."""
        token = launch.order.client_token
        until_s = self._ambient.elapsed_s() + LOOK_UP_S
        tries = 0
        while True:
            if (instance := await self._find(host, launch)) is not None:
                return instance
            tries += 1
            pause_s = jittered_s(self._ambient, tries)
            if self._ambient.elapsed_s() + pause_s >= until_s:
                raise _launch_error(
                    f"nobody knows whether an instance was launched: {ASKED_MAX} requests with the token {token} had "
                    f"no answer, and nothing is found by it (last: {last.message})",
                    hint="It is looked for again when the batch ends; later: autocad-bench reconcile.",
                ) from last
            await self._ambient.sleep(pause_s)

    async def _find(self, host: HostOrder, launch: Launch) -> Instance | None:
        token = launch.order.client_token
        try:
            found = await self._asker.once(lambda cloud: cloud.find_instances({"client-token": [token]}))
        except CloudError:
            return None
        if not found:
            return None
        with anyio.CancelScope(shield=True):
            await _own(host, launch, found[0])
        return found[0]

    async def _wait_for_quota(self, host: HostOrder) -> float:
        pause_s = self._ambient.chance.uniform(*QUOTA_S)
        host.say(f"{host.rollout_id}: the vCPU limit is reached; tried again in {pause_s:.0f} s")
        await self._ambient.sleep(pause_s)
        return pause_s


@dataclass(slots=True)
class _Search:
    """How far the search for a place has come."""

    began_s: float
    rounds: int = 0
    deaths: int = 0
    # What was spent waiting for quota does not count against the search for capacity.
    quota_s: float = 0.0
    last_reason: str = ""
    tried: set[str] = field(default_factory=set)


async def _own(host: HostOrder, launch: Launch, instance: Instance) -> None:
    launch.instance = instance
    launch.is_open = False
    await host.note("instance", {"instance_id": instance.instance_id, "client_token": launch.order.client_token})


def _may_have_launched(kind: FaultKind, *, was_open: bool) -> bool:
    """Whether something may live after this answer, given what was known before it."""
    match kind:
        case FaultKind.AMBIGUOUS | FaultKind.MISMATCH:
            return True
        case FaultKind.CAPACITY | FaultKind.SUBNET_FULL | FaultKind.QUOTA:
            # Had an earlier request launched, this one would have been answered with that instance.
            return False
        case _:
            # This request launched nothing, and says nothing of the one before it.
            return was_open


def _refused(error: CloudError) -> HostError:
    hint = error.hint or "See AWS's list of EC2 error codes."
    if error.kind is FaultKind.QUOTA:
        hint = "Nothing of this batch is left that could make room: ask for a higher quota, or end other instances."
    elif error.kind is FaultKind.SIGNING:
        hint = error.hint or "Renew the credentials of this profile, then resume the batch."
    elif error.kind is FaultKind.MISMATCH:
        hint = "Two requests of one token differed. What it launched is ended; report this."
    message = f"RunInstances was refused: {error.message}"
    if error.kind is FaultKind.SIGNING and error.clock_skew_s is not None:
        message += f" (AWS's clock is {error.clock_skew_s:+.0f} s off ours)"
    if error.kind in REFUSES_ALL:
        return HostsRefused(message, cause=Cause.HOST_LAUNCH, hint=hint)
    return _launch_error(message, hint=hint)


def _launch_error(message: str, *, hint: str) -> HostError:
    return HostError(message, cause=Cause.HOST_LAUNCH, hint=hint)
