"""What a host is to the supervisor, whatever its kind. `local.py` is the first kind; a cloud instance is the second.

Three things a provider of hosts must keep: a launch carries an id that the ledger already knows; ending a host is
idempotent and works by id alone, even when the launch never answered; and what is left over can be found by id later.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import SecretStr

from contract.bridge import Bridge
from contract.broker_api import ArtifactReply as ArtifactReply
from contract.broker_api import Health, Identity, Lease, LeaseRequest, ResetReply, ResetRequest, SaveRequest
from contract.broker_client import BrokerClient
from supervisor.ledger import HostHistory

LostState = Literal["cad_died", "cad_hung", "display_died"]


@dataclass(frozen=True, slots=True)
class HostOrder:
    """A host that is about to be launched. `log` is where what it says to people goes."""

    host_id: str
    batch_id: str
    rollout_id: str
    log: Path


@dataclass(frozen=True, slots=True)
class Host:
    """A host that is up. `facts` goes into the ledger: what is needed to find this host again, and nothing secret."""

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

    async def launch(self, order: HostOrder) -> Host:
        """Start one. Raises `HostError` (`host_launch`). A cancelled or failed launch is ended by `terminate`."""
        ...

    async def open_tunnel(self, host: Host) -> str:
        """The address at which its broker is reached from here. Raises `HostError` (`tunnel`)."""
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
        """Which of these are alive, each with a line for people."""
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
