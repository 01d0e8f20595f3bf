"""A loopback server that has the model lists of all six vendors, from the recorded answers, and can be made to fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

WIRE = Path(__file__).parent / "pilot" / "wire"
ACCESS_KEY = "AKIDEXAMPLELISTS"
SECRET_KEY = "canary-aws-secret-key-0123456789abcdef"
KEYS = {
    "OPENAI_API_KEY": "sk-canary-openai-0123456789",
    "OPENROUTER_API_KEY": "sk-or-canary-0123456789",
    "ANTHROPIC_API_KEY": "sk-ant-canary-0123456789",
    "FIREWORKS_API_KEY": "fw_canary_0123456789",
}
PATHS = {
    "/openai/v1/models": "openai/list_models",
    "/openrouter/api/v1/models": "openrouter/list_models",
    "/anthropic/v1/models": "anthropic/list_models",
    "/fireworks/inference/v1/models": "fireworks/list_models",
    "/fireworks/v1/accounts/fireworks/models/kimi-k2p6": "fireworks/get_model",
    "/mantle/v1/models": "mantle/list_models",
    "/bedrock/foundation-models": "bedrock/list_foundation_models",
    "/bedrock/inference-profiles": "bedrock/list_inference_profiles",
}

Fault = Callable[[BaseHTTPRequestHandler], None]


def recorded(case: str) -> Any:
    """The body of a recorded answer."""
    return json.loads((WIRE / f"{case}.json").read_text())["body"]


@dataclass(slots=True)
class Seen:
    """One request as it came. Header names are in lower case."""

    path: str
    headers: dict[str, str]


@dataclass(slots=True)
class ListServer:
    """What it answers. `bodies` and `faults` are by path; a fault comes first."""

    port: int
    bodies: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def reset(self) -> None:
        """Every list as recorded, no fault, nothing seen."""
        self.bodies = {path: recorded(case) for path, case in PATHS.items()}
        self.faults = {}
        self.seen = []

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def endpoints(self) -> dict[str, str]:
        """The config's `endpoints`: base URLs as each SDK takes them."""
        paths = {"openai": "/v1", "openrouter": "/api/v1", "anthropic": "", "fireworks": "/inference/v1"}
        paths |= {"mantle": "/v1", "bedrock": ""}
        return {provider: f"{self.root}/{provider}{path}" for provider, path in paths.items()}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        self.seen.append(Seen(handler.path, {name.lower(): value for name, value in handler.headers.items()}))
        fault = self.faults.get(url.path)
        if fault is not None:
            fault(handler)
        elif url.path in self.bodies:
            is_later = url.path == "/anthropic/v1/models" and "after_id" in parse_qs(url.query)
            body = recorded("anthropic/list_models_page2") if is_later else self.bodies[url.path]
            send(handler, 200, json.dumps(body).encode())
        else:
            send(handler, 404, b"{}")


def send(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, *, kind: str = "application/json", **headers: str
) -> None:
    """One whole answer."""
    handler.send_response(status)
    for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def status(code: int, body: bytes = b'{"error": {"code": "some_code"}}', **headers: str) -> Fault:
    """An answer with this status."""
    return lambda handler: send(handler, code, body, **headers)


def html(handler: BaseHTTPRequestHandler) -> None:
    """What a proxy says in place of a list."""
    send(handler, 200, b"<html>sign in</html>", kind="text/html")


def cut(handler: BaseHTTPRequestHandler) -> None:
    """Half of an answer, then silence for good."""
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [')


def cut_json(handler: BaseHTTPRequestHandler) -> None:
    """A whole answer whose JSON is not."""
    send(handler, 200, b'{"data": [')


@contextmanager
def list_server() -> Iterator[ListServer]:
    """A server until the block ends."""
    world: ListServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            world.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        world = ListServer(server.server_port)
        world.reset()
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield world
        finally:
            world.closing.set()
            server.shutdown()
            thread.join()


ASSIGNMENTS: tuple[tuple[str, str], ...] = (
    ("openai", "gpt-5.6-sol"),
    ("openrouter", "anthropic/claude-opus-5"),
    ("anthropic", "claude-fable-5"),
    ("fireworks", "accounts/fireworks/routers/kimi-k2p6-fast"),
    ("mantle", "moonshotai.kimi-k2.5"),
    ("bedrock", "us.anthropic.claude-opus-5"),
)


def use_all(config: dict[str, Any], server: ListServer, task: str = "dot") -> None:
    """Make the config play one task with a model of each vendor, whose lists this server has."""
    config.pop("task_suite", None)
    config["rollouts"] = [
        {"rollout_id": f"r-{provider}", "task": task, "provider": provider, "model": model}
        for provider, model in ASSIGNMENTS
    ]
    config["expected_rollouts"] = len(ASSIGNMENTS)
    config["endpoints"] = server.endpoints
    config["aws"] = {"region": "us-east-1"}
    config["pricing"] = "unpriced"
