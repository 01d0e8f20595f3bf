"""The contenders of the wire benchmark: ours, the limit, and plain use of the SDK.

Each is a process of its own, so that none pays for another's memory. They take turns, so that all of them meet the same
machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import anyio
import orjson
import pybase64
from bench_specs import KEY, dumped, screen_png
from pydantic import SecretStr

from contract.rollout_records import ArtifactRef, RolloutSpec
from contract.run_dir import RunDir
from pilot.models.body import Body, Image
from pilot.models.clients import Clients
from pilot.models.vendor import VendorModel
from pilot.models.wire import Answer, Client, Request
from pilot.models.wires import wire_for
from pilot.ports import Observation

SDKS = ("openai", "anthropic", "boto3", "botocore", "httpx2", "httpx")
# The typed call takes a tenth of a second, so it plays every third turn.
TYPED_EVERY = 3
SAMPLES_AROUND = 0.12
CALL = json.dumps({"actions": [{"type": "click", "x": 700, "y": 500, "button": "left", "clicks": 1, "modifiers": []}]})


@dataclass(frozen=True)
class Sample:
    """One turn: the size of our request, and the CPU of each contender that played it."""

    mb: float
    cpu_ms: dict[str, float]


def near(samples: list[Sample], mb: float) -> Sample:
    """The medians of the turns whose requests have about this size."""
    close = [sample for sample in samples if abs(sample.mb - mb) <= SAMPLES_AROUND * mb]
    names = {name for sample in close for name in sample.cpu_ms}
    medians = {name: statistics.median(s.cpu_ms[name] for s in close if name in s.cpu_ms) for name in names}
    return Sample(statistics.median(sample.mb for sample in close), medians)


def contest(spec: RolloutSpec, turns: int, names: Sequence[str]) -> list[Sample]:
    """Let these contenders play every turn, one after the other. Ours must be among them."""
    run_dir = RunDir(Path(spec.run_dir))
    run_dir.frames.mkdir(parents=True)
    run_dir.reference.write_bytes(Path(spec.task.reference).read_bytes())
    samples = []
    with ExitStack() as stack:
        children = {name: stack.enter_context(_child(name, spec)) for name in names}
        for turn in range(1, turns + 1):
            path = run_dir.frame(turn)
            path.write_bytes(screen_png(str(turn)))
            text = f"The action was carried out. Actions left: {turns - turn} of {turns}."
            played = {name: _ask(child, [turn, str(path), text]) for name, child in children.items()}
            cpu_ms = {name: cpu_ms for name, (cpu_ms, _) in played.items() if cpu_ms is not None}
            samples.append(Sample(played["ours"][1] / 1e6, cpu_ms))
    return samples


@contextmanager
def _child(name: str, spec: RolloutSpec) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(Path(__file__).resolve())]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(orjson.dumps([name, dumped(spec)]) + b"\n")
    try:
        yield child
    finally:
        child.stdin.close()
        child.wait(10)


def _ask(child: subprocess.Popen[bytes], turn: list[Any]) -> list[Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(orjson.dumps(turn) + b"\n")
    child.stdin.flush()
    answer: list[Any] = orjson.loads(child.stdout.readline())
    return answer


async def play() -> None:
    """Child: be one contender. Says the CPU of each turn in milliseconds, or null, and the size of its request."""
    name, order = orjson.loads(sys.stdin.buffer.readline())
    spec = RolloutSpec.model_validate(order)
    contender = CONTENDERS[name](spec)
    while line := sys.stdin.buffer.readline():
        turn, path, text = orjson.loads(line)
        cpu_ms = await contender.play(turn, Path(path), text)
        print(orjson.dumps([cpu_ms, contender.body_bytes]).decode(), flush=True)


class Contender(Protocol):
    """Somebody who plays turns."""

    body_bytes: int

    async def play(self, turn: int, path: Path, text: str) -> float | None:
        """CPU of one turn in milliseconds; None when this turn was not played."""


class Ours:
    """The pilot's model, as it plays."""

    def __init__(self, spec: RolloutSpec) -> None:
        choice = spec.choice
        assert choice.facts is not None
        key = SecretStr(KEY)
        self._client = _Counting(Clients().client_for(choice, key, choice.facts))
        wire = wire_for(choice.facts, model=choice.model, session_id="bench-wire")
        self._model = VendorModel(spec, choice.facts, wire, self._client, secrets=[key])
        self._root = Path(spec.run_dir)
        self.body_bytes = 0

    async def play(self, turn: int, path: Path, text: str) -> float:
        """CPU of one turn, in milliseconds."""
        content = path.read_bytes()
        artifact = ArtifactRef(
            path=str(path.relative_to(self._root)),
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
        )
        observation = Observation(
            turn=turn,
            sequence=turn - 1,
            frame=artifact,
            frame_path=path,
            after="start" if turn == 1 else "acted",
            text=text,
            actions_left=5000,
        )
        started = time.process_time()
        reply = await self._model.next_turn(observation)
        cpu_ms = (time.process_time() - started) * 1e3
        assert reply.arguments is not None
        self.body_bytes = self._client.body_bytes
        return cpu_ms


