"""Short-lived AWS credentials from the supervisor's endpoint, for the token that stands in the place of a key.

Nothing is read from the environment, a profile, a config file or an instance's metadata service.
"""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from botocore.credentials import ContainerProvider, ReadOnlyCredentials, RefreshableCredentials
from pydantic import SecretStr

from contract.phases import Cause
from pilot.ports import Refused, TransportFailed

# The endpoint is on loopback, but it may have to ask AWS first.
ENDPOINT_TIMEOUT_S: Final = 15.0
# The document has four short fields.
DOCUMENT_BYTES_MAX: Final = 64 * 1024
FIELDS: Final = ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")


class AwsCredentials:
    """Refreshes itself before it expires. Every method blocks, and may raise `Refused` or `TransportFailed`."""

    def __init__(self, *, credentials_url: str, token: SecretStr) -> None:
        self._provider = ContainerProvider(
            environ={
                ContainerProvider.ENV_VAR_FULL: credentials_url,
                ContainerProvider.ENV_VAR_AUTH_TOKEN: token.get_secret_value(),
            },
            fetcher=_LoopbackFetcher(),
        )
        self._token = token
        self._lock = threading.Lock()
        self._current: RefreshableCredentials | None = None

    def current(self) -> RefreshableCredentials:
        """The object that botocore asks for credentials whenever it signs."""
        with self._lock:
            if self._current is None:
                self._current = self._load()
            return self._current

    def frozen(self) -> ReadOnlyCredentials:
        """Credentials that belong together and are valid now."""
        try:
            return self.current().get_frozen_credentials()
        except RuntimeError:
            # botocore's word for new credentials that have expired already; its text holds nothing else.
            pass
        raise Refused(
            "the AWS credentials are expired, and no newer ones are to be had",
            cause=Cause.PROVIDER_AUTH,
            hint=LOG_IN,
        )

    def refresh(self) -> None:
        """Get new ones, however long the old ones would still live."""
        fresh = self._load()
        with self._lock:
            self._current = fresh

    def secrets(self) -> tuple[SecretStr, ...]:
        """What no answer may bring into a trace: AWS repeats signed headers in some of its errors."""
        with self._lock:
            current = self._current
        if current is None:
            return (self._token,)
        frozen = current.get_frozen_credentials()
        return (self._token, SecretStr(frozen.secret_key), SecretStr(frozen.token or ""))

    def _load(self) -> RefreshableCredentials:
        try:
            return self._provider.load()
        except ValueError:
            # A token with a line break, or an expiry that is no time. The text may hold the token.
            pass
        raise Refused(
            "the AWS credentials endpoint cannot be used with this token",
            cause=Cause.PROVIDER_AUTH,
            hint="Resume the batch: its supervisor hands out a new token.",
        )


LOG_IN: Final = "Log in to AWS again (for example `aws sso login`) and resume the batch."


class _LoopbackFetcher:
    """In the place of botocore's fetcher, which sleeps between attempts of its own and hides the status."""

    def retrieve_full_uri(self, full_url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """The credentials document. The method's name and arguments are botocore's."""
        parts = urlsplit(full_url)
        try:
            connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ENDPOINT_TIMEOUT_S)
            try:
                connection.request("GET", parts.path or "/", headers={"Accept": "application/json", **(headers or {})})
                response = connection.getresponse()
                status, body = response.status, response.read(DOCUMENT_BYTES_MAX)
            finally:
                connection.close()
        except (OSError, HTTPException) as error:
            raise TransportFailed(f"the AWS credentials endpoint gave no answer: {type(error).__name__}") from None
        if 400 <= status < 500:
            raise Refused(f"the AWS credentials endpoint answered {status}", cause=Cause.PROVIDER_AUTH, hint=LOG_IN)
        document = _document(body)
        if status != 200 or document is None:
            raise TransportFailed(f"the AWS credentials endpoint answered {status} and no credentials")
        return document


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    if isinstance(document, dict) and all(isinstance(document.get(field), str) for field in FIELDS):
        return document
    return None
