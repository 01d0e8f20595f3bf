"""What each end of a rollout means, as a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contract.phases import Cause, EndedBy, Outcome
from contract.run_dir import RunDir
from supervisor.launch import PilotEnd
from supervisor.outcome import Evaluation, HostLoss, Play, Verdict, after_play, judge_play
from tests.batch_fakes import write_state

COMPLETE = Evaluation(state="complete", score=0.5, final=0.5)
FAILED = Evaluation(state="failed", failure="evaluator_export: broke")


def pilot(tmp_path: Path, ended_by: EndedBy | None, *, error: Cause | None = None, status: int = 0) -> PilotEnd:
    folder = tmp_path / "r-0"
    folder.mkdir(exist_ok=True)
    return PilotEnd(write_state(RunDir(folder), 1, ended_by, error), status, "" if status == 0 else "it ended")


@pytest.mark.parametrize(
    ("ended_by", "error", "then", "outcome", "cause"),
    [
        (EndedBy.FINISHED, None, "evaluate", Outcome.SCORED, None),
        (EndedBy.ACTION_BUDGET, None, "evaluate", Outcome.SCORED, None),
        (EndedBy.INVALID_TURNS, None, "evaluate", Outcome.MODEL_FAILED, None),
        (EndedBy.MALFORMED_RESPONSES, None, "evaluate", Outcome.MODEL_FAILED, None),
        (EndedBy.REFUSAL, None, "evaluate", Outcome.MODEL_FAILED, None),
        (EndedBy.COST_LIMIT, None, "evaluate", Outcome.VOID, Cause.COST_LIMIT),
        (EndedBy.TRANSPORT_FAILURES, None, "evaluate", Outcome.VOID, Cause.PROVIDER_UNREACHABLE),
        (EndedBy.PROVIDER_REFUSED, Cause.PROVIDER_REFUSED, "evaluate", Outcome.VOID, Cause.PROVIDER_REFUSED),
        (EndedBy.HOST_LOST, Cause.CAD_DIED, "nothing", Outcome.VOID, Cause.CAD_DIED),
        (EndedBy.HOST_LOST, None, "nothing", Outcome.VOID, Cause.BROKER_UNREACHABLE),
        (
            EndedBy.HOST_LOST,
            Cause.ACTIONS_INDETERMINATE,
            "hand_over",
            Outcome.VOID,
            Cause.ACTIONS_INDETERMINATE,
        ),
        (EndedBy.INTERRUPTED, None, "hand_over", Outcome.VOID, Cause.INTERRUPTED),
        (EndedBy.ERROR, Cause.RESUME_MISMATCH, "hand_over", Outcome.VOID, Cause.RESUME_MISMATCH),
    ],
)
def test_each_end_has_one_outcome(
    tmp_path: Path, ended_by: EndedBy, error: Cause | None, then: str, outcome: Outcome, cause: Cause | None
) -> None:
    """The model's ends are scored, all others are void with their cause."""
    play = Play(pilot=pilot(tmp_path, ended_by, error=error))

    verdict = judge_play(play, COMPLETE)

    assert then == after_play(play)
    assert (outcome, cause, ended_by) == (verdict.outcome, verdict.cause, verdict.ended_by)


def test_an_evaluation_that_failed_is_never_a_score(tmp_path: Path) -> None:
    """Ours is void, whatever the model did."""
    for ended_by in (EndedBy.FINISHED, EndedBy.REFUSAL):
        verdict = judge_play(Play(pilot=pilot(tmp_path, ended_by)), FAILED)

        assert (Outcome.VOID, Cause.EVALUATION_FAILED) == (verdict.outcome, verdict.cause)


def test_an_invalid_drawing_counts(tmp_path: Path) -> None:
    """It is the model's drawing, so it is the model's zero."""
    invalid = Evaluation(state="invalid", score=0.0, final=0.0, invalid_code="untouched")

    assert Outcome.SCORED == judge_play(Play(pilot=pilot(tmp_path, EndedBy.FINISHED)), invalid).outcome


