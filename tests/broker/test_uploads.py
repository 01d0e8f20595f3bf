"""Uploads: one PUT, as granted, to nowhere else."""

from __future__ import annotations

import logging
import threading
from collections import Counter
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
    """A server that takes what is PUT to /once, and redirects what is PUT to /elsewhere.

    Under /store it does what the rest of the path says, one word for each try: `take`, `lose` (take it and hang up),
    `drop` (hang up), or a status.
    """
    taken: list[tuple[dict[str, str], bytes]] = []
    tries: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.startswith("/store/"):
                self._do(self.path.partition("?")[0].split("/")[2:][tries[self.path]], body)
                return
            if self.path.startswith("/once"):
                taken.append((dict(self.headers), body))
                self.send_response(200)
            else:
                self.send_response(307)
                self.send_header("Location", "/once")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _do(self, word: str, body: bytes) -> None:
            tries[self.path] += 1
            if word in ("take", "lose"):
                taken.append((dict(self.headers), body))
            if word in ("lose", "drop"):
                self.close_connection = True
                return
            self.send_response(200 if word == "take" else int(word))
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


@pytest.mark.parametrize(
    ("story", "arrived"),
    [
        # The first answer was lost: the second try is whole again, from the first byte.
        ("drop/take", 1),
        ("lose/take", 2),
        # The first arrived and its answer was lost: a grant for one use refuses the second.
        ("lose/412", 1),
        ("503/take", 1),
        ("500/412", 0),
    ],
)
def test_a_lost_put_is_sent_once_more(receiver: Any, tmp_path: Path, story: str, arrived: int) -> None:
    """A write-once store that refuses the second has the first; the controller measures what lies there."""
    url, taken = receiver
    path = tmp_path / "attempt.dxf"
    path.write_bytes(b"drawing" * 50_000)
    upload(path, UploadGrant(url=f"{url}/store/{story}", headers={"If-None-Match": "*"}, bytes_max=1_000_000))

    assert [b"drawing" * 50_000] * arrived == [body for _, body in taken]


@pytest.mark.parametrize(
    "story", ["drop/drop/take", "412/take", "403/take", "503/503/take", "drop/403/take", "400/412"]
)
def test_a_put_that_is_refused_or_lost_twice_fails(
    receiver: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, story: str
) -> None:
    """A store that refuses a first try holds something else under this name. Nothing tells the URL, logs included."""
    url, taken = receiver
    path = tmp_path / "attempt.dxf"
    path.write_bytes(b"drawing")
    grant = UploadGrant(url=f"{url}/store/{story}?X-Amz-Signature=abc", headers={}, bytes_max=100)
    with caplog.at_level(logging.DEBUG, logger="broker"), pytest.raises(Refusal) as caught:
        upload(path, grant)

    assert caught.value.code is ErrorCode.UPLOAD_FAILED
    assert [] == taken
    assert "abc" not in str(caught.value) + caplog.text


def test_a_url_that_is_none_is_not_told_either(tmp_path: Path) -> None:
    """The library's own error names it, so that error goes no further."""
    path = tmp_path / "attempt.dxf"
    path.write_bytes(b"x")
    with pytest.raises(Refusal) as caught:
        upload(path, UploadGrant(url="nowhere://x/?X-Amz-Signature=abc", headers={}, bytes_max=100))

    assert "abc" not in str(caught.value)
    assert caught.value.__suppress_context__
