"""What preflight knows of an AWS account: the answer to each question, or why there is none. Plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

from supervisor.cloud.families import family_of
from supervisor.cloud.ports import CloudError, FaultKind, Instance, Quota, Reservation
from supervisor.cloud.quota import QuotaUse, count_use

# The code of a question that had no answer when time was up.
NO_ANSWER: Final = "NoAnswerInTime"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who the credentials belong to (sts:GetCallerIdentity). Neither field is secret."""

    account: str
    arn: str


@dataclass(frozen=True, slots=True)
class Image:
    """An AMI. `boot_mode` is null where the image leaves it to the instance type.

    `devices` are the names of the EBS volumes that it brings along.
    """

    state: str
    is_windows: bool
    architecture: str
    boot_mode: str | None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineType:
    """An instance type as its Region offers it. `boot_modes` is empty where AWS does not tell."""

    vcpus: int
    architectures: frozenset[str]
    boot_modes: frozenset[str]
    usage_classes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet, its Availability Zone, and the addresses that are free in it."""

    state: str
    zone: str
    vpc_id: str
    free_addresses: int


@dataclass(frozen=True, slots=True)
class SecurityGroup:
    """A security group and the number of its inbound rules."""

    vpc_id: str
    inbound_rules: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket that exists. `region` is null where AWS does not tell; `is_allowed`: we may use it."""

    region: str | None
    is_allowed: bool = True


@dataclass(frozen=True, slots=True)
class CloudFacts:
    """Each answer of one look. Null means that AWS has no such thing; a `CloudError`, that there is no answer.

    `clock_skew_s` is how far AWS's clock is ahead of ours; null when no answer told. `zones` are the Availability Zones
    that offer the type. `launches` has what a dry run of the launch came to in each subnet: null is permission. `quota`
    is null for a family that is not launched anyway. `instances` are all of the Region that are not gone or going, and
    `vcpus` has the size of each type that counts against the quota.
    """

    read_at: datetime
    clock_skew_s: float | None
    caller: Caller | CloudError
    image: Image | CloudError | None
    machine_type: MachineType | CloudError | None
    zones: frozenset[str] | CloudError
    subnets: Mapping[str, Subnet] | CloudError
    security_group: SecurityGroup | CloudError | None
    has_profile: bool | CloudError
    bucket: Bucket | CloudError | None
    launches: Mapping[str, CloudError | None]
    quota: Quota | CloudError | None
    instances: tuple[Instance, ...] | CloudError
    reservations: tuple[Reservation, ...] | CloudError
    vcpus: Mapping[str, int] | CloudError

    @property
    def refusal(self) -> CloudError | None:
        """A complaint about signature or credentials, the caller's own first; null when AWS accepts them.

        A launch is no witness: EC2 says AuthFailure also of an image that its owner does not share.
        """
        errors = (answer for answer in self._answers() if isinstance(answer, CloudError))
        return next((error for error in errors if error.kind is FaultKind.SIGNING), None)

    @property
    def is_out_of_reach(self) -> bool:
        """True when nobody answered at all."""
        asked = [answer for answer in self._answers() if answer is not None]
        return all(isinstance(answer, CloudError) and is_unreachable(answer) for answer in asked)

    def use_for(self, instance_type: str) -> QuotaUse | None:
        """What is taken of the type's quota; null when the instances or their sizes could not be read.

        Without permission to see capacity reservations none are counted.
        """
        if isinstance(self.instances, CloudError) or isinstance(self.vcpus, CloudError):
            return None
        reservations = () if isinstance(self.reservations, CloudError) else self.reservations
        return count_use(self.instances, reservations, self.vcpus, family_of(instance_type))

    def _answers(self) -> Iterator[object]:
        for field in fields(self):
            if field.name not in _NO_QUESTIONS:
                yield getattr(self, field.name)


# The fields that are not the answer to one question, or to one that hangs on the answer to others.
_NO_QUESTIONS: Final = frozenset({"read_at", "clock_skew_s", "launches", "vcpus"})


def is_unreachable(error: CloudError) -> bool:
    """True when there was no answer, or none that says anything about the question."""
    return error.kind in (FaultKind.AMBIGUOUS, FaultKind.THROTTLE)


def no_answer(action: str) -> CloudError:
    """The error of a question that had no answer when time was up."""
    message = f"{action} did not answer in time"
    return CloudError(message, kind=FaultKind.AMBIGUOUS, code=NO_ANSWER, action=action)
