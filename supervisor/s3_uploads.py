"""Where hosts on EC2 put their artifacts: objects of a bucket, each by a presigned request that works once.

A host learns one address for one object, for a quarter of an hour, and needs no permission of its own. What it puts
there is fetched with the controller's credentials and compared with what it announced before it counts as a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.broker_api import UploadGrant
from contract.errors import EvaluationError
from contract.records import disk_error, sync_folder
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.cloud.clients import AwsClients
from supervisor.cloud.faults import fault_of
from supervisor.cloud.ports import CloudError, FaultKind
from supervisor.hosts.ec2_asking import jittered_s

# The request is made when the host is about to upload. 64 MiB at 1 MB/s take about a minute.
GRANT_S: Final = 900
# The largest artifact at a crawling 1 MB/s; without an end a fetch would hold its thread for ever.
FETCH_S_MAX: Final = 600.0
# A fetch that fails on its way is tried again for so long: the rollout has been paid for. An evaluation fetches three
# objects, and has ten minutes for all of it.
PATIENCE_S: Final = 120.0

_ACTION: Final = "s3:GetObject"
_CHUNK_BYTES: Final = 256 * 1024
_CONTENT_TYPES: Final = {".png": "image/png", ".json": "application/json"}
# Worth another try: the object may be there, and the store or the signature was the trouble.
_TRANSIENT: Final = frozenset({FaultKind.AMBIGUOUS, FaultKind.THROTTLE, FaultKind.SIGNING})


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    dest: Path
    bytes_max: int


class S3Uploads:
    """The uploads of one batch. `bridge` carries the fetches, which bound themselves in time."""

    def __init__(
        self, clients: AwsClients, *, bucket: str, batch_id: str, bridge: Bridge, ambient: Ambient | None = None
    ) -> None:
        self._clients = clients
        self._bucket = bucket
        self._batch_id = batch_id
        self._bridge = bridge
        self._ambient = ambient if ambient is not None else Ambient()
        # By the grant's URL. A grant belongs to whoever has it, and so does the object behind it.
        self._entries: dict[str, _Entry] = {}

    def grant(self, name: str, *, bytes_max: int, dest: Path) -> UploadGrant:
        """A presigned PUT for a key that no other request has. Its headers are signed and must be sent verbatim.

        The signature cannot bound the size; `collect` does. Raises `EvaluationError` without credentials to sign with.
        """
        key = f"{self._batch_id}/{_rollout_of(dest)}/evaluation/{secrets.token_hex(16)}/{name}"
        content_type = _CONTENT_TYPES.get(dest.suffix, "application/octet-stream")
        try:
            url = self._clients.s3.generate_presigned_url(
                "put_object",
                Params={"Bucket": self._bucket, "Key": key, "ContentType": content_type, "IfNoneMatch": "*"},
                ExpiresIn=GRANT_S,
            )
        # Credentials that are about to end are renewed here, which fails in as many ways as there are sources.
        except Exception as error:  # noqa: BLE001
            raise _not_arrived(
                f"no upload could be permitted: {fault_of(error, action='s3:PutObject').message}"
            ) from None
        _assert_signed(url)
        self._entries[url] = _Entry(key=key, dest=dest, bytes_max=bytes_max)
        return UploadGrant(url=url, headers={"Content-Type": content_type, "If-None-Match": "*"}, bytes_max=bytes_max)

    async def collect(self, grant: UploadGrant, *, sha256: str, size_bytes: int) -> Path:
        """Fetch the object, compare it with what the host announced, rename it into place. The grant is used up.

        A fetch that fails on its way is tried again for `PATIENCE_S` seconds. Raises `EvaluationError` (retryable), or
        `DiskError`; nothing stands at the destination then.
        """
        entry = self._entries.pop(grant.url, None)
        if entry is None:
            raise _not_arrived("this permission to upload was collected before, or is not of this batch")
        if size_bytes > entry.bytes_max:
            raise _damaged(f"the host announced {size_bytes} bytes, {entry.bytes_max} were allowed")
        fetch = partial(self._fetch, entry, sha256=sha256, size_bytes=size_bytes)
        until_s = self._ambient.elapsed_s() + PATIENCE_S
        for tries in count(1):
            try:
                return await self._bridge.call(fetch)
            except CloudError as error:
                pause_s = jittered_s(self._ambient, tries)
                if error.kind not in _TRANSIENT or self._ambient.elapsed_s() + pause_s >= until_s:
                    raise _not_arrived(f"what the host has uploaded cannot be fetched: {error.message}") from None
                if error.kind is FaultKind.SIGNING:
                    await self._bridge.call(self._renew_credentials)
                await self._ambient.sleep(pause_s)
        raise AssertionError("counting has no end")

    def _renew_credentials(self) -> None:
        # Where there are no new ones the old ones are tried again, and that error is the one to tell.
        with suppress(AwsCredentialsMissing):
            self._clients.renew_credentials()

    def _fetch(self, entry: _Entry, *, sha256: str, size_bytes: int) -> Path:
        """One try, on a thread. Raises `CloudError` for what goes wrong on the way."""
        deadline = self._ambient.elapsed_s() + FETCH_S_MAX
        answer = _said(partial(self._clients.s3.get_object, Bucket=self._bucket, Key=entry.key))
        with closing(answer["Body"]) as body:
            there_bytes = answer.get("ContentLength")
            if there_bytes != size_bytes:
                # Not a byte of it is read.
                raise _damaged(f"{there_bytes} bytes were uploaded, {size_bytes} were announced")
            return _store(self._chunks(body, deadline), entry.dest, sha256=sha256, size_bytes=size_bytes)

    def _chunks(self, body: Any, deadline: float) -> Iterator[bytes]:
        while chunk := _said(partial(body.read, _CHUNK_BYTES)):
            yield chunk
            if self._ambient.elapsed_s() > deadline:
                raise _not_arrived(f"the upload could not be fetched within {FETCH_S_MAX:.0f} s")


def _store(chunks: Iterator[bytes], dest: Path, *, sha256: str, size_bytes: int) -> Path:
    """Write to a scratch file, compare, sync, rename, sync the folder. No scratch file stays."""
    scratch = dest.with_name(f".{dest.name}.{secrets.token_hex(4)}.download")
    digest, got_bytes = hashlib.sha256(), 0
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("xb") as file:
            for chunk in chunks:
                got_bytes += len(chunk)
                if got_bytes > size_bytes:
                    break
                digest.update(chunk)
                file.write(chunk)
            if (got_bytes, digest.hexdigest()) != (size_bytes, sha256):
                raise _damaged(
                    f"{got_bytes} bytes with SHA-256 {digest.hexdigest()[:12]} arrived, "
                    f"{size_bytes} bytes with {sha256[:12]} were announced"
                )
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, dest)
        sync_folder(dest.parent)
    except OSError as error:
        raise disk_error(dest, error) from error
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
    return dest


def _said(ask: Callable[[], Any]) -> Any:
    """What S3 answers, or `CloudError`. So an error of the network is never taken for one of the disk."""
    try:
        return ask()
    # Errors of urllib3 and of sockets come through the SDK with classes of their own.
    except Exception as error:  # noqa: BLE001
        raise fault_of(error, action=_ACTION) from None


def _rollout_of(dest: Path) -> str:
    """The rollout's folder name, which is its id: a file stands in that folder or in its `evaluation`."""
    folder = dest.parent.parent if dest.parent.name == "evaluation" else dest.parent
    return re.sub(r"[^A-Za-z0-9._-]", "-", folder.name) or "unnamed"


def _assert_signed(url: str) -> None:
    """Version 2 of the signature binds no headers, and a header that is not signed need not be sent."""
    query = parse_qs(urlsplit(url).query)
    assert query.get("X-Amz-Algorithm") == ["AWS4-HMAC-SHA256"], "uploads are signed in version 4"
    assert query.get("X-Amz-SignedHeaders") == ["content-type;host;if-none-match"], "the headers are signed"


def _not_arrived(message: str) -> EvaluationError:
    hint = "Ask the host again with a new grant."
    return EvaluationError(message, code="upload_incomplete", is_retryable=True, hint=hint)


def _damaged(message: str) -> EvaluationError:
    hint = "Ask the host again with a new grant."
    return EvaluationError(message, code="upload_damaged", is_retryable=True, hint=hint)
