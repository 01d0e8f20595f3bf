"""What the README promises, played for real: every task on LibreCAD, in both modes, by the command a newcomer types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract.batch_records import BatchState
from contract.phases import Outcome
from contract.records import read_record
from contract.run_dir import BatchDir

ROOT = Path(__file__).resolve().parents[2]
PLAY_S_MAX = 900

pytestmark = [pytest.mark.e2e, pytest.mark.desktop]


def play(config: str, output: Path, mode: str) -> BatchState:
    """Run one batch by its command and return its final state; the command must end with 0."""
    command = [Path(sys.executable).with_name("autocad-bench-batch"), "--config", ROOT / "configs" / config]
    ended = subprocess.run(
        [*command, "--mode", mode, "--output-dir", output, "--execute"],
        env={"PATH": os.environ["PATH"], "HOME": str(output.parent)},
        capture_output=True,
        text=True,
        timeout=PLAY_S_MAX,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr[-3000:]
    return read_record(BatchDir(output).state, BatchState)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo batch, played once in each mode."""
    folder = tmp_path_factory.mktemp("demo")
    for mode in ("process", "shared"):
        play("local-demo.json", folder / mode, mode)
    return {mode: folder / mode for mode in ("process", "shared")}


def rows_of(folder: Path) -> dict[str, Any]:
    state = read_record(BatchDir(folder).state, BatchState)
    return {row.rollout_id: row for row in state.rollouts}


def test_the_oracle_reaches_every_gold(demos: dict[str, Path]) -> None:
    """A task whose reference solution does not score cannot measure a model."""
    for folder in demos.values():
        rows = rows_of(folder)

        assert 8 == len(rows)
        assert {Outcome.SCORED} == {row.outcome for row in rows.values()}
        assert min(row.score for row in rows.values()) >= 0.99


def test_both_modes_leave_the_same_trace(demos: dict[str, Path]) -> None:
    """Two modes, one code path: the same files, the same turns, the same scores."""

    def shape(folder: Path) -> dict[str, Any]:
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "logs" not in p.parts)
        turns = {
            path.parent.name: [json.loads(line)["arguments"] for line in path.read_text().splitlines()]
            for path in folder.rglob("model_turns.jsonl")
        }
        scores = {rollout_id: row.score for rollout_id, row in rows_of(folder).items()}
        return {"files": files, "turns": turns, "scores": scores}

    assert shape(demos["process"]) == shape(demos["shared"])


def test_scoring_again_gives_the_same_bytes(demos: dict[str, Path]) -> None:
    """A score that cannot be made again from its archive proves nothing."""
    command = [Path(sys.executable).with_name("autocad-bench"), "evaluate", demos["process"], "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == ended.returncode, ended.stderr
    assert all(entry["delta"]["is_identical"] for entry in json.loads(ended.stdout)["rollouts"])


def test_doing_nothing_is_worth_nothing_and_chance_hardly_more(tmp_path: Path) -> None:
    """A score that noise can reach says nothing about a model."""
    rows = {row.rollout_id: row for row in play("local-baselines.json", tmp_path / "run", "process").rollouts}
    noop = {name: row for name, row in rows.items() if row.provider == "noop"}
    codes = {
        json.loads((BatchDir(tmp_path / "run").rollout(name).evaluation.score).read_text())["invalid"]["code"]
        for name in noop
    }

    assert {"untouched"} == codes
    assert {0.0} == {row.score for row in noop.values()}
    assert max(row.score for row in rows.values()) <= 0.05
    assert {Outcome.SCORED} == {row.outcome for row in rows.values()}
