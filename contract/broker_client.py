"""The one client that speaks to a broker: synchronous, on `http.client`, made for a tunnel that may lie.

Request heads stay under 900 bytes, bodies never end in a bare newline, every call has a deadline, frames are checked
for length and SHA-256. Lost answers are repeated here: every call that changes something is idempotent by its request
id or its sequence number (exactly-once hands).

Not on `requests`: one loopback connection needs no pool, proxies, cookies or redirects, and each pilot would pay for
them with 45 ms of CPU and 9 MB at its start (measured on Debian 12, CPython 3.11).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from itertools import count
from typing import Final, TypeVar

import orjson
from pydantic import SecretStr, ValidationError

from contract.actions import Action, action_to_json, digest_of
from contract.broker_api import (
    FRAME_BYTES_MAX,
    HEAD_BYTES_MAX,
    TOKEN_CHARS_MAX,
    ActionsRequest,
    ArtifactReply,
    ErrorBody,
    ErrorCode,
    ExportRequest,
    FrameInfo,
    Health,
    Identity,
    Lease,
    LeaseCall,
    LeaseRequest,
    Receipt,
    RenderRequest,
    ResetReply,
    ResetRequest,
    SaveRequest,
)
from contract.broker_connection import Answer, BrokerConnection
from contract.errors import BrokerError
from contract.phases import Cause
from contract.records import Record, first_problem

R = TypeVar("R", bound=Record)
T = TypeVar("T")

# So many different lengths of a request's head are tried; more would only come near the bound of a head.
TRY_CHARS_MAX: Final = 16

CAUSES: Final[dict[ErrorCode, Cause]] = {
    ErrorCode.CAD_DIED: Cause.CAD_DIED,
    ErrorCode.CAD_HUNG: Cause.CAD_HUNG,
    ErrorCode.DISPLAY_DIED: Cause.DISPLAY_DIED,
    ErrorCode.RESET_FAILED: Cause.RESET,
    ErrorCode.INDETERMINATE: Cause.ACTIONS_INDETERMINATE,
    ErrorCode.LEASE_UNKNOWN: Cause.LEASE,
    ErrorCode.LEASE_HELD: Cause.LEASE,
    ErrorCode.UNREACHABLE: Cause.BROKER_UNREACHABLE,
    ErrorCode.PROTOCOL: Cause.FRAME_CORRUPT,
    ErrorCode.SAVE_FAILED: Cause.DISK,
    ErrorCode.EVALUATOR_FAILED: Cause.EVALUATION_FAILED,
    ErrorCode.EVALUATOR_TIMEOUT: Cause.EVALUATION_FAILED,
    ErrorCode.UPLOAD_FAILED: Cause.EVALUATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call may take and how often a lost answer is asked for again."""

    connect_s: float = 5.0
    read_s: float = 30.0
    # An ActionBatch may wait 30 s per action: what the caller allows for its actions comes on top of this.
    actions_s: float = 60.0
    tries: int = 3
    pause_s: float = 0.2
    # A tunnel that broke is opened again by somebody else: an answer that is lost meanwhile is asked for again for so
    # long, however many tries that takes. The longest pause between two of them follows below.
    lost_s: float = 0.0
    pause_s_max: float = 5.0


