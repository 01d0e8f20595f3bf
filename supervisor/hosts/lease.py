"""What a host is to the supervisor, whatever its kind. `local.py` is the first kind; a cloud instance is the second.

Three things a provider of hosts must keep: a launch carries an id that the ledger already knows; ending a host is
idempotent and works by id alone, even when the launch never answered; and what is left over can be found by id later.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import SecretStr

from contract.batch_records import HostEvent
from contract.bridge import Bridge
from contract.broker_api import ArtifactReply as ArtifactReply
from contract.broker_api import Health, Identity, Lease, LeaseRequest, ResetReply, ResetRequest, SaveRequest
from contract.broker_client import BrokerClient, Patience
from supervisor.ledger import HostHistory

LostState = Literal["cad_died", "cad_hung", "display_died"]

Note = Callable[[HostEvent, dict[str, Any]], Awaitable[None]]
"""Adds a line about this host to the ledger; durable when it returns. Raises `DiskError`."""


@dataclass(frozen=True, slots=True)
class HostOrder:
    """A host that is about to be launched. `log` is where what it says to people goes.

    `note` writes to the ledger; `say` prints one line for people.
    """

    host_id: str
    batch_id: str
    rollout_id: str
    log: Path
    note: Note
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HostTiming:
    """How slow this kind of host is, in seconds.

    `hand_off_s` bounds what follows a launch until the hand-off; `release_s` the ending of one host; `hand_over_s` the
    saving of a drawing that is not scored; `last_look_s` the one question to a host that may be dying. `heartbeat_s` is
    the pause between two heartbeats, and a host is lost after `misses_max` of them in a row without an answer.
    `patience` is for the calls of a rollout and `heartbeat_patience` for a heartbeat.
    """

    hand_off_s: float
    release_s: float
    hand_over_s: float
    last_look_s: float
    heartbeat_s: float
    misses_max: int
    patience: Patience
    heartbeat_patience: Patience


@dataclass(frozen=True, slots=True)
class Host:
    """A host that was launched. `facts` goes into the ledger: what is needed to find this host again, nothing secret.

    `boot_id` is empty until the host has proven who it is, where a launch does not tell it.
    """

    host_id: str
    rollout_id: str
    boot_id: str
    base_url: str
    token: SecretStr
    facts: dict[str, Any] = field(default_factory=dict)


class HostProvider(Protocol):
    """One kind of host."""

    kind: Literal["local", "ec2"]
    # The file extension of its drawings.
    extension: str
    timing: HostTiming

    async def launch(self, order: HostOrder) -> Host:
        """Start one. Raises `HostError` (`host_launch`). A cancelled or failed launch is ended by `terminate`.

        Bounded in time by the provider itself, which alone knows what it waits for.
        """
        ...

    async def open_tunnel(self, host: Host) -> str:
        """The address at which its broker is reached from here, for as long as the host lives. Raises `HostError`.

        Returns when the way is open to whoever answers there; `prove` says who that is.
        """
        ...

    async def prove(self, host: Host, broker: HostBroker) -> Host:
        """The host, once it has proven twice that it is the one that was launched, in the boot that it is in.

        Raises `HostError` (`host_identity`) when somebody else answers, or `BrokerError`.
        """
        ...

    async def wait_tunnel_broken(self, host_id: str) -> None:
        """Return as soon as the way to the host is known to be broken. Else this never returns."""
        ...

    async def mend_tunnel(self, host_id: str, *, misses: int) -> None:
        """Called after `misses` heartbeats in a row had no answer: open the way again if that is due.

        The address stays the same. Raises `HostError` (`tunnel`) when it cannot be opened any more.
        """
        ...

    async def close_tunnel(self, host_id: str) -> None:
        """End the way to it, if there is one. Idempotent."""
        ...

    async def wait_ended(self, host_id: str) -> str:
        """Return, with a line for people, when the host itself has ended. Never returns for one that lives."""
        ...

    async def wait_lost(self, host_id: str) -> LostState:
        """Return when the host itself says that its CAD program is lost, and how. Else this never returns."""
        ...

    def has_ended(self, host_id: str) -> bool:
        """True when the host itself is known to have ended."""
        ...

    async def terminate(self, host_id: str, *, batch_id: str) -> None:
        """End it and all that belongs to it. Idempotent; an unknown id is swept for and is no error.

        Raises `HostError` when something of it is still alive afterwards.
        """
        ...

    async def terminate_all(self, host_ids: Collection[str], *, batch_id: str) -> None:
        """End many at once, in one pass. Raises `HostError` when something is still alive afterwards."""
        ...

    async def reattach(self, history: HostHistory, *, batch_id: str) -> Host | None:
        """The host that an earlier controller launched, if it still lives and its token is known; else null."""
        ...

    def renew(self, host: Host) -> None:
        """Called at each sign of life, for what must be kept fresh while a controller lives."""
        ...

    async def find_leftovers(self, host_ids: Collection[str], *, batch_id: str) -> dict[str, str]:
        """Which of these are alive, each with a line for people.

        A kind that can find hosts by their tags also looks for those of the batch that no id here names: `host_ids`
        are only those that the ledger does not call over.
        """
        ...


def new_host_id() -> str:
    """An id that no other host ever had: it is also the token that makes a repeated launch the same launch."""
    return f"h-{secrets.token_hex(6)}"


class HostBroker(Protocol):
    """The calls of the broker that bring a rollout to hand-off and watch it. Every call raises `BrokerError`."""

    async def identity(self) -> Identity: ...

    async def lease(self, request: LeaseRequest) -> Lease: ...

    async def heartbeat(self, lease_id: str) -> Lease: ...

    async def reset(self, request: ResetRequest) -> ResetReply: ...

    async def health(self) -> Health: ...

    async def save(self, request: SaveRequest) -> ArtifactReply: ...

    def close(self) -> None: ...


class BridgedBroker:
    """The blocking client, each call carried over a bridge. One call at a time."""

    def __init__(self, client: BrokerClient, token: SecretStr, bridge: Bridge) -> None:
        self.client = client
        self._token = token
        self._bridge = bridge

    async def identity(self) -> Identity:
        return await self._bridge.call(lambda: self.client.identity(token=self._token))

    async def lease(self, request: LeaseRequest) -> Lease:
        return await self._bridge.call(lambda: self.client.lease(request))

    async def heartbeat(self, lease_id: str) -> Lease:
        return await self._bridge.call(lambda: self.client.heartbeat(lease_id))

    async def reset(self, request: ResetRequest) -> ResetReply:
        return await self._bridge.call(lambda: self.client.reset(request))

    async def health(self) -> Health:
        return await self._bridge.call(self.client.health)

    async def save(self, request: SaveRequest) -> ArtifactReply:
        return await self._bridge.call(lambda: self.client.save(request))

    def close(self) -> None:
        self.client.close()


Reach = Callable[[Host, str], HostBroker]
"""Makes the calls' end for a host at an address."""
