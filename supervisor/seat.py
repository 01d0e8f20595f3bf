"""One assignment's seat in its batch: what its sandbox works with, and the files that it writes."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio

from contract.batch_records import RolloutRow
from contract.broker_api import FrameInfo
from contract.errors import DiskError
from contract.phases import Cause
from contract.rollout_records import HostAddress, ModelChoice, RolloutSpec, TaskBrief
from contract.run_dir import BatchDir, RunDir
from supervisor.child import open_log
from supervisor.choices import AWS_PROVIDERS
from supervisor.costs import BatchCosts
from supervisor.equipment import Equipment
from supervisor.hosts.lease import Host
from supervisor.ledger import Ledger
from supervisor.prepared import PreparedBatch, PreparedRollout
from supervisor.refusal import Refusal
from supervisor.state import StateBook


@dataclass(frozen=True, slots=True)
class Seat:
    """Everything that is fixed while one rollout is brought up, played and ended.

    `stop` is set when nothing may be started any more and pilots are to end at their turn's boundary. `say` prints one
    line for people.
    """

    batch_id: str
    batch_dir: BatchDir
    prepared: PreparedBatch
    rollout: PreparedRollout
    book: StateBook
    ledger: Ledger
    equipment: Equipment
    stop: anyio.Event
    costs: BatchCosts
    refusal: Refusal
    say: Callable[[str], None]

    @property
    def rollout_id(self) -> str:
        return self.rollout.assignment.rollout_id

    @property
    def run_dir(self) -> RunDir:
        return self.batch_dir.rollout(self.rollout_id)

    @property
    def row(self) -> RolloutRow:
        return self.book.row(self.rollout_id)

    def name_fault(self, error: Exception) -> tuple[Cause, str]:
        """Cause and line for people when something of ours failed in a way that has no class; its log has the rest."""
        with suppress(DiskError), open_log(self.batch_dir.log(self.rollout_id)) as log:
            log.write("".join(traceback.format_exception(error)).encode())
        return Cause.UNKNOWN, f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class HandedOff:
    """A host that was proven, leased and reset for this rollout. From here the sample counts."""

    host: Host
    base_url: str
    lease_id: str
    lease_generation: int
    first_frame: FrameInfo
    is_resume: bool = False


def needs_aws(rollout: PreparedRollout) -> bool:
    """True when the model is paid with an AWS account: its pilot holds a token for credentials instead of a key."""
    return rollout.assignment.provider in AWS_PROVIDERS


def spec_of(seat: Seat, handed: HandedOff, *, credentials_url: str | None = None) -> RolloutSpec:
    """What the pilot is told. `credentials_url` is where its token for AWS credentials is good."""
    rollout, config = seat.rollout, seat.prepared.config
    assignment, task = rollout.assignment, rollout.task
    return RolloutSpec(
        batch_id=seat.batch_id,
        rollout_id=assignment.rollout_id,
        run_dir=str(seat.run_dir.root.absolute()),
        task=TaskBrief(
            task_id=task.task_id,
            prompt=task.prompt,
            host_notes=rollout.host_notes,
            reference=str((rollout.task_dir / task.reference).absolute()),
            reference_sha256=task.reference_sha256,
        ),
        choice=ModelChoice(
            provider=assignment.provider,
            model=assignment.model,
            profile=rollout.profile_name,
            facts=rollout.facts,
            endpoint=rollout.endpoint,
            region=rollout.region,
            credentials_url=credentials_url,
            script=None if rollout.script is None else str(rollout.script.absolute()),
            seed=assignment.seed,
        ),
        host=HostAddress(
            host_id=handed.host.host_id,
            boot_id=handed.host.boot_id,
            base_url=handed.base_url,
            lease_id=handed.lease_id,
            lease_generation=handed.lease_generation,
            first_frame=handed.first_frame,
            lost_s=seat.equipment.hosts.timing.patience.lost_s,
        ),
        limits=config.limits,
        price=rollout.price,
        is_resume=handed.is_resume,
    )
