"""Anthropic's Messages API: what a request may say, server compaction, and what an answer looks like."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
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

VERSIONS: Final = frozenset({"2023-06-01", "2026-10-21"})
COMPACT_BETA: Final = "compact-2026-01-12"
COMPACT_EDIT: Final = "compact_20260112"
TRIGGER_TOKENS_MIN: Final = 50_000
TRIGGER_TOKENS: Final = 150_000
SUMMARY_TOKENS: Final = 1_800
BREAKPOINTS_MAX: Final = 4
IMAGE_BASE64_BYTES_MAX: Final = 5_242_880
SIDE_PX_MAX: Final = 8_000
MANY_IMAGES: Final = 20
SIDE_PX_MAX_OF_MANY: Final = 2_000
OPTIONAL: Final = frozenset(
    {"system", "tools", "tool_choice", "cache_control", "thinking", "metadata", "stop_sequences", "service_tier"}
    | {"temperature", "top_p", "top_k", "stream", "output_config", "diagnostics", "inference_geo"}
)
SAMPLING: Final = ("temperature", "top_p", "top_k")


def read(request: Request, body: dict[str, Any], images: ImageReader) -> Asked:
    """Check a request. Raises `Refusal`."""
    version = request.headers.get("anthropic-version")
    if version not in VERSIONS:
        raise invalid("anthropic-version: header is required")
    betas = {beta.strip() for beta in request.headers.get("anthropic-beta", "").split(",")}
    optional = OPTIONAL | {"context_management"} if COMPACT_BETA in betas else OPTIONAL
    fields(body, "body", required=frozenset({"model", "messages", "max_tokens"}), optional=optional)
    sold = SOLD.get(("anthropic", body["model"]))
    if sold is None:
        raise Refusal(404, f"model: {body['model']}")
    if version == "2026-10-21" and any(name in body for name in SAMPLING):
        raise invalid("temperature, top_p and top_k are not supported in this version")
    if body.get("stream"):
        raise invalid("stream: this server answers in one piece")
    most = body["max_tokens"]
    if not isinstance(most, int) or not 1 <= most <= sold.output_tokens_max:
        raise invalid(f"max_tokens: {most!r} > {sold.output_tokens_max}")
    tool, is_forced = _check_tool(sold, body)
    reading = _Reading(images)
    reading.head(body)
    messages = non_empty_list(body["messages"], "messages")
    for number, message in enumerate(messages):
        reading.message(number, message, can_compact=COMPACT_BETA in betas)
    reading.end(messages)
    _check_images(sold, reading.images)
    prompt = reading.prompt
    if body.get("cache_control") is not None:
        reading.mark(body["cache_control"], "cache_control")
    if reading.marks > BREAKPOINTS_MAX:
        message = f"A maximum of {BREAKPOINTS_MAX} blocks with cache_control may be provided. Found {reading.marks}."
        raise invalid(message)
    if sold.binds_thinking:
        _check_binding(reading.thoughts)
    seen = [image for _, image in reading.images]
    return Asked(
        provider="anthropic",
        api="messages",
        model=body["model"],
        session=seen[0].sha256 if seen else "",
        prompt=prompt,
        images=seen,
        tool=tool,
        is_forced=is_forced,
        output_tokens_max=most,
        facts={"trigger": _trigger(body), "head_units": reading.head_units, "is_sticky": True},
    )


def _check_tool(sold: Sold, body: dict[str, Any]) -> tuple[str, bool]:
    tools = non_empty_list(body.get("tools"), "tools")
    for number, tool in enumerate(tools):
        optional = frozenset({"description", "strict", "cache_control", "type"})
        fields(tool, f"tools.{number}", required=frozenset({"name", "input_schema"}), optional=optional)
        if tool.get("strict"):
            check_strict(tool["input_schema"], f"tools.{number}.input_schema")
    choice = body.get("tool_choice", {"type": "auto"})
    optional = frozenset({"name", "disable_parallel_tool_use"})
    kind = fields(choice, "tool_choice", required=frozenset({"type"}), optional=optional)["type"]
    one_of(kind, "tool_choice.type", frozenset({"auto", "any", "tool", "none"}))
    if kind == "tool" and choice.get("name") not in {tool["name"] for tool in tools}:
        raise invalid(f"tool_choice: there is no tool {choice.get('name')!r}")
    is_forced = kind in ("any", "tool")
    if is_forced and not sold.takes_forced_tool:
        raise invalid("tool_choice forces tool use, which this model does not support.")
    thinking = (body.get("thinking") or {}).get("type")
    if sold.thinks_always and thinking in ("enabled", "disabled"):
        raise invalid(f"thinking: {thinking} is not supported for this model")
    if is_forced and thinking == "enabled":
        raise invalid("Thinking may not be enabled when tool_choice forces tool use.")
    return str(tools[0]["name"]), is_forced


def _trigger(body: dict[str, Any]) -> int | None:
    management = body.get("context_management")
    if management is None:
        return None
    edits = fields(management, "context_management", required=frozenset({"edits"}))["edits"]
    for number, edit in enumerate(edits):
        where = f"context_management.edits.{number}"
        optional = frozenset({"trigger", "pause_after_compaction", "instructions"})
        one_of(
            fields(edit, where, required=frozenset({"type"}), optional=optional)["type"],
            where,
            frozenset({COMPACT_EDIT}),
        )
        trigger = edit.get("trigger", {"type": "input_tokens", "value": TRIGGER_TOKENS})
        value = fields(trigger, f"{where}.trigger", required=frozenset({"type", "value"}))["value"]
        if not isinstance(value, int) or value < TRIGGER_TOKENS_MIN:
            raise invalid(f"{where}.trigger.value: at least {TRIGGER_TOKENS_MIN}")
        return value
    return None


def _check_images(sold: Sold, images: Sequence[tuple[str, ImageFacts]]) -> None:
    if len(images) > sold.images_max:
        raise invalid(f"Too many images: {len(images)} > {sold.images_max}")
    side_max = SIDE_PX_MAX_OF_MANY if len(images) > MANY_IMAGES else SIDE_PX_MAX
    for where, image in images:
        if image.base64_bytes > IMAGE_BASE64_BYTES_MAX:
            raise invalid(f"{where}: image exceeds 5 MB maximum: {image.base64_bytes} bytes")
        if max(image.width_px, image.height_px) > side_max:
            raise invalid("Image side too long.", code="image_dimensions_too_large")


def _check_binding(thoughts: Sequence[tuple[str, str, str]]) -> None:
    for where, signature, expected in thoughts:
        if signature != expected:
            raise invalid(f"{where}: thinking block does not match the conversation it was produced in.")


def signature_of(context: str) -> str:
    """What signs a thinking block that was produced after the conversation `context`."""
    return "Eu" + hashlib.sha256(context.encode()).hexdigest()


@dataclass
class _Reading:
    """Goes through a request once. `prompt` is what the model sees: a compaction block stands for all before it."""

    reader: ImageReader
    prompt: Prompt = field(default_factory=Prompt)
    images: list[tuple[str, ImageFacts]] = field(default_factory=list)
    marks: int = 0
    head_units: int = 0
    # Where each thinking block stands, its signature, and the one that fits the conversation before it.
    thoughts: list[tuple[str, str, str]] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _role: str = ""
    _conversation: str = ""

    def head(self, body: dict[str, Any]) -> None:
        for tool in body["tools"]:
            self.prompt.json({key: value for key, value in tool.items() if key != "cache_control"})
            self.mark(tool.get("cache_control"), "tools")
        system = body.get("system", [])
        for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
            optional = frozenset({"cache_control"})
            self.prompt.text(fields(block, "system", required=frozenset({"type", "text"}), optional=optional)["text"])
            self.mark(block.get("cache_control"), "system")
        # A change of these drops what is cached of the messages, and nothing before them.
        self.prompt.add(("settings", str(body.get("tool_choice")), str(body.get("thinking"))), 0)
        self.head_units = len(self.prompt.units)

    def mark(self, control: Any, where: str) -> None:
        if control is None:
            return
        fields(control, where, required=frozenset({"type"}), optional=frozenset({"ttl"}))
        one_of(control["type"], where, frozenset({"ephemeral"}))
        self.prompt.mark(one_of(control.get("ttl", "5m"), f"{where}.ttl", frozenset({"5m", "1h"})))
        self.marks += 1

    def message(self, number: int, message: Any, *, can_compact: bool) -> None:
        where = f"messages.{number}"
        fields(message, where, required=frozenset({"role", "content"}))
        role = one_of(message["role"], f"{where}.role", frozenset({"user", "assistant"}))
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks = non_empty_list(content, f"{where}.content")
        if (number == 0) != (self._role == "") or role == self._role or (number == 0 and role != "user"):
            raise invalid(f"{where}: roles have to alternate, beginning with user")
        self._role = role
        results = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
        if self._open != results[: len(self._open)] or len(results) != len(self._open):
            raise invalid(
                f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {self._open}"
            )
        if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
            raise invalid(f"{where}: tool_result blocks have to come first")
        self._open = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        # What a compaction has replaced is no part of the conversation that the rest of its message continues.
        before = "" if _is_cut(blocks) else self._conversation
        self.prompt.add(("role", role), 4)
        for place, block in enumerate(blocks):
            self._block(f"{where}.content.{place}", role, block, place, before, can_compact=can_compact)
        self._conversation = _chained(self._conversation, role, blocks)

    def end(self, messages: Sequence[Any]) -> None:
        if self._open or self._role != "user":
            raise invalid(f"messages.{len(messages) - 1}: the conversation has to end with a user message")

    def _block(self, where: str, role: str, block: Any, place: int, before: str, *, can_compact: bool) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        marked = frozenset({"cache_control"})
        match kind, role:
            case "text", _:
                fields(block, where, required=frozenset({"type", "text"}), optional=marked | {"citations"})
                if not block["text"].strip():
                    raise invalid(f"{where}: text content blocks must be non-empty")
                self.prompt.text(block["text"])
            case "image", "user":
                self._image(where, block)
            case "tool_result", "user":
                optional = marked | {"content", "is_error"}
                fields(block, where, required=frozenset({"type", "tool_use_id"}), optional=optional)
                self.prompt.add(("result", block["tool_use_id"], block.get("is_error")), 4)
                parts = block.get("content", [])
                for number, part in enumerate([{"type": "text", "text": parts}] if isinstance(parts, str) else parts):
                    self._block(f"{where}.content.{number}", role, part, number, before, can_compact=can_compact)
            case "tool_use", "assistant":
                required = frozenset({"type", "id", "name", "input"})
                fields(block, where, required=required, optional=marked | {"caller"})
                if not isinstance(block["input"], dict):
                    raise invalid(f"{where}.input: an object is expected")
                self.prompt.json({key: value for key, value in block.items() if key != "cache_control"})
            case "thinking", "assistant":
                fields(block, where, required=frozenset({"type", "thinking", "signature"}))
                self.thoughts.append((where, block["signature"], signature_of(before)))
                self.prompt.json(block)
            case "redacted_thinking", "assistant":
                fields(block, where, required=frozenset({"type", "data"}))
                self.prompt.json(block)
            case "compaction", "assistant" if can_compact and place == 0:
                optional = marked | {"encrypted_content", "signature"}
                fields(block, where, required=frozenset({"type", "content"}), optional=optional)
                if block["content"] is not None:
                    self.prompt = self.prompt.cut_to(self.head_units, [summary_unit(block)])
            case _:
                raise invalid(f"{where}: unexpected block {kind!r} in a message of the {role}")
        self.mark(block.get("cache_control"), f"{where}.cache_control")

    def _image(self, where: str, block: dict[str, Any]) -> None:
        fields(block, where, required=frozenset({"type", "source"}), optional=frozenset({"cache_control"}))
        required = frozenset({"type", "media_type", "data"})
        source = fields(block["source"], f"{where}.source", required=required)
        one_of(source["type"], f"{where}.source.type", frozenset({"base64"}))
        kind = str(source["media_type"]).removeprefix("image/")
        image = self.reader.read("anthropic", kind, source["data"], where)
        self.images.append((where, image))
        self.prompt.image("anthropic", image)


def _chained(before: str, role: str, blocks: Sequence[dict[str, Any]]) -> str:
    """Identifies a conversation up to here; cache marks are no part of it."""
    if role == "assistant" and _is_cut(blocks):
        before = ""
    digest = hashlib.sha256(before.encode() + role.encode())
    for block in blocks:
        bare = {key: value for key, value in block.items() if key != "cache_control"}
        digest.update(orjson.dumps(bare, option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()


def _is_cut(blocks: Sequence[dict[str, Any]]) -> bool:
    first = blocks[0]
    return first.get("type") == "compaction" and first.get("content") is not None


def conversation_of(body: dict[str, Any]) -> str:
    """Identifies the whole conversation of a request."""
    conversation = ""
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        conversation = _chained(conversation, message["role"], blocks)
    return conversation


def summary_unit(block: dict[str, Any]) -> tuple[str, int]:
    """What a compaction block is in a prompt."""
    return f"{block['content']}/{block.get('encrypted_content')}", SUMMARY_TOKENS


def body_of(
    asked: Asked, play: Play, runs: Sequence[Used], *, name: str, context: str, compaction: dict[str, Any] | None
) -> dict[str, Any]:
    """A whole answer. `runs` holds the compaction's own run first when there was one; `context` signs its thinking."""

    def call(suffix: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu_{name}{suffix}", "name": asked.tool, "input": play.arguments}

    content: list[dict[str, Any]] = [] if compaction is None else [compaction]
    if play.thinking and play.shape not in ("empty", "refusal"):
        content.append({"type": "thinking", "thinking": play.thinking, "signature": signature_of(context)})
    if play.text:
        content.append({"type": "text", "text": play.text, "citations": None})
    stop = "end_turn"
    match play.shape:
        case "call" | "cut" | "broken":
            content.append(call(""))
            stop = "max_tokens" if play.shape == "cut" else "tool_use"
        case "two_calls":
            content += [call(""), call("b")]
            stop = "tool_use"
        case "refusal" | "filtered":
            stop = "refusal"
        case "context_full":
            stop = "model_context_window_exceeded"
        case _:
            pass
    last = runs[-1]
    usage = {**_usage(last), "output_tokens_details": {"thinking_tokens": last.reasoning or 0}}
    usage |= {"service_tier": "standard", "inference_geo": "global"}
    if compaction is not None:
        usage["iterations"] = [
            {"type": "compaction", **_usage(runs[0])},
            {"type": "message", **_usage(last), "model": asked.model},
        ]
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": "No."} if stop == "refusal" else None,
        "usage": usage,
        "context_management": {"applied_edits": []},
    }


def _usage(used: Used) -> dict[str, Any]:
    return {
        "input_tokens": used.uncached,
        "cache_read_input_tokens": used.read,
        "cache_creation_input_tokens": used.written + used.written_long,
        "cache_creation": {
            "ephemeral_5m_input_tokens": used.written,
            "ephemeral_1h_input_tokens": used.written_long,
        },
        "output_tokens": used.output,
    }
