"""What the broker's tests share: drivers on a folder of their own, seed drawings, and a broker on a real socket."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import SecretStr

from broker.app import build_app
from broker.drivers import Driver
from broker.drivers.paper import PaperDriver, PaperFaults
from broker.lease import LeaseBook
from broker.receipts import ReceiptBook
from broker.service import HostFacts, Service
from contract.actions import Action, parse_action_batch
from contract.broker_api import Lease, LeaseRequest, ResetRequest, UploadGrant
from contract.broker_client import BrokerClient, Patience

DATA = Path(__file__).parent / "data"
TOKEN = "canary-token-of-the-broker-tests"


@pytest.fixture
def seed() -> bytes:
    """An empty drawing in millimetres."""
    return (DATA / "seed-blank-mm.dxf").read_bytes()


@pytest.fixture
def script() -> Callable[[str], tuple[bytes, tuple[Action, ...], Path]]:
    """A proven action script by name: its seed, its actions, and the drawing that it must give."""

    def read(name: str) -> tuple[bytes, tuple[Action, ...], Path]:
        content = json.loads((DATA / f"{name}.actions.json").read_text())
        actions = parse_action_batch({"actions": content["actions"]}, budget=1_000)
        assert isinstance(actions, tuple), actions
        return (DATA / content["seed"]).read_bytes(), actions, DATA / f"{name}.dxf"

    return read


@pytest.fixture
def facts_of() -> Callable[[Path], tuple[Counter[str], list[Any]]]:
    """What a drawing holds, whatever the order and the handles: its entities, and its layers with their properties."""

    def read(path: Path) -> tuple[Counter[str], list[Any]]:
        import ezdxf

        document = ezdxf.readfile(path)
        layers = sorted((x.dxf.name, x.dxf.color, x.dxf.linetype, x.dxf.lineweight) for x in document.layers)
        return Counter(_entity_facts(entity) for entity in document.modelspace()), layers

    return read


def _entity_facts(entity: Any) -> str:
    names = ("start", "end", "center", "radius", "start_angle", "end_angle", "text", "height", "insert")
    facts = [entity.dxf.layer, entity.dxftype()]
    facts += [f"{name}={_rounded(entity.dxf.get(name))}" for name in names if entity.dxf.hasattr(name)]
    if entity.dxftype() == "LWPOLYLINE":
        facts.append(str([_rounded(point) for point in entity.get_points()]))
    if entity.dxftype() == "DIMENSION":
        facts.append(f"{entity.get_measurement():.4f}")
    return " ".join(facts)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4) + 0.0
    return value if isinstance(value, str | int) else tuple(round(part, 4) + 0.0 for part in value)


@pytest.fixture
def build_librecad(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes LibreCAD drivers, each on a folder of its own, and ends them."""
    from broker.drivers.librecad import LibreCadDriver

    made: list[Driver] = []
    numbers = itertools.count()

    def build(**options: Any) -> LibreCadDriver:
        # Also called by several threads at once.
        state_dir = tmp_path / f"librecad-{next(numbers)}"
        state_dir.mkdir()
        driver = LibreCadDriver(state_dir, base_env={"PATH": os.environ["PATH"]}, **options)
        made.append(driver)
        return driver

    yield build
    for driver in made:
        driver.close()


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Any]:
    """A desktop without a CAD program."""
    from broker.desktop.desktop import Desktop
    from broker.desktop.isolation import available

    made = Desktop(tmp_path, report=available(), base_env={"PATH": os.environ["PATH"]})
    made.start()
    yield made
    made.close()


@pytest.fixture
def pid_of() -> Callable[[Any, str], int]:
    """The process of a LibreCAD driver's desktop by its name: `librecad`, `Xvfb` or `openbox`."""

    def find(driver: Any, name: str) -> int:
        desktop = driver._desktop
        if name != "librecad":
            return int((desktop._server.process if name == "Xvfb" else desktop._manager).pid)
        pids = [desktop._app.pid]
        while children := [int(c) for p in pids for c in Path(f"/proc/{p}/task/{p}/children").read_text().split()]:
            pids = children
        return int(pids[-1])

    return find


