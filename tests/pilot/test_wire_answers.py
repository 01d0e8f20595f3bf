"""What the answers of a model are read as: class, usage and cost."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.actions import InvalidActions, parse_action_batch
from contract.pricing import PriceRow, Usage, cost_of
from contract.profiles import PROFILES
from pilot.models.wire import Said
from pilot.models.wires import wire_for
from tests.pilot.wire_cases import PROFILE_OF_FOLDER, SESSION, WIRE, recorded, said_of, wire_of


def _cases() -> list[dict[str, Any]]:
    read = {"action", "action_compacted", "compacted", "invalid_batch", "malformed"}
    cases: list[dict[str, Any]] = json.loads((WIRE / "index.json").read_text())["cases"]
    return [case for case in cases if case.get("outcome") in read]


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case["file"])
def test_an_answer_of_the_case_table_is_read_as_the_table_says(case: dict[str, Any]) -> None:
    """Class, usage and cost of every recorded model answer."""
    said = said_of(case["file"].removesuffix(".json"))
    outcome = case["outcome"]

    if outcome in ("action", "action_compacted"):
        batch = [{"type": "click", "x": 412, "y": 233, "button": "left"}, {"type": "type", "text": "LINE\n"}]
        assert {"actions": batch} == said.arguments
    if outcome == "action_compacted":
        assert said.response["body"]["content"][0]["content"] is not None
    if outcome == "invalid_batch":
        assert isinstance(parse_action_batch(said.arguments, budget=5000), InvalidActions)
        assert said.arguments is not None
    if outcome in ("malformed", "compacted"):
        assert said.arguments is None
    if "usage" in case:
        assert expected_usage(case["usage"]) == total(said.usages)
    if "context_tokens" in case:
        assert case["context_tokens"] == said.context_tokens
    if "cost_usd" in case:
        assert Decimal(str(case["cost_usd"])) == cost_by_table(said, case)


def test_every_answer_of_the_case_table_has_a_usage() -> None:
    """Malformed, refused and cut answers are billed too."""
    assert [] == [case["file"] for case in _cases() if not said_of(case["file"].removesuffix(".json")).usages]


@pytest.mark.parametrize(
    "file",
    [
        "openai/refusal",
        "openai/content_filter",
        "openrouter/refusal",
        "anthropic/refusal",
        "bedrock/refusal_guardrail",
        "bedrock/refusal_content_filtered",
    ],
)
def test_a_refusal_is_told_from_other_malformed_answers(file: str) -> None:
    """A model that will not is a finding about the model; a call that was cut is not."""
    assert said_of(file).is_refusal


@pytest.mark.parametrize(
    "case", [case for case in _cases() if case["outcome"] == "action"], ids=lambda case: case["file"]
)
def test_an_action_is_no_refusal(case: dict[str, Any]) -> None:
    """The flag is for answers without a call alone."""
    said = said_of(case["file"].removesuffix(".json"))

    assert (False, False) == (said.is_refusal, said.is_context_full)


@pytest.mark.parametrize("file", ["anthropic/context_window_exceeded", "bedrock/context_window_exceeded"])
def test_a_full_context_is_told(file: str) -> None:
    """The conversation has to be shortened before the next try."""
    assert said_of(file).is_context_full


def test_what_nobody_is_sent_again_is_not_kept() -> None:
    """Echoed tools and encrypted reasoning would make every line of the trace several times as long."""
    response = said_of("openai/success").response

    assert {"id", "created_at", "model", "status", "incomplete_details", "service_tier", "output", "usage"} == set(
        response["body"]
    )
    assert b"encrypted_content" not in orjson.dumps(response)
    assert "x-ratelimit-remaining-tokens" in response["headers"]


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("openai/success", lambda body: body["output"][1].update(name="click")),
        ("openai/success", lambda body: body["output"][1].update(call_id="")),
        ("openai/success", lambda body: body["output"][1].update(arguments='["actions"]')),
        ("openai/success", lambda body: body["output"][1].update(arguments='{"actions":[NaN]}')),
        ("openai/success", lambda body: body["output"][1].update(arguments="[" * 500 + "]" * 500)),
        ("openai/success", lambda body: body["output"][1].update(status="incomplete")),
        ("openai/success", lambda body: body.update(status="incomplete")),
        ("openai/success", lambda body: body["output"].append({"type": "function_call", "name": "other"})),
        ("fireworks/success", lambda body: body["choices"][0].update(finish_reason="length")),
        ("fireworks/success", lambda body: body["choices"].append(body["choices"][0])),
        (
            "fireworks/success",
            lambda body: body["choices"][0]["message"].update(content="<|tool_calls_section_begin|>"),
        ),
        ("fireworks/success", lambda body: body["choices"][0]["message"].update(tool_calls="none")),
        (
            "fireworks/success",
            lambda body: body["choices"][0]["message"]["tool_calls"][0]["function"].update(arguments={"actions": []}),
        ),
        ("anthropic/success", lambda body: body.update(stop_reason="refusal")),
        ("anthropic/success", lambda body: body["content"][1].update(input='{"actions": []}')),
        ("anthropic/success", lambda body: body["content"][1].update(input=nested(300))),
        ("anthropic/success", lambda body: body["content"].append(body["content"][1])),
        ("bedrock/success", lambda body: body.update(stopReason="malformed_tool_use")),
        ("bedrock/success", lambda body: body["output"]["message"]["content"][0]["toolUse"].update(input=None)),
    ],
)
def test_a_call_that_is_not_exactly_one_whole_call_is_none(file: str, change: Any) -> None:
    """It is never executed and never replayed; the turn is asked again."""
    answer = recorded(file)
    change(answer["body"])

    assert wire_of(file).said(answer["body"], answer["headers"]).arguments is None


# The counts of each family that are charged for.
COUNTED: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "openai/success": (
        ("input_tokens",),
        ("input_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cache_write_tokens"),
        ("input_tokens_details", "cache_write_tokens_details", "ttl_12h_tokens"),
        ("output_tokens",),
        ("output_tokens_details", "reasoning_tokens"),
    ),
    "anthropic/success": (
        ("input_tokens",),
        ("cache_creation_input_tokens",),
        ("cache_read_input_tokens",),
        ("cache_creation", "ephemeral_1h_input_tokens"),
        ("output_tokens",),
        ("output_tokens_details", "thinking_tokens"),
    ),
    "fireworks/success": (
        ("prompt_tokens",),
        ("prompt_tokens_details", "cached_tokens"),
        ("completion_tokens",),
    ),
    "bedrock/success_cached": (
        ("inputTokens",),
        ("outputTokens",),
        ("cacheReadInputTokens",),
        ("cacheWriteInputTokens",),
    ),
}


@pytest.mark.parametrize("lie", [-1, "7", 1.5, True, [], {}], ids=repr)
@pytest.mark.parametrize(
    ("file", "path"), [(file, path) for file, paths in COUNTED.items() for path in paths], ids=lambda value: str(value)
)
def test_a_count_that_cannot_be_true_makes_the_usage_unknown(file: str, path: tuple[str, ...], lie: object) -> None:
    """Unknown is not zero; and the action, which is a good one, is carried out all the same."""
    answer = recorded(file)
    place = answer["body"]["usage"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = lie

    said = wire_of(file).said(answer["body"], {})

    assert ((), None) == (said.usages, said.context_tokens)
    assert said.arguments is not None


@pytest.mark.parametrize("usage", [None, [], "many", 7, {}], ids=repr)
@pytest.mark.parametrize("file", COUNTED)
def test_an_answer_without_a_usage_has_an_unknown_one(file: str, usage: object) -> None:
    """Whatever stands in its place."""
    answer = recorded(file)
    answer["body"]["usage"] = usage

    assert () == wire_of(file).said(answer["body"], {}).usages


@pytest.mark.parametrize(
    ("file", "path", "count"),
    [
        ("openai/success", ("input_tokens_details", "cached_tokens"), 5000),
        ("openai/success", ("input_tokens_details", "cache_write_tokens"), 1000),
        ("fireworks/success", ("prompt_tokens_details", "cached_tokens"), 3000),
        ("anthropic/success", ("cache_creation_input_tokens",), 100),
        ("bedrock/success_cached", ("cacheWriteInputTokens",), 1000),
    ],
)
def test_a_part_that_is_more_than_its_whole_makes_the_usage_unknown(
    file: str, path: tuple[str, ...], count: int
) -> None:
    """No bucket may become negative, and none is counted twice."""
    answer = recorded(file)
    place = answer["body"]["usage"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = count

    assert () == wire_of(file).said(answer["body"], {}).usages


def test_writes_of_twelve_hours_are_long_ones() -> None:
    """They cost twice as much as those of thirty minutes."""
    answer = recorded("openai/success")
    parts = answer["body"]["usage"]["input_tokens_details"]
    parts["cache_write_tokens_details"] = {"ttl_30m_tokens": 400, "ttl_12h_tokens": 1500}

    (usage,) = wire_of("openai/success").said(answer["body"], {}).usages

    assert (400, 1500) == (usage.cache_write, usage.cache_write_long)


def test_writes_that_are_not_split_are_what_was_asked_for() -> None:
    """Claude's answers need not say how long a write lives."""
    row = PROFILES["anthropic-messages"].model_copy(update={"cache_ttl": "1h"})
    body = recorded("anthropic/success_no_split")["body"]

    (usage,) = wire_for(row, model="claude-opus-5", session_id=SESSION).said(body, {}).usages

    assert (0, 2580) == (usage.cache_write, usage.cache_write_long)


