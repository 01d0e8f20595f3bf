"""A manual re-run takes one rollout out of a batch, links back to it, and never touches it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contract.batch_records import BatchState, Link
from contract.errors import ConfigError
from contract.phases import BatchStatus
from contract.records import write_record
from contract.run_dir import BatchDir
from supervisor.checks.subject import Options
from supervisor.config_reading import read_config
from supervisor.preflight import Overrides, run_preflight
from supervisor.prepared import PreparedBatch
from supervisor.rerun import read_rerun


def _prepared(world: Any) -> PreparedBatch:
    preflight = run_preflight(
        read_config(world.write_config()),
        options=Options(),
        overrides=Overrides(mode="shared", max_concurrency=3),
        keys={},
        machine=world.machine,
    )
    assert preflight.prepared is not None, preflight.issues
    return preflight.prepared


@pytest.fixture
def first(plan_world: Any, tmp_path: Path) -> BatchDir:
    """The folder of a batch that is running, outside of the repository."""
    prepared = _prepared(plan_world)
    batch_dir = BatchDir(tmp_path / "elsewhere" / "first")
    batch_dir.root.mkdir(parents=True)
    batch_dir.config.write_bytes(prepared.config_bytes)
    now = datetime(2026, 1, 2, tzinfo=UTC)
    state = BatchState(
        batch_id="b-1",
        benchmark="tiny",
        status=BatchStatus.RUNNING,
        mode="process",
        max_concurrency=2,
        created_at=now,
        updated_at=now,
        config_sha256=prepared.config_sha256,
        broker_version="1.0",
        evaluator_version="1.0.0",
        pricing=None,
        controller_pid=1,
        controller_started=0.0,
        rollouts=[],
    )
    write_record(batch_dir.state, state)
    return batch_dir


def test_the_config_as_run_is_absolute_and_carries_the_command_line(plan_world: Any) -> None:
    """A run folder may stand anywhere, and says how the batch really ran."""
    prepared = _prepared(plan_world)

    config = prepared.config
    assert ("shared", 3) == (config.mode, config.max_concurrency)
    assert ("shared", 3) == (prepared.mode, prepared.max_concurrency)
    root = str(plan_world.root)
    assert [f"{root}/suites", f"{root}/gold", f"{root}/prices.json"] == [
        config.task_suites_dir,
        config.evaluator.gold_cache,
        config.pricing,
    ]
    assert ["oracle-dot", "oracle-line", "oracle-box"] == [row.assignment.rollout_id for row in prepared.rollouts]
    assert plan_world.task_dir("dot") / "oracle.json" == prepared.rollouts[0].script


def test_one_rollout_is_planned_again_from_its_run_folder(plan_world: Any, first: BatchDir) -> None:
    """The plan is the default here too, and asks for that one rollout only."""
    before = {path: path.read_bytes() for path in first.root.iterdir()}

    ran = plan_world.bench("rollout", str(first.root), "oracle-line")

    assert [] == ran.codes
    assert 0 == ran.exit_code
    assert ["oracle-line"] == [row["rollout_id"] for row in ran.plan["rollouts"]]
    assert before == {path: path.read_bytes() for path in first.root.iterdir()}


def test_a_rerun_links_to_the_batch_it_came_from(first: BatchDir) -> None:
    """Whoever reads the second score can find the first."""
    rerun = read_rerun(first.root, "oracle-line")

    assert Link(batch_dir=str(first.root), batch_id="b-1", rollout_id="oracle-line") == rerun.link


def test_a_disabled_rollout_may_be_played_by_hand(plan_world: Any, first: BatchDir) -> None:
    """Naming it is enabling it."""
    text = first.config.read_text().replace('"enabled": true', '"enabled": false')
    first.config.write_text(text)

    assert read_rerun(first.root, "oracle-line").reading.draft.config.rollouts[0].enabled


@pytest.mark.parametrize("rollout_id", ["oracle-lines", "nothing"])
def test_an_unknown_rollout_is_a_usage_error(plan_world: Any, first: BatchDir, rollout_id: str) -> None:
    """The hint lists the rollouts that there are."""
    ran = plan_world.bench("rollout", str(first.root), rollout_id)

    assert 2 == ran.exit_code
    assert "oracle-line" in ran.stderr


def test_a_folder_without_a_batch_is_a_usage_error(tmp_path: Path) -> None:
    """A folder of another program is named as such."""
    with pytest.raises(ConfigError, match="cannot read"):
        read_rerun(tmp_path, "oracle-line")


def test_the_output_folder_of_a_rerun_is_checked_like_any_other(plan_world: Any, first: BatchDir) -> None:
    """A re-run can never write into the folder that it came from."""
    ran = plan_world.bench("rollout", str(first.root), "oracle-line", "--output-dir", str(first.root), "--execute")

    assert ["output_exists"] == ran.codes
    assert 3 == ran.exit_code


def test_a_batch_that_was_changed_or_is_being_run_is_not_resumed(plan_world: Any, first: BatchDir) -> None:
    """Two controllers in one folder would tear its records."""
    from supervisor.locks import take

    good = plan_world.batch("--resume", str(first.root))
    held = take(first.lock)
    assert held is not None
    busy = plan_world.batch("--resume", str(first.root), "--execute")
    held.release()
    first.config.write_text(first.config.read_text() + "\n")
    changed = plan_world.batch("--resume", str(first.root))
    first.state.unlink()
    gone = plan_world.batch("--resume", str(first.root))

    expected = [[], ["run_folder_in_use"], ["config_changed"], ["run_folder_invalid"]]
    assert expected == [ran.codes for ran in (good, busy, changed, gone)]
