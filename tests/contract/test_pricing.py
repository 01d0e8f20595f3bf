"""Money is exact, each token is charged once, and a wrong price table says where it is wrong."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import StateError
from contract.json_lines import Repeated, lines_of
from contract.pricing import PriceRow, PriceTable, Usage, cost_of, read_prices
from contract.records import write_record

ROW = PriceRow(input=Decimal("3"), cached_input=Decimal("0.3"), cache_write=Decimal("3.75"), output=Decimal("15"))
REPOSITORY = Path(__file__).resolve().parents[2]
PRICES = REPOSITORY / "configs" / "prices.json"
WIRE_FILES = REPOSITORY / "tests" / "pilot" / "wire"
RAW_ROWS: Final[dict[str, dict[str, Any]]] = json.loads(PRICES.read_text())["rows"]
ROWS: Final = read_prices(PRICES).rows
BUCKETS: Final = ("input", "cached_input", "cache_write", "cache_write_long", "output")


def priced_by_hand(row: dict[str, Any], tokens: dict[str, int]) -> Fraction:
    """The cost by the raw JSON row, in fractions: written from the price pages' rules, not from our code."""
    sent = tokens["input"] + tokens["cached_input"] + tokens["cache_write"] + tokens["cache_write_long"]
    longer = row.get("long_context") or {}
    is_long = bool(longer) and sent > longer["threshold_input_tokens"]
    total = Fraction(0)
    for bucket in BUCKETS:
        rate = row.get(bucket)
        price = Fraction(row["input"] if rate is None else rate)
        kind = "cache_write" if bucket.startswith("cache_write") else bucket
        total += price * tokens[bucket] * (Fraction(longer[f"{kind}_multiplier"]) if is_long else 1)
    return total / 1_000_000


def some_tokens(chance: random.Random, row: dict[str, Any]) -> dict[str, int]:
    """Tokens of one response; around the long-context threshold as often as anywhere else."""
    tokens = {bucket: chance.choice([0, 1, chance.randrange(1_000), chance.randrange(400_000)]) for bucket in BUCKETS}
    longer = row.get("long_context")
    if longer and chance.random() < 0.5:
        rest = tokens["cached_input"] % 90_000 + tokens["cache_write"] % 5_000 + tokens["cache_write_long"] % 5_000
        tokens |= {name: tokens[name] % bound for name, bound in (("cached_input", 90_000), ("cache_write", 5_000))}
        tokens["cache_write_long"] %= 5_000
        tokens["input"] = longer["threshold_input_tokens"] - rest + chance.choice([-1, 0, 1])
    return tokens


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


@pytest.mark.parametrize("family", ["openai", "openrouter", "anthropic", "fireworks", "mantle", "bedrock"])
def test_two_thousand_responses_of_each_family_cost_what_they_cost_by_hand(family: str) -> None:
    """Exactly, for every row: 0.1 % of a batch is real money, and an error in one bucket hides in a sum."""
    names = [name for name in ROWS if name.startswith(f"{family}/")]
    chance = random.Random(f"prices of {family}")
    wrong = []

    for number in range(2_000):
        name = names[number % len(names)]
        tokens = some_tokens(chance, RAW_ROWS[name])
        usage = Usage(**tokens, reasoning=chance.choice([None, 0, tokens["output"]]))
        cost = cost_of(usage, ROWS[name])
        if Fraction(cost) != priced_by_hand(RAW_ROWS[name], tokens):
            wrong.append((name, tokens, cost))

    assert [] == wrong


@pytest.mark.parametrize("name", sorted(ROWS))
@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_token_is_charged_in_its_own_bucket_and_in_no_other(name: str, bucket: str) -> None:
    """A million more of one kind cost its rate, whatever else there is."""
    row = ROWS[name].model_copy(update={"long_context": None})
    before = Usage(input=3, cached_input=5, cache_write=7, cache_write_long=11, output=13, reasoning=13)
    after = before.model_copy(update={bucket: getattr(before, bucket) + 1_000_000})

    rate = getattr(row, bucket)
    assert (row.input if rate is None else rate) == cost_of(after, row) - cost_of(before, row)


@pytest.mark.parametrize("name", sorted(name for name, row in ROWS.items() if row.long_context is not None))
def test_long_context_begins_above_its_threshold_and_holds_for_the_whole_response(name: str) -> None:
    """At the threshold nothing changes; one token more, from whatever bucket, changes the price of all."""
    row = ROWS[name]
    longer = row.long_context
    assert longer is not None
    at = Usage(cached_input=longer.threshold_input_tokens, output=1_000)
    above = at.model_copy(update={"cache_write": 1})

    cached, written = row.cached_input or row.input, row.input if row.cache_write is None else row.cache_write
    plain = at.cached_input * cached + at.output * row.output
    assert plain == cost_of(at, row) * 1_000_000
    assert (
        at.cached_input * cached * longer.cached_input_multiplier
        + written * longer.cache_write_multiplier
        + at.output * row.output * longer.output_multiplier
    ) == cost_of(above, row) * 1_000_000


