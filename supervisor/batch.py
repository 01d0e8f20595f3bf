"""A whole batch: its folder, its lock, its workers, its signals, and the reconciler at its exit."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc

from contract.ambient import Ambient
from contract.batch_records import BatchState, Link, RolloutRow
from contract.errors import DiskError, HostError, StateError
from contract.phases import BatchStatus, Cause, Outcome, Phase
from contract.records import disk_error, read_record, replace_file, write_record
from contract.run_dir import BatchDir
from supervisor.costs import BatchCosts
from supervisor.equipment import Equipment
from supervisor.ledger import HostHistory, Ledger, read_ledger
from supervisor.locks import HeldLock, take
from supervisor.prepared import PreparedBatch, PreparedRollout
from supervisor.processes import facts_of
from supervisor.progress import ProgressView
from supervisor.refusal import Refusal, why_none_starts
from supervisor.reserve import ReservingBridge, reserved
from supervisor.sandbox import play_rollout
from supervisor.seat import Seat
from supervisor.signals import listening
from supervisor.state import StateBook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

EXIT_OK: Final = 0
EXIT_VOID: Final = 1
EXIT_INTERRUPTED: Final = 130

Job = Callable[[Seat], Awaitable[None]]
"""What a worker does with one seat."""


async def execute(
    prepared: PreparedBatch,
    batch_dir: BatchDir,
    *,
    rerun_of: Link | None,
    console: Console,
    ambient: Ambient,
    equipment: Equipment | None = None,
) -> int:
    """Play a batch into a new folder. Returns the exit status: 0, 1 when something is void, 130 when interrupted.

    Raises `StateError` when the folder is in use or not empty, `DiskError` when it cannot be written.
    """
    with locked(batch_dir):
        _prepare_folder(prepared, batch_dir)
        state = _first_state(prepared, rerun_of=rerun_of, ambient=ambient)
        write_record(batch_dir.state, state)
        jobs = [(rollout, play_rollout) for rollout in prepared.rollouts]
        with telling_the_end(batch_dir, ambient):
            return await run(prepared, batch_dir, state, jobs, console=console, ambient=ambient, equipment=equipment)


async def run(
    prepared: PreparedBatch,
    batch_dir: BatchDir,
    state: BatchState,
    jobs: Sequence[tuple[PreparedRollout, Job]],
    *,
    stale_hosts: Sequence[HostHistory] = (),
    console: Console,
    ambient: Ambient,
    equipment: Equipment | None,
) -> int:
    """Do all jobs, at most `max_concurrency` at once and in order. The caller holds the folder's lock.

    `stale_hosts` are those of an earlier controller that no job goes on with; they are ended first.
    """
    async with _equipped(prepared, batch_dir, state.batch_id, ambient, equipment) as bare:
        tools = replace(bare, disk=ReservingBridge(bare.disk, batch_dir.reserve))
        book = StateBook(batch_dir.state, state, bridge=tools.disk, ambient=ambient)
        ledger = Ledger(batch_dir.hosts, kind=tools.hosts.kind, bridge=tools.disk, ambient=ambient)
        view = ProgressView(console, lambda: book.state, ambient)
        book.on_phase(view.note_phase)
        work = _Work(prepared, batch_dir, state.batch_id, book, ledger, tools, view.say)
        book.on_phase(work.costs.note_phase)
        try:
            with view.shown(), reserved(batch_dir.reserve):
                if stale_hosts:
                    await _reconcile(work, stale_hosts)
                return await _run(work, jobs, view)
        finally:
            ledger.close()


@dataclass(slots=True)
class _Work:
    """One batch while it runs."""

    prepared: PreparedBatch
    batch_dir: BatchDir
    batch_id: str
    book: StateBook
    ledger: Ledger
    equipment: Equipment
    say: Callable[[str], None]
    stop: anyio.Event = field(default_factory=anyio.Event)
    is_interrupted: bool = False
    is_disk_full: bool = False
    faults: list[Exception] = field(default_factory=list)
    costs: BatchCosts = field(init=False)
    refusal: Refusal = field(init=False)

    def __post_init__(self) -> None:
        limit_usd = self.prepared.config.limits.batch_cost_usd
        self.costs = BatchCosts(limit_usd, self.book.state.rollouts, stop=self.stop, say=self.say)
        self.refusal = Refusal(self.say)

    def may_begin(self, rollout_id: str) -> bool:
        """False once nothing more is started. What an earlier controller has handed off is ended in order even then."""
        if self.is_disk_full or self.is_interrupted:
            return False
        is_closed = self.stop.is_set() or self.refusal.error is not None
        return not is_closed or self.book.row(rollout_id).phase in {Phase.HANDED_OFF, Phase.EVALUATING}

    def seat(self, rollout: PreparedRollout) -> Seat:
        return Seat(
            batch_id=self.batch_id,
            batch_dir=self.batch_dir,
            prepared=self.prepared,
            rollout=rollout,
            book=self.book,
            ledger=self.ledger,
            equipment=self.equipment,
            stop=self.stop,
            costs=self.costs,
            refusal=self.refusal,
            say=self.say,
        )

    def note_full_disk(self, error: DiskError | None) -> None:
        """Start nothing more: it could not be recorded. What plays goes on for as long as it can."""
        self.is_disk_full = True
        self.say(f"{error or 'the output disk refuses writes'}; no rollout is started any more")
        if error is not None:
            self.faults.append(error)


async def _run(work: _Work, jobs: Sequence[tuple[PreparedRollout, Job]], view: ProgressView) -> int:
    async with anyio.create_task_group() as helpers:
        at_once = anyio.CancelScope()
        await helpers.start(_listen_for_signals, work, at_once)
        helpers.start_soon(_keep_state_current, work)
        helpers.start_soon(view.keep_drawing)
        try:
            with at_once:
                await _do_all(work, jobs)
        finally:
            with anyio.CancelScope(shield=True):
                await _reconcile_at_exit(work)
                await _turn_away(work)
                await _close_state(work)
        helpers.cancel_scope.cancel()
    return _exit_status(work)


async def _do_all(work: _Work, jobs: Sequence[tuple[PreparedRollout, Job]]) -> None:
    queue = iter(jobs)

    async def worker() -> None:
        # One iterator for all workers hands the jobs out in the config's order.
        for rollout, job in queue:
            if not work.may_begin(rollout.assignment.rollout_id):
                return
            try:
                await job(work.seat(rollout))
            except DiskError as error:
                work.note_full_disk(error)
            except Exception as error:  # noqa: BLE001  (a bug in one sandbox must not end its siblings)
                work.say(f"{rollout.assignment.rollout_id}: {type(error).__name__}: {error}")
                work.faults.append(error)
            if work.book.row(rollout.assignment.rollout_id).cause is Cause.DISK and not work.is_disk_full:
                work.note_full_disk(None)

    work.costs.check()
    async with anyio.create_task_group() as workers:
        for _ in range(min(work.prepared.max_concurrency, len(jobs))):
            workers.start_soon(worker)


async def _listen_for_signals(
    work: _Work, at_once: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    with listening() as signals:
        task_status.started()
        async for number in signals:
            work.is_interrupted = True
            if not work.stop.is_set():
                work.say(f"{number.name}: no rollout is started any more; those that play end with their turn")
                work.stop.set()
            elif number is not signal.SIGHUP and not at_once.cancel_called:
                # A terminal that closes says so more than once; nobody has asked twice.
                work.say(f"{number.name}: ending everything now")
                at_once.cancel()


async def _keep_state_current(work: _Work) -> None:
    try:
        await work.book.keep_current()
    except DiskError as error:
        work.note_full_disk(error)


async def _reconcile_at_exit(work: _Work) -> None:
    """One pass over the ledger: whatever of this batch was not seen to end is ended now."""
    try:
        hosts = list(read_ledger(work.batch_dir.hosts).values())
    except StateError as error:
        work.say(f"reconciler: {error}")
        work.faults.append(error)
        return
    # In the cloud a host may be alive although its end was acknowledged, so there the tags are asked too.
    if any(not host.is_over for host in hosts) or (hosts and work.equipment.hosts.kind == "ec2"):
        await _reconcile(work, hosts)


async def _reconcile(work: _Work, hosts: Sequence[HostHistory]) -> None:
    """End what is alive of these hosts, and whatever is left of those that nobody has seen end."""
    ids = [host.host_id for host in hosts if not host.is_over]
    # A look by tags may find hosts that are not among these.
    rollout_of = {host.host_id: host.rollout_id for host in read_ledger(work.batch_dir.hosts).values()}
    bound_s = work.equipment.hosts.timing.release_s
    again = f"Run: autocad-bench reconcile --run-dir {work.batch_dir.root} --execute"
    try:
        with anyio.move_on_after(bound_s) as bound:
            left = await work.equipment.hosts.find_leftovers(ids, batch_id=work.batch_id)
            for host_id, what in left.items():
                work.say(f"reconciler: host {host_id} of {rollout_of[host_id]} is still alive ({what})")
            # Also those of which nothing was found: a private folder may be left.
            ending = list(dict.fromkeys([*ids, *left]))
            if ending:
                await work.equipment.hosts.terminate_all(ending, batch_id=work.batch_id)
            for host_id in ending:
                await work.ledger.note("reconciled", host_id=host_id, rollout_id=rollout_of[host_id])
    except (HostError, DiskError) as error:
        work.say(f"reconciler: {error} Hosts may still be alive. {again}")
        work.faults.append(error)
        return
    if bound.cancelled_caught:
        late = HostError(f"the reconciler was not done within {bound_s:.0f} s", cause=Cause.UNKNOWN, hint=again)
        work.say(str(late))
        work.faults.append(late)


async def _turn_away(work: _Work) -> None:
    """What still waits when the batch may cost no more, or gets no host any more, is not started; its row says why."""
    change = why_none_starts(work.costs, work.refusal)
    if change is None:
        return
    waiting = [row.rollout_id for row in work.book.state.rollouts if row.phase is Phase.QUEUED]
    # Together: those that wait at once share one write.
    try:
        async with anyio.create_task_group() as writers:
            for rollout_id in waiting:
                writers.start_soon(partial(work.book.advance, rollout_id, Phase.NOT_STARTED, **change))
    except* DiskError as errors:
        work.note_full_disk(next(error for error in errors.exceptions if isinstance(error, DiskError)))


async def _close_state(work: _Work) -> None:
    is_waiting = any(row.phase is Phase.QUEUED for row in work.book.state.rollouts)
    status = BatchStatus.INTERRUPTED if work.is_interrupted or is_waiting else BatchStatus.FINISHED
    try:
        await work.book.set_status(status)
    except DiskError as error:
        work.say(str(error))
        work.faults.append(error)


def _exit_status(work: _Work) -> int:
    if work.is_interrupted:
        return EXIT_INTERRUPTED
    counted = all(row.outcome in {Outcome.SCORED, Outcome.MODEL_FAILED} for row in work.book.state.rollouts)
    return EXIT_OK if counted and not work.faults else EXIT_VOID


@contextmanager
def locked(batch_dir: BatchDir) -> Iterator[HeldLock]:
    """Hold the folder's lock inside of the block. Raises `StateError` when another controller holds it."""
    try:
        batch_dir.root.mkdir(parents=True, exist_ok=True)
        held = take(batch_dir.lock)
    except OSError as error:
        raise disk_error(batch_dir.root, error) from error
    if held is None:
        raise StateError(
            f"another controller is running the batch in {batch_dir.root}",
            hint="Wait until it ends, or name another output folder.",
        )
    try:
        yield held
    finally:
        held.release()


