"""Prompt caches and the bill: what each answer reports, and what it costs by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import orjson

from tests.providers.models import Sold
from tests.providers.prompt import Prompt

PRICES: Final = Path(__file__).resolve().parents[1] / "pilot" / "wire" / "prices.json"
# How many content blocks before a breakpoint an earlier entry is looked for.
LOOK_BACK_BLOCKS: Final = 20
# Implicit caches work in steps of this many tokens.
STEP_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens of one run, in disjoint buckets; `reasoning` is part of `output` and null where the API has no count."""

    uncached: int = 0
    read: int = 0
    written: int = 0
    written_long: int = 0
    output: int = 0
    reasoning: int | None = None

    @property
    def input_total(self) -> int:
        """All that was sent."""
        return self.uncached + self.read + self.written + self.written_long


class PromptCache:
    """Remembers the prefixes that were sent before, each within its own scope."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], set[int]] = {}

    def forget(self) -> None:
        """Everything has expired."""
        self._known.clear()

    def implicit(self, prompt: Prompt, scope: tuple[str, ...], sold: Sold) -> Used:
        """Whole-prefix caching without marks: reads the longest known prefix, remembers this one."""
        known = self._known.setdefault(scope, set())
        read = 0
        for unit in prompt.units:
            if unit.chain not in known:
                break
            read = unit.end
        known.update(unit.chain for unit in prompt.units)
        read = read // STEP_TOKENS * STEP_TOKENS
        if read < sold.cache_min:
            read = 0
        written = 0
        if sold.bills_writes and prompt.tokens >= sold.cache_min:
            written = max(0, prompt.tokens // STEP_TOKENS * STEP_TOKENS - read)
        return Used(uncached=prompt.tokens - read - written, read=read, written=written)

    def marked(self, prompt: Prompt, scope: tuple[str, ...], sold: Sold) -> Used:
        """Caching at breakpoints: a breakpoint reads an entry within its look-back and writes one of its own."""
        known = self._known.setdefault(scope, set())
        marks = {
            count: ttl for count, ttl in prompt.breakpoints.items() if count and self._is_enough(prompt, count, sold)
        }
        read_units = 0
        for count in marks:
            ends = [block for block in prompt.blocks if block <= count][-LOOK_BACK_BLOCKS:]
            for end in {count, *ends}:
                if end > read_units and prompt.units[end - 1].chain in known:
                    read_units = end
        read = prompt.tokens_before(read_units)
        written = {"5m": 0, "1h": 0}
        done = read_units
        for count in sorted(marks):
            if count > done:
                written[marks[count]] += prompt.tokens_before(count) - prompt.tokens_before(done)
                done = count
            known.add(prompt.units[count - 1].chain)
        return Used(
            uncached=prompt.tokens - prompt.tokens_before(done),
            read=read,
            written=written["5m"],
            written_long=written["1h"],
        )

    @staticmethod
    def _is_enough(prompt: Prompt, count: int, sold: Sold) -> bool:
        return prompt.tokens_before(count) >= sold.cache_min


@dataclass
class Account:
    """Every charged run, in order: provider, model, session, tokens, and what it costs."""

    prices: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(orjson.loads(PRICES.read_bytes())["models"]))
    lines: list[tuple[str, str, str, Used, Decimal | None]] = field(default_factory=list)

    def charge(self, provider: str, model: str, session: str, runs: Sequence[Used]) -> Decimal | None:
        """Put these runs on the bill. Returns what they cost together, None without a price."""
        total: Decimal | None = Decimal(0)
        for used in runs:
            cost = self.price(provider, model, used)
            self.lines.append((provider, model, session, used, cost))
            total = None if total is None or cost is None else total + cost
        return total

    def price(self, provider: str, model: str, used: Used) -> Decimal | None:
        """The hand-made calculation: each bucket times its rate, all of it more beyond a long-context threshold."""
        row = row_of(self.prices, provider, model)
        if row is None:
            return None
        base = Decimal(str(row["input"]))

        def rate(name: str) -> Decimal:
            return base if row.get(name) is None else Decimal(str(row[name]))

        more = row.get("long_context") or {}
        is_long = bool(more) and used.input_total > more["threshold_input_tokens"]

        def times(name: str) -> Decimal:
            return Decimal(str(more[name])) if is_long else Decimal(1)

        cost = used.uncached * base * times("input_multiplier")
        cost += used.read * rate("cached_input") * times("cached_input_multiplier")
        cost += used.written * rate("cache_write") * times("cache_write_multiplier")
        cost += used.written_long * rate("cache_write_long") * times("cache_write_multiplier")
        cost += used.output * rate("output") * times("output_multiplier")
        return cost / 1_000_000

    def of(self, session: str | None = None) -> list[Used]:
        """The runs of one session, or all."""
        return [used for _, _, owner, used, _ in self.lines if session is None or owner == session]

    def total(self, session: str | None = None) -> Used:
        """Their sum. Reasoning is null when one of them did not say it."""
        runs = self.of(session)
        reasoning = [used.reasoning for used in runs]
        return Used(
            uncached=sum(used.uncached for used in runs),
            read=sum(used.read for used in runs),
            written=sum(used.written for used in runs),
            written_long=sum(used.written_long for used in runs),
            output=sum(used.output for used in runs),
            reasoning=None if None in reasoning else sum(count or 0 for count in reasoning),
        )

    def cost_usd(self, session: str | None = None) -> Decimal | None:
        """What they cost together; null when one of them has no price."""
        costs = [cost for _, _, owner, _, cost in self.lines if session is None or owner == session]
        return None if None in costs else sum((cost for cost in costs if cost is not None), Decimal(0))


def row_of(prices: dict[str, dict[str, Any]], provider: str, model: str) -> dict[str, Any] | None:
    """The recorded row of a model: by its id, by the end of its id, or, through a router, by its vendor's own id."""
    names = (f"{provider}/{model}", f"{provider}/{model.rpartition('/')[2]}", model)
    return next((prices[name] for name in names if name in prices), None)