def test_a_killed_pilot_and_a_crashed_one_are_told_apart(tmp_path: Path) -> None:
    """A signal came from outside; an exit status is our bug. Neither is evaluated."""
    killed = Play(pilot=pilot(tmp_path, None, status=-9))
    crashed = Play(pilot=pilot(tmp_path, None, status=1))

    assert (Cause.PILOT_DIED, EndedBy.KILLED) == (judge_play(killed, None).cause, judge_play(killed, None).ended_by)
    assert (Cause.PILOT_ERROR, EndedBy.ERROR) == (judge_play(crashed, None).cause, judge_play(crashed, None).ended_by)
    assert ("hand_over", "hand_over") == (after_play(killed), after_play(crashed))


def test_a_pilot_that_died_of_our_own_signal_was_interrupted(tmp_path: Path) -> None:
    """SIGTERM may meet an interpreter that does not listen yet."""
    stopped = replace(pilot(tmp_path, None, status=-15), is_stopped=True)

    verdict = judge_play(Play(pilot=stopped), None)

    assert (Outcome.VOID, Cause.INTERRUPTED, EndedBy.INTERRUPTED) == (verdict.outcome, verdict.cause, verdict.ended_by)


def test_a_pilot_that_says_nothing_and_exits_with_zero_is_an_error(tmp_path: Path) -> None:
    """The run state is the return value; without one nothing was returned."""
    verdict = judge_play(Play(pilot=pilot(tmp_path, None)), None)

    assert (Outcome.VOID, Cause.PILOT_ERROR) == (verdict.outcome, verdict.cause)


def test_a_lost_host_goes_before_what_followed_from_it(tmp_path: Path) -> None:
    """The pilot that we stopped because of it says `interrupted`; that is not how the rollout ended."""
    loss = HostLoss(Cause.DISPLAY_DIED, "the X server died")

    verdict = judge_play(Play(pilot=pilot(tmp_path, EndedBy.INTERRUPTED, status=-9), loss=loss), None)

    assert (Cause.DISPLAY_DIED, EndedBy.HOST_LOST) == (verdict.cause, verdict.ended_by)


def test_a_pilot_that_was_stopped_because_the_batch_may_cost_no_more_was_not_interrupted(tmp_path: Path) -> None:
    """Also when our signal came before it could say a last word; one that had ended by itself keeps its own end."""
    interrupted = Play(pilot=pilot(tmp_path, EndedBy.INTERRUPTED), over_cost="it has cost $9")
    silent = Play(pilot=replace(pilot(tmp_path, None, status=-15), is_stopped=True), over_cost="it has cost $9")
    finished = Play(pilot=pilot(tmp_path, EndedBy.FINISHED), over_cost="it has cost $9")
    limited = Verdict(Outcome.VOID, EndedBy.COST_LIMIT, Cause.COST_LIMIT, "it has cost $9")

    assert [limited, limited] == [judge_play(interrupted, COMPLETE), judge_play(silent, None)]
    assert Verdict(Outcome.SCORED, EndedBy.FINISHED) == judge_play(finished, COMPLETE)
    assert ["evaluate", "hand_over", "evaluate"] == [after_play(play) for play in (interrupted, silent, finished)]


def test_credentials_that_are_not_to_be_had_are_a_refusal_of_the_provider() -> None:
    """They are ours to give, but it is the account that refuses."""
    play = Play(pilot=None, fault=HostLoss(Cause.PROVIDER_AUTH, "log in"))

    verdict = Verdict(Outcome.VOID, EndedBy.PROVIDER_REFUSED, Cause.PROVIDER_AUTH, "log in")
    assert ("nothing", verdict) == (after_play(play), judge_play(play, None))


def test_a_play_that_was_cut_off_is_interrupted() -> None:
    """The second signal does not wait for the pilot's word."""
    verdict = judge_play(Play(pilot=None, is_cut_off=True), None)

    assert (Outcome.VOID, Cause.INTERRUPTED, EndedBy.INTERRUPTED) == (verdict.outcome, verdict.cause, verdict.ended_by)
