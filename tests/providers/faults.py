"""What can go wrong with an answer, as values that a test queues."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from tests.providers.http import Reply

WIRE: Final = Path(__file__).resolve().parents[1] / "pilot" / "wire"
Kind = Literal["file", "slow", "cut", "drop_before", "drop_after", "lost", "lie", "content_type", "echo"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It befalls the next request of a turn that is valid, and is gone then."""

    kind: Kind
    file: str = ""
    after_bytes: int = 0
    value: Any = None


def recorded(file: str) -> Fault:
    """Answer with a file of `tests/pilot/wire`, for example `openai/err_500.json`."""
    return Fault("file", file=file)


def slow() -> Fault:
    """Keep the good answer back until `Simulator.release`."""
    return Fault("slow")


def cut(after_bytes: int) -> Fault:
    """Send so many bytes of the good answer's body and drop the connection. It is charged."""
    return Fault("cut", after_bytes=after_bytes)


def dropped(*, before_body: bool = False) -> Fault:
    """Reset the connection, before or after the body was read. Nothing is charged."""
    return Fault("drop_before" if before_body else "drop_after")


def lost() -> Fault:
    """Make the good answer, charge for it, and reset the connection instead of sending it."""
    return Fault("lost")


def lie(usage: Any) -> Fault:
    """The good answer with this in the place of its usage."""
    return Fault("lie", value=usage)


def content_type(value: str) -> Fault:
    """The good answer under another content type."""
    return Fault("content_type", value=value)


def echo(status: int) -> Fault:
    """An answer of this status whose text repeats the caller's credentials."""
    return Fault("echo", value=status)


def reply_of_file(file: str) -> Reply:
    """A recorded response."""
    case = orjson.loads((WIRE / file).read_bytes())
    body = case["body"]
    return Reply(case["status"], body.encode() if isinstance(body, str) else orjson.dumps(body), dict(case["headers"]))


def cases(provider: str | None = None) -> list[dict[str, Any]]:
    """The recorded responses of the table, without catalogs: file, outcome, and usage where it is known."""
    table = orjson.loads((WIRE / "index.json").read_bytes())["cases"]
    return [
        case
        for case in table
        if case["kind"] == "response"
        and case["outcome"] != "catalog"
        and "service_quota" not in case["file"]
        and (provider is None or case["file"].startswith(f"{provider}/"))
    ]
