"""What the supervisor asks of the cloud, one method for each AWS action, and nothing that decides anything.

Methods block and are safe to call from many threads. Each is tried once: budgets of retries belong to whoever asks.
Every method raises `CloudError`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from pydantic import SecretStr

from contract.errors import HostError
from contract.phases import Cause


class FaultKind(StrEnum):
    """What an error of AWS means for whoever asked. `supervisor/cloud/faults.py` is the table."""

    # Definite: nothing was launched, and another subnet may have room.
    CAPACITY = "capacity"
    SUBNET_FULL = "subnet_full"
    # Definite: nothing was launched, and another subnet does not help.
    QUOTA = "quota"
    THROTTLE = "throttle"
    # Nobody knows whether it was carried out.
    AMBIGUOUS = "ambiguous"
    # The signature or the credentials behind it were refused; new ones may be accepted.
    SIGNING = "signing"
    # The client token was used with other parameters.
    MISMATCH = "mismatch"
    # The named thing is not there, or not visible yet.
    NOT_FOUND = "not_found"
    # The instance's SSM agent has not reported yet.
    NOT_CONNECTED = "not_connected"
    # The operator lacks a permission.
    DENIED = "denied"
    PERMANENT = "permanent"


class CloudError(HostError):
    """AWS refused a call or could not be reached. `code` is AWS's, or the name of the client's own exception.

    `names` are the resource ids that the answer complains about. `clock_skew_s` is how far AWS's clock is ahead of
    ours, where the answer told; null else. The message holds no secret, no signed URL and no encoded blob of AWS.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: FaultKind,
        code: str,
        action: str,
        names: tuple[str, ...] = (),
        clock_skew_s: float | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, cause=Cause.HOST_LAUNCH, hint=hint)
        self.kind = kind
        self.code = code
        self.action = action
        self.names = names
        self.clock_skew_s = clock_skew_s


class InstanceState(StrEnum):
    """EC2's names."""

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"
    STOPPING = "stopping"
    STOPPED = "stopped"


# What costs money or will again; TerminateInstances takes exactly these.
ALIVE: Final = frozenset({InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING, InstanceState.STOPPED})


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance as DescribeInstances or RunInstances shows it.

    `client_token` is the one of its RunInstances call, which nobody can forge or change later. `lifecycle` is null for
    on-demand instances; `reason` is the code of its last change of state.
    """

    instance_id: str
    state: InstanceState
    instance_type: str
    image_id: str
    subnet_id: str | None
    private_ip: str | None
    launched_at: datetime
    client_token: str
    tags: Mapping[str, str] = field(default_factory=dict)
    lifecycle: str | None = None
    tenancy: str = "default"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """Every parameter of one RunInstances call. Two calls with the same token have equal orders, byte for byte.

    `tags` go onto instance, volumes and network interface alike.
    """

    client_token: str
    image_id: str
    instance_type: str
    subnet_id: str
    security_group_id: str
    instance_profile: str
    user_data: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Agent:
    """An instance's SSM agent as DescribeInstanceInformation shows it."""

    is_online: bool
    version: str


@dataclass(frozen=True, slots=True)
class Session:
    """One SSM session. `response` is the JSON that the plugin takes from its environment; it holds the token."""

    session_id: str
    response: SecretStr


@dataclass(frozen=True, slots=True)
class Quota:
    """A vCPU quota of the account in the Region. `is_default`: AWS's default, no value was applied."""

    code: str
    limit_vcpus: int
    is_default: bool


@dataclass(frozen=True, slots=True)
class Reservation:
    """The unused part of an active On-Demand Capacity Reservation, which counts against the quota too."""

    instance_type: str
    unused_instances: int


@dataclass(frozen=True, slots=True)
class PluginAccess:
    """What the Session Manager plugin is given: endpoint and Region as arguments, the rest in its environment."""

    region: str
    ssm_endpoint: str
    environment: Mapping[str, SecretStr]


class Cloud(Protocol):
    """EC2, SSM, quotas and schedules of one account in one Region."""

    def run_instance(self, order: LaunchOrder) -> Instance:
        """RunInstances for exactly one instance: IMDSv2 required, terminates on shutdown, volumes deleted with it."""
        ...

    def find_instances(self, filters: Mapping[str, Sequence[str]]) -> list[Instance]:
        """DescribeInstances with filters (EC2's names), all pages. Unknown ids in a filter find nothing."""
        ...

    def terminate_instances(self, instance_ids: Collection[str]) -> None:
        """One TerminateInstances call for all of them; one wrong id makes AWS refuse the whole call."""
        ...

    def find_agents(self, instance_ids: Collection[str]) -> dict[str, Agent]:
        """DescribeInstanceInformation; an instance whose agent has not reported yet is left out."""
        ...

    def start_session(self, instance_id: str, *, port: int, reason: str) -> Session:
        """StartSession with AWS-StartPortForwardingSession to `port`, and a free local port of the plugin's choice.

        AWS lists the session with this `reason`.
        """
        ...

    def find_sessions(self, instance_id: str, *, reason: str) -> list[str]:
        """DescribeSessions: the ids of the instance's open sessions that were started for exactly this reason."""
        ...

    def terminate_session(self, session_id: str) -> None:
        """TerminateSession; idempotent."""
        ...

    def plugin_access(self) -> PluginAccess:
        """Credentials for one plugin process, as fresh as they can be, and its way out."""
        ...

    def read_quota(self, code: str) -> Quota:
        """GetServiceQuota, or AWS's default where none was applied."""
        ...

    def read_vcpus(self, instance_types: Collection[str]) -> dict[str, int]:
        """Default vCPUs of each type (DescribeInstanceTypes)."""
        ...

    def read_reservations(self) -> list[Reservation]:
        """DescribeCapacityReservations, state active."""
        ...

    def create_expiry(self, name: str, *, instance_id: str, at: datetime, role_arn: str) -> None:
        """An EventBridge one-time schedule that terminates the instance and deletes itself. An existing one is kept."""
        ...

    def delete_expiry(self, name: str) -> None:
        """Delete the schedule; one that is gone is no error."""
        ...

    def refresh_credentials(self) -> None:
        """Drop cached credentials, so that the next call signs with new ones where there are any."""
        ...
