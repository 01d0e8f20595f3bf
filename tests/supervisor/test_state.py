"""The keeper of batch-state.json: moves along the table, writes at once, and shares a write among those who wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import pytest

from contract.batch_records import BatchState
from contract.errors import DiskError
from contract.phases import BatchStatus, Phase
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.batch import _first_state
from supervisor.state import StateBook
from tests.batch_fakes import InlineBridge, in_virtual_time, prepare, virtual_ambient

T = TypeVar("T")


class CountingBridge(InlineBridge):
    """Counts the writes, and takes a moment for each."""

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, work: Callable[[], T]) -> T:
        self.calls += 1
        await anyio.sleep(0.01)
        return work()


def book_of(tmp_path: Path, bridge: InlineBridge, count: int = 3) -> StateBook:
    state = _first_state(prepare(tmp_path, count=count), rerun_of=None, ambient=virtual_ambient())
    return StateBook(tmp_path / "batch-state.json", state, bridge=bridge, ambient=virtual_ambient())


def on_disk(tmp_path: Path) -> BatchState:
    return read_record(BatchDir(tmp_path).state, BatchState)


def test_a_phase_is_on_disk_when_advance_returns(tmp_path: Path) -> None:
    """What follows may rely on it: a pilot is started only once its hand-off is on record."""

    async def work() -> None:
        await book_of(tmp_path, CountingBridge()).advance("r-1", Phase.STARTING, host_id="h-1")

    in_virtual_time(work)

    row = on_disk(tmp_path).rollouts[1]
    assert (Phase.STARTING, "h-1") == (row.phase, row.host_id)


def test_a_move_that_the_table_does_not_have_is_a_bug(tmp_path: Path) -> None:
    """From handed_off there is no way back."""

    async def work() -> None:
        book = book_of(tmp_path, CountingBridge())
        await book.advance("r-0", Phase.STARTING)
        await book.advance("r-0", Phase.HANDED_OFF)
        with pytest.raises(AssertionError, match="handed_off to starting"):
            await book.advance("r-0", Phase.STARTING)
        with pytest.raises(AssertionError, match="has no"):
            await book.amend("r-0", colour="green")

    in_virtual_time(work)


def test_those_who_wait_together_share_a_write(tmp_path: Path) -> None:
    """A wave of a hundred that starts at once is two writes, not a hundred."""
    bridge = CountingBridge()

    async def work() -> None:
        book = book_of(tmp_path, bridge, count=100)
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(book.advance, f"r-{number}", Phase.STARTING)

    in_virtual_time(work)

    assert {Phase.STARTING} == {row.phase for row in on_disk(tmp_path).rollouts}
    assert bridge.calls <= 2


def test_progress_is_written_about_once_a_second(tmp_path: Path) -> None:
    """A thousand turns in ten seconds are ten writes; without news there is none."""
    bridge = CountingBridge()

    async def work() -> None:
        book = book_of(tmp_path, bridge)
        async with anyio.create_task_group() as group:
            group.start_soon(book.keep_current)
            for turn in range(1000):
                book.note_progress("r-0", turns=turn)
                await anyio.sleep(0.01)
            await anyio.sleep(60)
            group.cancel_scope.cancel()

    in_virtual_time(work)

    assert 999 == on_disk(tmp_path).rollouts[0].turns
    assert bridge.calls <= 11


def test_a_disk_that_refuses_is_said_to_whoever_relied_on_it(tmp_path: Path) -> None:
    """The old document stays."""

    async def work() -> None:
        book = book_of(tmp_path / "gone", InlineBridge())
        (tmp_path / "gone" / "task").rename(tmp_path / "task")
        (tmp_path / "gone").rmdir()
        with pytest.raises(DiskError):
            await book.set_status(BatchStatus.FINISHED)

    in_virtual_time(work)
