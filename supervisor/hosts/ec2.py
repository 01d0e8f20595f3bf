"""Hosts on EC2: a fresh instance for each rollout, behind a tunnel of its own.

This module is the order of things; what each of them decides stands beside it: `ec2_launch` (where and with which
token), `ec2_watch` (what became of it), `ec2_way` (how its broker is reached), `ec2_ending` (how it is ended).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, Self

import anyio
import anyio.abc
from pydantic import SecretStr

from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.config import Ec2HostConfig
from contract.errors import HostError
from contract.phases import Cause
from supervisor.cloud.ports import Cloud, CloudError, Instance
from supervisor.hosts.ec2_asking import Asker, Pace
from supervisor.hosts.ec2_draft import draft_of, facts_of, is_same
from supervisor.hosts.ec2_ending import Ender, ReadLedger
from supervisor.hosts.ec2_expiry import Expiry
from supervisor.hosts.ec2_launch import LaunchBook, Launcher
from supervisor.hosts.ec2_live import Live, end_of
from supervisor.hosts.ec2_timing import timing_of
from supervisor.hosts.ec2_watch import POLL_S, Watcher
from supervisor.hosts.ec2_way import MEND_S, MakeRelay, MakeTunnel, Way
from supervisor.hosts.folders import SCRATCH, remove_traces
from supervisor.hosts.identity import verify_instance
from supervisor.hosts.lease import Host, HostBroker, HostOrder, LostState
from supervisor.hosts.proof import prove_twice
from supervisor.hosts.relay import StablePort
from supervisor.keyring import TokenStore
from supervisor.ledger import HostHistory
from supervisor.race import Broken, first_of

# The token outlives a controller for as long as its host does, and a little longer: the host decides.
TOKEN_MARGIN_S: Final = 60.0
# A describe call that must come through before a host that may still live is given up.
REATTACH_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Parts:
    """What `Ec2Hosts.opened` was given."""

    config: Ec2HostConfig
    cloud: Cloud
    cloud_bridge: Bridge
    tunnels: MakeTunnel
    certificate: bytes
    broker_version: str
    account: str | None
    tokens: TokenStore
    ledger: ReadLedger
    batch_id: str
    ambient: Ambient
    relays: MakeRelay
    on_quota_refused: Callable[[], None]
    poll_s: tuple[float, float]


class Ec2Hosts:
    """Launches, reaches and ends instances. Made by `opened`, which keeps its watcher and its ports running."""

    def __init__(self, parts: _Parts, group: anyio.abc.TaskGroup) -> None:
        config, ambient = parts.config, parts.ambient
        self.kind: Literal["local", "ec2"] = "ec2"
        self.extension = "dwg" if config.driver == "autocad" else "dxf"
        self.timing = timing_of(config)
        self._parts = parts
        self._config = config
        self._group = group
        self._ambient = ambient
        self._tokens = parts.tokens
        self._batch_id = parts.batch_id
        self._live: dict[str, Live] = {}
        self._has_had_hosts = False
        # Whoever launched last hears what concerns all of them.
        self._listener: Callable[[str], None] | None = None
        self._asker = Asker(parts.cloud, parts.cloud_bridge, ambient)
        self._watcher = Watcher(
            self._asker, ambient, batch_id=parts.batch_id, owner=config.owner, say=self._say, poll_s=parts.poll_s
        )
        self._ender = Ender(self._asker, ambient, batch_id=parts.batch_id, owner=config.owner, ledger=parts.ledger)
        self._expiry = Expiry(self._asker, config, say=self._say)
        self._launcher = Launcher(
            self._asker,
            ambient,
            subnet_ids=config.subnet_ids,
            pace=Pace(ambient),
            wait_past_pending=self._wait_past_pending,
            on_quota_refused=parts.on_quota_refused,
        )

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        config: Ec2HostConfig,
        *,
        cloud: Cloud,
        cloud_bridge: Bridge,
        tunnels: MakeTunnel,
        certificate: bytes,
        broker_version: str,
        account: str | None,
        tokens: TokenStore,
        ledger: ReadLedger,
        batch_id: str,
        ambient: Ambient,
        relays: MakeRelay = lambda say: StablePort.bound(say=say),
        on_quota_refused: Callable[[], None] = lambda: None,
        poll_s: tuple[float, float] = POLL_S,
    ) -> AsyncIterator[Self]:
        """Hosts for one batch, until the block ends; whoever leaves it has ended them before.

        `certificate` (PEM), `broker_version` and `account` are what a host's proof is held to. `ledger` reads the
        batch's. `on_quota_refused` is called when AWS's vCPU limit turned a launch away. `poll_s` are the seconds
        between two looks while something boots, and else.
        """
        assert batch_id, "instances are found by it"
        parts = _Parts(
            config=config,
            cloud=cloud,
            cloud_bridge=cloud_bridge,
            tunnels=tunnels,
            certificate=certificate,
            broker_version=broker_version,
            account=account,
            tokens=tokens,
            ledger=ledger,
            batch_id=batch_id,
            ambient=ambient,
            relays=relays,
            on_quota_refused=on_quota_refused,
            poll_s=poll_s,
        )
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            hosts = cls(parts, group)
            group.start_soon(hosts._watcher.run)
            try:
                yield hosts
            except Exception as error:  # noqa: BLE001  (raised again below, outside of the group)
                failure = error
            finally:
                await hosts._close_ways()
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def launch(self, order: HostOrder) -> Host:
        """An instance whose SSM agent is online. Raises `HostError` (`host_launch`).

        Waiting for quota is not bounded while other hosts of the batch live; from the launch on `boot_s` is the bound.
        """
        token = SecretStr(secrets.token_urlsafe(32))
        draft = draft_of(self._config, order, token, now=self._ambient.utc_now())
        book = LaunchBook()
        live = self._live[order.host_id] = Live(order.rollout_id, order.say, book)
        self._has_had_hosts = True
        self._listener = order.say
        live.instance = await self._launcher.launch(
            order, draft.order, book, are_others_alive=partial(self._are_others_alive, order.host_id)
        )
        live.boot_until_s = self._ambient.elapsed_s() + self._boot_left_s(live.instance)
        self._keep_token(order.host_id, token)
        await self._expiry.create(order.host_id, live.instance)
        await self._wait_agent(live, live.instance)
        return Host(
            host_id=order.host_id,
            rollout_id=order.rollout_id,
            boot_id="",
            base_url="",
            token=token,
            facts=facts_of(live.instance),
        )

    async def open_tunnel(self, host: Host) -> str:
        """The address of a port that stays the same. Waits for the broker within `boot_s` of the launch."""
        live = self._live[host.host_id]
        assert live.instance is not None, "a host that was launched or found again has one"
        instance_id = live.instance.instance_id
        try:
            relay = self._parts.relays(live.say)
        except OSError as error:
            raise HostError(
                f"no port is free on loopback: {error}",
                cause=Cause.TUNNEL,
                hint="Raise the limit of open files of this user.",
            ) from error
        way = Way(self._parts.tunnels(host, instance_id, live.say), relay)
        live.ways.append(way)
        within_s = max(MEND_S, live.boot_until_s - self._ambient.elapsed_s())
        opened = await first_of(
            lambda: way.open(self._group, within_s=within_s), lambda: self._watcher.wait_ended(instance_id)
        )
        if isinstance(opened, Broken):
            raise _launch_error(f"{end_of(opened.reason)} before its broker answered")
        return way.address

    async def prove(self, host: Host, broker: HostBroker) -> Host:
        """Twice the same boot, signed by AWS for the very instance that was launched."""
        identity = await prove_twice(host, broker)
        instance = self._live[host.host_id].instance
        assert instance is not None, "a host that was launched or found again has one"
        verify_instance(
            identity,
            certificate=self._parts.certificate,
            instance=instance,
            region=self._config.region,
            account=self._parts.account,
            broker_version=self._parts.broker_version,
            booted_after=instance.launched_at,
        )
        self._keep_token(host.host_id, host.token)
        return replace(host, boot_id=identity.boot_id)

    async def wait_tunnel_broken(self, host_id: str) -> None:
        """Return when the tunnel's process has ended, once for each."""
        live = self._live.get(host_id)
        if live is None or not live.ways:
            await anyio.sleep_forever()
            return
        await live.ways[-1].wait_broken()

    async def mend_tunnel(self, host_id: str, *, misses: int) -> None:
        """A fresh tunnel behind the same port, when the old one has ended or carries nothing any more."""
        live = self._live.get(host_id)
        if live is not None and live.ways:
            await live.ways[-1].mend(misses=misses)

    async def close_tunnel(self, host_id: str) -> None:
        """End the plugin, its session and the port."""
        live = self._live.get(host_id)
        while live is not None and live.ways:
            await live.ways[-1].close()
            live.ways.pop()

    async def wait_ended(self, host_id: str) -> str:
        """Wait until EC2 shows the instance as stopping or gone."""
        live = self._live.get(host_id)
        if live is None or live.instance is None:
            await anyio.sleep_forever()
            raise AssertionError("unreachable")
        return end_of(await self._watcher.wait_ended(live.instance.instance_id))

    async def wait_lost(self, host_id: str) -> LostState:
        """An instance says nothing by itself: its health is asked for."""
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    def has_ended(self, host_id: str) -> bool:
        """True when EC2 has shown it so."""
        live = self._live.get(host_id)
        return live is not None and live.instance is not None and self._watcher.has_ended(live.instance.instance_id)

    async def terminate(self, host_id: str, *, batch_id: str) -> None:
        """One TerminateInstances, repeated until AWS accepts it, and the end of the way to it.

        Raises `HostError` when AWS does not accept it, or when nobody knows what a lost launch has made.
        """
        self._check_batch(batch_id)
        live = self._live.get(host_id)
        try:
            if live is not None and live.book is not None:
                await self._ender.end_book(live.book, is_over=self._watcher.has_ended)
            else:
                await self._ender.end_host(host_id)
        finally:
            await self.close_tunnel(host_id)
        await self._forget(host_id)

    async def terminate_all(self, host_ids: Collection[str], *, batch_id: str) -> None:
        """One TerminateInstances for all, after one look: that of `find_leftovers`, if there was one just now."""
        self._check_batch(batch_id)
        books = {host_id: live.book for host_id, live in self._live.items() if live.book is not None}
        try:
            await self._ender.end_hosts(host_ids, books)
        finally:
            for host_id in host_ids:
                await self.close_tunnel(host_id)
        for host_id in host_ids:
            await self._forget(host_id)

    async def reattach(self, history: HostHistory, *, batch_id: str) -> Host | None:
        """The instance of an earlier controller: running, with the same facts as at its launch, and its token known."""
        self._check_batch(batch_id)
        token = self._tokens.recall(history.host_id)
        instance_id = history.detail.get("instance_id")
        if token is None or not isinstance(instance_id, str):
            return None
        try:
            found = await self._asker.ask(
                lambda cloud: cloud.find_instances({"instance-id": [instance_id]}), patience_s=REATTACH_S
            )
        except CloudError:
            return None
        if len(found) != 1 or not is_same(found[0], history, batch_id=batch_id):
            return None
        live = self._live[history.host_id] = Live(history.rollout_id, self._say, instance=found[0])
        live.boot_until_s = self._ambient.elapsed_s() + MEND_S
        self._has_had_hosts = True
        self._watcher.watch(found[0], is_booting=False)
        return Host(
            host_id=history.host_id,
            rollout_id=history.rollout_id,
            boot_id=str(history.detail.get("boot_id", "")),
            base_url="",
            token=token,
            facts=facts_of(found[0]),
        )

    def renew(self, host: Host) -> None:
        """Keep the token in the keyring for a little longer than the host would live without us."""
        self._tokens.keep(host.host_id, host.token, lifetime_s=self._config.lease_s + TOKEN_MARGIN_S)

    async def find_leftovers(self, host_ids: Collection[str], *, batch_id: str) -> dict[str, str]:
        """Those with an instance alive, and, once this controller has had hosts of its own, also closed ones of it."""
        self._check_batch(batch_id)
        return await self._ender.find(host_ids, with_closed=self._has_had_hosts)

    async def _wait_past_pending(self, instance: Instance) -> Instance:
        self._watcher.watch(instance)
        with anyio.move_on_after(self._boot_left_s(instance)):
            return await self._watcher.wait_past_pending(instance.instance_id)
        raise _launch_error(f"instance {instance.instance_id} did not run within {self._config.boot_s:.0f} s")

    async def _wait_agent(self, live: Live, instance: Instance) -> None:
        name = instance.instance_id
        with anyio.move_on_after(max(0.0, live.boot_until_s - self._ambient.elapsed_s())):
            reached = await first_of(lambda: self._watcher.wait_agent(name), lambda: self._watcher.wait_ended(name))
            if isinstance(reached, Broken):
                raise _launch_error(f"{end_of(reached.reason)} while it booted")
            return
        raise _launch_error(f"the SSM agent of instance {name} was not online within {self._config.boot_s:.0f} s")

    def _boot_left_s(self, instance: Instance) -> float:
        since_s = (self._ambient.utc_now() - instance.launched_at).total_seconds()
        # The clocks of AWS and this machine may differ a little.
        return min(self._config.boot_s, self._config.boot_s - since_s)

    def _are_others_alive(self, host_id: str) -> bool:
        return any(
            live.instance is not None and not self._watcher.has_ended(live.instance.instance_id)
            for other, live in self._live.items()
            if other != host_id
        )

    def _keep_token(self, host_id: str, token: SecretStr) -> None:
        # Until the first heartbeat: the hand-off may take a while.
        lifetime_s = self.timing.hand_off_s + self._config.lease_s + TOKEN_MARGIN_S
        self._tokens.keep(host_id, token, lifetime_s=lifetime_s)

    async def _forget(self, host_id: str) -> None:
        """Drop what was kept of a host that is over."""
        live = self._live.pop(host_id, None)
        if live is not None:
            for instance_id in live.instance_ids:
                self._watcher.forget(instance_id)
        self._tokens.forget(host_id)
        remove_traces(SCRATCH, host_id)
        await self._expiry.delete(host_id)

    async def _close_ways(self) -> None:
        with anyio.CancelScope(shield=True):
            for host_id in tuple(self._live):
                await self.close_tunnel(host_id)

    def _say(self, line: str) -> None:
        if self._listener is not None:
            self._listener(line)

    def _check_batch(self, batch_id: str) -> None:
        assert batch_id == self._batch_id, "a provider serves one batch"


def _launch_error(message: str) -> HostError:
    return HostError(
        message,
        cause=Cause.HOST_LAUNCH,
        hint="See the instance's console output; image, instance profile and the way to SSM decide it.",
    )
