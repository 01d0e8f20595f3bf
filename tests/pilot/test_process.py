"""A pilot as its supervisor sees it: a child with a spec on stdin, and files."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from contract.phases import Cause, EndedBy
from contract.records import read_record
from contract.rollout_records import (
    BROKER_TOKEN_VARIABLE,
    DISK_EXIT_STATUS,
    PROVIDER_KEY_VARIABLE,
    RolloutSpec,
    RunState,
)
from contract.run_dir import RunDir
from tests.fakes import TOKEN, FakeBroker, FakeHost, batch, click, make_spec, read_jsonl, type_text
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SECRETS = {BROKER_TOKEN_VARIABLE: TOKEN, PROVIDER_KEY_VARIABLE: "canary-provider-key-77aa"}

# Starts a pilot on an inherited pipe, prints its pid, and waits to be killed.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", "-m", "pilot"], stdin=int(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def broker(host: FakeHost) -> Iterator[FakeBroker]:
    with FakeBroker(host) as broker:
        yield broker


def start(spec: RolloutSpec) -> subprocess.Popen[bytes]:
    """The pilot process, its spec sent; stdin stays open."""
    pilot = subprocess.Popen(
        [sys.executable, "-I", "-m", "pilot"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **SECRETS},
    )
    assert pilot.stdin is not None
    pilot.stdin.write(orjson.dumps(spec.model_dump(mode="json")) + b"\n")
    pilot.stdin.flush()
    return pilot


def end(pilot: subprocess.Popen[bytes], *, timeout_s: float = 30) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, progress lines and log of a pilot that ends by itself. Its stdin stays open until it has."""
    assert pilot.stdout is not None
    assert pilot.stderr is not None
    lines = [orjson.loads(line) for line in pilot.stdout]
    log = pilot.stderr.read().decode()
    status = pilot.wait(timeout_s)
    assert pilot.stdin is not None
    pilot.stdin.close()
    return status, lines, log


def oracle(tmp_path: Path, turns: int) -> Path:
    script = tmp_path / "oracle.json"
    batches = [batch(click(n, n), type_text(f"{n}\n"))["actions"] for n in range(turns)]
    script.write_bytes(orjson.dumps({"schema": "autocad-bench.oracle/1", "task_id": "bracket", "turns": batches}))
    return script


def final_state(spec: RolloutSpec) -> RunState:
    return read_record(RunDir(Path(spec.run_dir)).run_state, RunState)


def test_it_plays_a_rollout_and_says_so_on_stdout(tmp_path: Path, host: FakeHost, broker: FakeBroker) -> None:
    """One line per turn for the supervisor, exit status 0, and the run state as return value."""
    spec = make_spec(tmp_path, host, base_url=broker.base_url, provider="oracle", script=oracle(tmp_path, 3))

    status, lines, log = end(start(spec))

    assert (0, "") == (status, log)
    assert EndedBy.FINISHED == final_state(spec).ended_by
    assert [0, 1, 2, 3, 4, 4] == [line["turn"] for line in lines]
    assert {
        "turn": 4,
        "actions_used": 7,
        "cost_usd": "0",
        "requests_of_unknown_cost": 0,
        "phase": "handed_off",
        "waiting": None,
        "alarm": None,
        "ended_by": "finished",
        "cause": None,
    } == lines[-1]
    assert 6 == len(host.performed)


