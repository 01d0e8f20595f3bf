"""What a host asks EC2 for, fixed when it begins, and the facts by which it is known again. Pure functions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import SecretStr

from contract.config import Ec2HostConfig
from contract.guest import GuestStart
from supervisor.cloud.ports import Instance, InstanceState, LaunchOrder
from supervisor.hosts.ec2_names import BATCH_TAG, HOST_TAG, client_token_of, tags_of
from supervisor.hosts.ec2_user_data import user_data_of
from supervisor.hosts.lease import HostOrder
from supervisor.ledger import HostHistory


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything of a launch but its number and its subnet. Holds the digest of the host's token, not the token."""

    config: Ec2HostConfig
    host_id: str
    batch_id: str
    rollout_id: str
    user_data: str
    expires_at: datetime

    def order(self, launch_no: int, subnet_id: str) -> LaunchOrder:
        """The request. Equal arguments give equal bytes, so that it may be repeated."""
        config = self.config
        client_token = client_token_of(
            batch_id=self.batch_id, host_id=self.host_id, launch_no=launch_no, subnet_id=subnet_id
        )
        return LaunchOrder(
            client_token=client_token,
            image_id=config.ami_id,
            instance_type=config.instance_type,
            subnet_id=subnet_id,
            security_group_id=config.security_group_id,
            instance_profile=config.instance_profile,
            user_data=self.user_data,
            tags=tags_of(
                batch_id=self.batch_id,
                rollout_id=self.rollout_id,
                host_id=self.host_id,
                owner=config.owner,
                client_token=client_token,
                expires_at=self.expires_at,
            ),
        )


def draft_of(config: Ec2HostConfig, order: HostOrder, token: SecretStr, *, now: datetime) -> Draft:
    """The draft for a host that begins `now`."""
    start = GuestStart(
        host_id=order.host_id,
        token_sha256=hashlib.sha256(token.get_secret_value().encode()).hexdigest(),
        driver=config.driver,
        port=config.broker_port,
        lease_s=config.lease_s,
        lifetime_s=config.lifetime_s,
    )
    return Draft(
        config=config,
        host_id=order.host_id,
        batch_id=order.batch_id,
        rollout_id=order.rollout_id,
        user_data=user_data_of(start),
        expires_at=now + timedelta(seconds=config.lifetime_s),
    )


def facts_of(instance: Instance) -> dict[str, Any]:
    """What the ledger says of a launched instance: nothing secret, and nothing that changes while it lives."""
    return {
        "instance_id": instance.instance_id,
        "client_token": instance.client_token,
        "image_id": instance.image_id,
        "instance_type": instance.instance_type,
        "subnet_id": instance.subnet_id,
        "launched_at": instance.launched_at.isoformat(),
    }


def is_same(found: Instance, history: HostHistory, *, batch_id: str) -> bool:
    """True when this is the running instance that the ledger tells of.

    A stopped and started one has another time of launch, and tags alone prove nothing.
    """
    is_ours = found.client_token in history.client_tokens and found.instance_id in history.instance_ids
    is_named = (history.host_id, batch_id) == (found.tags.get(HOST_TAG), found.tags.get(BATCH_TAG))
    is_unchanged = all(history.detail.get(name) == value for name, value in facts_of(found).items())
    return is_ours and is_named and is_unchanged and found.state is InstanceState.RUNNING
