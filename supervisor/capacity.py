"""Places for hosts on this machine, shared by all batches of one user.

A place is a file in one folder, locked by the process that uses it; the lock is gone the moment its holder is, however
that died. The file says what its holder reserves, so that two batches at once do not take more than the machine has.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contract.ambient import Ambient
from contract.errors import StateError
from contract.records import Record, disk_error
from supervisor.admission import RESERVE_MEMORY_BYTES, HostNeeds, MachineCapacity
from supervisor.locks import HeldLock, is_held, take

# Asking again costs well under a millisecond; an operator does not notice this delay at a rollout's start.
ASK_AGAIN_S: Final = 0.5


class SlotUse(Record):
    """What a slot file says about its holder."""

    pid: int
    batch_id: str
    rollout_id: str
    memory_bytes: int
    # The part of one core that this host counts for: 1 / hosts per core.
    core_share: float


def _nothing(reason: str) -> None:
    """Nobody wants to know."""


def slots_folder() -> Path:
    """The folder of this user's slots: the same for a login and for a cron job, whatever their environments say."""
    return Path("/tmp") / f"autocad-bench-slots-{os.geteuid()}"


def slots_in_use(folder: Path | None = None) -> int:
    """How many hosts all running batches of this user have now. Looks only."""
    return len(_uses(folder or slots_folder()))


@dataclass(frozen=True, slots=True)
class Slots:
    """The places of this machine. `look` says what the machine has now."""

    folder: Path
    look: Callable[[], MachineCapacity]
    ambient: Ambient

    @asynccontextmanager
    async def slot(
        self,
        needs: HostNeeds,
        *,
        batch_id: str,
        rollout_id: str,
        has_host: bool = False,
        on_wait: Callable[[str], None] = _nothing,
    ) -> AsyncIterator[None]:
        """Wait for a place, and hold it. Raises `StateError` or `DiskError` when the folder cannot be used.

        `has_host`: the host exists already, so it is counted at once, whether there is room for it or not. `on_wait`
        is called once, with what is waited for, if there is none now.
        """
        use = SlotUse(
            pid=os.getpid(),
            batch_id=batch_id,
            rollout_id=rollout_id,
            memory_bytes=needs.memory_bytes,
            core_share=1 / needs.hosts_per_core,
        )
        is_waiting = False
        while (held := self.try_take(use, is_forced=has_host)) is None:
            if not is_waiting:
                is_waiting = True
                on_wait("this machine has room for one more host")
            # Spread out, so that batches that wait for the same place do not ask in step.
            await self.ambient.sleep(ASK_AGAIN_S * (0.75 + 0.5 * self.ambient.chance.random()))
        try:
            yield
        finally:
            held.release()

    def try_take(self, use: SlotUse, *, is_forced: bool = False) -> HeldLock | None:
        """Take a place if the machine has room for one more such host, or if it must; else null."""
        _make_private(self.folder)
        gate = self._gate()
        try:
            uses = _uses(self.folder)
            if not is_forced and not has_room(uses, use, self.look()):
                return None
            number = 0
            while (held := take(self.folder / f"{number:04d}.slot")) is None:
                number += 1
            held.write(use.model_dump_json().encode())
            return held
        finally:
            os.close(gate)

    def _gate(self) -> int:
        # Looking and taking are one deed; the gate is held for a millisecond, so waiting for it may block the loop.
        try:
            descriptor = os.open(self.folder / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise disk_error(self.folder / "gate", error) from error
        return descriptor


def has_room(uses: list[SlotUse], more: SlotUse, machine: MachineCapacity) -> bool:
    """True when one more host fits by cores and memory. A first host always fits by cores.

    Memory is checked twice: what is free now keeps room for other programs, and the sum of reservations keeps room for
    hosts that were admitted a moment ago and have not grown yet.
    """
    shares = sum(use.core_share for use in uses)
    # Shares are binary fractions of a core: the last host that fits must not fail by a rounding error.
    if uses and shares + more.core_share > machine.cores + 1e-9:
        return False
    if machine.memory_available_bytes - RESERVE_MEMORY_BYTES < more.memory_bytes:
        return False
    reserved = sum(use.memory_bytes for use in uses)
    return reserved + more.memory_bytes <= machine.memory_total_bytes - RESERVE_MEMORY_BYTES


def _uses(folder: Path) -> list[SlotUse]:
    uses = []
    for path in sorted(folder.glob("*.slot")):
        if is_held(path):
            try:
                uses.append(SlotUse.model_validate_json(path.read_bytes()))
            except (OSError, ValueError):
                # Locked and not written yet: somebody is between the two, without the gate only for a look.
                uses.append(SlotUse(pid=0, batch_id="?", rollout_id="?", memory_bytes=0, core_share=0.0))
    return uses


def _make_private(folder: Path) -> None:
    """Make the folder, or prove that the one there is ours alone: /tmp is open to everybody."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise disk_error(folder, error) from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise StateError(
            f"{folder} is not a private folder of this user",
            hint="Somebody else made it. Remove it, then start again.",
        )
