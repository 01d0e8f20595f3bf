"""Money is exact, and each token is charged once."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from contract.errors import StateError
from contract.pricing import PriceRow, PriceTable, Usage, cost_of, read_prices
from contract.records import write_record

ROW = PriceRow(input=Decimal("3"), cached_input=Decimal("0.3"), cache_write=Decimal("3.75"), output=Decimal("15"))


def test_each_bucket_has_its_price_and_reasoning_is_in_output() -> None:
    """1,000 uncached, 10,000 cached, 2,000 written, 500 out of which 400 reasoned."""
    usage = Usage(input=1_000, cached_input=10_000, cache_write=2_000, output=500, reasoning=400)

    assert Decimal("0.0210") == cost_of(usage, ROW)


def test_a_price_that_is_not_given_is_the_input_price() -> None:
    """Not zero: a provider without a cache discount charges in full."""
    row = PriceRow(input=Decimal(2), output=Decimal(8))

    assert Decimal("0.000006") == cost_of(Usage(cached_input=1, cache_write=2), row)


def test_a_single_token_is_not_rounded_away() -> None:
    """Sums of many small costs are what a batch costs."""
    assert Decimal("0.0000003") == cost_of(Usage(cached_input=1), ROW)


def test_usages_add_bucket_by_bucket() -> None:
    """The sum of a rollout is the sum of its turns."""
    one = Usage(input=1, cached_input=2, cache_write=3, output=4, reasoning=5)

    assert Usage(input=2, cached_input=4, cache_write=6, output=8, reasoning=10) == one.plus(one)
    assert one == one.plus(Usage())


def test_a_price_table_is_read_back_exactly(tmp_path: Path) -> None:
    """And one with a float in it is refused."""
    path = tmp_path / "prices.json"
    table = PriceTable(rows={"openai/m": ROW})
    write_record(path, table)

    assert table == read_prices(path)
    path.write_text(path.read_text().replace('"0.3"', "0.3"))
    with pytest.raises(StateError, match="not a float"):
        read_prices(path)
