"""An instance's one-time EventBridge schedule: it ends the instance even when controller and guest are both dead.

Optional, and never a reason to fail: the guest's dead-man timer and the `ExpiresAt` tag are there without it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from contract.config import Ec2HostConfig
from supervisor.cloud.ports import CloudError, Instance
from supervisor.hosts.ec2_asking import Asker
from supervisor.hosts.ec2_names import expiry_name_of

EXPIRY_S: Final = 20.0


class Expiry:
    """Makes and removes schedules, where the config names a role for them."""

    def __init__(self, asker: Asker, config: Ec2HostConfig, *, say: Callable[[str], None]) -> None:
        self._asker = asker
        self._role_arn = config.expiry_role_arn
        self._lifetime_s = config.lifetime_s
        self._say = say

    async def create(self, host_id: str, instance: Instance) -> None:
        """Have AWS end the instance when its lifetime is over."""
        role_arn = self._role_arn
        if role_arn is None:
            return
        at = instance.launched_at + timedelta(seconds=self._lifetime_s)
        try:
            await self._asker.ask(
                lambda cloud: cloud.create_expiry(
                    expiry_name_of(host_id), instance_id=instance.instance_id, at=at, role_arn=role_arn
                ),
                patience_s=EXPIRY_S,
            )
        except CloudError as error:
            self._say(f"no schedule will end instance {instance.instance_id}: {error.message}")

    async def delete(self, host_id: str) -> None:
        """The host is over. A schedule that stays deletes itself, after a call that finds nothing."""
        if self._role_arn is None:
            return
        try:
            await self._asker.ask(lambda cloud: cloud.delete_expiry(expiry_name_of(host_id)), patience_s=EXPIRY_S)
        except CloudError as error:
            self._say(f"the schedule of host {host_id} could not be deleted: {error.message}")
