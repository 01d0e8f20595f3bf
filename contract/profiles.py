"""Model profiles: what is true of one model on one provider, as frozen rows.

Vendors differ in data, not in control flow: a new model is a new row here, or in the config's `profiles`; only a new
request format is code. The facts and their sources stand beside each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from contract.errors import ConfigError
from contract.records import Record

MIB: Final = 1024 * 1024


class Wire(StrEnum):
    """A request format."""

    RESPONSES = "responses"
    CHAT = "chat"
    MESSAGES = "messages"
    CONVERSE = "converse"


class HistoryKind(StrEnum):
    """How a conversation is carried from turn to turn.

    `compact`: rebuilt each turn from the outcomes of earlier turns; `append`: every turn is kept; `digest`: appended to
    until a limit, then replaced by a digest of the outcomes.
    """

    COMPACT = "compact"
    APPEND = "append"
    DIGEST = "digest"


class Profile(Record):
    """Everything about a model that changes a request, its limits or the reading of its answers.

    `base_path` follows the provider's address (without a trailing slash). `tool_choice`: `forced` names the tool,
    `any` asks for some tool, `auto` only offers it and says in words that every answer must be one call.
    """

    provider: Literal["openai", "openrouter", "anthropic", "fireworks", "mantle", "bedrock"]
    wire: Wire
    history: HistoryKind
    base_path: str = "/v1"
    tool_choice: Literal["forced", "any", "auto"] = "forced"
    strict_tools: bool = True
    max_output_tokens: Annotated[int, Field(ge=256)] = 4096
    # Sent as they are with every request.
    headers: dict[str, str] = Field(default_factory=dict)
    # Headers and body fields whose value is the rollout's own id, for sticky routing and caching.
    sticky_headers: tuple[str, ...] = ()
    sticky_fields: tuple[str, ...] = ()
    # Further body fields, as they are: thinking budget, reasoning effort, routing, caching, server compaction.
    extra_body: dict[str, Any] = Field(default_factory=dict)
    # How long a cached prefix is asked to live, by breakpoints and automatic caching; null asks for nothing.
    cache_ttl: Literal["5m", "1h"] | None = None
    # How a Responses image is scaled before the model sees it.
    image_detail: str | None = None
    # Send back what a model thought with its call, byte for byte.
    replays_reasoning: bool = False
    # When a digest is made: whichever comes first; null never.
    digest_messages: int | None = None
    digest_turns: int | None = None
    digest_input_tokens: int | None = None
    # How many outcomes a digest, or a compact history, keeps at least.
    outcomes_kept: int = 16
    # The whole serialized request stays below both, by a digest or by leaving out old frames.
    body_bytes_max: int = 24 * MIB
    images_max: int = 1000
    read_timeout_s: float = 600.0
    # SigV4 service name; null where a key is sent instead.
    signing_service: str | None = None
    # Whether the provider reports cache reads at all; the plan's expected cost depends on it.
    caches: bool = True
    # Tokens that one 1920x1080 frame costs, for the plan's estimate alone.
    frame_tokens: int = 2800
    # What the vendor's list does not say: whether the model reads images. Null: the list says it.
    reads_images: bool | None = None


class UnknownProfile(Exception):
    """There is no such profile for the provider. `known` are the names that there are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.known = known


class BadProfile(ValueError):
    """A row of the config's `profiles` cannot be used; `row` and `field` say which, `problem` why."""

    def __init__(self, row: str, field: str | None, problem: str) -> None:
        super().__init__(f"profiles.{row}{'.' + field if field else ''}: {problem}")
        self.row = row
        self.field = field
        self.problem = problem


def profile_of(
    provider: str, model: str, name: str | None = None, custom: Mapping[str, Profile] | None = None
) -> tuple[str, Profile]:
    """The profile by its name, or else the one that this model of the provider has by default, with its name.

    `custom` are the config's own rows; they are found by name only. Raises `UnknownProfile` for a name that no row of
    the provider has, and for a model that no default is known for.
    """
    rows = {**PROFILES, **(custom or {})}
    known = tuple(row for row, profile in rows.items() if profile.provider == provider)
    if name is None:
        name = next((row for pattern, row in DEFAULTS.get(provider, ()) if pattern.search(model)), None)
        if name is None:
            raise UnknownProfile(model, known)
    if name not in known:
        raise UnknownProfile(name, known)
    return name, rows[name]


