"""Pilots as processes and as tasks: their environment, their end, their progress, and how they are stopped."""

from __future__ import annotations

import json
import os
import select
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from contract.errors import DiskError
from contract.phases import Cause, EndedBy
from contract.rollout_records import (
    BROKER_TOKEN_VARIABLE,
    DISK_EXIT_STATUS,
    PROVIDER_KEY_VARIABLE,
    RolloutSpec,
    Waiting,
)
from contract.run_dir import RunDir
from supervisor.launch import ChildPilot, PilotEnd, PilotSecrets, Progress, SharedPilot
from supervisor.processes import is_alive
from tests.batch_fakes import spec_in, write_state

SECRETS = PilotSecrets(SecretStr("canary-broker-token-1"), SecretStr("canary-provider-key-2"))


def spec_for(tmp_path: Path) -> RolloutSpec:
    folder = tmp_path / "rollouts" / "r-0"
    folder.mkdir(parents=True, exist_ok=True)
    return spec_in(folder)


def pilot_that(body: str, tmp_path: Path) -> ChildPilot:
    """A child that runs this Python; `spec` is what stood on its stdin."""
    prelude = "import json, os, signal, sys, time\nspec = json.loads(sys.stdin.readline())\n"
    return ChildPilot(command=(sys.executable, "-I", "-c", prelude + body), scratch=tmp_path)


def play(
    pilot: ChildPilot | SharedPilot, tmp_path: Path, *, stop_after_s: float | None = None, cut_after_s: float = 30
) -> tuple[PilotEnd | None, list[Progress]]:
    seen: list[Progress] = []
    ends: list[PilotEnd] = []

    async def work() -> None:
        stop = anyio.Event()

        async def stop_later() -> None:
            if stop_after_s is not None:
                await anyio.sleep(stop_after_s)
                stop.set()

        async with anyio.create_task_group() as group:
            group.start_soon(stop_later)
            with anyio.move_on_after(cut_after_s):
                ends.append(
                    await pilot.play(
                        spec_for(tmp_path), SECRETS, log=tmp_path / "r-0.log", stop=stop, on_progress=seen.append
                    )
                )
            group.cancel_scope.cancel()

    anyio.run(work)
    return (ends[0] if ends else None), seen


