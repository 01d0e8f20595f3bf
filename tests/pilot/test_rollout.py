"""The loop: what ends a rollout, what it costs a model, and what it leaves on disk."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from contract.ambient import Ambient
from contract.broker_api import ErrorCode, Verdict
from contract.errors import DiskError
from contract.phases import Cause, EndedBy, Phase
from contract.pricing import Usage
from contract.records import Durability, read_record
from contract.rollout_records import Checkpoint, EventsFile, FrameEventsFile, Limits, RolloutSpec, RunState
from contract.run_dir import RunDir
from pilot.ports import Charge, ModelReply, Refused, ServerError, Throttled, TransportFailed
from pilot.rollout import run_rollout
from tests.fakes import (
    FINISH,
    CountingDisk,
    FakeDesktop,
    FakeHost,
    ScriptedModel,
    batch,
    click,
    make_spec,
    make_world,
    read_jsonl,
    refusal,
    type_text,
)

pytestmark = pytest.mark.anyio


async def play(spec: RolloutSpec, items: list[object], host: FakeHost) -> tuple[RunState, ScriptedModel]:
    model = ScriptedModel(items)
    return await run_rollout(spec, make_world(model, host)), model


async def test_a_rollout_that_finishes_leaves_the_whole_trace(tmp_path: Path) -> None:
    """Whoever reads the folder later has nothing else."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)

    state, _ = await play(spec, [batch(click(1, 2), type_text("line\n")), batch(click(3, 4)), FINISH], host)

    run_dir = RunDir(Path(spec.run_dir))
    assert (EndedBy.FINISHED, "done", None) == (state.ended_by, state.finish_status, state.error)
    assert (3, 4) == (state.turn, state.actions_used)
    assert Phase.HANDED_OFF == state.phase
    assert state == read_record(run_dir.run_state, RunState)
    assert ["click", "type", "click"] == [action["type"] for action in host.performed]
    assert [1, 2, 3] == [line["turn"] for line in read_jsonl(run_dir.model_turns)]
    assert [0, 1, 2] == [line["frame"] for line in read_jsonl(run_dir.model_turns)]
    assert ["acted", "acted", "finish"] == [line["result"] for line in read_jsonl(run_dir.model_turn_summaries)]
    assert [{"click": 1, "type": 1}, {"click": 1}, {"finish": 1}] == [
        line["kinds"] for line in read_jsonl(run_dir.model_turn_summaries)
    ]
    assert [2, 1, 0] == [line["performed"] for line in read_jsonl(run_dir.input_receipts)]
    assert [host.frame(n) for n in range(4)] == [run_dir.frame(n).read_bytes() for n in range(4)]
    assert [0, 1, 2, 3] == [frame.sequence for frame in read_record(run_dir.frame_events, FrameEventsFile).frames]
    events = [event.event for event in read_record(run_dir.events, EventsFile).events]
    assert ["sandbox_agent_started", "rollout_ended"] == events
    assert Path(spec.task.reference).read_bytes() == run_dir.reference.read_bytes()
    assert ("commit", 3) == _stage(spec)


async def test_the_model_hears_how_its_actions_went_and_what_is_left(tmp_path: Path) -> None:
    """The observation is the model's only sense beside the frame."""
    host = FakeHost(verdict=Verdict.MODAL)

    _, model = await play(make_spec(tmp_path, host), [batch(click(), click()), {"actions": []}, None], host)

    assert [
        "This is the desktop at the start. A dialog is open and takes all input. Actions left: 5000 of 5000.",
        "All 2 actions were carried out. A dialog is open and takes all input. Actions left: 4998 of 5000.",
        (
            "Nothing was carried out, because the ActionBatch is invalid: actions: the list is empty; give at least "
            "one action. Invalid turns in a row: 1 of 10. Actions left: 4998 of 5000."
        ),
        (
            "Nothing was carried out, because the response had no usable computer_action call. Answer with exactly "
            "one. Such responses in a row: 1 of 10. Actions left: 4998 of 5000."
        ),
    ] == [observation.text for observation in model.observations]
    assert [1, 2, 3, 4] == [observation.turn for observation in model.observations]
    assert [0, 1, 1, 1] == [observation.sequence for observation in model.observations]
    assert all(observation.frame_path.exists() for observation in model.observations)


