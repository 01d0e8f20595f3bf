"""One assignment from its place in the queue to its final record: host, pilot, evaluation, release.

Whatever happens inside is that rollout's record and nothing else: siblings never notice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import anyio

from contract.broker_api import ARTIFACT_BYTES_MAX, SaveRequest
from contract.errors import BenchError, DiskError, HostError, HostsRefused
from contract.phases import Cause, EndedBy, Outcome, Phase
from supervisor.aws_short_lived import NoCredentials
from supervisor.handoff import end_host, hand_off
from supervisor.heartbeats import LOSSES, last_look, watch_health
from supervisor.launch import PilotEnd, PilotSecrets
from supervisor.outcome import Evaluation, HostLoss, Play, Verdict, after_play, judge_play
from supervisor.progress_notes import ProgressNotes
from supervisor.race import Broken, first_of
from supervisor.recording import record_end
from supervisor.seat import HandedOff, Seat, needs_aws, spec_of
from supervisor.state import read_run_state

# Export and render may take 120 s each and are tried three times; ten minutes are more than any sound drawing needs.
EVALUATION_S: Final = 600.0


async def play_rollout(seat: Seat) -> None:
    """Bring up a host, play, evaluate, release. Raises `DiskError` when not even the end could be recorded."""
    async with AsyncExitStack() as undo:
        try:
            handed = await _start(seat, undo)
            if handed is not None:
                await _play_to_the_end(seat, handed)
        except anyio.get_cancelled_exc_class():
            await _record_interruption(seat)
            raise


async def go_on(seat: Seat, handed: HandedOff) -> None:
    """Continue a rollout on the very host that an earlier controller handed off, and release it.

    A pilot that had said how it ended is not played again: what follows is the evaluation.
    """
    async with AsyncExitStack() as undo:
        undo.push_async_callback(end_host, seat, handed.host.host_id)
        try:
            await _hold_place(seat, undo, has_host=True)
            state = read_run_state(seat.run_dir.run_state)
            has_ended = state is not None and state.ended_by not in {None, EndedBy.INTERRUPTED}
            ended = Play(pilot=PilotEnd(state=state, status=0), over_cost=seat.costs.reached)
            if has_ended or seat.row.phase is Phase.EVALUATING:
                await _evaluate_and_record(seat, handed, ended)
            else:
                await _play_to_the_end(seat, handed)
        except anyio.get_cancelled_exc_class():
            await _record_interruption(seat)
            raise


async def _start(seat: Seat, undo: AsyncExitStack) -> HandedOff | None:
    """The hand-off, or null with the reason recorded: back in the queue after an interruption, else not started."""

    async def work() -> HandedOff:
        await _hold_place(seat, undo)
        seat.refusal.check()
        await seat.book.advance(seat.rollout_id, Phase.STARTING, cause=None, cause_detail=None)
        return await hand_off(seat, undo)

    try:
        result = await first_of(work, seat.stop.wait)
    except DiskError as error:
        cause, detail = Cause.DISK, str(error)
    except HostError as error:
        cause, detail = error.cause, str(error)
        if isinstance(error, HostsRefused):
            seat.refusal.note(error)
    except Exception as error:  # noqa: BLE001  (a bug in one sandbox must not end its siblings)
        cause, detail = seat.name_fault(error)
    else:
        if not isinstance(result, Broken):
            return result.value
        await _back_to_queue(seat)
        return None
    if seat.row.phase is Phase.HANDED_OFF:
        # The very last line of the hand-off could not be written: the sample counts, and it is void.
        await _record(seat, Verdict(Outcome.VOID, None, cause, detail), None)
    else:
        if seat.refusal.error is None:
            seat.say(f"{seat.rollout_id}: not started ({cause}): {detail}")
        await seat.book.advance(seat.rollout_id, Phase.NOT_STARTED, host_id=None, cause=cause, cause_detail=detail)
    return None


async def _hold_place(seat: Seat, undo: AsyncExitStack, *, has_host: bool = False) -> None:
    needs = seat.prepared.admission.needs
    place = seat.equipment.slots.slot(
        needs,
        batch_id=seat.batch_id,
        rollout_id=seat.rollout_id,
        has_host=has_host,
        on_wait=lambda reason: seat.say(f"{seat.rollout_id}: waits until {reason}"),
    )
    await undo.enter_async_context(place)


async def _back_to_queue(seat: Seat) -> None:
    if seat.row.phase is Phase.STARTING:
        await seat.book.advance(seat.rollout_id, Phase.QUEUED, host_id=None)


async def _play_to_the_end(seat: Seat, handed: HandedOff) -> None:
    play = await _play(seat, handed)
    await _evaluate_and_record(seat, handed, play)


async def _play(seat: Seat, handed: HandedOff) -> Play:
    """Run the pilot, and watch its host meanwhile."""
    try:
        result = await first_of(
            partial(_run_pilot, seat, handed),
            partial(_watch_process, seat, handed),
            partial(_watch_program, seat, handed),
            partial(watch_health, seat, handed),
        )
    except DiskError as error:
        return Play(pilot=None, fault=HostLoss(Cause.DISK, str(error)))
    except NoCredentials as error:
        return Play(pilot=None, fault=HostLoss(Cause.PROVIDER_AUTH, str(error)))
    except Exception as error:  # noqa: BLE001  (a bug in one sandbox must not end its siblings)
        return Play(pilot=None, fault=HostLoss(*seat.name_fault(error)))
    if isinstance(result, Broken):
        # What the pilot wrote before it was cut off says whether it had ended by itself.
        pilot = PilotEnd(state=read_run_state(seat.run_dir.run_state), status=-9)
        return Play(pilot=pilot, loss=result.reason)
    end = result.value
    return Play(pilot=end, loss=await _loss_behind(seat, handed, end), over_cost=seat.costs.reached)


async def _run_pilot(seat: Seat, handed: HandedOff) -> PilotEnd:
    key = seat.prepared.credentials.get(seat.rollout.assignment.provider)
    credentials_url = None
    async with AsyncExitStack() as undo:
        if needs_aws(seat.rollout):
            assert seat.equipment.aws is not None, "a batch with such a rollout has it"
            # The token dies with the rollout.
            loan = await undo.enter_async_context(seat.equipment.aws.lent())
            key, credentials_url = loan.token, loan.url
        return await seat.equipment.pilots.play(
            spec_of(seat, handed, credentials_url=credentials_url),
            PilotSecrets(broker_token=handed.host.token, provider_key=key),
            log=seat.batch_dir.log(seat.rollout_id),
            stop=seat.stop,
            on_progress=ProgressNotes(seat).note,
        )


async def _watch_process(seat: Seat, handed: HandedOff) -> HostLoss:
    return HostLoss(Cause.BROKER_DIED, await seat.equipment.hosts.wait_ended(handed.host.host_id))


async def _watch_program(seat: Seat, handed: HandedOff) -> HostLoss:
    return LOSSES[await seat.equipment.hosts.wait_lost(handed.host.host_id)]


async def _loss_behind(seat: Seat, handed: HandedOff, end: PilotEnd) -> HostLoss | None:
    """What really happened to the host when the pilot's own words may only be the symptom of it."""
    if end.status < 0 or (end.is_final and end.state is not None and end.state.error is None):
        return None
    return await _loss_shown(seat, handed)


