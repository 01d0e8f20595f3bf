"""The receiver of artifacts: one URL, one file, one use, bounded and verified."""

from __future__ import annotations

import hashlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from contract.broker_api import UploadGrant
from contract.errors import EvaluationError
from supervisor.uploads import LoopbackUploads

BODY = b"0\nSECTION\n" * 1000


@pytest.fixture
def uploads() -> Iterator[LoopbackUploads]:
    with LoopbackUploads.opened() as opened:
        yield opened


def put(grant: UploadGrant, body: bytes, *, path: str | None = None, method: str = "PUT") -> int:
    where = urlsplit(grant.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=10)
    try:
        connection.request(method, path or where.path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def collect(uploads: LoopbackUploads, grant: UploadGrant, body: bytes = BODY) -> Path:
    async def work() -> Path:
        return await uploads.collect(grant, sha256=hashlib.sha256(body).hexdigest(), size_bytes=len(body))

    return anyio.run(work)


def test_a_file_arrives_whole_and_at_its_place(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """Nothing stands at the destination before the file is verified; the folder may not exist yet."""
    dest = tmp_path / "evaluation" / "metadata.json"
    grant = uploads.grant("metadata", bytes_max=100_000, dest=dest)

    status, early = put(grant, BODY), dest.exists()

    assert (200, False) == (status, early)
    assert dest == collect(uploads, grant)
    assert BODY == dest.read_bytes()
    assert [dest] == list(dest.parent.iterdir())


def test_a_url_works_once(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """A second PUT is refused, also with the same bytes, and after the file was collected the URL is unknown."""
    grant = uploads.grant("attempt", bytes_max=100_000, dest=tmp_path / "attempt.dxf")

    statuses = [put(grant, BODY), put(grant, b"other")]
    collect(uploads, grant)

    assert [200, 412] == statuses
    assert 404 == put(grant, BODY)
    assert BODY == (tmp_path / "attempt.dxf").read_bytes()


def test_a_url_cannot_be_guessed_from_another(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """The name is in the path for people; what counts is random."""
    grant = uploads.grant("attempt", bytes_max=10, dest=tmp_path / "a")
    other = uploads.grant("attempt", bytes_max=10, dest=tmp_path / "b")

    assert grant.url != other.url
    assert 404 == put(grant, b"x", path="/attempt")
    assert 404 == put(grant, b"x", path="/../../etc/passwd")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """The bound of the grant is the bound of the disk."""
    grant = uploads.grant("attempt", bytes_max=99, dest=tmp_path / "attempt.dxf")

    assert 413 == put(grant, b"x" * 100)
    assert [] == list(tmp_path.iterdir())


def test_a_torn_upload_is_not_accepted_and_may_be_sent_again(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """A host that dies in the middle leaves nothing; one that lost its connection tries again."""
    grant = uploads.grant("attempt", bytes_max=100_000, dest=tmp_path / "attempt.dxf")
    where = urlsplit(grant.url)

    with socket.create_connection((str(where.hostname), where.port or 0), timeout=10) as line:
        line.sendall(
            f"PUT {where.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY[:50]
        )
        line.shutdown(socket.SHUT_WR)
        answer = line.recv(100)

    assert b"400" in answer.splitlines()[0]
    assert 200 == put(grant, BODY)
    assert BODY == collect(uploads, grant).read_bytes()


def test_a_body_without_a_length_is_refused(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """Its end could not be told from a torn one."""
    grant = uploads.grant("attempt", bytes_max=100_000, dest=tmp_path / "attempt.dxf")
    where = urlsplit(grant.url)

    with socket.create_connection((str(where.hostname), where.port or 0), timeout=10) as line:
        line.sendall(
            f"PUT {where.path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n".encode()
        )
        answer = line.recv(100)

    assert b"411" in answer.splitlines()[0]


def test_what_was_announced_must_be_what_arrived(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """A host that announces other bytes is asked again, with a new grant."""
    grant = uploads.grant("attempt", bytes_max=100_000, dest=tmp_path / "attempt.dxf")
    put(grant, BODY)

    with pytest.raises(EvaluationError, match="were announced") as caught:
        collect(uploads, grant, BODY + b"more")

    assert caught.value.is_retryable
    assert [] == list(tmp_path.iterdir())


def test_an_upload_that_never_came_is_retryable(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """The announcement alone is no file."""
    grant = uploads.grant("attempt", bytes_max=100_000, dest=tmp_path / "attempt.dxf")

    with pytest.raises(EvaluationError, match="nothing arrived"):
        collect(uploads, grant)


def test_only_put_is_served(uploads: LoopbackUploads, tmp_path: Path) -> None:
    """The receiver gives nothing out."""
    grant = uploads.grant("attempt", bytes_max=100_000, dest=tmp_path / "attempt.dxf")

    assert 501 == put(grant, b"", method="GET")


def test_what_nobody_collected_is_removed_at_the_end(tmp_path: Path) -> None:
    """A run folder holds what was verified and nothing else."""
    with LoopbackUploads.opened() as opened:
        put(opened.grant("attempt", bytes_max=100_000, dest=tmp_path / "attempt.dxf"), BODY)

    assert [] == list(tmp_path.iterdir())
