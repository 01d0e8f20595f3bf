"""Requests and replies of the broker, version 1.

Every call but `/v1/openapi.json` needs `Authorization: Bearer <token>`. Every changing call carries the lease and
either a request id or a sequence number, so that a request may be repeated and its deed is not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from contract.records import Record

BROKER_VERSION: Final = "1.0"
SUPPORTED_BROKER_VERSIONS: Final = frozenset({"1.0"})

# The largest JSON body: 20,000 typed characters and a 1 MiB start drawing in base64 fit twice over.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
START_DRAWING_BYTES_MAX: Final = 2 * 1024 * 1024
# Larger drawings are invalid by the scoring contract (section 7), so nothing larger needs to travel.
ARTIFACT_BYTES_MAX: Final = 64 * 1024 * 1024
# The facts of a drawing are longer than the drawing: 760 bytes a line, measured, and up to 200,000 entities are legal.
FACTS_BYTES_MAX: Final = 512 * 1024 * 1024
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
HEAD_BYTES_MAX: Final = 900
TOKEN_CHARS_MAX: Final = 256

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class ErrorCode(StrEnum):
    """Every way in which the broker, or the road to it, says no."""

    UNAUTHORIZED = "unauthorized"
    INVALID_REQUEST = "invalid_request"
    BODY_TOO_LARGE = "body_too_large"
    NOT_FOUND = "not_found"
    LEASE_UNKNOWN = "lease_unknown"
    LEASE_HELD = "lease_held"
    NOT_RESET = "not_reset"
    INVALID_ACTIONS = "invalid_actions"
    SEQUENCE_GAP = "sequence_gap"
    DIGEST_MISMATCH = "digest_mismatch"
    INDETERMINATE = "indeterminate"
    BUSY = "busy"
    CAD_DIED = "cad_died"
    CAD_HUNG = "cad_hung"
    DISPLAY_DIED = "display_died"
    RESET_FAILED = "reset_failed"
    SAVE_FAILED = "save_failed"
    ARTIFACT_MISSING = "artifact_missing"
    EVALUATOR_FAILED = "evaluator_failed"
    EVALUATOR_TIMEOUT = "evaluator_timeout"
    UPLOAD_FAILED = "upload_failed"
    INTERNAL = "internal"
    # Made by the client, never sent by a broker.
    UNREACHABLE = "unreachable"
    PROTOCOL = "protocol"


HTTP_STATUS: Final[dict[ErrorCode, int]] = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.BODY_TOO_LARGE: 413,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.LEASE_UNKNOWN: 403,
    ErrorCode.LEASE_HELD: 409,
    ErrorCode.NOT_RESET: 409,
    ErrorCode.INVALID_ACTIONS: 422,
    ErrorCode.SEQUENCE_GAP: 409,
    ErrorCode.DIGEST_MISMATCH: 409,
    ErrorCode.INDETERMINATE: 409,
    ErrorCode.BUSY: 409,
    ErrorCode.CAD_DIED: 503,
    ErrorCode.CAD_HUNG: 503,
    ErrorCode.DISPLAY_DIED: 503,
    ErrorCode.RESET_FAILED: 503,
    ErrorCode.SAVE_FAILED: 503,
    ErrorCode.ARTIFACT_MISSING: 404,
    ErrorCode.EVALUATOR_FAILED: 500,
    ErrorCode.EVALUATOR_TIMEOUT: 504,
    ErrorCode.UPLOAD_FAILED: 502,
    ErrorCode.INTERNAL: 500,
}


class ErrorBody(Record):
    """What every refused call is answered with."""

    code: ErrorCode
    message: str
    hint: str = ""


class Verdict(StrEnum):
    """What the broker thinks of a frame."""

    OK = "ok"
    BLACK = "black"
    WRONG_SIZE = "wrong_size"
    LOCKED = "locked"
    UNSETTLED = "unsettled"
    MODAL = "modal"


class FrameInfo(Record):
    """One frame that the broker holds. `sequence` is that of the ActionBatch it followed; 0 follows the reset."""

    sequence: int
    sha256: Sha256
    size_bytes: int
    width_px: int
    height_px: int
    verdict: Verdict
    settle_s: float


class Health(Record):
    """`GET /v1/health`: the broker is there, and what its CAD program is doing."""

    broker_version: str
    boot_id: str
    host_id: str
    driver: str
    driver_state: Literal["stopped", "ready", "cad_died", "cad_hung", "display_died"]
    lease_generation: int
    last_sequence: int


class InstanceProof(Record):
    """What a cloud instance says of itself: its signed identity document and its present boot.

    `document` is the exact text from the metadata service and `signature` its base64 RSA signature with SHA-256.
    `booted_at` is RFC 3339 UTC; `boot_count` is the system's own counter of boots, null where it has none.
    """

    document: Annotated[str, Field(max_length=16_384)]
    signature: Annotated[str, Field(max_length=4_096)]
    booted_at: str
    boot_count: int | None = None


class Identity(Record):
    """`GET /v1/identity?nonce=`: who answers, bound to the caller's nonce.

    `proof` is HMAC-SHA256, keyed with the hex SHA-256 of the token, over
    `nonce|host_id|boot_id|broker_version|started_at`, and for an instance over
    `|document|signature|booted_at|boot_count` behind it.
    """

    nonce: str
    host_id: str
    boot_id: str
    broker_version: str
    started_at: str
    proof: Sha256
    instance: InstanceProof | None = None


class LeaseRequest(Record):
    """`POST /v1/lease`. The same request id gives the same lease again."""

    request_id: Name
    rollout_id: Name
    lease_s: Annotated[float, Field(gt=0, le=86_400)]


class Lease(Record):
    """The right of one rollout to this broker until `expires_in_s` seconds pass without an authenticated call."""

    lease_id: Name
    generation: int
    rollout_id: Name
    expires_in_s: float


class LeaseCall(Record):
    """Any call under a lease that needs nothing else: heartbeat, release."""

    lease_id: Name


class ResetRequest(Record):
    """`POST /v1/reset`: a fresh CAD program on a fresh copy of the start drawing. Idempotent by request id."""

    request_id: Name
    lease_id: Name
    task_id: Name
    start_drawing_base64: str
    start_drawing_sha256: Sha256


class ResetReply(Record):
    """The desktop is settled on the start drawing; `frame` has sequence 0. `attempts` is 1 or 2."""

    frame: FrameInfo
    attempts: int
    reset_s: float


class ActionsRequest(Record):
    """`POST /v1/actions`. `digest` is `actions.digest_of`; `sequence` counts 1, 2, 3, ... within the lease."""

    lease_id: Name
    sequence: Annotated[int, Field(ge=1)]
    digest: Sha256
    actions: list[dict[str, Any]]


class Receipt(Record):
    """Durable on the host before it is sent. `performed` actions were carried out (a finish is not one)."""

    sequence: int
    digest: Sha256
    performed: int
    took_s: float
    frame: FrameInfo
    is_replay: bool = False


class UploadGrant(Record):
    """Where, how and how much the broker may upload: one request, one use. Headers go out verbatim."""

    # It is a permission, so nothing that prints a grant prints it.
    url: str = Field(repr=False)
    method: Literal["PUT"] = "PUT"
    headers: dict[str, str]
    bytes_max: int


class SaveRequest(Record):
    """`POST /v1/save`: have the CAD program write its drawing, then hand it over by the grant. Idempotent."""

    request_id: Name
    lease_id: Name
    upload: UploadGrant


class ExportRequest(Record):
    """`POST /v1/export`: facts about the saved drawing, made by the trusted evaluator. Idempotent."""

    request_id: Name
    lease_id: Name
    upload: UploadGrant


class RenderRequest(Record):
    """`POST /v1/render`: the canonical render in the gold's window (drawing units) and size (pixels). Idempotent."""

    request_id: Name
    lease_id: Name
    upload: UploadGrant
    window: tuple[float, float, float, float]
    size_px: tuple[int, int]
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)


class ArtifactReply(Record):
    """What was uploaded, as the broker measured it. `is_present` is false when the model left no file (no upload).

    A saved drawing of more than `ARTIFACT_BYTES_MAX` is described and not uploaded.
    """

    name: str
    is_present: bool
    sha256: Sha256 | None
    size_bytes: int
