"""The Responses API of OpenAI, OpenRouter and Mantle: what a request may say, and what an answer looks like."""

from __future__ import annotations

import hashlib
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

STRUCTURED_BETA: Final = "structured-outputs-2025-11-13"
SESSION_CHARS_MAX: Final = 256
OPTIONAL: Final = frozenset(
    {"instructions", "tools", "tool_choice", "parallel_tool_calls", "store", "include", "reasoning", "text", "metadata"}
    | {"max_output_tokens", "prompt_cache_key", "service_tier", "temperature", "top_p", "truncation", "user", "stream"}
    | {"previous_response_id", "prompt_cache_options", "safety_identifier", "context_management"}
)
OPENROUTER: Final = frozenset({"session_id", "provider", "cache_control", "debug"})
DETAILS: Final = frozenset({"low", "high", "auto", "original"})


def read(request: Request, body: dict[str, Any], images: ImageReader) -> Asked:
    """Check a request. Raises `Refusal`."""
    provider = request.server
    optional = OPTIONAL | OPENROUTER if provider == "openrouter" else OPTIONAL
    fields(body, "body", required=frozenset({"model", "input"}), optional=optional)
    sold = _sold(provider, body["model"])
    _check_settings(provider, sold, body)
    tool, is_forced, is_strict = _check_tool(request, sold, body)
    prompt, seen = Prompt(), list[ImageFacts]()
    prompt.json({"tools": body.get("tools"), "model": body["model"]})
    prompt.text(str(body.get("instructions") or ""))
    _read_items(provider, non_empty_list(body["input"], "input"), prompt, seen, images)
    if body.get("cache_control") is not None:
        prompt.mark(body["cache_control"].get("ttl", "5m"))
    key = body.get("session_id") if provider == "openrouter" else body.get("prompt_cache_key")
    return Asked(
        provider=provider,
        api="responses",
        model=body["model"],
        session=str(key or (seen[0].sha256 if seen else "")),
        prompt=prompt,
        images=seen,
        tool=tool,
        is_forced=is_forced,
        output_tokens_max=body.get("max_output_tokens") or sold.output_tokens_max,
        facts={"is_strict": is_strict, "is_sticky": provider != "openrouter" or key is not None, "body": body},
    )


def _sold(provider: str, model: Any) -> Sold:
    sold = SOLD.get((provider, model))
    if sold is None:
        raise Refusal(404, f"The model {model!r} does not exist.", code="model_not_found")
    if "responses" not in sold.speaks:
        raise invalid(f"model `{model}` does not support the Responses API")
    return sold


def _check_settings(provider: str, sold: Sold, body: dict[str, Any]) -> None:
    if body.get("stream"):
        raise invalid("stream: this server answers in one piece")
    most = body.get("max_output_tokens", 16)
    if not isinstance(most, int) or not 16 <= most <= sold.output_tokens_max:
        raise invalid(f"max_output_tokens: {most!r} is not between 16 and {sold.output_tokens_max}")
    if provider == "openrouter":
        if body.get("store") not in (None, False):
            raise invalid("store: only false is supported")
        if body.get("previous_response_id") is not None:
            raise invalid("previous_response_id is not supported.")
        if not isinstance(body.get("session_id", ""), str) or len(body.get("session_id", "")) > SESSION_CHARS_MAX:
            raise invalid(f"session_id: at most {SESSION_CHARS_MAX} characters")
        mark = body.get("cache_control")
        if mark is not None:
            fields(mark, "cache_control", required=frozenset({"type"}), optional=frozenset({"ttl"}))
            one_of(mark.get("ttl", "5m"), "cache_control.ttl", frozenset({"5m", "1h"}))
    elif body.get("previous_response_id") is not None and body.get("store") is False:
        raise Refusal(404, "The previous response was not found.", code="previous_response_not_found")
    if len(str(body.get("prompt_cache_key", ""))) > SESSION_CHARS_MAX:
        raise invalid("prompt_cache_key: too long")


