"""A pilot may die at any moment: the next one goes on exactly, or says why not."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from contract.phases import Cause, EndedBy
from contract.pricing import Usage
from contract.records import Durability, read_record, replace_file, write_compact_record
from contract.rollout_records import Checkpoint, RolloutSpec, RunState
from contract.run_dir import RunDir
from pilot.ports import Charge, ModelReply, Observation, ServerError, TransportFailed
from pilot.rollout import run_rollout
from tests.fakes import (
    CountingDisk,
    FakeDesktop,
    FakeHost,
    KillAt,
    Killed,
    ScriptedModel,
    batch,
    click,
    make_spec,
    make_world,
    read_jsonl,
    type_text,
)

pytestmark = pytest.mark.anyio

TURNS: list[Any] = [
    batch(click(1, 1), type_text("line\n")),
    {"actions": []},
    batch(click(2, 2)),
    None,
    batch(click(3, 3), click(4, 4)),
    batch(click(5, 5), {"type": "finish", "status": "done", "summary": "drawn"}),
]


async def play_killed_at(spec: RolloutSpec, host: FakeHost, at: int) -> bool:
    """Play until the `at`-th probe; True when it died there, False when it ended before."""
    kill = KillAt(at)
    desktop = FakeDesktop(host, probe=kill)
    world = make_world(ScriptedModel(TURNS), host, desktop=desktop, disk=CountingDisk(probe=kill))
    try:
        await run_rollout(spec, world)
    except Killed:
        return True
    return False


def trace_of(spec: RolloutSpec) -> dict[str, Any]:
    """Everything of the trace but times, and whether a receipt was the host's second answer."""
    run_dir = RunDir(Path(spec.run_dir))
    lines = {
        path.name: [
            {key: value for key, value in line.items() if key not in {"at", "is_replay"}} for line in read_jsonl(path)
        ]
        for path in (run_dir.model_turns, run_dir.model_turn_summaries, run_dir.input_receipts)
    }
    state = read_record(run_dir.run_state, RunState).model_dump(exclude={"updated_at"})
    frames = {path.name: path.read_bytes() for path in run_dir.frames.iterdir()}
    return {**lines, "state": state, "frames": frames, "frame_events": run_dir.frame_events.read_bytes()}


@pytest.mark.parametrize(("first", "step"), [(2, 5), pytest.param(1, 1, marks=pytest.mark.slow)], ids=["some", "every"])
async def test_killed_anywhere_and_resumed_it_leaves_the_same_trace(tmp_path: Path, first: int, step: int) -> None:
    """Before and after every write and every call to the host: nothing is lost, no action is done twice."""
    host = FakeHost()
    spec = make_spec(tmp_path / "whole", host)
    await run_rollout(spec, make_world(ScriptedModel(TURNS), host))
    expected, performed = trace_of(spec), host.performed

    kills = 0
    for at in range(first, 1_000, step):
        host = FakeHost()
        spec = make_spec(tmp_path / str(at), host)
        if not await play_killed_at(spec, host, at):
            break
        kills += 1
        if read_final(spec):
            continue
        resumed = spec.model_copy(update={"is_resume": True})
        state = await run_rollout(resumed, make_world(ScriptedModel(TURNS), host))

        assert EndedBy.FINISHED == state.ended_by, f"killed at {at}: {state.error}"
        assert performed == host.performed, f"killed at {at}"
        assert expected == trace_of(spec), f"killed at {at}"

    assert kills * step > 60


async def test_killed_again_and_again_it_still_ends_the_same(tmp_path: Path) -> None:
    """A resumed pilot may be killed like any other."""
    host = FakeHost()
    spec = make_spec(tmp_path / "whole", host)
    await run_rollout(spec, make_world(ScriptedModel(TURNS), host))
    expected, performed = trace_of(spec), host.performed
    host = FakeHost()
    spec = make_spec(tmp_path / "killed", host)
    at, pilots = 9, 0
    while await play_killed_at(spec, host, at):
        spec = spec.model_copy(update={"is_resume": True})
        pilots += 1
        # Far enough for each to get a little further than the one before.
        at = 9 + pilots

    assert pilots > 3
    assert performed == host.performed
    assert expected == trace_of(spec)


def read_final(spec: RolloutSpec) -> bool:
    """True when the killed pilot had already written how it ended."""
    path = RunDir(Path(spec.run_dir)).run_state
    return path.exists() and read_record(path, RunState).ended_by is not None


async def killed_in_turn_three(tmp_path: Path) -> tuple[RolloutSpec, FakeHost]:
    """A rollout whose pilot died after an intent, and the spec to resume it with."""
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    run_dir = RunDir(Path(spec.run_dir))
    # Earlier probes belong to the first two turns.
    for at in range(25, 1_000):
        host = FakeHost()
        await play_killed_at(spec, host, at)
        if run_dir.checkpoint.exists() and read_record(run_dir.checkpoint, Checkpoint).turn == 3:
            return spec.model_copy(update={"is_resume": True}), host
    raise AssertionError("turn 3 has no checkpoint")