async def test_the_tenth_invalid_turn_in_a_row_ends_it(tmp_path: Path) -> None:
    """Nine may be followed by a valid one; any valid batch starts the count again, the lifetime count stays."""
    host = FakeHost()
    bad = batch({"type": "click", "x": 5000, "y": 1, "button": "left", "clicks": 1, "modifiers": []})

    state, model = await play(make_spec(tmp_path, host), [bad] * 9 + [batch(click())] + [bad] * 20, host)

    assert EndedBy.INVALID_TURNS == state.ended_by
    assert (10, 19, 20, 1) == (state.invalid_turns, state.invalid_turns_lifetime, state.turn, state.actions_used)
    assert 20 == len(model.observations)
    assert [click()] == host.performed


async def test_the_tenth_malformed_response_in_a_row_ends_it(tmp_path: Path) -> None:
    """The count is its own: an invalid batch in between breaks the row, and is not broken by it."""
    host = FakeHost()

    state, _ = await play(make_spec(tmp_path, host), [None] * 9 + [{"actions": []}] + [None] * 20, host)

    assert EndedBy.MALFORMED_RESPONSES == state.ended_by
    assert (20, 1, 19) == (state.turn, state.invalid_turns, state.retries.malformed)


@pytest.mark.parametrize("depth", [0, 2_000])
async def test_arguments_that_no_json_text_can_say_are_malformed(tmp_path: Path, depth: int) -> None:
    """A model must not be able to make its own rollout void by what it says."""
    host = FakeHost()
    said: object = "\ud800"
    for _ in range(depth):
        said = [said]

    state, model = await play(make_spec(tmp_path, host), [batch({"type": "type", "text": said})], host)

    assert (EndedBy.FINISHED, 1) == (state.ended_by, state.retries.malformed)
    assert "no usable computer_action call" in model.observations[1].text


async def test_a_limit_of_one_ends_at_the_first(tmp_path: Path) -> None:
    """The limits are the config's, not ours."""
    host = FakeHost()
    limits = Limits(invalid_turns=1)

    state, _ = await play(make_spec(tmp_path, host, limits=limits), [{"actions": 3}], host)

    assert (EndedBy.INVALID_TURNS, 1) == (state.ended_by, state.turn)


async def test_the_action_budget_ends_it_and_a_longer_batch_is_refused_whole(tmp_path: Path) -> None:
    """A batch that does not fit is an observation; the one that uses the budget up ends the rollout."""
    host = FakeHost()
    limits = Limits(actions=5)
    turns = [batch(*[click()] * 3), batch(*[click()] * 3), batch(click(), click())]

    state, _ = await play(make_spec(tmp_path, host, limits=limits), turns, host)

    assert (EndedBy.ACTION_BUDGET, 5, 1) == (state.ended_by, state.actions_used, state.invalid_turns_lifetime)
    assert 5 == len(host.performed)


async def test_finish_costs_one_action_and_its_batch_is_carried_out_first(tmp_path: Path) -> None:
    """Also when it uses up the budget: the model said that it was finished, so it was."""
    host = FakeHost()
    last = {"type": "finish", "status": "infeasible", "summary": "no"}

    state, _ = await play(make_spec(tmp_path, host, limits=Limits(actions=2)), [batch(click(), last)], host)

    assert (EndedBy.FINISHED, "infeasible", 2) == (state.ended_by, state.finish_status, state.actions_used)
    assert [click()] == host.performed


async def test_a_day_of_throttling_is_survived(tmp_path: Path) -> None:
    """429 answers never use up a budget, however long they last, and the wait is what the provider asked for."""
    host = FakeHost()

    state, model = await play(make_spec(tmp_path, host), [Throttled("429", retry_after_s=300)] * 300 + [FINISH], host)

    assert EndedBy.FINISHED == state.ended_by
    assert 300 == state.retries.rate_limited
    assert anyio.current_time() >= 90_000
    assert {1} == {observation.turn for observation in model.observations}


async def test_server_errors_never_end_it_and_wait_a_minute_at_most(tmp_path: Path) -> None:
    """An unconsumed turn that is sent again moves no mouse."""
    host = FakeHost()

    state, _ = await play(make_spec(tmp_path, host), [ServerError("503")] * 200 + [FINISH], host)

    assert (EndedBy.FINISHED, 200) == (state.ended_by, state.retries.server_error)
    assert 200 * 25 < anyio.current_time() <= 200 * 60


async def test_the_tenth_lost_answer_in_a_row_ends_it(tmp_path: Path) -> None:
    """Throttling in between does not begin the row again; an answer does, even a malformed one."""
    host = FakeHost()
    lost, busy = TransportFailed("read"), Throttled("429")
    items: list[object] = [lost] * 9 + [None] + [lost] * 5 + [busy] + [lost] * 5 + [FINISH]

    state, _ = await play(make_spec(tmp_path, host), items, host)

    assert EndedBy.TRANSPORT_FAILURES == state.ended_by
    assert state.error is not None
    assert Cause.PROVIDER_UNREACHABLE == state.error.cause
    assert (19, 1, 1) == (state.retries.transport, state.retries.rate_limited, state.retries.malformed)


