"""Uploads by way of a bucket: one presigned request, one object, verified before anything stands in its place."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import anyio
import pytest
import requests
from botocore.exceptions import ClientError, ReadTimeoutError, TokenRetrievalError
from moto.server import ThreadedMotoServer

from broker.uploads import upload
from contract.ambient import Ambient
from contract.bridge import ThreadBridge
from contract.broker_api import UploadGrant
from contract.errors import BenchError, DiskError, EvaluationError
from evaluator_client.ports import UploadStore
from supervisor.cloud.clients import AwsClients, open_clients
from supervisor.s3_uploads import FETCH_S_MAX, PATIENCE_S, S3Uploads

BODY = bytes(range(256)) * 2_500
BUCKET = "artifacts"


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsClients]:
    """Moto's own server on a port of this machine; it checks no signatures."""
    nowhere = tmp_path_factory.mktemp("aws")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        set_account(patch, nowhere)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        opened = open_clients(region="us-east-1", profile=None)
        opened.s3.create_bucket(Bucket=BUCKET)
        yield opened
        opened.close()
    server.stop()


def set_account(patch: pytest.MonkeyPatch, nowhere: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    patch.setenv("AWS_CONFIG_FILE", str(nowhere / "config"))
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nowhere / "credentials"))
    patch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    patch.setenv("AWS_SESSION_TOKEN", "canary-token")


async def no_wait(_: float) -> None:
    """Pauses between tries take no time here."""


def uploads_with(clients: Any, ambient: Ambient | None = None) -> S3Uploads:
    bridge = ThreadBridge(2)
    return S3Uploads(clients, bucket=BUCKET, batch_id="b-1", bridge=bridge, ambient=ambient or Ambient(sleep=no_wait))


@pytest.fixture
def uploads(clients: AwsClients) -> S3Uploads:
    return uploads_with(clients)


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "rollouts" / "oracle-line" / "evaluation" / "metadata.json"


def put(grant: UploadGrant, body: bytes = BODY) -> int:
    return requests.put(grant.url, data=body, headers=grant.headers, timeout=10).status_code


def collect(uploads: S3Uploads, grant: UploadGrant, body: bytes = BODY) -> Path:
    async def work() -> Path:
        return await uploads.collect(grant, sha256=hashlib.sha256(body).hexdigest(), size_bytes=len(body))

    return anyio.run(work)


def refused(uploads: S3Uploads, grant: UploadGrant, body: bytes = BODY) -> EvaluationError:
    with pytest.raises(EvaluationError) as caught:
        collect(uploads, grant, body)
    shown = str(caught.value) + repr(caught.value)
    assert not [word for word in ("canary", "http", "X-Amz", grant.url) if word in shown]
    return caught.value


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def key_of(grant: UploadGrant) -> list[str]:
    return unquote(urlsplit(grant.url).path).removeprefix(f"/{BUCKET}").strip("/").split("/")


def test_a_host_uploads_and_the_file_stands_verified(uploads: S3Uploads, dest: Path, tmp_path: Path) -> None:
    """By the broker's own hand. Nothing stands at the destination before, and nothing else after."""
    source = tmp_path / "host" / "drawing"
    source.parent.mkdir()
    source.write_bytes(BODY)
    store: UploadStore = uploads
    grant = store.grant("metadata", bytes_max=10_000_000, dest=dest)

    upload(source, grant)
    early = dest.exists()

    assert (False, dest) == (early, collect(uploads, grant))
    assert BODY == dest.read_bytes()
    assert [dest] == list(dest.parent.iterdir())


def test_an_empty_file_is_a_file(uploads: S3Uploads, dest: Path) -> None:
    """A model may leave nothing in it; that is for the score to say."""
    grant = uploads.grant("attempt", bytes_max=10, dest=dest)

    assert (200, dest) == (put(grant, b""), collect(uploads, grant, b""))
    assert b"" == dest.read_bytes()