@contextmanager
def telling_the_end(batch_dir: BatchDir, ambient: Ambient) -> Iterator[None]:
    """What ends a controller before it listens to signals must not leave a state that says it runs."""
    try:
        yield
    except BaseException:
        with suppress(DiskError, StateError):
            state = read_record(batch_dir.state, BatchState)
            if state.status is BatchStatus.RUNNING:
                update = {"status": BatchStatus.INTERRUPTED, "updated_at": ambient.utc_now()}
                write_record(batch_dir.state, state.model_copy(update=update))
        raise


def controller_facts() -> dict[str, object]:
    """Who runs the batch now, as its state says it."""
    facts = facts_of(os.getpid())
    assert facts is not None, "this process is running"
    return {"controller_pid": facts.pid, "controller_started": facts.started_s}


def _prepare_folder(prepared: PreparedBatch, batch_dir: BatchDir) -> None:
    strangers = sorted(path.name for path in batch_dir.root.iterdir() if path != batch_dir.lock)
    if strangers:
        raise StateError(
            f"the output folder {batch_dir.root} is not empty: it holds {strangers[0]!r}",
            hint="Name a new folder, or continue the batch in it with --resume.",
        )
    for folder in (batch_dir.logs, batch_dir.rollouts):
        try:
            folder.mkdir()
        except OSError as error:
            raise disk_error(folder, error) from error
    replace_file(batch_dir.config, prepared.config_bytes)


