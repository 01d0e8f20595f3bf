"""Do one thing while watching for another: whichever comes first ends it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The work came to its end, with this value."""

    value: T


@dataclass(frozen=True, slots=True)
class Broken(Generic[W]):
    """A watch returned first, with this reason; the work was cancelled, with its own clean-up complete."""

    reason: W


async def first_of(work: Callable[[], Awaitable[T]], *watches: Callable[[], Awaitable[W]]) -> Done[T] | Broken[W]:
    """Run `work` until it ends or until one of `watches` returns.

    An exception of the work is raised as it is, not in a group. When both end at once, the work's value wins: what is
    done is done.
    """
    done: list[Done[T]] = []
    broken: list[Broken[W]] = []
    failed: list[Exception] = []

    async with anyio.create_task_group() as group:

        async def watch(look: Callable[[], Awaitable[W]]) -> None:
            try:
                reason = await look()
            except Exception as error:  # noqa: BLE001  (raised again below, outside of the group)
                failed.append(error)
            else:
                broken.append(Broken(reason))
            group.cancel_scope.cancel()

        for look in watches:
            group.start_soon(watch, look)
        try:
            done.append(Done(await work()))
        except Exception as error:  # noqa: BLE001  (raised again below, outside of the group)
            failed.append(error)
        group.cancel_scope.cancel()

    if done:
        return done[0]
    if broken:
        return broken[0]
    assert failed, "neither work nor watch ended"
    raise failed[0]
