"""Fakes of our own protocols, for every test that plays a rollout without a CAD program.

`FakeHost` is the exactly-once heart of a broker in memory. `FakeDesktop` puts it behind the pilot's `Desktop`,
`FakeBroker` behind the broker's HTTP API, so that the same host can be played through either.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import anyio

from contract.actions import Action, Finish, InvalidActions, action_to_json, digest_of, parse_action_batch
from contract.ambient import Ambient
from contract.broker_api import (
    HTTP_STATUS,
    ActionsRequest,
    ErrorBody,
    ErrorCode,
    FrameInfo,
    Health,
    Identity,
    Lease,
    Receipt,
    Verdict,
)
from contract.broker_client import CAUSES, sign_identity
from contract.errors import BrokerError
from contract.phases import Cause
from contract.pricing import Usage
from contract.records import Durability, Record
from contract.rollout_records import HostAddress, Limits, ModelChoice, RolloutSpec, RunState, TaskBrief
from pilot.disk import RunFolderDisk
from pilot.ports import Acted, Disk, Model, ModelReply, Observation, World, ignore_progress

T = TypeVar("T")

TOKEN = "canary-broker-token-5b1f"
FINISH = {"actions": [{"type": "finish", "status": "done", "summary": "drawn"}]}


def click(x: int = 10, y: int = 20) -> dict[str, Any]:
    """One valid click as a model writes it."""
    return {"type": "click", "x": x, "y": y, "button": "left", "clicks": 1, "modifiers": []}


def type_text(text: str) -> dict[str, Any]:
    """One valid type action as a model writes it."""
    return {"type": "type", "text": text}


def batch(*actions: dict[str, Any]) -> dict[str, Any]:
    """The arguments of one tool call."""
    return {"actions": list(actions)}


def small_png(label: str) -> bytes:
    """A whole 4x4 PNG whose bytes differ by label."""
    return _png(4, 4, bytes([0, *range(12)] * 4), label)


def screen_png(label: str, *, size_bytes: int = 80_000) -> bytes:
    """A 1920x1080 PNG of about `size_bytes`, the size that a CAD screen compresses to; its bytes differ by label."""
    return _labelled(_screen(size_bytes), label)


_SCREENS: dict[int, bytes] = {}


def _screen(size_bytes: int) -> bytes:
    if size_bytes not in _SCREENS:
        # Deflate cannot shrink hash output, so this many noisy bytes on an empty screen give that many of PNG.
        noise = b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(size_bytes // 32))
        row, noisy_rows = 1920 * 3, len(noise) // (1920 * 3)
        rows = [b"\0" + noise[n * row : (n + 1) * row] for n in range(noisy_rows)]
        rows += [b"\0" + bytes(row)] * (1080 - noisy_rows)
        _SCREENS[size_bytes] = _png(1920, 1080, b"".join(rows), "")
    return _SCREENS[size_bytes]


def _png(width_px: int, height_px: int, rows: bytes, label: str) -> bytes:
    header = struct.pack(">IIBBBBB", width_px, height_px, 8, 2, 0, 0, 0)
    parts = [_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, 1)), _chunk(b"IEND", b"")]
    return _labelled(b"\x89PNG\r\n\x1a\n" + b"".join(parts), label)


def _labelled(png: bytes, label: str) -> bytes:
    return png[:-12] + _chunk(b"tEXt", b"label\0" + label.encode()) + png[-12:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@dataclass
class FakeHost:
    """A host that does nothing and remembers everything.

    `performed` is what its mouse and keyboard did, in order: the truth that exactly-once is tested against. `refuse` is
    asked before every ActionBatch and may raise a `BrokerError`; `verdict` is that of every frame.
    """

    host_id: str = "h-fake"
    boot_id: str = "boot-1"
    lease_id: str = "lease-1"
    lease_generation: int = 1
    make_png: Callable[[str], bytes] = small_png
    verdict: Verdict = Verdict.OK
    refuse: Callable[[int], None] = lambda sequence: None
    performed: list[dict[str, Any]] = field(default_factory=list)
    receipts: dict[int, Receipt] = field(default_factory=dict)

    @property
    def last_sequence(self) -> int:
        """The sequence that was carried out last; 0 after the reset."""
        return max(self.receipts, default=0)

    def health(self) -> Health:
        """How it is."""
        return Health(
            broker_version="1.0",
            boot_id=self.boot_id,
            host_id=self.host_id,
            driver="fake",
            driver_state="ready",
            lease_generation=self.lease_generation,
            last_sequence=self.last_sequence,
        )

    def act(self, sequence: int, actions: Sequence[Action], digest: str) -> Receipt:
        """Exactly once, as the broker's contract says."""
        self.refuse(sequence)
        stored = self.receipts.get(sequence)
        if stored is not None:
            if stored.digest != digest:
                raise refusal(ErrorCode.DIGEST_MISMATCH)
            return stored.model_copy(update={"is_replay": True})
        if sequence != self.last_sequence + 1:
            raise refusal(ErrorCode.SEQUENCE_GAP)
        done = [action for action in actions if not isinstance(action, Finish)]
        self.performed += [action_to_json(action) for action in done]
        receipt = Receipt(
            sequence=sequence, digest=digest, performed=len(done), took_s=0.05, frame=self.frame_info(sequence)
        )
        self.receipts[sequence] = receipt
        return receipt

    def frame(self, sequence: int) -> bytes:
        """The PNG after this sequence."""
        return self.make_png(f"{self.boot_id}/{sequence}")

    def frame_info(self, sequence: int) -> FrameInfo:
        """What describes that PNG."""
        png = self.frame(sequence)
        return FrameInfo(
            sequence=sequence,
            sha256=hashlib.sha256(png).hexdigest(),
            size_bytes=len(png),
            width_px=1920,
            height_px=1080,
            verdict=self.verdict,
            settle_s=0.04,
        )

    def address(self, base_url: str = "http://127.0.0.1:1") -> HostAddress:
        """As the supervisor hands it off."""
        return HostAddress(
            host_id=self.host_id,
            boot_id=self.boot_id,
            base_url=base_url,
            lease_id=self.lease_id,
            lease_generation=self.lease_generation,
            first_frame=self.frame_info(0),
        )