def test_no_secret_is_in_any_file_or_output(tmp_path: Path, host: FakeHost, broker: FakeBroker) -> None:
    """Both secrets start with the canary's word."""
    spec = make_spec(tmp_path, host, base_url=broker.base_url, provider="oracle", script=oracle(tmp_path, 2))

    _, lines, log = end(start(spec))

    assert [] == [path for path in tmp_path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    assert "canary" not in f"{lines}{log}"


def test_a_broken_spec_is_one_line_and_status_one(tmp_path: Path) -> None:
    """Not a traceback: the log is read by people."""
    pilot = subprocess.run(
        [sys.executable, "-I", "-m", "pilot"], input=b'{"schema": 1}\n', capture_output=True, check=False, timeout=30
    )

    assert (1, b"") == (pilot.returncode, pilot.stdout)
    assert pilot.stderr.startswith(b"pilot: the first line of stdin is not a valid RolloutSpec")
    assert b"Traceback" not in pilot.stderr


def test_a_full_disk_has_an_exit_status_of_its_own(tmp_path: Path, host: FakeHost, broker: FakeBroker) -> None:
    """Neither a file nor the log can say it then, and a log line that is refused must not change the status."""
    (tmp_path / "file").write_bytes(b"")
    spec = make_spec(tmp_path, host, base_url=broker.base_url).model_copy(
        update={"run_dir": str(tmp_path / "file" / "r")}
    )
    read_end, write_end = os.pipe()
    os.write(write_end, orjson.dumps(spec.model_dump(mode="json")) + b"\n")
    with open("/dev/full", "wb") as full, open(read_end, "rb") as stdin:
        command = [sys.executable, "-I", "-m", "pilot"]
        pilot = subprocess.run(command, stdin=stdin, stderr=full, check=False, timeout=30, env=SECRETS)
    os.close(write_end)

    assert DISK_EXIT_STATUS == pilot.returncode


def test_a_wrong_token_ends_it_with_the_brokers_word(tmp_path: Path, host: FakeHost) -> None:
    """And without the token."""
    with FakeBroker(host, token="another") as broker:
        spec = make_spec(tmp_path, host, base_url=broker.base_url)
        status, _, log = end(start(spec))

    state = final_state(spec)
    assert (0, "") == (status, log)
    assert EndedBy.HOST_LOST == state.ended_by
    assert state.error is not None
    assert (Cause.BROKER_REFUSED, "refused: unauthorized") == (state.error.cause, state.error.message)


class SilentBroker(FakeBroker):
    """Hears a request and answers nothing until the test is over."""

    def __init__(self, host: FakeHost) -> None:
        self.is_asked = threading.Event()
        self._is_over = threading.Event()
        super().__init__(host, meddle=self._keep_silent)

    def _keep_silent(self, handler: object) -> bool:
        self.is_asked.set()
        self._is_over.wait(30)
        return True

    def __exit__(self, *details: object) -> None:
        self._is_over.set()
        super().__exit__(*details)


@pytest.mark.slow
def test_the_end_of_stdin_is_its_end(tmp_path: Path, host: FakeHost) -> None:
    """However the supervisor died, its end of the pipe is closed by the kernel."""
    with SilentBroker(host) as broker:
        pilot = start(make_spec(tmp_path, host, base_url=broker.base_url))
        assert broker.is_asked.wait(30)
        assert pilot.stdin is not None
        pilot.stdin.close()

        assert 1 == pilot.wait(5)


@pytest.mark.slow
def test_the_death_of_its_parent_is_its_end(tmp_path: Path, host: FakeHost) -> None:
    """Also when somebody else still holds the pipe."""
    with SilentBroker(host) as broker:
        spec = make_spec(tmp_path, host, base_url=broker.base_url)
        read_end, write_end = os.pipe()
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(read_end)],
            stdout=subprocess.PIPE,
            pass_fds=(read_end,),
            env={"PATH": os.environ["PATH"], **SECRETS},
        )
        os.write(write_end, orjson.dumps(spec.model_dump(mode="json")) + b"\n")
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert broker.is_asked.wait(30)
        parent.kill()
        parent.wait(5)
        until(lambda: not _is_alive(pid))
        os.close(write_end)


@pytest.mark.slow
def test_sigterm_ends_it_at_the_turn_boundary(tmp_path: Path, host: FakeHost, broker: FakeBroker) -> None:
    """Status 0: the run state is final, and says interrupted."""
    spec = make_spec(tmp_path, host, base_url=broker.base_url, provider="oracle", script=oracle(tmp_path, 400))
    pilot = start(spec)
    assert pilot.stdout is not None
    for _ in range(5):
        pilot.stdout.readline()
    pilot.send_signal(signal.SIGTERM)

    status, _, _ = end(pilot)

    state = final_state(spec)
    assert (0, EndedBy.INTERRUPTED) == (status, state.ended_by)
    assert 4 <= state.turn < 400
    assert state.turn == host.last_sequence


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_sigkill_at_any_moment_and_resume_repeat_no_action(
    tmp_path: Path, host: FakeHost, broker: FakeBroker, seed: int
) -> None:
    """Real processes, real signals, six pilots for one rollout."""
    chance = random.Random(seed)
    turns = 60
    spec = make_spec(tmp_path, host, base_url=broker.base_url, provider="oracle", script=oracle(tmp_path, turns))
    for _ in range(6):
        pilot = start(spec)
        assert pilot.stdout is not None
        for _ in range(chance.randint(1, 9)):
            pilot.stdout.readline()
        time.sleep(chance.random() * 0.02)
        pilot.kill()
        pilot.communicate()
        spec = spec.model_copy(update={"is_resume": True})

    status, _, log = end(start(spec))

    run_dir = RunDir(Path(spec.run_dir))
    assert (0, EndedBy.FINISHED) == (status, final_state(spec).ended_by), log
    expected = [action for n in range(turns) for action in (click(n, n), type_text(f"{n}\n"))]
    assert expected == host.performed
    assert list(range(1, turns + 2)) == [line["turn"] for line in read_jsonl(run_dir.model_turns)]
    assert list(range(1, turns + 2)) == [line["sequence"] for line in read_jsonl(run_dir.input_receipts)]
    assert turns + 2 == len(list(run_dir.frames.iterdir()))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
