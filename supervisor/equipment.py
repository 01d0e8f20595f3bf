"""All that a batch works with, as one value: hosts, pilots, evaluator, uploads, places, disk, time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.run_dir import RunDir
from evaluator_client.ports import UploadStore
from supervisor.admission import HostNeeds
from supervisor.aws_endpoint import Loan
from supervisor.hosts.lease import Host, HostProvider, Reach
from supervisor.launch import PilotLauncher
from supervisor.outcome import Evaluation


class SlotSource(Protocol):
    """Places for hosts: on this machine, and in the cloud's quota."""

    def slot(
        self,
        needs: HostNeeds,
        *,
        batch_id: str,
        rollout_id: str,
        has_host: bool = False,
        on_wait: Callable[[str], None],
    ) -> AbstractAsyncContextManager[None]:
        """Wait for one, and hold it inside of the block. A host that exists already (`has_host`) does not wait.

        `on_wait` is called with what is waited for, if there is none now.
        """
        ...


class Evaluator(Protocol):
    """Scores one rollout on the host that it was played on."""

    async def evaluate(
        self,
        *,
        host: Host,
        base_url: str,
        lease_id: str,
        run_dir: RunDir,
        task_id: str,
        on_fetched: Callable[[], None],
    ) -> Evaluation:
        """The whole evaluation. Never raises for what host, gold, drawing or judge did. Raises `DiskError`.

        `on_fetched` is called once the host is not needed any more.
        """
        ...


class CredentialsLender(Protocol):
    """Lends short-lived AWS credentials."""

    def lent(self) -> AbstractAsyncContextManager[Loan]:
        """An address and a token, good inside of the block. Raises `NoCredentials`."""
        ...


@dataclass(frozen=True, slots=True)
class HostTools:
    """What differs between the kinds of hosts."""

    hosts: HostProvider
    uploads: UploadStore
    slots: SlotSource


@dataclass(frozen=True, slots=True)
class Equipment:
    """What sandboxes need from outside; a test hands in its own."""

    hosts: HostProvider
    reach: Reach
    reach_for_heartbeat: Reach
    pilots: PilotLauncher
    evaluator: Evaluator
    uploads: UploadStore
    # Null when no rollout needs it.
    aws: CredentialsLender | None
    slots: SlotSource
    disk: Bridge
    ambient: Ambient