async def _loss_shown(seat: Seat, handed: HandedOff) -> HostLoss | None:
    if seat.equipment.hosts.has_ended(handed.host.host_id):
        return await _watch_process(seat, handed)
    return await last_look(seat, handed)


async def _evaluate_and_record(seat: Seat, handed: HandedOff, play: Play) -> None:
    evaluation: Evaluation | None = None
    try:
        match after_play(play):
            case "evaluate":
                await _enter_evaluating(seat)
                evaluation, loss = await _evaluate(seat, handed)
                if loss is not None:
                    play = Play(pilot=play.pilot, loss=loss)
            case "hand_over":
                await _enter_evaluating(seat)
                await _hand_over(seat, handed)
            case "nothing":
                pass
    except DiskError as error:
        play = Play(pilot=play.pilot, fault=HostLoss(Cause.DISK, str(error)))
    except Exception as error:  # noqa: BLE001  (a bug in one sandbox must not end its siblings)
        play = Play(pilot=play.pilot, fault=HostLoss(*seat.name_fault(error)))
    await _record(seat, judge_play(play, evaluation), evaluation)


async def _enter_evaluating(seat: Seat) -> None:
    # A resumed rollout may have been here before.
    if seat.row.phase is not Phase.EVALUATING:
        await seat.book.advance(seat.rollout_id, Phase.EVALUATING)