async def test_waiting_is_said_in_the_run_state(tmp_path: Path) -> None:
    """An operator who looks at a rollout that stands still sees for what, since when, and until when."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    told: list[RunState] = []
    world = make_world(ScriptedModel([Throttled("429", retry_after_s=90), FINISH]), host, on_progress=told.append)

    await run_rollout(spec, world)

    waiting = [state.waiting for state in told if state.waiting]
    assert ["rate_limited"] == [item.for_ for item in waiting]
    assert waiting[0].until is not None
    assert 90 == (waiting[0].until - waiting[0].since).total_seconds()
    assert told[-1].waiting is None


async def test_a_provider_that_refuses_ends_it_void(tmp_path: Path) -> None:
    """Credentials that are not accepted are not the model's failure."""
    host = FakeHost()

    state, _ = await play(make_spec(tmp_path, host), [batch(click()), Refused("401: no such key")], host)

    assert EndedBy.PROVIDER_REFUSED == state.ended_by
    assert state.error is not None
    assert (Cause.PROVIDER_REFUSED, "401: no such key") == (state.error.cause, state.error.message)


REFUSAL = ModelReply(
    arguments=None,
    latency_s=1.0,
    text="I will not",
    usage=Usage(output=7),
    cost_usd=Decimal("0.01"),
    is_refusal=True,
)


async def test_refusals_in_a_row_are_recorded_and_paid_for(tmp_path: Path) -> None:
    """A refusal is a response without a usable call: asked again, and the model's end of it at the tenth."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)

    state, _ = await play(spec, [batch(click()), *[REFUSAL] * 10], host)

    assert (EndedBy.REFUSAL, None) == (state.ended_by, state.error)
    assert (Decimal("0.10"), 70, 11) == (state.cost_usd, state.usage.output, state.turn)
    assert ["acted", *["refusal"] * 10] == [
        line["result"] for line in read_jsonl(RunDir(Path(spec.run_dir)).model_turn_summaries)
    ]


async def test_a_streak_of_mixed_responses_is_not_a_refusal(tmp_path: Path) -> None:
    """What ended it is named for all ten, not for the last."""
    host = FakeHost()

    state, _ = await play(make_spec(tmp_path, host), [*[REFUSAL] * 4, None, *[REFUSAL] * 5], host)

    assert (EndedBy.MALFORMED_RESPONSES, 10) == (state.ended_by, state.retries.malformed)


@pytest.mark.parametrize(
    ("prices", "played", "says"),
    [
        (["0.40", "0.40", "0.40"], 3, "has cost $1.20"),
        (["0.40", None, "0.40"], 2, "unknown"),
    ],
)
async def test_a_cost_limit_ends_it_at_a_turn_boundary(
    tmp_path: Path, prices: list[str | None], played: int, says: str
) -> None:
    """The turn that passes the limit is carried out and recorded; a cost that nobody knows cannot be kept."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    spec = spec.model_copy(update={"limits": spec.limits.model_copy(update={"cost_usd": Decimal(1)})})
    replies = [
        ModelReply(arguments=batch(click()), latency_s=0.1, usage=Usage(), cost_usd=price and Decimal(price))
        for price in prices
    ]

    state, _ = await play(spec, [*replies, FINISH], host)

    assert (EndedBy.COST_LIMIT, played, played) == (state.ended_by, state.turn, len(host.performed))
    assert state.error is not None
    assert Cause.COST_LIMIT == state.error.cause
    assert says in state.error.message


async def test_a_failed_request_that_was_charged_is_paid_for(tmp_path: Path) -> None:
    """An answer that is an error may have cost tokens; a lost answer may have cost nobody knows what."""
    host = FakeHost()
    failed = ServerError("failed while it generated")
    failed.charge = Charge(Usage(input=9, output=1), Decimal("0.02"))
    lost = TransportFailed("cut off", is_charge_unknown=True)

    state, _ = await play(make_spec(tmp_path, host), [failed, lost, lost, FINISH], host)

    assert (Decimal("0.02"), 9, 2) == (state.cost_usd, state.usage.input, state.requests_of_unknown_cost)


