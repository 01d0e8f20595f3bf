"""Who finds and ends hosts that no controller looks after, one for each kind of host.

A keeper proves by the batch's own ledger what is the batch's, and touches nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from contract.bridge import ThreadBridge
from contract.config import BatchConfig, Ec2HostConfig, LocalHostConfig
from contract.errors import HostError, StateError
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.cloud.ports import Cloud, Instance
from supervisor.hosts.folders import SCRATCH, remove_traces
from supervisor.hosts.local import LocalHosts
from supervisor.keyring import KernelKeyring
from supervisor.ledger import HostHistory, read_ledger
from supervisor.processes import processes_of_hosts

OpenCloud = Callable[[Ec2HostConfig], Cloud]


@dataclass(frozen=True, slots=True)
class LeftHost:
    """A host of which something is alive although no controller looks after it.

    `processes` are those of a local host; `instance_id` names a cloud host.
    """

    host_id: str
    rollout_id: str
    processes: tuple[int, ...] = ()
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What is alive of one batch. `strangers` are instances with its tags that its ledger does not know."""

    left: tuple[LeftHost, ...] = ()
    strangers: tuple[str, ...] = ()


class Keeper(Protocol):
    """Looks after the hosts of one batch. Calls raise `HostError` when it cannot be known what is alive."""

    def look(self) -> Look:
        """What is alive. Changes nothing."""
        ...

    async def end(self) -> None:
        """End all of it, in one pass."""
        ...


class LocalKeeper:
    """For hosts on this machine: processes that carry a host's id."""

    def __init__(self, config: LocalHostConfig, hosts: Mapping[str, HostHistory], *, batch_id: str) -> None:
        self._config = config
        self._hosts = {host_id: host for host_id, host in hosts.items() if not host.is_over}
        self._batch_id = batch_id

    def look(self) -> Look:
        """The processes of hosts that nobody has seen end."""
        pids: dict[str, list[int]] = {}
        for process in processes_of_hosts(self._hosts, batch_id=self._batch_id):
            pids.setdefault(process.host_id, []).append(process.pid)
        return Look(
            tuple(
                LeftHost(host_id, self._hosts[host_id].rollout_id, processes=tuple(sorted(numbers)))
                for host_id, numbers in pids.items()
            )
        )

    async def end(self) -> None:
        """Kill them, and remove the private folders also of hosts of which nothing is alive."""
        if self._hosts:
            hosts = LocalHosts(self._config, bridge=ThreadBridge(2), tokens=KernelKeyring())
            await hosts.terminate_all(self._hosts, batch_id=self._batch_id)


class Ec2Keeper:
    """For instances: by tag, by the ids and by the client tokens of the ledger."""

    def __init__(
        self,
        cloud: Cloud,
        hosts: Mapping[str, HostHistory],
        *,
        batch_id: str,
        owner: str,
        utc_now: Callable[[], datetime],
    ) -> None:
        self._utc_now = utc_now
        self._cloud = cloud
        self._hosts = hosts
        self._batch_id = batch_id
        self._owner = owner

    def look(self) -> Look:
        """Also hosts that the ledger calls over: AWS may have taken an ending back, or shown it too early."""
        from supervisor.hosts.ec2_leftovers import look

        found = look(self._cloud, self._hosts.values(), batch_id=self._batch_id, owner=self._owner)
        left = tuple(
            LeftHost(left.host_id, self._hosts[left.host_id].rollout_id, instance_id=left.instance.instance_id)
            for left in found.ours
        )
        return Look(left, tuple(sorted(instance.instance_id for instance in found.strangers)))

    async def end(self) -> None:
        """Look, and one TerminateInstances for what was found.

        A launch so young that no index shows it yet is found by the next look: closed batches are looked at by tag.
        """
        from supervisor.hosts import ec2_leftovers

        histories = self._hosts.values()
        bridge = ThreadBridge(1)
        found = await bridge.call(
            partial(ec2_leftovers.look, self._cloud, histories, batch_id=self._batch_id, owner=self._owner)
        )
        await bridge.call(partial(ec2_leftovers.end, self._cloud, found, now=self._utc_now()))
        for host_id in self._hosts:
            remove_traces(SCRATCH, host_id)


