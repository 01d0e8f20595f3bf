"""The life of a rollout is a table."""

from __future__ import annotations

from itertools import product

import pytest

from contract.errors import BenchError, BrokerError, ConfigError, HostError, PreflightFailed
from contract.phases import NEXT, OUTCOME_OF_END, Cause, EndedBy, Outcome, Phase, advance, is_final


def test_every_phase_has_a_row() -> None:
    """A phase without one could never be left, nor be known to be final."""
    assert set(Phase) == set(NEXT)


@pytest.mark.parametrize(("now", "to"), list(product(Phase, Phase)))
def test_only_the_table_moves_a_rollout(now: Phase, to: Phase) -> None:
    """Anything else is a bug in our code, and stays one in production."""
    if to in NEXT[now]:
        assert to == advance(now, to)
    else:
        with pytest.raises(AssertionError, match=f"may not go from {now} to {to}"):
            advance(now, to)


def test_there_is_no_way_back_once_the_sample_counts() -> None:
    """A rollout that was handed off is never silently played again."""
    reachable, frontier = set(), {Phase.HANDED_OFF}
    while frontier:
        reachable |= frontier
        frontier = {to for now in frontier for to in NEXT[now]} - reachable

    assert {Phase.HANDED_OFF, Phase.EVALUATING, Phase.FINISHED, Phase.FAILED} == reachable


def test_final_is_where_nothing_follows() -> None:
    """And not_started is not final: a resumed batch queues it again."""
    assert {phase for phase in Phase if not NEXT[phase]} == {phase for phase in Phase if is_final(phase)}


def test_every_end_has_an_outcome_and_only_the_models_count() -> None:
    """What the model did not decide is void."""
    assert set(EndedBy) == set(OUTCOME_OF_END)
    assert {EndedBy.FINISHED, EndedBy.ACTION_BUDGET} == _ends_with(Outcome.SCORED)
    assert {EndedBy.INVALID_TURNS, EndedBy.MALFORMED_RESPONSES, EndedBy.REFUSAL} == _ends_with(Outcome.MODEL_FAILED)


def _ends_with(outcome: Outcome) -> set[EndedBy]:
    return {end for end, its in OUTCOME_OF_END.items() if its is outcome}


def test_an_error_is_one_line_with_what_to_do() -> None:
    """The hint is an order; the exit code is the command's."""
    error = ConfigError("rollout_id 'a' appears twice", hint="Rename one.", code="duplicate_id", field="rollouts[1]")

    assert "rollout_id 'a' appears twice. Rename one." == str(error)
    assert "plain" == str(BenchError("plain"))
    assert (2, 3, 1) == (ConfigError.exit_code, PreflightFailed.exit_code, HostError.exit_code)


def test_a_brokers_refusal_is_a_host_error_with_a_cause() -> None:
    """Whoever records it needs no second look."""
    error = BrokerError("gone", code="cad_died", cause=Cause.CAD_DIED, status=503)

    assert isinstance(error, HostError)
    assert (Cause.CAD_DIED, 503) == (error.cause, error.status)