def _check_tool(request: Request, sold: Sold, body: dict[str, Any]) -> tuple[str, bool, bool]:
    tools = non_empty_list(body.get("tools"), "tools")
    for tool in tools:
        required = frozenset({"type", "name", "parameters", "strict"})
        fields(tool, "tools[0]", required=required, optional=frozenset({"description"}))
        one_of(tool["type"], "tools[0].type", frozenset({"function"}))
    is_strict = tools[0]["strict"] is True
    if is_strict and sold.provider == "mantle":
        raise invalid("tools[0].strict: not supported for this model")
    if is_strict:
        check_strict(tools[0]["parameters"], "tools[0].parameters")
    if is_strict and sold.model.startswith("anthropic/"):
        # Without the header the route drops `strict` and says nothing.
        is_strict = STRUCTURED_BETA in request.headers.get("x-anthropic-beta", "")
    choice = body.get("tool_choice", "auto")
    is_forced = choice == "required" or isinstance(choice, dict)
    if isinstance(choice, dict):
        fields(choice, "tool_choice", required=frozenset({"type", "name"}))
        if choice["name"] not in {tool["name"] for tool in tools}:
            raise invalid(f"tool_choice: there is no tool {choice['name']!r}")
    if is_forced and not sold.takes_forced_tool:
        raise invalid("tool_choice forces tool use, which this model does not support.")
    return str(tools[0]["name"]), is_forced, is_strict


def _read_items(provider: str, items: list[Any], prompt: Prompt, seen: list[ImageFacts], images: ImageReader) -> None:
    called: list[str] = []
    open_calls: list[str] = []
    after_reasoning = False
    for number, item in enumerate(items):
        where = f"input[{number}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if after_reasoning and kind != "function_call":
            raise invalid(f"{where}: the reasoning item before it was provided without its required following item")
        after_reasoning = kind == "reasoning"
        match kind:
            case "message":
                optional = frozenset({"type", "id", "status"})
                fields(item, where, required=frozenset({"role", "content"}), optional=optional)
                role = one_of(item["role"], f"{where}.role", frozenset({"user", "assistant", "developer", "system"}))
                if open_calls:
                    raise invalid(f"No tool output found for function call {open_calls[0]}.")
                prompt.add(("role", role), 4)
                _read_parts(provider, item["content"], where, prompt, seen, images)
            case "function_call":
                optional = frozenset({"id", "status"})
                fields(item, where, required=frozenset({"type", "call_id", "name", "arguments"}), optional=optional)
                _json_object(item["arguments"], f"{where}.arguments")
                called.append(item["call_id"])
                open_calls.append(item["call_id"])
                prompt.json(item)
            case "function_call_output":
                optional = frozenset({"id", "status"})
                fields(item, where, required=frozenset({"type", "call_id", "output"}), optional=optional)
                if item["call_id"] not in open_calls:
                    raise invalid(f"No tool call found for function call output with call_id {item['call_id']}.")
                open_calls.remove(item["call_id"])
                prompt.add(("output", item["call_id"]), 4)
                if isinstance(item["output"], str):
                    prompt.text(item["output"])
                else:
                    _read_parts(provider, item["output"], where, prompt, seen, images)
            case "reasoning":
                optional = frozenset({"encrypted_content", "status", "content"})
                fields(item, where, required=frozenset({"type", "id", "summary"}), optional=optional)
                prompt.json(item)
            case _:
                raise invalid(f"{where}: unknown item type {kind!r}")
    if open_calls or after_reasoning:
        raise invalid(f"No tool output found for function call {open_calls[0] if open_calls else '?'}.")
    if not isinstance(items[-1], dict) or items[-1].get("role") not in ("user", "developer"):
        raise invalid("input: the last item has to be a user message")


