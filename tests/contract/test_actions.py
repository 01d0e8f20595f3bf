"""The action union: what a model may ask for, and what it is told when it asks for something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.actions import (
    ACTION_TYPES,
    Click,
    Finish,
    InvalidActions,
    Wait,
    action_to_json,
    digest_of,
    is_typable,
    parse_action_batch,
    tool_schema,
)

CLICK: dict[str, Any] = {"type": "click", "x": 1, "y": 2, "button": "left", "clicks": 1, "modifiers": []}
VALID: list[dict[str, Any]] = [
    {"type": "move", "x": 0, "y": 0},
    {"type": "move", "x": 1919, "y": 1079},
    CLICK,
    {**CLICK, "button": "middle", "clicks": 3, "modifiers": ["shift", "ctrl", "alt"]},
    {"type": "drag", "path": [[0, 0], [1919, 1079], [5, 5]], "button": "right", "modifiers": ["ctrl"]},
    {"type": "scroll", "x": 5, "y": 5, "dx": 0, "dy": -3, "modifiers": []},
    {"type": "type", "text": "line 0,0\n\t50.5 Ø ± ° € я 漢"},
    {"type": "type", "text": ""},
    {"type": "keypress", "keys": ["ctrl", "s"]},
    {"type": "keypress", "keys": ["f12"]},
    {"type": "wait", "seconds": 0},
    {"type": "wait", "seconds": 30.0},
    {"type": "finish", "status": "infeasible", "summary": ""},
]
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"type": "move", "x": 1920, "y": 0}, "less than 1920"),
    ({"type": "move", "x": 0, "y": 1080}, "less than 1080"),
    ({"type": "move", "x": -1, "y": 0}, "greater than or equal to 0"),
    ({"type": "move", "x": 1.5, "y": 0}, "valid integer"),
    ({"type": "move", "x": "5", "y": 0}, "valid integer"),
    ({"type": "move", "x": True, "y": 0}, "valid integer"),
    ({"type": "move", "x": 10**30, "y": 0}, "less than 1920"),
    ({"type": "move", "x": 0}, "Field required"),
    ({"type": "move", "x": 0, "y": 0, "z": 0}, "Extra inputs"),
    ({"type": "jump"}, "does not match any of the expected tags"),
    ({"x": 0, "y": 0}, "Unable to extract tag"),
    ({**CLICK, "clicks": 4}, "Input should be 1, 2 or 3"),
    ({**CLICK, "button": "back"}, "Input should be"),
    ({**CLICK, "modifiers": ["super"]}, "Input should be"),
    ({**CLICK, "modifiers": ["ctrl", "ctrl"]}, "twice"),
    ({"type": "drag", "path": [[0, 0]], "button": "left", "modifiers": []}, "at least 2 items"),
    ({"type": "drag", "path": [[0, 0], [1920, 0]], "button": "left", "modifiers": []}, "outside the 1920x1080 screen"),
    ({"type": "drag", "path": [[0, 0, 0], [1, 1]], "button": "left", "modifiers": []}, "at most 2 items"),
    ({"type": "drag", "path": [[0, 0]] * 10_001, "button": "left", "modifiers": []}, "at most 10000"),
    ({"type": "scroll", "x": 5, "y": 5, "dx": 0, "dy": 101, "modifiers": []}, "less than or equal to 100"),
    ({"type": "type", "text": "a\x00b"}, "U+0000"),
    ({"type": "type", "text": "\x1b[A"}, "U+001B"),
    ({"type": "type", "text": "\ufffe"}, "U+FFFE"),
    ({"type": "type", "text": "x" * 20_001}, "at most 20000 characters"),
    ({"type": "keypress", "keys": []}, "at least 1 item"),
    ({"type": "keypress", "keys": ["control"]}, "unknown key 'control'"),
    ({"type": "keypress", "keys": ["ctrl", "ctrl"]}, "twice"),
    ({"type": "keypress", "keys": ["\n"]}, "unknown key"),
    ({"type": "wait", "seconds": 30.5}, "less than or equal to 30"),
    ({"type": "wait", "seconds": -1}, "greater than or equal to 0"),
    ({"type": "wait", "seconds": float("nan")}, "finite"),
    ({"type": "finish", "status": "perfect", "summary": ""}, "Input should be"),
]
FIELD_NAMES = st.sampled_from(["actions", "type", "x", "y", "text", "keys"]) | st.text()
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(FIELD_NAMES, inner),
)


@pytest.mark.parametrize("action", VALID, ids=lambda action: action["type"])
def test_a_valid_action_comes_back_as_it_was_given(action: dict[str, Any]) -> None:
    """The receipt and the trace hold what the model said, not our reading of it."""
    parsed = parse_action_batch({"actions": [action]}, budget=1)

    assert isinstance(parsed, tuple), parsed
    assert action == action_to_json(parsed[0])


@pytest.mark.parametrize(("action", "why"), INVALID)
def test_an_invalid_action_is_named_with_its_reason(action: dict[str, Any], why: str) -> None:
    """The reason is the model's next observation, so it must be able to act on it."""
    parsed = parse_action_batch({"actions": [CLICK, action]}, budget=10)

    assert isinstance(parsed, InvalidActions), parsed
    assert why in parsed.reason
    assert "actions[1]" in parsed.reason


