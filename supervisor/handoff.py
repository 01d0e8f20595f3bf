"""From a free place to a host that is proven, leased and reset: an acquire chain in which each thing has its undo.

Until its end nothing was sampled, so a host that fails here is ended and replaced, and an interruption puts the rollout
back into the queue. From its end on neither can happen.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from contract.broker_api import LeaseRequest, ResetReply, ResetRequest, Verdict
from contract.config import LocalHostConfig
from contract.errors import BrokerError, DiskError, HostError
from contract.phases import Cause, Phase
from contract.records import disk_error
from supervisor.hosts.lease import Host, HostBroker, HostOrder, new_host_id
from supervisor.ledger import HostEvent
from supervisor.seat import HandedOff, Seat

# Ending a local host takes tens of milliseconds, its own patience adds up to 5 s when everything hangs.
RELEASE_S: Final = 20.0
# Launch (30 s), two identity reads, lease, and two resets of 90 s each at most.
BRING_UP_S: Final = 300.0


@dataclass(slots=True)
class _Fate:
    """What the ledger will say when this host is ended."""

    event: HostEvent = "released"


async def hand_off(seat: Seat, undo: AsyncExitStack) -> HandedOff:
    """Bring up a host for this rollout, with at most `limits.host_replacements` replacements.

    `undo` gets what ends the host and frees the place. Raises `HostError` when no host could be handed off; whoever
    cancels this finds everything undone once `undo` is closed.
    """
    limits = seat.prepared.config.limits
    for replaced in range(limits.host_replacements + 1):
        is_last = replaced == limits.host_replacements
        fate = _Fate()
        host_undo = AsyncExitStack()
        undo.push_async_exit(host_undo)
        try:
            with anyio.fail_after(BRING_UP_S):
                return await _bring_up(seat, host_undo, fate)
        except (HostError, TimeoutError) as error:
            failure = _as_host_error(error)
            if fate.event == "released" and not is_last:
                fate.event = "replaced"
            await host_undo.aclose()
            seat.say(f"{seat.rollout_id}: host failed before hand-off ({failure.cause}): {failure.message}")
            if is_last:
                raise failure from error
        await seat.book.advance(seat.rollout_id, Phase.STARTING, host_id=None, host_replacements=replaced + 1)
    raise AssertionError("the last try returns or raises")


async def end_host(seat: Seat, host_id: str, fate: _Fate | None = None) -> None:
    """End a host for good and say so in the ledger. Shielded, bounded, and silent about hosts that are gone already.

    When something of it survives, the ledger does not call it over, so that the reconciler finds it.
    """
    event: HostEvent = fate.event if fate is not None else "released"
    with anyio.move_on_after(RELEASE_S, shield=True) as bound:
        try:
            await seat.equipment.hosts.terminate(host_id, batch_id=seat.batch_id)
            await seat.ledger.note(event, host_id=host_id, rollout_id=seat.rollout_id)
        except (HostError, DiskError) as error:
            seat.say(f"{seat.rollout_id}: host {host_id} could not be ended cleanly: {error}")
    if bound.cancelled_caught:
        seat.say(f"{seat.rollout_id}: host {host_id} was not ended within {RELEASE_S:.0f} s; the reconciler will try")


async def _bring_up(seat: Seat, undo: AsyncExitStack, fate: _Fate) -> HandedOff:
    equipment, rollout_id = seat.equipment, seat.rollout_id
    hosts = equipment.hosts
    host_id = new_host_id()

    await seat.ledger.note("intent", host_id=host_id, rollout_id=rollout_id)
    # Registered before the launch: a launch whose answer is lost must be undone too, and ending works by id alone.
    undo.push_async_callback(end_host, seat, host_id, fate)
    await seat.book.amend(rollout_id, host_id=host_id)

    order = HostOrder(
        host_id=host_id, batch_id=seat.batch_id, rollout_id=rollout_id, log=seat.batch_dir.log(rollout_id)
    )
    fate.event = "launch_failed"
    host = await hosts.launch(order)
    fate.event = "released"
    await seat.ledger.note("launched", host_id=host_id, rollout_id=rollout_id, **host.facts)

    undo.push_async_callback(_close_tunnel, seat, host_id)
    base_url = await hosts.open_tunnel(host)
    broker = equipment.reach(host, base_url)
    undo.callback(broker.close)

    await _prove_identity(broker, host)
    with _failing_as(Cause.LEASE):
        lease = await broker.lease(
            LeaseRequest(request_id=f"lease-{host_id}", rollout_id=rollout_id, lease_s=_lease_s(seat))
        )
    reset = await _reset(seat, broker, host_id=host_id, lease_id=lease.lease_id)

    handed = HandedOff(
        host=host,
        base_url=base_url,
        lease_id=lease.lease_id,
        lease_generation=lease.generation,
        first_frame=reset.frame,
    )
    _make_run_dir(seat)
    # One deed: once it has begun it ends, so that ledger and state agree on whether the sample counts.
    with anyio.CancelScope(shield=True):
        await seat.ledger.note(
            "handed_off",
            host_id=host_id,
            rollout_id=rollout_id,
            lease_id=lease.lease_id,
            lease_generation=lease.generation,
            first_frame=reset.frame.model_dump(mode="json"),
        )
        await seat.book.advance(rollout_id, Phase.HANDED_OFF, started_at=equipment.ambient.utc_now())
    return handed


async def _close_tunnel(seat: Seat, host_id: str) -> None:
    with anyio.move_on_after(RELEASE_S, shield=True):
        try:
            await seat.equipment.hosts.close_tunnel(host_id)
        except HostError as error:
            seat.say(f"{seat.rollout_id}: the tunnel of host {host_id} could not be closed: {error}")


async def _prove_identity(broker: HostBroker, host: Host) -> None:
    """Two reads, each bound to a nonce of its own: the same machine, in the boot that was launched."""
    with _failing_as(Cause.HOST_IDENTITY):
        for _ in range(2):
            identity = await broker.identity()
            if (identity.host_id, identity.boot_id) != (host.host_id, host.boot_id):
                raise HostError(
                    f"host {identity.host_id!r} in boot {identity.boot_id!r} answers for {host.host_id!r}",
                    cause=Cause.HOST_IDENTITY,
                    hint="Another broker took over its address; end both.",
                )


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
        seat.run_dir.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(seat.run_dir.root, error) from error


def _lease_s(seat: Seat) -> float:
    host = seat.prepared.config.host
    return host.lease_s if isinstance(host, LocalHostConfig) else 900.0


@contextmanager
def _failing_as(cause: Cause) -> Iterator[None]:
    """Name the step that failed: before hand-off it says more than the way in which it failed."""
    try:
        yield
    except HostError as error:
        raise HostError(error.message, cause=cause, hint=error.hint) from error


def _as_host_error(error: HostError | TimeoutError) -> HostError:
    if isinstance(error, HostError):
        return error
    return HostError(
        f"not handed off within {BRING_UP_S:.0f} s",
        cause=Cause.HOST_LAUNCH,
        hint="See whether this machine is overloaded.",
    )
