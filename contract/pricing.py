"""Pinned price rows and the cost of one response, in exact decimal US dollars.

Usage comes in disjoint buckets: uncached input, cached input, cache writes, output. Reasoning is a diagnostic subset
of output and is never charged twice.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from contract.records import Record, Usd, read_record

TOKENS_PER_PRICE: Final = Decimal(1_000_000)


class Usage(Record):
    """Tokens of one response, or of many added up. The first four are disjoint; reasoning is part of output."""

    input: int = 0
    cached_input: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    def plus(self, other: Usage) -> Usage:
        """The sum, bucket by bucket."""
        return Usage(
            input=self.input + other.input,
            cached_input=self.cached_input + other.cached_input,
            cache_write=self.cache_write + other.cache_write,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
        )


class PriceRow(Record):
    """USD per 1,000,000 tokens; null means no separate price: charged at the input rate."""

    input: Usd
    cached_input: Usd | None = None
    cache_write: Usd | None = None
    output: Usd


class PriceTable(Record):
    """`configs/prices.json`: rows by `provider/model`."""

    schema_: Annotated[Literal["autocad-bench.prices/1"], Field(alias="schema")] = "autocad-bench.prices/1"
    rows: dict[str, PriceRow]


def read_prices(path: Path) -> PriceTable:
    """Read the pinned table. Raises `StateError`."""
    return read_record(path, PriceTable)


def cost_of(usage: Usage, row: PriceRow) -> Decimal:
    """What this usage costs by this row. Exact: no rounding happens here."""

    def rate(price: Decimal | None) -> Decimal:
        return row.input if price is None else price

    total = (
        usage.input * row.input
        + usage.cached_input * rate(row.cached_input)
        + usage.cache_write * rate(row.cache_write)
        + usage.output * row.output
    )
    return total / TOKENS_PER_PRICE