def test_a_child_gets_its_two_secrets_and_an_environment_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    """Built from an allow-list: nothing of ours is inherited, and its home is gone afterwards."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-of-the-parent")
    pilot = pilot_that("open(spec['run_dir'] + '/env', 'w').write(json.dumps(dict(os.environ)))", tmp_path)

    end, _ = play(pilot, tmp_path)

    assert end is not None
    assert 0 == end.status
    environment = json.loads((tmp_path / "rollouts/r-0/env").read_text())
    # Python itself may add LC_CTYPE.
    assert {"PATH", "LANG", "TZ", "HOME", BROKER_TOKEN_VARIABLE, PROVIDER_KEY_VARIABLE} == {
        *environment.keys() - {"LC_CTYPE"}
    }
    assert "canary-broker-token-1" == environment[BROKER_TOKEN_VARIABLE]
    assert not Path(environment["HOME"]).exists()


def test_progress_lines_are_passed_on_and_other_lines_passed_over(tmp_path: Path) -> None:
    """What a child prints is input, also when the child is ours."""
    body = (
        'print(\'{"turn": 1, "actions_used": 4, "cost_usd": "0.10", "phase": "handed_off"}\', flush=True)\n'
        "print('hello'); print('[1]'); print('{\"turn\": null}', flush=True)\n"
        'print(\'{"turn": 2, "actions_used": 5, "cost_usd": null, "phase": "handed_off"}\', flush=True)\n'
        "time.sleep(0.2)"
    )

    _, seen = play(pilot_that(body, tmp_path), tmp_path)

    assert [(1, 4, "0.10"), (2, 5, "None")] == [(item.turn, item.actions_used, str(item.cost_usd)) for item in seen]


def test_what_a_child_waits_for_and_cannot_price_is_passed_on(tmp_path: Path) -> None:
    """The line of `pilot/process.py`, as a record again."""
    wait = {"for": "quota_exhausted", "since": "2024-05-01T00:00:00Z", "until": None, "alarm": "no answer for 5 min"}
    line = {"turn": 1, "actions_used": 4, "cost_usd": "0.10", "requests_of_unknown_cost": 2, "waiting": wait}

    _, seen = play(pilot_that(f"print({json.dumps(line)!r}, flush=True); time.sleep(0.2)", tmp_path), tmp_path)

    assert [Progress(1, 4, Decimal("0.10"), 2, Waiting.model_validate(wait))] == seen


def test_what_a_child_says_to_people_is_in_its_log(tmp_path: Path) -> None:
    """stderr goes to `logs/<rollout_id>.log` and nowhere else."""
    play(pilot_that("print('look here', file=sys.stderr)", tmp_path), tmp_path)

    assert "look here\n" == (tmp_path / "r-0.log").read_text()


def test_the_run_state_is_the_return_value(tmp_path: Path) -> None:
    """Exit 0 and a final state: the pilot has said how it ended."""
    write_state(RunDir(Path(spec_for(tmp_path).run_dir)), 3, EndedBy.FINISHED)

    end, _ = play(pilot_that("", tmp_path), tmp_path)

    assert end is not None
    assert end.is_final
    assert end.state is not None
    assert 3 == end.state.turn


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("sys.exit(3)", 3, "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "killed by SIGKILL"),
        ("raise RuntimeError('a bug')", 1, "exit status 1"),
    ],
)
def test_a_child_that_crashes_is_not_final_whatever_it_wrote(tmp_path: Path, body: str, status: int, says: str) -> None:
    """An exit status that is not 0 means that the last words may not be the last."""
    write_state(RunDir(Path(spec_for(tmp_path).run_dir)), 3, EndedBy.FINISHED)

    end, _ = play(pilot_that(body, tmp_path), tmp_path)

    assert end is not None
    assert (status, False) == (end.status, end.is_final)
    assert says in end.problem


def test_a_child_whose_disk_refused_its_last_word_is_a_disk_error(tmp_path: Path) -> None:
    """As in shared mode: the cause must not depend on whether a later write happens to succeed."""
    with pytest.raises(ExceptionGroup) as caught:
        play(pilot_that(f"sys.exit({DISK_EXIT_STATUS})", tmp_path), tmp_path)

    assert caught.group_contains(DiskError, match="the pilot cannot write into")


def test_stop_reaches_a_child_as_sigterm(tmp_path: Path) -> None:
    """It ends its turn, says `interrupted` and exits with 0."""
    body = (
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))\n"
        "open(spec['run_dir'] + '/ready', 'w').close(); time.sleep(60)"
    )
    write_state(RunDir(Path(spec_for(tmp_path).run_dir)), 3, EndedBy.INTERRUPTED)

    end, _ = play(pilot_that(body, tmp_path), tmp_path, stop_after_s=0.5)

    assert end is not None
    assert (0, True) == (end.status, end.is_final)


def test_a_cancelled_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """With all that it started in its group, and nobody has to wait."""
    body = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if (child := os.fork()) == 0: time.sleep(600)\n"
        "open(spec['run_dir'] + '/pids', 'w').write(f'{os.getpid()} {child}'); time.sleep(600)"
    )

    end, _ = play(pilot_that(body, tmp_path), tmp_path, cut_after_s=1.0)

    pids = [int(pid) for pid in (tmp_path / "rollouts/r-0/pids").read_text().split()]
    assert end is None
    assert [False, False] == [_lives(pid) for pid in pids]


def _lives(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    # SIGKILL was sent; what is left is the time that the kernel takes.
    ended, _, _ = select.select([descriptor], [], [], 1.0)
    os.close(descriptor)
    return not ended


def test_a_child_is_known_by_number_and_start_time(tmp_path: Path) -> None:
    """A number alone may be somebody else's by now."""
    play(pilot_that("open(spec['run_dir'] + '/pid', 'w').write(str(os.getpid()))", tmp_path), tmp_path)

    assert not is_alive(int((tmp_path / "rollouts/r-0/pid").read_text()), 1.0)
    assert not is_alive(os.getpid(), 1.0)


def test_a_shared_pilot_that_cannot_play_ends_alone(tmp_path: Path) -> None:
    """Nobody listens at its host's address: the task ends with a record or a problem, and raises nothing."""
    end, _ = play(SharedPilot(max_concurrency=2), tmp_path, cut_after_s=25)

    assert end is not None
    if end.is_final:
        assert end.state is not None
        assert end.state.error is not None
        assert Cause.BROKER_UNREACHABLE == end.state.error.cause
    else:
        assert end.problem
