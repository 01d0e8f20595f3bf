"""Chat Completions as Fireworks and Mantle speak it: what a request may say, and what an answer looks like."""

from __future__ import annotations

from typing import Any, Final

import orjson

from tests.providers.accounts import Used
from tests.providers.http import Request
from tests.providers.images import ImageFacts, ImageReader
from tests.providers.models import SOLD, Sold
from tests.providers.players import Play
from tests.providers.prompt import Asked, Prompt
from tests.providers.refusals import Refusal, fields, invalid, non_empty_list, one_of
from tests.providers.strict_schema import check_strict

COMMON: Final = frozenset(
    {"tools", "tool_choice", "parallel_tool_calls", "max_tokens", "stream", "temperature", "top_p", "reasoning_effort"}
)
EXTRA: Final = {
    "fireworks": frozenset(
        {"thinking", "prompt_cache_key", "service_tier", "reasoning_history", "perf_metrics_in_response", "user"}
        | {"context_length_exceeded_behavior", "response_format", "prompt_cache_isolation_key"}
    ),
    "mantle": frozenset({"service_tier", "max_completion_tokens"}),
}
IMAGE_BASE64_BYTES_MAX: Final = 10_000_000
THINKING_TOKENS_MIN: Final = 1024
AFFINITY: Final = ("x-multi-turn-session-id", "x-session-affinity")


def read(request: Request, body: dict[str, Any], images: ImageReader) -> Asked:
    """Check a request. Raises `Refusal`."""
    provider = request.server
    optional = COMMON | EXTRA[provider]
    fields(body, "body", required=frozenset({"model", "messages"}), optional=optional)
    sold = _sold(provider, body["model"])
    _check_settings(provider, sold, body)
    tool, is_forced = _check_tool(body)
    prompt, seen = Prompt(), list[ImageFacts]()
    prompt.json({"tools": body.get("tools"), "model": body["model"]})
    _read_messages(provider, non_empty_list(body["messages"], "messages"), prompt, seen, images)
    if provider == "fireworks" and sum(image.base64_bytes for image in seen) > IMAGE_BASE64_BYTES_MAX:
        raise invalid("Total base64 image size is over the limit.")
    sticky = next((request.headers[name] for name in AFFINITY if name in request.headers), None)
    return Asked(
        provider=provider,
        api="chat",
        model=body["model"],
        session=str(sticky or (seen[0].sha256 if seen else "")),
        prompt=prompt,
        images=seen,
        tool=tool,
        is_forced=is_forced,
        output_tokens_max=body.get("max_tokens") or 2048,
        facts={"is_sticky": provider == "mantle" or sticky is not None},
    )


def _sold(provider: str, model: Any) -> Sold:
    sold = SOLD.get((provider, model))
    if sold is None:
        raise Refusal(404, f"Model not found: {model!r}", code="model_not_found")
    if "chat" not in sold.speaks:
        raise invalid(f"model `{model}` does not support the Chat Completions API")
    return sold


def _check_settings(provider: str, sold: Sold, body: dict[str, Any]) -> None:
    if body.get("stream"):
        raise invalid("stream: this server answers in one piece")
    most = body.get("max_tokens", 1)
    if not isinstance(most, int) or not 1 <= most <= sold.output_tokens_max:
        raise invalid(f"max_tokens: {most!r} is more than {sold.output_tokens_max}")
    thinking = body.get("thinking")
    if thinking is not None:
        fields(thinking, "thinking", required=frozenset({"type"}), optional=frozenset({"budget_tokens"}))
        if thinking["type"] == "enabled" and thinking.get("budget_tokens", THINKING_TOKENS_MIN) < THINKING_TOKENS_MIN:
            raise invalid(f"thinking.budget_tokens: at least {THINKING_TOKENS_MIN}")
        if "reasoning_effort" in body:
            raise invalid("thinking and reasoning_effort cannot be used together")
    if provider == "fireworks":
        if body.get("service_tier") == "priority" and "/routers/" in sold.model:
            raise invalid("service_tier: priority is not available on a Fast router")
        if "response_format" in body and "tools" in body:
            raise invalid("tools and response_format cannot be combined")


def _check_tool(body: dict[str, Any]) -> tuple[str, bool]:
    names = []
    for number, tool in enumerate(non_empty_list(body.get("tools"), "tools")):
        where = f"tools[{number}]"
        fields(tool, where, required=frozenset({"type", "function"}))
        optional = frozenset({"description", "strict"})
        function = fields(
            tool["function"], f"{where}.function", required=frozenset({"name", "parameters"}), optional=optional
        )
        if function.get("strict"):
            check_strict(function["parameters"], f"{where}.function.parameters")
        names.append(str(function["name"]))
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        fields(choice, "tool_choice", required=frozenset({"type", "function"}))
        name = fields(choice["function"], "tool_choice.function", required=frozenset({"name"}))["name"]
        if name not in names:
            raise invalid(f"tool_choice: there is no tool {name!r}")
    else:
        one_of(choice, "tool_choice", frozenset({"auto", "none", "required", "any"}))
    return names[0], isinstance(choice, dict) or choice in ("required", "any")


