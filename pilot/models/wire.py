"""What a request format has to say, and the plain values that pass between a conversation, a wire and a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from contract.pricing import Usage
from pilot.models.body import Body, Image, Piece


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Opening:
    """What never changes and always comes first: the task in words and its picture.

    `digest` tells of the turns that are no longer there; null where none are missing.
    """

    text: str
    reference: Image
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """What the model sees in one turn. `frame` is null once an old frame is left out.

    `notes` follow a response without a usable call: the same turn is asked again, with one more sentence each time.
    """

    text: str
    frame: Image | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the call before: the tool's result."""

    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Said:
    """What one model answer says.

    `arguments` is the JSON object of its one usable `computer_action` call, null when it has none (malformed).
    `usages` has one entry for every run that is priced by itself, and is empty when the usage is unknown.
    `context_tokens` is the input that the next turn builds on. `response` holds what the trace keeps, from which
    `WireFormat.assistant` makes the very bytes again: `{"headers": {...}, "body": {...}}`.
    """

    arguments: dict[str, Any] | None
    response: dict[str, Any]
    text: str = ""
    usages: tuple[Usage, ...] = ()
    reported_cost_usd: Decimal | None = None
    context_tokens: int | None = None
    is_refusal: bool = False
    is_context_full: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, ready but for its credentials. `path` follows the provider's address and base path."""

    model: str
    path: str
    body: Body
    headers: Mapping[str, str] = field(default_factory=dict)


class WireFormat(Protocol):
    """One request format, for one profile and one rollout.

    Items are what the growing list of a body holds, serialized, without commas around them; one call may give several
    items with commas between. The list comes last in every body, so that a longer conversation extends the bytes of a
    shorter one up to its closing brackets.
    """

    def first_user(self, opening: Opening, shown: Shown) -> tuple[Piece, ...]:
        """The message that a conversation begins with."""

    def assistant(self, response: dict[str, Any], *, keeps_thinking: bool) -> tuple[Piece, ...]:
        """A model's answer, given back to it as it came; without its thinking once the turns before it were changed."""

    def next_user(self, response: dict[str, Any], outcome: Outcome, shown: Shown) -> tuple[Piece, ...]:
        """The result of the call in `response`, and what the model sees now."""

    def request(self, items: Sequence[tuple[Piece, ...]]) -> Request:
        """The whole request with these items."""

    def said(self, body: dict[str, Any], headers: Mapping[str, str]) -> Said:
        """Read a model answer that `pilot.models.answers.read_answer` has let through."""


class Client(Protocol):
    """Sends requests to one provider. One client may serve many rollouts."""

    async def send(self, request: Request) -> Answer:
        """Send once, without any retry, and return whatever came back.

        Raises `TransportFailed` when no whole answer came, `StateError` when a file of the body is not what it was.
        """

    async def refresh_credentials(self) -> None:
        """Get new short-lived credentials, where there are such."""

    async def aclose(self) -> None:
        """Close the connections."""
