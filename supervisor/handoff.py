"""From a free place to a host that is proven, leased and reset: an acquire chain in which each thing has its undo.

Until its end nothing was sampled, so a host that fails here is ended and replaced, and an interruption puts the rollout
back into the queue. From its end on neither can happen.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from contract.batch_records import HostEvent
from contract.broker_api import LeaseRequest, ResetReply, ResetRequest, Verdict
from contract.errors import BrokerError, DiskError, HostError, HostsRefused
from contract.phases import Cause, Phase
from contract.records import disk_error
from supervisor.heartbeats import keep_way
from supervisor.hosts.lease import Host, HostBroker, HostOrder, new_host_id
from supervisor.race import Broken, first_of
from supervisor.seat import HandedOff, Seat


@dataclass(slots=True)
class _Fate:
    """What the ledger will say when this host is ended."""

    event: HostEvent = "released"


async def hand_off(seat: Seat, undo: AsyncExitStack) -> HandedOff:
    """Bring up a host for this rollout, with at most `limits.host_replacements` replacements.

    `undo` gets what ends the host and frees the place. Raises `HostError` when no host could be handed off, at once
    where no other could be had either (`HostsRefused`); whoever cancels this finds everything undone once `undo` is
    closed.
    """
    limits = seat.prepared.config.limits
    for replaced in range(limits.host_replacements + 1):
        is_last = replaced == limits.host_replacements
        fate = _Fate()
        host_undo = AsyncExitStack()
        undo.push_async_exit(host_undo)
        try:
            return await _bring_up(seat, host_undo, fate)
        except HostsRefused:
            await host_undo.aclose()
            raise
        except HostError as error:
            failure = error
            if fate.event == "released" and not is_last:
                fate.event = "replaced"
            await host_undo.aclose()
            seat.say(f"{seat.rollout_id}: host failed before hand-off ({failure.cause}): {failure.message}")
            if is_last:
                raise
        await seat.book.advance(seat.rollout_id, Phase.STARTING, host_id=None, host_replacements=replaced + 1)
    raise AssertionError("the last try returns or raises")


async def end_host(seat: Seat, host_id: str, fate: _Fate | None = None) -> None:
    """End a host for good and say so in the ledger. Shielded, bounded, and silent about hosts that are gone already.

    When something of it survives, the ledger does not call it over, so that the reconciler finds it.
    """
    event: HostEvent = fate.event if fate is not None else "released"
    release_s = seat.equipment.hosts.timing.release_s
    with anyio.move_on_after(release_s, shield=True) as bound:
        try:
            await seat.equipment.hosts.terminate(host_id, batch_id=seat.batch_id)
            await seat.ledger.note(event, host_id=host_id, rollout_id=seat.rollout_id)
        except (HostError, DiskError) as error:
            seat.say(f"{seat.rollout_id}: host {host_id} could not be ended cleanly: {error}")
    if bound.cancelled_caught:
        seat.say(f"{seat.rollout_id}: host {host_id} was not ended within {release_s:.0f} s; the reconciler will try")


async def _bring_up(seat: Seat, undo: AsyncExitStack, fate: _Fate) -> HandedOff:
    rollout_id, hosts = seat.rollout_id, seat.equipment.hosts
    host_id = new_host_id()

    await seat.ledger.note("intent", host_id=host_id, rollout_id=rollout_id)
    # Registered before the launch: a launch whose answer is lost must be undone too, and ending works by id alone.
    undo.push_async_callback(end_host, seat, host_id, fate)
    await seat.book.amend(rollout_id, host_id=host_id)

    order = HostOrder(
        host_id=host_id,
        batch_id=seat.batch_id,
        rollout_id=rollout_id,
        log=seat.batch_dir.log(rollout_id),
        note=partial(_note, seat, host_id),
        say=seat.say,
    )
    fate.event = "launch_failed"
    host = await hosts.launch(order)
    fate.event = "released"
    await seat.ledger.note("launched", host_id=host_id, rollout_id=rollout_id, **host.facts)

    with anyio.move_on_after(hosts.timing.hand_off_s):
        return await _prove_and_reset(seat, undo, host)
    raise HostError(
        f"not handed off within {hosts.timing.hand_off_s:.0f} s after its launch",
        cause=Cause.HOST_LAUNCH,
        hint="See the host's log and whether this machine is overloaded.",
    )


async def _note(seat: Seat, host_id: str, event: HostEvent, detail: dict[str, Any]) -> None:
    await seat.ledger.note(event, host_id=host_id, rollout_id=seat.rollout_id, **detail)


async def _prove_and_reset(seat: Seat, undo: AsyncExitStack, host: Host) -> HandedOff:
    rollout_id, host_id, hosts = seat.rollout_id, host.host_id, seat.equipment.hosts
    undo.push_async_callback(_close_tunnel, seat, host_id)
    base_url = await hosts.open_tunnel(host)
    broker = seat.equipment.reach(host, base_url)
    undo.callback(broker.close)

    # Host and way may be lost here too, and the calls are so patient that without a watch they would wait in vain.
    made_ready = await first_of(
        partial(_make_ready, seat, broker, host, base_url),
        partial(keep_way, seat, host, base_url),
        partial(hosts.wait_ended, host_id),
    )
    if isinstance(made_ready, Broken):
        raise HostError(
            f"{made_ready.reason} before its hand-off",
            cause=Cause.HOST_LAUNCH,
            hint="See the host's log and who ended it.",
        )
    handed = made_ready.value
    _make_run_dir(seat)
    # One deed: once it has begun it ends, so that ledger and state agree on whether the sample counts.
    with anyio.CancelScope(shield=True):
        await seat.ledger.note(
            "handed_off",
            host_id=host_id,
            rollout_id=rollout_id,
            boot_id=handed.host.boot_id,
            lease_id=handed.lease_id,
            lease_generation=handed.lease_generation,
            first_frame=handed.first_frame.model_dump(mode="json"),
        )
        await seat.book.advance(rollout_id, Phase.HANDED_OFF, started_at=seat.equipment.ambient.utc_now())
    return handed


async def _make_ready(seat: Seat, broker: HostBroker, host: Host, base_url: str) -> HandedOff:
    """What is handed off: the host once it has proven itself, is leased, and shows the start drawing."""
    with _failing_as(Cause.HOST_IDENTITY):
        host = await seat.equipment.hosts.prove(host, broker)
    with _failing_as(Cause.LEASE):
        lease = await broker.lease(
            LeaseRequest(
                request_id=f"lease-{host.host_id}",
                rollout_id=seat.rollout_id,
                lease_s=seat.prepared.config.host.lease_s,
            )
        )
    reset = await _reset(seat, broker, host_id=host.host_id, lease_id=lease.lease_id)
    return HandedOff(
        host=host,
        base_url=base_url,
        lease_id=lease.lease_id,
        lease_generation=lease.generation,
        first_frame=reset.frame,
    )


async def _close_tunnel(seat: Seat, host_id: str) -> None:
    with anyio.move_on_after(seat.equipment.hosts.timing.release_s, shield=True):
        try:
            await seat.equipment.hosts.close_tunnel(host_id)
        except HostError as error:
            seat.say(f"{seat.rollout_id}: the tunnel of host {host_id} could not be closed: {error}")


async def _reset(seat: Seat, broker: HostBroker, *, host_id: str, lease_id: str) -> ResetReply:
    """The exact reset; replayed once, under the same request id, when it fails."""
    task = seat.rollout.task
    path = seat.rollout.task_dir / task.start_drawing
    try:
        drawing = await seat.equipment.disk.call(path.read_bytes)
    except OSError as error:
        raise HostError(
            f"cannot read the start drawing {path}: {error.strerror or error}",
            cause=Cause.RESET,
            hint="Restore the task suite.",
        ) from error
    request = ResetRequest(
        request_id=f"reset-{host_id}",
        lease_id=lease_id,
        task_id=task.task_id,
        start_drawing_base64=base64.b64encode(drawing).decode(),
        start_drawing_sha256=task.start_drawing_sha256,
    )
    with _failing_as(Cause.RESET):
        try:
            reply = await broker.reset(request)
        except BrokerError:
            if seat.equipment.hosts.has_ended(host_id):
                raise
            reply = await broker.reset(request)
        if reply.frame.verdict is not Verdict.OK:
            raise HostError(
                f"the desktop is {reply.frame.verdict.value!r} after its reset",
                cause=Cause.RESET,
                hint="See the host's log; the start drawing may open a dialog.",
            )
    return reply


def _make_run_dir(seat: Seat) -> None:
    try:
        seat.run_dir.root.mkdir(exist_ok=True)
    except OSError as error:
        raise disk_error(seat.run_dir.root, error) from error


@contextmanager
def _failing_as(cause: Cause) -> Iterator[None]:
    """Name the step that failed: before hand-off it says more than the way in which it failed."""
    try:
        yield
    except HostError as error:
        raise HostError(error.message, cause=cause, hint=error.hint) from error
