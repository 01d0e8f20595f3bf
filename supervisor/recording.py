"""The end of a rollout on disk: `result.json` first, then its row in `batch-state.json`."""

from __future__ import annotations

from decimal import Decimal

import anyio

from contract.ambient import Ambient
from contract.batch_records import BatchState, RolloutRow
from contract.bridge import Bridge
from contract.phases import BatchStatus, Cause, Outcome, Phase, is_final
from contract.pricing import Usage
from contract.records import disk_error, write_record
from contract.rollout_records import Result, RunState
from contract.run_dir import BatchDir, RunDir
from supervisor.outcome import Evaluation, Verdict
from supervisor.state import StateBook, read_run_state


async def record_end(
    book: StateBook,
    run_dir: RunDir,
    verdict: Verdict,
    evaluation: Evaluation | None,
    *,
    disk: Bridge,
    ambient: Ambient,
) -> None:
    """Write the final record of a rollout that was handed off. Once begun it ends. Raises `DiskError`."""
    row = book.row(run_dir.rollout_id)
    assert not is_final(row.phase), f"{row.rollout_id} has ended before"
    with anyio.CancelScope(shield=True):
        state = read_run_state(run_dir.run_state)
        if state is None and row.cost_usd is None and not row.turns and not run_dir.run_state.exists():
            # A pilot that left no state has asked for nothing.
            row = row.model_copy(update={"cost_usd": Decimal(0)})
        result = _result(book.state.batch_id, row, state, verdict, evaluation, ambient)

        def write() -> None:
            try:
                run_dir.root.mkdir(exist_ok=True)
            except OSError as error:
                raise disk_error(run_dir.root, error) from error
            write_record(run_dir.result, result)

        await disk.call(write)
        await book.advance(
            row.rollout_id,
            Phase.FAILED if verdict.outcome is Outcome.VOID else Phase.FINISHED,
            outcome=result.outcome,
            cause=result.cause,
            cause_detail=result.cause_detail,
            ended_by=result.ended_by,
            score=result.score,
            judge_score=result.judge_score,
            cost_usd=result.cost_usd,
            requests_of_unknown_cost=result.requests_of_unknown_cost,
            judge_cost_usd=result.judge_cost_usd,
            turns=result.turns,
            actions_used=result.actions_used,
            waiting=None,
            finished_at=result.finished_at,
        )


async def record_void(
    book: StateBook, run_dir: RunDir, cause: Cause, detail: str, *, disk: Bridge, ambient: Ambient
) -> None:
    """End a rollout whose controller is gone and that cannot go on. Raises `DiskError`."""
    state = read_run_state(run_dir.run_state)
    verdict = Verdict(Outcome.VOID, state.ended_by if state is not None else None, cause, detail)
    await record_end(book, run_dir, verdict, None, disk=disk, ambient=ambient)


async def settle_dead_batch(batch_dir: BatchDir, state: BatchState, *, disk: Bridge, ambient: Ambient) -> int:
    """Make the state of a batch whose controller died tell the truth. Returns how many rollouts became void.

    What was handed off is void, what was starting is back in the queue. The caller holds the folder's lock, and has
    ended the batch's hosts.
    """
    book = StateBook(batch_dir.state, state, bridge=disk, ambient=ambient)
    voided = 0
    for row in state.rollouts:
        if row.phase is Phase.STARTING:
            await book.advance(row.rollout_id, Phase.QUEUED, host_id=None)
        elif row.phase in {Phase.HANDED_OFF, Phase.EVALUATING}:
            detail = f"controller {state.controller_pid} died while this rollout was {row.phase.value}"
            run_dir = batch_dir.rollout(row.rollout_id)
            await record_void(book, run_dir, Cause.CONTROLLER_DIED, detail, disk=disk, ambient=ambient)
            voided += 1
    if state.status is BatchStatus.RUNNING:
        is_over = all(is_final(row.phase) or row.phase is Phase.NOT_STARTED for row in book.state.rollouts)
        # A controller that died between its last rollout and its last write left nothing undone.
        await book.set_status(BatchStatus.FINISHED if is_over and not voided else BatchStatus.INTERRUPTED)
    return voided


def _result(
    batch_id: str,
    row: RolloutRow,
    state: RunState | None,
    verdict: Verdict,
    evaluation: Evaluation | None,
    ambient: Ambient,
) -> Result:
    finished_at = ambient.utc_now()
    return Result(
        batch_id=batch_id,
        rollout_id=row.rollout_id,
        task_id=row.task_id,
        provider=row.provider,
        model=row.model,
        profile=row.profile,
        outcome=verdict.outcome,
        cause=verdict.cause,
        cause_detail=verdict.detail,
        ended_by=verdict.ended_by,
        score=evaluation.score if evaluation is not None else None,
        judge_score=evaluation.judge_score if evaluation is not None else None,
        final=evaluation.final if evaluation is not None else None,
        invalid_code=evaluation.invalid_code if evaluation is not None else None,
        turns=state.turn if state is not None else row.turns,
        actions_used=state.actions_used if state is not None else row.actions_used,
        usage=state.usage if state is not None else Usage(),
        cost_usd=state.cost_usd if state is not None else row.cost_usd,
        requests_of_unknown_cost=(state or row).requests_of_unknown_cost,
        judge_cost_usd=evaluation.judge_cost_usd if evaluation is not None else None,
        host_id=row.host_id,
        host_replacements=row.host_replacements,
        started_at=row.started_at,
        finished_at=finished_at,
        duration_s=max(0.0, (finished_at - row.started_at).total_seconds()) if row.started_at is not None else None,
    )
