"""Going on from a checkpoint, on the same host or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from contract.broker_api import Health
from contract.errors import BenchError, StateError
from contract.records import read_record
from contract.rollout_records import ArtifactRef, Checkpoint, ModelTurn, RolloutSpec, RunState
from contract.run_dir import RunDir
from pilot.budgets import Ledger


class ResumeMismatch(BenchError):
    """The checkpoint, its files and the host do not agree. The message names the first disagreement."""


def read_checkpoint(run_dir: RunDir) -> Checkpoint | None:
    """The checkpoint as it was written, or None when there is none: then nothing was ever sent to the host.

    Raises `StateError`.
    """
    if not run_dir.checkpoint.exists():
        return None
    checkpoint = read_record(run_dir.checkpoint, Checkpoint)
    if not checkpoint.is_sealed:
        raise StateError(f"{run_dir.checkpoint.name} does not have the checksum that it names")
    return checkpoint


def read_run_state(run_dir: RunDir) -> RunState | None:
    """The last run state, or None when there is none that can be read: it only adds to what the checkpoint counts."""
    try:
        return read_record(run_dir.run_state, RunState)
    except StateError:
        return None


def check_host(spec: RolloutSpec, checkpoint: Checkpoint | None, health: Health) -> None:
    """Raise `ResumeMismatch` unless this is the host that the checkpoint was made with, where it was left."""
    host = spec.host
    _agree("host_id", "the host", host.host_id, health.host_id)
    _agree("boot_id", "the host", host.boot_id, health.boot_id)
    _agree("lease_generation", "the host", host.lease_generation, health.lease_generation)
    sequences = {0}
    if checkpoint is not None:
        _agree("rollout_id", "the checkpoint", spec.rollout_id, checkpoint.rollout_id)
        _agree("host_id", "the checkpoint", host.host_id, checkpoint.host_id)
        _agree("boot_id", "the checkpoint", host.boot_id, checkpoint.boot_id)
        _agree("lease_id", "the checkpoint", host.lease_id, checkpoint.lease_id)
        _agree("lease_generation", "the checkpoint", host.lease_generation, checkpoint.lease_generation)
        sequences = {checkpoint.sequence}
        if checkpoint.stage == "intent":
            # Whether the host carried the intent out before the pilot died is what its receipts know.
            sequences.add(checkpoint.sequence + 1)
    if health.last_sequence not in sequences:
        expected = " or ".join(map(str, sorted(sequences)))
        raise ResumeMismatch(f"the host's last sequence is {health.last_sequence}, the checkpoint's is {expected}")


def check_artifacts(run_dir: RunDir, checkpoint: Checkpoint) -> None:
    """Raise `ResumeMismatch` unless every file that the checkpoint names is there, byte for byte."""
    for artifact in (checkpoint.reference, checkpoint.frame):
        check_artifact(run_dir.root, artifact)


def check_artifact(root: Path, artifact: ArtifactRef) -> None:
    """Raise `ResumeMismatch` unless `artifact` is there, byte for byte. Models check what their own state names."""
    try:
        content = (root / artifact.path).read_bytes()
    except OSError as error:
        raise ResumeMismatch(f"cannot read {artifact.path}: {error.strerror or error}") from error
    if len(content) != artifact.size_bytes or hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise ResumeMismatch(f"{artifact.path} does not have the checksum that the checkpoint names")


def paid_before(ledger: Ledger, state: RunState | None, unused: Iterable[ModelTurn]) -> Ledger:
    """`ledger`, which is the checkpoint's, with all that was paid after it and before the death of its pilot.

    `state` is the last run state: failed requests stand nowhere else. `unused` are model turns that nothing followed
    from: answered and paid for, and asked for again.
    """
    counted = ledger.turn
    # An older one is in the checkpoint already, with all that it counts.
    if state is not None and state.turn >= ledger.turn:
        counted = state.turn
        ledger = replace(
            ledger,
            retries=state.retries,
            usage=state.usage,
            cost_usd=state.cost_usd,
            requests_of_unknown_cost=state.requests_of_unknown_cost,
        )
    for turn in unused:
        if turn.turn > counted:
            ledger = ledger.paid(turn.usage, turn.cost_usd)
    return ledger


def _agree(what: str, whose: str, expected: object, actual: object) -> None:
    if expected != actual:
        raise ResumeMismatch(f"{what} is {expected!r} for this rollout and {actual!r} for {whose}")