@dataclass
class FakeEvaluator:
    """Answers at once, and counts."""

    calls: list[str] = field(default_factory=list)

    def warm(self) -> None:
        """Nothing to warm."""

    def export(self, *, drawing: Path, start_drawing: Path | None, out: Path) -> None:
        """Says which files it was given."""
        self.calls.append("export")
        out.write_text(json.dumps({"drawing": drawing.name, "start": start_drawing and start_drawing.name}))

    def render(self, *, drawing: Path, window: Any, size_px: Any, offset: Any, out: Path) -> None:
        """Says what it was asked for."""
        self.calls.append("render")
        out.write_text(json.dumps({"window": window, "size_px": size_px, "offset": offset}))

    def close(self) -> None:
        """Nothing to end."""


@dataclass
class ServedBroker:
    """A broker over HTTP, in a thread of this process."""

    url: str
    service: Service
    evaluator: FakeEvaluator
    sent: list[tuple[str, bytes]]
    state_dir: Path
    clock: list[float]

    def client(self, token: str = TOKEN) -> BrokerClient:
        """A client that asks once."""
        return BrokerClient(self.url, SecretStr(token), patience=Patience(read_s=5.0, tries=1))

    def handed_off(self, client: BrokerClient, seed: bytes) -> Lease:
        """Lease and reset, as before a rollout."""
        lease = client.lease(LeaseRequest(request_id="lease-1", rollout_id="rollout", lease_s=60))
        client.reset(reset_request(lease, seed))
        return lease


def reset_request(lease: Lease, seed: bytes, request_id: str = "reset-1") -> ResetRequest:
    """The reset to an empty drawing."""
    return ResetRequest(
        request_id=request_id,
        lease_id=lease.lease_id,
        task_id="task",
        start_drawing_base64=base64.b64encode(seed).decode(),
        start_drawing_sha256=hashlib.sha256(seed).hexdigest(),
    )


@pytest.fixture
def make_reset_request() -> Callable[..., ResetRequest]:
    """See `reset_request`."""
    return reset_request


@pytest.fixture
def serve(tmp_path: Path, servers: ServerPool) -> Iterator[Callable[..., ServedBroker]]:
    """Starts brokers with a paper driver; `state_dir` may be that of an earlier one."""
    undo: list[Callable[[], None]] = []

    def start(*, faults: PaperFaults | None = None, state_dir: Path | None = None) -> ServedBroker:
        folder = state_dir or tmp_path / f"broker-{len(undo)}"
        folder.mkdir(exist_ok=True)
        evaluator = FakeEvaluator()
        sent: list[tuple[str, bytes]] = []
        clock = [0.0]

        def send(path: Path, grant: UploadGrant) -> None:
            sent.append((grant.url, path.read_bytes()))

        service = Service(
            state_dir=folder,
            facts=HostFacts(host_id="h-1", boot_id="b-1", started_at="2026-01-01T00:00:00+00:00"),
            driver=PaperDriver(folder, faults=faults),
            evaluator=evaluator,
            leases=LeaseBook(folder, silence_s=60, elapsed_s=lambda: clock[0]),
            receipts=ReceiptBook(folder),
            send=send,
        )
        server = servers.take(build_app(service, token_sha256=hashlib.sha256(TOKEN.encode()).hexdigest()))
        undo.append(lambda: servers.give_back(server))
        undo.append(service.close)
        port = server.port
        return ServedBroker(f"http://127.0.0.1:{port}", service, evaluator, sent, folder, clock)

    yield start
    for step in undo:
        step()


class ServerPool:
    """HTTP servers that live for the whole session, because each takes a fifth of a second to stop."""

    def __init__(self) -> None:
        self._idle: list[ThreadServer] = []
        self._all: list[ThreadServer] = []

    def take(self, app: Any) -> ThreadServer:
        """A server that serves `app`."""
        if not self._idle:
            self._all.append(ThreadServer())
            self._idle.append(self._all[-1])
        server = self._idle.pop()
        server.app = app
        return server

    def give_back(self, server: ThreadServer) -> None:
        """For the next test."""
        self._idle.append(server)

    def close(self) -> None:
        """End all."""
        for server in self._all:
            server.stop()


class ThreadServer:
    """One uvicorn in a thread; `app` may be changed between tests."""

    def __init__(self) -> None:
        self.app: Any = None
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(self._serve, interface="asgi3", log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[listener])), daemon=True)
        self._thread.start()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    def stop(self) -> None:
        """End the thread."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(5)


@pytest.fixture(scope="session")
def servers() -> Iterator[ServerPool]:
    """See `ServerPool`."""
    pool = ServerPool()
    yield pool
    pool.close()