@pytest.mark.parametrize(
    "action",
    [
        {"type": "q" * 100_000},
        {**CLICK, "q" * 100_000: 1},
        {"type": "keypress", "keys": ["q" * 100_000]},
        {"type": "drag", "path": [[0, 0], [10**4_000, 0]], "button": "left", "modifiers": []},
    ],
)
def test_a_reason_quotes_no_more_than_a_line(action: dict[str, Any]) -> None:
    """It goes to the model, into the trace and into logs, and a model may have written megabytes."""
    parsed = parse_action_batch({"actions": [action] * 5}, budget=10)

    assert isinstance(parsed, InvalidActions), parsed
    assert len(parsed.reason) <= 2_000


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (None, 'the single field "actions"'),
        ([], 'the single field "actions"'),
        ("click", 'the single field "actions"'),
        ({}, 'the single field "actions"'),
        ({"actions": [CLICK], "thought": ""}, 'the single field "actions"'),
        ({"actions": {}}, "valid list"),
        ({"actions": []}, "the list is empty"),
        ({"actions": [CLICK, CLICK, CLICK]}, "3 actions do not fit the 2 left"),
        ({"actions": [{"type": "finish", "status": "done", "summary": ""}, CLICK]}, "only be the last action"),
    ],
)
def test_a_batch_is_checked_whole(arguments: Any, why: str) -> None:
    """Nothing happens until all of it is valid."""
    parsed = parse_action_batch(arguments, budget=2)

    assert isinstance(parsed, InvalidActions), parsed
    assert why in parsed.reason


def test_a_batch_may_use_the_budget_up() -> None:
    """The limit is what is left, not one less."""
    assert isinstance(parse_action_batch({"actions": [CLICK] * 7}, budget=7), tuple)


@given(ANYTHING)
@settings(max_examples=60, deadline=None)
def test_whatever_a_model_says_is_an_answer_or_a_reason(arguments: Any) -> None:
    """Never an exception: the pilot plays on."""
    assert isinstance(parse_action_batch({"actions": arguments}, budget=5), tuple | InvalidActions)
    assert isinstance(parse_action_batch(arguments, budget=5), tuple | InvalidActions)


def test_equal_lists_have_equal_digests_and_others_do_not() -> None:
    """Both ends of a tunnel compute it, from objects and from JSON."""
    click = Click(x=1, y=2, button="left", clicks=1, modifiers=[])
    reordered = dict(reversed(CLICK.items()))
    parsed = parse_action_batch({"actions": [reordered]}, budget=1)

    assert isinstance(parsed, tuple)
    assert digest_of([click]) == digest_of(parsed)
    assert digest_of([click]) != digest_of([click, click])
    assert digest_of([Wait(seconds=1)]) == digest_of([Wait(seconds=1.0)])
    assert "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945" == digest_of([])


def test_typable_is_what_a_keyboard_can_have_a_key_for() -> None:
    """Surrogates and controls have no keysym; newline is Enter."""
    assert [True] * 6 == [is_typable(char) for char in "a\n\tØ漢\U0001f600"]
    assert [False] * 6 == [is_typable(char) for char in "\x00\x1b\x7f\x85\ud800\uffff"]


def test_the_tool_schema_is_strict_at_every_level() -> None:
    """Every field required, no unknown field, the discriminator first, and no keyword that a strict mode refuses."""
    schema = tool_schema()
    variants = schema["properties"]["actions"]["items"]["anyOf"]

    assert ["actions"] == schema["required"]
    assert schema["additionalProperties"] is False
    assert len(ACTION_TYPES) == len(variants)
    for variant in variants:
        assert "type" == next(iter(variant["properties"]))
        assert list(variant["properties"]) == variant["required"]
        assert variant["additionalProperties"] is False
    allowed = {"type", "enum", "items", "properties", "required", "additionalProperties", "anyOf", "description"}
    assert {"minItems"} == _keywords(schema) - allowed


def test_an_empty_list_is_outside_the_tool_schema() -> None:
    """Strict modes take `minItems` of 1 and no other; it keeps a model from wasting a turn on an empty list."""
    schema = tool_schema()
    shapes = [shape["properties"] for shape in schema["properties"]["actions"]["items"]["anyOf"]]
    variants = {shape["type"]["enum"][0]: shape for shape in shapes}

    assert 1 == schema["properties"]["actions"]["minItems"]
    assert 1 == variants["keypress"]["keys"]["minItems"]
    assert 1 == variants["drag"]["path"]["minItems"]
    assert "minItems" not in variants["click"]["modifiers"]


def test_the_tool_schema_has_one_union_and_no_optional_field() -> None:
    """Anthropic takes 16 parameters with union types over all strict tools of a request; ours has the actions alone."""
    schema = json.dumps(tool_schema())

    assert 1 == schema.count('"anyOf":')
    assert 0 == schema.count('"type": [')


def _keywords(schema: dict[str, Any]) -> set[str]:
    found = set(schema)
    for child in schema.get("properties", {}).values():
        found |= _keywords(child)
    for child in schema.get("anyOf", []):
        found |= _keywords(child)
    if "items" in schema:
        found |= _keywords(schema["items"])
    return found


def test_finish_says_whether_it_can_be_done() -> None:
    """A model that calls a task infeasible has finished it all the same."""
    assert Finish(status="done", summary="") != Finish(status="infeasible", summary="")
