"""The committed task suite is whole: every file is there, checks out, and tells a model all that it needs."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
from pathlib import Path

import ezdxf
import pytest
from ezdxf.document import Drawing

from contract.actions import Finish, InvalidActions, Keypress, parse_action_batch
from contract.config import OracleScript, Task, TaskSuite
from contract.records import read_record

ROOT = Path(__file__).resolve().parents[2]
SUITE_DIR = ROOT / "configs/suites/local-2d-v1"
GOLD_SOURCES_DIR = ROOT / "configs/gold/sources"
SUITE = read_record(SUITE_DIR / "suite.json", TaskSuite)
PNG_BYTES_MAX = 60_000
COLOR_NAMES = {1: "red", 2: "yellow", 3: "green", 4: "cyan", 6: "magenta", 7: "white"}

each_task = pytest.mark.parametrize("task_id", SUITE.tasks)


def task_of(task_id: str) -> Task:
    return read_record(SUITE_DIR / task_id / "task.json", Task)


def gold_of(task_id: str) -> Drawing:
    return ezdxf.readfile(GOLD_SOURCES_DIR / f"{task_id}.dxf")


def test_the_suite_is_a_frozen_list_of_eight_tasks() -> None:
    """A mean over another list of tasks is another benchmark: a change needs a new suite name."""
    expected = ["plate", "shaft", "flange", "bracket", "gasket", "stair", "floor-plan", "gear-cover"]

    assert expected == SUITE.tasks
    assert sorted(expected) == sorted(path.name for path in SUITE_DIR.iterdir() if path.is_dir())


@each_task
def test_checksums_are_those_of_the_files(task_id: str) -> None:
    """Preflight refuses a task whose start drawing or reference is not the one that was frozen."""
    task, folder = task_of(task_id), SUITE_DIR / task_id

    assert task_id == task.task_id
    assert task.start_drawing_sha256 == hashlib.sha256((folder / task.start_drawing).read_bytes()).hexdigest()
    assert task.reference_sha256 == hashlib.sha256((folder / task.reference).read_bytes()).hexdigest()


@each_task
def test_references_are_small_pictures_of_one_size(task_id: str) -> None:
    """The reference goes to the model with every request, so its bytes are paid for again and again."""
    png = (SUITE_DIR / task_id / "reference.png").read_bytes()

    assert b"\x89PNG\r\n\x1a\n" == png[:8]
    assert (1280, 960) == struct.unpack(">II", png[16:24])
    assert len(png) < PNG_BYTES_MAX


@each_task
def test_start_drawings_are_empty_and_metric(task_id: str) -> None:
    """Nothing that lies in the start drawing may earn a score."""
    drawing = ezdxf.readfile(SUITE_DIR / task_id / "start.dxf")

    assert [] == list(drawing.modelspace())
    assert 4 == drawing.header["$INSUNITS"]
    assert "AC1021" == drawing.dxfversion


@each_task
def test_oracle_scripts_are_valid_and_end_with_save_and_finish(task_id: str) -> None:
    """The oracle plays by the same rules as every model: valid ActionBatches, saved before finish."""
    assert task_of(task_id).oracle is not None
    script = read_record(SUITE_DIR / task_id / "oracle.json", OracleScript)
    batches = [parse_action_batch({"actions": turn}, budget=5000) for turn in script.turns]

    assert task_id == script.task_id
    assert 6 <= len(batches) <= 16
    assert [] == [batch for batch in batches if isinstance(batch, InvalidActions)]
    *_, save, last = batches[-1]
    assert Keypress(keys=["ctrl", "s"]) == save
    assert isinstance(last, Finish)
    assert [] == [batch for batch in batches[:-1] if isinstance(batch[-1], Finish)]
    assert max(len(batch) for batch in batches) <= 40


@each_task
def test_prompts_name_every_layer_with_its_properties(task_id: str) -> None:
    """A layer that the prompt does not describe cannot be got right, and structure is scored."""
    task, gold = task_of(task_id), gold_of(task_id)
    used = {entity.dxf.layer for entity in gold.modelspace()}

    assert used == {layer.dxf.name for layer in gold.layers if layer.dxf.name not in ("0", "Defpoints")}
    for name in used:
        layer = gold.layers.get(name)
        line = next(line for line in task.prompt.splitlines() if line.startswith(f"- {name}:"))
        assert f"colour {COLOR_NAMES[layer.color]}" in line
        assert {"CONTINUOUS": "Continuous", "CENTER": "Center", "DASHED": "Dash"}[layer.dxf.linetype] in line


@each_task
def test_prompts_state_every_dimension(task_id: str) -> None:
    """A model works from the prompt and the picture alone; a number that stands in neither is a trap."""
    task, gold = task_of(task_id), gold_of(task_id)
    prompt = task.prompt
    space = gold.modelspace()

    for curve in space.query("CIRCLE ARC"):
        assert f"radius {curve.dxf.radius:g}" in prompt
    for text in space.query("TEXT"):
        x, y, _ = text.dxf.insert
        assert f'"{text.dxf.text}" at ({x:g}, {y:g}), height {text.dxf.height:g}' in prompt
    for dimension in space.query("DIMENSION"):
        assert f", {dimension.get_measurement():g}: a " in prompt
    for phrase in ("millimetre", "origin (0, 0)", "Ctrl+S", "action finish"):
        assert phrase in prompt


def test_host_notes_tell_how_the_command_line_behaves() -> None:
    """Every one of these cost somebody a wrong drawing."""
    for fact in ("Ctrl+M", "Ctrl+L", "Ctrl+S", "three points", "Space", "By Layer", "pointer", "@30,40", "za", "close"):
        assert fact in SUITE.host_notes


@pytest.mark.slow
def test_everything_is_as_the_script_builds_it() -> None:
    """Tasks are changed in scripts/suite and built; a hand-edited file would be lost or, worse, be believed."""
    command = [sys.executable, str(ROOT / "scripts/build_suite.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert (0, "") == (done.returncode, done.stderr), done.stdout
