"""A cloud in memory and in virtual time: slow, forgetful, throttled, and it loses answers.

It keeps what EC2 keeps (idempotency by Availability Zone, quota, capacity, eventual consistency, request rates) and
plays the guests' dead-man timers, so that a machine that leaked is one that `alive` still names.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
from anyio import NoEventLoopError
from pydantic import SecretStr

from contract.guest import read_guest_start
from supervisor.cloud.ports import (
    ALIVE,
    Agent,
    CloudError,
    FaultKind,
    Instance,
    InstanceState,
    LaunchOrder,
    PluginAccess,
    Quota,
    Reservation,
    Session,
)

T = TypeVar("T")
START: Final = datetime(2024, 5, 1, tzinfo=UTC)
NEVER: Final = math.inf
# Request rates of EC2 (bucket, refill a second), for each account and Region.
RATES: Final[Mapping[str, tuple[float, float]]] = {
    "RunInstances": (5, 2),
    "TerminateInstances": (100, 5),
    "DescribeInstances": (100, 20),
}
# Terminated instances stay visible for about an hour.
FORGOTTEN_S: Final = 3600.0
CODES: Final[Mapping[FaultKind, str]] = {
    FaultKind.CAPACITY: "InsufficientInstanceCapacity",
    FaultKind.SUBNET_FULL: "InsufficientFreeAddressesInSubnet",
    FaultKind.QUOTA: "VcpuLimitExceeded",
    FaultKind.THROTTLE: "RequestLimitExceeded",
    FaultKind.AMBIGUOUS: "ReadTimeoutError",
    FaultKind.SIGNING: "RequestExpired",
    FaultKind.MISMATCH: "IdempotentParameterMismatch",
    FaultKind.NOT_FOUND: "InvalidInstanceID.NotFound",
    FaultKind.NOT_CONNECTED: "TargetNotConnected",
    FaultKind.DENIED: "UnauthorizedOperation",
    FaultKind.PERMANENT: "InvalidParameterValue",
}


def fault(kind: FaultKind, action: str = "RunInstances", *, names: tuple[str, ...] = ()) -> CloudError:
    """The error that stands for this kind."""
    return CloudError(f"{action}: {CODES[kind]}", kind=kind, code=CODES[kind], action=action, names=names)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to one call: an error, before or after the deed was carried out, and a delay of its answer."""

    error: CloudError | None = None
    is_carried_out: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the journal. `outcome` is `ok` or the error's code."""

    at_s: float
    action: str
    order: object
    outcome: str


@dataclass(slots=True)
class Controller:
    """Whoever calls. After its death no call has any effect. `dies_at` counts what it does, from 1."""

    dies_at: float = NEVER
    deeds: int = 0
    is_dead: bool = False
    on_death: Callable[[], None] = lambda: None

    def deed(self) -> None:
        """One more thing was done; the controller may die of it."""
        self.deeds += 1
        if self.deeds >= self.dies_at and not self.is_dead:
            self.is_dead = True
            self.on_death()


@dataclass(slots=True)
class FakeInstance:
    """One machine. Times are seconds of the virtual clock; what it is at a time follows from them."""

    instance_id: str
    order: LaunchOrder
    zone: str
    launched_s: float
    running_s: float
    agent_s: float
    shutdown_s: float
    lease_s: float = NEVER
    lifetime_s: float = NEVER
    dies_s: float = NEVER
    reason: str | None = None
    ended_s: float = NEVER
    expires_s: float = NEVER
    heard_s: float | None = None
    is_decoy: bool = False
    # Shown as running, and gone.
    is_ghost: bool = False

    @property
    def end_s(self) -> float:
        """When it begins to shut down, for whatever reason comes first."""
        silent_s = (self.running_s if self.heard_s is None else self.heard_s) + self.lease_s
        return min(self.ended_s, self.dies_s, self.expires_s, silent_s, self.launched_s + self.lifetime_s)

    def state_at(self, at_s: float) -> InstanceState:
        """Its state."""
        if at_s < self.end_s:
            return InstanceState.RUNNING if at_s >= self.running_s else InstanceState.PENDING
        gone_s = self.end_s + self.shutdown_s
        return InstanceState.TERMINATED if at_s >= gone_s else InstanceState.SHUTTING_DOWN


