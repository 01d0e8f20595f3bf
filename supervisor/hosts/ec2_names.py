"""The names by which an instance is known: its client token, its tags, its schedule. Pure functions.

Every name is fixed when its host begins, so that a repeated request has equal bytes; whatever slips through our fingers
is found by one of them later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

BATCH_TAG: Final = "BatchId"
ROLLOUT_TAG: Final = "RolloutId"
HOST_TAG: Final = "HostId"
OWNER_TAG: Final = "Owner"
TOKEN_TAG: Final = "ClientToken"
EXPIRES_TAG: Final = "ExpiresAt"
NAME_TAG: Final = "Name"
# EC2 takes 64 ASCII characters; 160 bits never meet by chance.
TOKEN_CHARS: Final = 40


def client_token_of(*, batch_id: str, host_id: str, launch_no: int, subnet_id: str) -> str:
    """The token of one launch in one subnet.

    The subnet is part of it because EC2 compares tokens within an Availability Zone only: the same token in another
    zone would launch a second machine.
    """
    return hashlib.sha256(f"{batch_id}|{host_id}|{launch_no}|{subnet_id}".encode()).hexdigest()[:TOKEN_CHARS]


def tags_of(
    *, batch_id: str, rollout_id: str, host_id: str, owner: str, client_token: str, expires_at: datetime
) -> dict[str, str]:
    """What stands on instance, volumes and network interface."""
    assert batch_id, "an empty batch id would make the tags of all batches equal"
    return {
        BATCH_TAG: batch_id,
        ROLLOUT_TAG: rollout_id,
        HOST_TAG: host_id,
        OWNER_TAG: owner,
        TOKEN_TAG: client_token,
        EXPIRES_TAG: expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        NAME_TAG: f"autocad-bench {rollout_id}",
    }


def expires_at_of(tags: Mapping[str, str]) -> datetime | None:
    """The time in `ExpiresAt`; null when there is none that can be read."""
    try:
        found = datetime.fromisoformat(tags[EXPIRES_TAG])
    except (KeyError, ValueError):
        return None
    return found if found.tzinfo is not None else None


def expiry_name_of(host_id: str) -> str:
    """The name of the host's one-time EventBridge schedule."""
    return f"autocad-bench-{host_id}"
