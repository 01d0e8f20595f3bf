"""The EC2 side of the composition root: clients of AWS, hosts, uploads and places for one batch."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import getproxies

from contract.ambient import Ambient
from contract.bridge import Bridge, ThreadBridge
from contract.config import Ec2HostConfig
from contract.errors import HostError
from contract.phases import Cause
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.capacity import Slots, slots_folder
from supervisor.cloud.aws import AwsCloud
from supervisor.cloud.clients import AwsClients, open_clients
from supervisor.equipment import HostTools
from supervisor.hosts.ec2 import Ec2Hosts
from supervisor.hosts.ec2_way import MakeTunnel
from supervisor.hosts.folders import SCRATCH, tunnel_folder
from supervisor.hosts.lease import Host
from supervisor.hosts.ssm_plugin import Plugin, PluginProblem, find_plugin, proxy_variables
from supervisor.hosts.ssm_tunnel import SsmTunnel
from supervisor.hosts.tunnel import BrokerProbe
from supervisor.keyring import KernelKeyring
from supervisor.ledger import read_ledger
from supervisor.machine import ThisMachine
from supervisor.quota_gate import QuotaGate
from supervisor.s3_uploads import S3Uploads

# Calls to AWS take tens of milliseconds, and 25 s where it hangs. Each kind of call has threads of its own, so that
# tunnels that cannot be opened never keep an instance from being ended.
HOST_THREADS_MAX: Final = 16
TUNNEL_THREADS_MAX: Final = 24
QUOTA_THREADS_MAX: Final = 2
FETCH_THREADS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Ec2Facts:
    """What hosts are held to, and how many there may be at once. `certificate` is PEM; a null `account` is unknown."""

    certificate: bytes
    broker_version: str
    account: str | None
    max_concurrency: int


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Where launches are written down, and where each rollout's host has its log."""

    ledger: Path
    log_of: Callable[[str], Path]


@asynccontextmanager
async def ec2_tools(
    config: Ec2HostConfig, facts: Ec2Facts, *, files: HostFiles, batch_id: str, ambient: Ambient
) -> AsyncIterator[HostTools]:
    """Hosts, uploads and places on EC2 until the block ends. Raises `HostError` without credentials or plugin."""
    clients = _clients(config)
    try:
        cloud = AwsCloud(clients, proxies=proxy_variables(getproxies()))
        gate = QuotaGate(
            Slots(slots_folder(), ThisMachine().capacity, ambient),
            config,
            cloud=cloud,
            bridge=ThreadBridge(QUOTA_THREADS_MAX, is_abandonable=True),
            batch_id=batch_id,
            ambient=ambient,
        )
        hosts = Ec2Hosts.opened(
            config,
            cloud=cloud,
            # A launch must learn its answer even when nobody waits for it any more, so calls are not abandoned.
            cloud_bridge=ThreadBridge(HOST_THREADS_MAX),
            tunnels=_tunnels(
                config, cloud, ThreadBridge(TUNNEL_THREADS_MAX), facts, log_of=files.log_of, ambient=ambient
            ),
            certificate=facts.certificate,
            broker_version=facts.broker_version,
            account=facts.account,
            tokens=KernelKeyring(),
            ledger=lambda: read_ledger(files.ledger),
            batch_id=batch_id,
            ambient=ambient,
            on_quota_refused=gate.expire,
        )
        async with hosts as opened:
            uploads = S3Uploads(
                clients, bucket=config.artifact_bucket, batch_id=batch_id, bridge=ThreadBridge(FETCH_THREADS_MAX)
            )
            yield HostTools(hosts=opened, uploads=uploads, slots=gate)
    finally:
        clients.close()


def _clients(config: Ec2HostConfig) -> AwsClients:
    threads = HOST_THREADS_MAX + TUNNEL_THREADS_MAX + QUOTA_THREADS_MAX + FETCH_THREADS_MAX
    try:
        return open_clients(region=config.region, profile=config.profile, threads_max=threads)
    except AwsCredentialsMissing as error:
        raise HostError(error.message, cause=Cause.HOST_LAUNCH, hint=error.hint) from error


def _tunnels(
    config: Ec2HostConfig,
    cloud: AwsCloud,
    bridge: Bridge,
    facts: Ec2Facts,
    *,
    log_of: Callable[[str], Path],
    ambient: Ambient,
) -> MakeTunnel:
    search_path = os.pathsep.join(os.get_exec_path())
    plugin = _plugin(search_path)
    probes = ThreadBridge(min(64, facts.max_concurrency + 2), is_abandonable=True)

    def tunnel(host: Host, instance_id: str, say: Callable[[str], None]) -> SsmTunnel:
        return SsmTunnel(
            cloud=cloud,
            bridge=bridge,
            instance_id=instance_id,
            port=config.broker_port,
            plugin=plugin,
            search_path=search_path,
            folder=tunnel_folder(SCRATCH, host.host_id),
            log=log_of(host.rollout_id),
            probe=BrokerProbe(host.token, probes),
            ambient=ambient,
            say=say,
        )

    return tunnel


def _plugin(search_path: str) -> Plugin:
    found = find_plugin(search_path)
    if isinstance(found, PluginProblem):
        raise HostError(found.message, cause=Cause.TUNNEL, hint=found.hint)
    return found
