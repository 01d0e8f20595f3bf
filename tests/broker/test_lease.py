"""The lease: one at a time, the same again for the same request, ended by silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.lease import LeaseBook
from broker.refusal import Refusal
from contract.broker_api import ErrorCode, LeaseRequest

REQUEST = LeaseRequest(request_id="r-1", rollout_id="x", lease_s=30)
OTHER = LeaseRequest(request_id="r-2", rollout_id="y", lease_s=30)


def book_at(tmp_path: Path, clock: list[float]) -> LeaseBook:
    """A book whose time is in our hands."""
    return LeaseBook(tmp_path, silence_s=60, elapsed_s=lambda: clock[0])


def test_the_same_request_gets_the_same_lease(tmp_path: Path) -> None:
    """Also from a broker that was started again on the same folder."""
    lease = book_at(tmp_path, [0.0]).grant(REQUEST)

    assert lease == book_at(tmp_path, [0.0]).grant(REQUEST)
    assert lease.generation == 1


def test_another_request_is_refused_until_the_release(tmp_path: Path) -> None:
    """A host serves one rollout at a time; what was released does not come back."""
    book = book_at(tmp_path, [0.0])
    lease = book.grant(REQUEST)
    with pytest.raises(Refusal) as held:
        book.grant(OTHER)
    book.release(lease.lease_id)
    with pytest.raises(Refusal) as released:
        book.grant(REQUEST)

    assert held.value.code is ErrorCode.LEASE_HELD
    assert released.value.code is ErrorCode.LEASE_UNKNOWN
    assert book.grant(OTHER).generation == 2


def test_silence_ends_it_and_a_call_does_not(tmp_path: Path) -> None:
    """The host must not outlive a controller that was cut off."""
    clock = [0.0]
    book = book_at(tmp_path, clock)
    book.grant(REQUEST)
    clock[0] = 29.0
    book.touch()
    clock[0] = 58.0

    assert book.expires_in_s() == 1.0
    clock[0] = 60.0
    assert book.expires_in_s() < 0


def test_an_orphan_is_given_its_own_time(tmp_path: Path) -> None:
    """A batch that died may be resumed: its desktops wait for it."""
    clock = [0.0]
    book = book_at(tmp_path, clock)
    book.grant(REQUEST)
    book.orphaned(300)
    clock[0] = 200.0

    assert book.expires_in_s() == 100.0
