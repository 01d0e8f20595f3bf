"""The suite on the real CAD program: every oracle reaches its gold by mouse and keyboard alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.drivers.librecad import LibreCadDriver
from broker.evaluator.export import Facts
from broker.evaluator.render import render_flats
from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.actions import InvalidActions, parse_action_batch
from contract.config import OracleScript, TaskSuite
from contract.records import read_record
from contract.score_records import Score
from evaluator_client.gold import GoldEntry, load_entry
from evaluator_client.score import score_drawing

pytestmark = [pytest.mark.desktop, pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]
SUITE_DIR = ROOT / "configs/suites/local-2d-v1"
TASKS = read_record(SUITE_DIR / "suite.json", TaskSuite).tasks


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibreCadDriver]:
    """One desktop for all tasks: a reset between them must leave nothing of the last one."""
    driver = LibreCadDriver(tmp_path_factory.mktemp("suite"), base_env={"PATH": os.environ["PATH"]})
    try:
        driver.prepare()
        yield driver
    finally:
        driver.close()


def gold_of(task_id: str) -> GoldEntry:
    return load_entry(
        ROOT / "configs/gold", task_id, evaluator_name=EVALUATOR_NAME, evaluator_version=EVALUATOR_VERSION
    )


def score_of(task_id: str, drawing: bytes) -> Score:
    """The score of a drawing by the same path that candidates go."""
    gold, facts = gold_of(task_id), Facts.of(drawing)
    metadata = facts.metadata((SUITE_DIR / task_id / "start.dxf").read_bytes())
    render = None
    if metadata.status == "ok":
        render = render_flats(facts.flats, window=gold.window, size_px=gold.size_px, offset=(0.0, 0.0))
    return score_drawing(candidate=metadata, render=render, gold=gold).score


@pytest.mark.parametrize("task_id", TASKS)
def test_the_oracle_reaches_the_gold(task_id: str, driver: LibreCadDriver) -> None:
    """A task that a perfect hand cannot solve measures nothing."""
    driver.reset((SUITE_DIR / task_id / "start.dxf").read_bytes())
    for turn in read_record(SUITE_DIR / task_id / "oracle.json", OracleScript).turns:
        actions = parse_action_batch({"actions": turn}, budget=5000)
        assert not isinstance(actions, InvalidActions)
        driver.act(actions)

    score = score_of(task_id, driver.save().read_bytes())

    assert score.valid
    assert score.deterministic >= 0.99, score.components


@pytest.mark.parametrize("task_id", TASKS)
def test_a_drawing_that_nobody_touched_is_worth_nothing(task_id: str, driver: LibreCadDriver) -> None:
    """The start drawing, as the CAD program holds it, is invalid and never a low score."""
    driver.reset((SUITE_DIR / task_id / "start.dxf").read_bytes())

    score = score_of(task_id, driver.save().read_bytes())

    assert score.invalid is not None
    assert ("untouched", 0.0) == (score.invalid.code, score.deterministic)
