"""AWS Signature Version 4 as a server checks it, written from the algorithm and independent of any client library."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl, quote

from tests.providers.http import Request
from tests.providers.refusals import Refusal

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SKEW: Final = timedelta(minutes=5)
ACCESS_KEY: Final = "AKIDEXAMPLE"
SECRET_KEY: Final = "example-secret-key"
SESSION_TOKEN: Final = "EXAMPLESESSIONTOKEN=="


@dataclass(frozen=True, slots=True)
class AwsSession:
    """Short-lived credentials that the service knows."""

    access_key: str
    secret_key: str
    token: str | None
    expires_at: datetime | None = None


@dataclass
class AwsAccount:
    """What the AWS side knows of its callers. `sessions` may be changed while it runs, as time does."""

    sessions: list[AwsSession] = field(
        default_factory=lambda: [
            AwsSession(ACCESS_KEY, SECRET_KEY, None),
            AwsSession(ACCESS_KEY, SECRET_KEY, SESSION_TOKEN),
        ]
    )

    def check(self, request: Request, *, services: frozenset[str], now: datetime) -> str:
        """Raises `Refusal` unless the request is signed as it should be. Returns the access key."""
        headers = request.headers
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        if scheme != ALGORITHM:
            raise _no("MissingAuthenticationTokenException", "Missing Authentication Token")
        parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        try:
            access_key, date, region, service, end = parts["Credential"].split("/")
            signed, signature = parts["SignedHeaders"].split(";"), parts["Signature"]
            stamped = headers["x-amz-date"]
            when = datetime.strptime(stamped, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except (KeyError, ValueError) as error:
            raise _no("IncompleteSignatureException", f"The signature is incomplete: {error}") from error
        token = headers.get("x-amz-security-token")
        session = next((one for one in self.sessions if (one.access_key, one.token) == (access_key, token)), None)
        if session is None:
            raise _no("UnrecognizedClientException", "The security token included in the request is invalid.")
        if session.expires_at is not None and session.expires_at <= now:
            raise _no("ExpiredTokenException", "The security token included in the request is expired")
        if end != "aws4_request" or date != stamped[:8] or service not in services:
            raise _no("InvalidSignatureException", f"Credential should be scoped to one of {sorted(services)}.")
        if abs(when - now) > SKEW:
            raise _no("InvalidSignatureException", f"Signature expired: {stamped} is now {now:%Y%m%dT%H%M%SZ}.")
        unsigned = [name for name in headers if name == "host" or name.startswith("x-amz-") if name not in signed]
        if "host" not in signed or unsigned:
            raise _no("InvalidSignatureException", f"Headers present but not signed: {unsigned}.")
        body_sha256 = hashlib.sha256(request.body).hexdigest()
        if headers.get("x-amz-content-sha256", body_sha256) != body_sha256:
            raise _no("InvalidSignatureException", "The body is not the one that was signed.")
        expected = signature_of(
            request, signed=signed, stamped=stamped, scope=(date, region, service), secret_key=session.secret_key
        )
        if not hmac.compare_digest(expected, signature):
            raise _no(
                "InvalidSignatureException",
                "The request signature we calculated does not match the signature you provided.",
            )
        return access_key


def signature_of(
    request: Request, *, signed: list[str], stamped: str, scope: tuple[str, str, str], secret_key: str
) -> str:
    """The signature that this request ought to have."""
    date, region, service = scope
    canonical = "\n".join(
        [
            request.method,
            # The path as it was sent is encoded once more; only S3 leaves that out.
            "/".join(quote(part, safe="-_.~") for part in request.path.split("/")),
            _canonical_query(request.query),
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in signed),
            "",
            ";".join(signed),
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    full_scope = f"{date}/{region}/{service}/aws4_request"
    text = "\n".join([ALGORITHM, stamped, full_scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + secret_key.encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _canonical_query(query: str) -> str:
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)


def _no(code: str, message: str) -> Refusal:
    return Refusal(403, message, code=code, is_front_door=True)