@pytest.mark.parametrize(
    ("name", "content_type"),
    [("metadata.json", "application/json"), ("render.png", "image/png"), ("attempt.dxf", "application/octet-stream")],
)
def test_a_grant_is_signed_in_version_4_over_type_and_write_once(
    uploads: S3Uploads, tmp_path: Path, name: str, content_type: str
) -> None:
    """Version 2 would sign neither, and a header that is not signed need not be sent."""
    grant = uploads.grant(name, bytes_max=10, dest=tmp_path / name)

    query = parse_qs(urlsplit(grant.url).query)
    assert ["AWS4-HMAC-SHA256"] == query["X-Amz-Algorithm"]
    assert ["content-type;host;if-none-match"] == query["X-Amz-SignedHeaders"]
    assert ["900"] == query["X-Amz-Expires"]
    assert {
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Security-Token",
        "X-Amz-Signature",
    } == query.keys()
    assert {"Content-Type": content_type, "If-None-Match": "*"} == grant.headers
    assert ("PUT", 10) == (grant.method, grant.bytes_max)


@pytest.mark.parametrize("region", ["us-east-1", "eu-west-1"])
def test_on_aws_itself_a_grant_names_the_bucket_in_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    """us-east-1 is where the SDK would otherwise presign in version 2."""
    set_account(monkeypatch, tmp_path)
    opened = open_clients(region=region, profile=None)

    grant = uploads_with(opened).grant("render", bytes_max=10, dest=tmp_path / "render.png")

    assert f"https://{BUCKET}.s3.{region}.amazonaws.com" == grant.url.partition("/b-1/")[0]
    opened.close()


def test_each_request_has_a_key_that_nobody_can_guess(uploads: S3Uploads, dest: Path) -> None:
    """Batch, rollout and name are for people who look into the bucket; what counts is random."""
    grants = [uploads.grant("metadata", bytes_max=10, dest=dest) for _ in range(2)]
    grants.append(uploads.grant("attempt", bytes_max=10, dest=dest.parent.parent / "attempt.dxf"))

    keys = [key_of(grant) for grant in grants]

    assert ["b-1", "oracle-line", "evaluation"] == keys[0][:3] == keys[1][:3] == keys[2][:3]
    assert ["metadata", "metadata", "attempt"] == [key[4] for key in keys]
    assert 3 == len({key[3] for key in keys})
    assert {32} == {len(key[3]) for key in keys}


def test_a_url_works_once(uploads: S3Uploads, dest: Path) -> None:
    """The second PUT is refused, and the first one's bytes stay; collecting uses the grant up."""
    grant = uploads.grant("metadata", bytes_max=10_000_000, dest=dest)

    statuses = [put(grant), put(grant, b"other")]

    assert [200, 412] == statuses
    assert BODY == collect(uploads, grant).read_bytes()
    assert "upload_incomplete" == refused(uploads, grant).code


def test_a_file_that_is_too_large_is_not_fetched(uploads: S3Uploads, dest: Path) -> None:
    """A presigned PUT bounds no size, so the bound of the grant is checked before a byte is taken."""
    grant = uploads.grant("metadata", bytes_max=len(BODY) - 1, dest=dest)
    put(grant)

    error = refused(uploads, grant)

    assert ("upload_damaged", True) == (error.code, error.is_retryable)
    assert [] == files_in(dest.parents[3])


@pytest.mark.parametrize("announced", [BODY + b"x", BODY[:-1], b""])
def test_an_object_of_another_size_is_not_read(uploads: S3Uploads, dest: Path, announced: bytes) -> None:
    """Its length stands in the head of the answer."""
    grant = uploads.grant("metadata", bytes_max=10_000_000, dest=dest)
    put(grant)

    error = refused(uploads, grant, announced)

    assert ("upload_damaged", True) == (error.code, error.is_retryable)
    assert f"{len(BODY)} bytes were uploaded, {len(announced)} were announced" == error.message
    assert [] == files_in(dest.parents[3])


def test_other_bytes_of_the_same_size_are_refused(uploads: S3Uploads, dest: Path) -> None:
    """A file is what the host measured, or it is none."""
    grant = uploads.grant("metadata", bytes_max=10_000_000, dest=dest)
    put(grant)

    error = refused(uploads, grant, BODY[::-1])

    assert ("upload_damaged", True) == (error.code, error.is_retryable)
    assert [] == files_in(dest.parents[3])


def test_an_upload_that_never_came_is_asked_for_again(uploads: S3Uploads, dest: Path) -> None:
    """The announcement alone is no file. Asking S3 again would not bring it."""
    grant = uploads.grant("metadata", bytes_max=10_000_000, dest=dest)

    error = refused(uploads, grant)

    assert ("upload_incomplete", True) == (error.code, error.is_retryable)


