"""How a broker is told to start, and what it says when it did or could not: one JSON line each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from contract.broker_api import BROKER_VERSION, Name, Sha256
from contract.records import Record

START_LINE_BYTES_MAX = 64 * 1024


class StartLine(Record):
    """What the owner writes on the broker's stdin. It keeps stdin open: its end is the end of the desktop.

    `lease_s` bounds the silence until a lease brings its own bound. With `orphan_s` above 0 the broker outlives its
    owner, until so many seconds pass without an authenticated call.
    """

    schema_: Annotated[Literal["autocad-bench.broker-start/1"], Field(alias="schema")]
    host_id: Name
    token_sha256: Sha256
    driver: Literal["librecad", "paper"]
    state_dir: Path
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    lease_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    orphan_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    isolation: Literal["auto", "bubblewrap", "own_uid", "none"] = "auto"


class ReadyLine(Record):
    """The broker listens on `port`."""

    schema_: Annotated[Literal["autocad-bench.broker-ready/1"], Field(alias="schema")] = "autocad-bench.broker-ready/1"
    host_id: str
    boot_id: str
    port: int
    broker_version: str = BROKER_VERSION


class LostLine(Record):
    """The CAD program is lost, and only a reset could bring it back. Said at most once, so that nobody has to ask."""

    schema_: Annotated[Literal["autocad-bench.broker-lost/1"], Field(alias="schema")] = "autocad-bench.broker-lost/1"
    driver_state: Literal["cad_died", "cad_hung", "display_died"]


class FailedLine(Record):
    """The broker could not start and has ended with exit code 1."""

    schema_: Annotated[Literal["autocad-bench.broker-failed/1"], Field(alias="schema")] = (
        "autocad-bench.broker-failed/1"
    )
    code: str
    message: str
    hint: str
