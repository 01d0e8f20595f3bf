"""Gold: each needed entry is there, made by the pinned evaluator, unchanged, and of a schema that its task can use."""

from __future__ import annotations

from contract.errors import EvaluationError
from supervisor.checks.subject import Subject
from supervisor.issues import PREFLIGHT_CODES, Finding, Issue

_HINTS = {
    "cache_missing": "Build the gold of this task, or name the cache that has it in `evaluator.gold_cache`.",
    "cache_checksum": "Restore the gold cache from its repository; a cache is never edited.",
    "cache_schema": "Build the gold again with an evaluator that writes the schema that this task needs.",
    "evaluator_version_mismatch": "Pin the evaluator that made this gold, or name a cache that the pinned one made.",
}


def evaluator(subject: Subject) -> Finding:
    """The evaluator on the host is the pinned one; facts of different evaluators are never compared."""
    pinned = subject.config.evaluator
    if subject.config.host.kind != "local":
        return Finding("known once a host is up", skipped=True)
    name, version = subject.machine.evaluator()
    detail = f"{pinned.name} {pinned.version}"
    if (pinned.name, pinned.version) == (name, version):
        return Finding(detail)
    message = f"the config pins the evaluator {detail}, but local hosts have {name} {version}"
    hint = f'Pin "name": "{name}", "version": "{version}" and a gold cache that it made.'
    return Finding(detail, (Issue("evaluator_version_mismatch", message, hint, "evaluator.version"),))


def gold_cache(subject: Subject) -> Finding:
    """Every enabled task has a gold entry whose files all have the pinned size and digest."""
    from evaluator_client.gold import load_entry

    pinned = subject.config.evaluator
    gold_dir = subject.root / pinned.gold_cache
    faults: dict[str, tuple[EvaluationError, list[str]]] = {}
    names = list(dict.fromkeys(entry.task for _, entry in subject.enabled()))
    for name in names:
        try:
            load_entry(gold_dir, name, evaluator_name=pinned.name, evaluator_version=pinned.version)
        except EvaluationError as error:
            # A fault of the manifest is the same for every task, and said once.
            faults.setdefault(error.message, (error, []))[1].append(name)
    issues = []
    for fault, tasks in faults.values():
        users = [entry.rollout_id for task in tasks for _, entry in subject.users_of(task)]
        issues.append(_issue_of(fault, rollout_id=users[0] if len(users) == 1 else None))
    return Finding(f"{len(names)} gold entries wanted of {gold_dir}", tuple(issues))


def _issue_of(error: EvaluationError, *, rollout_id: str | None) -> Issue:
    code = error.code if error.code in PREFLIGHT_CODES else "cache_schema"
    hint = error.hint or _HINTS.get(code, "Restore the gold cache.")
    return Issue(code, error.message, hint, "evaluator.gold_cache", rollout_id)
