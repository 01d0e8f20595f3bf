"""The records of one rollout: what the pilot is told, what it leaves behind, and how the rollout ended."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from contract.broker_api import FrameInfo, Name, Sha256
from contract.phases import Cause, EndedBy, Outcome, Phase
from contract.pricing import PriceRow, Usage
from contract.profiles import Profile
from contract.records import Record, Usd, UtcTime

RolloutId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]

# The names of the variables that carry a secret into a pilot's process. Nothing else may.
BROKER_TOKEN_VARIABLE: Final = "AUTOCAD_BENCH_BROKER_TOKEN"
PROVIDER_KEY_VARIABLE: Final = "AUTOCAD_BENCH_PROVIDER_KEY"
# The exit status of a pilot whose disk refused even its last word: no file and no log can say so. EX_IOERR, sysexits.h.
DISK_EXIT_STATUS: Final = 74


# Written out in full an amount like 1e99999999 would fill the memory.
CostLimit = Annotated[Usd, Field(gt=0, le=1_000_000_000, decimal_places=12)]


class Limits(Record):
    """When a rollout ends by itself. "Consecutive" limits end at that count, not after it."""

    actions: Annotated[int, Field(ge=1, le=1_000_000)] = 5000
    invalid_turns: Annotated[int, Field(ge=1, le=1000)] = 10
    transport_failures: Annotated[int, Field(ge=1, le=1000)] = 10
    malformed_responses: Annotated[int, Field(ge=1, le=1000)] = 10
    host_replacements: Annotated[int, Field(ge=0, le=10)] = 1
    # US dollars. A rollout ends at the first turn boundary where it has cost this much; a batch starts nothing more,
    # and ends what plays at its turn's boundary, when all of its rollouts together have.
    cost_usd: CostLimit | None = None
    batch_cost_usd: CostLimit | None = None


class TaskBrief(Record):
    """What the model is given. Nothing here comes from the gold but the reference picture, which is the task."""

    task_id: Name
    prompt: str
    host_notes: str
    # Absolute paths on the pilot's machine.
    reference: str
    reference_sha256: Sha256


class HostAddress(Record):
    """The host that was handed off to this rollout. The token travels beside it, never in it.

    `lost_s`: an answer that is lost is asked for again for so long, because the way to the host is being mended.
    """

    host_id: Name
    boot_id: str
    base_url: str
    lease_id: Name
    lease_generation: int
    first_frame: FrameInfo
    lost_s: Annotated[float, Field(ge=0)] = 0.0


class ModelChoice(Record):
    """Which model plays. `script` is the file of a scripted model (oracle batches, or a stored model_turns.jsonl).

    `facts` are the profile's, for a model of a vendor; `endpoint` is the provider's address. `region` and
    `credentials_url` are for models that are paid with an AWS account: short-lived credentials come from that address,
    for the token that stands in the place of a key.
    """

    provider: str
    model: str
    profile: str | None = None
    facts: Profile | None = None
    endpoint: str | None = None
    region: str | None = None
    credentials_url: str | None = None
    script: str | None = None
    seed: int = 0


class RolloutSpec(Record):
    """Everything that a pilot is told, as one JSON line on its stdin. Holds no secret."""

    schema_: Annotated[Literal["autocad-bench.rollout-spec/1"], Field(alias="schema")] = "autocad-bench.rollout-spec/1"
    batch_id: str
    rollout_id: RolloutId
    run_dir: str
    task: TaskBrief
    choice: ModelChoice
    host: HostAddress
    limits: Limits
    price: PriceRow | None
    # True: go on from resume-checkpoint.json, or end with `resume_mismatch`.
    is_resume: bool = False


class Retries(Record):
    """Lifetime counts, by kind; none consumes another's budget."""

    rate_limited: int = 0
    server_error: int = 0
    transport: int = 0
    malformed: int = 0


class Waiting(Record):
    """What the pilot waits for, since when (the first of its kind in a row), and until when it will not try again.

    `alarm` is set once it has waited for minutes for something that does not heal by itself.
    """

    for_: Annotated[Literal["rate_limited", "server_error", "transport", "quota_exhausted"], Field(alias="for")]
    since: UtcTime
    until: UtcTime | None
    alarm: str | None = None


class PilotProblem(Record):
    """Why the pilot ended when the model did not end it. `cause` is what a void outcome will carry."""

    cause: Cause
    message: str
    hint: str = ""


class RunState(Record):
    """`run-state.json`, written by the pilot: its progress, and at the end its return value."""

    schema_: Annotated[Literal["autocad-bench.run-state/1"], Field(alias="schema")] = "autocad-bench.run-state/1"
    rollout_id: RolloutId
    phase: Phase
    turn: int
    actions_used: int
    actions_max: int
    # Consecutive; any completely valid batch sets it back to 0.
    invalid_turns: int
    invalid_turns_lifetime: int
    retries: Retries
    usage: Usage
    # Null when the usage of a response was unknown or the model has no price.
    cost_usd: Usd | None
    # Requests without an answer: whether they were charged, nobody says.
    requests_of_unknown_cost: int = 0
    updated_at: UtcTime
    waiting: Waiting | None = None
    ended_by: EndedBy | None = None
    # What the model said in its finish action.
    finish_status: Literal["done", "infeasible"] | None = None
    error: PilotProblem | None = None


