"""A suite is read whole, verified by checksum, and never leads out of its own folder."""

from __future__ import annotations

import json
from typing import Any

from supervisor.config_reading import read_config
from supervisor.suite import load_tasks


def _load(world: Any, *names: str) -> Any:
    draft = read_config(world.write_config()).draft
    return load_tasks(draft.config, draft.root, list(names))


def test_a_task_comes_with_its_folder_and_the_notes_of_its_host(plan_world: Any) -> None:
    """What a model is told is decided by the suite, not by the batch."""
    loaded = _load(plan_world, "line").playable("line")

    assert plan_world.task_dir("line") == loaded.folder
    assert ("line", "notes") == (loaded.task.task_id, loaded.host_notes)


def test_without_a_named_suite_a_task_is_found_wherever_it_is(plan_world: Any) -> None:
    """One suite is enough to know what is meant."""
    plan_world.config.pop("task_suite")

    assert "notes" == _load(plan_world, "box").playable("box").host_notes


def test_a_suite_that_lists_a_task_twice_is_refused(plan_world: Any) -> None:
    """Order has no meaning when a task stands at two places."""
    path = plan_world.root / "suites" / "tiny-suite" / "suite.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "tasks": ["dot", "dot"]}))

    (issue,) = _load(plan_world, "dot").suite_issues

    assert "suite_invalid" == issue.code
    assert "'dot' twice" in issue.message


def test_a_broken_task_is_not_playable_and_says_why(plan_world: Any) -> None:
    """All that is wrong with a task is said at once."""
    (plan_world.task_dir("line") / "start.dxf").write_bytes(b"changed")
    (plan_world.task_dir("line") / "reference.png").unlink()

    loaded = _load(plan_world, "line")

    assert loaded.playable("line") is None
    assert ["task_file_checksum", "task_file_missing"] == [issue.code for issue in loaded.tasks["line"].issues]


def test_a_name_that_is_nearly_right_is_suggested(plan_world: Any) -> None:
    """Most missing tasks are misspelt ones."""
    (issue,) = _load(plan_world, "lines").tasks["lines"].issues

    assert "Did you mean 'line'?" in issue.hint


def test_a_config_far_from_any_suites_means_those_of_this_program(plan_world: Any) -> None:
    """A suite is named, not located, so a config may stand anywhere."""
    del plan_world.config["task_suites_dir"]
    plan_world.config["task_suite"] = "local-2d-v1"

    assert _load(plan_world, "bracket").playable("bracket") is not None
    assert "suite_missing" not in plan_world.plan().codes
