"""The life of a rollout as a table, and the closed lists of how it may end."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a rollout is. Only `advance` moves it."""

    QUEUED = "queued"
    STARTING = "starting"
    HANDED_OFF = "handed_off"
    EVALUATING = "evaluating"
    FINISHED = "finished"
    FAILED = "failed"
    NOT_STARTED = "not_started"


NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.STARTING, Phase.NOT_STARTED}),
    # A host that fails before hand-off is replaced: STARTING may begin again. An interrupted start goes back to
    # the queue, because nothing has been sampled.
    Phase.STARTING: frozenset({Phase.STARTING, Phase.HANDED_OFF, Phase.NOT_STARTED, Phase.QUEUED}),
    # From here the sample counts. There is no way back to STARTING.
    Phase.HANDED_OFF: frozenset({Phase.EVALUATING, Phase.FAILED}),
    Phase.EVALUATING: frozenset({Phase.FINISHED, Phase.FAILED}),
    Phase.FINISHED: frozenset(),
    Phase.FAILED: frozenset(),
    # Nothing was sampled, so a resumed batch may queue it again.
    Phase.NOT_STARTED: frozenset({Phase.QUEUED}),
}


def advance(now: Phase, to: Phase) -> Phase:
    """Return `to`; a move that the table does not allow is a bug in our code."""
    assert to in NEXT[now], f"rollout may not go from {now} to {to}"
    return to


def is_final(phase: Phase) -> bool:
    """True when the rollout's record will not change any more."""
    return phase in {Phase.FINISHED, Phase.FAILED}


class Outcome(StrEnum):
    """What a rollout is worth to a mean: `scored` and `model_failed` count, `void` does not."""

    SCORED = "scored"
    MODEL_FAILED = "model_failed"
    VOID = "void"


class EndedBy(StrEnum):
    """Which rule ended the pilot."""

    FINISHED = "finished"
    ACTION_BUDGET = "action_budget"
    INVALID_TURNS = "invalid_turns"
    MALFORMED_RESPONSES = "malformed_responses"
    REFUSAL = "refusal"
    COST_LIMIT = "cost_limit"
    TRANSPORT_FAILURES = "transport_failures"
    PROVIDER_REFUSED = "provider_refused"
    HOST_LOST = "host_lost"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    ERROR = "error"


OUTCOME_OF_END: dict[EndedBy, Outcome] = {
    EndedBy.FINISHED: Outcome.SCORED,
    EndedBy.ACTION_BUDGET: Outcome.SCORED,
    EndedBy.INVALID_TURNS: Outcome.MODEL_FAILED,
    EndedBy.MALFORMED_RESPONSES: Outcome.MODEL_FAILED,
    EndedBy.REFUSAL: Outcome.MODEL_FAILED,
    EndedBy.COST_LIMIT: Outcome.VOID,
    EndedBy.TRANSPORT_FAILURES: Outcome.VOID,
    EndedBy.PROVIDER_REFUSED: Outcome.VOID,
    EndedBy.HOST_LOST: Outcome.VOID,
    EndedBy.INTERRUPTED: Outcome.VOID,
    EndedBy.KILLED: Outcome.VOID,
    EndedBy.ERROR: Outcome.VOID,
}


class Cause(StrEnum):
    """Why a rollout is void. A cause that is not in this list is `unknown`, and unknown is void."""

    # The host, before hand-off
    HOST_LAUNCH = "host_launch"
    HOST_IDENTITY = "host_identity"
    TUNNEL = "tunnel"
    LEASE = "lease"
    RESET = "reset"
    # The host, after hand-off
    HOST_REBOOTED = "host_rebooted"
    BROKER_DIED = "broker_died"
    BROKER_UNREACHABLE = "broker_unreachable"
    BROKER_REFUSED = "broker_refused"
    ACTIONS_INDETERMINATE = "actions_indeterminate"
    CAD_DIED = "cad_died"
    CAD_HUNG = "cad_hung"
    DISPLAY_DIED = "display_died"
    FRAME_CORRUPT = "frame_corrupt"
    # The provider
    PROVIDER_AUTH = "provider_auth"
    PROVIDER_REFUSED = "provider_refused"
    PROVIDER_UNREACHABLE = "provider_unreachable"
    COST_LIMIT = "cost_limit"
    # The pilot and its controller
    PILOT_DIED = "pilot_died"
    PILOT_ERROR = "pilot_error"
    CONTROLLER_DIED = "controller_died"
    INTERRUPTED = "interrupted"
    RESUME_MISMATCH = "resume_mismatch"
    # What comes after
    EVALUATION_FAILED = "evaluation_failed"
    JUDGE_FAILED = "judge_failed"
    DISK = "disk"
    UNKNOWN = "unknown"


class BatchStatus(StrEnum):
    """Where a whole batch is."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