def _read_parts(
    provider: str, parts: Any, where: str, prompt: Prompt, seen: list[ImageFacts], images: ImageReader
) -> None:
    if isinstance(parts, str):
        prompt.text(parts)
        return
    for number, part in enumerate(non_empty_list(parts, f"{where}.content")):
        place = f"{where}.content[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text"):
            optional = frozenset({"prompt_cache_breakpoint", "annotations", "logprobs"})
            fields(part, place, required=frozenset({"type", "text"}), optional=optional)
            prompt.text(part["text"])
        elif kind == "input_image":
            fields(part, place, required=frozenset({"type", "image_url"}), optional=frozenset({"detail"}))
            one_of(part.get("detail", "auto"), f"{place}.detail", DETAILS)
            image = images.read_url(provider, part["image_url"], place)
            seen.append(image)
            prompt.image(provider, image)
        else:
            raise invalid(f"{place}: unknown content type {kind!r}")


def _json_object(text: Any, where: str) -> None:
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise invalid(f"{where}: not JSON") from error
    if not isinstance(value, dict):
        raise invalid(f"{where}: not a JSON object")


def body_of(asked: Asked, play: Play, used: Used, *, name: str, cost_usd: str | None) -> dict[str, Any]:
    """A whole answer. `name` is unique for it."""
    asked_body = asked.facts["body"]
    is_cut = play.shape == "cut"
    reason = {"cut": "max_output_tokens", "filtered": "content_filter"}.get(play.shape)
    body: dict[str, Any] = {
        "id": f"resp_{name}" if asked.provider != "openrouter" else f"gen-1790000000-{name}",
        "object": "response",
        "created_at": 1790000000,
        "completed_at": None if is_cut else 1790000004,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": asked_body.get("instructions"),
        "max_output_tokens": asked.output_tokens_max,
        "model": asked.model,
        "output": _output(asked, play, name),
        "parallel_tool_calls": asked_body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "store": asked_body.get("store", True),
        "tool_choice": asked_body.get("tool_choice", "auto"),
        "tools": asked_body.get("tools", []),
        "usage": _usage(asked, used),
        "metadata": {},
    }
    if asked.provider == "openrouter" and cost_usd is not None:
        body["usage"] |= {"cost": float(cost_usd), "is_byok": False, "cost_details": {"upstream_inference_cost": None}}
    return body


def _output(asked: Asked, play: Play, name: str) -> list[dict[str, Any]]:
    def call(suffix: str) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": f"fc_{name}{suffix}",
            "call_id": f"call_{name}{suffix}",
            "name": asked.tool,
            "arguments": play.arguments_text,
            "status": "incomplete" if play.shape == "cut" else "completed",
        }

    def message(part: dict[str, Any]) -> dict[str, Any]:
        return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": [part]}

    output: list[dict[str, Any]] = []
    if play.thinking and play.shape != "empty":
        sealed = hashlib.sha256(f"{name}{play.thinking}".encode()).hexdigest()
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "encrypted_content": f"gAAA{sealed}"})
    if play.text:
        output.append(message({"type": "output_text", "text": play.text, "annotations": []}))
    match play.shape:
        case "call" | "cut" | "broken":
            output.append(call(""))
        case "two_calls":
            output += [call(""), call("b")]
        case "refusal":
            output.append(message({"type": "refusal", "refusal": "I cannot help with that."}))
        case _:
            pass
    return output


def _usage(asked: Asked, used: Used) -> dict[str, Any]:
    sold = SOLD[asked.provider, asked.model]
    details: dict[str, Any] = {"cached_tokens": used.read}
    if sold.bills_writes:
        details["cache_write_tokens"] = used.written + used.written_long
        if used.written_long or asked.provider == "openai":
            split = {"ttl_30m_tokens": used.written, "ttl_12h_tokens": used.written_long}
            details["cache_write_tokens_details"] = split
    return {
        "input_tokens": used.input_total,
        "input_tokens_details": details,
        "output_tokens": used.output,
        "output_tokens_details": {"reasoning_tokens": used.reasoning or 0},
        "total_tokens": used.input_total + used.output,
    }