def test_compaction_is_a_run_of_its_own() -> None:
    """Whether long-context rates apply is decided for each run by its own input."""
    said = said_of("anthropic/success_compaction")

    compaction, message = said.usages
    assert Usage(input=2000, cached_input=148_500, output=1800, reasoning=0) == compaction
    assert Usage(input=300, cache_write=4200, output=350, reasoning=120) == message


def test_fireworks_may_count_cached_tokens_in_a_header() -> None:
    """The body leaves it out now and then, and an uncached price would be charged for it."""
    answer = recorded("fireworks/success")
    del answer["body"]["usage"]["prompt_tokens_details"]

    (usage,) = wire_of("fireworks/success").said(answer["body"], answer["headers"]).usages

    assert (518, 1792) == (usage.input, usage.cached_input)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cost": 0.018875}, Decimal("0.018875")),
        ({"cost": 0}, Decimal(0)),
        ({"cost": None}, None),
        ({"cost": "0.01"}, None),
        ({"cost": True}, None),
        ({"cost": -0.5}, None),
        (
            {"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}},
            Decimal("0.021"),
        ),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, None),
    ],
)
def test_what_openrouter_charged_is_the_cost(change: dict[str, Any], expected: Decimal | None) -> None:
    """With the operator's own key the fee alone is not the cost: what is paid upstream is added, or it is unknown."""
    answer = recorded("openrouter/success")
    answer["body"]["usage"].update(change)

    assert expected == wire_of("openrouter/success").said(answer["body"], {}).reported_cost_usd


