"""A small world for tunnels: SSM sessions in memory, the stand-in plugin on a PATH of its own, and a paper broker."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from pydantic import SecretStr

from broker.app import build_app
from broker.drivers import Acted
from broker.drivers.paper import PaperDriver
from broker.lease import LeaseBook
from broker.receipts import ReceiptBook
from broker.service import HostFacts, Service
from contract.actions import Action
from contract.ambient import Ambient
from contract.bridge import Bridge, ThreadBridge
from contract.broker_api import Lease, ResetRequest
from supervisor.cloud.ports import Agent, CloudError, FaultKind, PluginAccess, Session
from supervisor.hosts.ssm_plugin import Plugin
from supervisor.hosts.ssm_tunnel import SsmTunnel
from supervisor.hosts.tunnel import Probe, Probed
from tests.lab.plugin import VERSION, StandIn

SECRET_KEY = "canary-aws-secret-of-the-tunnel-tests"
TOKEN = "canary-session-token-of-the-tunnel-tests"
BROKER_TOKEN = "canary-broker-token-of-the-tunnel-tests"
INSTANCE = "i-0123456789abcdef0"
# Long enough for any machine; nothing waits so long unless a test fails.
PATIENCE_S = 60.0


def cloud_error(kind: FaultKind, action: str = "StartSession") -> CloudError:
    """An error of this kind."""
    return CloudError(f"{action} failed ({kind})", kind=kind, code=f"Code-{kind}", action=action)


@dataclass
class SessionCloud:
    """The SSM half of a cloud. Its sessions lead to `port` on loopback.

    `start_errors`, `find_errors` and `end_errors` are raised one by one; a start that was `carried_out` opens a session
    all the same, and it is listed once `lists` of them were asked for.
    """

    port: int
    start_errors: list[CloudError] = field(default_factory=list)
    find_errors: list[CloudError] = field(default_factory=list)
    end_errors: list[CloudError] = field(default_factory=list)
    lists: int = 0
    agent: Agent | None = field(default_factory=lambda: Agent(is_online=True, version="3.3.987.0"))
    is_carried_out: bool = False
    calls: list[str] = field(default_factory=list)
    # By id, with what they were opened for.
    open_sessions: dict[str, str] = field(default_factory=dict)
    is_logged_out: bool = False
    # Set while StartSession is being answered, and what it then waits for.
    is_starting: threading.Event = field(default_factory=threading.Event)
    may_start: threading.Event = field(default_factory=threading.Event)
    _numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.may_start.set()

    def start_session(self, instance_id: str, *, port: int, reason: str) -> Session:
        self.calls.append(f"StartSession {instance_id} {port}")
        error = self.start_errors.pop(0) if self.start_errors else None
        self.is_starting.set()
        assert self.may_start.wait(PATIENCE_S)
        if error is not None and not self.is_carried_out:
            raise error
        session_id = f"operator-{next(self._numbers):08x}"
        self.open_sessions[session_id] = reason
        if error is not None:
            raise error
        response = {
            "SessionId": session_id,
            "TokenValue": f"{TOKEN}-{session_id}",
            "StreamUrl": f"tcp://127.0.0.1:{self.port}",
        }
        return Session(session_id, SecretStr(json.dumps(response)))

    def find_sessions(self, instance_id: str, *, reason: str) -> list[str]:
        self.calls.append(f"DescribeSessions {instance_id}")
        if self.find_errors:
            raise self.find_errors.pop(0)
        self.lists -= 1
        return [] if self.lists >= 0 else [name for name, why in self.open_sessions.items() if why == reason]

    def terminate_session(self, session_id: str) -> None:
        self.calls.append(f"TerminateSession {session_id}")
        if self.end_errors:
            raise self.end_errors.pop(0)
        self.open_sessions.pop(session_id, None)

    def plugin_access(self) -> PluginAccess:
        environment = {"AWS_ACCESS_KEY_ID": SecretStr("AKIDEXAMPLE"), "AWS_SECRET_ACCESS_KEY": SecretStr(SECRET_KEY)}
        return PluginAccess("eu-west-1", "https://ssm.eu-west-1.amazonaws.com", environment)

    def find_agents(self, instance_ids: Collection[str]) -> dict[str, Agent]:
        return {} if self.agent is None else dict.fromkeys(instance_ids, self.agent)

    def refresh_credentials(self) -> None:
        self.calls.append("refresh")
        if self.is_logged_out:
            raise cloud_error(FaultKind.SIGNING, "the signing of requests")


class TunnelWorld:
    """Everything that one tunnel touches. `said` is what people were told, `waits` what it slept for."""

    def __init__(self, folder: Path, *, port: int = 1) -> None:
        self.folder = folder
        self.tools = folder / "bin"
        self.tools.mkdir()
        self.stand_in = StandIn.installed(self.tools)
        self.plugin = Plugin(self.stand_in.path, VERSION)
        self.search_path = f"{self.tools}:/usr/bin:/bin"
        self.cloud = SessionCloud(port)
        self.said: list[str] = []
        self.waits: list[float] = []
        self.on_wait: Callable[[], None] = lambda: None
        self.probes: list[Probed] = []
        # Not in pytest's folder, whose path is too long for a UNIX socket.
        self._short = Path(tempfile.mkdtemp())
        self.tmpdir = self._short / "t"
        self.log = folder / "rollout.log"
        self._bridge = ThreadBridge(8, is_abandonable=True)

    def tunnel(self, *, probe: Probe | None = None, bridge: Bridge | None = None, **options: Any) -> SsmTunnel:
        """A tunnel whose pauses take no time."""
        cloud: Any = self.cloud
        given = {"tmpdir": self.tmpdir, **options}
        return SsmTunnel(
            cloud=cloud,
            bridge=bridge or self._bridge,
            instance_id=INSTANCE,
            port=8765,
            plugin=given.pop("plugin", self.plugin),
            search_path=self.search_path,
            folder=given.pop("tmpdir"),
            log=self.log,
            probe=probe or self.probe,
            ambient=Ambient(sleep=self._sleep),
            say=self.said.append,
            **{"open_s": PATIENCE_S, "ready_s": PATIENCE_S, "grace_s": 0.3, **given},
        )

    async def probe(self, port: int) -> Probed:
        """Ask whoever listens behind the tunnel for one line; silence is what the stand-in says of itself."""
        answer = Probed.REFUSED
        with suppress(OSError), anyio.fail_after(PATIENCE_S):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream, anyio.create_task_group() as group:

                async def give_up_when_hung() -> None:
                    while not self.is_hung(port):
                        await anyio.sleep(0.01)
                    nonlocal answer
                    answer = Probed.SILENT
                    group.cancel_scope.cancel()

                group.start_soon(give_up_when_hung)
                try:
                    await stream.send(b"ping\n")
                    answer = Probed.ANSWERED if await stream.receive() == b"pong\n" else Probed.SILENT
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    pass
                group.cancel_scope.cancel()
        self.probes.append(answer)
        return answer

    def is_hung(self, port: int) -> bool:
        """True when the plugin that listens there has told that it hangs."""
        ready = {event["pid"] for event in self.stand_in.events("ready") if event["port"] == port}
        return any(event["pid"] in ready for event in self.stand_in.events("hung"))

    def left(self) -> list[str]:
        """What of all plugins and sessions is still there; a process that nobody reaped counts."""
        alive = [f"process {pid}" for pid in self.stand_in.pids() if Path(f"/proc/{pid}").exists()]
        files = [str(self.tmpdir)] if self.tmpdir.exists() else []
        return [*alive, *files, *sorted(self.cloud.open_sessions)]

    def close(self) -> None:
        """End whatever plugin a test has left."""
        for pid in self.stand_in.pids():
            with suppress(OSError):
                if str(self.stand_in.path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._short)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.on_wait()
        await anyio.sleep(0)


class PongServer:
    """Answers each line `ping` with `pong`, or closes each connection at once, like a host without a broker."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    @staticmethod
    def _answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            while line := client.recv(100):
                client.sendall(line.replace(b"ping", b"pong"))

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class CountingPaper(PaperDriver):
    """Paper that keeps every action it carried out, in order, since its last reset; `on_deed` is told before each."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.performed: list[Action] = []
        self.on_deed: Callable[[str], None] = lambda deed: None

    def reset(self, start_drawing: bytes) -> Any:
        self.on_deed("reset")
        self.performed = []
        return super().reset(start_drawing)

    def act(self, actions: Sequence[Action]) -> Acted:
        self.on_deed("act")
        self.performed += actions
        return super().act(actions)


class PaperBroker:
    """The real broker over HTTP on a thread, with a paper driver that counts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.driver = CountingPaper(folder)
        self._service = Service(
            state_dir=folder,
            facts=HostFacts(host_id="h-1", boot_id="b-1", started_at="2026-01-01T00:00:00+00:00"),
            driver=self.driver,
            evaluator=_NoEvaluator(),
            leases=LeaseBook(folder, silence_s=3_600),
            receipts=ReceiptBook(folder),
            send=lambda path, grant: None,
        )
        app = build_app(self._service, token_sha256=hashlib.sha256(BROKER_TOKEN.encode()).hexdigest())
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[listener])), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and the service."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(PATIENCE_S)
        self._service.close()


class _NoEvaluator:
    def warm(self) -> None: ...

    def export(self, *, drawing: Path, start_drawing: Path | None, out: Path) -> None: ...

    def render(self, *, drawing: Path, window: Any, size_px: Any, offset: Any, out: Path) -> None: ...

    def close(self) -> None: ...


def reset_of(lease: Lease, drawing: bytes) -> ResetRequest:
    """The reset to this start drawing."""
    return ResetRequest(
        request_id="reset-1",
        lease_id=lease.lease_id,
        task_id="task",
        start_drawing_base64=base64.b64encode(drawing).decode(),
        start_drawing_sha256=hashlib.sha256(drawing).hexdigest(),
    )


def open_files() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))