async def test_an_unknown_cost_makes_the_sum_unknown(tmp_path: Path) -> None:
    """A sum that leaves something out is a wrong number; the tokens that are known are still added up."""
    host = FakeHost()
    replies = [
        ModelReply(arguments=batch(click()), latency_s=0.1, usage=Usage(input=5), cost_usd=None),
        ModelReply(arguments=FINISH, latency_s=0.1, usage=Usage(input=6), cost_usd=Decimal(1)),
    ]

    state, _ = await play(make_spec(tmp_path, host), list(replies), host)

    assert (None, 11) == (state.cost_usd, state.usage.input)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (ErrorCode.CAD_DIED, Cause.CAD_DIED),
        (ErrorCode.CAD_HUNG, Cause.CAD_HUNG),
        (ErrorCode.INDETERMINATE, Cause.ACTIONS_INDETERMINATE),
        (ErrorCode.LEASE_UNKNOWN, Cause.LEASE),
        (ErrorCode.UNREACHABLE, Cause.BROKER_UNREACHABLE),
    ],
)
async def test_a_host_that_fails_ends_it_with_the_true_cause(tmp_path: Path, code: ErrorCode, cause: Cause) -> None:
    """The record names what broke, not that something did."""

    def refuse(sequence: int) -> None:
        if sequence == 2:
            raise refusal(code)

    host = FakeHost(refuse=refuse)

    state, _ = await play(make_spec(tmp_path, host), [batch(click()), batch(click())], host)

    assert EndedBy.HOST_LOST == state.ended_by
    assert state.error is not None
    assert cause == state.error.cause
    assert (1, 2) == (state.actions_used, state.turn)


async def test_a_bug_is_a_record_too(tmp_path: Path) -> None:
    """A rollout that fails in a way that nobody thought of still says so in its run state."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)

    state, model = await play(spec, [batch(click()), ZeroDivisionError("oops")], host)

    assert EndedBy.ERROR == state.ended_by
    assert state.error is not None
    assert (Cause.PILOT_ERROR, "ZeroDivisionError: oops") == (state.error.cause, state.error.message)
    assert state == read_record(RunDir(Path(spec.run_dir)).run_state, RunState)
    assert model.is_closed


async def test_a_reference_that_is_not_the_tasks_ends_it_before_the_first_turn(tmp_path: Path) -> None:
    """A model that is shown another picture plays another task."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    Path(spec.task.reference).write_bytes(b"changed")

    state, model = await play(spec, [FINISH], host)

    assert state.error is not None
    assert "does not have the checksum" in state.error.message
    assert [] == model.observations


class FullDisk(CountingDisk):
    """Refuses every write of one file."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def replace(self, path: Path, content: bytes, durability: Durability) -> None:
        if path.name == self._name:
            raise DiskError(f"cannot write {path}: No space left on device")
        super().replace(path, content, durability)


@pytest.mark.parametrize("name", ["resume-checkpoint.json", "events.json", "000001.png", "frame_events.json"])
async def test_a_disk_that_refuses_ends_it_void(tmp_path: Path, name: str) -> None:
    """What cannot be recorded did not count; the run state says so if it can be written at all."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    world = make_world(ScriptedModel([batch(click()), FINISH]), host, disk=FullDisk(name))

    state = await run_rollout(spec, world)

    assert EndedBy.ERROR == state.ended_by
    assert state.error is not None
    assert Cause.DISK == state.error.cause
    assert state == read_record(RunDir(Path(spec.run_dir)).run_state, RunState)


async def test_a_run_state_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Then there is no return value, and the caller must know."""
    host = FakeHost()
    desktop = FakeDesktop(host)
    world = make_world(ScriptedModel([FINISH]), host, desktop=desktop, disk=FullDisk("run-state.json"))

    with pytest.raises(DiskError):
        await run_rollout(make_spec(tmp_path, host), world)

    assert desktop.is_closed


async def test_stop_ends_it_at_the_turn_boundary(tmp_path: Path) -> None:
    """The turn in play is finished and committed, so that a resume goes on behind it."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    model = ScriptedModel([batch(click())] * 50)
    world = make_world(model, host, on_progress=lambda state: world.stop.set() if state.turn == 3 else None)

    state = await run_rollout(spec, world)

    assert (EndedBy.INTERRUPTED, 3) == (state.ended_by, state.turn)
    assert state.error is not None
    assert Cause.INTERRUPTED == state.error.cause
    assert ("commit", 3) == _stage(spec)


