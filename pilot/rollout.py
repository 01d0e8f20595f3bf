"""Plays one rollout: ask the model, act, look, repeat. Start reading here.

`run_rollout` owns the end of a rollout, `_Rollout.play` its middle. A turn is: ask; write down what was said and
what will be done (the intent); have the host do it; store the frame; write down that it is done (the commit). A pilot
that dies between any two of these goes on from the checkpoint without an action lost or repeated.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

import anyio

from contract.actions import Action, Finish, InvalidActions, digest_of, parse_action_batch
from contract.broker_api import Receipt
from contract.errors import DiskError, HostError, PilotError, StateError
from contract.phases import Cause, EndedBy, Phase
from contract.records import UtcTime
from contract.rollout_records import (
    Checkpoint,
    InputReceipt,
    Limits,
    ModelTurn,
    ModelTurnSummary,
    PilotProblem,
    RolloutSpec,
    RunState,
    Waiting,
)
from pilot import observe
from pilot.budgets import Ledger, after_of, exhausted, retried
from pilot.checkpoint import Place, make_checkpoint, place_of
from pilot.ports import (
    ModelReply,
    Observation,
    ProviderError,
    Refused,
    ServerError,
    Throttled,
    TransportFailed,
    World,
)
from pilot.resume import (
    ResumeMismatch,
    check_artifacts,
    check_host,
    paid_before,
    read_checkpoint,
    read_run_state,
)
from pilot.retry import GaveUp, ask
from pilot.trace import TraceWriter, written_turns

T = TypeVar("T")
log = logging.getLogger("pilot")

# A dead disk or broker must not keep a cancelled rollout from ending.
CLOSE_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class End:
    """How a rollout ended. `problem` is set when the model did not end it."""

    by: EndedBy
    finish_status: Literal["done", "infeasible"] | None = None
    problem: PilotProblem | None = None


async def run_rollout(spec: RolloutSpec, world: World) -> RunState:
    """Play the rollout that `spec` describes and return its final `run-state.json`, however it ended.

    Raises nothing but `DiskError` (the final state could not be written) and cancellation, which ends the rollout as
    interrupted after its state is written. Model and desktop are closed in every case.
    """
    rollout = _Rollout(spec, world)
    try:
        end = await _end_of(rollout)
        return await rollout.close(end)
    except anyio.get_cancelled_exc_class():
        with anyio.move_on_after(CLOSE_S_MAX, shield=True):
            await rollout.close(_interrupted("the rollout was cancelled"))
        raise
    finally:
        with anyio.move_on_after(CLOSE_S_MAX, shield=True):
            await world.desktop.aclose()
            await world.model.aclose()


async def _end_of(rollout: _Rollout) -> End:
    try:
        return await rollout.play()
    except HostError as error:
        return _broken(EndedBy.HOST_LOST, error.cause, error)
    except PilotError as error:
        return _broken(EndedBy.ERROR, error.cause, error)
    except ResumeMismatch as error:
        return _broken(EndedBy.ERROR, Cause.RESUME_MISMATCH, error)
    except DiskError as error:
        return _broken(EndedBy.ERROR, Cause.DISK, error)
    except StateError as error:
        return _broken(EndedBy.ERROR, Cause.PILOT_ERROR, error)
    except Exception as error:
        log.exception("the pilot failed")
        return _broken(EndedBy.ERROR, Cause.PILOT_ERROR, error)


class _Rollout:
    """One rollout in play. What it has used up so far is known at every moment, however it ends."""

    def __init__(self, spec: RolloutSpec, world: World) -> None:
        self._spec = spec
        self._world = world
        self._limits = spec.limits
        self._trace = TraceWriter(spec, world.disk, world.ambient)
        self._ledger = Ledger()
        # One alarm for each turn that waits in vain.
        self._is_alarmed = False

    async def play(self) -> End:
        """Take turns until something ends them."""
        place = await self._begin()
        while True:
            if place.pending is not None:
                place = await self._carry_out(place, place.pending)
            end = self._end_at(place)
            if end is not None:
                return end
            reached = await self._turn(place)
            if isinstance(reached, End):
                return reached
            place = reached

    async def close(self, end: End) -> RunState:
        """Write how it ended; the run state even when nothing else can be written. Raises `DiskError`."""
        state = self._state(self._ledger, end=end)
        try:
            await self._blocking(lambda: self._trace.close(state))
        except (DiskError, StateError) as error:
            cause = Cause.DISK if isinstance(error, DiskError) else Cause.PILOT_ERROR
            # A trace that is not what we wrote is how a resume was refused, which stays the reason.
            if end.problem is None or (cause is Cause.DISK and end.problem.cause is not cause):
                state = self._state(self._ledger, end=_broken(EndedBy.ERROR, cause, error))
            await self._blocking(lambda: self._trace.final_run_state(state))
        self._world.on_progress(state)
        return state

    async def _begin(self) -> Place:
        await self._blocking(self._trace.make_folder)
        checkpoint = await self._resumable_checkpoint() if self._spec.is_resume else None
        if checkpoint is None:
            first = self._spec.host.first_frame
            png = await self._world.desktop.fetch(first)
            ledger = await self._blocking(self._paid_in_vain) if self._spec.is_resume else Ledger()
            frame = await self._blocking(lambda: self._trace.open_fresh(png))
            place = Place(ledger, frame, observe.at_start(first.verdict, self._limits))
        else:
            place = await self._resume(checkpoint)
        self._ledger = place.ledger
        await self._tell()
        return place

    async def _resumable_checkpoint(self) -> Checkpoint | None:
        try:
            checkpoint = await self._blocking(lambda: read_checkpoint(self._trace.run_dir))
        except StateError as error:
            raise ResumeMismatch(error.message) from error
        check_host(self._spec, checkpoint, await self._world.desktop.health())
        return checkpoint

    async def _resume(self, checkpoint: Checkpoint) -> Place:
        try:
            place = place_of(checkpoint)
            self._ledger = place.ledger
            await self._blocking(lambda: check_artifacts(self._trace.run_dir, checkpoint))
            self._world.model.restore(checkpoint.model_state)
            state = await self._blocking(lambda: read_run_state(self._trace.run_dir))
            unused = await self._blocking(lambda: self._trace.open_resumed(checkpoint))
        except StateError as error:
            raise ResumeMismatch(error.message) from error
        return replace(place, ledger=paid_before(place.ledger, state, unused))

    def _paid_in_vain(self) -> Ledger:
        """What a pilot had paid that died before its first checkpoint: its rollout begins anew, its bill does not."""
        run_dir = self._trace.run_dir
        return replace(paid_before(Ledger(), read_run_state(run_dir), written_turns(run_dir)), turn=0)

    def _end_at(self, place: Place) -> End | None:
        if place.finish is not None:
            return End(EndedBy.FINISHED, finish_status=place.finish.status)
        limit = exhausted(place.ledger, self._limits)
        if limit is EndedBy.COST_LIMIT:
            return End(limit, problem=_cost_problem(place.ledger, self._limits))
        if limit is not None:
            return End(limit)
        if self._world.stop.is_set():
            return _interrupted("the rollout was asked to stop at a turn boundary")
        return None

    async def _turn(self, place: Place) -> Place | End:
        observation = self._observation(place)
        reply = await ask(
            self._world.model,
            observation,
            self._world,
            transport_max=self._limits.transport_failures,
            on_wait=self._wait,
        )
        match reply:
            case GaveUp(error=None):
                return _interrupted("the rollout was asked to stop while it waited for the model")
            case GaveUp(error=error):
                assert error is not None
                self._count(error)
                return _end_of_provider(error)
            case ModelReply():
                return await self._replied(place, observation, reply)

    async def _replied(self, place: Place, observation: Observation, reply: ModelReply) -> Place:
        self._is_alarmed = False
        ledger = self._ledger = self._ledger.replied(reply.usage, reply.cost_usd)
        turn = self._turn_record(observation, reply)
        if turn.arguments is None:
            ledger = ledger.malformed(is_refusal=reply.is_refusal)
            text = observe.after_malformed(ledger=ledger, limits=self._limits)
            result: Literal["refusal", "malformed"] = "refusal" if reply.is_refusal else "malformed"
            return await self._nothing_done(replace(place, ledger=ledger, text=text), turn, result)
        actions = parse_action_batch(turn.arguments, budget=observation.actions_left)
        if isinstance(actions, InvalidActions):
            ledger = ledger.invalid()
            text = observe.after_invalid(actions.reason, ledger=ledger, limits=self._limits)
            return await self._nothing_done(replace(place, ledger=ledger, text=text), turn, "invalid")
        intended = replace(place, ledger=ledger.valid(), pending=actions)

        def write_intent() -> None:
            self._trace.model_turn(turn)
            self._trace.checkpoint(self._checkpoint(intended))

        await self._blocking(write_intent)
        self._ledger = intended.ledger
        return intended

    async def _carry_out(self, place: Place, actions: tuple[Action, ...]) -> Place:
        sequence = place.ledger.sequence + 1
        acted = await self._world.desktop.act(sequence, actions)
        receipt = acted.receipt
        ledger = place.ledger.acted(len(actions))
        last = actions[-1]
        finish = last if isinstance(last, Finish) else None
        asked = len(actions) - (finish is not None)
        text = observe.after_acting(receipt, asked=asked, ledger=ledger, limits=self._limits)
        line = self._receipt_record(receipt, ledger=ledger, actions=len(actions), digest=digest_of(actions))
        summary = self._summary("finish" if finish else "acted", ledger, actions=actions)

        def write_commit() -> Place:
            frame = self._trace.store_frame(receipt.frame, acted.png)
            done = Place(ledger, frame, text, finish=finish)
            self._trace.receipt(line)
            self._trace.summary(summary)
            self._trace.checkpoint(self._checkpoint(done))
            return done

        return await self._commit(ledger, write_commit)

    async def _nothing_done(
        self, place: Place, turn: ModelTurn, result: Literal["invalid", "malformed", "refusal"]
    ) -> Place:
        summary = self._summary(result, place.ledger)

        def write_commit() -> Place:
            self._trace.model_turn(turn)
            self._trace.summary(summary)
            self._trace.checkpoint(self._checkpoint(place))
            return place

        return await self._commit(place.ledger, write_commit)

    async def _commit(self, ledger: Ledger, write: Callable[[], Place]) -> Place:
        state = self._state(ledger)

        def write_and_tell() -> Place:
            done = write()
            self._trace.run_state(state)
            return done

        done = await self._blocking(write_and_tell)
        self._ledger = ledger
        self._world.on_progress(state)
        return done

    async def _wait(self, error: ProviderError, waiting: Waiting) -> None:
        self._count(error)
        log.warning("waiting for the model: %s", error.message)
        if waiting.alarm is not None and not self._is_alarmed:
            self._is_alarmed = True
            log.error("%s", waiting.alarm)
            await self._blocking(lambda: self._trace.event("alarm", message=waiting.alarm))
        await self._tell(waiting)

    def _count(self, error: ProviderError) -> None:
        counts = retried(
            self._ledger.retries,
            rate_limited=isinstance(error, Throttled),
            server_error=isinstance(error, ServerError),
            transport=isinstance(error, TransportFailed),
        )
        ledger = replace(self._ledger, retries=counts)
        self._ledger = ledger.failed(error)

    async def _tell(self, waiting: Waiting | None = None) -> None:
        state = self._state(self._ledger, waiting=waiting)
        await self._blocking(lambda: self._trace.run_state(state))
        self._world.on_progress(state)

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await self._world.disk_bridge.call(work)

    def _now(self) -> UtcTime:
        return self._world.ambient.utc_now()

    def _observation(self, place: Place) -> Observation:
        return Observation(
            turn=place.ledger.turn + 1,
            sequence=place.ledger.sequence,
            frame=place.frame,
            frame_path=self._trace.run_dir.root / place.frame.path,
            after=after_of(place.ledger),
            text=place.text,
            actions_left=self._limits.actions - place.ledger.actions_used,
        )

    def _checkpoint(self, place: Place) -> Checkpoint:
        return make_checkpoint(
            self._spec, place, reference=self._trace.reference, model_state=self._world.model.state()
        )

    def _state(self, ledger: Ledger, *, waiting: Waiting | None = None, end: End | None = None) -> RunState:
        return RunState(
            rollout_id=self._spec.rollout_id,
            phase=Phase.HANDED_OFF,
            turn=ledger.turn,
            actions_used=ledger.actions_used,
            actions_max=self._limits.actions,
            invalid_turns=ledger.invalid_turns,
            invalid_turns_lifetime=ledger.invalid_turns_lifetime,
            retries=ledger.retries,
            usage=ledger.usage,
            cost_usd=ledger.cost_usd,
            requests_of_unknown_cost=ledger.requests_of_unknown_cost,
            updated_at=self._now(),
            waiting=waiting,
            ended_by=end.by if end else None,
            finish_status=end.finish_status if end else None,
            error=end.problem if end else None,
        )

    def _turn_record(self, observation: Observation, reply: ModelReply) -> ModelTurn:
        turn = ModelTurn(
            turn=observation.turn,
            at=self._now(),
            frame=observation.sequence,
            artifact=observation.frame,
            after=observation.after,
            observation=observation.text,
            arguments=reply.arguments,
            text=reply.text,
            usage=reply.usage,
            cost_usd=reply.cost_usd,
            latency_s=round(reply.latency_s, 4),
            response=reply.response,
        )
        try:
            turn.model_dump_json()
        except ValueError:
            # Half a surrogate pair, or nested without end: no JSON text says that, so the response is malformed.
            text = reply.text.encode(errors="replace").decode()
            return turn.model_copy(update={"arguments": None, "response": None, "text": text})
        return turn

    def _summary(
        self,
        result: Literal["acted", "invalid", "malformed", "finish", "refusal"],
        ledger: Ledger,
        *,
        actions: tuple[Action, ...] = (),
    ) -> ModelTurnSummary:
        return ModelTurnSummary(
            turn=ledger.turn,
            at=self._now(),
            sequence=ledger.sequence if actions else None,
            actions=len(actions),
            kinds=dict(Counter(action.type for action in actions)),
            result=result,
            actions_left=self._limits.actions - ledger.actions_used,
            cost_usd=ledger.cost_usd,
        )

    def _receipt_record(self, receipt: Receipt, *, ledger: Ledger, actions: int, digest: str) -> InputReceipt:
        return InputReceipt(
            turn=ledger.turn,
            at=self._now(),
            sequence=receipt.sequence,
            digest=digest,
            actions=actions,
            performed=receipt.performed,
            took_s=receipt.took_s,
            is_replay=receipt.is_replay,
            frame=receipt.frame,
        )


def _end_of_provider(error: ProviderError) -> End:
    if isinstance(error, TransportFailed):
        return _broken(EndedBy.TRANSPORT_FAILURES, Cause.PROVIDER_UNREACHABLE, error)
    assert isinstance(error, Refused), f"{error!r} should have been asked again"
    return _broken(EndedBy.PROVIDER_REFUSED, error.cause, error)


def _cost_problem(ledger: Ledger, limits: Limits) -> PilotProblem:
    if ledger.cost_usd is None:
        message = "the cost of a response is unknown, so `limits.cost_usd` cannot be kept"
    else:
        message = f"the rollout has cost ${ledger.cost_usd:f}, and `limits.cost_usd` is ${limits.cost_usd:f}"
    return PilotProblem(cause=Cause.COST_LIMIT, message=message, hint="Raise `limits.cost_usd`, or leave it out.")


def _interrupted(message: str) -> End:
    return End(EndedBy.INTERRUPTED, problem=PilotProblem(cause=Cause.INTERRUPTED, message=message))


def _broken(by: EndedBy, cause: Cause, error: Exception) -> End:
    message = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
    return End(by, problem=PilotProblem(cause=cause, message=message, hint=getattr(error, "hint", "")))
