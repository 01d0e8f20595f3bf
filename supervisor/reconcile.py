"""What batches left alive, here or in the cloud: found by ledger and tags, proven by the ledger, ended in one pass.

Nothing is touched that a batch's own ledger does not name, and nothing of a batch whose controller is alive.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from contract.ambient import Ambient
from contract.batch_records import BatchState
from contract.bridge import ThreadBridge
from contract.errors import BenchError, StateError
from contract.phases import BatchStatus, Phase
from contract.records import disk_error, read_record
from contract.run_dir import BatchDir
from supervisor.keepers import Keepers, LeftHost, open_aws
from supervisor.ledger import Ledger, read_ledger
from supervisor.locks import is_held, take
from supervisor.recording import settle_dead_batch

# Batches stand in the runs folder or a few levels below it (runs/benchmarks/nightly/2024-05-01).
DEPTH_MAX: Final = 4
_UNFINISHED: Final = frozenset({Phase.STARTING, Phase.HANDED_OFF, Phase.EVALUATING})


@dataclass(frozen=True, slots=True)
class BatchFindings:
    """What was found for one batch.

    `is_owned`: its controller is alive, so nothing was looked for and nothing is touched. `unsettled` are rollouts that
    a dead controller left in the middle. `strangers` are instances that carry the batch's tags and that its ledger does
    not know: they are told of and never touched. `ended`, `voided` and `problem` are filled in by `end` alone.
    """

    folder: Path
    batch_id: str
    is_owned: bool
    hosts_in_use: int = 0
    left: tuple[LeftHost, ...] = ()
    strangers: tuple[str, ...] = ()
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


def report(batch_dirs: Iterable[BatchDir], *, keepers: Keepers | None = None) -> list[BatchFindings]:
    """Look at each batch. Changes nothing, and a batch that cannot be read is a finding with a problem."""
    keepers = keepers or Keepers(open_aws)
    return [_look_safely(batch_dir, keepers) for batch_dir in batch_dirs]


async def end(
    batch_dirs: Sequence[BatchDir], *, keepers: Keepers | None = None, ambient: Ambient | None = None
) -> list[BatchFindings]:
    """Look at each batch, end what is left of it, and record what its dead controller could not."""
    keepers = keepers or Keepers(open_aws)
    return [await _end_safely(batch_dir, keepers, ambient or Ambient()) for batch_dir in batch_dirs]


def exit_status(findings: Iterable[BatchFindings]) -> int:
    """1 when something is left alive or could not be looked at; else 0."""
    return 1 if any(found.needs_attention for found in findings) else 0


def _look_safely(batch_dir: BatchDir, keepers: Keepers) -> BatchFindings:
    try:
        return _look(batch_dir, keepers)
    except BenchError as error:
        return BatchFindings(batch_dir.root, "?", is_owned=False, problem=str(error))


def _look(batch_dir: BatchDir, keepers: Keepers) -> BatchFindings:
    state = _state_of(batch_dir)
    if is_held(batch_dir.lock):
        in_use = sum(not host.is_over for host in read_ledger(batch_dir.hosts).values())
        return BatchFindings(batch_dir.root, state.batch_id, is_owned=True, hosts_in_use=in_use)
    found = keepers.keeper_of(batch_dir, state.batch_id).look()
    unsettled = [row.rollout_id for row in state.rollouts if row.phase in _UNFINISHED]
    return BatchFindings(
        batch_dir.root,
        state.batch_id,
        is_owned=False,
        left=found.left,
        strangers=found.strangers,
        unsettled=tuple(unsettled),
    )


def _state_of(batch_dir: BatchDir) -> BatchState:
    if not batch_dir.state.is_file():
        raise StateError(f"{batch_dir.root} holds no batch", hint="Name the output folder of a batch.")
    return read_record(batch_dir.state, BatchState)


async def _end_safely(batch_dir: BatchDir, keepers: Keepers, ambient: Ambient) -> BatchFindings:
    found = _look_safely(batch_dir, keepers)
    if found.is_owned or found.problem:
        return found
    try:
        held = take(batch_dir.lock)
    except OSError as error:
        return replace(found, problem=str(disk_error(batch_dir.lock, error)))
    if held is None:
        # A controller came up between the look and now: all of it is its own again.
        return BatchFindings(found.folder, found.batch_id, is_owned=True)
    try:
        return await _end(batch_dir, found, keepers, ambient)
    except BenchError as error:
        return replace(found, problem=str(error))
    finally:
        held.release()


async def _end(batch_dir: BatchDir, found: BatchFindings, keepers: Keepers, ambient: Ambient) -> BatchFindings:
    disk = ThreadBridge(2)
    await keepers.keeper_of(batch_dir, found.batch_id).end()
    rollout_of = {host.host_id: host.rollout_id for host in read_ledger(batch_dir.hosts).values() if not host.is_over}
    rollout_of |= {host.host_id: host.rollout_id for host in found.left}
    if rollout_of:
        ledger = Ledger(batch_dir.hosts, kind=_kind_of(batch_dir), bridge=disk, ambient=ambient)
        try:
            for host_id, rollout_id in rollout_of.items():
                await ledger.note("reconciled", host_id=host_id, rollout_id=rollout_id)
        finally:
            ledger.close()
    state = read_record(batch_dir.state, BatchState)
    voided = 0
    if state.status is BatchStatus.RUNNING or found.unsettled:
        voided = await settle_dead_batch(batch_dir, state, disk=disk, ambient=ambient)
    # Its controller did not come so far as to give it back.
    with suppress(OSError):
        batch_dir.reserve.unlink(missing_ok=True)
    return replace(found, ended=tuple(host.host_id for host in found.left), voided=voided)


def _kind_of(batch_dir: BatchDir) -> Literal["local", "ec2"]:
    return next(host.kind for host in read_ledger(batch_dir.hosts).values())


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
