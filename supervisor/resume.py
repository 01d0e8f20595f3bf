"""Going on with an interrupted batch in its own folder: the queued are played, the playing go on exactly or not at all.

A rollout goes on only on its very host: the same boot, lease, generation and last sequence as its checkpoint says.
Everything else would be a silent second sample, so it is void with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from contract.ambient import Ambient
from contract.batch_records import BatchState
from contract.broker_api import FrameInfo
from contract.errors import BrokerError, HostError, StateError
from contract.phases import BatchStatus, Cause, Phase
from contract.records import read_record, write_record
from contract.rollout_records import Checkpoint
from contract.run_dir import BatchDir
from supervisor.batch import Job, controller_facts, locked, run, telling_the_end
from supervisor.equipment import Equipment
from supervisor.handoff import end_host
from supervisor.hosts.lease import Host, HostBroker
from supervisor.ledger import HostHistory, read_ledger
from supervisor.prepared import PreparedBatch, PreparedRollout
from supervisor.recording import record_void
from supervisor.sandbox import go_on, play_rollout
from supervisor.seat import HandedOff, Seat

if TYPE_CHECKING:
    from rich.console import Console


async def resume(
    batch_dir: BatchDir,
    prepared: PreparedBatch,
    *,
    console: Console,
    ambient: Ambient,
    equipment: Equipment | None = None,
) -> int:
    """Finish the batch in `batch_dir`. Returns the exit status like `execute`. Raises `StateError` or `DiskError`."""
    if not batch_dir.state.is_file():
        raise StateError(
            f"{batch_dir.root} holds no batch", hint="Name the output folder of a batch that was interrupted."
        )
    with locked(batch_dir):
        before = read_record(batch_dir.state, BatchState)
        hosts = read_ledger(batch_dir.hosts)
        state = BatchState.model_validate(
            {
                **before.model_dump(),
                "status": BatchStatus.RUNNING,
                "mode": prepared.mode,
                "max_concurrency": prepared.max_concurrency,
                "updated_at": ambient.utc_now(),
                **controller_facts(),
            }
        )
        write_record(batch_dir.state, state)
        jobs = _jobs(before, prepared, hosts)
        continued = {row.host_id for row in before.rollouts if row.phase in {Phase.HANDED_OFF, Phase.EVALUATING}}
        stale = [host for host in hosts.values() if not host.is_over and host.host_id not in continued]
        with telling_the_end(batch_dir, ambient):
            return await run(
                prepared,
                batch_dir,
                state,
                jobs,
                stale_hosts=stale,
                console=console,
                ambient=ambient,
                equipment=equipment,
            )


def _jobs(
    before: BatchState, prepared: PreparedBatch, hosts: Mapping[str, HostHistory]
) -> list[tuple[PreparedRollout, Job]]:
    """What is left to do. Rollouts whose hosts may still live come first: they do not live for long."""
    rollouts = {rollout.assignment.rollout_id: rollout for rollout in prepared.rollouts}
    going_on: list[tuple[PreparedRollout, Job]] = []
    waiting: list[tuple[PreparedRollout, Job]] = []
    for row in before.rollouts:
        rollout = rollouts.get(row.rollout_id)
        if rollout is None:
            continue
        if row.phase in {Phase.HANDED_OFF, Phase.EVALUATING}:
            history = hosts.get(row.host_id or "")
            going_on.append((rollout, partial(continue_rollout, history=history, controller_pid=before.controller_pid)))
        elif row.phase in {Phase.QUEUED, Phase.STARTING, Phase.NOT_STARTED}:
            waiting.append((rollout, _play_again))
    return going_on + waiting


async def _play_again(seat: Seat) -> None:
    if seat.row.phase is not Phase.QUEUED:
        await seat.book.advance(
            seat.rollout_id, Phase.QUEUED, host_id=None, host_replacements=0, cause=None, cause_detail=None
        )
    await play_rollout(seat)


async def continue_rollout(seat: Seat, *, history: HostHistory | None, controller_pid: int) -> None:
    """Go on with a rollout that was handed off when its controller ended, or end it as void. Raises `DiskError`."""
    found = await _find_again(seat, history, controller_pid)
    if isinstance(found, HandedOff):
        await go_on(seat, found)
        return
    cause, detail = found
    seat.say(f"{seat.rollout_id}: cannot go on: {detail}")
    if history is not None and not history.is_over:
        await end_host(seat, history.host_id)
    await record_void(seat.book, seat.run_dir, cause, detail, disk=seat.equipment.disk, ambient=seat.equipment.ambient)


async def _find_again(seat: Seat, history: HostHistory | None, controller_pid: int) -> HandedOff | tuple[Cause, str]:
    """The host as it was handed off, if it is still exactly that; else cause and reason."""
    died = f"controller {controller_pid} died while this rollout was {seat.row.phase.value}"
    if history is None or not history.was_handed_off or history.is_over:
        return Cause.CONTROLLER_DIED, f"{died}, and its host is over"
    host = await seat.equipment.hosts.reattach(history, batch_id=seat.batch_id)
    if host is None:
        return Cause.CONTROLLER_DIED, f"{died}, and its host or the host's token died with it"
    try:
        base_url = await seat.equipment.hosts.open_tunnel(host)
    except HostError as error:
        return Cause.CONTROLLER_DIED, f"{died}, and its host cannot be reached: {error.message}"
    broker = seat.equipment.reach(host, base_url)
    try:
        difference = await _difference(seat, broker, host, history)
    except BrokerError as error:
        return Cause.CONTROLLER_DIED, f"{died}, and its host does not answer: {error.message}"
    except HostError as error:
        return Cause.RESUME_MISMATCH, error.message
    finally:
        broker.close()
    if difference is not None:
        return Cause.RESUME_MISMATCH, difference
    return HandedOff(
        host=host,
        base_url=base_url,
        lease_id=history.detail["lease_id"],
        lease_generation=history.detail["lease_generation"],
        first_frame=FrameInfo.model_validate(history.detail["first_frame"]),
        is_resume=True,
    )


async def _difference(seat: Seat, broker: HostBroker, host: Host, history: HostHistory) -> str | None:
    """What does not agree between ledger, checkpoint and host; null when all of it does. Raises `HostError`."""
    lease_id, generation = history.detail["lease_id"], history.detail["lease_generation"]
    await seat.equipment.hosts.prove(host, broker)
    lease = await broker.heartbeat(lease_id)
    if (lease.lease_id, lease.generation) != (lease_id, generation):
        return f"the host's lease is {lease.lease_id!r} generation {lease.generation} now"
    health = await broker.health()
    if health.driver_state != "ready":
        return f"the host's CAD program is {health.driver_state!r}"
    if seat.row.phase is Phase.EVALUATING:
        return None
    if not seat.run_dir.checkpoint.exists():
        # The checkpoint comes before the first action, so without one and at sequence 0 nothing was done: starting from
        # the frame of the hand-off is going on exactly.
        if health.last_sequence == 0:
            return None
        return f"there is no checkpoint to go on from, and the host is at sequence {health.last_sequence}"
    try:
        checkpoint = read_record(seat.run_dir.checkpoint, Checkpoint)
    except StateError as error:
        return f"the checkpoint cannot be read: {error.message}"
    marks = (checkpoint.host_id, checkpoint.boot_id, checkpoint.lease_id, checkpoint.lease_generation)
    if marks != (host.host_id, host.boot_id, lease_id, generation):
        return "the checkpoint was made on another host, boot or lease"
    # An intent may or may not have reached the host; the host's receipts decide which.
    possible = {checkpoint.sequence, checkpoint.sequence + 1} if checkpoint.stage == "intent" else {checkpoint.sequence}
    if health.last_sequence not in possible:
        return f"the host is at sequence {health.last_sequence}, the checkpoint at {checkpoint.sequence}"
    return None
