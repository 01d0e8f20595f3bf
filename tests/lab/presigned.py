"""A presigned S3 request as S3 checks it: signature version 4 in the query, written from the algorithm."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote

ALGORITHM = "AWS4-HMAC-SHA256"


def problem_of(
    method: str, path: str, query: str, headers: Mapping[str, str], *, secret_key: str, now: datetime
) -> tuple[str, str] | None:
    """S3's code and message for a request that it refuses, else null. `path` and `query` are as they came."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    try:
        _, date, region, service, end = given["X-Amz-Credential"].split("/")
        stamp, expires_s = given["X-Amz-Date"], int(given["X-Amz-Expires"])
        signed_names, signature = given["X-Amz-SignedHeaders"].split(";"), given["X-Amz-Signature"]
        when = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except (KeyError, ValueError):
        return "AuthorizationQueryParametersError", "Query-string authentication version 4 needs its parameters"
    if given.get("X-Amz-Algorithm") != ALGORITHM or service != "s3" or end != "aws4_request":
        return "AuthorizationQueryParametersError", "X-Amz-Algorithm only supports AWS4-HMAC-SHA256"
    if now > when + timedelta(seconds=expires_s):
        return "AccessDenied", "Request has expired"
    lowered = {name.lower(): value for name, value in headers.items()}
    unsigned = [name for name in lowered if name.startswith("x-amz-") and name not in signed_names]
    if unsigned:
        return "AccessDenied", f"There were headers present in the request which were not signed: {unsigned}"
    if any(name not in lowered for name in signed_names):
        return "SignatureDoesNotMatch", "A signed header is missing"
    kept = sorted((name, value) for name, value in given.items() if name != "X-Amz-Signature")
    canonical_query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in kept)
    canonical = "\n".join(
        [
            method,
            path,
            canonical_query,
            *(f"{name}:{' '.join(lowered[name].split())}" for name in signed_names),
            "",
            ";".join(signed_names),
            "UNSIGNED-PAYLOAD",
        ]
    )
    to_sign = "\n".join(
        [ALGORITHM, stamp, f"{date}/{region}/s3/aws4_request", hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{secret_key}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    if not hmac.compare_digest(hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest(), signature):
        return "SignatureDoesNotMatch", "The request signature we calculated does not match the one you provided"
    return None
