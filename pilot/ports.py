"""Everything the loop needs from outside, as protocols, and the plain values that pass through them.

A new provider implements `Model`; a new kind of host needs nothing here, because every broker speaks the same API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio

from contract.actions import Action
from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.broker_api import FrameInfo, Health, Receipt
from contract.errors import BenchError
from contract.phases import Cause
from contract.pricing import Usage
from contract.records import Durability, Record
from contract.rollout_records import After, ArtifactRef, RunState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model is given at the start of a turn.

    `frame` names the newest PNG relative to the run folder, `frame_path` absolutely; it holds still, so a request body
    may be streamed from it. `text` says how the last ActionBatch went and what is left of the budget, `after` what it
    was. `turn` counts 1, 2, 3, ...; a retry of an unconsumed turn gets the same observation again.
    """

    turn: int
    sequence: int
    frame: ArtifactRef
    frame_path: Path
    after: After
    text: str
    actions_left: int


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One answer of a model.

    `arguments` is the JSON value of its one `computer_action` call, or None when the response had no usable call
    (malformed). `usage` and `cost_usd` are None when unknown. `response` is the provider's own answer as it goes into
    `model_turns.jsonl`. `is_refusal`: the model said that it will not, which is a malformed response of its kind.
    """

    arguments: Any
    latency_s: float
    text: str = ""
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    response: dict[str, Any] | None = None
    is_refusal: bool = False


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request cost; None is unknown."""

    usage: Usage | None
    cost_usd: Decimal | None


class ProviderError(BenchError):
    """A request to a model was not answered by the model. The turn is unconsumed.

    `charge` is what it cost all the same: nothing by default.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.charge = Charge(Usage(), Decimal(0))


class Throttled(ProviderError):
    """HTTP 429 or its like: asked again for as long as it takes, never before `retry_after_s` seconds.

    `heals` is false for a quota that is used up or a credit that is gone: waiting alone will not help.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None, heals: bool = True) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.heals = heals


class ServerError(ProviderError):
    """HTTP 5xx or its like: asked again for as long as it takes."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TransportFailed(ProviderError):
    """HTTP 408 or 409, or no whole answer at all: a limited number in a row.

    `is_charge_unknown` when the request was sent and no answer says what became of it.
    """

    def __init__(self, message: str, *, is_charge_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_charge_unknown = is_charge_unknown


class Refused(ProviderError):
    """The provider will not serve us: credentials, an unknown model, any other 4xx. It ends the rollout."""

    def __init__(self, message: str, *, hint: str = "", cause: Cause = Cause.PROVIDER_REFUSED) -> None:
        super().__init__(message, hint=hint)
        self.cause = cause


class TooLarge(Refused):
    """HTTP 413 or its like. It ends the rollout once the request cannot be made smaller."""


class CredentialsExpired(Refused):
    """The short-lived credentials are over. It ends the rollout once new ones do not help."""


class ContextFull(Refused):
    """The conversation no longer fits the model's context. It ends the rollout once it cannot be shortened."""


class Model(Protocol):
    """Whoever plays. One instance plays one rollout; calls never overlap."""

    async def next_turn(self, observation: Observation) -> ModelReply:
        """Ask for the next ActionBatch. Raises `ProviderError`; then the same observation may come again.

        A malformed reply is not part of the conversation: the next observation asks again. An invalid ActionBatch is.
        """

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on from here, as JSON. Small, and not growing with the number of turns."""

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` describes. Raises `StateError` when it, or a file that it names, is not usable."""

    async def aclose(self) -> None:
        """Let go of connections and files."""


@dataclass(frozen=True, slots=True)
class Acted:
    """The host's receipt for one ActionBatch, and the PNG of the frame that it names, checked."""

    receipt: Receipt
    png: bytes


class Desktop(Protocol):
    """The hands and eyes on one host. Every call may raise `HostError`."""

    async def health(self) -> Health:
        """One round trip: who answers, in which boot, under which lease, and which sequence it carried out last."""

    async def act(self, sequence: int, actions: Sequence[Action]) -> Acted:
        """Carry the actions out exactly once, however often this is called with the same sequence and actions."""

    async def fetch(self, info: FrameInfo) -> bytes:
        """The PNG of this frame, checked for length and SHA-256."""

    async def aclose(self) -> None:
        """Close the connection; a call that hangs on it ends."""


class Disk(Protocol):
    """The run folder's writes. Every call blocks, and may raise `DiskError`."""

    def replace(self, path: Path, content: bytes, durability: Durability) -> None:
        """Put `content` in the place of the file at `path`, atomically."""

    def append(self, path: Path, record: Record) -> None:
        """Add the record as one line to the JSON-lines file at `path`."""


def ignore_progress(state: RunState) -> None:
    """For callers that read `run-state.json` instead."""


@dataclass(frozen=True, slots=True)
class World:
    """All that one rollout touches.

    `on_progress` hears of every run state as it is written. Setting `stop` ends the rollout at the next turn boundary.
    """

    model: Model
    desktop: Desktop
    disk: Disk
    disk_bridge: Bridge
    ambient: Ambient = field(default_factory=Ambient)
    on_progress: Callable[[RunState], None] = ignore_progress
    stop: anyio.Event = field(default_factory=anyio.Event)
