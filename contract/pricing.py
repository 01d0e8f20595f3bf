"""Pinned price rows and the cost of one response, in exact decimal US dollars.

Usage comes in disjoint buckets: uncached input, cached input, cache writes, output. Reasoning is a diagnostic subset
of output and is never charged twice.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from contract.errors import StateError
from contract.json_lines import Place, Repeated, lines_of
from contract.records import Record, Usd

TOKENS_PER_PRICE: Final = Decimal(1_000_000)

Tokens = Annotated[int, Field(ge=0)]
# With so many digits a cost is exact in Python's 28: 10 for the tokens, 12 for the rate, 6 for the multiplier.
Rate = Annotated[Usd, Field(ge=0, max_digits=12)]
Multiplier = Annotated[Usd, Field(gt=0, max_digits=6)]


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
    input_multiplier: Multiplier = Decimal(1)
    cached_input_multiplier: Multiplier = Decimal(1)
    cache_write_multiplier: Multiplier = Decimal(1)
    output_multiplier: Multiplier = Decimal(1)

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
    as_of: Annotated[str, Field(pattern=r"^$|^\d{4}-\d{2}(-\d{2})?$")] = ""


# A row that no config can name would never be found.
RowName = Annotated[str, Field(pattern=r"^(openai|openrouter|anthropic|fireworks|mantle|bedrock)/.")]


class PriceTable(Record):
    """`configs/prices.json`: rows by `provider/model`, as a config names both."""

    schema_: Annotated[Literal["autocad-bench.prices/1"], Field(alias="schema")] = "autocad-bench.prices/1"
    rows: dict[RowName, PriceRow]


def read_prices(path: Path) -> PriceTable:
    """Read the pinned table. Raises `StateError` with the line and the field of the first thing that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror or error}", hint="Name an existing file.") from error
    except UnicodeDecodeError as error:
        raise StateError(f"{path} is not UTF-8 text", hint="Save it as UTF-8.") from error
    try:
        lines = lines_of(text)
    except json.JSONDecodeError as error:
        raise StateError(f"{path}, line {error.lineno}: not JSON: {error.msg}", hint=_PRICES_HINT) from error
    except RecursionError as error:
        raise StateError(f"{path} is nested too deeply for a price table", hint=_PRICES_HINT) from error
    except Repeated as twice:
        where = f"{path}, line {twice.line}: {_field(twice.place)}"
        hint = "Keep one of the two."
        raise StateError(f"{where} stands here a second time, after line {twice.first_line}", hint=hint) from twice
    try:
        return PriceTable.model_validate_json(text)
    except ValidationError as error:
        raise StateError(f"{path}, {_first_problem(error, lines)}", hint=_PRICES_HINT) from error


_PRICES_HINT: Final = 'Write rates as decimal strings, in US dollars per 1,000,000 tokens: "0.25".'


def _first_problem(error: ValidationError, lines: dict[Place, int]) -> str:
    """The problem that stands highest in the file, as `line 7: field: what`."""

    def line_of(place: Place) -> int:
        # What is missing has no line: then that of what it is missing from.
        while place not in lines:
            place = place[:-1]
        return lines[place]

    problems = error.errors(include_url=False, include_input=False)
    first = min(problems, key=lambda problem: line_of(_place(problem["loc"])))
    place = _place(first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "string_pattern_mismatch" and len(place) == 2:
        what = "a row is named by a model provider and its model, like `openai/gpt-5.4`"
    return f"line {line_of(place)}: {_field(place)}: {what}"


def _place(loc: Place) -> Place:
    # pydantic says of a key that it is wrong by one more part.
    return loc[:-1] if loc[-1:] == ("[key]",) else loc


def _field(place: Place) -> str:
    return ".".join(str(part) for part in place) or "the document"


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