def _first_state(prepared: PreparedBatch, *, rerun_of: Link | None, ambient: Ambient) -> BatchState:
    now = ambient.utc_now()
    config = prepared.config
    return BatchState.model_validate(
        {
            "batch_id": f"b-{now:%Y%m%dt%H%M%Sz}-{secrets.token_hex(3)}",
            "benchmark": config.benchmark,
            "status": BatchStatus.RUNNING,
            "mode": prepared.mode,
            "max_concurrency": prepared.max_concurrency,
            "created_at": now,
            "updated_at": now,
            "config_sha256": prepared.config_sha256,
            "broker_version": config.broker_version,
            "evaluator_version": config.evaluator.version,
            "pricing": None if prepared.prices is None else prepared.prices.model_dump(mode="json"),
            **controller_facts(),
            "rerun_of": rerun_of,
            "rollouts": [_first_row(rollout) for rollout in prepared.rollouts],
        }
    )


def _first_row(rollout: PreparedRollout) -> RolloutRow:
    assignment = rollout.assignment
    return RolloutRow(
        rollout_id=assignment.rollout_id,
        task_id=assignment.task,
        provider=assignment.provider,
        model=assignment.model,
        profile=rollout.profile_name or assignment.profile,
        phase=Phase.QUEUED,
    )


@asynccontextmanager
async def _equipped(
    prepared: PreparedBatch, batch_dir: BatchDir, batch_id: str, ambient: Ambient, equipment: Equipment | None
) -> AsyncIterator[Equipment]:
    if equipment is not None:
        yield equipment
        return
    # The evaluator's libraries take half a second to load; a batch on a test's own equipment does not need them.
    from supervisor.compose import equip

    async with equip(prepared, batch_dir=batch_dir, batch_id=batch_id, ambient=ambient) as tools:
        yield tools