@dataclass(slots=True)
class Body:
    """An object's content as the SDK streams it. An error among the chunks is raised in its turn."""

    chunks: list[Any]
    is_closed: bool = False

    def read(self, _: int) -> bytes:
        chunk = self.chunks.pop(0) if self.chunks else b""
        if isinstance(chunk, BaseException):
            raise chunk
        return chunk

    def close(self) -> None:
        self.is_closed = True


@dataclass(slots=True)
class ScriptedS3:
    """Clients whose S3 presigns like the real one and answers what it is told; an exception is raised."""

    real: AwsClients
    answers: Iterable[dict[str, Any] | Exception]
    renewals: int = 0
    asked: int = 0
    _left: Iterator[dict[str, Any] | Exception] = field(init=False)

    def __post_init__(self) -> None:
        self._left = iter(self.answers)

    @property
    def s3(self) -> ScriptedS3:
        return self

    def generate_presigned_url(self, *arguments: Any, **parameters: Any) -> Any:
        return self.real.s3.generate_presigned_url(*arguments, **parameters)

    def get_object(self, **_: Any) -> dict[str, Any]:
        self.asked += 1
        answer = next(self._left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def renew_credentials(self) -> None:
        self.renewals += 1


def said(code: str, status: int) -> ClientError:
    response = {
        "Error": {"Code": code, "Message": "see https://x/?X-Amz-Signature=canary"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}},
    }
    return ClientError(response, "GetObject")


def whole() -> dict[str, Any]:
    return {"ContentLength": len(BODY), "Body": Body([BODY[:1_000], BODY[1_000:]])}


LOST = ReadTimeoutError(endpoint_url="https://x/?X-Amz-Signature=canary")
RESET = ConnectionResetError(104, "canary")


@pytest.mark.parametrize(
    ("first", "renewals"),
    [
        ([LOST, said("SlowDown", 503)], 0),
        ([said("InternalError", 500), RESET], 0),
        ([said("ExpiredToken", 400)], 1),
        ([said("RequestTimeTooSkewed", 403), LOST], 1),
    ],
)
def test_a_fetch_that_fails_on_its_way_is_tried_again(
    clients: AwsClients, dest: Path, first: list[Exception], renewals: int
) -> None:
    """The object is there; having the host export it again would cost minutes. Credentials are found again first."""
    scripted = ScriptedS3(clients, [*first, whole()])
    uploads = uploads_with(scripted)

    fetched = collect(uploads, uploads.grant("metadata", bytes_max=10_000_000, dest=dest))

    assert BODY == fetched.read_bytes()
    assert (len(first) + 1, renewals) == (scripted.asked, scripted.renewals)


def test_a_stream_that_breaks_begins_again(clients: AwsClients, dest: Path) -> None:
    """What came before the break is thrown away, connection included."""
    broken = Body([BODY[:1_000], RESET])
    uploads = uploads_with(ScriptedS3(clients, [{"ContentLength": len(BODY), "Body": broken}, whole()]))

    fetched = collect(uploads, uploads.grant("metadata", bytes_max=10_000_000, dest=dest))

    assert (BODY, True) == (fetched.read_bytes(), broken.is_closed)
    assert [dest] == files_in(dest.parents[3])


@dataclass
class Clock:
    """Time that passes only in pauses."""

    now_s: float = 0.0

    async def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s

    def ambient(self) -> Ambient:
        return Ambient(sleep=self.sleep, elapsed_s=lambda: self.now_s, chance=random.Random(1))


@pytest.mark.parametrize("answer", [LOST, said("ExpiredToken", 400), said("SlowDown", 503)])
def test_a_fetch_outlasts_an_outage_of_a_minute(
    clients: AwsClients, dest: Path, answer: dict[str, Any] | Exception
) -> None:
    """A rollout that was played to its end is not given up for what passes."""
    clock = Clock()

    def answers() -> Iterator[dict[str, Any] | Exception]:
        while clock.now_s < 60:
            yield answer
        yield {"ContentLength": len(BODY), "Body": Body([BODY])}

    uploads = uploads_with(ScriptedS3(clients, answers()), clock.ambient())

    fetched = collect(uploads, uploads.grant("metadata", bytes_max=10_000_000, dest=dest))

    assert BODY == fetched.read_bytes()


