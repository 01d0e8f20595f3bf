"""The EC2 side of the composition root: clients of AWS, hosts, uploads and places for one batch."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from contract.ambient import Ambient
from contract.bridge import Bridge, ThreadBridge
from contract.config import Ec2HostConfig
from contract.errors import HostError
from contract.phases import Cause
from contract.run_dir import BatchDir
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.capacity import Slots, slots_folder
from supervisor.cloud.aws import AwsCloud
from supervisor.cloud.clients import AwsClients, open_clients
from supervisor.equipment import HostTools
from supervisor.hosts.ec2 import Ec2Hosts
from supervisor.hosts.ec2_way import MakeTunnel
from supervisor.hosts.folders import SCRATCH, tunnel_folder
from supervisor.hosts.lease import Host
from supervisor.hosts.ssm_plugin import Plugin, PluginProblem, find_plugin
from supervisor.hosts.ssm_tunnel import SsmTunnel
from supervisor.hosts.tunnel import BrokerProbe
from supervisor.keyring import KernelKeyring
from supervisor.ledger import read_ledger
from supervisor.machine import ThisMachine
from supervisor.prepared import PreparedBatch
from supervisor.quota_gate import QuotaGate
from supervisor.s3_uploads import S3Uploads

# Calls to AWS take tens of milliseconds; a hundred rollouts that start and end together wait for few of them.
CLOUD_THREADS_MAX: Final = 32


@asynccontextmanager
async def ec2_tools(
    prepared: PreparedBatch, config: Ec2HostConfig, *, batch_dir: BatchDir, batch_id: str, ambient: Ambient
) -> AsyncIterator[HostTools]:
    """Hosts, uploads and places on EC2 until the block ends. Raises `HostError` without credentials or plugin."""
    assert prepared.identity_certificate is not None, "the preflight reads it"
    clients = _clients(config)
    try:
        cloud = AwsCloud(clients)
        # A launch must learn its answer even when nobody waits for it any more, so calls are not abandoned.
        bridge = ThreadBridge(CLOUD_THREADS_MAX)
        gate = QuotaGate(
            Slots(slots_folder(), ThisMachine().capacity, ambient),
            config,
            cloud=cloud,
            bridge=bridge,
            batch_id=batch_id,
            ambient=ambient,
        )
        hosts = Ec2Hosts.opened(
            config,
            cloud=cloud,
            cloud_bridge=bridge,
            tunnels=_tunnels(config, cloud, bridge, prepared, batch_dir=batch_dir, ambient=ambient),
            certificate=prepared.identity_certificate,
            broker_version=prepared.config.broker_version,
            account=prepared.account,
            tokens=KernelKeyring(),
            ledger=lambda: read_ledger(batch_dir.hosts),
            batch_id=batch_id,
            ambient=ambient,
            on_quota_refused=gate.expire,
        )
        async with hosts as opened:
            uploads = S3Uploads(clients, bucket=config.artifact_bucket, batch_id=batch_id, bridge=bridge)
            yield HostTools(hosts=opened, uploads=uploads, slots=gate)
    finally:
        clients.close()


def _clients(config: Ec2HostConfig) -> AwsClients:
    try:
        return open_clients(region=config.region, profile=config.profile, threads_max=CLOUD_THREADS_MAX)
    except AwsCredentialsMissing as error:
        raise HostError(error.message, cause=Cause.HOST_LAUNCH, hint=error.hint) from error


def _tunnels(
    config: Ec2HostConfig,
    cloud: AwsCloud,
    bridge: Bridge,
    prepared: PreparedBatch,
    *,
    batch_dir: BatchDir,
    ambient: Ambient,
) -> MakeTunnel:
    search_path = os.pathsep.join(os.get_exec_path())
    plugin = _plugin(search_path)
    probes = ThreadBridge(min(64, prepared.max_concurrency + 2), is_abandonable=True)

    def tunnel(host: Host, instance_id: str, say: Callable[[str], None]) -> SsmTunnel:
        return SsmTunnel(
            cloud=cloud,
            bridge=bridge,
            instance_id=instance_id,
            port=config.broker_port,
            plugin=plugin,
            search_path=search_path,
            folder=tunnel_folder(SCRATCH, host.host_id),
            log=batch_dir.log(host.rollout_id),
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
