"""Hosts on this machine with the real broker on paper: launch, proof, end, sweep, and life after a controller."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from contract.bridge import ThreadBridge
from contract.broker_client import BrokerClient
from contract.config import LocalHostConfig
from contract.errors import HostError
from contract.phases import Cause
from supervisor.hosts.lease import Host, HostOrder, new_host_id
from supervisor.hosts.local import LocalHosts
from supervisor.keyring import KernelKeyring
from supervisor.ledger import HostHistory
from supervisor.processes import BATCH_ID_VARIABLE, HOST_ID_VARIABLE, processes_of_hosts

BATCH = "b-test-local-host"
REPOSITORY = Path(__file__).resolve().parents[2]
FAILED_LINE = (
    '{"schema":"autocad-bench.broker-failed/1","code":"no_display","message":"no free display","hint":"End some."}'
)
READY_LINE = '{"schema":"autocad-bench.broker-ready/1","host_id":"h","boot_id":"b","port":1,"broker_version":"1.0"}'


async def unnoted(event: str, detail: dict[str, Any]) -> None:
    """Nobody reads this ledger."""


class NoTokens:
    """Remembers nothing."""

    def keep(self, host_id: str, token: SecretStr, *, lifetime_s: float) -> bool:
        return False

    def recall(self, host_id: str) -> SecretStr | None:
        return None

    def forget(self, host_id: str) -> None:
        return None


class Machine:
    """One place for hosts of one test; whatever a test leaves is ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: list[str] = []

    def hosts(self, *, tokens: Any = None, command: tuple[str, ...] | None = None, **config: Any) -> LocalHosts:
        settings = LocalHostConfig(kind="local", **{"driver": "paper", **config})
        more = {} if command is None else {"command": command}
        return LocalHosts(settings, bridge=ThreadBridge(2), tokens=tokens or NoTokens(), scratch=self.folder, **more)

    def order(self) -> HostOrder:
        self.ids.append(new_host_id())
        return HostOrder(self.ids[-1], BATCH, "r-0", self.folder / "r-0.log", note=unnoted, say=print)

    def left(self) -> list[int]:
        return [process.pid for process in processes_of_hosts(self.ids, batch_id=BATCH)]


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    made = Machine(tmp_path)
    yield made
    for pid in made.left():
        os.kill(pid, signal.SIGKILL)


def run(work: Callable[[], Awaitable[None]]) -> None:
    anyio.run(work)


@pytest.mark.slow
def test_a_host_proves_itself_and_leaves_nothing(machine: Machine) -> None:
    """Ready, identity with our token, then end: no process, no folder, and ending it twice is fine."""

    async def work() -> None:
        hosts = machine.hosts()
        host = await hosts.launch(machine.order())
        client = BrokerClient(host.base_url, host.token)
        identity = await anyio.to_thread.run_sync(lambda: client.identity(token=host.token))

        assert (host.host_id, host.boot_id) == (identity.host_id, identity.boot_id)
        assert [host.facts["pid"]] == machine.left()
        await hosts.terminate(host.host_id, batch_id=BATCH)
        await hosts.terminate(host.host_id, batch_id=BATCH)
        assert [] == machine.left()
        assert [] == list(machine.folder.glob("autocad-bench-*"))

    run(work)


@pytest.mark.slow
def test_a_killed_broker_is_noticed_at_once(machine: Machine) -> None:
    """The process itself is watched, so nobody has to meet the silence first."""

    async def work() -> None:
        hosts = machine.hosts()
        host = await hosts.launch(machine.order())
        os.kill(host.facts["pid"], signal.SIGKILL)
        with anyio.fail_after(1.0):
            said = await hosts.wait_ended(host.host_id)

        assert "killed by SIGKILL" in said
        assert hosts.has_ended(host.host_id)
        await hosts.terminate(host.host_id, batch_id=BATCH)
        assert [] == machine.left()

    run(work)


@pytest.mark.slow
def test_the_host_never_holds_the_token(machine: Machine) -> None:
    """Only its SHA-256 crosses the pipe: not argv, not the environment, not a file."""

    async def work() -> None:
        hosts = machine.hosts()
        host = await hosts.launch(machine.order())
        token = host.token.get_secret_value().encode()
        process = Path("/proc") / str(host.facts["pid"])
        seen = [process.joinpath(name).read_bytes() for name in ("cmdline", "environ")]
        seen += [path.read_bytes() for path in machine.folder.rglob("*") if path.is_file()]
        await hosts.terminate(host.host_id, batch_id=BATCH)

        assert all(token not in content for content in seen)
        assert len(hashlib.sha256(token).hexdigest()) == 64

    run(work)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"print({FAILED_LINE!r})", "no free display"),
        ("import sys; sys.exit(7)", "exit status 7"),
        ("print('not json'); import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_a_broker_that_cannot_start_says_why(machine: Machine, body: str, says: str) -> None:
    """Its own words become the error, with cause `host_launch`."""

    async def work() -> None:
        hosts = machine.hosts(command=(sys.executable, "-I", "-c", body))
        order = machine.order()
        with pytest.raises(HostError, match=says) as caught:
            await hosts.launch(order)
        await hosts.terminate(order.host_id, batch_id=BATCH)

        assert Cause.HOST_LAUNCH == caught.value.cause
        assert [] == list(machine.folder.glob("autocad-bench-*"))

    run(work)


def test_a_launch_that_is_cancelled_is_undone_by_its_id(machine: Machine) -> None:
    """The ready line never comes; ending the host by id alone finds the process all the same."""

    async def work() -> None:
        hosts = machine.hosts(command=(sys.executable, "-I", "-c", "import time; time.sleep(60)"))
        order = machine.order()
        with anyio.move_on_after(0.5):
            await hosts.launch(order)
        before = machine.left()
        await hosts.terminate(order.host_id, batch_id=BATCH)

        assert 1 == len(before)
        assert [] == machine.left()

    run(work)


def test_what_a_host_started_is_swept_by_tag_and_by_session(machine: Machine) -> None:
    """A grandchild in a session of its own, and one that dropped its environment, both end with the host."""
    body = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "subprocess.Popen(['sh', '-c', 'env -i sleep 61 & exec sleep 62'], start_new_session=True)\n"
        f"print({READY_LINE!r}, flush=True)\n"
        "time.sleep(0.3); os.kill(os.getpid(), 9)"
    )

    async def work() -> None:
        hosts = machine.hosts(command=(sys.executable, "-I", "-c", body))
        host = await hosts.launch(machine.order())
        await hosts.wait_ended(host.host_id)
        before = machine.left()
        await hosts.terminate(host.host_id, batch_id=BATCH)

        assert 3 == len(before)
        assert [] == machine.left()

    run(work)