class _Counting:
    """A client that remembers how large the last request was."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.refresh_credentials, self.aclose = client.refresh_credentials, client.aclose
        self.body_bytes = 0

    async def send(self, request: Request) -> Answer:
        self.body_bytes = request.body.length
        return await self._client.send(request)


class Limit:
    """The least that can be done: new items are serialized once, all are joined and written, the answer is read.

    Each request is sent twice and the cheaper one counts: joining into memory that is new to the process costs several
    times what the rest does, and a limit should not.
    """

    body_bytes = 0

    def __init__(self, spec: RolloutSpec) -> None:
        parts = urlsplit(spec.choice.endpoint or "")
        assert parts.hostname is not None
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"POST {parts.path}/responses HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: ".encode()
        self._items = [_shown_json("Draw.", RunDir(Path(spec.run_dir)).reference)]

    async def play(self, turn: int, path: Path, text: str) -> float:
        """CPU of one turn, in milliseconds."""
        started = time.process_time()
        call = {"type": "function_call", "call_id": "c", "name": "computer_action", "arguments": CALL}
        result = {"type": "function_call_output", "call_id": "c", "output": text}
        self._items += [orjson.dumps(call), orjson.dumps(result), _shown_json("The desktop now.", path)]
        serialized_ms = (time.process_time() - started) * 1e3
        return serialized_ms + min(_cpu_ms(self._send) for _ in range(2))

    def _send(self) -> None:
        before, joined, after = b'{"model":"m","input":[', b",".join(self._items), b"]}"
        length = len(before) + len(joined) + len(after)
        self._socket.sendall(self._head + b"%d\r\n\r\n" % length + before)
        self._socket.sendall(joined)
        self._socket.sendall(after)
        answer = self._socket.recv(1 << 16)
        orjson.loads(answer.partition(b"\r\n\r\n")[2])


def _shown_json(text: str, path: Path) -> bytes:
    start = b'{"type":"message","role":"user","content":[{"type":"input_text","text":' + orjson.dumps(text)
    image = b'},{"type":"input_image","detail":"high","image_url":"data:image/png;base64,'
    return start + image + pybase64.b64encode(path.read_bytes()) + b'"}]}'


class Typed:
    """What a user of the SDK writes: a list of dicts that grows, given to the typed call."""

    body_bytes = 0

    def __init__(self, spec: RolloutSpec) -> None:
        import openai

        self._sdk = openai.AsyncOpenAI(api_key=KEY, base_url=spec.choice.endpoint, max_retries=0)
        self._model = spec.choice.model
        self._input: list[Any] = [_shown("Draw.", RunDir(Path(spec.run_dir)).reference)]

    async def play(self, turn: int, path: Path, text: str) -> float | None:
        """CPU of one turn, in milliseconds. A turn that it does not play grows its history all the same."""
        self._input += [
            {"type": "function_call", "call_id": "c", "name": "computer_action", "arguments": CALL},
            {"type": "function_call_output", "call_id": "c", "output": text},
            _shown("The desktop now.", path),
        ]
        if turn % TYPED_EVERY:
            return None
        started = time.process_time()
        response = await self._sdk.responses.create(model=self._model, input=self._input)
        assert response.output
        return (time.process_time() - started) * 1e3


def _shown(text: str, path: Path) -> dict[str, Any]:
    url = "data:image/png;base64," + pybase64.b64encode_as_string(path.read_bytes())
    content = [
        {"type": "input_text", "text": text},
        {"type": "input_image", "detail": "high", "image_url": url},
    ]
    return {"type": "message", "role": "user", "content": content}


CONTENDERS: Final[dict[str, Callable[[RolloutSpec], Contender]]] = {"ours": Ours, "limit": Limit, "typed": Typed}


def imported_sdks(spec: RolloutSpec) -> str:
    """Which SDKs a process has imported after one turn of ours."""
    told = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "imports"],
        input=orjson.dumps(dumped(spec)),
        stdout=subprocess.PIPE,
        check=True,
    )
    return told.stdout.decode().strip()


async def tell_imports() -> None:
    """Child: play one turn and print which SDKs that has imported."""
    spec = RolloutSpec.model_validate_json(sys.stdin.buffer.read())
    run_dir = RunDir(Path(spec.run_dir))
    run_dir.frames.mkdir(parents=True)
    run_dir.reference.write_bytes(Path(spec.task.reference).read_bytes())
    run_dir.frame(1).write_bytes(screen_png("1"))
    await Ours(spec).play(1, run_dir.frame(1), "This is the desktop at the start.")
    print(", ".join(sorted(set(SDKS) & set(sys.modules))))


def boto3_ms(url: str) -> float:
    """CPU of boto3's own call with two frames, the median of some."""
    import boto3

    client = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="bench-secret-key",
    )
    content = [{"image": {"format": "png", "source": {"bytes": screen_png(name)}}} for name in ("reference", "frame")]

    def call() -> None:
        client.converse(modelId="m", messages=[{"role": "user", "content": content}])

    return statistics.median(_cpu_ms(call) for _ in range(15))


def signature_ms(mb: float) -> float:
    """CPU of hashing and signing a request of this size, the images read from files; the median of some."""
    from botocore.credentials import ReadOnlyCredentials

    from pilot.models.signing import signed_headers

    with tempfile.TemporaryDirectory() as folder:
        content = os.urandom(80_000)
        (Path(folder) / "frame.png").write_bytes(content)
        image = Image(Path(folder), ArtifactRef(path="frame.png", sha256="0" * 64, size_bytes=len(content)))
        body = Body.of([image] * round(mb * 1e6 / image.body_bytes))

        def sign() -> None:
            signed_headers(
                ReadOnlyCredentials("AKIDEXAMPLE", "bench-secret-key", "bench-session-token"),
                service="bedrock-mantle",
                region="us-east-1",
                url="https://mantle.test/v1/chat/completions",
                body_sha256=body.sha256(),
                at=datetime.now(UTC),
            )

        return statistics.median(_cpu_ms(sign) for _ in range(15))


def _cpu_ms(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e3


if __name__ == "__main__":
    anyio.run(tell_imports if sys.argv[1:] == ["imports"] else play)
