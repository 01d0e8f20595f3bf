"""A loopback server that stands in for OpenAI's Responses API as a judge sees it, and can be made to fail."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

from tests.judge_fakes import answer_text
from tests.list_server import send

Answer = Callable[[BaseHTTPRequestHandler, "Request"], None]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came. Header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def pictures(self) -> tuple[bytes, bytes]:
        """The reference and the candidate, by what the request says which is which."""
        parts = self.body["input"][0]["content"]
        urls = [part["image_url"] for part in parts if part["type"] == "input_image"]
        first, second = (base64.b64decode(url.partition(",")[2]) for url in urls)
        return (first, second) if parts[0]["text"].startswith("IMAGE 1 is the reference") else (second, first)


def response(text: str | None, **changes: Any) -> dict[str, Any]:
    """A response object with one message; `None` leaves the message out."""
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "id": "resp_0a1",
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "seer-1-2026-09-01",
        "output": [{"type": "reasoning", "id": "rs_1", "summary": []}, *([message] if text is not None else [])],
        "usage": {
            "input_tokens": 1000,
            "input_tokens_details": {"cached_tokens": 400},
            "output_tokens": 100,
            "output_tokens_details": {"reasoning_tokens": 20},
            "total_tokens": 1100,
        },
        **changes,
    }


def says(text: str | None, **changes: Any) -> Answer:
    """A whole response."""
    return lambda handler, request: send(handler, 200, json.dumps(response(text, **changes)).encode())


def refuses(handler: BaseHTTPRequestHandler, request: Request) -> None:
    """A completed response whose message is a refusal."""
    content = [{"type": "refusal", "refusal": "I cannot help with that."}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    send(handler, 200, json.dumps(response(None, output=output)).encode())


def looks(handler: BaseHTTPRequestHandler, request: Request) -> None:
    """An honest judge that counts ink: its grades fall with what the candidate lacks and what it has too much."""
    reference, candidate = (_ink(png) for png in request.pictures)
    if not candidate:
        text = answer_text(0, "blank", extraneous=4)
    else:
        both = len(reference & candidate)
        recall, precision = both / max(1, len(reference)), both / len(candidate)
        grade, extra = round(4 * recall), round(4 * precision)
        errors = ("wrong_object",) if precision < 0.3 else ()
        text = answer_text(grade, *errors, extraneous=extra)
    send(handler, 200, json.dumps(response(text)).encode())


def _ink(png: bytes) -> set[int]:
    with Image.open(io.BytesIO(png)) as image:
        grey = image.convert("L").resize((200, 150), Image.Resampling.BOX).tobytes()
    return {index for index, value in enumerate(grey) if value < 250}


@dataclass(slots=True)
class JudgeServer:
    """Answers with `answers` in order, then with `usual`."""

    port: int
    usual: Answer = looks
    answers: list[Answer] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def digests(self) -> list[tuple[str, ...]]:
        """What each request showed, by SHA-256, reference first."""
        return [tuple(hashlib.sha256(png).hexdigest() for png in request.pictures) for request in self.seen]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length", "0"))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Request(handler.path, headers, json.loads(handler.rfile.read(length)))
        self.seen.append(request)
        (self.answers.pop(0) if self.answers else self.usual)(handler, request)


@contextmanager
def judge_server() -> Iterator[JudgeServer]:
    """A server until the block ends."""
    world: JudgeServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            world.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        # A handler that trickles for ever must not keep the block from ending.
        server.block_on_close = False
        world = JudgeServer(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield world
        finally:
            server.shutdown()
            thread.join()