async def resume(spec: RolloutSpec, host: FakeHost) -> str:
    """Resume, and return the reason for which it was refused; nothing may have been done or asked."""
    performed = list(host.performed)
    model = ScriptedModel(TURNS)
    state = await run_rollout(spec, make_world(model, host))

    assert EndedBy.ERROR == state.ended_by
    assert state.error is not None
    assert Cause.RESUME_MISMATCH == state.error.cause
    assert performed == host.performed
    assert [] == model.observations
    return state.error.message


async def test_another_boot_is_another_host(tmp_path: Path) -> None:
    """What a restarted host had on its screen is gone."""
    spec, host = await killed_in_turn_three(tmp_path)
    host.boot_id = "boot-2"

    assert "boot_id is 'boot-1' for this rollout and 'boot-2' for the host" == await resume(spec, host)


async def test_another_lease_is_another_rollout(tmp_path: Path) -> None:
    """Somebody else may have drawn in between."""
    spec, host = await killed_in_turn_three(tmp_path)
    host.lease_generation = 2

    assert "lease_generation is 1 for this rollout and 2 for the host" == await resume(spec, host)


async def test_a_checkpoint_of_another_host_is_not_ours(tmp_path: Path) -> None:
    """The spec that the supervisor hands over and the checkpoint must speak of one host."""
    spec, host = await killed_in_turn_three(tmp_path)
    host.host_id = "h-other"
    spec = spec.model_copy(update={"host": host.address()})

    assert "host_id is 'h-other' for this rollout and 'h-fake' for the checkpoint" == await resume(spec, host)


async def test_a_host_that_has_gone_on_is_refused(tmp_path: Path) -> None:
    """Two sequences further: somebody acted whom the checkpoint does not know."""
    spec, host = await killed_in_turn_three(tmp_path)
    for sequence in (2, 3):
        host.receipts[sequence] = host.receipts[1].model_copy(update={"sequence": sequence})

    assert "the host's last sequence is 3, the checkpoint's is 1 or 2" == await resume(spec, host)


@pytest.mark.parametrize("name", ["reference.png", "frames/000001.png"])
async def test_a_changed_artifact_is_refused(tmp_path: Path, name: str) -> None:
    """The model would be shown something else than what it was shown."""
    spec, host = await killed_in_turn_three(tmp_path)
    path = Path(spec.run_dir) / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    assert f"{name} does not have the checksum that the checkpoint names" == await resume(spec, host)


async def test_a_missing_artifact_is_refused(tmp_path: Path) -> None:
    """Also when the whole file is gone."""
    spec, host = await killed_in_turn_three(tmp_path)
    (Path(spec.run_dir) / "reference.png").unlink()

    assert "cannot read reference.png: No such file or directory" == await resume(spec, host)


async def test_a_torn_checkpoint_is_refused(tmp_path: Path) -> None:
    """Guessing is worse than a void rollout."""
    spec, host = await killed_in_turn_three(tmp_path)
    path = RunDir(Path(spec.run_dir)).checkpoint
    replace_file(path, path.read_bytes()[:-40], durability=Durability.PROCESS)

    assert "is not a valid Checkpoint" in await resume(spec, host)


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        (b'"x":2', b'"x":3'),
        (b'"turn":3', b'"turn":2'),
        (b'"actions_used":2', b'"actions_used":0'),
        (b"row: 1", b"row: 9"),
    ],
    ids=["actions", "turn", "budget", "words"],
)
async def test_a_changed_checkpoint_is_refused(tmp_path: Path, written: bytes, changed: bytes) -> None:
    """Whatever a damaged disk made of it, going on from it would not be exact."""
    spec, host = await killed_in_turn_three(tmp_path)
    path = RunDir(Path(spec.run_dir)).checkpoint
    content = path.read_bytes()
    replace_file(path, content.replace(written, changed), durability=Durability.PROCESS)

    assert content != path.read_bytes()
    assert "resume-checkpoint.json does not have the checksum that it names" == await resume(spec, host)


async def test_an_intent_of_other_actions_than_the_host_was_promised_is_refused(tmp_path: Path) -> None:
    """The digest is what its receipts go by."""
    spec, host = await killed_in_turn_three(tmp_path)
    path = RunDir(Path(spec.run_dir)).checkpoint
    checkpoint = read_record(path, Checkpoint).model_copy(update={"intent_digest": "0" * 64})
    write_compact_record(path, checkpoint.sealed(), durability=Durability.PROCESS)

    assert "the checkpoint's actions do not have the digest that it names" == await resume(spec, host)


