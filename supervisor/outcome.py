"""What a rollout's end means: from the facts of how it ended to one outcome and one cause. Pure, and complete."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from contract.phases import OUTCOME_OF_END, Cause, EndedBy, Outcome
from supervisor.launch import PilotEnd

AfterPlay = Literal["evaluate", "hand_over", "nothing"]

# The CAD program or the way to it is gone: whatever is asked of this host would only cost time.
HOST_GONE: Final = frozenset(
    {
        Cause.BROKER_DIED,
        Cause.BROKER_UNREACHABLE,
        Cause.CAD_DIED,
        Cause.CAD_HUNG,
        Cause.DISPLAY_DIED,
        Cause.TUNNEL,
        Cause.LEASE,
    }
)
# A pilot that ended by one of these and names no cause has this one.
_CAUSE_OF_END: Final[dict[EndedBy, Cause]] = {
    EndedBy.COST_LIMIT: Cause.COST_LIMIT,
    EndedBy.TRANSPORT_FAILURES: Cause.PROVIDER_UNREACHABLE,
    EndedBy.PROVIDER_REFUSED: Cause.PROVIDER_REFUSED,
    EndedBy.HOST_LOST: Cause.BROKER_UNREACHABLE,
    EndedBy.INTERRUPTED: Cause.INTERRUPTED,
    EndedBy.KILLED: Cause.PILOT_DIED,
    EndedBy.ERROR: Cause.PILOT_ERROR,
}


@dataclass(frozen=True, slots=True)
class HostLoss:
    """A host that was lost after hand-off, and how we know."""

    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came out of an evaluation. `score` and `final` are in [0, 1].

    `failed` has a `score` when only the judge failed, and never a `final`.
    """

    state: Literal["complete", "invalid", "failed"]
    score: float | None = None
    judge_score: float | None = None
    final: float | None = None
    invalid_code: str | None = None
    cause: Cause | None = None
    failure: str = ""
    # What the vision judge cost; null when none was asked, or when nobody knows.
    judge_cost_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Play:
    """How the play of one rollout ended, whoever ended it.

    `pilot` is null when it was cut off: the host was lost or the batch was interrupted at once.
    """

    pilot: PilotEnd | None
    loss: HostLoss | None = None
    is_cut_off: bool = False
    # Set when something of ours failed outside of pilot and host: the disk, credentials, or a bug.
    fault: HostLoss | None = None
    # Why the whole batch may cost no more, if that is what its pilots were stopped for.
    over_cost: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one rollout. `cause` is set exactly when it is void."""

    outcome: Outcome
    ended_by: EndedBy | None
    cause: Cause | None = None
    detail: str | None = None


def after_play(play: Play) -> AfterPlay:
    """What to do on the host once the pilot has ended.

    Only a rollout that can still be scored, or whose host is sound, is evaluated. One that is void because its pilot
    was killed or interrupted has its drawing saved, so that a person can look at it.
    """
    if play.loss is not None or play.is_cut_off or play.fault is not None:
        return "nothing"
    pilot = play.pilot
    assert pilot is not None, "a play that was not cut off has a pilot that ended"
    if not pilot.is_final:
        return "hand_over"
    assert pilot.state is not None
    if pilot.state.error is not None and pilot.state.error.cause in HOST_GONE:
        return "nothing"
    ended_by = pilot.state.ended_by
    if ended_by is EndedBy.INTERRUPTED and play.over_cost is not None:
        return "evaluate"
    if ended_by is EndedBy.HOST_LOST and pilot.state.error is None:
        return "nothing"
    if ended_by in {EndedBy.INTERRUPTED, EndedBy.HOST_LOST, EndedBy.KILLED, EndedBy.ERROR}:
        return "hand_over"
    return "evaluate"


def judge_play(play: Play, evaluation: Evaluation | None) -> Verdict:
    """The one outcome. A lost host goes before everything that followed from its loss."""
    said = play.pilot.state.ended_by if play.pilot is not None and play.pilot.state is not None else None
    if play.fault is not None:
        refused = play.fault.cause is Cause.PROVIDER_AUTH
        ended_by = said or (EndedBy.PROVIDER_REFUSED if refused else EndedBy.ERROR)
        return Verdict(Outcome.VOID, ended_by, play.fault.cause, play.fault.detail)
    if play.loss is not None:
        return Verdict(Outcome.VOID, _unless_ours(said) or EndedBy.HOST_LOST, play.loss.cause, play.loss.detail)
    if play.is_cut_off:
        return Verdict(Outcome.VOID, EndedBy.INTERRUPTED, Cause.INTERRUPTED, "interrupted at once")
    pilot = play.pilot
    assert pilot is not None, "a play that was not cut off has a pilot that ended"
    was_stopped = said is EndedBy.INTERRUPTED if pilot.is_final else pilot.is_stopped
    if was_stopped and play.over_cost is not None:
        return Verdict(Outcome.VOID, EndedBy.COST_LIMIT, Cause.COST_LIMIT, play.over_cost)
    if not pilot.is_final:
        if pilot.is_stopped:
            return Verdict(Outcome.VOID, EndedBy.INTERRUPTED, Cause.INTERRUPTED, pilot.problem)
        if pilot.status < 0:
            return Verdict(Outcome.VOID, EndedBy.KILLED, Cause.PILOT_DIED, pilot.problem)
        problem = pilot.problem or "the pilot ended without a final record"
        return Verdict(Outcome.VOID, EndedBy.ERROR, Cause.PILOT_ERROR, problem)
    state = pilot.state
    assert state is not None
    assert state.ended_by is not None
    outcome = OUTCOME_OF_END[state.ended_by]
    if outcome is Outcome.VOID:
        error = state.error
        cause = error.cause if error is not None else _CAUSE_OF_END.get(state.ended_by, Cause.UNKNOWN)
        return Verdict(Outcome.VOID, state.ended_by, cause, error.message if error is not None else None)
    if evaluation is None:
        return Verdict(Outcome.VOID, state.ended_by, Cause.EVALUATION_FAILED, "the evaluation was not made")
    if evaluation.state == "failed":
        cause = evaluation.cause or Cause.EVALUATION_FAILED
        return Verdict(Outcome.VOID, state.ended_by, cause, evaluation.failure)
    return Verdict(outcome, state.ended_by)


def _unless_ours(said: EndedBy | None) -> EndedBy | None:
    # A pilot that we stopped because its host was lost says "interrupted"; that is not how the rollout ended.
    return None if said in {None, EndedBy.INTERRUPTED, EndedBy.KILLED} else said
