"""What each error of AWS means: a table from its code to a kind, and the one place where the SDK's errors become ours.

Only the code decides, never the words of a message. The words go on to people, without what must not be seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Final

from botocore import exceptions as sdk

from supervisor.aws_account import AwsCredentialsMissing
from supervisor.cloud.ports import CloudError, FaultKind

# The code of an answer that lacks what it should say.
UNREADABLE: Final = "UnreadableAnswer"
# AWS refuses signatures that are 15 minutes off; a clock that is off by less is wrong all the same.
CLOCK_SKEW_S_MAX: Final = 300.0
WORDS_MAX: Final = 400

# Sources: the EC2 API reference's "Error codes", and the errors that the API references of SSM, Service Quotas,
# EventBridge Scheduler, S3, STS and Bedrock list for each action. Codes that are not here are judged by HTTP status.
_CODES: Final[Mapping[FaultKind, tuple[str, ...]]] = {
    # HTTP 500 or 503, and definite for all that.
    FaultKind.CAPACITY: (
        "InsufficientInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientHostCapacity",
        "InsufficientVolumeCapacity",
        "InsufficientAddressCapacity",
    ),
    FaultKind.SUBNET_FULL: ("InsufficientFreeAddressesInSubnet",),
    FaultKind.QUOTA: (
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "SpotMaxPriceTooLow",
        "ServiceQuotaExceededException",
    ),
    FaultKind.THROTTLE: (
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "EC2ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "ModelNotReadyException",
        "SlowDown",
    ),
    FaultKind.AMBIGUOUS: (
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "InternalServerException",
        "ServerInternal",
        "ServiceException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Unavailable",
        "RequestTimeout",
        "RequestTimeoutException",
        "ModelTimeoutException",
        "ModelErrorException",
    ),
    FaultKind.SIGNING: (
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "InvalidAccessKeyId",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
    ),
    FaultKind.MISMATCH: ("IdempotentParameterMismatch",),
    FaultKind.NOT_FOUND: (
        "InvalidInstanceID.NotFound",
        "InvalidInstanceId",
        "ResourceNotFoundException",
        "NoSuchResourceException",
        "NoSuchEntity",
        "NoSuchKey",
        "NoSuchBucket",
        # The answer to a HEAD has no body, so the SDK takes its status for a code.
        "404",
    ),
    FaultKind.NOT_CONNECTED: ("TargetNotConnected",),
    FaultKind.DENIED: ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "403"),
    FaultKind.PERMANENT: (
        "OptInRequired",
        "PendingVerification",
        "Blocked",
        "Unsupported",
        "OperationNotPermitted",
        "TagPolicyViolation",
        "MissingParameter",
        "Malformed",
        "InvalidParameter",
        "InvalidParameterValue",
        "InvalidParameterCombination",
        "InvalidAMIID.NotFound",
        "InvalidAMIID.Malformed",
        "InvalidAMIID.Unavailable",
        "InvalidSubnetID.NotFound",
        "InvalidGroup.NotFound",
        "InvalidInstanceID.Malformed",
        "InvalidDocument",
        "ValidationException",
        "IllegalArgumentException",
        "ConflictException",
    ),
}
FAULTS: Final[Mapping[str, FaultKind]] = MappingProxyType({code: kind for kind in _CODES for code in _CODES[kind]})

# Errors of the SDK's own that say that there are no credentials to sign with.
_NO_CREDENTIALS: Final = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.TokenRetrievalError,
    sdk.NoAuthTokenError,
    sdk.UnknownCredentialError,
    sdk.UnknownTokenProviderError,
    sdk.MetadataRetrievalError,
    sdk.SSOError,
    sdk.LoginError,
    sdk.RefreshWithMFAUnsupportedError,
    sdk.InfiniteLoopConfigError,
    sdk.ProfileNotFound,
    sdk.ConfigNotFound,
    sdk.ConfigParseError,
)
# Errors that are raised before anything is sent.
_NEVER_SENT: Final = (
    sdk.ParamValidationError,
    sdk.ValidationError,
    sdk.DataNotFoundError,
    sdk.BaseEndpointResolverError,
    sdk.EndpointProviderError,
    sdk.InvalidConfigError,
    sdk.InvalidEndpointConfigurationError,
    sdk.MissingDependencyException,
)
# Actions by which the SDK itself gets credentials, in the middle of another call.
_CREDENTIAL_ACTIONS: Final = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity", "GetRoleCredentials", "CreateToken"})

# Codes whose message names the instances that it complains about.
_NAMING: Final = frozenset(
    {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "InvalidInstanceId", "OperationNotPermitted"}
)
_INSTANCE_ID: Final = re.compile(r"\bi-[0-9a-zA-Z]+\b")

_SECRETIVE: Final = (
    re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL),
    # What was signed is repeated in such an answer, session token included.
    re.compile(r"\s*The Canonical String for this request.*", re.DOTALL),
    re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://\S+"),
    re.compile(r"(?i)\bx-amz-[a-z-]+\s*[:=]\s*\S+"),
    re.compile(r"(?i)\b(AWSAccessKeyId|Signature|Credential)=\S+"),
    re.compile(r"\bA[KS]IA[A-Z0-9]{8,}\b"),
    # Blobs, keys and tokens are such runs; names of people and ARNs are shorter or have colons.
    re.compile(r"[A-Za-z0-9+/=_-]{80,}"),
)

_HINTS: Final[Mapping[FaultKind, str]] = {
    FaultKind.CAPACITY: "Name subnets in more Availability Zones, or another instance type.",
    FaultKind.SUBNET_FULL: "Name a subnet with more free addresses.",
    FaultKind.QUOTA: "Lower `max_concurrency`, or have AWS raise the quota.",
    FaultKind.THROTTLE: "Wait a while: others call AWS with the same account.",
    FaultKind.AMBIGUOUS: "Check the network and AWS's health page, then try again.",
    FaultKind.SIGNING: "Log in again, or correct the profile's keys.",
    FaultKind.MISMATCH: "Report this as a defect: a launch was repeated with other parameters.",
    FaultKind.NOT_FOUND: "Check that the name and the Region are right.",
    FaultKind.NOT_CONNECTED: "Check that the image has the SSM agent and the instance profile allows it.",
    FaultKind.DENIED: "Give the caller the permission; the operator's guide has the least policy.",
    FaultKind.PERMANENT: "Correct what the message names.",
}


def _utc_now() -> datetime:
    return datetime.now(UTC)


def fault_of(error: Exception, *, action: str, utc_now: Callable[[], datetime] = _utc_now) -> CloudError:
    """The error of the SDK as ours. `action` is AWS's name as in policies (`ec2:RunInstances`).

    An error that is no answer of AWS (a timeout, a reset, an answer that cannot be parsed) is ambiguous, unless the
    SDK found before sending that it cannot call at all. Never raises.
    """
    if isinstance(error, sdk.ClientError):
        return _of_answer(error.response, action, getattr(error, "operation_name", ""), utc_now)
    code = type(error).__name__
    if isinstance(error, AwsCredentialsMissing):
        return CloudError(error.message, kind=FaultKind.SIGNING, code=code, action=action, hint=error.hint)
    # The texts of these errors hold addresses and parameters, so only the class is told.
    if isinstance(error, _NO_CREDENTIALS):
        kind, message = FaultKind.SIGNING, f"{action} cannot be signed ({code})"
    elif isinstance(error, _NEVER_SENT):
        kind, message = FaultKind.PERMANENT, f"{action} cannot be called ({code})"
    else:
        kind, message = FaultKind.AMBIGUOUS, f"{action} had no answer that can be used ({code})"
    return CloudError(message, kind=kind, code=code, action=action, hint=_HINTS[kind])


def unreadable(what: str, *, action: str) -> CloudError:
    """The error of an answer that says it is well and lacks `what`. Whether the call was carried out is not known."""
    kind = FaultKind.AMBIGUOUS
    message = f"the answer of {action} cannot be read: {what}"
    return CloudError(message, kind=kind, code=UNREADABLE, action=action, hint=_HINTS[kind])


def kind_of(code: str, status: int | None) -> FaultKind:
    """What an error code means. One that the table does not know is judged by the HTTP status of its answer.

    An answer that says that the server failed leaves open what was carried out; one that blames the caller does not.
    """
    if code in FAULTS:
        return FAULTS[code]
    if status == 429:
        return FaultKind.THROTTLE
    is_refusal = status is not None and 300 <= status < 500 and status != 408
    return FaultKind.PERMANENT if is_refusal else FaultKind.AMBIGUOUS


def _of_answer(response: Mapping[str, Any], action: str, operation: str, utc_now: Callable[[], datetime]) -> CloudError:
    said, about = _mapping(response, "Error"), _mapping(response, "ResponseMetadata")
    code = str(said.get("Code") or "")
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,100}", code):
        code = "Unknown"
    text = str(said.get("Message") or "")
    status = about.get("HTTPStatusCode")
    kind = kind_of(code, status if isinstance(status, int) else None)
    if operation in _CREDENTIAL_ACTIONS and kind not in (FaultKind.THROTTLE, FaultKind.AMBIGUOUS):
        kind = FaultKind.SIGNING
        action = f"{action} (in {operation})"
    skew_s = _clock_skew_s(_mapping(about, "HTTPHeaders"), utc_now)
    hint = _HINTS[kind]
    if kind is FaultKind.SIGNING and skew_s is not None and abs(skew_s) > CLOCK_SKEW_S_MAX:
        where = "behind" if skew_s > 0 else "ahead of"
        hint = f"Set this machine's clock, which is {abs(skew_s):.0f} s {where} AWS's."
    words = _without_secrets(text)
    return CloudError(
        f"{action} was answered with {code}" + (f": {words}" if words else ""),
        kind=kind,
        code=code,
        action=action,
        names=tuple(dict.fromkeys(_INSTANCE_ID.findall(text))) if code in _NAMING else (),
        clock_skew_s=skew_s,
        hint=hint,
    )


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _clock_skew_s(headers: Mapping[str, Any], utc_now: Callable[[], datetime]) -> float | None:
    """How far AWS's clock is ahead of ours, to about a second; null when the answer does not tell."""
    text = headers.get("date") or headers.get("Date")
    try:
        told = parsedate_to_datetime(str(text))
    except ValueError:
        return None
    return ((told if told.tzinfo else told.replace(tzinfo=UTC)) - utc_now()).total_seconds()


def _without_secrets(text: str) -> str:
    """One line of at most `WORDS_MAX` characters, in which signatures, tokens, addresses and blobs are left out."""
    for pattern in _SECRETIVE:
        text = pattern.sub(" [left out]", text)
    words = " ".join(text.split()).rstrip(".")
    return words if len(words) <= WORDS_MAX else words[:WORDS_MAX].rstrip() + "..."
