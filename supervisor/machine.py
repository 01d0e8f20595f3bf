"""What preflight asks this machine. Every answer is a look: nothing is written, and nothing is left running."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from supervisor.admission import MachineCapacity

if TYPE_CHECKING:
    from contract.config import Ec2HostConfig
    from supervisor.aws_account import AwsCredentialsMissing
    from supervisor.cloud.facts import CloudFacts

Driver = Literal["librecad", "paper"]
IsolationChoice = Literal["auto", "bubblewrap", "own_uid", "none"]


@dataclass(frozen=True, slots=True)
class MissingProgram:
    """A program that the driver starts and that is not installed, and the Debian package that has it."""

    program: str
    package: str


@dataclass(frozen=True, slots=True)
class IsolationAnswer:
    """Whether each CAD program gets walls around it, and by what, in one line for people."""

    is_isolated: bool
    reason: str


@dataclass(frozen=True, slots=True)
class PluginAnswer:
    """Whether the Session Manager plugin can be used: which one, or why not and what to do."""

    is_usable: bool
    reason: str
    hint: str = ""


class Machine(Protocol):
    """This machine as preflight sees it; a test hands in its own."""

    def capacity(self) -> MachineCapacity:
        """Memory and cores that we may use, after the limits of a container."""
        ...

    def hosts_in_use(self) -> int:
        """How many local hosts the other batches of this machine hold or have reserved."""
        ...

    def missing_programs(self, driver: Driver) -> Sequence[MissingProgram]:
        """What has to be installed before the driver can start."""
        ...

    def isolation(self, choice: IsolationChoice) -> IsolationAnswer:
        """What the config's choice gives here."""
        ...

    def display_problem(self) -> str | None:
        """Why no X display can be opened, or null."""
        ...

    def evaluator(self) -> tuple[str, str]:
        """Name and version of the evaluator that local hosts have."""
        ...

    def evaluator_build(self) -> str | None:
        """Digest of its settings, libraries and font on this machine; null where it cannot work."""
        ...

    def session_plugin(self) -> PluginAnswer:
        """AWS's Session Manager plugin on this machine."""
        ...

    def read_cloud(self, host: Ec2HostConfig) -> CloudFacts | AwsCredentialsMissing:
        """What AWS answers to this machine's credentials. Blocks for ten seconds at most, and changes nothing."""
        ...

    def free_bytes(self, folder: Path) -> int:
        """Free space for us on the disk of an existing folder."""
        ...

    def is_writable(self, folder: Path) -> bool:
        """Whether we may make files in an existing folder; false on a read-only disk."""
        ...


class ThisMachine:
    """The real one. Modules that are heavy to import are imported when their answer is needed."""

    def capacity(self) -> MachineCapacity:
        """Memory and cores, bounded by cgroup limits (a container's) and processor affinity."""
        import psutil

        memory = psutil.virtual_memory()
        limit, used = _cgroup_memory()
        total = memory.total if limit is None else min(memory.total, limit)
        available = memory.available if limit is None else min(memory.available, max(0, limit - used))
        return MachineCapacity(memory_total_bytes=total, memory_available_bytes=available, cores=_cores())

    def hosts_in_use(self) -> int:
        """Slots that other batches hold now."""
        from supervisor import capacity

        return capacity.slots_in_use()

    def missing_programs(self, driver: Driver) -> Sequence[MissingProgram]:
        """Asks the broker's own list, so that the two cannot disagree.

        A program must be on the path that hosts have, not on the operator's alone.
        """
        if driver == "paper":
            return ()
        from broker.desktop import requirements
        from supervisor.hosts.local import BASE_ENVIRONMENT

        hosts_path = BASE_ENVIRONMENT["PATH"]

        return tuple(
            MissingProgram(program, package)
            for program, package in requirements.PROGRAMS.items()
            if shutil.which(program) is None or shutil.which(program, path=hosts_path) is None
        )

    def isolation(self, choice: IsolationChoice) -> IsolationAnswer:
        """Asks the broker's own probe."""
        from broker.desktop.isolation import IsolationKind, available

        report = available()
        if choice not in ("auto", "none") and report.kind != choice:
            if choice == "own_uid" and os.geteuid() == 0:
                return IsolationAnswer(True, "a user of its own for each desktop")
            return IsolationAnswer(False, f"{choice} is not available: {report.reason}")
        return IsolationAnswer(report.kind is not IsolationKind.NONE, report.reason)

    def display_problem(self) -> str | None:
        """Asks the broker's own probe."""
        from broker.desktop import requirements

        return requirements.display_problem()

    def evaluator(self) -> tuple[str, str]:
        """The broker's own."""
        from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION

        return EVALUATOR_NAME, EVALUATOR_VERSION

    def evaluator_build(self) -> str | None:
        """The broker's own. Without its font it cannot work, and its host says so."""
        from broker.evaluator.settings import FontMissing, identity

        try:
            return identity().config_sha256
        except FontMissing:
            return None

    def session_plugin(self) -> PluginAnswer:
        """Runs the plugin once, for its version."""
        from supervisor.hosts.ssm_plugin import PluginProblem, find_plugin

        found = find_plugin(os.pathsep.join(os.get_exec_path()))
        if isinstance(found, PluginProblem):
            return PluginAnswer(False, found.message, found.hint)
        return PluginAnswer(True, f"{found.path}, version {found.version}")

    def read_cloud(self, host: Ec2HostConfig) -> CloudFacts | AwsCredentialsMissing:
        """Asks AWS itself."""
        from supervisor.cloud.account import read_account

        return read_account(host)

    def free_bytes(self, folder: Path) -> int:
        """Space that a process without privileges may fill."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def is_writable(self, folder: Path) -> bool:
        """By permission and by mount; root is refused by a read-only disk too."""
        is_read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
        return not is_read_only and os.access(folder, os.W_OK | os.X_OK)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_cores()
    return cores if quota is None else max(1, min(cores, int(quota)))


def _cgroup_memory() -> tuple[int | None, int]:
    """Limit (null when there is none) and use in bytes of our control group, version 2 or 1."""
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit = _number(Path(limit_file))
        # Version 1 says "no limit" with a number near the largest 64-bit one.
        if limit is not None and limit < 1 << 60:
            return limit, _number(Path(used_file)) or 0
    return None, 0


def _cgroup_cores() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us = _number(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
    period_us = _number(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
    return quota_us / period_us if quota_us is not None and quota_us > 0 and period_us else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