def _read_messages(
    provider: str, messages: list[Any], prompt: Prompt, seen: list[ImageFacts], images: ImageReader
) -> None:
    waiting: list[str] = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        if waiting and role != "tool":
            raise invalid(f"{where}: an assistant message with tool calls must be followed by tool messages")
        prompt.add(("role", role), 4)
        match role:
            case "system":
                fields(message, where, required=frozenset({"role", "content"}))
                if number:
                    raise invalid(f"{where}: the system message has to be the first")
                prompt.text(message["content"])
            case "user":
                fields(message, where, required=frozenset({"role", "content"}))
                _read_parts(provider, message["content"], where, prompt, seen, images)
            case "assistant":
                waiting = _read_assistant(provider, message, where)
                prompt.json(message)
            case "tool":
                fields(message, where, required=frozenset({"role", "tool_call_id", "content"}))
                if not waiting or message["tool_call_id"] != waiting.pop(0):
                    raise invalid(f"{where}: a tool message without a call before it")
                prompt.json(message)
            case _:
                raise invalid(f"{where}: unknown role {role!r}")
    if waiting or messages[-1]["role"] != "user":
        raise invalid("messages: the last message has to be the user's")


def _read_assistant(provider: str, message: dict[str, Any], where: str) -> list[str]:
    optional = {"content", "tool_calls", "reasoning_content"} | ({"reasoning"} if provider == "mantle" else set())
    fields(message, where, required=frozenset({"role"}), optional=frozenset(optional))
    calls = message.get("tool_calls") or []
    if not calls and not message.get("content"):
        raise invalid(f"{where}: an empty assistant message")
    for call in calls:
        fields(call, f"{where}.tool_calls", required=frozenset({"id", "type", "function"}))
        required = frozenset({"name", "arguments"})
        function = fields(call["function"], f"{where}.tool_calls.function", required=required)
        try:
            parsed = orjson.loads(function["arguments"])
        except (orjson.JSONDecodeError, TypeError) as error:
            raise invalid(f"{where}: the chat template could not be rendered: arguments are not JSON") from error
        if not isinstance(parsed, dict):
            raise invalid(f"{where}: the chat template could not be rendered: arguments are not an object")
    return [call["id"] for call in calls]


def _read_parts(
    provider: str, parts: Any, where: str, prompt: Prompt, seen: list[ImageFacts], images: ImageReader
) -> None:
    if isinstance(parts, str):
        prompt.text(parts)
        return
    for number, part in enumerate(non_empty_list(parts, f"{where}.content")):
        place = f"{where}.content[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            fields(part, place, required=frozenset({"type", "text"}))
            prompt.text(part["text"])
        elif kind == "image_url":
            fields(part, place, required=frozenset({"type", "image_url"}))
            required, optional = frozenset({"url"}), frozenset({"detail"})
            url = fields(part["image_url"], place, required=required, optional=optional)["url"]
            image = images.read_url(provider, url, place)
            seen.append(image)
            prompt.image(provider, image)
        else:
            raise invalid(f"{place}: unknown content type {kind!r}")


def body_of(asked: Asked, play: Play, used: Used, *, name: str, number: int) -> dict[str, Any]:
    """A whole answer. Call ids are Kimi's: Fireworks counts them, Mantle gives the same one every time."""

    def call(place: int) -> dict[str, Any]:
        arguments = play.arguments_text
        return {
            "id": f"functions.{asked.tool}:{number + place if asked.provider == 'fireworks' else place}",
            "type": "function",
            "function": {
                "name": asked.tool,
                # A blank in front is usual there.
                "arguments": f" {arguments}" if asked.provider == "mantle" else arguments,
            },
        }

    message: dict[str, Any] = {"role": "assistant", "content": play.text or None}
    if play.thinking:
        message["reasoning" if asked.provider == "mantle" else "reasoning_content"] = play.thinking
    finish = "stop"
    match play.shape:
        case "call" | "cut" | "broken":
            message["tool_calls"] = [call(0)]
            finish = "length" if play.shape == "cut" else "tool_calls"
        case "two_calls":
            message["tool_calls"] = [call(0), call(1)]
            finish = "tool_calls"
        case "refusal":
            message["content"] = "I cannot help with that."
            message["refusal"] = "I cannot help with that."
        case "filtered":
            finish = "content_filter"
        case _:
            pass
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": 1790000000,
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": used.input_total,
            "completion_tokens": used.output,
            "total_tokens": used.input_total + used.output,
            "prompt_tokens_details": {"cached_tokens": used.read},
        },
    }
