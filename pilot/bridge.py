"""The bounds of a pilot's blocking calls: one bridge to the broker, one to the disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from contract.bridge import ThreadBridge

# One process plays one rollout, whose calls never overlap; two leaves room for a call that was abandoned.
THREADS_OF_ONE_ROLLOUT: Final = 2


@dataclass(frozen=True, slots=True)
class Threads:
    """Rollouts that share a process share these, so that they are bounded together."""

    broker: ThreadBridge = field(default_factory=lambda: ThreadBridge(THREADS_OF_ONE_ROLLOUT, is_abandonable=True))
    disk: ThreadBridge = field(default_factory=lambda: ThreadBridge(THREADS_OF_ONE_ROLLOUT))