@pytest.mark.parametrize("answer", [LOST, said("ExpiredToken", 400)])
def test_a_fetch_that_never_succeeds_is_given_up_in_time(
    clients: AwsClients, dest: Path, answer: dict[str, Any] | Exception
) -> None:
    """Its host costs money meanwhile; it may then be asked for a new upload."""
    clock = Clock()
    uploads = uploads_with(ScriptedS3(clients, repeat(answer)), clock.ambient())

    error = refused(uploads, uploads.grant("metadata", bytes_max=10_000_000, dest=dest))

    assert ("upload_incomplete", True) == (error.code, error.is_retryable)
    assert PATIENCE_S / 2 < clock.now_s < PATIENCE_S
    assert [] == files_in(dest.parents[3])


@pytest.mark.parametrize("answer", [said("AccessDenied", 403), said("NoSuchBucket", 404)])
def test_a_refusal_of_a_fetch_is_final(clients: AwsClients, dest: Path, answer: dict[str, Any] | Exception) -> None:
    """What will not pass is asked for once."""
    scripted = ScriptedS3(clients, [answer])
    uploads = uploads_with(scripted)

    error = refused(uploads, uploads.grant("metadata", bytes_max=10_000_000, dest=dest))

    assert ("upload_incomplete", True, 1) == (error.code, error.is_retryable, scripted.asked)
    assert [] == files_in(dest.parents[3])


@pytest.mark.parametrize("chunks", [[BODY, b"more"], [BODY[:-1]], [b""], [BODY + b"x" * 10_000_000]])
def test_a_stream_that_is_not_as_long_as_its_head_says_is_refused(
    clients: AwsClients, dest: Path, chunks: list[bytes | Exception]
) -> None:
    """Reading ends at the announced size, so a stream without an end fills no disk."""
    uploads = uploads_with(ScriptedS3(clients, [{"ContentLength": len(BODY), "Body": Body(chunks)}]))

    error = refused(uploads, uploads.grant("metadata", bytes_max=10_000_000, dest=dest))

    assert ("upload_damaged", True) == (error.code, error.is_retryable)
    assert [] == files_in(dest.parents[3])


def test_a_stream_that_crawls_is_given_up(clients: AwsClients, dest: Path) -> None:
    """A byte at a time keeps every socket timeout quiet."""
    clock = iter(range(0, 1_000_000, int(FETCH_S_MAX)))
    uploads = uploads_with(
        ScriptedS3(clients, [{"ContentLength": len(BODY), "Body": Body([b"x"] * 100)}]),
        Ambient(sleep=no_wait, elapsed_s=lambda: float(next(clock))),
    )

    error = refused(uploads, uploads.grant("metadata", bytes_max=10_000_000, dest=dest))

    assert "upload_incomplete" == error.code
    assert [] == files_in(dest.parents[3])


def test_a_fetch_that_dies_before_the_rename_leaves_nothing(clients: AwsClients, dest: Path) -> None:
    """Whatever ends it, half a file is not taken for one, and the scratch file is gone."""

    class Killed(BaseException):
        """Stands for what no handler expects."""

    uploads = uploads_with(ScriptedS3(clients, [{"ContentLength": len(BODY), "Body": Body([BODY, Killed()])}]))
    grant = uploads.grant("metadata", bytes_max=10_000_000, dest=dest)

    with pytest.raises(Killed):
        collect(uploads, grant)

    assert [] == files_in(dest.parents[3])


def test_a_destination_that_cannot_be_written_is_a_fault_of_the_disk(clients: AwsClients, dest: Path) -> None:
    """Not of the host, which would upload again in vain. The scratch file is gone as well."""
    (dest / "in-the-way").mkdir(parents=True)
    uploads = uploads_with(ScriptedS3(clients, [whole()]))

    with pytest.raises(DiskError, match=r"metadata\.json"):
        collect(uploads, uploads.grant("metadata", bytes_max=10_000_000, dest=dest))

    assert [] == files_in(dest.parents[3])


def test_a_grant_without_credentials_says_so(clients: AwsClients, dest: Path) -> None:
    """They may have ended with the operator's log-in."""

    class NoKeys(ScriptedS3):
        def generate_presigned_url(self, *_: Any, **__: Any) -> Any:
            raise TokenRetrievalError(provider="sso", error_msg="canary")

    with pytest.raises(BenchError, match="TokenRetrievalError") as caught:
        uploads_with(NoKeys(clients, [])).grant("metadata", bytes_max=10, dest=dest)

    assert "canary" not in str(caught.value) + repr(caught.value)