class BrokerClient:
    """Speaks for one rollout to one broker, one call at a time. `close` alone may come from another thread.

    Every method raises `BrokerError`, whose `cause` says what the rollout's record would.
    """

    def __init__(
        self,
        base_url: str,
        token: SecretStr,
        *,
        patience: Patience | None = None,
        pause: Callable[[float], None] = time.sleep,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience or Patience()
        self._pause = pause
        self._elapsed_s = elapsed_s
        # A header value that http.client refuses would stand in the text of its error.
        assert is_header_safe(token.get_secret_value()), "a broker token is printable ASCII"
        self._authorization = {"Authorization": f"Bearer {token.get_secret_value()}"}
        self._connection = BrokerConnection(base_url, connect_s=self._patience.connect_s)

    def close(self) -> None:
        """Close the connection. A call that another thread is waiting in ends at once."""
        self._connection.close()

    def health(self, *, read_s: float = 5.0) -> Health:
        """One authenticated round trip: the proof that broker and tunnel are alive."""
        return self._get("/v1/health", Health, read_s=read_s)

    def identity(self, *, token: SecretStr) -> Identity:
        """Ask with a fresh nonce and check the proof. Raises with cause `host_identity` when it is wrong."""
        nonce = os.urandom(16).hex()
        identity = self._get(f"/v1/identity?nonce={nonce}", Identity)
        if identity.nonce != nonce or not hmac.compare_digest(identity.proof, identity_proof(identity, token)):
            raise BrokerError(
                "the broker's identity proof does not match our token",
                code=ErrorCode.PROTOCOL,
                cause=Cause.HOST_IDENTITY,
                hint="Another broker listens at this address; end this host.",
            )
        return identity

    def lease(self, request: LeaseRequest) -> Lease:
        """Take the lease, or get the same one again for the same request id."""
        return self._post("/v1/lease", request, Lease)

    def heartbeat(self, lease_id: str) -> Lease:
        """Push the lease's expiry back."""
        return self._post("/v1/heartbeat", LeaseCall(lease_id=lease_id), Lease)

    def release(self, lease_id: str) -> Health:
        """Give the lease back; the desktop is ended."""
        return self._post("/v1/release", LeaseCall(lease_id=lease_id), Health)

    def reset(self, request: ResetRequest) -> ResetReply:
        """Bring the desktop to the task's start. Slow: up to two clean attempts of the CAD program."""
        return self._post("/v1/reset", request, ResetReply, read_s=90.0)

    def act(self, *, lease_id: str, sequence: int, actions: Sequence[Action], wait_s: float = 0.0) -> Receipt:
        """Carry the actions out exactly once; a repeated sequence gives the stored receipt.

        `wait_s` is what the actions themselves may take, so that a legal ActionBatch never meets the deadline.
        """
        request = ActionsRequest(
            lease_id=lease_id,
            sequence=sequence,
            digest=digest_of(actions),
            actions=[action_to_json(action) for action in actions],
        )
        return self._post("/v1/actions", request, Receipt, read_s=self._patience.actions_s + wait_s)

    def frame(self, info: FrameInfo) -> bytes:
        """The PNG that `info` names, checked. Damaged answers are fetched again, then `frame_corrupt`."""
        path = f"/v1/frames/{info.sequence}"
        for _ in range(self._patience.tries):
            png = self._send("GET", path, b"", read_s=self._patience.read_s, read=bytes)
            if len(png) == info.size_bytes and hashlib.sha256(png).hexdigest() == info.sha256:
                return png
        raise BrokerError(
            f"frame {info.sequence} arrived damaged {self._patience.tries} times",
            code=ErrorCode.PROTOCOL,
            cause=Cause.FRAME_CORRUPT,
            hint="Check the tunnel; it changes bytes.",
        )

    def save(self, request: SaveRequest) -> ArtifactReply:
        """Have the CAD program save, and the host upload what it saved."""
        return self._post("/v1/save", request, ArtifactReply, read_s=60.0)

    def export(self, request: ExportRequest) -> ArtifactReply:
        """Have the trusted evaluator write the drawing's facts, and upload them."""
        return self._post("/v1/export", request, ArtifactReply, read_s=120.0)

    def render(self, request: RenderRequest) -> ArtifactReply:
        """Have the trusted evaluator draw the canonical render, and upload it."""
        return self._post("/v1/render", request, ArtifactReply, read_s=120.0)

    def _get(self, path: str, kind: type[R], *, read_s: float | None = None) -> R:
        read_s = read_s or self._patience.read_s
        return self._send("GET", path, b"", read_s=read_s, read=kind.model_validate_json)

    def _post(self, path: str, request: Record, kind: type[R], *, read_s: float | None = None) -> R:
        body = orjson.dumps(request.model_dump(mode="json"))
        read_s = read_s or self._patience.read_s
        return self._send("POST", path, body, read_s=read_s, read=kind.model_validate_json)

    def _send(self, method: str, path: str, body: bytes, *, read_s: float, read: Callable[[bytes], T]) -> T:
        """What `read` makes of the answer's body. An answer that it cannot read was damaged, and counts as lost."""
        headers = {**self._authorization, **({"Content-Type": "application/json"} if body else {})}
        patience, began_s = self._patience, self._elapsed_s()
        for attempt in count():
            # A tunnel that hangs on one head size must not meet the same size again, hence the counter.
            tried = {"X-Try": "x" * (attempt % TRY_CHARS_MAX)} if attempt % TRY_CHARS_MAX else {}
            _check_head(method, path, {**headers, **tried})
            try:
                answer = self._connection.exchange(
                    method, path, {**headers, **tried}, body, read_s=read_s, bytes_max=FRAME_BYTES_MAX
                )
                if len(answer.body) > FRAME_BYTES_MAX:
                    raise _protocol_error(f"{path} answered more than {FRAME_BYTES_MAX} bytes")
                if answer.status == 200:
                    return read(answer.body)
                raise _refusal(answer)
            except (OSError, HTTPException, ValidationError) as error:
                is_last = attempt + 1 >= patience.tries and self._elapsed_s() - began_s >= patience.lost_s
                if self._connection.is_closed or is_last:
                    raise _lost(method, path.partition("?")[0], error) from error
            self._pause(min(patience.pause_s_max, patience.pause_s * (attempt + 1)))
        raise AssertionError("counting has no end")


def identity_proof(identity: Identity, token: SecretStr) -> str:
    """What `Identity.proof` must be for this token."""
    key = hashlib.sha256(token.get_secret_value().encode()).hexdigest()
    return sign_identity(identity, token_sha256=key)


def sign_identity(identity: Identity, *, token_sha256: str) -> str:
    """The proof, made from what both ends hold: the host has the token's SHA-256 and nothing more."""
    facts = [identity.nonce, identity.host_id, identity.boot_id, identity.broker_version, identity.started_at]
    if (instance := identity.instance) is not None:
        facts += [instance.document, instance.signature, instance.booted_at, str(instance.boot_count)]
    return hmac.new(token_sha256.encode(), "|".join(facts).encode(), hashlib.sha256).hexdigest()


def is_header_safe(token: str) -> bool:
    """True when the token can stand in a request head as it is."""
    return 0 < len(token) <= TOKEN_CHARS_MAX and token.isascii() and token.isprintable()


def _check_head(method: str, path: str, headers: Mapping[str, str]) -> None:
    head = len(method) + len(path) + 12 + sum(len(name) + len(value) + 4 for name, value in headers.items())
    # Host and Content-Length come on top: 120 bytes cover them.
    assert head + 120 < HEAD_BYTES_MAX, f"request head of {head} bytes is too long for the tunnel"


def _refusal(answer: Answer) -> BrokerError:
    """What the broker said. Raises `ValidationError` when the answer is no word of a broker."""
    body = ErrorBody.model_validate_json(answer.body)
    return BrokerError(
        body.message,
        code=body.code,
        cause=CAUSES.get(body.code, Cause.BROKER_REFUSED),
        status=answer.status,
        hint=body.hint,
    )


def _lost(method: str, path: str, error: Exception) -> BrokerError:
    if isinstance(error, ValidationError):
        return _protocol_error(f"the broker's answer to {method} {path} cannot be read: {first_problem(error)}")
    return BrokerError(
        f"no answer from the broker to {method} {path} ({type(error).__name__})",
        code=ErrorCode.UNREACHABLE,
        cause=Cause.BROKER_UNREACHABLE,
        hint="See whether the host and its tunnel are still alive.",
    )


def _protocol_error(message: str) -> BrokerError:
    return BrokerError(
        message,
        code=ErrorCode.PROTOCOL,
        cause=Cause.BROKER_UNREACHABLE,
        hint="Something between here and the broker changes bytes, or the host runs another version.",
    )
