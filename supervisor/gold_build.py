"""Makes a gold cache on a host: each gold is opened, saved, exported and rendered there as a candidate is.

So the gold of an AutoCAD host is what AutoCAD and its evaluator make of the drawing, and nothing here knows which kind
of host it is. The host is alone with the golds: no model ever reaches it.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from broker.evaluator.gold_mark import mark_gold
from contract.ambient import Ambient
from contract.batch_records import BatchState, HostEvent, RolloutRow
from contract.bridge import Bridge
from contract.broker_api import (
    ARTIFACT_BYTES_MAX,
    FACTS_BYTES_MAX,
    START_DRAWING_BYTES_MAX,
    ArtifactReply,
    ExportRequest,
    LeaseRequest,
    RenderRequest,
    ResetRequest,
    SaveRequest,
    UploadGrant,
)
from contract.broker_client import BrokerClient
from contract.config import BatchConfig
from contract.errors import ConfigError, DiskError, EvaluationError, HostError
from contract.evaluation_records import EvaluatorName
from contract.gold import Placement, Profile
from contract.phases import BatchStatus, Cause, Phase
from contract.records import disk_error, dump_pretty, replace_file, sync_folder, write_record
from contract.run_dir import BatchDir
from evaluator_client.collector import parse_metadata
from evaluator_client.gold import GoldEntry, verify_cache
from evaluator_client.gold_writer import gold_window, write_entry
from evaluator_client.ports import UploadStore
from evaluator_client.windows import RENDER_SIZE_PX
from supervisor.batch import controller_facts, locked
from supervisor.hosts.lease import BridgedBroker, Host, HostOrder, HostProvider, new_host_id
from supervisor.ledger import Ledger

# What a launch is tagged with, where a batch's has the id of its rollout.
ROLLOUT_ID: Final = "gold"


@dataclass(frozen=True, slots=True)
class GoldOrder:
    """One gold to be made: the drawing (DXF), how candidates are compared with it, and what a model is shown."""

    task_id: str
    profile: Profile
    placement: Placement
    drawing: bytes
    reference_png: bytes


@dataclass(frozen=True, slots=True)
class GoldHosts:
    """What a build works with. `evaluator` is the one that must answer, `lease_s` what its host is asked for.

    `batch_id` is what the host is found by; no two builds share one. `config` says in which account.
    """

    batch_id: str
    config: BatchConfig
    hosts: HostProvider
    uploads: UploadStore
    bridge: Bridge
    ambient: Ambient
    evaluator: EvaluatorName
    lease_s: float
    say: Callable[[str], None]


async def build_cache(orders: Sequence[GoldOrder], *, cache: Path, tools: GoldHosts) -> list[GoldEntry]:
    """Make `cache`, whole or not at all; it must not exist. Nothing is tried twice: a build is begun again.

    Raises `ConfigError` (`output_exists`, `gold_too_large`) before a host is launched, `HostError` and `BrokerError`
    for the host's faults, `EvaluationError` for a gold that cannot be one, `DiskError`.
    """
    demand_new(cache)
    for order in orders:
        _demand_small(order)
    scratch = scratch_of(cache, tools.batch_id)
    try:
        scratch.mkdir(parents=True)
    except OSError as error:
        raise disk_error(scratch, error) from error
    try:
        with _known_to_reconcile(scratch, tools):
            async with _host(scratch, tools) as leased:
                entries = [await leased.make(order, scratch / "cache") for order in orders]
        issues = verify_cache(scratch / "cache")
        assert not issues, f"a cache that was just written is not whole: {issues}"
        _publish(scratch / "cache", cache)
    finally:
        # The ledger stays when the host in it may still be alive.
        if not (scratch / "host-left").exists():
            shutil.rmtree(scratch, ignore_errors=True)
    return entries


@contextmanager
def _known_to_reconcile(scratch: Path, tools: GoldHosts) -> Iterator[None]:
    """A build that is killed leaves a batch without a controller, whose host `reconcile` finds and ends."""
    batch_dir, config = BatchDir(scratch), tools.config
    content, now = dump_pretty(config), tools.ambient.utc_now()
    row = RolloutRow(
        rollout_id=ROLLOUT_ID, task_id=ROLLOUT_ID, provider="noop", model="none", profile=None, phase=Phase.STARTING
    )
    facts = {
        "batch_id": tools.batch_id,
        "benchmark": config.benchmark,
        "status": BatchStatus.RUNNING,
        "mode": config.mode,
        "max_concurrency": 1,
        "created_at": now,
        "updated_at": now,
        "config_sha256": hashlib.sha256(content).hexdigest(),
        "broker_version": config.broker_version,
        "evaluator_version": config.evaluator.version,
        "pricing": None,
        **controller_facts(),
        "rollouts": [row],
    }
    with locked(batch_dir):
        replace_file(batch_dir.config, content)
        write_record(batch_dir.state, BatchState.model_validate(facts))
        yield


def scratch_of(cache: Path, batch_id: str) -> Path:
    """Where a build works, beside the cache: it holds the ledger `hosts.jsonl`, the log `host.log`, and what makes it
    a batch for `reconcile`."""
    return cache.with_name(f".{cache.name}.{batch_id}.building")


def demand_new(cache: Path) -> None:
    """Raises `ConfigError` (`output_exists`): a cache is never changed."""
    if cache.exists():
        raise ConfigError(
            f"{cache} exists already",
            hint="Name a new folder; an old cache stays readable for scoring again.",
            code="output_exists",
            field="--gold-cache",
        )


def _demand_small(order: GoldOrder) -> None:
    size_bytes = len(mark_gold(order.drawing))
    if size_bytes > START_DRAWING_BYTES_MAX:
        raise ConfigError(
            f"the gold drawing of {order.task_id!r} has {size_bytes} bytes, a host takes {START_DRAWING_BYTES_MAX}",
            hint="Purge the drawing of what it does not show.",
            code="gold_too_large",
        )


def _publish(made: Path, cache: Path) -> None:
    try:
        made.rename(cache)
        sync_folder(cache.parent)
    except OSError as error:
        raise disk_error(cache, error) from error


@asynccontextmanager
async def _host(scratch: Path, tools: GoldHosts) -> AsyncIterator[_Leased]:
    """A host that is proven and leased, until the block ends."""
    hosts, host_id = tools.hosts, new_host_id()
    async with AsyncExitStack() as undo:
        ledger = Ledger(scratch / "hosts.jsonl", kind=hosts.kind, bridge=tools.bridge, ambient=tools.ambient)
        undo.callback(ledger.close)
        note = partial(_note, ledger, host_id)
        await note("intent", {})
        # Before the launch: one whose answer is lost must be ended too, and ending works by id alone.
        undo.push_async_callback(_end, tools, ledger, host_id, scratch)
        order = HostOrder(
            host_id=host_id,
            batch_id=tools.batch_id,
            rollout_id=ROLLOUT_ID,
            log=scratch / "host.log",
            note=note,
            say=tools.say,
        )
        tools.say("starting a host")
        host = await hosts.launch(order)
        await note("launched", host.facts)
        leased = None
        with anyio.move_on_after(hosts.timing.hand_off_s):
            leased = await _lease(host, undo, tools)
        if leased is None:
            raise HostError(
                f"the host did not answer within {hosts.timing.hand_off_s:.0f} s after its launch",
                cause=Cause.HOST_LAUNCH,
                hint="See whether its broker starts.",
            )
        yield leased


async def _lease(host: Host, undo: AsyncExitStack, tools: GoldHosts) -> _Leased:
    hosts = tools.hosts
    undo.push_async_callback(_close_tunnel, tools, host.host_id)
    base_url = await hosts.open_tunnel(host)
    client = BrokerClient(base_url, host.token, patience=hosts.timing.patience)
    undo.callback(client.close)
    host = await hosts.prove(host, BridgedBroker(client, host.token, tools.bridge))
    request = LeaseRequest(request_id=f"lease-{host.host_id}", rollout_id=ROLLOUT_ID, lease_s=tools.lease_s)
    lease = await tools.bridge.call(lambda: client.lease(request))
    return _Leased(client=client, lease_id=lease.lease_id, tools=tools)


@dataclass(frozen=True, slots=True)
class _Leased:
    """A host that waits for golds."""

    client: BrokerClient
    lease_id: str
    tools: GoldHosts

    async def make(self, order: GoldOrder, cache: Path) -> GoldEntry:
        """One entry of the cache, with its self check."""
        self.tools.say(f"{order.task_id}: opening, saving, exporting, rendering")
        folder = cache.with_name(f"{order.task_id}.files")
        folder.mkdir()
        await self._reset(order)
        await self._fetch("attempt", folder, bytes_max=ARTIFACT_BYTES_MAX, call=self._save)
        facts = await self._fetch("metadata.json", folder, bytes_max=FACTS_BYTES_MAX, call=self._export)
        content = facts.read_bytes()
        self._demand_pinned(content)
        window = gold_window(content, what=f"the gold of {order.task_id!r} on the host")
        render = partial(self._render, window)
        picture = await self._fetch("render.png", folder, bytes_max=ARTIFACT_BYTES_MAX, call=render)
        return await self.tools.bridge.call(
            lambda: write_entry(
                cache,
                task_id=order.task_id,
                profile=order.profile,
                placement=order.placement,
                metadata_json=content,
                render_png=picture.read_bytes(),
                reference_png=order.reference_png,
                window=window,
                size_px=RENDER_SIZE_PX,
            )
        )

    def _demand_pinned(self, content: bytes) -> None:
        made_by, pinned = parse_metadata(content, source="metadata.json").evaluator, self.tools.evaluator
        if (made_by.name, made_by.version) != (pinned.name, pinned.version):
            raise EvaluationError(
                f"the host's evaluator is {made_by.name} {made_by.version}, the config pins {pinned.name} "
                f"{pinned.version}",
                code="evaluator_version_mismatch",
                hint="Pin the evaluator of that host in the config, or take a host with the pinned one.",
            )

    async def _reset(self, order: GoldOrder) -> None:
        drawing = mark_gold(order.drawing)
        request = ResetRequest(
            request_id=f"reset-{secrets.token_hex(8)}",
            lease_id=self.lease_id,
            task_id=order.task_id,
            start_drawing_base64=base64.b64encode(drawing).decode(),
            start_drawing_sha256=hashlib.sha256(drawing).hexdigest(),
        )
        await self.tools.bridge.call(lambda: self.client.reset(request))

    async def _fetch(
        self, name: str, folder: Path, *, bytes_max: int, call: Callable[[str, UploadGrant], ArtifactReply]
    ) -> Path:
        grant = await self.tools.bridge.call(
            partial(self.tools.uploads.grant, name, bytes_max=bytes_max, dest=folder / name)
        )
        request_id = f"gold-{secrets.token_hex(8)}"
        reply = await self.tools.bridge.call(lambda: call(request_id, grant))
        if not reply.is_present or reply.sha256 is None:
            raise EvaluationError(
                f"the host has no {name} of {folder.stem!r}", code="gold_invalid", hint="See whether it opens there."
            )
        return await self.tools.uploads.collect(grant, sha256=reply.sha256, size_bytes=reply.size_bytes)

    def _save(self, request_id: str, grant: UploadGrant) -> ArtifactReply:
        return self.client.save(SaveRequest(request_id=request_id, lease_id=self.lease_id, upload=grant))

    def _export(self, request_id: str, grant: UploadGrant) -> ArtifactReply:
        return self.client.export(ExportRequest(request_id=request_id, lease_id=self.lease_id, upload=grant))

    def _render(self, window: tuple[float, float, float, float], request_id: str, grant: UploadGrant) -> ArtifactReply:
        request = RenderRequest(
            request_id=request_id, lease_id=self.lease_id, upload=grant, window=window, size_px=RENDER_SIZE_PX
        )
        return self.client.render(request)


async def _note(ledger: Ledger, host_id: str, event: HostEvent, detail: dict[str, Any]) -> None:
    await ledger.note(event, host_id=host_id, rollout_id=ROLLOUT_ID, **detail)


async def _close_tunnel(tools: GoldHosts, host_id: str) -> None:
    with anyio.move_on_after(tools.hosts.timing.release_s, shield=True):
        try:
            await tools.hosts.close_tunnel(host_id)
        except HostError as error:
            tools.say(f"the tunnel of host {host_id} could not be closed: {error}")


async def _end(tools: GoldHosts, ledger: Ledger, host_id: str, scratch: Path) -> None:
    """End the host for good. Shielded and bounded; what cannot be ended is said, and its ledger stays."""
    mark = scratch / "host-left"
    with anyio.CancelScope(shield=True):
        mark.touch()
        with anyio.move_on_after(tools.hosts.timing.release_s):
            try:
                await tools.hosts.terminate(host_id, batch_id=tools.batch_id)
                await ledger.note("released", host_id=host_id, rollout_id=ROLLOUT_ID)
                mark.unlink()
            except (HostError, DiskError) as error:
                tools.say(f"host {host_id} could not be ended cleanly: {error}")
        if mark.exists():
            command = f"autocad-bench reconcile --run-dir {scratch} --execute"
            tools.say(f"host {host_id} may still be alive; end it with: {command}")
