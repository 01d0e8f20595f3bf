"""Asking a model until it answers: which failures consume a budget, and how long to wait after each.

Throttling and server errors may go on for ever, because an unconsumed turn that is sent again moves no mouse. Lost
answers are limited by how many follow each other. No counter consumes another's.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

import anyio

from contract.rollout_records import Waiting
from pilot.ports import Model, ModelReply, Observation, ProviderError, ServerError, Throttled, TransportFailed, World

# Exponential backoff doubles from the first value up to the second; the cap is the operator contract's.
BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
# A quota that is used up fails like a burst does at first; after this long somebody should look.
ALARM_AFTER_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class RetryLedger:
    """Failed requests of one turn, by kind. `transport` is the streak that is limited."""

    transport: int = 0
    throttled: int = 0
    server_errors: int = 0

    def charge(self, error: ProviderError, *, transport_max: int = 10) -> RetryLedger | None:
        """The ledger after this failure, or None when the turn is not to be sent again."""
        match error:
            case Throttled():
                return replace(self, throttled=self.throttled + 1)
            case ServerError():
                return replace(self, server_errors=self.server_errors + 1)
            case TransportFailed() if self.transport + 1 < transport_max:
                return replace(self, transport=self.transport + 1)
            case _:
                return None


def delay_s(error: ProviderError, ledger: RetryLedger, chance: random.Random) -> float:
    """Seconds to wait after `error`, which is already in `ledger`: backoff with jitter, or what the provider asked for.

    Jitter takes away up to half, so that rollouts that were throttled together do not come back together.
    """
    match error:
        case Throttled():
            tries = ledger.throttled
        case ServerError():
            tries = ledger.server_errors
        case _:
            tries = ledger.transport
    # 2**6 is past the cap; the exponent stays small however often this is called.
    backoff = min(BACKOFF_FIRST_S * 2.0 ** min(tries - 1, 6), BACKOFF_MAX_S)
    own = backoff * (0.5 + 0.5 * chance.random())
    match error:
        case Throttled(retry_after_s=asked) if asked is not None:
            return max(own, asked)
        case ServerError(retry_after_s=asked) if asked is not None:
            # The cap holds for server errors whatever their headers advise.
            return max(own, min(asked, BACKOFF_MAX_S))
        case _:
            return own


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The turn has no reply and will get none; None as `error` means that the rollout was asked to stop."""

    error: ProviderError | None


async def ask(
    model: Model,
    observation: Observation,
    world: World,
    *,
    transport_max: int,
    on_wait: Callable[[ProviderError, Waiting], Awaitable[None]],
) -> ModelReply | GaveUp:
    """Ask for this turn until the model answers, the failure is final, or `world.stop` is set during a wait.

    `on_wait` is told of every failure that will be retried, before the wait.
    """
    ledger = RetryLedger()
    waiting: Waiting | None = None
    while True:
        try:
            return await model.next_turn(observation)
        except ProviderError as error:
            charged = ledger.charge(error, transport_max=transport_max)
            if charged is None:
                return GaveUp(error)
            ledger = charged
            pause_s = delay_s(error, ledger, world.ambient.chance)
            waiting = _waiting(error, before=waiting, now=world.ambient.utc_now(), pause_s=pause_s)
            await on_wait(error, waiting)
        if await _stopped_within(pause_s, world):
            return GaveUp(None)


def _waiting(error: ProviderError, *, before: Waiting | None, now: datetime, pause_s: float) -> Waiting:
    kind = _kind(error)
    since = before.since if before is not None and before.for_ == kind else now
    waited_s = (now - since).total_seconds()
    alarm = None
    if kind == "quota_exhausted" and waited_s >= ALARM_AFTER_S:
        alarm = f"no answer for {waited_s / 60:.0f} min: {error.message}"
    return Waiting(for_=kind, since=since, until=now + timedelta(seconds=pause_s), alarm=alarm)


def _kind(error: ProviderError) -> Literal["rate_limited", "server_error", "transport", "quota_exhausted"]:
    match error:
        case Throttled(heals=False):
            return "quota_exhausted"
        case Throttled():
            return "rate_limited"
        case ServerError():
            return "server_error"
        case _:
            return "transport"


async def _stopped_within(pause_s: float, world: World) -> bool:
    async with anyio.create_task_group() as tasks:

        async def stop_waiting() -> None:
            await world.stop.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(stop_waiting)
        await world.ambient.sleep(pause_s)
        tasks.cancel_scope.cancel()
    return world.stop.is_set()
