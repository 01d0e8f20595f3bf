"""Gold: each needed entry is there, made by the pinned evaluator, unchanged, and of a schema that its task can use."""

from __future__ import annotations

from dataclasses import replace

from contract.errors import EvaluationError
from contract.gold import ManifestEntry
from supervisor.checks.subject import Subject
from supervisor.issues import PREFLIGHT_CODES, Finding, Issue


def evaluator(subject: Subject) -> Finding:
    """The evaluator on the host is the pinned one; facts of different evaluators are never compared."""
    pinned, host = subject.config.evaluator, subject.config.host
    detail = f"{pinned.name} {pinned.version}"
    if host.driver == "autocad":
        if pinned.name == "autocad":
            return Finding(f"{detail}; its version is known once a host is up")
        message = f"the config pins the evaluator {detail}, but hosts with AutoCAD have 'autocad'"
        hint = 'Pin "name": "autocad", its version in the image, and a gold cache that it made.'
        return Finding(detail, (Issue("evaluator_version_mismatch", message, hint, "evaluator.name"),))
    name, version = subject.machine.evaluator()
    if (pinned.name, pinned.version) == (name, version):
        return Finding(detail)
    whose = "local hosts have" if host.kind == "local" else f"hosts with driver {host.driver!r} have"
    message = f"the config pins the evaluator {detail}, but {whose} {name} {version}"
    hint = f'Pin "name": "{name}", "version": "{version}" and a gold cache that it made.'
    return Finding(detail, (Issue("evaluator_version_mismatch", message, hint, "evaluator.version"),))


def gold_cache(subject: Subject) -> Finding:
    """Every enabled task has a gold entry that is whole, made by the pinned evaluator, and about this very task."""
    from evaluator_client.gold import load_entry, read_manifest

    pinned = subject.config.evaluator
    gold_dir = subject.root / pinned.gold_cache
    faults: dict[Issue, list[str]] = {}
    names = list(dict.fromkeys(entry.task for _, entry in subject.enabled()))
    for name in names:
        try:
            load_entry(gold_dir, name, evaluator_name=pinned.name, evaluator_version=pinned.version)
            issue = _task_issue(subject, name, read_manifest(gold_dir).entries[name])
        except EvaluationError as error:
            code = error.code if error.code in PREFLIGHT_CODES else "cache_schema"
            issue = Issue(code, error.message, error.hint, "evaluator.gold_cache")
        if issue is not None:
            # A fault of the manifest is the same for every task, and said once.
            faults.setdefault(issue, []).append(name)
    issues = []
    for issue, tasks in faults.items():
        users = [entry.rollout_id for task in tasks for _, entry in subject.users_of(task)]
        issues.append(replace(issue, rollout_id=users[0] if len(users) == 1 else None))
    detail = f"{len(names)} gold entries wanted of {gold_dir}"
    if not names or issues or subject.config.host.kind != "local":
        return Finding(detail, tuple(issues))
    made_with, here = read_manifest(gold_dir).evaluator.config_sha256, subject.machine.evaluator_build()
    # Boxes of texts and pixels of letters may differ by a little: the operator decides whether that matters.
    is_other = here is not None and here != made_with
    if is_other:
        detail += "; they were made with other libraries or another font than this machine has"
    return Finding(detail, warns=is_other)


def _task_issue(subject: Subject, name: str, gold: ManifestEntry) -> Issue | None:
    """The gold must be about what the model is shown, compared in the way that the task says."""
    loaded = subject.tasks.playable(name)
    if loaded is None or loaded.task is None:
        return None
    task = loaded.task
    if (task.profile, task.placement) != (gold.profile, gold.placement):
        told = f"{task.profile}/{task.placement}, its gold {gold.profile}/{gold.placement}"
        message = f"task {name!r} is compared as {told}"
    elif task.reference_sha256 != gold.files["reference.png"].sha256:
        message = f"task {name!r} shows another reference picture than its gold was made with"
    else:
        return None
    hint = "Build the gold of this task again, or name the cache that belongs to this suite."
    return Issue("gold_mismatch", message, hint, "evaluator.gold_cache")
