"""The dead-man file: a deadline that only a controller's calls move, and never past the lifetime."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from broker.deadman import FEED_PAUSE_S, Deadman
from broker.lease import LeaseBook
from contract.broker_api import LeaseRequest

NOW = 1_800_000_000.0


class Feeding:
    """A dead-man file whose time is in our hands."""

    def __init__(self, folder: Path, *, lifetime_s: float = 10_000.0) -> None:
        self.path = folder / "deadline"
        self.passed_s = 0.0
        self.deadman = Deadman(
            self.path,
            ends_at=NOW + lifetime_s,
            unix_s=lambda: NOW + self.passed_s,
            elapsed_s=lambda: self.passed_s,
        )

    def deadline_s(self) -> int:
        """What the timer reads, in seconds from the beginning."""
        content = self.path.read_text()
        assert content.endswith("\n")
        return int(content) - int(NOW)


def test_a_call_moves_the_deadline_and_silence_does_not(tmp_path: Path) -> None:
    """The timer is never sooner than the lease, although not every call is written."""
    feeding = Feeding(tmp_path)
    feeding.deadman.feed(900)
    first_s = feeding.deadline_s()
    feeding.passed_s = FEED_PAUSE_S - 0.1
    feeding.deadman.feed(900)
    unmoved_s = feeding.deadline_s()
    feeding.passed_s = FEED_PAUSE_S
    feeding.deadman.feed(900)

    assert (910, 910, 920) == (first_s, unmoved_s, feeding.deadline_s())
    assert unmoved_s >= FEED_PAUSE_S - 0.1 + 900


def test_another_bound_is_written_at_once(tmp_path: Path) -> None:
    """A lease brings its own: a longer one must not be cut short."""
    feeding = Feeding(tmp_path)
    feeding.deadman.feed(60)
    feeding.deadman.feed(900)

    assert 910 == feeding.deadline_s()


def test_the_lifetime_is_the_last_word(tmp_path: Path) -> None:
    """A controller that heartbeats for ever does not keep a machine for ever."""
    feeding = Feeding(tmp_path, lifetime_s=1_000)
    for feeding.passed_s in range(0, 2_000, 30):
        feeding.deadman.feed(900)

    assert 1_000 == feeding.deadline_s()
    assert -980 == feeding.deadman.lifetime_left_s()


def test_nothing_is_written_before_the_first_call(tmp_path: Path) -> None:
    """A broker that starts again and again must not keep its machine alive by that."""
    Feeding(tmp_path)

    assert [] == list(tmp_path.iterdir())


def test_a_reader_never_sees_half_a_deadline(tmp_path: Path) -> None:
    """Replaced by a rename: what another process holds open is the old one, whole, and no scratch file is left."""
    feeding = Feeding(tmp_path)
    feeding.deadman.feed(60)
    with feeding.path.open() as held:
        feeding.passed_s = 20
        feeding.deadman.feed(60)

        assert f"{int(NOW) + 70}\n" == held.read()
    assert ["deadline"] == [path.name for path in tmp_path.iterdir()]


def test_a_disk_that_refuses_is_told_once_and_costs_no_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The old deadline stands, so the machine ends too early rather than never."""
    feeding = Feeding(tmp_path / "gone")
    with caplog.at_level(logging.ERROR):
        for feeding.passed_s in (0, 20, 40):
            feeding.deadman.feed(60)
    (tmp_path / "gone").mkdir()
    feeding.passed_s = 60
    feeding.deadman.feed(60)

    assert 1 == len(caplog.records)
    assert 130 == feeding.deadline_s()


def test_the_lease_book_tells_of_every_call_and_of_the_leases_own_bound(tmp_path: Path) -> None:
    """Before the lease the launch's bound holds, behind it the lease's. The broker's own work is no call."""
    heard: list[float] = []
    book = LeaseBook(tmp_path, silence_s=600, on_heard=heard.append)
    book.touch()
    book.heard()
    lease = book.grant(LeaseRequest(request_id="r-1", rollout_id="x", lease_s=120))
    book.heard()
    book.demand(lease.lease_id)
    again = LeaseBook(tmp_path, silence_s=600, on_heard=heard.append)
    again.heard()

    assert [600, 120, 120, 120] == heard
