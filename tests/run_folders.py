"""Writes finished run folders as a batch leaves them, from a list of how each rollout ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from contract.batch_records import BatchState, Link, RolloutRow
from contract.config import BatchConfig
from contract.gold import Profile
from contract.phases import BatchStatus, Cause, EndedBy, Outcome, Phase
from contract.pricing import Usage
from contract.records import dump_pretty, write_record
from contract.rollout_records import ModelTurnSummary, Result
from contract.run_dir import BatchDir, EvaluationDir
from contract.score_records import Adjustments, Artifacts, Inputs, JudgeSummary, Score, ToleranceValues, Unmatched
from evaluator_client.combine import zero_components

BEGUN = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)
PROFILE: Profile = "2d"


@dataclass(frozen=True, slots=True)
class End:
    """How one rollout ended. A `cause` makes it void; neither `score` nor `cause` leaves it in the queue."""

    model: str
    task: str
    score: float | None = None
    cause: Cause | None = None
    judge: float | None = None
    cost_usd: str | None = "0.5"
    requests_of_unknown_cost: int = 0
    score_version: str = "1.0"
    gold: str = "a"
    turns: int = 4


def write_run(folder: Path, ends: list[End], *, day: int = 0, rerun_of: Link | None = None, **config: Any) -> BatchDir:
    """A batch folder that began `day` days after the first one, with what a report reads."""
    batch_dir = BatchDir(folder)
    batch_dir.rollouts.mkdir(parents=True)
    begun = BEGUN + timedelta(days=day)
    rows = []
    for number, end in enumerate(ends):
        row = _row(end, f"r-{number}", begun)
        rows.append(row)
        if row.outcome is not None:
            _write_rollout(batch_dir, row, end, begun)
    state = BatchState(
        batch_id=f"b-{folder.name}",
        benchmark="tiny",
        status=BatchStatus.FINISHED,
        mode="process",
        max_concurrency=1,
        created_at=begun,
        updated_at=begun,
        config_sha256="0" * 64,
        broker_version="1.0",
        evaluator_version="1.0.0",
        pricing=None,
        controller_pid=1,
        controller_started=0.0,
        rerun_of=rerun_of,
        rollouts=rows,
    )
    write_record(batch_dir.state, state)
    document = {
        "schema": "autocad-bench.config/1",
        "benchmark": "tiny",
        "expected_rollouts": len(ends),
        "max_concurrency": 1,
        "broker_version": "1.0",
        "host": {"kind": "local"},
        "evaluator": {"name": "ezdxf", "version": "1.0.0", "gold_cache": "gold"},
        "rollouts": [
            {"rollout_id": row.rollout_id, "task": row.task_id, "provider": row.provider, "model": row.model}
            for row in rows
        ],
        **config,
    }
    batch_dir.config.write_bytes(dump_pretty(BatchConfig.model_validate_json(json.dumps(document))))
    return batch_dir


def again(ends: list[End], **changes: Any) -> list[End]:
    """The same rollouts with other fields."""
    return [replace(end, **changes) for end in ends]


def _row(end: End, rollout_id: str, begun: datetime) -> RolloutRow:
    row = RolloutRow(
        rollout_id=rollout_id,
        task_id=end.task,
        provider="openai",
        model=end.model,
        profile=None,
        phase=Phase.QUEUED,
    )
    if end.score is None and end.cause is None:
        return row
    is_void = end.cause is not None
    return row.model_copy(
        update={
            "phase": Phase.FAILED if is_void else Phase.FINISHED,
            "outcome": Outcome.VOID if is_void else Outcome.SCORED,
            "cause": end.cause,
            "cause_detail": "it broke" if is_void else None,
            "ended_by": EndedBy.ERROR if is_void else EndedBy.FINISHED,
            "score": end.score,
            "judge_score": end.judge,
            "cost_usd": None if end.cost_usd is None else Decimal(end.cost_usd),
            "requests_of_unknown_cost": end.requests_of_unknown_cost,
            "turns": end.turns,
            "actions_used": 10,
            "started_at": begun,
            "finished_at": begun + timedelta(seconds=60),
        }
    )


def _write_rollout(batch_dir: BatchDir, row: RolloutRow, end: End, begun: datetime) -> None:
    run_dir = batch_dir.rollout(row.rollout_id)
    run_dir.evaluation.root.mkdir(parents=True)
    assert row.outcome is not None
    assert row.finished_at is not None
    result = Result(
        batch_id=f"b-{batch_dir.root.name}",
        rollout_id=row.rollout_id,
        task_id=row.task_id,
        provider=row.provider,
        model=row.model,
        profile=None,
        outcome=row.outcome,
        cause=row.cause,
        cause_detail=row.cause_detail,
        ended_by=row.ended_by,
        score=row.score,
        judge_score=row.judge_score,
        final=row.score,
        invalid_code=None,
        turns=row.turns,
        actions_used=row.actions_used,
        usage=Usage(input=100, cached_input=50, output=20),
        cost_usd=row.cost_usd,
        requests_of_unknown_cost=row.requests_of_unknown_cost,
        host_id=None,
        host_replacements=0,
        started_at=row.started_at,
        finished_at=row.finished_at,
        duration_s=60.0,
    )
    write_record(run_dir.result, result)
    turn = ModelTurnSummary(
        turn=1, at=begun, sequence=1, actions=2, kinds={"click": 2}, result="acted", actions_left=9, cost_usd=None
    )
    run_dir.model_turn_summaries.write_bytes((turn.model_dump_json() + "\n").encode() * end.turns)
    if end.score is not None:
        _write_score(run_dir.evaluation, end, end.score)


def _write_score(evaluation: EvaluationDir, end: End, deterministic: float) -> None:
    is_judged = end.judge is not None
    judge = JudgeSummary(
        status="complete" if is_judged else "disabled", score=end.judge, judge_id="vj-1" if is_judged else None
    )
    combined = min(0.8 * deterministic + 0.2 * (end.judge or 0.0), deterministic + 0.1)
    score = Score(
        score_version=end.score_version,
        task_id=end.task,
        profile=PROFILE,
        placement="absolute",
        valid=True,
        invalid=None,
        deterministic=deterministic,
        components=zero_components(PROFILE),
        adjustments=Adjustments(clutter=0, clutter_factor=1.0, core_gate=1.0, caps=[]),
        offset=(0.0, 0.0, 0.0),
        flags=[],
        unmatched=Unmatched(gold=[], candidate=[], truncated=False),
        diagnostics={},
        vision_judge=judge,
        final=combined if is_judged else deterministic,
        final_basis="deterministic+judge" if is_judged else "deterministic_only",
        inputs=Inputs(
            candidate_metadata_sha256=None,
            candidate_render_sha256=None,
            gold_entry_sha256=end.gold * 64,
            evaluator="ezdxf 1.0.0",
            tolerances=ToleranceValues(tau0=0.1, tau1=1.0, h=0.5, diagonal=100.0),
        ),
        artifacts=Artifacts(render_png=None, diff_png=None),
    )
    write_record(evaluation.score, score)