class NothingLeft:
    """For a batch of which nothing can be alive: its ledger is closed, and its account shows no instance of it."""

    def look(self) -> Look:
        """Nothing."""
        return Look()

    async def end(self) -> None:
        """Nothing to end."""


@dataclass(slots=True)
class Keepers:
    """Makes keepers. Each cloud account is opened once, and asked once which batches have anything alive in it."""

    open_cloud: OpenCloud
    utc_now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _clouds: dict[tuple[str, str | None], Cloud] = field(default_factory=dict)
    _alive: dict[tuple[str, str | None, str], tuple[Instance, ...]] = field(default_factory=dict)
    _seen: dict[tuple[str, str | None, str], Ec2HostConfig] = field(default_factory=dict)

    def keeper_of(self, batch_dir: BatchDir, batch_id: str) -> Keeper:
        """The keeper for this batch's kind of host. Raises `StateError`, or `HostError` when its cloud is shut."""
        hosts = read_ledger(batch_dir.hosts)
        config = _host_config(batch_dir)
        kinds = {host.kind for host in hosts.values()}
        if "ec2" not in kinds and not isinstance(config, Ec2HostConfig):
            local = config or LocalHostConfig(kind="local", orphan_s=1.0)
            return LocalKeeper(local, hosts, batch_id=batch_id)
        if not isinstance(config, Ec2HostConfig):
            raise StateError(
                f"the account of its instances is unknown: {batch_dir.config} cannot be used",
                hint="Restore the file, or find the instances by their BatchId tag.",
            )
        self._seen.setdefault((config.region, config.profile, config.owner), config)
        is_closed = all(host.is_over for host in hosts.values())
        if is_closed and all(batch_id != instance.tags.get("BatchId") for instance in self._alive_of(config)):
            return NothingLeft()
        cloud = self._cloud_of(config)
        return Ec2Keeper(cloud, hosts, batch_id=batch_id, owner=config.owner, utc_now=self.utc_now)

    def expired(self, now: datetime) -> tuple[Instance, ...]:
        """Instances of the accounts seen so far that have outlived their `ExpiresAt`, whichever batch's they are.

        An account that cannot be asked has none here: the findings of its batches say that it could not.
        """
        if not self._seen:
            return ()
        from supervisor.hosts.ec2_leftovers import is_expired

        found: dict[str, Instance] = {}
        for config in self._seen.values():
            with suppress(HostError):
                found |= {instance.instance_id: instance for instance in self._alive_of(config)}
        return tuple(instance for instance in found.values() if is_expired(instance, now))

    def _cloud_of(self, config: Ec2HostConfig) -> Cloud:
        account = (config.region, config.profile)
        if account not in self._clouds:
            self._clouds[account] = self.open_cloud(config)
        return self._clouds[account]

    def _alive_of(self, config: Ec2HostConfig) -> tuple[Instance, ...]:
        from supervisor.hosts.ec2_leftovers import find_owned

        key = (config.region, config.profile, config.owner)
        if key not in self._alive:
            self._alive[key] = tuple(find_owned(self._cloud_of(config), owner=config.owner))
        return self._alive[key]


def open_aws(config: Ec2HostConfig) -> Cloud:
    """The account and Region of a batch's hosts. Raises `HostError` when there are no credentials for it."""
    from supervisor.cloud.aws import AwsCloud
    from supervisor.cloud.clients import open_clients

    return AwsCloud(open_clients(region=config.region, profile=config.profile, threads_max=4))


def _host_config(batch_dir: BatchDir) -> LocalHostConfig | Ec2HostConfig | None:
    try:
        return read_record(batch_dir.config, BatchConfig).host
    except StateError:
        return None
