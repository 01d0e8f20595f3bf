"""The Converse format of Bedrock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

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
from pilot.models.sticky import sticky_headers
from pilot.models.user_message import UserMessages
from pilot.models.wire import Opening, Outcome, Request, Said, Shown

KEPT: Final = ("output", "stopReason", "usage", "metrics")
# A call beside any of these may be cut, or is none that the model stands by.
NOT_WHOLE: Final = frozenset(
    {"max_tokens", "guardrail_intervened", "content_filtered", "malformed_model_output", "malformed_tool_use"}
    | {"model_context_window_exceeded"}
)
REFUSED: Final = frozenset({"guardrail_intervened", "content_filtered"})
CHOICES: Final[dict[str, dict[str, Any]]] = {
    "forced": {"tool": {"name": TOOL_NAME}},
    "any": {"any": {}},
    "auto": {"auto": {}},
}


class ConverseWire:
    """One rollout's requests and answers in the Converse format."""

    def __init__(self, profile: Profile, *, model: str, session_id: str) -> None:
        self._profile = profile
        self._model = model
        self._path = f"/model/{quote(model, safe='')}/converse"
        self._headers = {**profile.headers, **sticky_headers(profile, session_id)}
        cache_point = {"cachePoint": {"type": "default", "ttl": profile.cache_ttl}}
        self._cache_points = [cache_point] if profile.cache_ttl else []
        strict = {"strict": True} if profile.strict_tools else {}
        spec = {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, "inputSchema": {"json": tool_schema()}, **strict}
        fields = {
            "system": [{"text": system_text(must_call=profile.tool_choice != "forced")}, *self._cache_points],
            "toolConfig": {"tools": [{"toolSpec": spec}], "toolChoice": CHOICES[profile.tool_choice]},
            "inferenceConfig": {"maxTokens": profile.max_output_tokens},
            **profile.extra_body,
        }
        self._head = BodyHead.of(fields, "messages")

    def first_user(self, opening: Opening, shown: Shown) -> tuple[Piece, ...]:
        """The user message with the task, its picture, what is left of earlier turns, and the desktop."""
        return _USER.message(_USER.first(opening, shown, behind_reference=self._cache_points))

    def assistant(self, response: dict[str, Any], *, keeps_thinking: bool) -> tuple[Piece, ...]:
        """The assistant message with every block as it came."""
        keeps = keeps_thinking and self._profile.replays_reasoning
        blocks = [
            block
            for block in _blocks(object_at(response, "body"))
            if (keeps or "reasoningContent" not in block) and not _is_empty_text(block)
        ]
        return (orjson.dumps({"role": "assistant", "content": blocks}),)

    def next_user(self, response: dict[str, Any], outcome: Outcome, shown: Shown) -> tuple[Piece, ...]:
        """One user message: the tool result first, then the desktop."""
        call = _calls(_blocks(object_at(response, "body")))[0]
        result = {
            "toolUseId": call.call_id,
            "content": [{"text": outcome.text}],
            "status": "error" if outcome.is_error else "success",
        }
        return _USER.message([(orjson.dumps({"toolResult": result}),), *_USER.shown(shown)])

    def request(self, items: Sequence[tuple[Piece, ...]]) -> Request:
        """The whole request with these messages."""
        return Request(model=self._model, path=self._path, body=self._head.body(items), headers=self._headers)

    def said(self, body: dict[str, Any], headers: Mapping[str, str]) -> Said:
        """Read an answer."""
        response = kept_response(body, KEPT, headers)
        blocks = _blocks(body)
        stop = body.get("stopReason")
        stop = stop if isinstance(stop, str) else None
        arguments = usable_arguments(_calls(blocks)) if stop not in NOT_WHOLE and response["body"] else None
        usage = _usage(body, self._profile.cache_ttl)
        return Said(
            arguments=arguments,
            response=response,
            text=texts(blocks),
            usages=() if usage is None else (usage,),
            context_tokens=None if usage is None else usage.input_total,
            is_refusal=stop in REFUSED,
            is_context_full=stop == "model_context_window_exceeded",
        )


def _text(text: str) -> dict[str, Any]:
    return {"text": text}


_IMAGE: Final = ImageTemplate.of({"image": {"format": "png", "source": {"bytes": HOLE}}})
_USER: Final = UserMessages(text=_text, image=_IMAGE, reference=_IMAGE)


def _is_empty_text(block: dict[str, Any]) -> bool:
    # An answer may have one; a request may not.
    text = block.get("text")
    return isinstance(text, str) and not text.strip()


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    return objects_at(object_at(body, "output", "message"), "content")


def _calls(blocks: list[dict[str, Any]]) -> list[Call]:
    uses = [object_at(block, "toolUse") for block in blocks if "toolUse" in block]
    return [
        # Input is a JSON value here; a text would be one that was encoded twice.
        Call(use.get("toolUseId"), use.get("name"), None if isinstance(use.get("input"), str) else use.get("input"))
        for use in uses
    ]


def _usage(body: Mapping[str, Any], asked: Literal["5m", "1h"] | None) -> Usage | None:
    """Input counts are apart, as with Anthropic; `cacheDetails` says how long each write lives."""
    try:
        usage = details(body, "usage")
        lives = usage.get("cacheDetails") or []
        if not isinstance(lives, list) or not all(isinstance(one, dict) for one in lives):
            raise BadUsage("cacheDetails")
        short, long = split_writes(
            count(usage, "cacheWriteInputTokens", default=0),
            short=sum(count(one, "inputTokens") for one in lives if one.get("ttl") != "1h"),
            long=sum(count(one, "inputTokens") for one in lives if one.get("ttl") == "1h"),
            asked=asked,
        )
        return disjoint(
            uncached=count(usage, "inputTokens"),
            cached=count(usage, "cacheReadInputTokens", default=0),
            short=short,
            long=long,
            output=count(usage, "outputTokens"),
            reasoning=None,
        )
    except BadUsage:
        return None
