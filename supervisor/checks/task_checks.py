"""Tasks: the suite in its order, every file as pinned, and scripts that can be played to their end."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from contract.actions import Finish, InvalidActions, parse_action_batch
from contract.config import Assignment, OracleScript, Task
from contract.errors import StateError
from contract.records import may_be_file, read_lines, read_record
from supervisor.checks.subject import Subject
from supervisor.issues import Finding, Issue, did_you_mean, few

MODEL_TURNS_NAME = "model_turns.jsonl"


def task_suite(subject: Subject) -> Finding:
    """Every model plays the suite's tasks in the suite's order: all of them, or with --allow-partial some of them."""
    loaded = subject.tasks
    name = subject.config.task_suite
    if name is None:
        return Finding("the config names no suite", skipped=True)
    if loaded.suite is None:
        return Finding(f"suite {name!r} cannot be read", loaded.suite_issues)
    suite_tasks = loaded.suite.tasks
    issues = []
    for players in _by_model(subject).values():
        issues += _suite_issues(subject, suite_tasks, players)
    return Finding(f"suite {name!r} with {len(suite_tasks)} tasks", tuple(issues))


def _by_model(subject: Subject) -> dict[tuple[str, str, str | None], list[tuple[str, Assignment]]]:
    groups: dict[tuple[str, str, str | None], list[tuple[str, Assignment]]] = defaultdict(list)
    for place, entry in subject.enabled():
        groups[entry.provider, entry.model, entry.profile].append((place, entry))
    return groups


def _suite_issues(subject: Subject, suite_tasks: list[str], players: list[tuple[str, Assignment]]) -> list[Issue]:
    name = subject.config.task_suite
    model = f"{players[0][1].provider}/{players[0][1].model}"
    issues = []
    for place, entry in players:
        if entry.task not in suite_tasks:
            message = f"task {entry.task!r} is not in suite {name!r}"
            hint = f"Use a task of the suite.{did_you_mean(entry.task, suite_tasks)}"
            issues.append(Issue("suite_mismatch", message, hint, f"{place}.task", entry.rollout_id))
    known = [(place, entry) for place, entry in players if entry.task in suite_tasks]
    played = {entry.task for _, entry in known}
    missing = [task for task in suite_tasks if task not in played]
    # An entry that cannot be read may be the one that is missing here; its own issue says so already.
    if missing and not subject.options.allow_partial and not subject.draft.unreadable_enabled:
        message = f"{model} does not play {few(missing)} of suite {name!r}"
        hint = "Add or enable the missing entries, or pass --allow-partial for a deliberately smaller batch."
        issues.append(Issue("suite_mismatch", message, hint, "rollouts"))
    places = [suite_tasks.index(entry.task) for _, entry in known]
    for before, (place, entry), now in zip(places, known[1:], places[1:], strict=False):
        if now < before:
            message = f"{model} plays {entry.task!r} after {suite_tasks[before]!r}; suite {name!r} has it before"
            hint = f"Order this model's entries like the suite: {few(suite_tasks)}."
            issues.append(Issue("suite_order", message, hint, place, entry.rollout_id))
            break
    return issues


def task_files(subject: Subject) -> Finding:
    """Every task's description, start drawing and reference are there and are the pinned ones."""
    suite = subject.tasks.suite
    if not subject.tasks.tasks:
        return Finding("the suite is missing", skipped=True)
    issues = []
    count = 0
    for name, loaded in subject.tasks.tasks.items():
        if suite is not None and name not in suite.tasks:
            continue
        count += 1
        issues += [_for_users(subject, name, issue, "task") for issue in loaded.issues]
    return Finding(f"{count} tasks", tuple(issues))


def _for_users(subject: Subject, task: str, issue: Issue, field: str) -> Issue:
    """The issue of a task, pointing at the first entry that plays it, and at its rollout when it is the only one."""
    users = subject.users_of(task)
    place, first = users[0]
    return Issue(
        issue.code,
        issue.message,
        issue.hint,
        issue.field or f"{place}.{field}",
        first.rollout_id if len(users) == 1 else None,
    )