def test_long_context_is_judged_for_each_response() -> None:
    """Two responses of 200,000 tokens are not one of 400,000."""
    row, one = ROWS["openai/gpt-5.4"], Usage(input=200_000)

    assert Decimal(1) == cost_of(one, row) * 2
    assert Decimal(2) == cost_of(one.plus(one), row)


def stored_costs() -> list[Any]:
    """The stored answers with a usage and a price. Where one answer has several runs, none is of long context."""
    cases = json.loads((WIRE_FILES / "index.json").read_text())["cases"]
    return [pytest.param(case, id=case["file"]) for case in cases if "usage" in case and "price" in case]


@pytest.mark.parametrize("case", stored_costs())
def test_the_stored_answers_cost_what_the_case_table_says(case: dict[str, Any]) -> None:
    """Recorded usages of every family, priced by the rows that ship."""
    counts = case["usage"]
    usage = Usage(
        input=counts["input_uncached"],
        cached_input=counts["cache_read"],
        cache_write=counts["cache_write_short"],
        cache_write_long=counts["cache_write_long"],
        output=counts["output"],
        reasoning=counts["reasoning"],
    )

    cost = cost_of(usage, ROWS[ours(case["price"])])

    assert counts["input_total"] == usage.input_total
    assert Decimal(str(case["cost_usd"])) == cost


def ours(name: str) -> str:
    """A row of the case table by the name that a config gives the model."""
    return {
        "fireworks/kimi-k2p6-fast": "fireworks/accounts/fireworks/routers/kimi-k2p6-fast",
        "fireworks/kimi-k2p6": "fireworks/accounts/fireworks/models/kimi-k2p6",
    }.get(name, name)


def test_the_rows_that_ship_are_those_of_the_case_table_and_say_whence_and_when() -> None:
    """Prices change within months, so a row without a source cannot be checked."""
    table = json.loads((WIRE_FILES / "prices.json").read_text(), parse_float=str)["models"]
    for name, wanted in table.items():
        row = RAW_ROWS[ours(name)]
        assert {bucket: _exact(wanted[bucket]) for bucket in BUCKETS} == {
            bucket: _exact(row[bucket]) for bucket in BUCKETS
        }, name
        assert _exact_all(wanted["long_context"]) == _exact_all(row["long_context"]), name

    assert [] == [name for name, row in ROWS.items() if not row.source or not row.as_of]


def test_only_a_provider_that_says_what_it_charged_is_believed() -> None:
    """OpenRouter reports the charge of every response, which no table knows better."""
    assert {"openrouter"} == {name.partition("/")[0] for name, row in ROWS.items() if row.use_reported_cost}
    assert [] == [name for name, row in ROWS.items() if name.startswith("openrouter/") and not row.use_reported_cost]


def _exact(value: str | int | None) -> Fraction | None:
    return None if value is None else Fraction(value)


def _exact_all(values: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value if name == "compare" else _exact(value) for name, value in (values or {}).items()}


def test_usages_add_bucket_by_bucket() -> None:
    """The sum of a rollout is the sum of its turns."""
    one = Usage(input=1, cached_input=2, cache_write=3, cache_write_long=6, output=4, reasoning=5)

    assert Usage(input=2, cached_input=4, cache_write=6, cache_write_long=12, output=8, reasoning=10) == one.plus(one)
    assert one == one.plus(Usage())
    assert one.plus(Usage(reasoning=None)).reasoning is None


def test_a_price_table_is_read_back_exactly(tmp_path: Path) -> None:
    """And one with a float in it is refused."""
    path = tmp_path / "prices.json"
    table = PriceTable(rows={"openai/m": ROW})
    write_record(path, table)

    assert table == read_prices(path)
    path.write_text(path.read_text().replace('"0.3"', "0.3"))
    with pytest.raises(StateError, match="not a float"):
        read_prices(path)