def refusal(code: ErrorCode) -> BrokerError:
    """What the client raises when a broker refuses with this code."""
    return BrokerError(
        f"refused: {code}", code=code, cause=CAUSES.get(code, Cause.BROKER_REFUSED), status=HTTP_STATUS.get(code)
    )


class FakeDesktop:
    """A `Desktop` on a `FakeHost`, without a network. `probe` hears of every call before and after it."""

    def __init__(self, host: FakeHost, *, probe: Callable[[], None] = lambda: None) -> None:
        self.host = host
        self.is_closed = False
        self._probe = probe

    async def health(self) -> Health:
        return self.host.health()

    async def act(self, sequence: int, actions: Sequence[Action]) -> Acted:
        self._probe()
        await anyio.sleep(0)
        receipt = self.host.act(sequence, actions, digest_of(actions))
        self._probe()
        return Acted(receipt, self.host.frame(sequence))

    async def fetch(self, info: FrameInfo) -> bytes:
        self._probe()
        return self.host.frame(info.sequence)

    async def aclose(self) -> None:
        self.is_closed = True


class ScriptedModel:
    """A `Model` that says what it is given: arguments, whole replies, or errors to raise.

    An error stays unconsumed for the turn, so the next item answers the same observation. `observations` is what it was
    shown.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = list(items)
        self._next = 0
        self.observations: list[Observation] = []
        self.is_closed = False

    async def next_turn(self, observation: Observation) -> ModelReply:
        self.observations.append(observation)
        item = self._items[self._next] if self._next < len(self._items) else FINISH
        self._next += 1
        if isinstance(item, Exception):
            raise item
        if isinstance(item, ModelReply):
            return item
        return ModelReply(arguments=item, latency_s=0.0, usage=Usage(), cost_usd=Decimal(0))

    def state(self) -> dict[str, Any]:
        return {"next": self._next}

    def restore(self, state: dict[str, Any]) -> None:
        self._next = state["next"]

    async def aclose(self) -> None:
        self.is_closed = True


class InlineBridge:
    """Blocks the loop instead of leaving it: virtual time does not wait for threads."""

    async def call(self, work: Callable[[], T]) -> T:
        await anyio.sleep(0)
        return work()


class CountingDisk:
    """The real disk, counted: bytes (all frames under `frames`) and syncs. `probe` runs before and after each write."""

    def __init__(self, *, probe: Callable[[], None] = lambda: None) -> None:
        self._disk = RunFolderDisk()
        self._probe = probe
        self.written_bytes = 0
        self.syncs = 0
        self.bytes_of: dict[str, int] = {}

    def replace(self, path: Path, content: bytes, durability: Durability) -> None:
        self._probe()
        self._disk.replace(path, content, durability)
        self._count(path, len(content))
        self.syncs += {Durability.PROCESS: 0, Durability.CONTENT: 1, Durability.FULL: 2}[durability]
        self._probe()

    def append(self, path: Path, record: Record) -> None:
        self._probe()
        self._disk.append(path, record)
        self._count(path, len(record.model_dump_json()) + 1)
        self._probe()

    def _count(self, path: Path, size_bytes: int) -> None:
        self.written_bytes += size_bytes
        name = "frames" if path.parent.name == "frames" else path.name
        self.bytes_of[name] = self.bytes_of.get(name, 0) + size_bytes


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it happens, no handler included."""