def oracle_scripts(subject: Subject) -> Finding:
    """Each oracle rollout has a script of valid ActionBatches that finishes within the action budget."""
    issues = []
    count = 0
    for name in dict.fromkeys(entry.task for _, entry in subject.enabled() if entry.provider == "oracle"):
        loaded = subject.tasks.playable(name)
        if loaded is None or loaded.task is None:
            continue
        count += 1
        issue = _oracle_issue(loaded.task, loaded.folder, budget=subject.config.limits.actions)
        if issue:
            place, entry = next(user for user in subject.users_of(name) if user[1].provider == "oracle")
            issues.append(Issue(issue.code, issue.message, issue.hint, f"{place}.task", entry.rollout_id))
    return Finding(f"{count} oracle scripts" if count else "no oracle task to look at", tuple(issues), not count)


def _oracle_issue(task: Task, folder: Path, *, budget: int) -> Issue | None:
    if task.oracle is None:
        message = f"task {task.task_id!r} has no oracle script, so the oracle model cannot play it"
        return Issue("oracle_missing", message, "Play the task with another model, or add an oracle script to it.")
    path = folder / task.oracle
    if not may_be_file(path):
        return Issue("oracle_missing", f"the oracle script {path} does not exist", "Restore it from its repository.")
    try:
        script = read_record(path, OracleScript)
    except StateError as error:
        return Issue("oracle_invalid", error.message, "Correct the oracle script.")
    return _script_issue(script, task, path, budget=budget)


def _script_issue(script: OracleScript, task: Task, path: Path, *, budget: int) -> Issue | None:
    if script.task_id != task.task_id:
        message = f"{path} is for task {script.task_id!r}, not {task.task_id!r}"
        return Issue("oracle_invalid", message, "Restore the oracle script of this task.")
    actions = sum(len(turn) for turn in script.turns)
    if actions > budget:
        message = f"{path} needs {actions} actions, more than the {budget} of `limits.actions`"
        return Issue("oracle_over_budget", message, "Raise `limits.actions`, or shorten the script.")
    for number, turn in enumerate(script.turns, start=1):
        batch = parse_action_batch({"actions": turn}, budget=budget)
        if isinstance(batch, InvalidActions):
            return Issue("oracle_invalid", f"{path}, turn {number}: {batch.reason}", "Correct the oracle script.")
        if isinstance(batch[-1], Finish) != (number == len(script.turns)):
            message = f"{path}, turn {number}: the script must finish with its very last action"
            return Issue("oracle_invalid", message, "Correct the oracle script.")
    if not script.turns:
        return Issue("oracle_invalid", f"{path} has no turn", "Correct the oracle script.")
    return None


def replay_scripts(subject: Subject) -> Finding:
    """Each replay rollout names a stored trace that has model turns."""
    issues = []
    count = 0
    for place, entry in subject.enabled():
        if entry.provider != "replay":
            continue
        count += 1
        issue = _replay_issue(subject.root, entry)
        if issue:
            issues.append(Issue(issue.code, issue.message, issue.hint, f"{place}.script", entry.rollout_id))
    return Finding(f"{count} replay scripts" if count else "no replay rollout", tuple(issues), not count)


def replay_file(root: Path, script: str) -> Path:
    """The trace that `script` names: a file, or the one in a rollout folder."""
    path = root / script
    return path / MODEL_TURNS_NAME if os.path.isdir(path) else path


def _replay_issue(root: Path, entry: Assignment) -> Issue | None:
    hint = f"Name a {MODEL_TURNS_NAME} or the rollout folder that holds one."
    if entry.script is None:
        return Issue("replay_script_missing", f"{entry.rollout_id!r} replays a trace, but names none", hint)
    path = replay_file(root, entry.script)
    if not may_be_file(path):
        return Issue("replay_script_missing", f"the trace {path} does not exist", hint)
    try:
        has_turn = any("arguments" in line for line in read_lines(path))
    except OSError as error:
        return Issue("replay_script_invalid", f"cannot read {path}: {error.strerror or error}", hint)
    return None if has_turn else Issue("replay_script_invalid", f"{path} has no model turn", hint)
