"""How every JSON document on disk is shaped, checked, written and read.

A document has one writer and is replaced, never edited. A JSON-lines file is only appended to; a torn last line
is the mark of a writer that was killed, and readers step over it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError
from pydantic_core import PydanticKnownError

from contract.errors import DiskError, StateError


class Record(BaseModel):
    """A frozen JSON shape that rejects unknown fields, NaN and infinity.

    A field whose JSON name is taken in Python (`schema`, `for`) carries a trailing underscore and an alias.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        populate_by_name=True,
        serialize_by_alias=True,
    )


R = TypeVar("R", bound=Record)


def _parse_usd(value: object) -> object:
    # JSON numbers are binary floats: a price that went through one is no longer the price.
    if isinstance(value, float):
        raise ValueError("money is a decimal string, not a float")
    # Converted here, because strict reading takes a string for no decimal once a function stands before it.
    if isinstance(value, str):
        try:
            return Decimal(value)
        except InvalidOperation:
            raise PydanticKnownError("decimal_parsing") from None
    return Decimal(value) if type(value) is int else value


Usd = Annotated[Decimal, BeforeValidator(_parse_usd), PlainSerializer(lambda d: format(d, "f"), return_type=str)]
"""US dollars, exact; a string in JSON."""


def _format_time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


UtcTime = Annotated[datetime, PlainSerializer(_format_time, return_type=str)]
"""RFC 3339 in UTC with microseconds and a Z."""


class Durability(Enum):
    """What a write survives. A killed process never tears a document, at any level."""

    # The rename alone: a crash of the whole machine may bring the old document back.
    PROCESS = "process"
    # The content is synced before the rename, so a machine crash leaves the old or the new document, whole.
    CONTENT = "content"
    # The folder is synced too: when the call returns, the new document is there to stay.
    FULL = "full"


def dump_pretty(record: Record) -> bytes:
    """UTF-8, keys sorted, two-space indent, one trailing newline: the same record gives the same bytes."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(record.model_dump(mode="json"), option=options)


def write_record(path: Path, record: Record, *, durability: Durability = Durability.FULL) -> None:
    """Replace the document at `path` atomically. Raises `DiskError` when the disk refuses."""
    replace_file(path, dump_pretty(record), durability=durability)


def write_compact_record(path: Path, record: Record, *, durability: Durability) -> None:
    """Like `write_record`, on one line: for documents that are replaced at every turn."""
    replace_file(path, record.model_dump_json().encode() + b"\n", durability=durability)


def replace_file(path: Path, content: bytes, *, durability: Durability = Durability.FULL) -> None:
    """Scratch file, sync, rename, sync folder. Raises `DiskError` naming the file; the old content stays then."""
    scratch = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_all(descriptor, content)
            if durability is not Durability.PROCESS:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(scratch, path)
        if durability is Durability.FULL:
            sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_error(path: Path, error: OSError) -> DiskError:
    """One line that names the file and what to do; `error` is what the system said."""
    if error.errno == errno.ENOENT:
        hint = "Its folder was moved or removed while it was in use; put it back, then resume the batch."
    else:
        hint = "Free space on that disk, or make its folder writable, then resume the batch."
    return DiskError(f"cannot write {path}: {error.strerror or error}", hint=hint)


def read_record(path: Path, kind: type[R]) -> R:
    """Read and check one document. Raises `StateError` when it is missing, torn or of another shape."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror or error}",
            hint="Name an existing run folder that you may read.",
        ) from error
    return parse_record(content, kind, source=str(path))


def may_be_file(path: Path) -> bool:
    """False where there is surely no file. Where we may not look it is true: reading then says why not."""
    try:
        return path.is_file()
    except OSError:
        return True


def parse_record(content: bytes, kind: type[R], *, source: str) -> R:
    """Check one JSON document; `source` is how the error names it."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise StateError(
            f"{source} is not a valid {kind.__name__}: {first_problem(error)}",
            hint="The file is torn or was made by another version; restore it or leave this rollout out.",
        ) from error


def first_problem(error: ValidationError) -> str:
    """The first thing pydantic found, as `field: what`."""
    item = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in item["loc"]) or "document"
    return f"{where}: {item['msg']}"


class LineAppender:
    """Appends records to one JSON-lines file; each line is one `write`, so a killed writer tears the last at most.

    Opened for append by its one writer. Lines are not synced one by one; `sync` does it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_written = 0
        self._may_be_torn = False
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._end_torn_line()
        except OSError as error:
            raise disk_error(path, error) from error

    def _end_torn_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            _write_all(self._descriptor, b"\n")

    def append(self, record: Record | dict[str, Any]) -> None:
        """Add one line. Raises `DiskError`; the part of it that may then stand in the file spoils no later line."""
        line = record.model_dump_json().encode() if isinstance(record, Record) else orjson.dumps(record)
        try:
            if self._may_be_torn:
                self._end_torn_line()
                self._may_be_torn = False
            _write_all(self._descriptor, line + b"\n")
        except OSError as error:
            self._may_be_torn = True
            raise disk_error(self.path, error) from error
        self.bytes_written += len(line) + 1

    def sync(self) -> None:
        """Make all lines so far durable."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise disk_error(self.path, error) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each whole JSON object of a JSON-lines file; a missing file has none, a torn line is passed over.

    A torn line is the last one, or one that a later writer closed off with a newline.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content.split(b"\n"):
        if not line:
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict):
            yield value
