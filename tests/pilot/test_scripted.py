"""Models that need no account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from contract.actions import InvalidActions, parse_action_batch
from contract.errors import PilotError, StateError
from contract.phases import Cause, EndedBy
from contract.rollout_records import ArtifactRef
from contract.run_dir import RunDir
from pilot.models.registry import AbsentModel, build_model
from pilot.models.scripted import RANDOM_TURNS, Oracle, Random, Replay
from pilot.ports import Model, Observation
from pilot.rollout import run_rollout
from tests.fakes import FINISH, FakeHost, ScriptedModel, batch, click, make_spec, make_world, read_jsonl, type_text

pytestmark = pytest.mark.anyio

OBSERVATION = Observation(
    turn=1,
    sequence=0,
    frame=ArtifactRef(path="frames/000000.png", sha256="0" * 64, size_bytes=1),
    frame_path=Path("frames/000000.png"),
    after="start",
    text="",
    actions_left=5_000,
)


async def arguments_of(model: Model, turns: int) -> list[Any]:
    return [(await model.next_turn(OBSERVATION)).arguments for _ in range(turns)]


def oracle_script(tmp_path: Path, turns: list[list[dict[str, Any]]]) -> Path:
    script = tmp_path / "oracle.json"
    script.write_bytes(orjson.dumps({"schema": "autocad-bench.oracle/1", "task_id": "bracket", "turns": turns}))
    return script


async def test_the_oracle_plays_its_script_and_finishes(tmp_path: Path) -> None:
    """Also when the script forgot to."""
    host = FakeHost()
    script = oracle_script(tmp_path, [[click(1, 1), type_text("line\n")], [click(2, 2)]])
    spec = make_spec(tmp_path, host, provider="oracle", script=script)

    state = await run_rollout(spec, make_world(build_model(spec, None), host))

    assert (EndedBy.FINISHED, 3, 4) == (state.ended_by, state.turn, state.actions_used)
    assert "0" == str(state.cost_usd)
    assert [click(1, 1), type_text("line\n"), click(2, 2)] == host.performed


async def test_noop_leaves_the_drawing_alone(tmp_path: Path) -> None:
    """It is the floor of every score."""
    host = FakeHost()
    spec = make_spec(tmp_path, host, provider="noop")

    state = await run_rollout(spec, make_world(build_model(spec, None), host))

    assert (EndedBy.FINISHED, 1) == (state.ended_by, state.turn)
    assert [] == host.performed


async def test_random_is_the_same_for_a_seed_and_always_valid() -> None:
    """A rollout of chance can be repeated like any other."""
    turns = await arguments_of(Random(3), RANDOM_TURNS + 1)

    assert turns == await arguments_of(Random(3), RANDOM_TURNS + 1)
    assert turns != await arguments_of(Random(4), RANDOM_TURNS + 1)
    assert [] == [turn for turn in turns if isinstance(parse_action_batch(turn, budget=10), InvalidActions)]
    assert "finish" == turns[-1]["actions"][-1]["type"]
    kinds = {action["type"] for turn in turns for action in turn["actions"]}
    assert {"move", "click", "drag", "type", "keypress", "finish"} == kinds


@pytest.mark.parametrize("build", [lambda: Random(5), None], ids=["random", "oracle"])
async def test_a_restored_model_goes_on_where_the_state_was_taken(tmp_path: Path, build: Any) -> None:
    """The state does not grow: it is a number."""
    build = build or (lambda: Oracle(oracle_script(tmp_path, [[click(n, n)] for n in range(20)])))
    whole = await arguments_of(build(), 12)
    first = build()
    await arguments_of(first, 7)
    second = build()

    second.restore(first.state())

    assert {"played": 7} == first.state()
    assert whole[7:] == await arguments_of(second, 5)


async def test_replay_plays_a_stored_trace_bad_turns_and_all(tmp_path: Path) -> None:
    """The same batches reach the host, and the same turns are invalid and malformed."""
    turns: list[Any] = [batch(click(1, 1)), None, {"actions": []}, batch(type_text("é\n")), None, FINISH]
    host = FakeHost()
    first = make_spec(tmp_path, host, rollout_id="first")
    await run_rollout(first, make_world(ScriptedModel(turns), host))
    again = FakeHost()
    second = make_spec(tmp_path, again, rollout_id="second", provider="replay", script=RunDir(Path(first.run_dir)).root)

    state = await run_rollout(second, make_world(build_model(second, None), again))

    def played(run_dir: str) -> list[Any]:
        return [line["arguments"] for line in read_jsonl(RunDir(Path(run_dir)).model_turns)]

    assert EndedBy.FINISHED == state.ended_by
    assert host.performed == again.performed
    assert played(first.run_dir) == played(second.run_dir) == turns


async def test_replay_of_a_torn_trace_finishes_where_it_was_torn(tmp_path: Path) -> None:
    """A killed pilot's trace ends in half a line."""
    trace = tmp_path / "model_turns.jsonl"
    trace.write_bytes(orjson.dumps({"arguments": batch(click())}) + b'\n{"argum')

    turns = await arguments_of(Replay(trace), 2)

    assert batch(click()) == turns[0]
    assert "finish" == turns[1]["actions"][0]["type"]


async def test_replay_goes_on_in_the_middle(tmp_path: Path) -> None:
    """A long trace is not held in memory; the place in it is found again."""
    trace = tmp_path / "model_turns.jsonl"
    trace.write_bytes(b"".join(orjson.dumps({"arguments": n}) + b"\n" for n in range(50)))
    model = Replay(trace)

    model.restore({"played": 40})

    assert [40, 41, 42] == await arguments_of(model, 3)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"nonsense\n", b'{"text": ""}\n'])
async def test_a_script_that_is_none_ends_the_rollout_with_a_reason(tmp_path: Path, content: bytes) -> None:
    """Nothing is drawn from half a script."""
    script = tmp_path / "script"
    script.write_bytes(content)
    host = FakeHost()
    spec = make_spec(tmp_path, host, provider="oracle", script=script)

    state = await run_rollout(spec, make_world(build_model(spec, None), host))

    assert EndedBy.ERROR == state.ended_by
    assert state.error is not None
    assert "is not a valid OracleScript" in state.error.message


async def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    """With what to name instead."""
    with pytest.raises(StateError, match=r"cannot replay .*: No such file or directory"):
        await arguments_of(Replay(tmp_path / "none.jsonl"), 1)


@pytest.mark.parametrize("state", [{}, {"played": -1}, {"played": "1"}, {"played": 1, "more": 2}])
def test_a_state_that_is_not_ours_is_refused(state: dict[str, Any]) -> None:
    """The checkpoint may be of another model."""
    with pytest.raises(StateError, match="is not the state of a scripted model"):
        Random(1).restore(state)


async def test_a_model_without_facts_ends_its_rollout_with_a_reason(tmp_path: Path) -> None:
    """The same record as any other end, not a pilot that died."""
    host = FakeHost()
    spec = make_spec(tmp_path, host, provider="openai")
    with pytest.raises(PilotError, match="the facts of openai/reference are missing") as caught:
        build_model(spec, None)

    state = await run_rollout(spec, make_world(AbsentModel(caught.value), host))

    assert EndedBy.ERROR == state.ended_by
    assert state.error is not None
    assert (Cause.PILOT_ERROR, caught.value.message) == (state.error.cause, state.error.message)


def test_a_model_that_needs_a_script_says_so(tmp_path: Path) -> None:
    """An oracle without one has nothing to play."""
    with pytest.raises(PilotError, match="'oracle' needs a script"):
        build_model(make_spec(tmp_path, FakeHost(), provider="oracle"), None)
