"""The plan's `cost`, and that of each of its rollouts: decimal US dollars as strings, null where nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal
from typing import Any, Final

import orjson

from contract.config import VENDOR_PROVIDERS, Assignment
from supervisor.checks.subject import Subject
from supervisor.estimate import ASSUMPTIONS, Estimate, estimate

SHOWN_STEP: Final = Decimal("0.0001")


class PlanCost:
    """The estimates of all enabled rollouts of one config."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        is_usable = subject.draft.is_usable("rollouts")
        self._entries = [entry for _, entry in subject.enabled()] if is_usable else []
        self._is_usable = is_usable
        known: dict[tuple[Any, ...], Estimate | None] = {}
        self._by_id: dict[str, Estimate | None] = {}
        for entry in self._entries:
            if entry.provider in VENDOR_PROVIDERS:
                key = (entry.provider, entry.model, entry.profile, entry.task)
                if key not in known:
                    known[key] = _estimate(subject, entry)
                self._by_id[entry.rollout_id] = known[key]

    def total(self) -> dict[str, Any]:
        """The plan's `cost`. A sum with an unknown part is unknown; `rollouts_not_estimated` counts those parts."""
        missing = sum(found is None for found in self._by_id.values())
        found = [each for each in self._by_id.values() if each is not None]
        is_known = self._is_usable and not missing
        expected = sum((each.expected for each in found), Decimal(0))
        worst = sum((each.worst_case for each in found), Decimal(0))
        limit = self._subject.config.limits.batch_cost_usd
        if limit is not None:
            turns = sorted((each.worst_turn for each in found), reverse=True)
            worst = min(worst, limit + sum(turns[: self._wave()], Decimal(0)))
        return {
            "currency": "USD",
            "expected": _likely(min(expected, worst)) if is_known else None,
            "worst_case": _at_most(worst) if is_known else None,
            "rollouts_not_estimated": missing,
            "assumptions": ASSUMPTIONS if self._by_id else {},
        }

    def of(self, entry: Assignment) -> Mapping[str, Any] | None:
        """The cost of one rollout; null for one that is not enabled."""
        if not entry.enabled or not self._is_usable:
            return None
        if entry.provider not in VENDOR_PROVIDERS:
            return {"expected": "0", "worst_case": "0"}
        found = self._by_id.get(entry.rollout_id)
        if found is None:
            return {"expected": None, "worst_case": None}
        return {
            "expected": _likely(found.expected),
            "worst_case": _at_most(found.worst_case),
            "expected_turns": found.expected_turns,
            "worst_case_turns": found.worst_turns,
            "worst_case_turn": _at_most(found.worst_turn),
        }

    def _wave(self) -> int:
        admission = self._subject.admission
        return self._subject.config.max_concurrency if admission is None else admission.max_concurrency


def _estimate(subject: Subject, entry: Assignment) -> Estimate | None:
    choice = subject.choices.of(entry)
    loaded = subject.tasks.playable(entry.task)
    row = subject.prices.table.rows.get(f"{entry.provider}/{entry.model}") if subject.prices.table else None
    if choice is None or row is None or loaded is None or loaded.task is None:
        return None
    oracle = loaded.folder / loaded.task.oracle if loaded.task.oracle is not None else None
    turns = None
    if oracle is not None and oracle.is_file():
        try:
            turns = len(orjson.loads(oracle.read_bytes())["turns"])
        # What is wrong with the script is said by the check that reads it, where a rollout plays it.
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
            turns = None
    return estimate(
        choice.facts,
        row,
        subject.config.limits,
        task_chars=len(loaded.task.prompt) + len(loaded.host_notes),
        oracle_turns=turns,
    )


def _likely(amount: Decimal) -> str:
    return _shown(amount.quantize(SHOWN_STEP, ROUND_HALF_UP))


def _at_most(amount: Decimal) -> str:
    return _shown(amount.quantize(SHOWN_STEP, ROUND_UP))


def _shown(amount: Decimal) -> str:
    return f"{amount:f}" if amount else "0"
