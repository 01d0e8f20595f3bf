"""The plan's `cost`, and that of each of its rollouts: decimal US dollars as strings, null where nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal
from typing import Any, Final

import orjson

from contract.config import VENDOR_PROVIDERS, Assignment
from supervisor.checks.subject import Subject
from supervisor.estimate import ASSUMPTIONS, Estimate, estimate
from supervisor.judge_cost import JUDGE_ASSUMPTIONS, JudgeEstimate, judge_estimate, price_of

SHOWN_STEP: Final = Decimal("0.0001")


class PlanCost:
    """The estimates of all enabled rollouts of one config, and of the judge that looks at their drawings."""

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
        judge = subject.config.judge if subject.draft.is_usable("judge") else None
        row = price_of(judge, subject.prices.table) if judge is not None else None
        self._has_judge = judge is not None
        self._judge: JudgeEstimate | None = (
            judge_estimate(judge, row) if judge is not None and row is not None else None
        )

    def total(self) -> dict[str, Any]:
        """The plan's `cost`. A sum with an unknown part is unknown; `rollouts_not_estimated` counts those parts.

        With a judge its part of both sums stands in `judge`; `limits.batch_cost_usd` does not hold it.
        """
        missing = sum(found is None for found in self._by_id.values())
        found = [each for each in self._by_id.values() if each is not None]
        is_known = self._is_usable and not missing and (self._judge is not None or not self._has_judge)
        expected = sum((each.expected for each in found), Decimal(0))
        worst = sum((each.worst_case for each in found), Decimal(0))
        limit = self._subject.config.limits.batch_cost_usd
        if limit is not None:
            turns = sorted((each.worst_turn for each in found), reverse=True)
            worst = min(worst, limit + sum(turns[: self._wave()], Decimal(0)))
        expected = min(expected, worst)
        if self._judge is not None:
            expected += len(self._entries) * self._judge.expected
            worst += len(self._entries) * self._judge.worst_case
        document = {
            "currency": "USD",
            "expected": _likely(expected) if is_known else None,
            "worst_case": _at_most(worst) if is_known else None,
            "rollouts_not_estimated": missing,
            "assumptions": {
                **(ASSUMPTIONS if self._by_id else {}),
                **(JUDGE_ASSUMPTIONS if self._has_judge else {}),
            },
        }
        return {**document, "judge": self._judge_part(len(self._entries))} if self._has_judge else document

    def _judge_part(self, drawings: int) -> dict[str, Any]:
        """What the judge costs for so many drawings; null where its price is not known."""
        judge = self._judge
        return {
            "expected": _likely(drawings * judge.expected) if judge is not None else None,
            "worst_case": _at_most(drawings * judge.worst_case) if judge is not None else None,
            "expected_answers": drawings * judge.expected_answers if judge is not None else None,
            "worst_case_answers": drawings * judge.worst_case_answers if judge is not None else None,
        }

    def of(self, entry: Assignment) -> Mapping[str, Any] | None:
        """The cost of one rollout, its judge's apart in `judge`; null for one that is not enabled."""
        if not entry.enabled or not self._is_usable:
            return None
        cost = self._of_model(entry)
        return {**cost, "judge": self._judge_part(1)} if self._has_judge else cost

    def _of_model(self, entry: Assignment) -> Mapping[str, Any]:
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
    if oracle is not None:
        try:
            turns = len(orjson.loads(oracle.read_bytes())["turns"])
        # What is wrong with the script is said by the check that reads it, where a rollout plays it.
        except (OSError, ValueError, KeyError, TypeError):
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