# What happened before an observation: the start, actions, or a response that led to none.
After = Literal["start", "acted", "invalid", "malformed"]


class ArtifactRef(Record):
    """A file of the run folder, by path relative to it, size and checksum."""

    path: str
    sha256: Sha256
    size_bytes: int


class Checkpoint(Record):
    """`resume-checkpoint.json`: the exact state to go on from.

    `intent` is written before an ActionBatch is sent (its sequence, digest and actions), `commit` after its
    observation is stored. `model_state` is the model's own, checked by the model when it resumes. `checksum` is over
    all other fields, because going on from a document that was damaged would not be exact: the beginning of a SHA-256,
    since it is written twice a turn.
    """

    schema_: Annotated[Literal["autocad-bench.checkpoint/1"], Field(alias="schema")] = "autocad-bench.checkpoint/1"
    rollout_id: RolloutId
    stage: Literal["intent", "commit"]
    host_id: Name
    boot_id: str
    lease_id: Name
    lease_generation: int
    # The last sequence that was committed; an intent is about sequence + 1.
    sequence: int
    intent_digest: Sha256 | None
    intent_actions: list[dict[str, Any]] | None
    # What the turn of the intent decided besides acting: the finish that ends its ActionBatch, if any.
    turn: int
    actions_used: int
    invalid_turns: int
    invalid_turns_lifetime: int
    malformed_responses: int
    # How many of those were refusals, when all of them were.
    refusals: int = 0
    retries: Retries
    usage: Usage
    cost_usd: Usd | None
    requests_of_unknown_cost: int = 0
    frame: ArtifactRef
    reference: ArtifactRef
    # What the next turn's observation says in words; an intent is in the middle of its turn and holds that turn's.
    observation: str
    model_state: dict[str, Any]
    checksum: str | None = None

    def sealed(self) -> Checkpoint:
        """The same with the checksum of all its other fields."""
        return self.model_copy(update={"checksum": self._checksum()})

    @property
    def is_sealed(self) -> bool:
        """Whether it is, field by field, what was sealed."""
        return self.checksum == self._checksum()

    def _checksum(self) -> str:
        return hashlib.sha256(self.model_dump_json(exclude={"checksum"}).encode()).hexdigest()[:16]


class ModelTurn(Record):
    """One line of `model_turns.jsonl`: what the model was shown (by reference) and what it said.

    A conversation is made again from these lines, so they hold all that a model has seen and said.
    """

    turn: int
    at: UtcTime
    frame: int
    artifact: ArtifactRef
    after: After
    observation: str
    # The arguments of the tool call as the model gave them; null when the response had none.
    arguments: Any
    text: str = ""
    usage: Usage | None = None
    cost_usd: Usd | None = None
    latency_s: float
    response: dict[str, Any] | None = None


class ModelTurnSummary(Record):
    """One line of `model_turn_summaries.jsonl`: enough for a table, without the bodies."""

    turn: int
    at: UtcTime
    sequence: int | None
    actions: int
    kinds: dict[str, int]
    result: Literal["acted", "invalid", "malformed", "finish", "refusal"]
    actions_left: int
    cost_usd: Usd | None


class InputReceipt(Record):
    """One line of `input_receipts.jsonl`: the host's receipt for one ActionBatch, and the frame that followed."""

    turn: int
    at: UtcTime
    sequence: int
    digest: Sha256
    actions: int
    performed: int
    took_s: float
    is_replay: bool
    frame: FrameInfo


class Event(Record):
    """One thing that happened in a rollout's life."""

    at: UtcTime
    event: str
    detail: dict[str, Any] = Field(default_factory=dict)


class EventsFile(Record):
    """`events.json`: what happened, in order; lives of rollouts have few events."""

    schema_: Annotated[Literal["autocad-bench.events/1"], Field(alias="schema")] = "autocad-bench.events/1"
    events: list[Event]


class FrameEvent(Record):
    """One stored frame."""

    turn: int
    sequence: int
    file: str
    sha256: Sha256
    size_bytes: int
    verdict: str
    settle_s: float


class FrameEventsFile(Record):
    """`frame_events.json`: the stored frames. Rewritten at growing intervals, complete when the pilot has ended."""

    schema_: Annotated[Literal["autocad-bench.frame-events/1"], Field(alias="schema")] = "autocad-bench.frame-events/1"
    frames: list[FrameEvent]


class Result(Record):
    """`result.json`: the final record of one rollout. It is counted when the outcome is not void."""

    schema_: Annotated[Literal["autocad-bench.result/1"], Field(alias="schema")] = "autocad-bench.result/1"
    batch_id: str
    rollout_id: RolloutId
    task_id: str
    provider: str
    model: str
    profile: str | None
    outcome: Outcome
    cause: Cause | None
    cause_detail: str | None
    ended_by: EndedBy | None
    # Deterministic score in [0, 1]; null when void before an evaluation.
    score: float | None
    judge_score: float | None
    final: float | None
    invalid_code: str | None
    turns: int
    actions_used: int
    usage: Usage
    # Null when unknown; a lower bound when requests were sent and never answered.
    cost_usd: Usd | None
    requests_of_unknown_cost: int = 0
    # The vision judge's part, which is not in `cost_usd`; null when none was asked, or when nobody knows.
    judge_cost_usd: Usd | None = None
    host_id: str | None
    host_replacements: int
    started_at: UtcTime | None
    finished_at: UtcTime
    duration_s: float | None
