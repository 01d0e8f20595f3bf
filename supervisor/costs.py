"""What a batch has cost: added up while it plays, held against its limit, and shown to people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal

import anyio

from contract.batch_records import RolloutRow
from contract.phases import Phase, is_final


class BatchCosts:
    """The sum over all rollouts, and `limits.batch_cost_usd`.

    Once the limit is reached `stop` is set and `reached` says why, in one line. A rollout whose cost is unknown reaches
    any limit: it cannot be kept below one. A batch that is already stopping for another reason keeps that one.
    """

    def __init__(
        self, limit_usd: Decimal | None, rows: Iterable[RolloutRow], *, stop: anyio.Event, say: Callable[[str], None]
    ) -> None:
        self._limit_usd = limit_usd
        self._stop = stop
        self._say = say
        # A rollout that goes on tells its own total before it asks for anything.
        self._spent = {
            row.rollout_id: _with_judge(row)
            for row in rows
            if is_final(row.phase) or (row.phase in _PLAYED and row.cost_usd is not None)
        }
        self.reached: str | None = None

    def note(self, rollout_id: str, cost_usd: Decimal | None) -> None:
        """This rollout has cost so much until now; None is unknown."""
        self._spent[rollout_id] = cost_usd
        self.check()

    def note_phase(self, row: RolloutRow, before: Phase) -> None:
        """A rollout that ends has its final cost in its row."""
        if is_final(row.phase):
            self.note(row.rollout_id, _with_judge(row))

    def check(self) -> None:
        """Stop the batch if its limit is reached."""
        if self._limit_usd is None or self._stop.is_set():
            return
        reached = self._reached(self._limit_usd)
        if reached is not None:
            self.reached = reached
            self._say(f"{reached}; no rollout is started any more, and those that play end with their turn")
            self._stop.set()

    def _reached(self, limit_usd: Decimal) -> str | None:
        unknown = [rollout_id for rollout_id, cost_usd in self._spent.items() if cost_usd is None]
        if unknown:
            return f"what {unknown[0]} has cost is unknown, so `limits.batch_cost_usd` cannot be kept"
        total = sum((cost_usd for cost_usd in self._spent.values() if cost_usd is not None), Decimal(0))
        if total >= limit_usd:
            return f"the batch has cost ${total:f}, and `limits.batch_cost_usd` is ${limit_usd:f}"
        return None


_PLAYED = frozenset({Phase.HANDED_OFF, Phase.EVALUATING})


def _with_judge(row: RolloutRow) -> Decimal | None:
    """A rollout's whole cost, its judge's too."""
    return row.cost_usd + (row.judge_cost_usd or Decimal(0)) if row.cost_usd is not None else None


def shown_cost(cost_usd: Decimal | None, requests_of_unknown_cost: int, *, sign: str = "") -> str:
    """Cents for a table. `>=` marks a lower bound: some requests were never answered. Empty when unknown."""
    if cost_usd is None:
        return ""
    bound = ">= " if requests_of_unknown_cost else ""
    return f"{bound}{sign}{cost_usd:.2f}"
