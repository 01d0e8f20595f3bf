"""The files of the suite as bytes: prompts, start drawings, references, oracle scripts, gold."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

import orjson

from contract.actions import InvalidActions, parse_action_batch
from contract.config import OracleScript, Task, TaskSuite
from contract.records import dump_pretty
from scripts.suite.catalog import SUITE, TASKS
from scripts.suite.gold import gold_cache_files
from scripts.suite.model import TaskDefinition
from scripts.suite.picture import reference_picture
from scripts.suite.seed import start_drawing, to_bytes
from scripts.suite.steps import finish
from scripts.suite.words import HOST_NOTES, prompt_of

SUITE_DIR = PurePosixPath("configs/suites") / SUITE
GOLD_DIR = PurePosixPath("configs/gold")
# The drawings that the gold facts are made of; beside the cache, where no host sees them.
GOLD_SOURCES_DIR = GOLD_DIR / "sources"
# The budget of actions that a rollout has unless its config says otherwise (contract/rollout_records.py).
ACTION_BUDGET = 5000


def suite_files() -> dict[PurePosixPath, bytes]:
    """All files of the suite, all gold drawings and the gold cache, by path from the root of the repository."""
    names = [task.task_id for task in TASKS]
    suite = TaskSuite.model_validate(
        {"schema": "autocad-bench.suite/1", "suite": SUITE, "host_notes": HOST_NOTES, "tasks": names}
    )
    files = {SUITE_DIR / "suite.json": dump_pretty(suite)}
    for task in TASKS:
        files |= _task_files(task)
    cache = gold_cache_files(
        golds={name: files[GOLD_SOURCES_DIR / f"{name}.dxf"] for name in names},
        starts={name: files[SUITE_DIR / name / "start.dxf"] for name in names},
        references={name: files[SUITE_DIR / name / "reference.png"] for name in names},
    )
    return files | {GOLD_DIR / path: content for path, content in cache.items()}


def _task_files(task: TaskDefinition) -> dict[PurePosixPath, bytes]:
    gold = task.gold()
    start, reference = start_drawing(task.view), reference_picture(gold)
    record = Task.model_validate(
        {
            "schema": "autocad-bench.task/1",
            "task_id": task.task_id,
            "title": task.title,
            "prompt": prompt_of(task),
            "start_drawing": "start.dxf",
            "start_drawing_sha256": hashlib.sha256(start).hexdigest(),
            "reference": "reference.png",
            "reference_sha256": hashlib.sha256(reference).hexdigest(),
            "oracle": "oracle.json",
            "profile": "2d",
            "placement": "absolute",
        }
    )
    folder = SUITE_DIR / task.task_id
    return {
        folder / "task.json": dump_pretty(record),
        folder / "start.dxf": start,
        folder / "reference.png": reference,
        folder / "oracle.json": _oracle(task),
        GOLD_SOURCES_DIR / f"{task.task_id}.dxf": to_bytes(gold),
    }


def _oracle(task: TaskDefinition) -> bytes:
    """One action a line, so that a change of a script reads well in a diff."""
    turns = [list(turn) for turn in task.turns] + [finish(task.summary)]
    for number, turn in enumerate(turns, 1):
        checked = parse_action_batch({"actions": turn}, budget=ACTION_BUDGET)
        assert not isinstance(checked, InvalidActions), f"{task.task_id}, turn {number}: {checked}"
    OracleScript.model_validate({"schema": "autocad-bench.oracle/1", "task_id": task.task_id, "turns": turns})
    batches = ",\n".join(
        "    [\n" + ",\n".join(f"      {orjson.dumps(action).decode()}" for action in turn) + "\n    ]"
        for turn in turns
    )
    head = f'{{\n  "schema": "autocad-bench.oracle/1",\n  "task_id": "{task.task_id}",\n  "turns": [\n'
    return f"{head}{batches}\n  ]\n}}\n".encode()