async def _evaluate(seat: Seat, handed: HandedOff) -> tuple[Evaluation, HostLoss | None]:
    judge = seat.prepared.config.judge
    bound_s = EVALUATION_S + (judge.deadline_s if judge is not None else 0.0)
    failed = Evaluation(state="failed", failure=f"not evaluated within {bound_s:.0f} s")
    is_fetched = anyio.Event()

    async def while_needed(watch: Callable[[], Awaitable[HostLoss]]) -> HostLoss:
        loss = await watch()
        if is_fetched.is_set():
            # What the judge looks at is here: a host that is lost now takes nothing with it.
            await anyio.sleep_forever()
        return loss

    with anyio.move_on_after(bound_s):
        result = await first_of(
            lambda: seat.equipment.evaluator.evaluate(
                host=handed.host,
                base_url=handed.base_url,
                lease_id=handed.lease_id,
                run_dir=seat.run_dir,
                task_id=seat.rollout.task.task_id,
                on_fetched=is_fetched.set,
            ),
            partial(while_needed, partial(_watch_process, seat, handed)),
            partial(while_needed, partial(_watch_program, seat, handed)),
            # A way that breaks while the evaluation uses it is mended too.
            partial(while_needed, partial(watch_health, seat, handed)),
        )
        if isinstance(result, Broken):
            return Evaluation(state="failed", failure=result.reason.detail), result.reason
        if result.value.state == "failed" and not is_fetched.is_set():
            return result.value, await _loss_shown(seat, handed)
        return result.value, None
    return failed, None


async def _hand_over(seat: Seat, handed: HandedOff) -> None:
    """Have the drawing saved and fetched, for people to look at. It is not scored, so nothing here may fail."""
    hosts, uploads = seat.equipment.hosts, seat.equipment.uploads
    broker = seat.equipment.reach_for_heartbeat(handed.host, handed.base_url)
    dest = seat.run_dir.attempt(hosts.extension)
    try:
        with anyio.move_on_after(hosts.timing.hand_over_s):
            grant = await seat.equipment.disk.call(
                partial(uploads.grant, "attempt", bytes_max=ARTIFACT_BYTES_MAX, dest=dest)
            )
            reply = await broker.save(
                SaveRequest(request_id=f"hand-over-{handed.host.host_id}", lease_id=handed.lease_id, upload=grant)
            )
            if reply.is_present and reply.sha256 is not None:
                await uploads.collect(grant, sha256=reply.sha256, size_bytes=reply.size_bytes)
    except BenchError as error:
        seat.say(f"{seat.rollout_id}: the drawing could not be handed over: {error}")
    finally:
        broker.close()


async def _record_interruption(seat: Seat) -> None:
    with anyio.CancelScope(shield=True):
        try:
            if seat.row.phase in {Phase.HANDED_OFF, Phase.EVALUATING}:
                await _record(seat, judge_play(Play(pilot=None, is_cut_off=True), None), None)
            else:
                await _back_to_queue(seat)
        except DiskError as error:
            seat.say(f"{seat.rollout_id}: its end could not be recorded: {error}")


async def _record(seat: Seat, verdict: Verdict, evaluation: Evaluation | None) -> None:
    await record_end(
        seat.book,
        seat.run_dir,
        verdict,
        evaluation,
        disk=seat.equipment.disk,
        ambient=seat.equipment.ambient,
    )
