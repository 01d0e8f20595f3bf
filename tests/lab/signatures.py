"""Signatures as AWS checks them, version 4 alone, in the header or in the query; written from the algorithm.

Source: IAM User Guide, "Create a signed AWS API request"; S3 API reference, "Authenticating Requests: Using Query
Parameters" for what a presigned URL must hold.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote

ALGORITHM = "AWS4-HMAC-SHA256"
# A presigned URL lives for a week at most.
EXPIRES_S_MAX = 604_800
# How far a clock may be ahead of AWS's.
SKEW_MAX = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came: `path` and `query` are still quoted, names of `headers` are lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Key:
    """The one access key that the account knows."""

    key_id: str
    secret: str


def presigned_problem(request: Request, key: Key, *, now: datetime) -> tuple[str, str] | None:
    """S3's code and message for a presigned request that it refuses with 403, else null."""
    given = dict(parse_qsl(request.query, keep_blank_values=True))
    try:
        key_id, *scope = given["X-Amz-Credential"].split("/")
        stamp, expires_s = given["X-Amz-Date"], int(given["X-Amz-Expires"])
        names, signature = given["X-Amz-SignedHeaders"].split(";"), given["X-Amz-Signature"]
        when = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except (KeyError, ValueError):
        return "AuthorizationQueryParametersError", "Query-string authentication version 4 needs its parameters"
    if given.get("X-Amz-Algorithm") != ALGORITHM or scope[2:] != ["s3", "aws4_request"]:
        return "AuthorizationQueryParametersError", f"X-Amz-Algorithm only supports {ALGORITHM}"
    if not 0 < expires_s <= EXPIRES_S_MAX:
        return "AuthorizationQueryParametersError", "X-Amz-Expires must be less than a week (in seconds)"
    if key_id != key.key_id:
        return "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
    if now < when - SKEW_MAX:
        return "AccessDenied", "Request is not valid yet"
    if now > when + timedelta(seconds=expires_s):
        return "AccessDenied", "Request has expired"
    unsigned = [name for name in request.headers if name.startswith("x-amz-") and name not in names]
    if unsigned:
        return "AccessDenied", f"There were headers present in the request which were not signed: {unsigned}"
    kept = sorted((name, value) for name, value in given.items() if name != "X-Amz-Signature")
    expected = _signature(
        request, key, path=request.path, query=kept, names=names, payload="UNSIGNED-PAYLOAD", stamp=stamp, scope=scope
    )
    return None if hmac.compare_digest(expected, signature) else _mismatch()


def header_problem(request: Request, key: Key, *, service: str) -> tuple[str, str] | None:
    """The code and message for a request whose Authorization header does not prove the key, else null.

    The age of the request is not looked at: tests move the account's clock, and not the callers'.
    """
    scheme, _, rest = request.headers.get("authorization", "").partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    try:
        key_id, *scope = parts["Credential"].split("/")
        names, signature = parts["SignedHeaders"].split(";"), parts["Signature"]
        stamp = request.headers["x-amz-date"]
    except KeyError:
        return ("AccessDenied", "Access Denied") if service == "s3" else ("MissingAuthenticationToken", "Not signed")
    if scheme != ALGORITHM or len(scope) != 4:
        return "IncompleteSignature", f"Authorization must be {ALGORITHM}"
    if key_id != key.key_id:
        unknown = {"ec2": "AuthFailure", "s3": "InvalidAccessKeyId", "sts": "InvalidClientTokenId"}
        return unknown.get(service, "UnrecognizedClientException"), "The access key is not known"
    # All services but S3 quote the path once more.
    path = request.path if service == "s3" else quote(request.path, safe="/-_.~")
    payload = request.headers.get("x-amz-content-sha256") or hashlib.sha256(request.body).hexdigest()
    query = sorted(parse_qsl(request.query, keep_blank_values=True))
    expected = _signature(request, key, path=path, query=query, names=names, payload=payload, stamp=stamp, scope=scope)
    if hmac.compare_digest(expected, signature):
        return None
    return ("AuthFailure", "AWS was not able to validate the credentials") if service == "ec2" else _mismatch()


def _signature(
    request: Request,
    key: Key,
    *,
    path: str,
    query: Sequence[tuple[str, str]],
    names: Sequence[str],
    payload: str,
    stamp: str,
    scope: Sequence[str],
) -> str:
    """What the signature of this request is; a signed header that did not come counts as empty."""
    canonical = "\n".join(
        [
            request.method,
            path,
            "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query),
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in names),
            "",
            ";".join(names),
            payload,
        ]
    )
    to_sign = "\n".join([ALGORITHM, stamp, "/".join(scope), hashlib.sha256(canonical.encode()).hexdigest()])
    secret = f"AWS4{key.secret}".encode()
    for part in scope:
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    return hmac.new(secret, to_sign.encode(), hashlib.sha256).hexdigest()


def _mismatch() -> tuple[str, str]:
    return "SignatureDoesNotMatch", "The request signature we calculated does not match the one you provided"
