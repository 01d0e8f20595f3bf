"""Requests that a vendor refuses, each made from a recorded one by a single change."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from tests.fakes import screen_png


def _schema(case: dict[str, Any]) -> dict[str, Any]:
    tool = case["body"]["tools"][0]
    schema: dict[str, Any] = tool.get("parameters") or tool.get("input_schema") or tool["function"]["parameters"]
    return schema


def _large_image(number: int) -> dict[str, Any]:
    data = base64.b64encode(screen_png(str(number), size_bytes=1_900_000)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _duplicate_last_user(case: dict[str, Any]) -> None:
    case["body"]["messages"].append(case["body"]["messages"][-1])


# What is broken, the recorded request, what breaks it, and a part of what the vendor says.
BROKEN: list[tuple[str, str, Callable[[dict[str, Any]], Any], str]] = [
    ("an unknown field", "openai/request_first_turn.json", lambda c: c["body"].update(speed=1), "speed"),
    ("no input", "openai/request_first_turn.json", lambda c: c["body"].pop("input"), "input"),
    ("an unknown model", "openai/request_first_turn.json", lambda c: c["body"].update(model="gpt-0"), "does not exist"),
    ("a loose schema", "openai/request_first_turn.json", lambda c: _schema(c).pop("additionalProperties"), "schema"),
    ("an optional property", "fireworks/request_first_turn.json", lambda c: _schema(c)["required"].clear(), "required"),
    (
        "a bound",
        "anthropic/request_first_turn.json",
        lambda c: _schema(c)["properties"]["actions"].update(maxItems=9),
        "maxItems",
    ),
    (
        "oneOf",
        "openrouter/request_first_turn_claude.json",
        lambda c: _schema(c)["properties"]["actions"]["items"].update(oneOf=[]),
        "oneOf",
    ),
    (
        "a tool that is not there",
        "openai/request_first_turn.json",
        lambda c: c["body"]["tool_choice"].update(name="x"),
        "no tool",
    ),
    (
        "a call without its result",
        "openai/request_later_turn_append.json",
        lambda c: c["body"]["input"].pop(-2),
        "No tool output",
    ),
    (
        "a result without its call",
        "openai/request_later_turn_append.json",
        lambda c: c["body"]["input"].pop(-3),
        "reasoning item",
    ),
    (
        "a result of nothing",
        "openrouter/request_later_turn_claude.json",
        lambda c: c["body"]["input"].pop(1),
        "No tool call",
    ),
    (
        "cut arguments",
        "openrouter/request_later_turn_claude.json",
        lambda c: c["body"]["input"][1].update(arguments='{"a'),
        "not JSON",
    ),
    ("storage", "openrouter/request_first_turn_claude.json", lambda c: c["body"].update(store=True), "store"),
    (
        "a stored response",
        "openrouter/request_first_turn_claude.json",
        lambda c: c["body"].update(previous_response_id="r"),
        "previous_response_id",
    ),
    (
        "a long session",
        "openrouter/request_first_turn_claude.json",
        lambda c: c["body"].update(session_id="s" * 257),
        "session_id",
    ),
    (
        "a forced tool through a router",
        "openrouter/request_first_turn_claude.json",
        lambda c: c["body"].update(model="anthropic/claude-opus-5-5"),
        "forces tool use",
    ),
    (
        "a forced tool",
        "anthropic/request_first_turn.json",
        lambda c: c["body"].update(model="claude-fable-5-1"),
        "forces tool use",
    ),
    (
        "no version",
        "anthropic/request_first_turn.json",
        lambda c: c["headers"].pop("anthropic-version"),
        "anthropic-version",
    ),
    (
        "compaction without its header",
        "anthropic/request_first_turn.json",
        lambda c: c["headers"].pop("anthropic-beta"),
        "context_management",
    ),
    (
        "a low trigger",
        "anthropic/request_first_turn.json",
        lambda c: c["body"]["context_management"]["edits"][0]["trigger"].update(value=1000),
        "at least",
    ),
    ("no output limit", "anthropic/request_first_turn.json", lambda c: c["body"].pop("max_tokens"), "max_tokens"),
    (
        "five breakpoints",
        "anthropic/request_later_turn.json",
        lambda c: [
            block.update(cache_control={"type": "ephemeral"})
            for message in c["body"]["messages"][::2]
            for block in message["content"]
        ],
        "maximum of 4",
    ),
    (
        "a result behind the text",
        "anthropic/request_later_turn.json",
        lambda c: c["body"]["messages"][2]["content"].reverse(),
        "come first",
    ),
    (
        "a result that is missing",
        "anthropic/request_later_turn.json",
        lambda c: c["body"]["messages"][2]["content"].pop(0),
        "tool_use",
    ),
    (
        "an empty answer given back",
        "anthropic/request_later_turn.json",
        lambda c: c["body"]["messages"][1]["content"].clear(),
        "non-empty",
    ),
    ("two user messages", "anthropic/request_first_turn.json", _duplicate_last_user, "alternate"),
    (
        "thinking of another conversation",
        "anthropic/request_later_turn.json",
        lambda c: c["body"].update(model="claude-opus-5-5", tool_choice={"type": "auto"}),
        "does not match",
    ),
    (
        "thinking set for a model that always thinks",
        "anthropic/request_fable_checkpoint.json",
        lambda c: c["body"].update(thinking={"type": "disabled"}),
        "thinking",
    ),
    (
        "priority on the fast router",
        "fireworks/request_first_turn.json",
        lambda c: c["body"].update(service_tier="priority"),
        "priority",
    ),
    (
        "a small thinking budget",
        "fireworks/request_first_turn.json",
        lambda c: c["body"]["thinking"].update(budget_tokens=100),
        "budget",
    ),
    (
        "two ways to think",
        "fireworks/request_first_turn.json",
        lambda c: c["body"].update(reasoning_effort="low"),
        "together",
    ),
    (
        "webp",
        "fireworks/request_first_turn.json",
        lambda c: c["body"]["messages"][1]["content"][1]["image_url"].update(url="data:image/webp;base64,AAAA"),
        "webp",
    ),
    (
        "31 images",
        "fireworks/request_first_turn.json",
        lambda c: c["body"]["messages"][1]["content"].extend([c["body"]["messages"][1]["content"][1]] * 29),
        "Too many images",
    ),
    (
        "10 MB of images",
        "fireworks/request_first_turn.json",
        lambda c: c["body"]["messages"][1]["content"].extend(_large_image(n) for n in range(5)),
        "Total base64",
    ),
    (
        "a tool message elsewhere",
        "fireworks/request_later_turn.json",
        lambda c: c["body"]["messages"].insert(3, {"role": "user", "content": "x"}),
        "followed by tool",
    ),
    (
        "another call's result",
        "mantle/request_later_turn_chat.json",
        lambda c: c["body"]["messages"][3].update(tool_call_id="x"),
        "without a call",
    ),
    (
        "too much output",
        "mantle/request_first_turn_chat.json",
        lambda c: c["body"].update(max_tokens=20_000),
        "max_tokens",
    ),
    (
        "the wrong route",
        "mantle/request_first_turn_chat.json",
        lambda c: c.update(path="/openai/v1/chat/completions"),
        "on this route",
    ),
    (
        "Kimi on Responses",
        "mantle/request_first_turn_responses.json",
        lambda c: c["body"].update(model="moonshotai.kimi-k2.5"),
        "does not support",
    ),
    (
        "strict on Mantle Responses",
        "mantle/request_first_turn_responses.json",
        lambda c: c["body"]["tools"][0].update(strict=True),
        "strict",
    ),
    (
        "a tiny image",
        "mantle/request_first_turn_chat.json",
        lambda c: c["body"]["messages"][1]["content"][1]["image_url"].update(
            url="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        ),
        "sanitize",
    ),
    (
        "an image of the assistant",
        "bedrock/request_later_turn_append.json",
        lambda c: c["body"]["messages"][1]["content"].append(c["body"]["messages"][0]["content"][1]),
        "not allowed",
    ),
    (
        "no result on Converse",
        "bedrock/request_later_turn_append.json",
        lambda c: c["body"]["messages"][2]["content"].pop(0),
        "expected toolResult",
    ),
    (
        "21 images",
        "bedrock/request_first_turn.json",
        lambda c: c["body"]["messages"][0]["content"].extend([c["body"]["messages"][0]["content"][1]] * 19),
        "too many images",
    ),
    (
        "strict on Converse",
        "bedrock/request_first_turn.json",
        lambda c: c["body"]["toolConfig"]["tools"][0]["toolSpec"].update(strict=True),
        "strict",
    ),
]