class KillAt:
    """A probe that kills at its `at`-th call and at every later one, so that no clean-up code gets anything done."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls >= self.at:
            raise Killed


@dataclass
class Clock:
    """Wall-clock times that count up by a second each, so that records can be compared."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def make_spec(
    root: Path,
    host: FakeHost,
    *,
    base_url: str = "http://127.0.0.1:1",
    provider: str = "noop",
    script: Path | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    is_resume: bool = False,
    rollout_id: str = "rollout-a",
) -> RolloutSpec:
    """The spec of a rollout on this host, under `root`; its reference is made when it is missing."""
    reference = root / "task" / "reference.png"
    if not reference.exists():
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_bytes(small_png("reference"))
    return RolloutSpec(
        batch_id="batch-a",
        rollout_id=rollout_id,
        run_dir=str(root / "rollouts" / rollout_id),
        task=TaskBrief(
            task_id="bracket",
            prompt="Draw the bracket of the reference picture.",
            host_notes="Type commands on the command line.",
            reference=str(reference),
            reference_sha256=hashlib.sha256(reference.read_bytes()).hexdigest(),
        ),
        choice=ModelChoice(
            provider=provider, model="reference", script=None if script is None else str(script), seed=seed
        ),
        host=host.address(base_url),
        limits=limits or Limits(),
        price=None,
        is_resume=is_resume,
    )


def make_world(
    model: Model,
    host: FakeHost,
    *,
    disk: Disk | None = None,
    desktop: FakeDesktop | None = None,
    ambient: Ambient | None = None,
    on_progress: Callable[[RunState], None] = ignore_progress,
) -> World:
    """A world without threads or network around this model and host."""
    return World(
        model=model,
        desktop=desktop or FakeDesktop(host),
        disk=disk or CountingDisk(),
        disk_bridge=InlineBridge(),
        ambient=ambient or Ambient(utc_now=Clock()),
        on_progress=on_progress,
    )


class FakeBroker:
    """The broker's HTTP API over one `FakeHost`, on a free loopback port. Use it as a context manager.

    `heads` keeps the bytes of every request head, `meddle` may answer a request itself: it gets the handler and returns
    True when it did.
    """

    def __init__(
        self, host: FakeHost, *, token: str = TOKEN, meddle: Callable[[BaseHTTPRequestHandler], bool] | None = None
    ) -> None:
        self.host = host
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self._token = token
        self._meddle = meddle
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler_class())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        broker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                broker._answer(self, b"")

            def do_POST(self) -> None:
                broker._answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.heads.append(f"{handler.requestline}\r\n{handler.headers.as_string()}\r\n".encode())
        self.bodies.append(body)
        if self._meddle is not None and self._meddle(handler):
            return
        try:
            if handler.headers.get("Authorization") != f"Bearer {self._token}":
                raise refusal(ErrorCode.UNAUTHORIZED)
            with self._lock:
                content = self._route(handler.command, handler.path, body)
            status = 200
        except BrokerError as error:
            status = error.status or 500
            content = ErrorBody(code=ErrorCode(error.code), message=error.message).model_dump_json().encode()
        send(handler, status, content)

    def _route(self, method: str, path: str, body: bytes) -> bytes:
        match method, path.partition("?")[0].removeprefix("/v1/").split("/"):
            case "GET", ["health"]:
                return _json(self.host.health())
            case "GET", ["identity"]:
                return _json(self._identity(path.partition("nonce=")[2]))
            case "GET", ["frames", sequence]:
                return self.host.frame(int(sequence))
            case "POST", ["actions"]:
                return _json(self._act(ActionsRequest.model_validate_json(body)))
            case "POST", ["lease" | "heartbeat"]:
                return _json(self._lease())
            case _:
                raise refusal(ErrorCode.NOT_FOUND)

    def _act(self, request: ActionsRequest) -> Receipt:
        if request.lease_id != self.host.lease_id:
            raise refusal(ErrorCode.LEASE_UNKNOWN)
        actions = parse_action_batch({"actions": request.actions}, budget=len(request.actions))
        if isinstance(actions, InvalidActions):
            raise refusal(ErrorCode.INVALID_ACTIONS)
        return self.host.act(request.sequence, actions, request.digest)

    def _lease(self) -> Lease:
        return Lease(
            lease_id=self.host.lease_id,
            generation=self.host.lease_generation,
            rollout_id="rollout-a",
            expires_in_s=60,
        )

    def _identity(self, nonce: str) -> Identity:
        unsigned = Identity(
            nonce=nonce,
            host_id=self.host.host_id,
            boot_id=self.host.boot_id,
            broker_version="1.0",
            started_at="2026-01-01T00:00:00Z",
            proof="0" * 64,
        )
        key = hashlib.sha256(self._token.encode()).hexdigest()
        return unsigned.model_copy(update={"proof": sign_identity(unsigned, token_sha256=key)})


def send(handler: BaseHTTPRequestHandler, status: int, content: bytes) -> None:
    """Answer a request with these bytes, unless whoever asked is gone."""
    try:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)
    except OSError:
        handler.close_connection = True


def _json(record: Record) -> bytes:
    return record.model_dump_json().encode()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a JSON-lines file, which must all be whole."""
    for line in path.read_text().splitlines():
        yield json.loads(line)


def serve_screens(hosts: int) -> None:
    """`python -m tests.fakes N`: N fake brokers with 80 KB frames; prints the address of each as a JSON line.

    Ends with its stdin.
    """
    with ExitStack() as stack:
        for number in range(hosts):
            host = FakeHost(host_id=f"h-{number}", make_png=screen_png)
            broker = stack.enter_context(FakeBroker(host))
            print(host.address(broker.base_url).model_dump_json(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve_screens(int(sys.argv[1]))
