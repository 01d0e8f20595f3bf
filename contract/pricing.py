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

Tokens = Annotated[int, Field(ge=0)]
Rate = Annotated[Usd, Field(ge=0)]


class Usage(Record):
    """Tokens of one response, or of many added up. All but reasoning are disjoint; reasoning is part of output.

    `input` is what was neither read from a cache nor written to one. `cache_write` lives for minutes (Anthropic 5,
    OpenAI 30), `cache_write_long` for hours. `reasoning` is null when a response did not report it.
    """

    input: Tokens = 0
    cached_input: Tokens = 0
    cache_write: Tokens = 0
    cache_write_long: Tokens = 0
    output: Tokens = 0
    reasoning: Tokens | None = 0

    @property
    def input_total(self) -> int:
        """All that was sent, from wherever it was read."""
        return self.input + self.cached_input + self.cache_write + self.cache_write_long

    def plus(self, other: Usage) -> Usage:
        """The sum, bucket by bucket; a reasoning count that is unknown makes the sum unknown."""
        known = self.reasoning is not None and other.reasoning is not None
        return Usage(
            input=self.input + other.input,
            cached_input=self.cached_input + other.cached_input,
            cache_write=self.cache_write + other.cache_write,
            cache_write_long=self.cache_write_long + other.cache_write_long,
            output=self.output + other.output,
            reasoning=(self.reasoning or 0) + (other.reasoning or 0) if known else None,
        )


class LongContext(Record):
    """What a response costs more once its whole input passes a threshold. Multipliers apply to all of its tokens."""

    threshold_input_tokens: Annotated[int, Field(ge=1)]
    compare: Literal["greater", "greater_or_equal"] = "greater"
    input_multiplier: Rate = Decimal(1)
    cached_input_multiplier: Rate = Decimal(1)
    cache_write_multiplier: Rate = Decimal(1)
    output_multiplier: Rate = Decimal(1)

    def applies_to(self, input_total: int) -> bool:
        """True when a response with this much input is charged more."""
        if self.compare == "greater":
            return input_total > self.threshold_input_tokens
        return input_total >= self.threshold_input_tokens


class PriceRow(Record):
    """USD per 1,000,000 tokens; null means no separate price: charged at the input rate.

    `use_reported_cost`: where a response says what was charged for it, that is its cost. `as_of` and `source` say when
    and where the row was read; prices change within months.
    """

    input: Rate
    cached_input: Rate | None = None
    cache_write: Rate | None = None
    cache_write_long: Rate | None = None
    output: Rate
    long_context: LongContext | None = None
    use_reported_cost: bool = False
    source: str = ""
    as_of: str = ""


class PriceTable(Record):
    """`configs/prices.json`: rows by `provider/model`."""

    schema_: Annotated[Literal["autocad-bench.prices/1"], Field(alias="schema")] = "autocad-bench.prices/1"
    rows: dict[str, PriceRow]


def read_prices(path: Path) -> PriceTable:
    """Read the pinned table. Raises `StateError`."""
    return read_record(path, PriceTable)


def cost_of(usage: Usage, row: PriceRow) -> Decimal:
    """What this usage of one response costs by this row. Exact: no rounding happens here.

    Sums of several responses must not be priced at once: whether the long-context rates apply is decided for each.
    """

    def rate(price: Decimal | None) -> Decimal:
        return row.input if price is None else price

    longer = row.long_context
    more = longer if longer is not None and longer.applies_to(usage.input_total) else _NOT_LONG
    total = (
        usage.input * row.input * more.input_multiplier
        + usage.cached_input * rate(row.cached_input) * more.cached_input_multiplier
        + usage.cache_write * rate(row.cache_write) * more.cache_write_multiplier
        + usage.cache_write_long * rate(row.cache_write_long) * more.cache_write_multiplier
        + usage.output * row.output * more.output_multiplier
    )
    return total / TOKENS_PER_PRICE


_NOT_LONG: Final = LongContext(threshold_input_tokens=1)
