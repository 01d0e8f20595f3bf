"""How many hosts may run at once, and what limits them. A pure function of numbers.

All hosts are limited by this machine's memory and cores, and instances by their quota too (`cloud/quota.py`). What
other batches of this machine use is taken off, so that two batches at once do not over-admit together; what does not
fit now waits in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MIB: Final = 1024 * 1024

LimitingFactor = Literal["max_concurrency", "enabled_rollouts", "memory", "cores", "in_use"]

# One LibreCAD desktop, first of its kind: X server 52 MB, window manager 14 MB, CAD program 100 MB (local desktop
# reference, section 1). Later ones share pages and cost 74 MB each; the difference is the margin for large drawings.
LIBRECAD_MEMORY_BYTES: Final = 170 * MIB
# A broker and its evaluator: 82 and 69 MB resident, 61 and 49 MB proportional, with two hosts on the machine.
BROKER_MEMORY_BYTES: Final = 150 * MIB
# The target for one pilot process; in shared mode a rollout costs 1 MB instead.
PILOT_MEMORY_BYTES: Final = 45 * MIB
SHARED_PILOT_MEMORY_BYTES: Final = 1 * MIB
# One Session Manager plugin: 13 MB resident, 4 to 7 MB proportional, with a hundred of them on the machine.
PLUGIN_MEMORY_BYTES: Final = 15 * MIB
# What the supervisor itself and the rest of the machine keep.
RESERVE_MEMORY_BYTES: Final = 300 * MIB

# A scripted model never waits for a provider: throughput grows up to 4-6 desktops on 2 cores and then only the time
# per task does (local desktop reference, section 10).
SCRIPTED_DESKTOPS_PER_CORE: Final = 3
# "With a model's think time, dozens fit": 24 idle desktops on 2 cores used no measurable processor time.
PACED_DESKTOPS_PER_CORE: Final = 12
# The paper driver has no X server and no CAD program; a turn of it costs a few milliseconds.
PAPER_HOSTS_PER_CORE: Final = 64
# An instance takes of this machine what its tunnel and its pilot do between two answers of a model.
INSTANCES_PER_CORE: Final = 64


@dataclass(frozen=True, slots=True)
class MachineCapacity:
    """What this machine has. `memory_available_bytes` is what is free now, with all that runs already taken off."""

    memory_total_bytes: int
    memory_available_bytes: int
    cores: int


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """What one host of a batch needs."""

    memory_bytes: int
    hosts_per_core: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What the batch asked for, what it gets now, and why it is not more.

    `wanted` = min(enabled rollouts, max_concurrency). `fits_memory` and `fits_cores` count hosts; `in_use` is what
    other batches hold of the cores. `can_ever_fit` is false when even an idle machine could not run one host.
    """

    wanted: int
    admitted: int
    limiting_factor: LimitingFactor
    enabled_rollouts: int
    max_concurrency: int
    fits_memory: int
    fits_cores: int
    in_use: int
    can_ever_fit: bool
    capacity: MachineCapacity
    needs: HostNeeds

    @property
    def queued(self) -> int:
        """How many enabled rollouts wait for a slot at the start."""
        return self.enabled_rollouts - self.admitted

    def to_json(self) -> dict[str, object]:
        """The admission as the plan document carries it."""
        return {
            "wanted": self.wanted,
            "admitted": self.admitted,
            "queued": self.queued,
            "limiting_factor": self.limiting_factor,
            "enabled_rollouts": self.enabled_rollouts,
            "max_concurrency": self.max_concurrency,
            "fits_memory": self.fits_memory,
            "fits_cores": self.fits_cores,
            "in_use": self.in_use,
            "memory_total_bytes": self.capacity.memory_total_bytes,
            "memory_available_bytes": self.capacity.memory_available_bytes,
            "memory_per_host_bytes": self.needs.memory_bytes,
            "cores": self.capacity.cores,
            "hosts_per_core": self.needs.hosts_per_core,
        }


def host_needs(
    *, driver: Literal["librecad", "paper"], mode: Literal["process", "shared"], scripted: bool
) -> HostNeeds:
    """What one local host needs. `scripted`: at least one model of the batch acts without think time."""
    desktop_bytes = LIBRECAD_MEMORY_BYTES if driver == "librecad" else 0
    pilot_bytes = PILOT_MEMORY_BYTES if mode == "process" else SHARED_PILOT_MEMORY_BYTES
    if driver == "paper":
        per_core = PAPER_HOSTS_PER_CORE
    else:
        per_core = SCRIPTED_DESKTOPS_PER_CORE if scripted else PACED_DESKTOPS_PER_CORE
    return HostNeeds(memory_bytes=desktop_bytes + BROKER_MEMORY_BYTES + pilot_bytes, hosts_per_core=per_core)


def instance_needs(*, mode: Literal["process", "shared"]) -> HostNeeds:
    """What one rollout on an instance needs of this machine: its pilot and its tunnel."""
    pilot_bytes = PILOT_MEMORY_BYTES if mode == "process" else SHARED_PILOT_MEMORY_BYTES
    return HostNeeds(memory_bytes=pilot_bytes + PLUGIN_MEMORY_BYTES, hosts_per_core=INSTANCES_PER_CORE)


def admit(
    *, enabled_rollouts: int, max_concurrency: int, capacity: MachineCapacity, needs: HostNeeds, in_use: int
) -> Admission:
    """Admit as many hosts as fit beside the `in_use` hosts of other batches. Never raises; 0 is a legal answer."""
    wanted = min(enabled_rollouts, max_concurrency)
    fits_memory = _whole(capacity.memory_available_bytes - RESERVE_MEMORY_BYTES, needs.memory_bytes)
    fits_cores = capacity.cores * needs.hosts_per_core
    alone = min(wanted, fits_memory, fits_cores)
    admitted = min(alone, max(0, fits_cores - in_use))
    factor: LimitingFactor
    if admitted < alone:
        factor = "in_use"
    elif alone < wanted:
        factor = "memory" if fits_memory <= fits_cores else "cores"
    else:
        factor = "enabled_rollouts" if enabled_rollouts <= max_concurrency else "max_concurrency"
    return Admission(
        wanted=wanted,
        admitted=admitted,
        limiting_factor=factor,
        enabled_rollouts=enabled_rollouts,
        max_concurrency=max_concurrency,
        fits_memory=fits_memory,
        fits_cores=fits_cores,
        in_use=in_use,
        can_ever_fit=_whole(capacity.memory_total_bytes - RESERVE_MEMORY_BYTES, needs.memory_bytes) > 0,
        capacity=capacity,
        needs=needs,
    )


def _whole(available_bytes: int, needed_bytes: int) -> int:
    return max(0, available_bytes) // needed_bytes