def custom_profiles(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, Profile]:
    """The config's own rows: a known row that is named in `extends`, with some fields in the place of its own.

    A field replaces the whole value, also where that is an object. Without `extends` the row stands for itself. Raises
    `BadProfile`.
    """
    return {row: _custom_profile(row, dict(fields)) for row, fields in raw.items()}


def _custom_profile(row: str, fields: dict[str, Any]) -> Profile:
    if row in PROFILES:
        raise BadProfile(row, None, "there is a built-in profile of this name; choose another one")
    base: dict[str, Any] = {}
    if "extends" in fields:
        extended = fields.pop("extends")
        if not isinstance(extended, str) or extended not in PROFILES:
            raise BadProfile(row, "extends", f"no built-in profile {extended!r}{_near(str(extended), PROFILES)}")
        base = PROFILES[extended].model_dump()
    for field in fields:
        if field not in Profile.model_fields:
            raise BadProfile(row, field, f"no such field{_near(field, Profile.model_fields)}")
    try:
        return Profile.model_validate({**base, **fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadProfile(row, ".".join(str(part) for part in first["loc"]) or None, first["msg"]) from error


def _near(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"; the nearest one is {near!r}" if near else ""


def base_url(profile: Profile, *, endpoint: str | None, region: str | None) -> str:
    """Where the profile's paths start, without a slash at the end.

    `endpoint` is the operator's own and taken as it is; when it has no path, it gets the profile's. Raises
    `ConfigError` when the provider's address needs a region and there is none.
    """
    if endpoint:
        given = endpoint.rstrip("/")
        return given if urlsplit(given).path else given + profile.base_path
    address = ADDRESSES[profile.provider]
    if "{region}" in address and not region:
        raise ConfigError(
            f"no AWS region for a {profile.provider!r} model", hint="Set aws.region in the config.", field="aws.region"
        )
    return address.format(region=region) + profile.base_path


def reads_images(profile: Profile, model: str) -> bool | None:
    """What is pinned here about a model whose vendor's list says nothing; null when nothing is known."""
    if profile.reads_images is not None:
        return profile.reads_images
    return True if model in IMAGE_MODELS.get(profile.provider, frozenset()) else None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one was most likely meant to be; null when none is close."""
    by_folded = {one.casefold(): one for one in known}
    close = get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else None


def _with(row: Profile, **changes: Any) -> Profile:
    return Profile.model_validate({**row.model_dump(), **changes})


# The providers' own addresses (API references of each, autumn 2026); what follows them is a profile's `base_path`.
ADDRESSES: Final[dict[str, str]] = {
    "openai": "https://api.openai.com",
    "openrouter": "https://openrouter.ai",
    "anthropic": "https://api.anthropic.com",
    "fireworks": "https://api.fireworks.ai",
    "mantle": "https://bedrock-mantle.{region}.api.aws",
    "bedrock": "https://bedrock-runtime.{region}.amazonaws.com",
}

# Reasoning comes back encrypted when nothing is stored; a compact history has no use for it, an append history that
# extends this row has. A frame of 1920x1080 in original detail has 60 x 34 patches of 32 pixels.
_OPENAI: Final = Profile(
    provider="openai",
    wire=Wire.RESPONSES,
    history=HistoryKind.COMPACT,
    image_detail="original",
    sticky_fields=("prompt_cache_key",),
    extra_body={
        "parallel_tool_calls": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
    },
    images_max=1500,
    frame_tokens=2040,
)

# What is given back is the call and nothing that led to it (operator contract, "Provider paths").
# `require_parameters` turns a route that would drop the forced tool or the strict schema without a word into a 404.
# The guard for the whole body is for routes to OpenAI, which take 512 MB; a smaller route answers 413.
_OPENROUTER: Final = Profile(
    provider="openrouter",
    wire=Wire.RESPONSES,
    history=HistoryKind.APPEND,
    base_path="/api/v1",
    image_detail="high",
    sticky_fields=("session_id", "prompt_cache_key"),
    extra_body={"parallel_tool_calls": False, "provider": {"require_parameters": True}},
    body_bytes_max=256 * MIB,
    images_max=1500,
)

# Claude routes drop `strict` without this header (live reports of September 2026), and end at Anthropic's own limits.
_OPENROUTER_CLAUDE: Final = _with(
    _OPENROUTER,
    headers={"x-anthropic-beta": "structured-outputs-2025-11-13"},
    cache_ttl="5m",
    body_bytes_max=24 * MIB,
    images_max=600,
)

# Without digests, server compaction bounds the history from 150,000 input tokens on. The version of the API is pinned:
# newer SDKs ask for one that refuses sampling parameters. Up to 600 images where the context is a million tokens, else
# 100 (Anthropic, "Vision").
_ANTHROPIC: Final = Profile(
    provider="anthropic",
    wire=Wire.MESSAGES,
    history=HistoryKind.APPEND,
    base_path="",
    max_output_tokens=8192,
    headers={"anthropic-version": "2023-06-01", "anthropic-beta": "compact-2026-01-12"},
    cache_ttl="5m",
    extra_body={
        "context_management": {
            "edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 150_000}}]
        }
    },
    replays_reasoning=True,
    images_max=600,
)

# Fable is kept apart from compaction by the server: neither the header nor the field for it is sent.
_FABLE: Final = _with(
    _ANTHROPIC,
    history=HistoryKind.DIGEST,
    headers={"anthropic-version": "2023-06-01"},
    extra_body={},
    digest_turns=24,
    digest_input_tokens=90_000,
)

_MANTLE: Final = Profile(
    provider="mantle",
    wire=Wire.RESPONSES,
    history=HistoryKind.COMPACT,
    strict_tools=False,
    image_detail="high",
    signing_service="bedrock-mantle",
    read_timeout_s=300.0,
)

_BEDROCK: Final = Profile(
    provider="bedrock",
    wire=Wire.CONVERSE,
    history=HistoryKind.COMPACT,
    base_path="",
    strict_tools=False,
    # The strictest model takes 20 images; a compact history has two.
    images_max=20,
    read_timeout_s=300.0,
    signing_service="bedrock",
    # No cache points are sent, so nothing is cached.
    caches=False,
)

PROFILES: Final[dict[str, Profile]] = {
    "openai-responses": _OPENAI,
    "openrouter-responses": _OPENROUTER,
    "openrouter-claude-responses": _OPENROUTER_CLAUDE,
    "openrouter-claude-200k-responses": _with(_OPENROUTER_CLAUDE, images_max=100),
    "openrouter-claude-auto-responses": _with(_OPENROUTER_CLAUDE, tool_choice="auto"),
    "anthropic-messages": _ANTHROPIC,
    "anthropic-messages-200k": _with(_ANTHROPIC, images_max=100),
    "anthropic-messages-auto": _with(_ANTHROPIC, tool_choice="auto"),
    "anthropic-fable-messages": _FABLE,
    "anthropic-fable-auto-messages": _with(_FABLE, tool_choice="auto"),
    # Fast is chosen by the router's id, so there is no `service_tier`, which would choose Priority. At most 30 images
    # and 10 MB of base64 a request (Fireworks, "Vision models").
    "fireworks-kimi-k2p6-fast-chat": Profile(
        provider="fireworks",
        wire=Wire.CHAT,
        history=HistoryKind.DIGEST,
        base_path="/inference/v1",
        max_output_tokens=2048,
        sticky_headers=("x-session-affinity", "x-multi-turn-session-id"),
        sticky_fields=("prompt_cache_key",),
        extra_body={"parallel_tool_calls": False, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        replays_reasoning=True,
        digest_messages=24,
        body_bytes_max=8 * MIB,
        images_max=30,
        reads_images=True,
        frame_tokens=2700,
    ),
    "mantle-kimi-k2.5-chat": Profile(
        provider="mantle",
        wire=Wire.CHAT,
        history=HistoryKind.DIGEST,
        digest_messages=24,
        body_bytes_max=3 * MIB,
        # The first token may take more than a minute.
        read_timeout_s=300.0,
        signing_service="bedrock-mantle",
        reads_images=True,
        frame_tokens=2700,
    ),
    "mantle-responses": _MANTLE,
    "mantle-openai-responses": _with(_MANTLE, base_path="/openai/v1"),
    "bedrock-converse": _BEDROCK,
    "bedrock-any-converse": _with(_BEDROCK, tool_choice="any"),
    "bedrock-auto-converse": _with(_BEDROCK, tool_choice="auto"),
}

# The newest Claude models answer 400 to a tool choice of `tool` or `any`, on every route (Anthropic's documentation and
# live reports). OpenRouter writes versions with a dot.
_CLAUDE_AUTO: Final = r"claude-(opus-5[-.]5|sonnet-5[-.]5|fable-5[-.][12]|mythos-5)"
# Context of 200,000 tokens, and so 100 images: everything before version 4.6, and every small model of version 4.
_CLAUDE_200K: Final = r"claude-(haiku-4|(opus|sonnet)-4($|-2\d{7}|[-.:@][0-5](?!\d))|[123]([-.]|$))"

# Which profile a model has by default, by provider; the first pattern that is found in the model's id wins.
DEFAULTS: Final[dict[str, tuple[tuple[re.Pattern[str], str], ...]]] = {
    "openai": ((re.compile(""), "openai-responses"),),
    "openrouter": (
        (re.compile(rf"^anthropic/{_CLAUDE_AUTO}"), "openrouter-claude-auto-responses"),
        (re.compile(rf"^anthropic/{_CLAUDE_200K}"), "openrouter-claude-200k-responses"),
        (re.compile(r"^anthropic/"), "openrouter-claude-responses"),
        (re.compile(""), "openrouter-responses"),
    ),
    "anthropic": (
        (re.compile(r"^claude-fable-5[-.][12]"), "anthropic-fable-auto-messages"),
        (re.compile(r"^claude-fable"), "anthropic-fable-messages"),
        (re.compile(rf"^{_CLAUDE_AUTO}"), "anthropic-messages-auto"),
        (re.compile(rf"^{_CLAUDE_200K}"), "anthropic-messages-200k"),
        (re.compile(""), "anthropic-messages"),
    ),
    "fireworks": ((re.compile(r"^accounts/fireworks/routers/kimi-k2p6-fast$"), "fireworks-kimi-k2p6-fast-chat"),),
    # Kimi does not speak Responses there, and Claude has a route of its own: neither gets a default by accident.
    "mantle": (
        (re.compile(r"^moonshotai\.kimi-k2\.5$"), "mantle-kimi-k2.5-chat"),
        (re.compile(r"^openai\.gpt-\d"), "mantle-openai-responses"),
        (re.compile(r"^(?!moonshotai\.|anthropic\.)"), "mantle-responses"),
    ),
    # One named tool can be forced on Claude and Nova only, some tool on Mistral's too (AWS, "ToolChoice").
    "bedrock": (
        (re.compile(rf"(^|\.)anthropic\.{_CLAUDE_AUTO}"), "bedrock-auto-converse"),
        (re.compile(r"(^|\.)(anthropic\.claude|amazon\.nova)"), "bedrock-converse"),
        (re.compile(r"(^|\.)mistral\."), "bedrock-any-converse"),
        (re.compile(""), "bedrock-auto-converse"),
    ),
}

# Models that are known to read images, for lists that do not say so; exact ids (the vendors' pages, autumn 2026).
IMAGE_MODELS: Final[dict[str, frozenset[str]]] = {
    "openai": frozenset({"gpt-5.4", "gpt-5.5", "gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna"})
    | {"gpt-6-sol", "gpt-6.1-sol", "gpt-6-astra"},
    "anthropic": frozenset({"claude-fable-5", "claude-fable-5-1", "claude-fable-5-2", "claude-opus-5"})
    | {"claude-opus-5-5", "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6", "claude-sonnet-5"}
    | {"claude-sonnet-5-5", "claude-sonnet-4-6", "claude-haiku-4-5", "claude-haiku-5-5"},
    "fireworks": frozenset({"accounts/fireworks/routers/kimi-k2p6-fast"}),
    "mantle": frozenset({"moonshotai.kimi-k2.5", "openai.gpt-5.5", "openai.gpt-5.6-sol"}),
}

# Ids that an unknown one is compared with when there is no live list.
KNOWN_MODELS: Final[dict[str, tuple[str, ...]]] = {
    **{provider: tuple(sorted(models)) for provider, models in IMAGE_MODELS.items()},
    "openrouter": ("anthropic/claude-opus-5", "openai/gpt-5.4", "openai/gpt-5.6-sol"),
    "bedrock": ("us.amazon.nova-pro-v1:0", "us.anthropic.claude-opus-5"),
}
