"""The plan document: what the checks found, what would run, how much at once, and what it would cost."""

from __future__ import annotations

import json
from typing import Any, Final

from contract.config import VENDOR_PROVIDERS, Assignment
from contract.redaction import redact
from supervisor.checks.subject import Subject
from supervisor.credentials import KEY_VARIABLES
from supervisor.preflight import Preflight

PLAN_SCHEMA: Final = "autocad-bench.plan/1"


def plan_document(preflight: Preflight) -> dict[str, Any]:
    """The plan as plain JSON values, schema `autocad-bench.plan/1`.

    `benchmark` and `admission` are null, and `rollouts` is empty, when the config does not say enough for them.
    """
    subject = preflight.subject
    draft = subject.draft
    return {
        "schema": PLAN_SCHEMA,
        "ok": not preflight.issues,
        "benchmark": subject.config.benchmark if draft.is_usable("benchmark") else None,
        "mode": subject.config.mode if draft.is_usable("mode") else None,
        "checks": [{"name": check.name, "status": check.status, "detail": check.detail} for check in preflight.checks],
        "issues": [issue.to_json() for issue in preflight.issues],
        "admission": subject.admission.to_json() if subject.admission else None,
        "cost": _cost(subject),
        "rollouts": [_rollout(entry) for entry in subject.config.rollouts] if draft.is_usable("rollouts") else [],
    }


def plan_text(preflight: Preflight) -> str:
    """The plan document as text for stdout, ending in a newline. No key of the environment stands in it."""
    text = json.dumps(plan_document(preflight), indent=2, ensure_ascii=False, allow_nan=False)
    return redact(text, preflight.subject.keys.values()) + "\n"


def _cost(subject: Subject) -> dict[str, Any]:
    """Scripted models ask nobody, so they cost nothing; what vendors cost is not estimated yet."""
    paid = [entry for _, entry in subject.enabled() if entry.provider in VENDOR_PROVIDERS]
    if not subject.draft.is_usable("rollouts"):
        return {"currency": "USD", "expected": None, "worst_case": None, "rollouts_not_estimated": 0}
    known = None if paid else "0"
    return {"currency": "USD", "expected": known, "worst_case": known, "rollouts_not_estimated": len(paid)}


def _rollout(entry: Assignment) -> dict[str, Any]:
    return {
        "rollout_id": entry.rollout_id,
        "task": entry.task,
        "provider": entry.provider,
        "model": entry.model,
        "profile": entry.profile,
        "enabled": entry.enabled,
        "credential": KEY_VARIABLES.get(entry.provider),
    }
