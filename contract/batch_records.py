"""The records of a whole batch: its state, and the ledger of launches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from contract.phases import BatchStatus, Cause, EndedBy, Outcome, Phase
from contract.records import Record, Usd, UtcTime
from contract.rollout_records import RolloutId, Waiting

HostEvent = Literal[
    "intent", "instance", "launched", "handed_off", "released", "replaced", "launch_failed", "reconciled"
]


class RolloutRow(Record):
    """One assignment in `batch-state.json`.

    `cost_usd` is null when unknown; `requests_of_unknown_cost` were sent and never answered, so with any of them it is
    a lower bound. `judge_cost_usd` is what the vision judge cost, apart from `cost_usd`. `waiting` is what the pilot
    waits for now, null as soon as its model has answered.
    """

    rollout_id: RolloutId
    task_id: str
    provider: str
    model: str
    profile: str | None
    phase: Phase
    outcome: Outcome | None = None
    cause: Cause | None = None
    cause_detail: str | None = None
    ended_by: EndedBy | None = None
    score: float | None = None
    judge_score: float | None = None
    cost_usd: Usd | None = None
    requests_of_unknown_cost: int = 0
    judge_cost_usd: Usd | None = None
    turns: int = 0
    actions_used: int = 0
    waiting: Waiting | None = None
    host_id: str | None = None
    host_replacements: int = 0
    started_at: UtcTime | None = None
    finished_at: UtcTime | None = None


class Link(Record):
    """Where a manual re-run came from: the batch folder, its id and the rollout's id there."""

    batch_dir: str
    batch_id: str
    rollout_id: RolloutId


class BatchState(Record):
    """`batch-state.json`: the one document that says where a batch is. Its writer holds the folder's lock."""

    schema_: Annotated[Literal["autocad-bench.batch-state/1"], Field(alias="schema")] = "autocad-bench.batch-state/1"
    batch_id: str
    benchmark: str
    status: BatchStatus
    mode: Literal["process", "shared"]
    max_concurrency: int
    created_at: UtcTime
    updated_at: UtcTime
    config_sha256: str
    broker_version: str
    evaluator_version: str
    # The pinned price table, or null when the config names none.
    pricing: dict[str, Any] | None
    # Who runs it now: so that a reader can tell a running batch from one whose controller died.
    controller_pid: int
    controller_started: float
    rerun_of: Link | None = None
    rollouts: list[RolloutRow]


class HostLine(Record):
    """One line of `hosts.jsonl`. The intent is durable before anything is launched.

    intent -> launched -> handed_off -> released; `replaced` and `launch_failed` end a host that was never handed off;
    `reconciled` says that something else than its own sandbox ended it. In the cloud each request that may
    launch has an `intent` of its own with its client token, and `instance` names what it launched.
    """

    at: UtcTime
    event: HostEvent
    host_id: str
    rollout_id: RolloutId
    kind: Literal["local", "ec2"]
    # local: pid, pid_started (seconds since boot, from /proc), boot_id, base_url, lease_id, lease_generation, ...
    # ec2: client_token, subnet_id, instance_id, boot_id, lease_id, lease_generation, ...
    detail: dict[str, Any] = Field(default_factory=dict)