async def test_stop_ends_a_wait_for_the_model_at_once(tmp_path: Path) -> None:
    """Nobody who pressed Ctrl-C waits for a provider's hour to pass."""
    host = FakeHost()
    world = make_world(ScriptedModel([Throttled("429", retry_after_s=3600)]), host)
    async with anyio.create_task_group() as tasks:

        async def stop_soon() -> None:
            await anyio.sleep(5)
            world.stop.set()

        tasks.start_soon(stop_soon)
        state = await run_rollout(make_spec(tmp_path, host), world)

    assert EndedBy.INTERRUPTED == state.ended_by
    assert 5 == pytest.approx(anyio.current_time())


async def test_cancellation_ends_it_at_once_and_still_says_how(tmp_path: Path) -> None:
    """The second Ctrl-C: no turn boundary, yet a run state; model and desktop are closed."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    model = ScriptedModel([batch(click()), Throttled("429", retry_after_s=3600)])
    desktop = FakeDesktop(host)
    with anyio.move_on_after(5) as scope:
        await run_rollout(spec, make_world(model, host, desktop=desktop))

    state = read_record(RunDir(Path(spec.run_dir)).run_state, RunState)
    assert scope.cancelled_caught
    assert (EndedBy.INTERRUPTED, 1) == (state.ended_by, state.turn)
    assert model.is_closed
    assert desktop.is_closed


async def test_the_run_state_is_told_after_every_turn(tmp_path: Path) -> None:
    """Progress is an event, not something to poll for."""
    host = FakeHost()
    told: list[RunState] = []
    items = [batch(click()), {"actions": []}, None, FINISH]

    await run_rollout(make_spec(tmp_path, host), make_world(ScriptedModel(items), host, on_progress=told.append))

    assert [0, 1, 2, 3, 4, 4] == [state.turn for state in told]
    assert [None] * 5 + [EndedBy.FINISHED] == [state.ended_by for state in told]


async def test_two_syncs_a_turn_and_a_twentieth_of_the_frame_in_bytes_however_long_it_lasts(tmp_path: Path) -> None:
    """A turn costs the same at the start and after hours: counted, not timed."""
    host = FakeHost()
    marks: dict[int, tuple[int, int]] = {}
    disk = CountingDisk()
    turn = batch(click(700, 500), type_text("circle 100,100 25\n"), click(900, 300))

    def mark(state: RunState) -> None:
        marks[state.turn] = (disk.written_bytes - disk.bytes_of.get("frames", 0), disk.syncs)

    world = make_world(ScriptedModel([turn] * 200 + [FINISH]), host, disk=disk, on_progress=mark)
    await run_rollout(make_spec(tmp_path, host), world)

    def per_turn(first: int, last: int) -> float:
        return (marks[last][0] - marks[first][0]) / (last - first)

    assert 2 == (marks[200][1] - marks[10][1]) / 190
    assert per_turn(1, 10) == pytest.approx(per_turn(20, 200), rel=0.10)
    # An 80 KB frame may be joined by 6 % in all; 5 % is what we allow ourselves.
    assert per_turn(1, 200) < 0.05 * 80_000


async def test_the_token_is_in_no_file(tmp_path: Path) -> None:
    """The spec has no place for it, and neither has the trace."""
    host = FakeHost()

    await play(make_spec(tmp_path, host), [batch(click()), FINISH], host)

    assert [] == [path for path in tmp_path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]


async def test_documents_are_valid_json_at_every_write(tmp_path: Path) -> None:
    """A reader may come at any moment."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    root = Path(spec.run_dir)

    def look() -> None:
        for path in root.glob("*.json"):
            json.loads(path.read_bytes())

    await run_rollout(spec, make_world(ScriptedModel([batch(click())] * 20), host, disk=CountingDisk(probe=look)))

    assert (root / "frame_events.json").exists()


def _stage(spec: RolloutSpec) -> tuple[str, int]:
    checkpoint = read_record(RunDir(Path(spec.run_dir)).checkpoint, Checkpoint)
    return checkpoint.stage, checkpoint.sequence


async def test_chance_is_handed_in(tmp_path: Path) -> None:
    """The same seed waits the same times, so a failure of a simulation can be replayed."""
    waits: list[list[float]] = []
    for _ in range(2):
        host = FakeHost()
        slept: list[float] = []

        async def sleep(pause_s: float, slept: list[float] = slept) -> None:
            slept.append(pause_s)

        ambient = Ambient(sleep=sleep, chance=random.Random(7))
        world = make_world(ScriptedModel([ServerError("500")] * 5), host, ambient=ambient)
        await run_rollout(make_spec(tmp_path / str(len(waits)), host), world)
        waits.append(slept)

    assert waits[0] == waits[1]
    assert 5 == len(waits[0])
