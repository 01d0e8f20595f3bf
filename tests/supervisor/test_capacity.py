"""Places on this machine: shared by all batches, bounded by memory and cores, free again when a holder dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from contract.ambient import Ambient
from contract.errors import StateError
from supervisor.admission import HostNeeds, MachineCapacity
from supervisor.capacity import Slots, SlotUse, has_room, slots_in_use
from tests.batch_fakes import in_virtual_time, virtual_ambient

GIB = 1024**3
MACHINE = MachineCapacity(memory_total_bytes=16 * GIB, memory_available_bytes=12 * GIB, cores=2)
NEEDS = HostNeeds(memory_bytes=GIB // 4, hosts_per_core=3)


def use(*, memory_bytes: int = GIB, core_share: float = 0.5) -> SlotUse:
    return SlotUse(pid=1, batch_id="b", rollout_id="r", memory_bytes=memory_bytes, core_share=core_share)


def slots(folder: Path, ambient: Ambient | None = None) -> Slots:
    return Slots(folder, lambda: MACHINE, ambient or Ambient())


def test_cores_bound_the_sum_of_all_shares() -> None:
    """Six LibreCAD hosts on two cores, whichever batches they belong to; a seventh waits."""
    third = use(core_share=1 / 3)

    assert has_room([third] * 5, third, MACHINE)
    assert not has_room([third] * 6, third, MACHINE)


def test_one_host_always_fits_by_cores() -> None:
    """A machine with one core still plays, one host at a time."""
    assert has_room([], use(core_share=1.0), MachineCapacity(16 * GIB, 12 * GIB, cores=1))
    assert not has_room([use(core_share=1.0)], use(core_share=1.0), MachineCapacity(16 * GIB, 12 * GIB, cores=1))


def test_memory_counts_what_is_free_and_what_is_promised() -> None:
    """Hosts that were admitted a moment ago have not grown yet; other programs have."""
    small = MachineCapacity(memory_total_bytes=16 * GIB, memory_available_bytes=GIB, cores=64)

    assert not has_room([], use(memory_bytes=GIB), small)
    assert not has_room([use(memory_bytes=8 * GIB)], use(memory_bytes=8 * GIB), MACHINE)
    assert has_room([use(memory_bytes=7 * GIB)], use(memory_bytes=8 * GIB), MACHINE)


def test_two_batches_together_never_hold_more_than_the_machine_has(tmp_path: Path) -> None:
    """Each has its own `Slots`, as two processes would; the folder is what they share."""
    held, peak = 0, 0

    async def rollout(mine: Slots, number: int) -> None:
        nonlocal held, peak
        async with mine.slot(NEEDS, batch_id="b", rollout_id=f"r-{number}"):
            held += 1
            peak = max(peak, held)
            await anyio.sleep(10)
            held -= 1

    async def work() -> None:
        async with anyio.create_task_group() as group:
            for batch in (slots(tmp_path / "s", virtual_ambient()), slots(tmp_path / "s", virtual_ambient())):
                for number in range(8):
                    group.start_soon(rollout, batch, number)

    in_virtual_time(work)

    assert 6 == peak
    assert 0 == slots_in_use(tmp_path / "s")


def test_a_host_that_exists_already_is_counted_without_waiting(tmp_path: Path) -> None:
    """A resumed rollout's host takes memory whether there is a place for it or not."""

    async def work() -> int:
        mine = slots(tmp_path / "s", virtual_ambient())
        async with AsyncExitStack() as stack:
            for number in range(8):
                await stack.enter_async_context(mine.slot(NEEDS, batch_id="b", rollout_id=f"r-{number}", has_host=True))
            return slots_in_use(tmp_path / "s")

    assert 8 == in_virtual_time(work)


def test_a_cancelled_wait_takes_nothing(tmp_path: Path) -> None:
    """Waiting is cancellable, is said once, and leaves no lock behind."""
    said: list[str] = []

    async def work() -> None:
        mine = slots(tmp_path / "s", virtual_ambient())
        async with AsyncExitStack() as stack:
            for number in range(6):
                await stack.enter_async_context(mine.slot(NEEDS, batch_id="b", rollout_id=f"r-{number}"))
            with anyio.move_on_after(30) as scope:
                late = mine.slot(NEEDS, batch_id="b", rollout_id="late", on_wait=said.append)
                await stack.enter_async_context(late)
            assert scope.cancelled_caught
            assert 6 == slots_in_use(tmp_path / "s")

    in_virtual_time(work)

    assert ["this machine has room for one more host"] == said


def test_the_place_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    """The kernel drops the lock with the process, so nothing has to be cleaned up."""
    folder = tmp_path / "s"
    script = (
        "import sys, time; from pathlib import Path\n"
        "from supervisor.capacity import Slots, SlotUse\n"
        "from supervisor.admission import MachineCapacity\n"
        "from contract.ambient import Ambient\n"
        "slots = Slots(Path(sys.argv[1]), lambda: MachineCapacity(2**34, 2**34, 2), Ambient())\n"
        "held = slots.try_take(SlotUse(pid=1, batch_id='b', rollout_id='r', memory_bytes=1, core_share=2.0))\n"
        "print('held', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        before, refused = slots_in_use(folder), slots(folder).try_take(use())
        holder.send_signal(signal.SIGKILL)
        holder.wait()

    taken = slots(folder).try_take(use())

    assert (1, None) == (before, refused)
    assert taken is not None
    taken.release()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """/tmp is open to everybody: a folder that others may write to proves nothing."""
    folder = tmp_path / "s"
    folder.mkdir()
    os.chmod(folder, 0o777)

    with pytest.raises(StateError, match="not a private folder"):
        slots(folder).try_take(use())
