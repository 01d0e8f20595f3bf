"""How many instances fit into a vCPU quota. Pure functions of numbers, the same for the plan and while a batch runs.

The answer is advice: between a look and a launch others may have taken what was free, and AWS has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from supervisor.cloud.families import FAMILIES, Family, family_of
from supervisor.cloud.ports import Instance, InstanceState, Quota, Reservation

# AWS counts what runs. What is pending will run by the time that a launch of ours is judged.
COUNTED: Final = frozenset({InstanceState.PENDING, InstanceState.RUNNING})

LimitingFactor = Literal["wanted", "quota"]


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The vCPUs that are taken now, in one quota of one Region, by everybody.

    `reserved_vcpus` is the unused part of capacity reservations. `uncounted_types` are types whose vCPUs nobody could
    tell; their instances are left out.
    """

    running_vcpus: int = 0
    pending_vcpus: int = 0
    reserved_vcpus: int = 0
    uncounted_types: tuple[str, ...] = ()

    @property
    def total_vcpus(self) -> int:
        return self.running_vcpus + self.pending_vcpus + self.reserved_vcpus


@dataclass(frozen=True, slots=True)
class QuotaAdmission:
    """How many instances of one type fit now, with all numbers that lead there.

    `launching` are instances that were admitted and that `use` does not show yet. `fits` counts the instances that
    would fit beside everything else, wanted or not; it is 0 when more is taken than the limit allows.
    """

    wanted: int
    admitted: int
    fits: int
    limiting_factor: LimitingFactor
    vcpus_per_instance: int
    quota: Quota
    use: QuotaUse
    launching: int

    @property
    def needed_vcpus(self) -> int:
        """What the wanted instances would take."""
        return self.wanted * self.vcpus_per_instance

    @property
    def used_vcpus(self) -> int:
        """What is taken, with what is being launched."""
        return self.use.total_vcpus + self.launching * self.vcpus_per_instance

    def to_json(self) -> dict[str, object]:
        """The admission as the plan document carries it."""
        return {
            "quota_code": self.quota.code,
            "quota_name": quota_name_of(self.quota.code),
            "limit_vcpus": self.quota.limit_vcpus,
            "is_default_limit": self.quota.is_default,
            "running_vcpus": self.use.running_vcpus,
            "pending_vcpus": self.use.pending_vcpus,
            "reserved_vcpus": self.use.reserved_vcpus,
            "launching_vcpus": self.launching * self.vcpus_per_instance,
            "used_vcpus": self.used_vcpus,
            "free_vcpus": max(0, self.quota.limit_vcpus - self.used_vcpus),
            "vcpus_per_instance": self.vcpus_per_instance,
            "needed_vcpus": self.needed_vcpus,
            "wanted": self.wanted,
            "fits": self.fits,
            "admitted": self.admitted,
            "limiting_factor": self.limiting_factor,
            "uncounted_types": list(self.use.uncounted_types),
        }


def admit_instances(
    *, wanted: int, vcpus_per_instance: int, quota: Quota, use: QuotaUse, launching: int = 0
) -> QuotaAdmission:
    """Admit as many of `wanted` as `used + admitted * vcpus <= limit` allows. Never raises; 0 is a legal answer."""
    assert vcpus_per_instance > 0, "every instance type has a vCPU"
    free_vcpus = quota.limit_vcpus - use.total_vcpus - launching * vcpus_per_instance
    fits = max(0, free_vcpus) // vcpus_per_instance
    admitted = min(wanted, fits)
    return QuotaAdmission(
        wanted=wanted,
        admitted=admitted,
        fits=fits,
        limiting_factor="quota" if admitted < wanted else "wanted",
        vcpus_per_instance=vcpus_per_instance,
        quota=quota,
        use=use,
        launching=launching,
    )


def count_use(
    instances: Iterable[Instance], reservations: Iterable[Reservation], vcpus_of: Mapping[str, int], family: Family
) -> QuotaUse:
    """What is taken of the quota that `family` counts against, by instances of all families of that quota.

    `vcpus_of` has the default vCPUs of each type of `counted_types`: whether smaller CPU options lower AWS's count is
    not documented, so they do not lower ours.
    """
    vcpus = {InstanceState.RUNNING: 0, InstanceState.PENDING: 0}
    reserved = 0
    unknown: set[str] = set()
    for instance in instances:
        if is_counted(instance, family):
            if instance.instance_type in vcpus_of:
                vcpus[instance.state] += vcpus_of[instance.instance_type]
            else:
                unknown.add(instance.instance_type)
    for reservation in reservations:
        if _is_of_quota(reservation.instance_type, family):
            if reservation.instance_type in vcpus_of:
                reserved += reservation.unused_instances * vcpus_of[reservation.instance_type]
            else:
                unknown.add(reservation.instance_type)
    return QuotaUse(vcpus[InstanceState.RUNNING], vcpus[InstanceState.PENDING], reserved, tuple(sorted(unknown)))


def counted_types(instances: Iterable[Instance], reservations: Iterable[Reservation], family: Family) -> frozenset[str]:
    """The types whose vCPUs `count_use` has to know for the same arguments."""
    types = {instance.instance_type for instance in instances if is_counted(instance, family)}
    types |= {item.instance_type for item in reservations if _is_of_quota(item.instance_type, family)}
    return frozenset(types)


def is_counted(instance: Instance, family: Family) -> bool:
    """True for an on-demand instance that takes vCPUs of the family's quota.

    Spot and the like (`lifecycle`) have quotas of their own, and so has a Dedicated Host with all that is on it.
    """
    is_on_demand = instance.lifecycle is None and instance.tenancy != "host"
    return is_on_demand and instance.state in COUNTED and _is_of_quota(instance.instance_type, family)


def quota_name_of(code: str) -> str:
    """AWS's name of the quota, or the code itself."""
    return next((family.quota_name for family in FAMILIES.values() if family.quota_code == code), code)


def _is_of_quota(instance_type: str, family: Family) -> bool:
    code = family_of(instance_type).quota_code
    return code is not None and code == family.quota_code
