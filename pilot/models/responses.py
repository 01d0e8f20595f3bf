"""The Responses format: OpenAI, OpenRouter, and the Mantle models that speak it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
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
    dollars,
    kept_response,
    object_at,
    objects_at,
    part_of_total,
    split_writes,
    texts,
    usable_arguments,
)
from pilot.models.sticky import sticky_fields, sticky_headers
from pilot.models.user_message import UserMessages
from pilot.models.wire import Opening, Outcome, Request, Said, Shown

PATH: Final = "/responses"
# Of an answer; the rest echoes the request.
KEPT: Final = (
    "id",
    "created_at",
    "model",
    "provider",
    "status",
    "incomplete_details",
    "service_tier",
    "output",
    "usage",
)
CHOICES: Final[dict[str, Any]] = {
    "forced": {"type": "function", "name": TOOL_NAME},
    "any": "required",
    "auto": "auto",
}


class ResponsesWire:
    """One rollout's requests and answers in the Responses format."""

    def __init__(self, profile: Profile, *, model: str, session_id: str) -> None:
        self._profile = profile
        self._model = model
        self._headers = {**profile.headers, **sticky_headers(profile, session_id)}
        detail = {"detail": profile.image_detail} if profile.image_detail else {}
        image = ImageTemplate.of({"type": "input_image", "image_url": f"data:image/png;base64,{HOLE}", **detail})
        self._user = UserMessages(
            text=_text, image=image, reference=image, opened=b'{"type":"message","role":"user","content":['
        )
        caching = {"cache_control": {"type": "ephemeral", "ttl": profile.cache_ttl}} if profile.cache_ttl else {}
        fields = {
            "model": model,
            "instructions": system_text(must_call=profile.tool_choice != "forced"),
            "tools": [
                {
                    "type": "function",
                    "name": TOOL_NAME,
                    "description": TOOL_DESCRIPTION,
                    "strict": profile.strict_tools,
                    "parameters": tool_schema(),
                }
            ],
            "tool_choice": CHOICES[profile.tool_choice],
            "store": False,
            "max_output_tokens": profile.max_output_tokens,
            **sticky_fields(profile, session_id),
            **caching,
            **profile.extra_body,
        }
        self._head = BodyHead.of(fields, "input")

    def first_user(self, opening: Opening, shown: Shown) -> tuple[Piece, ...]:
        """The user message with the task, its picture, what is left of earlier turns, and the desktop."""
        return self._user.message(self._user.first(opening, shown))

    def assistant(self, response: dict[str, Any], *, keeps_thinking: bool) -> tuple[Piece, ...]:
        """The call, and before it the reasoning that led to it."""
        output = objects_at(object_at(response, "body"), "output")
        keeps = keeps_thinking and self._profile.replays_reasoning
        kinds = ("reasoning", "function_call") if keeps else ("function_call",)
        items = [item for item in output if item.get("type") in kinds]
        if not keeps and any(item.get("type") == "reasoning" for item in output):
            # A call by its id is refused without the reasoning it belongs to; `call_id` is what pairs it.
            items = [{name: value for name, value in item.items() if name != "id"} for item in items]
        return (b",".join(orjson.dumps(item) for item in items),)

    def next_user(self, response: dict[str, Any], outcome: Outcome, shown: Shown) -> tuple[Piece, ...]:
        """The call's output, and a user message with the desktop."""
        calls = _calls(objects_at(object_at(response, "body"), "output"))
        result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": outcome.text}
        return merged((orjson.dumps(result), b",", *self._user.message(self._user.shown(shown))))

    def request(self, items: Sequence[tuple[Piece, ...]]) -> Request:
        """The whole request with these items as its input."""
        return Request(model=self._model, path=PATH, body=self._head.body(items), headers=self._headers)

    def said(self, body: dict[str, Any], headers: Mapping[str, str]) -> Said:
        """Read an answer. A call counts only in a response that was completed."""
        output = objects_at(body, "output")
        if not self._profile.replays_reasoning:
            # Nobody can read it and nobody is sent it again: it would only make the trace grow.
            output = [_without_secret_thoughts(item) for item in output]
        response = kept_response({**body, "output": output}, KEPT, headers)
        parts = [part for item in output if item.get("type") == "message" for part in objects_at(item, "content")]
        refusals = [part for part in parts if part.get("type") == "refusal"]
        is_whole = body.get("status") in (None, "completed") and not refusals
        is_filtered = object_at(body, "incomplete_details").get("reason") == "content_filter"
        arguments = usable_arguments(_calls(output)) if is_whole and response["body"] else None
        usage = _usage(body)
        return Said(
            arguments=arguments,
            response=response,
            text=texts(parts) or texts(refusals, "refusal"),
            usages=() if usage is None else (usage,),
            reported_cost_usd=_reported_cost(body),
            context_tokens=None if usage is None else usage.input_total,
            is_refusal=arguments is None and (bool(refusals) or is_filtered),
        )


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _calls(output: list[dict[str, Any]]) -> list[Call]:
    # A call that was cut is no call that can be made, but it is one of those that were asked for.
    return [
        Call(
            item.get("call_id"), item.get("name"), None if item.get("status") == "incomplete" else item.get("arguments")
        )
        for item in output
        if item.get("type") == "function_call"
    ]


def _without_secret_thoughts(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "encrypted_content"}


def _usage(body: Mapping[str, Any]) -> Usage | None:
    """Input counts include what was read from a cache or written to one (30 minutes or 12 hours)."""
    try:
        usage = details(body, "usage")
        parts = details(usage, "input_tokens_details")
        lives = details(parts, "cache_write_tokens_details")
        short, long = split_writes(
            count(parts, "cache_write_tokens", default=0),
            short=count(lives, "ttl_30m_tokens", default=0),
            long=count(lives, "ttl_12h_tokens", default=0),
            asked=None,
        )
        return part_of_total(
            count(usage, "input_tokens"),
            cached=count(parts, "cached_tokens", default=0),
            short=short,
            long=long,
            output=count(usage, "output_tokens"),
            reasoning=count(details(usage, "output_tokens_details"), "reasoning_tokens", default=0),
        )
    except BadUsage:
        return None


def _reported_cost(body: Mapping[str, Any]) -> Decimal | None:
    """What OpenRouter charged. With the operator's own key that is only its fee; the rest is paid upstream."""
    usage = object_at(body, "usage")
    cost = dollars(usage.get("cost"))
    if cost is None or usage.get("is_byok") is not True:
        return cost
    upstream = dollars(object_at(usage, "cost_details").get("upstream_inference_cost"))
    return None if upstream is None else cost + upstream
