"""The ledger of launches: durable lines, and what they say together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from contract.ambient import Ambient
from contract.bridge import ThreadBridge
from contract.errors import StateError
from supervisor.ledger import Ledger, read_ledger
from tests.batch_fakes import InlineBridge, in_virtual_time, virtual_ambient


def write(path: Path, *lines: tuple[str, str, dict[str, Any]]) -> None:
    async def work() -> None:
        ledger = Ledger(path, kind="local", bridge=InlineBridge(), ambient=virtual_ambient())
        for event, host_id, detail in lines:
            await ledger.note(event, host_id=host_id, rollout_id="r-0", **detail)  # type: ignore[arg-type]
        ledger.close()

    in_virtual_time(work)


def test_a_host_is_open_until_a_line_says_that_it_ended(tmp_path: Path) -> None:
    """`intent` alone is open too: the launch may have happened without an answer."""
    path = tmp_path / "hosts.jsonl"
    write(path, ("intent", "h-1", {}), ("intent", "h-2", {}), ("launched", "h-2", {"pid": 7}), ("released", "h-2", {}))

    hosts = read_ledger(path)

    assert [False, True] == [host.is_over for host in hosts.values()]
    assert {"pid": 7} == hosts["h-2"].detail


@pytest.mark.parametrize("ending", ["released", "replaced", "launch_failed", "reconciled"])
def test_each_of_four_lines_ends_a_host(tmp_path: Path, ending: str) -> None:
    """Whoever ended it, it is over."""
    write(tmp_path / "hosts.jsonl", ("intent", "h-1", {}), (ending, "h-1", {}))

    assert read_ledger(tmp_path / "hosts.jsonl")["h-1"].is_over


def test_later_details_are_added_to_earlier_ones(tmp_path: Path) -> None:
    """A resumed controller needs the process of `launched` and the lease of `handed_off`."""
    path = tmp_path / "hosts.jsonl"
    write(path, ("intent", "h-1", {}), ("launched", "h-1", {"pid": 7}), ("handed_off", "h-1", {"lease_id": "l-1"}))

    host = read_ledger(path)["h-1"]

    assert {"pid": 7, "lease_id": "l-1"} == host.detail
    assert host.was_handed_off


def test_a_torn_last_line_is_passed_over_and_closed_off(tmp_path: Path) -> None:
    """A controller that was killed while it wrote leaves half a line; the next one starts on its own line."""
    path = tmp_path / "hosts.jsonl"
    write(path, ("intent", "h-1", {}))
    path.write_bytes(path.read_bytes() + b'{"at":"2024-05-01T00:')
    write(path, ("intent", "h-2", {}))

    assert ["h-1", "h-2"] == list(read_ledger(path))


def test_rollouts_that_start_together_all_have_their_lines(tmp_path: Path) -> None:
    """Notes come from many tasks over several threads at once; each is whole, is there once, and raises nothing."""
    path = tmp_path / "hosts.jsonl"

    async def work() -> None:
        ledger = Ledger(path, kind="local", bridge=ThreadBridge(4), ambient=Ambient())
        for wave in range(20):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    note = partial(ledger.note, "intent", host_id=f"h-{wave}-{number}", rollout_id="r-0")
                    group.start_soon(note)
        ledger.close()

    anyio.run(work)

    lines = path.read_bytes().splitlines()
    assert 160 == len(lines)
    assert {f"h-{wave}-{number}" for wave in range(20) for number in range(8)} == read_ledger(path).keys()


def test_a_whole_line_that_is_not_ours_is_an_error(tmp_path: Path) -> None:
    """Hosts are ended by what stands here, so nothing is guessed."""
    path = tmp_path / "hosts.jsonl"
    path.write_text('{"event": "launched", "host_id": "h-1"}\n')

    with pytest.raises(StateError, match="line 1"):
        read_ledger(path)


def test_a_missing_ledger_names_no_host(tmp_path: Path) -> None:
    """A batch that was killed before its first launch has none."""
    assert {} == read_ledger(tmp_path / "hosts.jsonl")
