"""Reads task suites and their tasks, and says what is wrong with them as issues.

<task_suites_dir>/<suite>/suite.json
<task_suites_dir>/<suite>/<task>/task.json, reference picture, start drawing, oracle script
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from contract.config import BatchConfig, Task, TaskSuite
from contract.errors import StateError
from contract.records import may_be_file, read_record
from supervisor.issues import Issue, did_you_mean

OWN_SUITES_DIR: Final = Path(__file__).resolve().parents[1] / "configs" / "suites"


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """One task of a suite, with its files verified. `task` is null when it cannot be played; `issues` says why."""

    name: str
    folder: Path
    task: Task | None
    host_notes: str
    issues: tuple[Issue, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """The suite of a config, or null when it names none or the suite is unreadable, and its tasks by name."""

    suite: TaskSuite | None
    suite_issues: tuple[Issue, ...]
    tasks: Mapping[str, LoadedTask] = field(default_factory=dict)

    def playable(self, name: str) -> LoadedTask | None:
        """The task, when all its files are right."""
        loaded = self.tasks.get(name)
        return loaded if loaded is not None and loaded.task is not None else None


def load_tasks(config: BatchConfig, root: Path, names: list[str]) -> LoadedTasks:
    """Read the config's suite and the tasks `names`, each once.

    A suite whose folder is missing gives no tasks at all: one issue says it. A config without `task_suite` finds each
    task in whichever suite has it; two that have it are an issue.
    """
    suites_dir = suites_dir_of(config, root)
    if config.task_suite is None:
        return LoadedTasks(None, (), {name: _find_task(suites_dir, name) for name in names})
    folder = suites_dir / config.task_suite
    suite, issues = _read_suite(folder, config.task_suite)
    if not os.path.isdir(folder):
        return LoadedTasks(None, issues)
    notes = suite.host_notes if suite else ""
    return LoadedTasks(suite, issues, {name: _load_task(folder, name, host_notes=notes) for name in names})


def suites_dir_of(config: BatchConfig, root: Path) -> Path:
    """The folder of the config's suites: the one it names, below `root`.

    A config far from any suites that names no folder means the suites that came with this program.
    """
    named = root / config.task_suites_dir
    is_default = config.task_suites_dir == BatchConfig.model_fields["task_suites_dir"].default
    return OWN_SUITES_DIR if is_default and not os.path.isdir(named) and OWN_SUITES_DIR.is_dir() else named


def _read_suite(folder: Path, name: str) -> tuple[TaskSuite | None, tuple[Issue, ...]]:
    path = folder / "suite.json"
    if not may_be_file(path):
        siblings = [other.parent.name for other in _below(folder.parent, "*/suite.json")]
        issue = Issue(
            "suite_missing",
            f"task suite {name!r} is not at {path}",
            f"Name an existing suite.{did_you_mean(name, siblings)}",
            "task_suite",
        )
        return None, (issue,)
    try:
        suite = read_record(path, TaskSuite)
    except StateError as error:
        return None, (Issue("suite_invalid", error.message, "Restore the suite from its repository.", "task_suite"),)
    problem = _suite_problem(suite, name)
    if problem:
        return None, (Issue("suite_invalid", f"{path}: {problem}", "Restore the suite.", "task_suite"),)
    return suite, ()


def _below(folder: Path, pattern: str) -> list[Path]:
    """What is there, in order; nothing where we may not look."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _suite_problem(suite: TaskSuite, name: str) -> str | None:
    if suite.suite != name:
        return f"it calls itself {suite.suite!r}, not {name!r}"
    twice = sorted({task for task in suite.tasks if suite.tasks.count(task) > 1})
    return f"it lists {twice[0]!r} twice" if twice else None


def _find_task(suites_dir: Path, name: str) -> LoadedTask:
    homes = [path.parent.parent for path in _below(suites_dir, f"*/{name}/task.json")]
    if not homes:
        issue = Issue("task_missing", f"task {name!r} is in no suite under {suites_dir}", "Name an existing task.")
        return LoadedTask(name, suites_dir / name, None, "", (issue,))
    if len(homes) > 1:
        issue = Issue(
            "task_ambiguous",
            f"task {name!r} is in the suites {', '.join(home.name for home in homes)}",
            "Name the suite that is meant in `task_suite`.",
            "task_suite",
        )
        return LoadedTask(name, homes[0] / name, None, "", (issue,))
    suite, issues = _read_suite(homes[0], homes[0].name)
    loaded = _load_task(homes[0], name, host_notes=suite.host_notes if suite else "")
    return LoadedTask(name, loaded.folder, None, "", issues) if issues else loaded


def _load_task(suite_folder: Path, name: str, *, host_notes: str) -> LoadedTask:
    folder = suite_folder / name
    path = folder / "task.json"
    if not may_be_file(path):
        known = [other.parent.name for other in _below(suite_folder, "*/task.json")]
        issue = Issue(
            "task_missing", f"task {name!r} is not at {path}", f"Name an existing task.{did_you_mean(name, known)}"
        )
        return LoadedTask(name, folder, None, host_notes, (issue,))
    try:
        task = read_record(path, Task)
    except StateError as error:
        issue = Issue("task_invalid", error.message, "Restore the task from its repository.")
        return LoadedTask(name, folder, None, host_notes, (issue,))
    issues = tuple(_task_issues(task, name, folder))
    return LoadedTask(name, folder, None if issues else task, host_notes, issues)


def _task_issues(task: Task, name: str, folder: Path) -> list[Issue]:
    issues = []
    if task.task_id != name:
        message = f"{folder / 'task.json'} calls itself {task.task_id!r}, not {name!r}"
        issues.append(Issue("task_invalid", message, "Restore the task from its repository."))
    for what, sha256 in ((task.start_drawing, task.start_drawing_sha256), (task.reference, task.reference_sha256)):
        issue = _file_issue(folder, what, sha256)
        if issue:
            issues.append(issue)
    if task.oracle is not None and Path(task.oracle).name != task.oracle:
        issues.append(_outside(folder, task.oracle))
    return issues


def _file_issue(folder: Path, name: str, sha256: str) -> Issue | None:
    if Path(name).name != name:
        return _outside(folder, name)
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        return Issue("task_file_missing", message, "Restore the task from its repository.")
    if hashlib.sha256(content).hexdigest() != sha256:
        message = f"{path} is not the file that task.json pins: its SHA-256 differs"
        return Issue("task_file_checksum", message, "Restore the file, or rebuild the suite with its script.")
    return None


def _outside(folder: Path, name: str) -> Issue:
    message = f"{folder / 'task.json'} names {name!r}, which is no file of the task's own folder"
    return Issue("task_invalid", message, "Give plain file names in task.json.")
