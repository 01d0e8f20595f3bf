"""A batch has as many open files as it needs, without a word from its operator."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from supervisor.open_files import FILES_BESIDE, FILES_PER_ROLLOUT, make_room_for_files

USUAL = 1_024


@pytest.fixture
def hard() -> Iterator[int]:
    """The soft limit of a login, for one test; gives the hard limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_hundred_rollouts_have_the_files_that_they_need(hard: int) -> None:
    """A login may have 1,024 files open, and a hundred rollouts on instances have more."""
    make_room_for_files(100)

    assert (min(hard, FILES_BESIDE + FILES_PER_ROLLOUT * 100), hard) == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_the_limit_is_not_moved_without_need(hard: int) -> None:
    """Programs that close every number below the limit stay quick."""
    make_room_for_files(2)

    assert (USUAL, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_the_hard_limit_is_the_end_of_it(hard: int) -> None:
    """Only an administrator may raise that; the batch then plays as far as it gets."""
    make_room_for_files(10**9)

    assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
