"""AWS Signature Version 4 over the final bytes of a request, made anew for every attempt.

A signature lives for minutes, so a request that waited for its turn is signed again. Importing this module imports
botocore's signer, not boto3.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from pydantic import SecretStr

from contract.ambient import Ambient
from contract.bridge import Bridge
from pilot.models.body import Body
from pilot.models.credentials import AwsCredentials

CONTENT_TYPE: Final = "application/json"
_REAL: Final = Ambient()


class Signer:
    """Signs for one service in one region with credentials that refresh themselves."""

    def __init__(
        self, credentials: AwsCredentials, *, service: str, region: str, bridge: Bridge, ambient: Ambient = _REAL
    ) -> None:
        self._credentials = credentials
        self._utc_now = ambient.utc_now
        self._service = service
        self._region = region
        self._bridge = bridge

    async def sign(self, url: str, body: Body) -> tuple[dict[str, str], tuple[SecretStr, ...]]:
        """The headers that authenticate a POST of `body` now, and the secrets that went into them.

        Off the event loop, because every byte is hashed. Raises what `AwsCredentials` and `Body.sha256` raise.
        """

        def work() -> tuple[dict[str, str], tuple[SecretStr, ...]]:
            credentials = self._credentials.frozen()
            headers = signed_headers(
                credentials,
                service=self._service,
                region=self._region,
                url=url,
                body_sha256=body.sha256(),
                # After the hashing, which takes its time.
                at=self._utc_now(),
            )
            return headers, self._credentials.secrets()

        return await self._bridge.call(work)

    async def refresh(self) -> None:
        """Get new credentials."""
        await self._bridge.call(self._credentials.refresh)


def signed_headers(
    credentials: ReadOnlyCredentials, *, service: str, region: str, url: str, body_sha256: str, at: datetime
) -> dict[str, str]:
    """`authorization` and the `x-amz-*` headers of a POST with a JSON body.

    Signed are `host`, `content-type` and `x-amz-*` alone, because a proxy or the HTTP client may change any other.
    """
    timestamp = at.strftime("%Y%m%dT%H%M%SZ")
    headers = {"x-amz-date": timestamp, "x-amz-content-sha256": body_sha256}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    request = AWSRequest(method="POST", url=url, headers={"content-type": CONTENT_TYPE, **headers})
    request.context["timestamp"] = timestamp
    auth = SigV4Auth(credentials, service, region)
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    signed = auth.signed_headers(auth.headers_to_sign(request))
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={auth.scope(request)}, SignedHeaders={signed}, Signature={signature}"
    )
    return headers