@pytest.mark.parametrize("name", ["model_turns.jsonl", "model_turn_summaries.jsonl", "input_receipts.jsonl"])
@pytest.mark.parametrize("damage", ["first line gone", "file gone", "a field gone", "no object"])
async def test_a_trace_that_lacks_what_the_checkpoint_counts_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    """Lines are not synced one by one, so a crash of the machine may lose some that a checkpoint is behind."""
    spec, host = await killed_in_turn_three(tmp_path)
    path = Path(spec.run_dir) / name
    first, *rest = path.read_bytes().splitlines(keepends=True)
    match damage:
        case "first line gone":
            path.write_bytes(b"".join(rest))
        case "file gone":
            path.unlink()
        case "a field gone":
            path.write_bytes(first.replace(b'"at":', b'"when":') + b"".join(rest))
        case _:
            path.write_bytes(b"[1]\n" + first + b"".join(rest))

    assert name in await resume(spec, host)


async def test_without_a_checkpoint_nothing_was_sent_so_it_starts(tmp_path: Path) -> None:
    """A pilot that died before its first reply loses nothing."""
    host = FakeHost()
    spec = make_spec(tmp_path, host, is_resume=True)

    state = await run_rollout(spec, make_world(ScriptedModel(TURNS), host))

    assert EndedBy.FINISHED == state.ended_by


async def test_without_a_checkpoint_a_host_that_has_acted_is_refused(tmp_path: Path) -> None:
    """Then the checkpoint is lost, and with it what was done."""
    spec, host = await killed_in_turn_three(tmp_path)
    RunDir(Path(spec.run_dir)).checkpoint.unlink()

    assert "the host's last sequence is 1, the checkpoint's is 0" == await resume(spec, host)


class PayingModel(ScriptedModel):
    """Fails once in each turn, charged or not, before it answers; every reply costs a dollar."""

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self._failed: set[int] = set()

    async def next_turn(self, observation: Observation) -> ModelReply:
        if observation.turn not in self._failed:
            self._failed.add(observation.turn)
            if observation.turn == 2:
                raise TransportFailed("the answer was lost", is_charge_unknown=True)
            error = ServerError("a failure that is charged")
            error.charge = Charge(Usage(input=7), Decimal("0.10"))
            raise error
        reply = await super().next_turn(observation)
        return replace(reply, usage=Usage(input=100), cost_usd=Decimal(1))


@pytest.mark.slow
async def test_what_failed_requests_cost_survives_a_death(tmp_path: Path) -> None:
    """Killed at any write or call: the resumed bill is the unkilled twin's, and at most one turn was paid twice."""
    twin_spec = make_spec(tmp_path / "twin", host := FakeHost())
    twin = await run_rollout(twin_spec, make_world(PayingModel(TURNS), host))
    assert twin.cost_usd is not None
    extra: set[Decimal] = set()
    for at in range(1, 200, 2):
        host = FakeHost()
        spec = make_spec(tmp_path / f"at-{at}", host)
        kill = KillAt(at)
        model = PayingModel(TURNS)
        world = make_world(model, host, desktop=FakeDesktop(host, probe=kill), disk=CountingDisk(probe=kill))
        try:
            await run_rollout(spec, world)
            break
        except Killed:
            pass
        again = PayingModel(TURNS)
        run_dir = RunDir(Path(spec.run_dir))
        failed = model._failed
        again._failed = set(failed)
        if run_dir.run_state.exists():
            state = read_record(run_dir.run_state, RunState)
            # A failure that was not written down yet happens once more, for the twin's sake.
            counted = state.retries.server_error + state.retries.transport
            again._failed = set(sorted(failed)[:counted])
        end = await run_rollout(spec.model_copy(update={"is_resume": True}), make_world(again, host))

        assert end.cost_usd is not None
        assert (twin.retries.server_error, twin.retries.transport) == (end.retries.server_error, end.retries.transport)
        assert twin.requests_of_unknown_cost == end.requests_of_unknown_cost
        extra.add(end.cost_usd - twin.cost_usd)

    # A reply that was lost before it was written down is paid by nobody's books; one that was written down is.
    assert {Decimal(0), Decimal(1)} == extra


async def test_a_reply_that_was_paid_for_and_lost_is_not_forgotten(tmp_path: Path) -> None:
    """A pilot that dies between the reply and its intent asks again; the bill has both."""
    reply = ModelReply(arguments=TURNS[0], latency_s=0.0, cost_usd=None)
    host = FakeHost()
    spec = make_spec(tmp_path, host)
    run_dir = RunDir(Path(spec.run_dir))
    for at in range(1, 100):
        kill = KillAt(at)
        world = make_world(ScriptedModel([batch(click()), reply]), host := FakeHost(), disk=CountingDisk(probe=kill))
        with pytest.raises(Killed):
            await run_rollout(spec, world)
        if run_dir.model_turns.exists() and len(run_dir.model_turns.read_bytes().splitlines()) == 2:
            break

    await run_rollout(
        spec.model_copy(update={"is_resume": True}), make_world(ScriptedModel([batch(click()), *TURNS]), host)
    )

    state = read_record(run_dir.run_state, RunState)
    assert state.cost_usd is None
    assert [1, 2] == [line["turn"] for line in read_jsonl(run_dir.model_turns)][:2]