@dataclass(slots=True)
class _Bucket:
    burst: float
    per_s: float
    left: float = field(init=False)
    at_s: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.burst

    def take(self, now_s: float) -> bool:
        self.left = min(self.burst, self.left + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        if self.left < 1:
            return False
        self.left -= 1
        return True


class LoopClock:
    """The time of the event loop; after its end, the last that was asked for."""

    def __init__(self) -> None:
        self._last_s = 0.0

    def __call__(self) -> float:
        with suppress(NoEventLoopError):
            self._last_s = anyio.current_time()
        return self._last_s


def no_trouble(action: str, order: object) -> Trouble | None:
    """Everything goes well."""
    return None


@dataclass(slots=True)
class FakeCloud:
    """Implements `supervisor.cloud.ports.Cloud`. Every field may be changed while it runs.

    `zones` gives the Availability Zone of each subnet; `capacity` bounds the machines alive in a subnet (CAPACITY),
    `addresses` likewise (SUBNET_FULL). `visible_s`: what is younger is not described; `lag_s`: states are described as
    they were then. `decoys_of_a_kind` machines of five kinds appear with the first launch.
    """

    now_s: Callable[[], float] = field(default_factory=LoopClock)
    zones: dict[str, str] = field(default_factory=lambda: {"subnet-0000000a": "az-a", "subnet-0000000b": "az-b"})
    quota_vcpus: int = 10_000
    vcpus: dict[str, int] = field(default_factory=lambda: {"g4dn.xlarge": 4})
    capacity: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    reservations: list[Reservation] = field(default_factory=list)
    pending_s: float = 15.0
    agent_s: float = 30.0
    shutdown_s: float = 20.0
    visible_s: float = 0.0
    lag_s: float = 0.0
    latency_s: float = 0.05
    # The reason with which a new machine dies in `pending`, or null.
    stillborn: Callable[[LaunchOrder], str | None] = lambda order: None
    trouble: Callable[[str, object], Trouble | None] = no_trouble
    decoys_of_a_kind: int = 0
    controller: Controller = field(default_factory=Controller)
    journal: list[Call] = field(default_factory=list)
    machines: dict[str, FakeInstance] = field(default_factory=dict)
    # Machines that were launched while another one of the same host lived.
    doubles: list[str] = field(default_factory=list)
    touched_decoys: list[str] = field(default_factory=list)
    schedules: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    refreshes: int = 0
    # Nobody has new credentials.
    is_logged_out: bool = False
    _launches: dict[tuple[str, str], FakeInstance] = field(default_factory=dict)
    _buckets: dict[str, _Bucket] = field(default_factory=lambda: {name: _Bucket(*rate) for name, rate in RATES.items()})
    _delay_s: float = 0.0

    # --- what tests ask ---------------------------------------------------------------------------------------------

    def alive(self) -> list[str]:
        """Every machine that is not a decoy and costs money now, described or not."""
        return [machine.instance_id for machine in self.ours() if machine.state_at(self.now_s()) in ALIVE]

    def ours(self) -> list[FakeInstance]:
        """Every machine that was ever launched, in order."""
        return [machine for machine in self.machines.values() if not machine.is_decoy]

    def decoys(self) -> list[FakeInstance]:
        """The machines of others."""
        return [machine for machine in self.machines.values() if machine.is_decoy]

    def calls(self, action: str) -> list[Call]:
        """The journal's lines of one action."""
        return [call for call in self.journal if call.action == action]

    def outcomes(self) -> Counter[str]:
        """How often each action ended how, as `action:outcome`."""
        return Counter(f"{call.action}:{call.outcome}" for call in self.journal)

    def used_vcpus(self) -> int:
        """What counts against the quota now."""
        now_s = self.now_s()
        counted = (InstanceState.PENDING, InstanceState.RUNNING)
        return sum(
            self.vcpus.get(machine.order.instance_type, 0)
            for machine in self.machines.values()
            if machine.state_at(now_s) in counted and not machine.is_ghost
        )

    def machine_of(self, host_id: str) -> FakeInstance | None:
        """The newest machine of a host."""
        found = [machine for machine in self.ours() if machine.order.tags.get("HostId") == host_id]
        return found[-1] if found else None

    def has_launched(self, order: LaunchOrder) -> bool:
        """Whether this token made a machine in this zone: then every later answer to it names that machine."""
        return (order.client_token, self.zones[order.subnet_id]) in self._launches

    def hear(self, host_id: str) -> bool:
        """An authenticated call reaches the host's broker and moves its dead-man timer. False when nobody is there."""
        machine = self.machine_of(host_id)
        if machine is None or machine.state_at(self.now_s()) is not InstanceState.RUNNING:
            return False
        machine.heard_s = self.now_s()
        return True

    def end(self, instance_id: str, *, reason: str = "Client.InstanceInitiatedShutdown") -> None:
        """The machine shuts itself down."""
        machine = self.machines[instance_id]
        machine.ended_s = min(machine.ended_s, self.now_s())
        machine.reason = reason

    def take_delay(self) -> float:
        """The delay of the call that has just been made."""
        delay_s, self._delay_s = self._delay_s, 0.0
        return delay_s

    # --- the Cloud protocol -----------------------------------------------------------------------------------------

    def run_instance(self, order: LaunchOrder) -> Instance:
        return self._call("RunInstances", order, lambda: self._launch(order))

    def find_instances(self, filters: Mapping[str, Sequence[str]]) -> list[Instance]:
        return self._call("DescribeInstances", filters, lambda: self._describe(filters))

    def terminate_instances(self, instance_ids: Collection[str]) -> None:
        self._call("TerminateInstances", tuple(instance_ids), lambda: self._terminate(instance_ids))

    def find_agents(self, instance_ids: Collection[str]) -> dict[str, Agent]:
        return self._call("DescribeInstanceInformation", tuple(instance_ids), lambda: self._agents(instance_ids))

    def start_session(self, instance_id: str, *, port: int, reason: str) -> Session:
        return self._call("StartSession", instance_id, lambda: self._start_session(instance_id))

    def find_sessions(self, instance_id: str, *, reason: str) -> list[str]:
        found = [session_id for session_id, target in self.sessions.items() if target == instance_id]
        return self._call("DescribeSessions", instance_id, lambda: found)

    def terminate_session(self, session_id: str) -> None:
        self._call("TerminateSession", session_id, lambda: self.sessions.pop(session_id, None))

    def plugin_access(self) -> PluginAccess:
        return PluginAccess("us-east-1", "https://ssm.invalid", {})

    def read_quota(self, code: str) -> Quota:
        return self._call("GetServiceQuota", code, lambda: Quota(code, self.quota_vcpus, is_default=False))

    def read_vcpus(self, instance_types: Collection[str]) -> dict[str, int]:
        known = {name: self.vcpus[name] for name in instance_types if name in self.vcpus}
        return self._call("DescribeInstanceTypes", tuple(instance_types), lambda: known)

    def read_reservations(self) -> list[Reservation]:
        return self._call("DescribeCapacityReservations", None, lambda: list(self.reservations))

    def create_expiry(self, name: str, *, instance_id: str, at: datetime, role_arn: str) -> None:
        self._call("CreateSchedule", name, lambda: self._create_expiry(name, instance_id, at))

    def delete_expiry(self, name: str) -> None:
        self._call("DeleteSchedule", name, lambda: self._delete_expiry(name))

    def refresh_credentials(self) -> None:
        self.refreshes += 1
        if self.is_logged_out:
            raise fault(FaultKind.SIGNING, "the signing of requests")

    # --- how it does that -------------------------------------------------------------------------------------------

    def _call(self, action: str, order: object, deed: Callable[[], T]) -> T:
        try:
            result = self._carry_out(action, order, deed)
        except CloudError as error:
            if not self.controller.is_dead:
                self.journal.append(Call(self.now_s(), action, order, error.code))
            raise
        self.journal.append(Call(self.now_s(), action, order, "ok"))
        return result

    def _carry_out(self, action: str, order: object, deed: Callable[[], T]) -> T:
        # A controller may die before its call leaves, or when it has been carried out and nobody hears the answer.
        self.controller.deed()
        if self.controller.is_dead:
            raise fault(FaultKind.PERMANENT, action)
        if action in self._buckets and not self._buckets[action].take(self.now_s()):
            raise fault(FaultKind.THROTTLE, action)
        trouble = self.trouble(action, order) or Trouble()
        self._delay_s = trouble.delay_s
        if trouble.error is not None and not trouble.is_carried_out:
            raise trouble.error
        result = deed()
        self.controller.deed()
        if self.controller.is_dead:
            raise fault(FaultKind.PERMANENT, action)
        if trouble.error is not None:
            raise trouble.error
        return result

    def _launch(self, order: LaunchOrder) -> Instance:
        now_s, zone = self.now_s(), self.zones[order.subnet_id]
        known = self._launches.get((order.client_token, zone))
        if known is not None:
            if known.order != order:
                raise fault(FaultKind.MISMATCH)
            return self._shown(known, now_s)
        self._admit(order, now_s)
        machine = self._new_machine(order, zone, now_s)
        reason = self.stillborn(order)
        if reason is not None:
            machine.dies_s, machine.reason = now_s + self.pending_s / 2, reason
        for other in self.ours():
            is_same_host = other.order.tags.get("HostId") == order.tags.get("HostId")
            if is_same_host and other.state_at(now_s) in ALIVE:
                self.doubles.append(machine.instance_id)
        self._launches[order.client_token, zone] = machine
        self.machines[machine.instance_id] = machine
        if self.decoys_of_a_kind and not self.decoys():
            self._make_decoys(order, zone, now_s)
        return self._shown(machine, now_s)

    def _admit(self, order: LaunchOrder, now_s: float) -> None:
        if self.used_vcpus() + self.vcpus[order.instance_type] > self.quota_vcpus:
            raise fault(FaultKind.QUOTA)
        here = [machine for machine in self.ours() if machine.order.subnet_id == order.subnet_id]
        living = sum(machine.state_at(now_s) is not InstanceState.TERMINATED for machine in here)
        if living >= self.addresses.get(order.subnet_id, 10_000):
            raise fault(FaultKind.SUBNET_FULL)
        if sum(machine.state_at(now_s) in ALIVE for machine in here) >= self.capacity.get(order.subnet_id, 10_000):
            raise fault(FaultKind.CAPACITY)

    def _new_machine(self, order: LaunchOrder, zone: str, now_s: float) -> FakeInstance:
        start = read_guest_start(order.user_data)
        name = hashlib.sha256(f"{order.client_token}|{zone}".encode()).hexdigest()[:17]
        return FakeInstance(
            instance_id=f"i-{name}",
            order=order,
            zone=zone,
            launched_s=now_s,
            running_s=now_s + self.pending_s,
            agent_s=now_s + self.pending_s + self.agent_s,
            shutdown_s=self.shutdown_s,
            lease_s=start.lease_s,
            lifetime_s=start.lifetime_s,
        )

    def _make_decoys(self, order: LaunchOrder, zone: str, now_s: float) -> None:
        tags = dict(order.tags)
        kinds: dict[str, dict[str, str]] = {
            "owner": {**tags, "Owner": "somebody-else"},
            "sibling": {**tags, "BatchId": tags["BatchId"] + "-2"},
            "rollout": {"RolloutId": tags["RolloutId"], "Owner": tags["Owner"], "BatchId": "another"},
            "dead": tags,
            "ghost": {**tags, "BatchId": "gone"},
            "stranger": tags,
        }
        for kind, decoy_tags in kinds.items():
            for number in range(self.decoys_of_a_kind):
                token = hashlib.sha256(f"{kind}{number}".encode()).hexdigest()[:40]
                decoy = LaunchOrder(token, order.image_id, "p5.48xlarge", order.subnet_id, "", "", "", decoy_tags)
                instance_id = f"i-{token[:17]}"
                self.machines[instance_id] = FakeInstance(
                    instance_id,
                    decoy,
                    zone,
                    launched_s=now_s - 600,
                    running_s=now_s - 500,
                    agent_s=now_s - 450,
                    shutdown_s=0,
                    ended_s=now_s - 1 if kind == "dead" else NEVER,
                    is_decoy=True,
                    is_ghost=kind == "ghost",
                )

    def _describe(self, filters: Mapping[str, Sequence[str]]) -> list[Instance]:
        now_s = self.now_s()
        shown = []
        for machine in self.machines.values():
            is_young = now_s < machine.launched_s + self.visible_s
            is_forgotten = now_s > machine.end_s + machine.shutdown_s + FORGOTTEN_S
            if not is_young and not is_forgotten:
                instance = self._shown(machine, max(machine.launched_s, now_s - self.lag_s))
                if _matches(instance, filters):
                    shown.append(instance)
        return shown

    def _terminate(self, instance_ids: Collection[str]) -> None:
        now_s = self.now_s()
        unknown = tuple(name for name in instance_ids if not self._can_terminate(name, now_s))
        self.touched_decoys += [name for name in instance_ids if name in self.machines and self.machines[name].is_decoy]
        if unknown:
            raise fault(FaultKind.NOT_FOUND, "TerminateInstances", names=unknown)
        for name in instance_ids:
            machine = self.machines[name]
            if now_s < machine.end_s:
                machine.ended_s, machine.reason = now_s, "Client.UserInitiatedShutdown"

    def _can_terminate(self, instance_id: str, now_s: float) -> bool:
        machine = self.machines.get(instance_id)
        if machine is None or machine.is_ghost or now_s > machine.end_s + machine.shutdown_s + FORGOTTEN_S:
            return False
        return now_s >= machine.launched_s + self.visible_s

    def _agents(self, instance_ids: Collection[str]) -> dict[str, Agent]:
        now_s = self.now_s()
        return {
            name: Agent(is_online=self.machines[name].state_at(now_s) is InstanceState.RUNNING, version="3.3.0.0")
            for name in instance_ids
            if name in self.machines and now_s >= self.machines[name].agent_s
        }

    def _start_session(self, instance_id: str) -> Session:
        if not self._agents([instance_id]):
            raise fault(FaultKind.NOT_CONNECTED, "StartSession")
        session_id = f"s-{len(self.journal)}"
        self.sessions[session_id] = instance_id
        return Session(session_id, SecretStr("{}"))

    def _create_expiry(self, name: str, instance_id: str, at: datetime) -> None:
        if self.schedules.setdefault(name, instance_id) == instance_id:
            self.machines[instance_id].expires_s = (at - START).total_seconds()

    def _delete_expiry(self, name: str) -> None:
        instance_id = self.schedules.pop(name, None)
        if instance_id is not None and self.now_s() < self.machines[instance_id].end_s:
            self.machines[instance_id].expires_s = NEVER

    def _shown(self, machine: FakeInstance, at_s: float) -> Instance:
        state = InstanceState.RUNNING if machine.is_ghost else machine.state_at(at_s)
        is_over = state in (InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED)
        return Instance(
            instance_id=machine.instance_id,
            state=state,
            instance_type=machine.order.instance_type,
            image_id=machine.order.image_id,
            subnet_id=machine.order.subnet_id,
            private_ip="10.0.0.1",
            launched_at=START + timedelta(seconds=machine.launched_s),
            client_token=machine.order.client_token,
            tags=machine.order.tags,
            reason=(machine.reason or "Client.InstanceInitiatedShutdown") if is_over else None,
        )


class CloudBridge:
    """Carries calls to the fake in virtual time: half the latency there, half back.

    As with a thread that is left behind, a call whose caller was cancelled on its way is carried out all the same.
    """

    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    async def call(self, work: Callable[[], T]) -> T:
        cloud = self._cloud
        half_s = 0.0 if cloud.controller.is_dead else cloud.latency_s / 2
        try:
            await anyio.sleep(half_s)
        except anyio.get_cancelled_exc_class():
            with suppress(CloudError):
                work()
            raise
        try:
            return work()
        finally:
            delay_s = cloud.take_delay()
            await anyio.sleep(half_s + delay_s)


def _matches(instance: Instance, filters: Mapping[str, Sequence[str]]) -> bool:
    return all(_value_of(instance, name) in values for name, values in filters.items())


def _value_of(instance: Instance, name: str) -> str | None:
    if name.startswith("tag:"):
        return instance.tags.get(name.removeprefix("tag:"))
    values = {
        "instance-id": instance.instance_id,
        "client-token": instance.client_token,
        "instance-state-name": instance.state.value,
        "image-id": instance.image_id,
        "instance-type": instance.instance_type,
    }
    return values[name]
