"""Model profiles: what is true of one model on one provider, as frozen rows.

Vendors differ in data, not in control flow: a new model is a new row here, or in the config's `profiles`; only a new
request format is code. The facts and their sources stand beside each row.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field

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
