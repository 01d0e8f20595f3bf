"""Bedrock's Converse API: what a request may say, and what an answer looks like."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from tests.providers.accounts import Used
from tests.providers.http import Request
from tests.providers.images import ImageFacts, ImageReader
from tests.providers.models import SOLD
from tests.providers.players import Play
from tests.providers.prompt import Asked, Prompt
from tests.providers.refusals import Refusal, fields, invalid, non_empty_list, one_of

OPTIONAL: Final = frozenset(
    {"system", "toolConfig", "inferenceConfig", "additionalModelRequestFields", "additionalModelResponseFieldPaths"}
    | {"guardrailConfig", "performanceConfig", "promptVariables", "requestMetadata", "serviceTier"}
)
SETTINGS: Final = frozenset({"maxTokens", "temperature", "topP", "stopSequences"})


def read(request: Request, body: dict[str, Any], images: ImageReader) -> Asked:
    """Check a request. Raises `Refusal`."""
    model = unquote(request.path.removeprefix("/model/").removesuffix("/converse"))
    sold = SOLD.get(("bedrock", model))
    if sold is None:
        raise Refusal(404, "Model not found.", code="ResourceNotFoundException")
    fields(body, "body", required=frozenset({"messages"}), optional=OPTIONAL)
    settings = fields(body.get("inferenceConfig", {}), "inferenceConfig", optional=SETTINGS)
    most = settings.get("maxTokens", sold.output_tokens_max)
    if not isinstance(most, int) or not 1 <= most <= sold.output_tokens_max:
        raise invalid(f"inferenceConfig.maxTokens: {most!r} is more than {sold.output_tokens_max}")
    tool, is_forced = _check_tool(body.get("toolConfig"), takes_forced=sold.takes_forced_tool)
    prompt, seen = Prompt(), list[ImageFacts]()
    prompt.json(body.get("toolConfig"))
    for block in body.get("system", []):
        _read_block("system", "user", block, prompt, seen, images)
    waiting: list[str] = []
    role = ""
    for number, message in enumerate(non_empty_list(body["messages"], "messages")):
        where = f"messages.{number}"
        fields(message, where, required=frozenset({"role", "content"}))
        if message["role"] == role or message["role"] not in (("user", "assistant") if number else ("user",)):
            raise invalid(f"{where}: roles must alternate and begin with user")
        role = message["role"]
        blocks = non_empty_list(message["content"], f"{where}.content")
        results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        if results != waiting:
            raise invalid(f"{where}: expected toolResult blocks for {waiting}, got {results}")
        waiting = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        prompt.add(("role", role), 4)
        for place, block in enumerate(blocks):
            _read_block(f"{where}.content.{place}", role, block, prompt, seen, images)
    if role != "user" or waiting:
        raise invalid("messages: the conversation must end with a user message")
    if len(seen) > sold.images_max:
        raise invalid(f"messages.0.content: too many images and documents: {len(seen)} + 0 > {sold.images_max}")
    return Asked(
        provider="bedrock",
        api="converse",
        model=model,
        session=seen[0].sha256 if seen else "",
        prompt=prompt,
        images=seen,
        tool=tool,
        is_forced=is_forced,
        output_tokens_max=most,
        facts={"is_sticky": True},
    )


def _check_tool(config: Any, *, takes_forced: bool) -> tuple[str, bool]:
    fields(config, "toolConfig", required=frozenset({"tools"}), optional=frozenset({"toolChoice"}))
    names = []
    for number, entry in enumerate(non_empty_list(config["tools"], "toolConfig.tools")):
        where = f"toolConfig.tools.{number}"
        if isinstance(entry, dict) and "cachePoint" in entry:
            continue
        spec = fields(entry, where, required=frozenset({"toolSpec"}))["toolSpec"]
        required, optional = frozenset({"name", "inputSchema"}), frozenset({"description"})
        fields(spec, f"{where}.toolSpec", required=required, optional=optional)
        fields(spec["inputSchema"], f"{where}.inputSchema", required=frozenset({"json"}))
        names.append(str(spec["name"]))
    choice = config.get("toolChoice", {"auto": {}})
    if not isinstance(choice, dict) or len(choice) != 1 or next(iter(choice)) not in ("auto", "any", "tool"):
        raise invalid("toolConfig.toolChoice: one of auto, any, tool is expected")
    is_forced = "auto" not in choice
    if is_forced and not takes_forced:
        raise invalid("toolConfig.toolChoice: this model does not support a forced tool")
    if "tool" in choice and choice["tool"].get("name") not in names:
        raise invalid("toolConfig.toolChoice: there is no such tool")
    return names[0], is_forced


def _read_block(where: str, role: str, block: Any, prompt: Prompt, seen: list[ImageFacts], images: ImageReader) -> None:
    if not isinstance(block, dict) or len(block) != 1:
        raise invalid(f"{where}: exactly one kind of content is expected")
    kind, value = next(iter(block.items()))
    match kind:
        case "text":
            if not isinstance(value, str) or not value.strip():
                raise invalid(f"{where}: the text field is blank")
            prompt.text(value)
        case "image" if role == "user":
            fields(value, where, required=frozenset({"format", "source"}))
            data = fields(value["source"], f"{where}.source", required=frozenset({"bytes"}))["bytes"]
            image = images.read("bedrock", value["format"], data, where)
            seen.append(image)
            prompt.image("bedrock", image)
        case "toolUse" if role == "assistant":
            fields(value, where, required=frozenset({"toolUseId", "name", "input"}))
            prompt.json(value)
        case "toolResult" if role == "user":
            required, optional = frozenset({"toolUseId", "content"}), frozenset({"status"})
            fields(value, where, required=required, optional=optional)
            one_of(value.get("status", "success"), f"{where}.status", frozenset({"success", "error"}))
            prompt.json({"result": value["toolUseId"], "status": value.get("status")})
            for number, part in enumerate(value["content"]):
                if isinstance(part, dict) and "json" in part:
                    prompt.json(part)
                else:
                    _read_block(f"{where}.content.{number}", role, part, prompt, seen, images)
        case "reasoningContent" if role == "assistant":
            prompt.json(value)
        case "cachePoint":
            fields(value, where, required=frozenset({"type"}), optional=frozenset({"ttl"}))
            prompt.mark(one_of(value.get("ttl", "5m"), f"{where}.ttl", frozenset({"5m", "1h"})))
        case _:
            raise invalid(f"{where}: {kind} is not allowed in a message of the {role}")


def body_of(asked: Asked, play: Play, used: Used, *, name: str) -> dict[str, Any]:
    """A whole answer."""

    def call(suffix: str) -> dict[str, Any]:
        use = {"toolUseId": f"tooluse_{name}{suffix}", "name": asked.tool, "input": play.arguments}
        return {"toolUse": use}

    content: list[dict[str, Any]] = []
    if play.thinking and play.shape != "empty":
        content.append({"reasoningContent": {"reasoningText": {"text": play.thinking, "signature": name}}})
    if play.text:
        content.append({"text": play.text})
    stop = "end_turn"
    match play.shape:
        case "call" | "cut" | "broken":
            content.append(call(""))
            stop = {"cut": "max_tokens", "broken": "malformed_tool_use"}.get(play.shape, "tool_use")
        case "two_calls":
            content += [call(""), call("b")]
            stop = "tool_use"
        case "refusal":
            stop = "guardrail_intervened"
        case "filtered":
            stop = "content_filtered"
        case "context_full":
            stop = "model_context_window_exceeded"
        case _:
            pass
    usage: dict[str, Any] = {
        "inputTokens": used.uncached,
        "outputTokens": used.output,
        "totalTokens": used.input_total + used.output,
    }
    if used.read or used.written or used.written_long:
        details = [{"ttl": "5m", "inputTokens": used.written}, {"ttl": "1h", "inputTokens": used.written_long}]
        usage["cacheReadInputTokens"] = used.read
        usage["cacheWriteInputTokens"] = used.written + used.written_long
        usage["cacheDetails"] = [entry for entry in details if entry["inputTokens"]]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": stop,
        "usage": usage,
        "metrics": {"latencyMs": 2310},
    }
