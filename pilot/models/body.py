"""Request bodies as recipes: text that is serialized once, and images that stay files until they are sent.

A body of any length costs memory for its text alone. Its length is known without reading a file, so limits are checked
and `Content-Length` is set before the first byte leaves.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pybase64

from contract.errors import StateError
from contract.rollout_records import ArtifactRef

# Pieces are gathered into chunks of about this many bytes: small ones cost CPU each, large ones memory.
CHUNK_BYTES: Final = 256 * 1024
# A multiple of three, so that base64 of the parts is the base64 of the whole; more than most frames, so that one system
# call reads each.
READ_BYTES: Final = 384 * 1024


@dataclass(frozen=True, slots=True)
class Image:
    """A PNG of the run folder, written into the body as base64."""

    root: Path
    artifact: ArtifactRef

    @property
    def body_bytes(self) -> int:
        """Its length in a body: base64 with padding."""
        return 4 * ((self.artifact.size_bytes + 2) // 3)

    def base64_parts(self) -> Iterator[bytes]:
        """Its base64, in parts. Raises `StateError` when the file is gone or has another size."""
        try:
            # Not `open`: a long history has hundreds of files, and a file object costs as much as reading one.
            descriptor = os.open(f"{self.root}/{self.artifact.path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._check_size(os.fstat(descriptor).st_size)
                left = self.artifact.size_bytes
                while left:
                    part = _read(descriptor, min(left, READ_BYTES))
                    left -= len(part)
                    yield pybase64.b64encode(part)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StateError(f"cannot read {self.root / self.artifact.path}: {error.strerror or error}") from error

    def png(self) -> bytes:
        """The file itself. Raises `StateError`."""
        path = self.root / self.artifact.path
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StateError(f"cannot read {path}: {error.strerror or error}") from error
        self._check_size(len(content))
        return content

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes != self.artifact.size_bytes:
            path = self.root / self.artifact.path
            raise StateError(f"{path} has {size_bytes} bytes, not the {self.artifact.size_bytes} that were recorded")


Piece = bytes | Image


@dataclass(frozen=True, slots=True)
class Body:
    """A request body. `length` is that of the bytes that `chunks` yields."""

    pieces: tuple[Piece, ...]
    length: int

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Body:
        """The body that these pieces make, in order."""
        fixed = tuple(pieces)
        return cls(fixed, length_of(fixed))

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The bytes, gathered into chunks of about that size. Raises `StateError` when an image is not what it was."""
        parts: list[bytes] = []
        size = 0
        for part in self._parts():
            parts.append(part)
            size += len(part)
            if size >= chunk_bytes:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)

    def sha256(self) -> str:
        """Hex digest of the bytes, for signatures."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Equal for equal bodies, and cheap: images count by their checksums."""
        digest = hashlib.sha256()
        for piece in self.pieces:
            digest.update(piece if isinstance(piece, bytes) else piece.artifact.sha256.encode())
        return digest.hexdigest()

    def _parts(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, bytes):
                yield piece
            else:
                yield from piece.base64_parts()


def length_of(pieces: Iterable[Piece]) -> int:
    """How many bytes the pieces are in a body."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.body_bytes for piece in pieces)


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same bytes in as few pieces as possible."""
    out: list[Piece] = []
    run: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            run.append(piece)
            continue
        if run:
            out.append(_joined(run))
            run = []
        out.append(piece)
    if run:
        out.append(_joined(run))
    return tuple(out)


def _joined(run: list[bytes]) -> bytes:
    # The empty end makes a copy of a single piece, too: what orjson returns keeps the kilobytes that it was written in.
    return b"".join((*run, b""))


def _read(descriptor: int, size_bytes: int) -> bytes:
    """Exactly so many bytes. Raises `OSError` when the file has become shorter."""
    part = os.read(descriptor, size_bytes)
    while len(part) < size_bytes:
        more = os.read(descriptor, size_bytes - len(part))
        if not more:
            raise OSError("it became shorter while it was read")
        part += more
    return part