def test_a_sweep_touches_nobody_elses_processes(machine: Machine) -> None:
    """The same tag names with another host's id, or another batch's, are somebody else's."""
    tags = [
        {HOST_ID_VARIABLE: "h-of-somebody-else", BATCH_ID_VARIABLE: BATCH},
        {HOST_ID_VARIABLE: "h-mine", BATCH_ID_VARIABLE: "b-of-somebody-else"},
    ]
    decoys = [subprocess.Popen(["sleep", "60"], env={**os.environ, **tag}, start_new_session=True) for tag in tags]
    try:

        async def work() -> None:
            await machine.hosts().terminate("h-mine", batch_id=BATCH)

        run(work)

        assert [None, None] == [decoy.poll() for decoy in decoys]
    finally:
        for decoy in decoys:
            decoy.kill()
            decoy.wait()


@pytest.mark.slow
def test_a_host_ends_when_its_controller_dies(machine: Machine) -> None:
    """The pipe ends with us, however we died; the default is to be gone within a second."""

    async def work() -> None:
        hosts = machine.hosts()
        host = await hosts.launch(machine.order())
        hosts._live[host.host_id].process.close_stdin()
        with anyio.fail_after(1.5):
            await hosts.wait_ended(host.host_id)
        await hosts.terminate(host.host_id, batch_id=BATCH)

    run(work)


CONTROLLER = """
import sys, anyio
from pathlib import Path
from contract.bridge import ThreadBridge
from contract.config import LocalHostConfig
from supervisor.hosts.lease import HostOrder
from supervisor.hosts.local import LocalHosts
from supervisor.keyring import KernelKeyring

folder, host_id, batch_id, orphan_s = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
config = LocalHostConfig(kind="local", driver="paper", orphan_s=orphan_s)
deaf = (sys.executable, "-I", "-c", "import time; time.sleep(60)")
hosts = LocalHosts(config, bridge=ThreadBridge(2), tokens=KernelKeyring(), scratch=folder, command=deaf)
anyio.run(hosts.launch, HostOrder(host_id, batch_id, "r-0", folder / "r-0.log", note=print, say=print))
"""


@pytest.mark.parametrize(("orphan_s", "is_gone"), [(0.0, True), (30.0, False)])
def test_a_broker_that_does_not_listen_yet_ends_with_its_controller(
    machine: Machine, orphan_s: float, is_gone: bool
) -> None:
    """While it still starts, nobody reads the end of its stdin; the kernel tells it. Not one that is to outlive us."""
    order = machine.order()
    arguments = [str(machine.folder), order.host_id, BATCH, str(orphan_s)]
    with subprocess.Popen([sys.executable, "-c", CONTROLLER, *arguments], cwd=REPOSITORY) as controller:
        pid = _first_process(machine)
        controller.kill()

    descriptor = os.pidfd_open(pid)
    ended, _, _ = select.select([descriptor], [], [], 20.0 if is_gone else 1.0)
    os.close(descriptor)

    assert is_gone == bool(ended)


def _first_process(machine: Machine) -> int:
    """The process of the machine's one host, once it is the program that was asked for."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for pid in machine.left():
            if b"time.sleep(60)" in Path(f"/proc/{pid}/cmdline").read_bytes() and b"setpriv" not in _name(pid):
                return pid
        time.sleep(0.01)
    raise AssertionError("the host did not start")


def _name(pid: int) -> bytes:
    return Path(f"/proc/{pid}/comm").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not KernelKeyring().keep("h-probe", SecretStr("x"), lifetime_s=1), reason="no kernel keyring here")
def test_a_host_that_may_outlive_its_controller_is_found_again_with_its_token(machine: Machine) -> None:
    """Another controller recalls the token from the kernel, adopts exactly that process, and can end it."""

    async def work() -> None:
        first = machine.hosts(tokens=KernelKeyring(), orphan_s=20)
        host = await first.launch(machine.order())
        first._live[host.host_id].process.close_stdin()
        history = HostHistory(host.host_id, "r-0", "local", ("intent", "launched", "handed_off"), dict(host.facts))

        second = machine.hosts(tokens=KernelKeyring(), orphan_s=20)
        found = await second.reattach(history, batch_id=BATCH)
        assert isinstance(found, Host)
        assert host.token.get_secret_value() == found.token.get_secret_value()
        client = BrokerClient(found.base_url, found.token)
        identity = await anyio.to_thread.run_sync(lambda: client.identity(token=found.token))
        assert host.boot_id == identity.boot_id

        await second.terminate(host.host_id, batch_id=BATCH)
        assert [] == machine.left()
        assert KernelKeyring().recall(host.host_id) is None
        assert await second.reattach(history, batch_id=BATCH) is None
        await first.terminate(host.host_id, batch_id=BATCH)

    run(work)
