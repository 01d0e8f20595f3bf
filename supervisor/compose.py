"""The execute side's composition root: the real hosts, pilots, evaluator and places for one batch."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import anyio

from contract.ambient import Ambient
from contract.bridge import Bridge, ThreadBridge
from contract.broker_client import BrokerClient, Patience
from contract.config import LocalHostConfig
from contract.evaluation_records import EvaluatorName
from contract.run_dir import BatchDir
from supervisor.aws_endpoint import AwsEndpoint
from supervisor.aws_short_lived import ShortLivedSource
from supervisor.capacity import Slots, slots_folder
from supervisor.choices import account_of
from supervisor.equipment import Equipment, HostTools
from supervisor.evaluation import HostEvaluator
from supervisor.hosts.lease import BridgedBroker, Host, HostBroker
from supervisor.hosts.local import LocalHosts
from supervisor.judge_admission import judge_of
from supervisor.keyring import KernelKeyring
from supervisor.launch import PilotLauncher, launcher_for
from supervisor.machine import ThisMachine
from supervisor.prepared import PreparedBatch
from supervisor.seat import needs_aws
from supervisor.uploads import LoopbackUploads

# AWS is asked by one at a time; the others only wait for it.
CREDENTIAL_THREADS_MAX: Final = 4
# Connections to model APIs that hang must not keep a batch from ending.
CLOSE_S_MAX: Final = 5.0


@asynccontextmanager
async def equip(
    prepared: PreparedBatch, *, batch_dir: BatchDir, batch_id: str, ambient: Ambient
) -> AsyncIterator[Equipment]:
    """The real things for this batch, until the block ends. Raises `HostError` when there is no way to its hosts."""
    config = prepared.config
    wave = prepared.max_concurrency
    broker_bridge = ThreadBridge(min(64, wave + 2), is_abandonable=True)
    heartbeat_bridge = ThreadBridge(min(64, wave + 1), is_abandonable=True)
    pilots = launcher_for(prepared.mode, max_concurrency=wave)
    async with AsyncExitStack() as undo:
        tools = await undo.enter_async_context(
            _tools(prepared, batch_dir=batch_dir, batch_id=batch_id, ambient=ambient)
        )
        undo.push_async_callback(_close, pilots)
        timing = tools.hosts.timing
        yield Equipment(
            hosts=tools.hosts,
            reach=partial(_reach, bridge=broker_bridge, patience=timing.patience),
            reach_for_heartbeat=partial(_reach, bridge=heartbeat_bridge, patience=timing.heartbeat_patience),
            pilots=pilots,
            evaluator=HostEvaluator(
                uploads=tools.uploads,
                gold_dir=prepared.gold_dir,
                evaluator=EvaluatorName(name=config.evaluator.name, version=config.evaluator.version),
                extension=tools.hosts.extension,
                patience=timing.patience,
                host_bridge=ThreadBridge(min(64, wave + 1), is_abandonable=True),
                # Scoring is pure computing: more threads than cores only make each of them slower.
                score_bridge=ThreadBridge(os.cpu_count() or 1),
                ambient=ambient,
                judge=judge_of(prepared, ambient),
            ),
            uploads=tools.uploads,
            aws=_aws(prepared, ambient, undo),
            slots=tools.slots,
            disk=ThreadBridge(4),
            ambient=ambient,
        )


@contextmanager
def local_tools(config: LocalHostConfig, ambient: Ambient) -> Iterator[HostTools]:
    """Hosts, uploads and places on this machine until the block ends."""
    with LoopbackUploads.opened() as uploads:
        yield HostTools(
            hosts=LocalHosts(config, bridge=ThreadBridge(4), tokens=KernelKeyring()),
            uploads=uploads,
            slots=Slots(slots_folder(), ThisMachine().capacity, ambient),
        )


@asynccontextmanager
async def _tools(
    prepared: PreparedBatch, *, batch_dir: BatchDir, batch_id: str, ambient: Ambient
) -> AsyncIterator[HostTools]:
    host = prepared.config.host
    if isinstance(host, LocalHostConfig):
        with local_tools(host, ambient) as tools:
            yield tools
        return
    # The SDK of AWS costs a quarter of a second and 24 MB, which batches on this machine do not pay.
    from supervisor.compose_ec2 import Ec2Facts, HostFiles, ec2_tools

    assert prepared.identity_certificate is not None, "the preflight reads it"
    facts = Ec2Facts(
        certificate=prepared.identity_certificate,
        broker_version=prepared.config.broker_version,
        account=prepared.account,
        max_concurrency=prepared.max_concurrency,
    )
    files = HostFiles(ledger=batch_dir.hosts, log_of=batch_dir.log)
    async with ec2_tools(host, facts, files=files, batch_id=batch_id, ambient=ambient) as tools:
        yield tools


def _aws(prepared: PreparedBatch, ambient: Ambient, undo: AsyncExitStack) -> AwsEndpoint | None:
    """The door to AWS credentials, open until the batch ends; none for a batch that has no use for one."""
    if not any(needs_aws(rollout) for rollout in prepared.rollouts):
        return None
    account = account_of(prepared.config)
    assert account is not None, "a rollout without its account is an issue"
    source = ShortLivedSource(profile=account.profile, region=account.region, utc_now=ambient.utc_now)
    bridge = ThreadBridge(CREDENTIAL_THREADS_MAX, is_abandonable=True)
    return undo.enter_context(AwsEndpoint.opened(source, bridge=bridge))


async def _close(pilots: PilotLauncher) -> None:
    with anyio.move_on_after(CLOSE_S_MAX, shield=True):
        await pilots.aclose()


def _reach(host: Host, base_url: str, *, bridge: Bridge, patience: Patience) -> HostBroker:
    client = BrokerClient(base_url, host.token, patience=patience)
    return BridgedBroker(client, host.token, bridge)
