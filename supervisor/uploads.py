"""Where local hosts put their artifacts: a receiver on the loopback interface with URLs that work once.

It does for a host on this machine what presigned S3 requests do for one in the cloud: the host learns one address for
one file of a bounded size, and nothing about where that file will stand.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from contract.broker_api import UploadGrant
from contract.errors import EvaluationError
from contract.records import disk_error, sync_folder

_CHUNK_BYTES: Final = 256 * 1024
# A host on the same machine that sends nothing for this long has died in the middle.
_SOCKET_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class _Entry:
    dest: Path
    scratch: Path
    bytes_max: int
    state: Literal["open", "receiving", "received"] = "open"
    sha256: str = ""
    size_bytes: int = 0


class LoopbackUploads:
    """The receiver of one batch. Use `opened()`; it listens on 127.0.0.1 on a port that the system chooses."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._guard = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.uploads = self

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[LoopbackUploads]:
        """Listen until the block ends; uploads that nobody collected are removed then."""
        uploads = cls()
        thread = threading.Thread(target=uploads._server.serve_forever, args=(0.2,), name="uploads", daemon=True)
        thread.start()
        try:
            yield uploads
        finally:
            uploads._server.shutdown()
            thread.join()
            uploads._server.server_close()
            for entry in uploads._entries.values():
                with suppress(OSError):
                    entry.scratch.unlink(missing_ok=True)

    def grant(self, name: str, *, bytes_max: int, dest: Path) -> UploadGrant:
        """A URL that nobody can guess, for one PUT."""
        key = f"/{secrets.token_urlsafe(24)}/{name}"
        scratch = dest.with_name(f".{dest.name}.{secrets.token_hex(4)}.upload")
        with self._guard:
            self._entries[key] = _Entry(dest=dest, scratch=scratch, bytes_max=bytes_max)
        host, port = self._server.server_address[:2]
        return UploadGrant(url=f"http://{host!s}:{port}{key}", headers={}, bytes_max=bytes_max)

    async def collect(self, grant: UploadGrant, *, sha256: str, size_bytes: int) -> Path:
        """Compare what arrived with what the host announced, then rename it into place. The grant is used up."""
        with self._guard:
            entry = self._entries.pop(urlsplit(grant.url).path, None)
        if entry is None or entry.state != "received":
            raise EvaluationError(
                "the host says that it has uploaded a file, and nothing arrived",
                code="upload_incomplete",
                is_retryable=True,
                hint="Ask the host again with a new grant.",
            )
        if (entry.sha256, entry.size_bytes) != (sha256, size_bytes):
            entry.scratch.unlink(missing_ok=True)
            raise EvaluationError(
                f"{entry.size_bytes} bytes with SHA-256 {entry.sha256[:12]} arrived, "
                f"{size_bytes} bytes with {sha256[:12]} were announced",
                code="upload_damaged",
                is_retryable=True,
                hint="Ask the host again with a new grant.",
            )
        try:
            os.replace(entry.scratch, entry.dest)
            sync_folder(entry.dest.parent)
        except OSError as error:
            raise disk_error(entry.dest, error) from error
        return entry.dest

    def receive(self, path: str, length: int, handler: BaseHTTPRequestHandler) -> int:
        """Take one body in, on the server's thread. Returns the HTTP status."""
        with self._guard:
            entry = self._entries.get(path)
            if entry is None:
                return 404
            if entry.state != "open":
                return 412
            if length > entry.bytes_max:
                return 413
            entry.state = "receiving"
        status = self._store(entry, length, handler)
        with self._guard:
            # As with S3, only a whole upload uses the permission up: a torn one may be sent again.
            entry.state = "received" if status == 200 else "open"
        return status

    def _store(self, entry: _Entry, length: int, handler: BaseHTTPRequestHandler) -> int:
        digest, left = hashlib.sha256(), length
        try:
            entry.scratch.parent.mkdir(exist_ok=True)
            with entry.scratch.open("wb") as file:
                while left:
                    chunk = handler.rfile.read(min(left, _CHUNK_BYTES))
                    if not chunk:
                        break
                    digest.update(chunk)
                    file.write(chunk)
                    left -= len(chunk)
                file.flush()
                os.fsync(file.fileno())
        except TimeoutError:
            left = max(left, 1)
        except OSError:
            entry.scratch.unlink(missing_ok=True)
            return 507
        if left:
            entry.scratch.unlink(missing_ok=True)
            return 400
        entry.sha256, entry.size_bytes = digest.hexdigest(), length
        return 200


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Joining a request thread at the end would wait for a host that hangs.
    block_on_close = False
    uploads: LoopbackUploads


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "uploads"
    sys_version = ""
    timeout = _SOCKET_TIMEOUT_S
    server: _Server

    def do_PUT(self) -> None:
        """The one method. A body without a length is refused: its end could not be told from a torn one."""
        length = self.headers.get("Content-Length", "")
        status = self.server.uploads.receive(self.path, int(length), self) if _is_count(length) else 411
        if status != 200:
            # The rest of a refused body would be read as the next request.
            self.close_connection = True
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Paths are secret until they are used up, so none is logged."""


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 12
