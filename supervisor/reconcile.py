"""What batches left alive on this machine: found by the ledger and by tags, proven by both, and ended in one pass.

Nothing is touched that a batch's own ledger does not name, and nothing of a batch whose controller is alive.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contract.ambient import Ambient
from contract.batch_records import BatchState
from contract.bridge import ThreadBridge
from contract.config import BatchConfig, LocalHostConfig
from contract.errors import BenchError, HostError, StateError
from contract.phases import BatchStatus, Cause, Phase
from contract.records import disk_error, read_record
from contract.run_dir import BatchDir
from supervisor.hosts.local import LocalHosts
from supervisor.keyring import KernelKeyring
from supervisor.ledger import HostHistory, Ledger, read_ledger
from supervisor.locks import is_held, take
from supervisor.processes import processes_of_hosts
from supervisor.recording import settle_dead_batch

# Batches stand in the runs folder or a few levels below it (runs/benchmarks/nightly/2024-05-01).
DEPTH_MAX: Final = 4
_UNFINISHED: Final = frozenset({Phase.STARTING, Phase.HANDED_OFF, Phase.EVALUATING})


@dataclass(frozen=True, slots=True)
class LeftHost:
    """A host of which something is alive although no controller looks after it."""

    host_id: str
    rollout_id: str
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchFindings:
    """What was found for one batch.

    `is_owned`: its controller is alive, so nothing was looked for and nothing is touched. `unsettled` are rollouts that
    a dead controller left in the middle. `ended`, `voided` and `problem` are filled in by `end` alone.
    """

    folder: Path
    batch_id: str
    is_owned: bool
    hosts_in_use: int = 0
    left: tuple[LeftHost, ...] = ()
    unsettled: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    voided: int = 0
    problem: str = ""

    @property
    def needs_attention(self) -> bool:
        """True while something of it is alive that should not be, or it could not be looked at."""
        return bool(self.problem) or len(self.ended) < len(self.left)


def find_batches(runs: Path, *, depth_max: int = DEPTH_MAX) -> list[BatchDir]:
    """Every batch folder at or below `runs`, in order of path. A folder that cannot be read is passed over."""
    return [BatchDir(folder) for folder in _batch_folders(runs, depth_max)]


def report(batch_dirs: Iterable[BatchDir]) -> list[BatchFindings]:
    """Look at each batch. Changes nothing, and a batch that cannot be read is a finding with a problem."""
    return [_look_safely(batch_dir) for batch_dir in batch_dirs]


async def end(batch_dirs: Sequence[BatchDir], *, ambient: Ambient | None = None) -> list[BatchFindings]:
    """Look at each batch, end what is left of it, and record what its dead controller could not."""
    return [await _end_safely(batch_dir, ambient or Ambient()) for batch_dir in batch_dirs]


def exit_status(findings: Iterable[BatchFindings]) -> int:
    """1 when something is left alive or could not be looked at; else 0."""
    return 1 if any(found.needs_attention for found in findings) else 0


def _look_safely(batch_dir: BatchDir) -> BatchFindings:
    try:
        return _look(batch_dir)
    except BenchError as error:
        return BatchFindings(batch_dir.root, "?", is_owned=False, problem=str(error))


def _look(batch_dir: BatchDir) -> BatchFindings:
    if not batch_dir.state.is_file():
        raise StateError(f"{batch_dir.root} holds no batch", hint="Name the output folder of a batch.")
    state = read_record(batch_dir.state, BatchState)
    open_hosts = _open_hosts(batch_dir)
    if is_held(batch_dir.lock):
        return BatchFindings(batch_dir.root, state.batch_id, is_owned=True, hosts_in_use=len(open_hosts))
    pids: dict[str, list[int]] = {}
    for process in processes_of_hosts(open_hosts, batch_id=state.batch_id):
        pids.setdefault(process.host_id, []).append(process.pid)
    left = [
        LeftHost(host_id=host_id, rollout_id=open_hosts[host_id].rollout_id, processes=tuple(sorted(numbers)))
        for host_id, numbers in pids.items()
    ]
    unsettled = [row.rollout_id for row in state.rollouts if row.phase in _UNFINISHED]
    return BatchFindings(batch_dir.root, state.batch_id, is_owned=False, left=tuple(left), unsettled=tuple(unsettled))


async def _end_safely(batch_dir: BatchDir, ambient: Ambient) -> BatchFindings:
    found = _look_safely(batch_dir)
    if found.is_owned or found.problem:
        return found
    try:
        held = take(batch_dir.lock)
    except OSError as error:
        return _with_problem(found, str(disk_error(batch_dir.lock, error)))
    if held is None:
        # A controller came up between the look and now: all of it is its own again.
        return BatchFindings(found.folder, found.batch_id, is_owned=True)
    try:
        return await _end(batch_dir, found, ambient)
    except BenchError as error:
        return _with_problem(found, str(error))
    finally:
        held.release()


async def _end(batch_dir: BatchDir, found: BatchFindings, ambient: Ambient) -> BatchFindings:
    disk = ThreadBridge(2)
    open_hosts = _open_hosts(batch_dir)
    if open_hosts:
        hosts = LocalHosts(_host_config(batch_dir), bridge=disk, tokens=KernelKeyring())
        await hosts.terminate_all(open_hosts, batch_id=found.batch_id)
        ledger = Ledger(batch_dir.hosts, kind="local", bridge=disk, ambient=ambient)
        try:
            for host in open_hosts.values():
                await ledger.note("reconciled", host_id=host.host_id, rollout_id=host.rollout_id)
        finally:
            ledger.close()
    state = read_record(batch_dir.state, BatchState)
    voided = 0
    if state.status is BatchStatus.RUNNING or found.unsettled:
        voided = await settle_dead_batch(batch_dir, state, disk=disk, ambient=ambient)
    # Its controller did not come so far as to give it back.
    with suppress(OSError):
        batch_dir.reserve.unlink(missing_ok=True)
    return BatchFindings(
        found.folder,
        found.batch_id,
        is_owned=False,
        left=found.left,
        unsettled=found.unsettled,
        ended=tuple(host.host_id for host in found.left),
        voided=voided,
    )


def _with_problem(found: BatchFindings, problem: str) -> BatchFindings:
    return BatchFindings(
        found.folder,
        found.batch_id,
        is_owned=False,
        left=found.left,
        unsettled=found.unsettled,
        problem=problem,
    )


def _open_hosts(batch_dir: BatchDir) -> dict[str, HostHistory]:
    hosts = {host.host_id: host for host in read_ledger(batch_dir.hosts).values() if not host.is_over}
    strangers = {host.kind for host in hosts.values()} - {"local"}
    if strangers:
        raise HostError(
            f"hosts of kind {sorted(strangers)} cannot be looked for by this version",
            cause=Cause.UNKNOWN,
            hint="Use the version that launched them.",
        )
    return hosts


def _host_config(batch_dir: BatchDir) -> LocalHostConfig:
    """The batch's own host settings; without them the ones that forget every token."""
    try:
        host = read_record(batch_dir.config, BatchConfig).host
    except StateError:
        host = LocalHostConfig(kind="local", orphan_s=1.0)
    return host if isinstance(host, LocalHostConfig) else LocalHostConfig(kind="local", orphan_s=1.0)


def _batch_folders(folder: Path, depth_left: int) -> list[Path]:
    if (folder / "batch-state.json").is_file():
        return [folder]
    if depth_left == 0:
        return []
    try:
        entries = sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [found for entry in entries for found in _batch_folders(entry, depth_left - 1)]
