"""LibreCAD on instances of the lab, in both modes: tunnels that die and hang change nothing of what is drawn."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from contract.batch_records import RolloutRow
from contract.phases import Outcome, Phase
from tests.lab.batches import LabBatch, Strike, lab_batch, signal_plugin

pytestmark = [pytest.mark.e2e, pytest.mark.desktop, pytest.mark.slow]


def is_drawing(row: RolloutRow) -> bool:
    """Some turns are behind it, and some before it."""
    return row.phase is Phase.HANDED_OFF and row.turns >= 1


def is_evaluating(row: RolloutRow) -> bool:
    """Its pilot has ended."""
    return row.phase is Phase.EVALUATING


def kill_plugin(batch: LabBatch, row: RolloutRow) -> bool:
    """The tunnel dies."""
    pid = batch.plugin_of(row)
    return pid is not None and signal_plugin(pid, signal.SIGKILL)


def stop_plugin(batch: LabBatch, row: RolloutRow) -> bool:
    """The tunnel's port stays open, and nothing answers."""
    pid = batch.plugin_of(row)
    return pid is not None and signal_plugin(pid, signal.SIGSTOP)


@pytest.mark.parametrize("mode", ["process", "shared"])
def test_the_oracle_reaches_its_gold_through_tunnels_that_fail(tmp_path: Path, mode: str) -> None:
    """An action that was carried out twice, or a drawing that was saved half, would cost its score."""
    rollouts = [
        {"rollout_id": f"r-{number}", "task": task, "provider": "oracle", "model": "reference"}
        for number, task in enumerate(["flange", "gear-cover", "floor-plan"])
    ]
    with lab_batch(
        tmp_path, count=3, mode=mode, host={"driver": "librecad"}, rollouts=rollouts, max_concurrency=2
    ) as batch:
        status = batch.play(
            Strike("r-0", is_drawing, kill_plugin),
            Strike("r-1", is_drawing, stop_plugin),
            Strike("r-2", is_evaluating, kill_plugin),
        )

        rows = batch.state().rollouts
        assert ["r-0", "r-1", "r-2"] == sorted(batch.struck)
        assert 0 == status, batch.said()
        assert [Outcome.SCORED] * 3 == [row.outcome for row in rows]
        assert min(row.score or 0.0 for row in rows) >= 0.99
        assert 6 == len(batch.lab.sessions.all)
        batch.assert_nothing_is_left()
