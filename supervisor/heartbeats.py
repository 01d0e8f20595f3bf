"""Whoever uses a host keeps asking how it is, and has a broken way to it mended: before its hand-off and after."""

from __future__ import annotations

from typing import Final, NoReturn

import anyio

from contract.broker_api import ErrorCode, Health
from contract.errors import BrokerError, HostError
from contract.phases import Cause
from supervisor.hosts.lease import Host
from supervisor.outcome import HostLoss
from supervisor.seat import HandedOff, Seat

# With many rollouts the heartbeats together stay under a tenth of a core (2 ms each).
HEARTBEAT_S_PER_ROLLOUT: Final = 0.02

# What the states of a driver that is lost mean for its rollout.
LOSSES: Final = {
    "cad_died": HostLoss(Cause.CAD_DIED, "the CAD program died"),
    "cad_hung": HostLoss(Cause.CAD_HUNG, "the CAD program hangs"),
    "display_died": HostLoss(Cause.DISPLAY_DIED, "the X server or its window manager died"),
}


async def keep_way(seat: Seat, host: Host, base_url: str) -> NoReturn:
    """Until it is cancelled: have the way mended when it breaks or carries nothing, while the host is made ready.

    Whether a host that stays silent is given up is its caller's matter. Raises `HostError` (`tunnel`) when there is no
    way any more.
    """
    hosts = seat.equipment.hosts
    broker = seat.equipment.reach_for_heartbeat(host, base_url)
    misses = 0
    try:
        while True:
            await _pause(seat, host)
            try:
                await broker.health()
                misses = 0
            except BrokerError as error:
                misses += _is_silence(error)
                await hosts.mend_tunnel(host.host_id, misses=misses)
    finally:
        broker.close()


async def watch_health(seat: Seat, handed: HandedOff) -> HostLoss:
    """Ask the broker at intervals how it and its CAD program are, and have a broken way to it mended.

    Each answer also keeps the lease, and shows that the host is still in the boot that was handed off.
    """
    hosts, host = seat.equipment.hosts, handed.host
    broker = seat.equipment.reach_for_heartbeat(host, handed.base_url)
    misses = 0
    try:
        while True:
            await _pause(seat, host)
            try:
                health = await broker.health()
            except BrokerError as error:
                misses += _is_silence(error)
                if misses >= hosts.timing.misses_max:
                    return HostLoss(Cause.BROKER_UNREACHABLE, error.message)
                try:
                    await hosts.mend_tunnel(host.host_id, misses=misses)
                except HostError as lost:
                    return HostLoss(lost.cause, lost.message)
                continue
            misses = 0
            if (loss := _loss_told_by(health, host)) is not None:
                return loss
            hosts.renew(host)
    finally:
        broker.close()


async def last_look(seat: Seat, handed: HandedOff) -> HostLoss | None:
    """What a host that may be dying shows when it is asked once more; null when it is sound, or cannot be asked."""
    hosts, host = seat.equipment.hosts, handed.host
    broker = seat.equipment.reach_for_heartbeat(host, handed.base_url)
    try:
        with anyio.move_on_after(hosts.timing.last_look_s):
            return _loss_told_by(await broker.health(), host)
    except BrokerError:
        pass
    finally:
        broker.close()
    return None


async def _pause(seat: Seat, host: Host) -> None:
    """Until the next heartbeat is due, or the way is known to be broken."""
    hosts = seat.equipment.hosts
    pause_s = max(hosts.timing.heartbeat_s, HEARTBEAT_S_PER_ROLLOUT * seat.prepared.max_concurrency)
    with anyio.move_on_after(pause_s):
        await hosts.wait_tunnel_broken(host.host_id)


def _is_silence(error: BrokerError) -> bool:
    return error.code in {ErrorCode.UNREACHABLE, ErrorCode.PROTOCOL}


def _loss_told_by(health: Health, host: Host) -> HostLoss | None:
    if health.boot_id != host.boot_id:
        detail = f"the host is in boot {health.boot_id!r}, and was handed off in {host.boot_id!r}"
        return HostLoss(Cause.HOST_REBOOTED, detail)
    return LOSSES.get(health.driver_state)
