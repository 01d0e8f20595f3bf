"""What an evaluation needs from the outside: a broker, a place for uploads, and a bridge for blocking calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

from contract.bridge import Bridge
from contract.broker_api import ArtifactReply, ExportRequest, RenderRequest, SaveRequest, UploadGrant

T = TypeVar("T")


class Broker(Protocol):
    """The part of the broker client that an evaluation uses. Every call raises `BrokerError`."""

    def save(self, request: SaveRequest) -> ArtifactReply: ...

    def export(self, request: ExportRequest) -> ArtifactReply: ...

    def render(self, request: RenderRequest) -> ArtifactReply: ...


class UploadStore(Protocol):
    """Where hosts put artifacts: one request, one URL, one use."""

    def grant(self, name: str, *, bytes_max: int, dest: Path) -> UploadGrant:
        """A fresh permission to upload one file of at most `bytes_max` bytes, which will stand at `dest`."""
        ...

    async def collect(self, grant: UploadGrant, *, sha256: str, size_bytes: int) -> Path:
        """The file, verified and in place. Raises `EvaluationError` (retryable) when it is not as announced."""
        ...


@dataclass(frozen=True, slots=True)
class EvaluationHost:
    """The host that a rollout was played on, for as long as its evaluation needs it."""

    broker: Broker
    lease_id: str
    uploads: UploadStore
    # Calls to the host and scoring have a bound each, so that a slow host never keeps others from being scored.
    host_bridge: Bridge
    score_bridge: Bridge
    utc_now: Callable[[], datetime]
