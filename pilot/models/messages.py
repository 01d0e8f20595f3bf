"""The Messages format of Anthropic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from contract.actions import TOOL_DESCRIPTION, TOOL_NAME, tool_schema
from contract.pricing import Usage
from contract.profiles import Profile
from pilot.models.body import Piece
from pilot.models.json_pieces import HOLE, BodyHead, ImageTemplate
from pilot.models.prompt import system_text
from pilot.models.reading import (
    BadUsage,
    Call,
    count,
    details,
    disjoint,
    kept_response,
    object_at,
    objects_at,
    split_writes,
    texts,
    usable_arguments,
)
from pilot.models.sticky import sticky_fields, sticky_headers
from pilot.models.user_message import UserMessages
from pilot.models.wire import Opening, Outcome, Request, Said, Shown

PATH: Final = "/v1/messages"
KEPT: Final = ("id", "model", "content", "stop_reason", "stop_details", "usage")
# A call beside any of these may be cut, or is none that the model stands by.
NOT_WHOLE: Final = frozenset(
    {"max_tokens", "refusal", "model_context_window_exceeded", "pause_turn", "compaction"},
)
THINKING: Final = frozenset({"thinking", "redacted_thinking"})
CHOICES: Final[dict[str, dict[str, Any]]] = {
    "forced": {"type": "tool", "name": TOOL_NAME, "disable_parallel_tool_use": True},
    "any": {"type": "any", "disable_parallel_tool_use": True},
    "auto": {"type": "auto", "disable_parallel_tool_use": True},
}

CacheTtl = Literal["5m", "1h"]


class MessagesWire:
    """One rollout's requests and answers in the Messages format.

    Three of the four cache breakpoints that a request may have are used: after the system prompt, after the reference,
    and the automatic one, which moves with the newest message.
    """

    def __init__(self, profile: Profile, *, model: str, session_id: str) -> None:
        self._profile = profile
        self._model = model
        self._headers = {**profile.headers, **sticky_headers(profile, session_id)}
        caching = {"cache_control": {"type": "ephemeral", "ttl": profile.cache_ttl}} if profile.cache_ttl else {}
        self._user = UserMessages(text=_text, image=_image_template({}), reference=_image_template(caching))
        system = {"type": "text", "text": system_text(must_call=profile.tool_choice != "forced"), **caching}
        strict = {"strict": True} if profile.strict_tools else {}
        tool = {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, **strict, "input_schema": tool_schema()}
        fields = {
            "model": model,
            "max_tokens": profile.max_output_tokens,
            "system": [system],
            "tools": [tool],
            "tool_choice": CHOICES[profile.tool_choice],
            **caching,
            **sticky_fields(profile, session_id),
            **profile.extra_body,
        }
        self._head = BodyHead.of(fields, "messages")

    def first_user(self, opening: Opening, shown: Shown) -> tuple[Piece, ...]:
        """The user message with the task, its picture, what is left of earlier turns, and the desktop."""
        return self._user.message(self._user.first(opening, shown))

    def assistant(self, response: dict[str, Any], *, keeps_thinking: bool) -> tuple[Piece, ...]:
        """The assistant message with every block as it came; compaction blocks too, whether they worked or not."""
        keeps = keeps_thinking and self._profile.replays_reasoning
        blocks = [
            block
            for block in objects_at(object_at(response, "body"), "content")
            if (keeps or block.get("type") not in THINKING) and not _is_empty_text(block)
        ]
        return (orjson.dumps({"role": "assistant", "content": blocks}),)

    def next_user(self, response: dict[str, Any], outcome: Outcome, shown: Shown) -> tuple[Piece, ...]:
        """One user message: the tool result, which has to come first, and then the desktop."""
        call = _calls(objects_at(object_at(response, "body"), "content"))[0]
        result: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": call.call_id,
            "content": [{"type": "text", "text": outcome.text}],
        }
        if outcome.is_error:
            result["is_error"] = True
        return self._user.message([(orjson.dumps(result),), *self._user.shown(shown)])

    def request(self, items: Sequence[tuple[Piece, ...]]) -> Request:
        """The whole request with these messages."""
        return Request(model=self._model, path=PATH, body=self._head.body(items), headers=self._headers)

    def said(self, body: dict[str, Any], headers: Mapping[str, str]) -> Said:
        """Read an answer. With server compaction one answer is several runs, and each is charged by itself."""
        response = kept_response(body, KEPT, headers)
        blocks = objects_at(body, "content")
        stop = body.get("stop_reason")
        is_whole = not (isinstance(stop, str) and stop in NOT_WHOLE)
        arguments = usable_arguments(_calls(blocks)) if is_whole and response["body"] else None
        usages, context_tokens = _usages(body, self._profile.cache_ttl)
        explanation = object_at(body, "stop_details").get("explanation")
        return Said(
            arguments=arguments,
            response=response,
            text=texts([block for block in blocks if block.get("type") == "text"])
            or (explanation if isinstance(explanation, str) else ""),
            usages=usages,
            context_tokens=context_tokens,
            is_refusal=stop == "refusal",
            is_context_full=stop == "model_context_window_exceeded",
        )


def _image_template(more: dict[str, Any]) -> ImageTemplate:
    source = {"type": "base64", "media_type": "image/png", "data": HOLE}
    return ImageTemplate.of({"type": "image", "source": source, **more})


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _is_empty_text(block: dict[str, Any]) -> bool:
    # An answer may have one; a request may not.
    text = block.get("text")
    return block.get("type") == "text" and isinstance(text, str) and not text.strip()


def _calls(blocks: list[dict[str, Any]]) -> list[Call]:
    return [
        # Input is a JSON value here; a text would be one that was encoded twice.
        Call(block.get("id"), block.get("name"), None if isinstance(block.get("input"), str) else block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    ]


def _usages(body: Mapping[str, Any], asked: CacheTtl | None) -> tuple[tuple[Usage, ...], int | None]:
    """A usage for every run, and the input that the last message was made from.

    The counts beside `iterations` leave the runs of compaction out, so the list is what counts when there is one.
    """
    try:
        usage = details(body, "usage")
        runs = usage.get("iterations")
        if not runs:
            whole = _usage(usage, asked, reasoning=_reasoning(usage) or 0)
            return (whole,), whole.input_total
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
            raise BadUsage("iterations")
        messages = [number for number, run in enumerate(runs) if run.get("type") == "message"]
        last = messages[-1] if messages else None
        # Thinking is counted for the whole answer alone; it belongs to the message.
        told = [_reasoning(run) for run in runs]
        if last is not None and all(number is None for number in told):
            told[last] = _reasoning(usage)
        usages = tuple(_usage(run, asked, reasoning=reasoning or 0) for run, reasoning in zip(runs, told, strict=True))
        whole = usages[last] if last is not None else _usage(usage, asked, reasoning=0)
        return usages, whole.input_total
    except BadUsage:
        return (), None


def _usage(usage: Mapping[str, Any], asked: CacheTtl | None, *, reasoning: int) -> Usage:
    """Input counts are apart: what was read from a cache and written to one is not in `input_tokens`."""
    lives = details(usage, "cache_creation")
    short, long = split_writes(
        count(usage, "cache_creation_input_tokens", default=0),
        short=count(lives, "ephemeral_5m_input_tokens", default=0),
        long=count(lives, "ephemeral_1h_input_tokens", default=0),
        asked=asked,
    )
    return disjoint(
        uncached=count(usage, "input_tokens"),
        cached=count(usage, "cache_read_input_tokens", default=0),
        short=short,
        long=long,
        output=count(usage, "output_tokens"),
        reasoning=reasoning,
    )


def _reasoning(usage: Mapping[str, Any]) -> int | None:
    parts = details(usage, "output_tokens_details")
    return count(parts, "thinking_tokens") if parts.get("thinking_tokens") is not None else None
