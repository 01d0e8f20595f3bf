"""Uploads: one PUT, as granted, to nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker.refusal import Refusal
from broker.uploads import upload
from contract.broker_api import ErrorCode, UploadGrant


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server that takes what is PUT to /once, and redirects what is PUT to /elsewhere."""
    taken: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.startswith("/once"):
                taken.append((dict(self.headers), body))
                self.send_response(200)
            else:
                self.send_response(307)
                self.send_header("Location", "/once")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", taken
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("content", [b"drawing", b""])
def test_the_file_goes_out_with_the_granted_headers(receiver: Any, tmp_path: Path, content: bytes) -> None:
    """Presigned URLs sign their headers and want a length, also for nothing."""
    url, taken = receiver
    path = tmp_path / "attempt.dxf"
    path.write_bytes(content)
    upload(path, UploadGrant(url=f"{url}/once?X-Signature=abc", headers={"X-Granted": "yes"}, bytes_max=100))

    assert [content] == [body for _, body in taken]
    assert "yes" == taken[0][0]["X-Granted"]


def test_a_redirect_is_not_followed_and_the_query_is_not_told(receiver: Any, tmp_path: Path) -> None:
    """The signature in a URL is a secret while it lasts."""
    url, taken = receiver
    path = tmp_path / "attempt.dxf"
    path.write_bytes(b"x")
    with pytest.raises(Refusal) as caught:
        upload(path, UploadGrant(url=f"{url}/elsewhere?X-Signature=abc", headers={}, bytes_max=100))

    assert caught.value.code is ErrorCode.UPLOAD_FAILED
    assert "abc" not in str(caught.value)
    assert [] == taken


def test_more_than_was_granted_is_not_sent(receiver: Any, tmp_path: Path) -> None:
    """Nor is anything to a receiver that is gone."""
    url, taken = receiver
    path = tmp_path / "attempt.dxf"
    path.write_bytes(b"x" * 101)
    for grant in (
        UploadGrant(url=f"{url}/once", headers={}, bytes_max=100),
        UploadGrant(url="http://127.0.0.1:9/once", headers={}, bytes_max=1_000),
    ):
        with pytest.raises(Refusal) as caught:
            upload(path, grant)

        assert caught.value.code is ErrorCode.UPLOAD_FAILED
    assert [] == taken