GOOD: Final = """{
  "schema": "autocad-bench.prices/1",
  "rows": {
    "openai/a": {
      "input": "1",
      "output": "2"
    },
    "openai/b": {
      "input": "1",
      "output": "2",
      "long_context": {
        "threshold_input_tokens": 5,
        "input_multiplier": "2"
      },
      "as_of": "2026-11"
    }
  }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        (
            '"input": "1",\n      "output": "2"\n',
            '"input": 0.1,\n      "output": "2"\n',
            5,
            "rows.openai/a.input: money",
        ),
        ('"output": "2",', '"output": 2.5,', 10, "rows.openai/b.output: money is a decimal string, not a float"),
        ('"output": "2",', '"output": "-2",', 10, "rows.openai/b.output: Input should be greater than or equal to 0"),
        ('"output": "2",', '"output": NaN,', 10, "rows.openai/b.output: money is a decimal string, not a float"),
        ('"output": "2",', '"output": "NaN",', 10, "rows.openai/b.output: Input should be a finite number"),
        ('"output": "2",', '"output": "Infinity",', 10, "rows.openai/b.output: Input should be a finite number"),
        ('"output": "2",', '"output": "two",', 10, "rows.openai/b.output: Input should be a valid decimal"),
        ('"output": "2",', '"output": "2", "colour": 1,', 10, "rows.openai/b.colour: Extra inputs are not permitted"),
        ('"output": "2",\n', "", 8, "rows.openai/b.output: Field required"),
        ('"input_multiplier": "2"', '"input_multiplier": "0"', 13, "rows.openai/b.long_context.input_multiplier: "),
        ('"threshold_input_tokens": 5', '"threshold_input_tokens": 0', 12, "rows.openai/b.long_context.threshold"),
        ('"2026-11"', '"last week"', 15, "rows.openai/b.as_of: String should match"),
        ('"openai/b"', '"openai/a"', 8, "rows.openai/a stands here a second time, after line 4"),
        ('"input": "1",\n      "output": "2",', '"input": "1", "input": "2",', 9, "rows.openai/b.input stands here"),
        ('"openai/b"', '"opnai/b"', 8, "rows.opnai/b: a row is named by a model provider and its model"),
        ('"openai/a"', '"openai/"', 4, "rows.openai/: a row is named by a model provider and its model"),
        ("prices/1", "prices/2", 2, "schema: Input should be 'autocad-bench.prices/1'"),
        ('"output": "2",', '"output": "2"', 11, "not JSON: Expecting ',' delimiter"),
        (GOOD, "[]", 1, "the document: Input should be an object"),
        (GOOD, "", 1, "not JSON: Expecting value"),
    ],
)
def test_a_wrong_price_table_names_the_line_and_the_field(
    tmp_path: Path, old: str, new: str, line: int, what: str
) -> None:
    """The table has hundreds of lines that look alike."""
    path = tmp_path / "prices.json"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))

    with pytest.raises(StateError) as caught:
        read_prices(path)

    assert caught.value.message.startswith(f"{path}, line {line}: {what}")
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"rows": ' + b"[" * 100_000, None])
def test_a_file_that_is_no_table_at_all_is_an_error_too(tmp_path: Path, content: bytes | None) -> None:
    """Nothing that stands in a file may crash the plan."""
    path = tmp_path / "prices.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(StateError, match=r"prices\.json"):
        read_prices(path)


def test_the_highest_of_several_mistakes_is_named(tmp_path: Path) -> None:
    """Files are read from the top."""
    path = tmp_path / "prices.json"
    path.write_text(GOOD.replace('"2026-11"', '"x"').replace('"input": "1"', '"input": 1.5'))

    with pytest.raises(StateError, match=r"line 5: rows\.openai/a\.input"):
        read_prices(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(JSON, st.sampled_from([None, 0, 2]))
def test_every_place_of_a_json_text_has_its_line(value: Any, indent: int | None) -> None:
    """Counted beside a second, slower way: the text up to a key has that many newlines."""
    text = json.dumps(value, indent=indent)
    lines = lines_of(text)

    assert _places(value) == set(lines)
    in_order = [lines[place] for place in lines]
    assert sorted(in_order) == in_order
    if indent is not None:
        rows = text.split("\n")
        assert all(json.dumps(place[-1]) in rows[line - 1] for place, line in lines.items() if _is_key(place))


def _places(value: Any, place: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {place}.union(*(_places(item, (*place, key)) for key, item in inner))


def _is_key(place: tuple[str | int, ...]) -> bool:
    return bool(place) and isinstance(place[-1], str)


def test_a_repeated_key_is_found_wherever_it_stands() -> None:
    """Readers of JSON keep the last one and say nothing."""
    with pytest.raises(Repeated) as caught:
        lines_of('[1, {"a": {"b": 1,\n"b": 2}}]')

    assert ((1, "a", "b"), 1, 2) == (caught.value.place, caught.value.first_line, caught.value.line)
