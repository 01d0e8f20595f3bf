"""Hands one file over by a grant: a PUT, as told, to nowhere else."""

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
    """Send the file; once more when the answer was lost or said that the store itself had failed.

    A grant that may be used once refuses the second try when the first arrived (HTTP 412): then the file counts as
    sent, and the controller measures what lies there. Raises `Refusal` with `upload_failed`; no message holds the URL.
    """
    size_bytes = path.stat().st_size
    if size_bytes > grant.bytes_max:
        raise _failed(f"{path.name} has {size_bytes} bytes, the grant allows {grant.bytes_max}")
    problem = ""
    for is_second in (False, True):
        try:
            status = _put(path, grant, size_bytes)
        except (requests.ConnectionError, requests.Timeout) as error:
            problem = f"{path.name} could not be sent ({type(error).__name__})"
            continue
        except requests.RequestException as error:
            # The URL or a header is no good. The error's own text holds it, so that is not chained.
            raise _failed(f"{path.name} could not be sent ({type(error).__name__})") from None
        if 200 <= status < 300 or (is_second and status == 412):
            return
        problem = f"{path.name} was answered with HTTP {status}"
        if status < 500:
            break
    raise _failed(problem)


def _put(path: Path, grant: UploadGrant, size_bytes: int) -> int:
    """One PUT; the answer's status."""
    with requests.Session() as session, path.open("rb") as file:
        # The environment may hold proxies and a .netrc; the grant alone says where the file goes.
        session.trust_env = False
        session.headers.clear()
        response = session.put(
            grant.url,
            # An empty file object would be sent in chunks, which presigned URLs refuse.
            data=file if size_bytes else b"",
            headers=grant.headers,
            allow_redirects=False,
            timeout=(CONNECT_S_MAX, READ_S_MAX),
        )
        return response.status_code


def _failed(message: str) -> Refusal:
    return Refusal(ErrorCode.UPLOAD_FAILED, message, hint="Make a fresh grant and send the request again.")
