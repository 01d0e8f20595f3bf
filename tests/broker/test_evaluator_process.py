"""The evaluator as a process: what its death or its silence means, and what it says of a broken drawing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.evaluator.process import EvaluatorProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def drawing(tmp_path: Path, seed: bytes) -> Path:
    path = tmp_path / "attempt.dxf"
    path.write_bytes(seed)
    return path


@pytest.fixture
def evaluator() -> Iterator[EvaluatorProcess]:
    made = EvaluatorProcess({"PATH": os.environ["PATH"]}, start_s_max=5.0)
    yield made
    made.close()


def pid_of(evaluator: EvaluatorProcess) -> int:
    assert evaluator._child is not None
    return evaluator._child.pid


def facts_of(evaluator: EvaluatorProcess, drawing: Path) -> dict[str, Any]:
    out = drawing.with_name("metadata.json")
    evaluator.export(drawing=drawing, start_drawing=None, out=out)
    facts: dict[str, Any] = json.loads(out.read_bytes())
    return facts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_dies_or_hangs_between_two_requests_is_replaced(
    evaluator: EvaluatorProcess, drawing: Path, number: signal.Signals
) -> None:
    """It says nothing about the drawing that comes next."""
    evaluator.warm()
    first = pid_of(evaluator)
    os.kill(first, number)
    facts = facts_of(evaluator, drawing)

    assert facts["invalid"]["code"] == "empty_drawing"
    assert first != pid_of(evaluator)


@pytest.mark.parametrize(
    ("kept", "code"), [(0, "missing_artifact"), (1, "wrong_format"), (50, "unreadable"), (1000, "unreadable")]
)
def test_a_torn_drawing_is_a_fact_and_no_failure(
    evaluator: EvaluatorProcess, drawing: Path, kept: int, code: str
) -> None:
    """What a model leaves behind is scored 0 when it cannot be read."""
    drawing.write_bytes(drawing.read_bytes()[:kept])

    assert facts_of(evaluator, drawing)["invalid"]["code"] == code
