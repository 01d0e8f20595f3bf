"""Hands one file over by a grant: one PUT, as told, to nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import requests

from broker.refusal import Refusal
from contract.broker_api import ErrorCode, UploadGrant

CONNECT_S_MAX: Final = 10.0
# Between two bytes of the answer; 64 MiB at the tunnel's 1 MB/s are sent in 64 s, which this does not bound.
READ_S_MAX: Final = 60.0


def upload(path: Path, grant: UploadGrant) -> None:
    """Send the file. Raises `Refusal` with `upload_failed`, which names the host of the URL, never its query."""
    size_bytes = path.stat().st_size
    if size_bytes > grant.bytes_max:
        raise _failed(f"{path.name} has {size_bytes} bytes, the grant allows {grant.bytes_max}")
    with requests.Session() as session, path.open("rb") as file:
        # The environment may hold proxies and a .netrc; the grant alone says where the file goes.
        session.trust_env = False
        session.headers.clear()
        try:
            response = session.put(
                grant.url,
                # An empty file object would be sent in chunks, which presigned URLs refuse.
                data=file if size_bytes else b"",
                headers=grant.headers,
                allow_redirects=False,
                timeout=(CONNECT_S_MAX, READ_S_MAX),
            )
        except requests.RequestException as error:
            raise _failed(f"{path.name} could not be sent ({type(error).__name__})") from error
    if not 200 <= response.status_code < 300:
        raise _failed(f"{path.name} was answered with HTTP {response.status_code}")


def _failed(message: str) -> Refusal:
    return Refusal(ErrorCode.UPLOAD_FAILED, message, hint="Make a fresh grant and send the request again.")