_WIRES: Final = {
    folder: wire_for(PROFILES[name], model="m", session_id=SESSION) for folder, name in PROFILE_OF_FOLDER.items()
}
_COUNT: Final = st.integers(0, 2_000_000)


@settings(max_examples=200, deadline=None)
@given(uncached=_COUNT, cached=_COUNT, short=_COUNT, long=_COUNT, output=_COUNT, share=st.integers(0, 100))
def test_no_token_is_counted_twice(uncached: int, cached: int, short: int, long: int, output: int, share: int) -> None:
    """Whatever a family includes in what, the buckets are the tokens that there were."""
    thought = output * share // 100
    expected = Usage(
        input=uncached, cached_input=cached, cache_write=short, cache_write_long=long, output=output, reasoning=thought
    )
    openai = {
        "input_tokens": uncached + cached + short + long,
        "input_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": short + long,
            "cache_write_tokens_details": {"ttl_30m_tokens": short, "ttl_12h_tokens": long},
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": thought},
    }
    anthropic = {
        "input_tokens": uncached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": short + long,
        "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long},
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": thought},
    }
    chat = {
        "prompt_tokens": uncached + cached,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens": output,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    bedrock = {
        "inputTokens": uncached,
        "cacheReadInputTokens": cached,
        "cacheWriteInputTokens": short + long,
        "cacheDetails": [{"ttl": "5m", "inputTokens": short}, {"ttl": "1h", "inputTokens": long}],
        "outputTokens": output,
    }
    without_writes = {"cache_write": 0, "cache_write_long": 0}

    def read(folder: str, usage: dict[str, Any]) -> tuple[Usage, ...]:
        return _WIRES[folder].said({"usage": usage}, {}).usages

    assert (expected,) == read("openai", openai) == read("openrouter", openai) == read("anthropic", anthropic)
    assert (expected.model_copy(update=without_writes),) == read("fireworks", chat) == read("mantle", chat)
    assert (expected.model_copy(update={"reasoning": None}),) == read("bedrock", bedrock)


# The fields that the readers look for, and values that do not belong there.
_FIELDS: Final = st.sampled_from(["output", "content", "choices", "message", "usage", "type"]) | st.sampled_from(
    ["text", "tool_use", "toolUse", "tool_calls", "function", "input", "arguments", "stop_reason", "stopReason"]
)
_SCALARS: Final = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3) | _FIELDS
_JSON: Final = st.recursive(
    _SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_FIELDS, below, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(body=st.dictionaries(_FIELDS, _JSON))
def test_no_answer_makes_the_reader_fail(body: dict[str, Any]) -> None:
    """A lying answer is a malformed one; it never ends a rollout by an exception of ours."""
    assert [None] * len(_WIRES) == [wire.said(body, {}).arguments for wire in _WIRES.values()]


def nested(depth: int) -> dict[str, Any]:
    """An object in an object, and so on."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"actions": value}
    return value


def expected_usage(table: dict[str, int | None]) -> Usage:
    """The case table's names for our buckets."""
    return Usage(
        input=table["input_uncached"],
        cached_input=table["cache_read"],
        cache_write=table["cache_write_short"],
        cache_write_long=table["cache_write_long"],
        output=table["output"],
        reasoning=table["reasoning"],
    )


def total(usages: tuple[Usage, ...]) -> Usage:
    """All runs of one answer."""
    whole = Usage()
    for usage in usages:
        whole = whole.plus(usage)
    return whole


def cost_by_table(said: Said, case: dict[str, Any]) -> Decimal | None:
    """What the answer cost: reported, or by the case table's own prices."""
    if "price" not in case:
        return said.reported_cost_usd
    raw = json.loads((WIRE / "prices.json").read_text(), parse_float=Decimal)["models"][case["price"]]
    row = PriceRow.model_validate(raw)
    return sum((cost_of(usage, row) for usage in said.usages), Decimal(0))
