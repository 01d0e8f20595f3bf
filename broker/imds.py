"""The instance metadata service, version 2: what this instance was launched with, and the document that AWS signed.

Early in a boot the service may not be reachable yet, so everything is asked again until a deadline. On
`http.client`, because the address is link-local: no proxy, no redirect and no name is ever involved.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Final, TypeVar
from urllib.parse import urlsplit

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from contract.errors import BenchError
from contract.guest import USER_DATA_BYTES_MAX
from contract.records import first_problem

# EC2 User Guide, "Use the Instance Metadata Service": its IPv4 address, and the longest life of a session token.
IMDS_URL: Final = "http://169.254.169.254"
TOKEN_TTL_S: Final = 21_600
# It answers within milliseconds; without an answer it is not there yet, or the token's hop limit is too low.
ANSWER_S_MAX: Final = 5.0
# A document has half a kilobyte, so user data is the longest; a signature of a 2,048-bit key has 350 characters.
ANSWER_BYTES_MAX: Final = USER_DATA_BYTES_MAX
SIGNATURE_CHARS_MAX: Final = 4_096
WAIT_S: Final = 300.0
PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 5.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ImdsError(BenchError):
    """The metadata service did not tell what every instance must know, until the deadline."""


class DocumentFacts(BaseModel):
    """What the guest itself needs of its identity document; AWS adds fields as it likes."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance_id: str = Field(alias="instanceId", pattern=r"^i-[0-9a-f]{8,17}$")
    pending_time: AwareDatetime = Field(alias="pendingTime")


@dataclass(frozen=True, slots=True)
class Launched:
    """What an instance was launched with. `document` is the exact text, `signature` its base64 as it was served."""

    user_data: str
    document: str
    signature: str
    facts: DocumentFacts


class _NotYet(Exception):
    """The service gave no usable answer; the next one may be."""


class Imds:
    """The service at `url`, which may have a path in front of `/latest`. Used by one thread."""

    def __init__(
        self,
        url: str = IMDS_URL,
        *,
        pause: Callable[[float], None] = time.sleep,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(url)
        assert parts.scheme == "http", "the metadata service speaks plain HTTP"
        assert parts.hostname, "an address of the metadata service"
        self._host, self._port, self._prefix = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self._pause = pause
        self._elapsed_s = elapsed_s
        self._token = ""

    def read(self, *, wait_s: float = WAIT_S) -> Launched:
        """User data and signed document, whole and of one kind. Raises `ImdsError` after `wait_s` seconds without."""
        deadline = self._elapsed_s() + wait_s
        user_data = self._until(deadline, lambda: self._get("/latest/user-data"))
        document, signature, facts = self._until(deadline, self._document)
        return Launched(user_data=user_data, document=document, signature=signature, facts=facts)

    def _document(self) -> tuple[str, str, DocumentFacts]:
        document = self._get("/latest/dynamic/instance-identity/document")
        signature = self._get("/latest/dynamic/instance-identity/signature")
        try:
            facts = DocumentFacts.model_validate_json(document)
        except ValidationError as error:
            raise _NotYet(f"the identity document is torn ({first_problem(error)})") from error
        if not signature or len(signature) > SIGNATURE_CHARS_MAX:
            raise _NotYet(f"the document's signature has {len(signature)} characters")
        try:
            base64.b64decode("".join(signature.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise _NotYet("the document's signature is torn") from error
        return document, signature, facts

    def _until(self, deadline: float, ask: Callable[[], T]) -> T:
        pause_s = PAUSE_S
        while True:
            try:
                return ask()
            except _NotYet as error:
                left_s = deadline - self._elapsed_s()
                if left_s <= 0:
                    raise ImdsError(
                        f"the instance metadata service at {self._host}:{self._port} told nothing usable: {error}",
                        hint="Run this on an EC2 instance with user data, IMDSv2 on and a hop limit of at least 1.",
                    ) from error
                _log.info("the metadata service is not ready: %s", error)
                self._pause(min(pause_s, left_s))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _get(self, path: str) -> str:
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
            self._token = self._exchange("PUT", "/latest/api/token", ttl).strip()
            if not (self._token.isascii() and self._token.isprintable()):
                self._token = ""
                raise _NotYet("its session token is torn")
        try:
            return self._exchange("GET", path, {"X-aws-ec2-metadata-token": self._token})
        except _NotYet:
            # The token may be the reason: it ends with the service that gave it.
            self._token = ""
            raise

    def _exchange(self, method: str, path: str, headers: dict[str, str]) -> str:
        connection = HTTPConnection(self._host, self._port, timeout=ANSWER_S_MAX)
        with contextlib.closing(connection):
            try:
                connection.request(method, self._prefix + path, headers=headers)
                response = connection.getresponse()
                content = response.read(ANSWER_BYTES_MAX + 1)
            except (OSError, HTTPException) as error:
                raise _NotYet(f"{method} {path} had no answer ({type(error).__name__})") from error
        if response.status != 200:
            raise _NotYet(f"{method} {path} was answered with HTTP {response.status}")
        if len(content) > ANSWER_BYTES_MAX or response.length:
            raise _NotYet(f"{method} {path} has an answer of the wrong length")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise _NotYet(f"{method} {path} is not text") from error
