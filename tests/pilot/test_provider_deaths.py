"""Pilots of vendor models die anywhere, and the next ones go on exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from contract.phases import EndedBy
from contract.records import read_record
from contract.rollout_records import BROKER_TOKEN_VARIABLE, PROVIDER_KEY_VARIABLE, RunState
from tests.fakes import TOKEN, FakeBroker, KillAt, Killed, batch, click, read_jsonl
from tests.providers import faults, players
from tests.providers.players import THINKING, Play, Player, after_turn, clicks
from tests.providers.playing import MODELS, PROVIDER_MODELS, Killer, Rollout, host_for_tests
from tests.providers.simulator import Simulator

pytestmark = pytest.mark.slow
# Each kind of history that is made again in another way; the rest of them in `make e2e`.
ONE_OF_EACH_FORMAT = ("openai", "anthropic", "anthropic-fable", "fireworks", "bedrock")
ONE_OF_EACH_SDK = ("openai", "anthropic", "bedrock")
TELLS_OF_PROGRAMS = """
import runpy, sys
STARTS = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"}
def look(event, facts):
    if event in STARTS or event == "subprocess.Popen" and facts[3] is None:
        print("a program:", event, facts[:2], file=sys.stderr)
sys.addaudithook(look)
runpy.run_module("pilot", run_name="__main__", alter_sys=True)
"""
OTHERS = sorted(MODELS.keys() - set(ONE_OF_EACH_FORMAT))


@pytest.mark.parametrize("name", [*ONE_OF_EACH_FORMAT, *(pytest.param(name, marks=pytest.mark.e2e) for name in OTHERS)])
def test_a_pilot_that_dies_anywhere_goes_on_exactly(tmp_path: Path, name: str) -> None:
    """Before and after every write and host call: the same actions and totals, and at most one model call more."""
    with Simulator(deaths_player()) as simulator:
        whole = Rollout(simulator, tmp_path / "whole", name)
        expected = whole.play()
        calls = len(simulator.turns)
    at = 1
    while True:
        with Simulator(deaths_player()) as simulator:
            rollout = Rollout(simulator, tmp_path / str(at), name)
            if not dies_at(rollout, at):
                break
            before = len(simulator.turns)
            state = rollout.play(is_resume=True)
            more = len(simulator.turns) - calls

        assert EndedBy.FINISHED == state.ended_by, (at, state.error)
        assert whole.host.performed == rollout.host.performed, at
        assert arguments_of(whole) == arguments_of(rollout), at
        assert more in (0, 1), (at, before)
        assert [] == simulator.refused, at
        if not more:
            assert (expected.usage, expected.cost_usd) == (state.usage, state.cost_usd), at
        at += 1
    assert at > 20


def deaths_player() -> Player:
    """Valid, invalid and malformed answers: each leaves another kind of history behind."""
    return players.sequence(
        [
            Play(batch(click(1, 1)), thinking=THINKING),
            Play({"actions": []}),
            Play(batch(click(2, 2)), shape="text", text="Done."),
            Play(batch(click(2, 2), click(3, 3)), thinking=THINKING),
        ]
    )


def dies_at(rollout: Rollout, at: int) -> bool:
    """Whether the pilot died at its `at`-th write or host call; else it has ended before."""
    rollout.probe = KillAt(at)
    try:
        rollout.play()
    except (Killed, BaseExceptionGroup):
        return True
    finally:
        rollout.probe = lambda: None
    return False


def arguments_of(rollout: Rollout) -> list[Any]:
    """What the model said, turn by turn."""
    return [line["arguments"] for line in read_jsonl(rollout.run_dir.model_turns)]


@pytest.mark.parametrize("name", PROVIDER_MODELS)
def test_a_pilot_that_dies_waiting_for_an_answer_asks_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    """What is sent again is the turn that was not consumed; the provider answers it as before."""
    with Simulator(clicks(5), keeps_bodies=True) as simulator:
        provider = MODELS[name][0]
        simulator.player = after_turn(2, clicks(5), lambda: simulator.inject(provider, [faults.slow()]))
        killer = Killer()
        rollout = Rollout(simulator, tmp_path, name, probe=killer)

        async def play_and_die() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(rollout.playing)
                await anyio.to_thread.run_sync(simulator.wait_for_held)
                killer.is_dead = True
                tasks.cancel_scope.cancel()

        with pytest.raises((Killed, BaseExceptionGroup)):
            anyio.run(play_and_die)
        simulator.release()
        killer.is_dead = False
        state = rollout.play(is_resume=True)

    bodies = [seen.body for seen in simulator.turns]
    assert EndedBy.FINISHED == state.ended_by, state.error
    assert 7 == len(bodies)
    assert orjson.loads(bodies[3]) == orjson.loads(bodies[4])
    assert bodies[3] == bodies[4]
    assert list(range(5)) == [action["x"] for action in rollout.host.performed]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDER_MODELS)
def test_a_killed_process_is_resumed_by_another(tmp_path: Path, name: str) -> None:
    """SIGKILL while the provider thinks: the next process asks with the same bytes and draws what was to be drawn."""
    with Simulator(clicks(5), keeps_bodies=True) as simulator, FakeBroker(host_for_tests()) as broker:
        provider = MODELS[name][0]
        simulator.player = after_turn(2, clicks(5), lambda: simulator.inject(provider, [faults.slow()]))
        rollout = Rollout(simulator, tmp_path, name, host=broker.host, base_url=broker.base_url)
        pilot = start_process(rollout, is_resume=False)
        simulator.wait_for_held()
        pilot.kill()
        pilot.communicate(timeout=30)
        simulator.release()
        log = end_of(start_process(rollout, is_resume=True))

    state = read_record(rollout.run_dir.run_state, RunState)
    bodies = [seen.body for seen in simulator.turns]
    assert EndedBy.FINISHED == state.ended_by, (state.error, log)
    assert bodies[3] == bodies[4]
    assert list(range(5)) == [action["x"] for action in broker.host.performed]


@pytest.mark.parametrize("name", ONE_OF_EACH_SDK)
def test_a_pilot_starts_no_program_that_gets_its_environment(tmp_path: Path, name: str) -> None:
    """Keys are in it. SDKs ask for the platform's name, and Python asks a program for a part of that."""
    with Simulator(clicks(2)) as simulator, FakeBroker(host_for_tests()) as broker:
        rollout = Rollout(simulator, tmp_path, name, host=broker.host, base_url=broker.base_url)
        log = end_of(start_process(rollout, is_resume=False, run=("-c", TELLS_OF_PROGRAMS)))

    state = read_record(rollout.run_dir.run_state, RunState)
    assert EndedBy.FINISHED == state.ended_by, log
    assert [] == [line for line in log.splitlines() if line.startswith("a program:")]


def start_process(
    rollout: Rollout, *, is_resume: bool, run: tuple[str, str] = ("-m", "pilot")
) -> subprocess.Popen[bytes]:
    """The pilot as the supervisor starts it."""
    secrets = {BROKER_TOKEN_VARIABLE: TOKEN, PROVIDER_KEY_VARIABLE: rollout.key.get_secret_value()}
    pilot = subprocess.Popen(
        [sys.executable, "-I", *run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **secrets},
    )
    assert pilot.stdin is not None
    pilot.stdin.write(orjson.dumps(rollout.spec(is_resume=is_resume).model_dump(mode="json")) + b"\n")
    pilot.stdin.flush()
    return pilot


def end_of(pilot: subprocess.Popen[bytes]) -> str:
    """The log of a pilot that ends by itself. Its stdin stays open until it has, as its parent's would."""
    assert pilot.stdin is not None
    assert pilot.stdout is not None
    assert pilot.stderr is not None
    pilot.stdout.read()
    log = pilot.stderr.read().decode()
    pilot.wait(60)
    pilot.stdin.close()
    return log
