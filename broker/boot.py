"""Which boot of which instance this is: a name that stays the same until the system starts again, and then changes.

Computer names, machine ids and files of an image are the same in all its clones; this is made from what only the
running instance has, after its metadata service has answered.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from contract.errors import StateError
from contract.records import Record, UtcTime, read_record, write_record

FILE_NAME: Final = "boot.json"
# The system tells when it booted as now minus uptime, so that moves when its clock is set.
CLOCK_SLACK_S: Final = 120.0
LINUX_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# "BootId" counts every start of the system.
WINDOWS_PREFETCH_KEY: Final = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"


@dataclass(frozen=True, slots=True)
class SystemBoot:
    """What the system says of its present boot. `mark` differs between any two boots of one system.

    `count` is the system's own counter, null where it has none; then `mark` is the kernel's random id of this boot.
    """

    mark: str
    count: int | None
    booted_at: datetime


class BootFile(Record):
    """`boot.json`: the boot as it was first seen, so that a broker that is started again names it the same."""

    mark: str
    booted_at: UtcTime


def read_system_boot(*, count: int | None = None, booted_at: datetime | None = None) -> SystemBoot:
    """Ask the system. What is given here is not asked for: a stand-in has no boots of its own."""
    if count is None:
        count = _windows_boot_count()
    mark = str(count) if count is not None else LINUX_BOOT_ID.read_text().strip()
    return SystemBoot(mark=mark, count=count, booted_at=booted_at or datetime.fromtimestamp(psutil.boot_time(), UTC))


def settle_boot(found: SystemBoot, state_dir: Path) -> SystemBoot:
    """The same boot with the time at which it was first seen to have begun; remembers that in `state_dir`.

    Raises `DiskError`.
    """
    path = state_dir / FILE_NAME
    known = _known(path)
    if known is not None and known.mark == found.mark:
        moved_s = abs((known.booted_at - found.booted_at).total_seconds())
        if moved_s <= CLOCK_SLACK_S:
            return SystemBoot(mark=found.mark, count=found.count, booted_at=known.booted_at)
    write_record(path, BootFile(mark=found.mark, booted_at=found.booted_at))
    return found


def boot_id_of(boot: SystemBoot, *, instance_id: str, pending_time: datetime) -> str:
    """The name of this boot of this instance: `b-` and 24 hex digits."""
    minute = boot.booted_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
    facts = (instance_id, pending_time.astimezone(UTC).isoformat(), boot.mark, minute)
    return "b-" + hashlib.sha256("|".join(facts).encode()).hexdigest()[:24]


def _known(path: Path) -> BootFile | None:
    try:
        return read_record(path, BootFile) if path.exists() else None
    except StateError:
        # Torn by a machine that went down: that boot is over in any case.
        return None


def _windows_boot_count() -> int | None:
    if sys.platform != "win32":
        return None
    import winreg

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, WINDOWS_PREFETCH_KEY) as key:
        return int(winreg.QueryValueEx(key, "BootId")[0])
