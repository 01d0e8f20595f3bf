"""The broker as a process: how it starts, and that nothing outlives it or its owner, however they die."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from pydantic import SecretStr

from contract.actions import Keypress, TypeText, Wait
from contract.broker_api import ErrorCode, Lease, LeaseRequest
from contract.broker_client import BrokerClient, Patience
from contract.errors import BrokerError
from tests.waiting import until

pytestmark = pytest.mark.slow

TOKEN = "canary-token-of-a-broker-process"
CIRCLE = TypeText(text="circle 600,400 220\n")
DRIVERS = ["paper", pytest.param("librecad", marks=pytest.mark.desktop)]


class BrokerProcess:
    """`python -I -m broker` as the supervisor starts it."""

    def __init__(self, state_dir: Path, tag: str, **start: Any) -> None:
        line = {
            "schema": "autocad-bench.broker-start/1",
            "host_id": "h-test",
            "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
            "driver": "paper",
            "state_dir": str(state_dir),
            "lease_s": 60,
            **start,
        }
        env = {"PATH": os.environ["PATH"], "AUTOCAD_BENCH_HOST_ID": "h-test", "AUTOCAD_BENCH_ROLLOUT_ID": tag}
        self.tag = tag
        self.popen = subprocess.Popen(
            [sys.executable, "-I", "-m", "broker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        assert self.popen.stdin
        assert self.popen.stdout
        self.popen.stdin.write(json.dumps(line).encode() + b"\n")
        self.popen.stdin.flush()
        self.said: dict[str, Any] = json.loads(self.popen.stdout.readline())

    def client(self, *, read_s: float = 20.0) -> BrokerClient:
        """A client that asks once."""
        url = f"http://127.0.0.1:{self.said['port']}"
        return BrokerClient(url, SecretStr(TOKEN), patience=Patience(read_s=read_s, tries=1))

    def tagged(self) -> list[str]:
        """The living processes that carry this broker's tag; zombies are dead."""
        return sorted(name for _, name in self._tagged())

    def pid_of(self, name: str) -> int:
        """Its process of this name."""
        return next(pid for pid, found in self._tagged() if found == name)

    def _tagged(self) -> list[tuple[int, str]]:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"AUTOCAD_BENCH_ROLLOUT_ID={self.tag}".encode() in (
                    entry / "environ"
                ).read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        found.append((int(entry.name), (entry / "comm").read_text().strip()))
        return found

    def wait_until_gone(self) -> None:
        """Until nothing of it is alive. How long that takes is what `scripts/bench_desktop.py` prints."""
        until(lambda: not self.tagged())

    def close(self) -> None:
        """End it."""
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(5)
        self.popen.kill()
        self.popen.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts broker processes; `state_dir` may be that of an earlier one."""
    made: list[BrokerProcess] = []

    def build(*, state_dir: Path | None = None, **options: Any) -> BrokerProcess:
        folder = state_dir or tmp_path / f"state-{len(made)}"
        if folder.parent == tmp_path:
            folder.mkdir(exist_ok=True)
        made.append(BrokerProcess(folder, f"r-{os.getpid()}-{tmp_path.name}-{len(made)}", **options))
        return made[-1]

    yield build
    for broker in made:
        broker.close()


def handed_off(client: BrokerClient, seed: bytes, make_reset_request: Any, *, lease_s: float = 60) -> Lease:
    """Lease and reset, as before a rollout."""
    lease = client.lease(LeaseRequest(request_id="lease-1", rollout_id="rollout", lease_s=lease_s))
    client.reset(make_reset_request(lease, seed))
    return lease


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_owners_death_is_the_desktops_death(start: Any, seed: bytes, make_reset_request: Any, driver: str) -> None:
    """The supervisor was killed: its end of stdin closes, also under a long wait."""
    broker = start(driver=driver)
    client = broker.client(read_s=0.5)
    lease = handed_off(broker.client(), seed, make_reset_request)
    with pytest.raises(BrokerError):
        client.act(lease_id=lease.lease_id, sequence=1, actions=[Wait(seconds=30)], wait_s=-60)
    alive = broker.tagged()
    broker.popen.stdin.close()

    assert alive
    broker.wait_until_gone()
    assert broker.popen.wait(1) == 0


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_broker_takes_its_desktop_along(
    start: Any, seed: bytes, make_reset_request: Any, driver: str, number: int
) -> None:
    """No clean-up code runs after SIGKILL; the kernel does it. Every process carries the tag by which we look."""
    broker = start(driver=driver)
    handed_off(broker.client(), seed, make_reset_request)
    alive = broker.tagged()
    os.kill(broker.popen.pid, number)

    if driver == "librecad":
        assert {"Xvfb", "openbox", "librecad"} <= set(alive)
    broker.wait_until_gone()


@pytest.mark.parametrize("driver", DRIVERS)
def test_silence_ends_the_host(start: Any, seed: bytes, make_reset_request: Any, driver: str) -> None:
    """A controller that was cut off must not leave a desktop behind."""
    broker = start(driver=driver)
    handed_off(broker.client(), seed, make_reset_request, lease_s=0.8)
    time.sleep(0.4)
    broker.client().health()
    time.sleep(0.6)
    still_alive = broker.popen.poll() is None

    assert still_alive
    assert broker.popen.wait(4) == 0
    broker.wait_until_gone()


@pytest.mark.desktop
def test_the_death_of_the_program_is_said_on_stdout(start: Any, seed: bytes, make_reset_request: Any) -> None:
    """Between two calls too: the owner reads it at once and asks nobody."""
    broker = start(driver="librecad")
    handed_off(broker.client(), seed, make_reset_request)
    os.kill(broker.pid_of("librecad"), signal.SIGKILL)
    line = json.loads(broker.popen.stdout.readline())

    assert {"schema": "autocad-bench.broker-lost/1", "driver_state": "cad_died"} == line
    assert broker.client().health().driver_state == "cad_died"


def test_silence_before_a_lease_ends_the_host_too(start: Any) -> None:
    """Its controller died before it took the lease."""
    broker = start(lease_s=0.5)

    assert broker.popen.wait(4) == 0


def test_an_orphan_waits_for_a_resumed_batch(start: Any, seed: bytes, make_reset_request: Any) -> None:
    """A killed controller comes back within the time and finds everything as it was."""
    broker = start(orphan_s=1.5)
    lease = handed_off(broker.client(), seed, make_reset_request)
    broker.client().act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])
    broker.popen.stdin.close()
    time.sleep(0.8)
    again = broker.client().act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])
    further = broker.client().act(lease_id=lease.lease_id, sequence=2, actions=[CIRCLE])
    time.sleep(1.0)
    is_alive = broker.popen.poll() is None

    assert again.is_replay
    assert (2, True) == (further.sequence, is_alive)
    assert broker.popen.wait(4) == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_actions_that_a_killed_broker_had_begun_are_indeterminate(
    start: Any, tmp_path: Path, seed: bytes, make_reset_request: Any, driver: str
) -> None:
    """Nobody knows how much was done, so nobody does it again: not once, not ever."""
    state_dir = tmp_path / "state"
    first = start(driver=driver, state_dir=state_dir)
    lease = handed_off(first.client(), seed, make_reset_request)
    done = first.client().act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])
    begun = [CIRCLE, Wait(seconds=20)]
    with pytest.raises(BrokerError):
        first.client(read_s=0.5).act(lease_id=lease.lease_id, sequence=2, actions=begun, wait_s=-60)
    os.kill(first.popen.pid, signal.SIGKILL)
    first.popen.wait()
    client = start(driver=driver, state_dir=state_dir).client()

    assert done.model_copy(update={"is_replay": True}) == client.act(
        lease_id=lease.lease_id, sequence=1, actions=[CIRCLE]
    )
    for sequence, actions in ((2, begun), (3, [CIRCLE]), (2, begun)):
        with pytest.raises(BrokerError) as caught:
            client.act(lease_id=lease.lease_id, sequence=sequence, actions=actions)

        assert caught.value.code == ErrorCode.INDETERMINATE


@pytest.mark.desktop
def test_a_real_evaluation_follows_a_rollout(start: Any, tmp_path: Path, seed: bytes, make_reset_request: Any) -> None:
    """Save, export and render through the trusted evaluator, into one-time URLs."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    from contract.broker_api import ExportRequest, RenderRequest, SaveRequest, UploadGrant

    taken: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            taken[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    receiver = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=receiver.serve_forever, daemon=True).start()
    broker = start(driver="librecad")
    client = broker.client()
    lease = handed_off(client, seed, make_reset_request)
    client.act(lease_id=lease.lease_id, sequence=1, actions=[TypeText(text="circle 60,40 22 k\n")])

    def grant(name: str) -> UploadGrant:
        return UploadGrant(url=f"http://127.0.0.1:{receiver.server_port}/{name}", headers={}, bytes_max=10_000_000)

    client.save(SaveRequest(request_id="s", lease_id=lease.lease_id, upload=grant("attempt.dxf")))
    client.export(ExportRequest(request_id="e", lease_id=lease.lease_id, upload=grant("metadata.json")))
    client.render(
        RenderRequest(
            request_id="r",
            lease_id=lease.lease_id,
            upload=grant("render.png"),
            window=(0.0, 0.0, 160.0, 120.0),
            size_px=(1600, 1200),
        )
    )
    receiver.shutdown()
    receiver.server_close()

    assert b"CIRCLE" in taken["/attempt.dxf"]
    assert "entities" in json.loads(taken["/metadata.json"])
    assert taken["/render.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("start_line", "code"),
    [
        ({"driver": "autocad"}, "invalid_start"),
        ({"token_sha256": "short"}, "invalid_start"),
        ({"more": 1}, "invalid_start"),
        ({"state_dir": Path("/nowhere/at/all")}, "state_dir_missing"),
    ],
)
def test_a_wrong_start_is_told_in_one_line(start: Any, start_line: dict[str, Any], code: str) -> None:
    """The supervisor shows it to the operator as it is."""
    broker = start(**start_line)

    assert ("autocad-bench.broker-failed/1", code) == (broker.said["schema"], broker.said["code"])
    assert broker.said["hint"]
    assert broker.popen.wait(5) == 1


def test_a_port_in_use_is_told_in_one_line(start: Any) -> None:
    """Not a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = start(port=taken.getsockname()[1])

        assert broker.said["code"] == "port_in_use"


def test_the_log_never_holds_the_token(start: Any, seed: bytes, make_reset_request: Any) -> None:
    """Wherever in a request a stranger who has it, or nearly, may have put it."""
    broker = start()
    url = f"http://127.0.0.1:{broker.said['port']}"
    for path in (f"/v1/health?token={TOKEN}", f"/v1/{TOKEN}", f"/{TOKEN}/health"):
        requests.get(url + path, headers={"Authorization": f"Bearer {TOKEN}x", "X-Token": TOKEN}, timeout=5)
    requests.post(f"{url}/v1/lease", json={"token": TOKEN}, timeout=5)
    handed_off(broker.client(), seed, make_reset_request)
    with contextlib.suppress(BrokerError):
        broker.client().act(lease_id="l-unknown", sequence=1, actions=[Keypress(keys=["a"])])
    broker.popen.stdin.close()
    log = broker.popen.stderr.read()
    broker.popen.wait(5)

    assert 4 == log.count(b"unauthorized")
    assert b"lease_unknown" in log
    assert TOKEN.encode() not in log
