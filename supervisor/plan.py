"""The plan document: what the checks found, what would run, how much at once, and what it would cost."""

from __future__ import annotations

import json
from typing import Any, Final

from contract.config import Assignment
from contract.redaction import redact
from supervisor.checks.subject import Subject
from supervisor.choices import AWS_PROVIDERS
from supervisor.credentials import KEY_VARIABLES
from supervisor.plan_cost import PlanCost
from supervisor.preflight import Preflight

PLAN_SCHEMA: Final = "autocad-bench.plan/1"


def plan_document(preflight: Preflight) -> dict[str, Any]:
    """The plan as plain JSON values, schema `autocad-bench.plan/1`.

    `benchmark` and `admission` are null, and `rollouts` is empty, when the config does not say enough for them.
    """
    subject = preflight.subject
    draft = subject.draft
    cost = PlanCost(subject)
    entries = subject.config.rollouts if draft.is_usable("rollouts") else []
    return {
        "schema": PLAN_SCHEMA,
        "ok": not preflight.issues,
        "benchmark": subject.config.benchmark if draft.is_usable("benchmark") else None,
        "checks": [{"name": check.name, "status": check.status, "detail": check.detail} for check in preflight.checks],
        "issues": [issue.to_json() for issue in preflight.issues],
        "admission": _admission(subject),
        "cost": cost.total(),
        "rollouts": [_rollout(entry, subject, cost) for entry in entries],
    }


def plan_text(preflight: Preflight) -> str:
    """The plan document as text for stdout, ending in a newline. No key of the environment stands in it."""
    text = json.dumps(plan_document(preflight), indent=2, ensure_ascii=False, allow_nan=False)
    return redact(text, preflight.subject.keys.values()) + "\n"


def _admission(subject: Subject) -> dict[str, Any] | None:
    """What this machine admits; for instances with the numbers of their quota, which may admit fewer."""
    admission, quota = subject.admission, subject.quota
    if admission is None:
        return None
    document = {"mode": subject.config.mode, **admission.to_json()}
    if quota is None:
        return document
    running = subject.wave.running if subject.wave is not None else 0
    admitted = quota.admitted + running
    if admitted < admission.admitted:
        document |= {
            "admitted": admitted,
            "queued": admission.enabled_rollouts - admitted,
            "limiting_factor": "quota",
        }
    return {**document, "quota": {**quota.to_json(), "own_instances": running}}


def _rollout(entry: Assignment, subject: Subject, cost: PlanCost) -> dict[str, Any]:
    choice = subject.choices.of(entry) if entry.enabled else None
    return {
        "rollout_id": entry.rollout_id,
        "task": entry.task,
        "provider": entry.provider,
        "model": entry.model,
        "profile": choice.profile_name if choice is not None else entry.profile,
        "endpoint": choice.endpoint if choice is not None else None,
        "region": choice.region if choice is not None else None,
        "enabled": entry.enabled,
        "credential": "AWS" if entry.provider in AWS_PROVIDERS else KEY_VARIABLES.get(entry.provider),
        "cost": cost.of(entry),
    }
