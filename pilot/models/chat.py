"""The Chat Completions format: Kimi on Fireworks and on Mantle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from contract.actions import TOOL_DESCRIPTION, TOOL_NAME, tool_schema
from contract.pricing import Usage
from contract.profiles import Profile
from pilot.models.body import Piece, merged
from pilot.models.json_pieces import HOLE, BodyHead, ImageTemplate
from pilot.models.prompt import system_text
from pilot.models.reading import (
    BadUsage,
    Call,
    count,
    details,
    kept_response,
    object_at,
    objects_at,
    part_of_total,
    usable_arguments,
)
from pilot.models.sticky import sticky_fields, sticky_headers
from pilot.models.user_message import UserMessages
from pilot.models.wire import Opening, Outcome, Request, Said, Shown

PATH: Final = "/chat/completions"
KEPT: Final = ("id", "created", "model", "service_tier", "choices", "usage", "perf_metrics")
CHOICES: Final[dict[str, Any]] = {
    "forced": {"type": "function", "function": {"name": TOOL_NAME}},
    "any": "required",
    "auto": "auto",
}
# Kimi's own notation for calls. In the text of an answer it is a call that the server failed to read.
CALL_MARKUP: Final = "<|tool_call"
# Fireworks says here what the body sometimes leaves out.
CACHED_HEADER: Final = "fireworks-cached-prompt-tokens"


class ChatWire:
    """One rollout's requests and answers in the Chat Completions format."""

    def __init__(self, profile: Profile, *, model: str, session_id: str) -> None:
        self._profile = profile
        self._model = model
        self._headers = {**profile.headers, **sticky_headers(profile, session_id)}
        strict = {"strict": True} if profile.strict_tools else {}
        function = {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, **strict, "parameters": tool_schema()}
        fields = {
            "model": model,
            "tools": [{"type": "function", "function": function}],
            "tool_choice": CHOICES[profile.tool_choice],
            "max_tokens": profile.max_output_tokens,
            "stream": False,
            **sticky_fields(profile, session_id),
            **profile.extra_body,
        }
        system = {"role": "system", "content": system_text(must_call=profile.tool_choice != "forced")}
        self._head = BodyHead.of(fields, "messages", [system])

    def first_user(self, opening: Opening, shown: Shown) -> tuple[Piece, ...]:
        """The user message with the task, its picture, what is left of earlier turns, and the desktop."""
        return _USER.message(_USER.first(opening, shown))

    def assistant(self, response: dict[str, Any], *, keeps_thinking: bool) -> tuple[Piece, ...]:
        """The assistant message: its text, its call, and its reasoning where the provider wants it back."""
        said = _message_of(object_at(response, "body"))
        message: dict[str, Any] = {"role": "assistant", "content": said.get("content")}
        if keeps_thinking and self._profile.replays_reasoning and isinstance(said.get("reasoning_content"), str):
            message["reasoning_content"] = said["reasoning_content"]
        message["tool_calls"] = said.get("tool_calls")
        return (orjson.dumps(message),)

    def next_user(self, response: dict[str, Any], outcome: Outcome, shown: Shown) -> tuple[Piece, ...]:
        """The `tool` message, which has to be the next one, and a user message with the desktop."""
        call = _calls(_message_of(object_at(response, "body")))[0]
        result = {"role": "tool", "tool_call_id": call.call_id, "content": outcome.text}
        return merged((orjson.dumps(result), b",", *_USER.message(_USER.shown(shown))))

    def request(self, items: Sequence[tuple[Piece, ...]]) -> Request:
        """The whole request with these items behind the system message."""
        return Request(model=self._model, path=PATH, body=self._head.body(items), headers=self._headers)

    def said(self, body: dict[str, Any], headers: Mapping[str, str]) -> Said:
        """Read an answer. A call does not count when the answer was cut, or when Kimi's own notation leaked out."""
        response = kept_response(body, KEPT, headers)
        choices = objects_at(body, "choices")
        finish = choices[0].get("finish_reason") if choices else None
        message = _message_of(body)
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        refusal = message.get("refusal")
        is_refused = finish == "content_filter" or (isinstance(refusal, str) and bool(refusal))
        is_whole = len(choices) == 1 and finish != "length" and not is_refused and CALL_MARKUP not in text
        arguments = usable_arguments(_calls(message)) if is_whole and response["body"] else None
        usage = _usage(body, headers)
        return Said(
            arguments=arguments,
            response=response,
            text=text or (refusal if isinstance(refusal, str) else ""),
            usages=() if usage is None else (usage,),
            context_tokens=None if usage is None else usage.input_total,
            is_refusal=is_refused,
        )


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


_IMAGE: Final = ImageTemplate.of({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{HOLE}"}})
_USER: Final = UserMessages(text=_text, image=_IMAGE, reference=_IMAGE)


def _message_of(body: dict[str, Any]) -> dict[str, Any]:
    choices = objects_at(body, "choices")
    return object_at(choices[0], "message") if choices else {}


def _calls(message: dict[str, Any]) -> list[Call]:
    calls = objects_at(message, "tool_calls")
    functions = [object_at(call, "function") for call in calls]
    return [
        # Arguments that are no text are no arguments here, even when they are an object.
        Call(call.get("id"), function.get("name"), _only_text(function.get("arguments")))
        for call, function in zip(calls, functions, strict=True)
    ]


def _only_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _usage(body: Mapping[str, Any], headers: Mapping[str, str]) -> Usage | None:
    """Prompt counts include what was read from the cache; nothing is charged for writing to it."""
    try:
        usage = details(body, "usage")
        cached = details(usage, "prompt_tokens_details").get("cached_tokens")
        told = headers.get(CACHED_HEADER, "")
        if cached is None and told.isascii() and told.isdigit():
            cached = int(told)
        reasoning = details(usage, "completion_tokens_details")
        return part_of_total(
            count(usage, "prompt_tokens"),
            cached=count({"cached": cached}, "cached", default=0),
            short=0,
            long=0,
            output=count(usage, "completion_tokens"),
            reasoning=count(reasoning, "reasoning_tokens") if reasoning.get("reasoning_tokens") is not None else None,
        )
    except BadUsage:
        return None
