"""`evaluate` scores what is stored again, beside the first score, and says what it could not score."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ezdwg
import pytest

from contract.evaluation_records import EvaluationStatus, EvaluatorName, Stage
from contract.records import write_record
from contract.run_dir import BatchDir
from evaluator_client.gold import load_entry
from evaluator_client.score import missing_artifact_score
from supervisor.checks.subject import Options
from supervisor.config_reading import read_config
from supervisor.preflight import Overrides, run_preflight


@pytest.fixture
def batch_dir(plan_world: Any, tmp_path: Path) -> BatchDir:
    """A batch in which only `oracle-dot` was scored: its model left no drawing."""
    reading = read_config(plan_world.write_config())
    preflight = run_preflight(reading, options=Options(), overrides=Overrides(), keys={}, machine=plan_world.machine)
    assert preflight.prepared is not None
    batch_dir = BatchDir(tmp_path / "batch")
    evaluation = batch_dir.rollout("oracle-dot").evaluation
    evaluation.root.mkdir(parents=True)
    batch_dir.config.write_bytes(preflight.prepared.config_bytes)
    gold = load_entry(plan_world.root / "gold", "dot", evaluator_name="ezdxf", evaluator_version="1.0.0")
    evaluation.score.write_bytes(missing_artifact_score(gold).score_json)
    status = EvaluationStatus(
        state=Stage.INVALID,
        updated_at=datetime(2026, 1, 2, tzinfo=UTC),
        history=[],
        evaluator=EvaluatorName(name="ezdxf", version="1.0.0"),
        attempts={},
        failure=None,
        files={},
    )
    write_record(evaluation.status, status)
    return batch_dir


def test_a_second_score_is_identical_and_stands_beside_the_first(plan_world: Any, batch_dir: BatchDir) -> None:
    """The same artifacts and gold give the same bytes, and the first score is never touched."""
    evaluation = batch_dir.rollout("oracle-dot").evaluation
    first = evaluation.score.read_bytes()

    ran = plan_world.bench("evaluate", str(batch_dir.root), "oracle-dot", "--json")

    (row,) = json.loads(ran.stdout)["rollouts"]
    assert (0, True, None) == (ran.exit_code, row["delta"]["is_identical"], row["error"])
    assert first == evaluation.score.read_bytes() == evaluation.rescore(1).score.read_bytes()


def test_what_cannot_be_scored_is_said_and_does_not_stop_the_others(plan_world: Any, batch_dir: BatchDir) -> None:
    """A batch with holes still gets all the scores that it can get."""
    ran = plan_world.bench("evaluate", str(batch_dir.root))

    assert 1 == ran.exit_code
    assert "identical bytes" in ran.stdout
    assert 2 == ran.stdout.count("never scored")


@pytest.mark.parametrize("arguments", [["oracle-dots"], ["--gold-cache", "/nowhere"]])
def test_a_wrong_name_is_no_traceback(plan_world: Any, batch_dir: BatchDir, arguments: list[str]) -> None:
    """One line says what is missing."""
    ran = plan_world.bench("evaluate", str(batch_dir.root), *arguments)

    assert ran.exit_code in (1, 2)
    assert "Traceback" not in ran.stderr + ran.stdout


def test_a_folder_without_a_batch_is_wrong_usage(plan_world: Any, tmp_path: Path) -> None:
    """The exit status tells a mistyped path from a score that is missing."""
    ran = plan_world.bench("evaluate", str(tmp_path / "nothing"))

    assert 2 == ran.exit_code


@pytest.mark.slow
def test_a_dwg_attempt_is_looked_at_when_its_rollout_is_named(plan_world: Any, batch_dir: BatchDir) -> None:
    """Facts and a picture stand beside the evaluation, marked as no pinned score; the score itself has not changed."""
    drawing = ezdwg.new()
    drawing.modelspace().add_line((0, 0), (100, 50))
    drawing.modelspace().add_circle((50, 25), radius=10)
    run_dir = batch_dir.rollout("oracle-dot")
    drawing.save(str(run_dir.attempt("dwg")))
    first = run_dir.evaluation.score.read_bytes()

    ran = plan_world.bench("evaluate", str(batch_dir.root), "oracle-dot", "--json")
    (row,) = json.loads(ran.stdout)["rollouts"]
    folder = run_dir.evaluation.root / "inspected" / "0001"
    facts = json.loads((folder / "metadata.json").read_bytes())

    assert (0, True, str(folder)) == (ran.exit_code, row["delta"]["is_identical"], row["inspection"]["folder"])
    assert "1 circle, 1 line" in row["inspection"]["summary"]
    assert facts["evaluator"]["version"].endswith("+dwg")
    assert ["metadata.json", "render.png"] == sorted(path.name for path in folder.iterdir())
    assert first == run_dir.evaluation.score.read_bytes()


@pytest.mark.slow
def test_a_broken_dwg_is_said_and_changes_no_exit_status(plan_world: Any, batch_dir: BatchDir) -> None:
    """Looking is an extra: what was scored stays scored."""
    batch_dir.rollout("oracle-dot").attempt("dwg").write_bytes(b"AC1032" + bytes(100))

    ran = plan_world.bench("evaluate", str(batch_dir.root), "oracle-dot")

    assert 0 == ran.exit_code
    assert "attempt.dwg cannot be read here" in ran.stdout
