"""The reserve on the output disk: given back in slices to what is refused, so that the ends are recorded even then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from contract.errors import DiskError
from supervisor.reserve import RESERVE_BYTES, SLICE_BYTES, ReservingBridge, reserved
from tests.batch_fakes import InlineBridge, in_virtual_time


class FullDisk:
    """A disk that has room for a write only once the reserve is gone."""

    def __init__(self, reserve: Path) -> None:
        self.reserve = reserve
        self.written = 0

    def write(self) -> str:
        if self.reserve.exists():
            raise DiskError("cannot write result.json: No space left on device")
        self.written += 1
        return "written"


def call(bridge: ReservingBridge, work: Callable[[], str]) -> str:
    async def go() -> str:
        return await bridge.call(work)

    return in_virtual_time(go)


def test_a_refused_write_is_tried_again_in_the_room_that_was_kept(tmp_path: Path) -> None:
    """When nothing of it is left, the refusal is final."""
    reserve = tmp_path / ".reserve"
    disk = FullDisk(reserve)
    bridge = ReservingBridge(InlineBridge(), reserve)

    with reserved(reserve):
        said = call(bridge, disk.write)
        reserve.write_bytes(b"")
        reserve.unlink()
        reserve.mkdir()
        with pytest.raises(DiskError):
            call(bridge, disk.write)
        reserve.rmdir()

    assert ("written", 1) == (said, disk.written)


def test_no_more_of_the_reserve_is_given_back_than_a_write_needs(tmp_path: Path) -> None:
    """Pilots that still play would fill the rest with frames, and the next end could not be recorded."""
    reserve = tmp_path / ".reserve"

    def write() -> str:
        if reserve.stat().st_size > RESERVE_BYTES - 2 * SLICE_BYTES:
            raise DiskError("cannot write result.json: No space left on device")
        return "written"

    with reserved(reserve):
        said = call(ReservingBridge(InlineBridge(), reserve), write)
        left = reserve.stat().st_size

    assert ("written", RESERVE_BYTES - 2 * SLICE_BYTES) == (said, left)


def test_all_that_are_refused_at_once_have_the_room(tmp_path: Path) -> None:
    """The first of them gives it back; the others must not fail for coming a moment later."""
    reserve = tmp_path / ".reserve"
    disk = FullDisk(reserve)
    bridge = ReservingBridge(InlineBridge(), reserve)

    async def go() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(bridge.call, disk.write)

    # All five ask before any of them is refused.
    with reserved(reserve):
        in_virtual_time(go)

    assert 5 == disk.written


def test_the_reserve_is_real_space_and_is_gone_afterwards(tmp_path: Path) -> None:
    """A hole in a file would be no reserve."""
    reserve = tmp_path / ".reserve"

    with reserved(reserve):
        blocks = reserve.stat().st_blocks * 512

    assert RESERVE_BYTES <= blocks
    assert not reserve.exists()


def test_a_disk_without_room_for_a_reserve_plays_without_one(tmp_path: Path) -> None:
    """Preflight asks for room; what remains of it is not this module's affair."""
    with reserved(tmp_path / "no-such-folder" / ".reserve"):
        pass

    assert [] == list(tmp_path.iterdir())
