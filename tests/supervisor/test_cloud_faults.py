"""The table of AWS's errors: what each means, and what of it people get to read."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError
from hypothesis import given
from hypothesis import strategies as st

from supervisor.aws_account import AwsCredentialsMissing
from supervisor.cloud.faults import FAULTS, UNREADABLE, fault_of, kind_of, unreadable
from supervisor.cloud.ports import CloudError, FaultKind

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
K = FaultKind

# Code, HTTP status that AWS sends with it, and what it must mean.
TABLE = [
    ("InsufficientInstanceCapacity", 500, K.CAPACITY),
    ("InsufficientCapacity", 500, K.CAPACITY),
    ("InsufficientHostCapacity", 500, K.CAPACITY),
    ("InsufficientVolumeCapacity", 500, K.CAPACITY),
    ("InsufficientAddressCapacity", 503, K.CAPACITY),
    ("InsufficientFreeAddressesInSubnet", 400, K.SUBNET_FULL),
    ("VcpuLimitExceeded", 400, K.QUOTA),
    ("InstanceLimitExceeded", 400, K.QUOTA),
    ("MaxSpotInstanceCountExceeded", 400, K.QUOTA),
    ("SpotMaxPriceTooLow", 400, K.QUOTA),
    ("RequestLimitExceeded", 503, K.THROTTLE),
    ("Throttling", 400, K.THROTTLE),
    ("ThrottlingException", 400, K.THROTTLE),
    ("EC2ThrottledException", 400, K.THROTTLE),
    ("RequestThrottled", 400, K.THROTTLE),
    ("InternalError", 500, K.AMBIGUOUS),
    ("InternalFailure", 500, K.AMBIGUOUS),
    ("ServerInternal", 500, K.AMBIGUOUS),
    ("ServiceUnavailable", 503, K.AMBIGUOUS),
    ("Unavailable", 503, K.AMBIGUOUS),
    ("RequestExpired", 400, K.SIGNING),
    ("SignatureDoesNotMatch", 403, K.SIGNING),
    ("AuthFailure", 401, K.SIGNING),
    ("ExpiredToken", 400, K.SIGNING),
    ("ExpiredTokenException", 400, K.SIGNING),
    ("InvalidClientTokenId", 403, K.SIGNING),
    ("IncompleteSignature", 400, K.SIGNING),
    ("MissingAuthenticationToken", 403, K.SIGNING),
    ("IdempotentParameterMismatch", 400, K.MISMATCH),
    ("UnauthorizedOperation", 403, K.DENIED),
    ("OptInRequired", 401, K.PERMANENT),
    ("PendingVerification", 400, K.PERMANENT),
    ("Blocked", 403, K.PERMANENT),
    ("Unsupported", 400, K.PERMANENT),
    ("Malformed", 400, K.PERMANENT),
    ("InvalidAMIID.NotFound", 400, K.PERMANENT),
    ("InvalidAMIID.Malformed", 400, K.PERMANENT),
    ("InvalidAMIID.Unavailable", 400, K.PERMANENT),
    ("InvalidSubnetID.NotFound", 400, K.PERMANENT),
    ("InvalidGroup.NotFound", 400, K.PERMANENT),
    ("InvalidParameter", 400, K.PERMANENT),
    ("InvalidParameterValue", 400, K.PERMANENT),
    ("InvalidParameterCombination", 400, K.PERMANENT),
    ("MissingParameter", 400, K.PERMANENT),
    ("TagPolicyViolation", 400, K.PERMANENT),
    ("OperationNotPermitted", 400, K.PERMANENT),
    ("InvalidInstanceID.NotFound", 400, K.NOT_FOUND),
    ("InvalidInstanceID.Malformed", 400, K.PERMANENT),
    # Systems Manager
    ("TargetNotConnected", 400, K.NOT_CONNECTED),
    ("InternalServerError", 500, K.AMBIGUOUS),
    ("InvalidDocument", 400, K.PERMANENT),
    ("InvalidInstanceId", 400, K.NOT_FOUND),
    ("AccessDeniedException", 400, K.DENIED),
    # Service Quotas
    ("NoSuchResourceException", 400, K.NOT_FOUND),
    ("TooManyRequestsException", 400, K.THROTTLE),
    ("ServiceException", 400, K.AMBIGUOUS),
    ("IllegalArgumentException", 400, K.PERMANENT),
    # EventBridge Scheduler
    ("ConflictException", 409, K.PERMANENT),
    ("ResourceNotFoundException", 404, K.NOT_FOUND),
    ("ServiceQuotaExceededException", 402, K.QUOTA),
    ("InternalServerException", 500, K.AMBIGUOUS),
    ("ValidationException", 400, K.PERMANENT),
    # JSON services' names for a refused signature
    ("UnrecognizedClientException", 400, K.SIGNING),
    ("InvalidSignatureException", 403, K.SIGNING),
    ("MissingAuthenticationTokenException", 400, K.SIGNING),
    # IAM and S3; a HEAD has no body, and then the SDK takes the status for the code
    ("NoSuchEntity", 404, K.NOT_FOUND),
    ("NoSuchKey", 404, K.NOT_FOUND),
    ("NoSuchBucket", 404, K.NOT_FOUND),
    ("404", 404, K.NOT_FOUND),
    ("AccessDenied", 403, K.DENIED),
    ("403", 403, K.DENIED),
    ("SlowDown", 503, K.THROTTLE),
    ("503", 503, K.AMBIGUOUS),
    ("RequestTimeout", 400, K.AMBIGUOUS),
    ("RequestTimeTooSkewed", 403, K.SIGNING),
    ("InvalidAccessKeyId", 403, K.SIGNING),
    ("PreconditionFailed", 412, K.PERMANENT),
    # Bedrock
    ("ModelNotReadyException", 429, K.THROTTLE),
    ("ServiceUnavailableException", 503, K.AMBIGUOUS),
    ("ModelTimeoutException", 408, K.AMBIGUOUS),
    ("ModelErrorException", 424, K.AMBIGUOUS),
]


def answered(
    code: object, status: object = 400, *, message: object = "words", headers: object = None, operation: str = "Op"
) -> sdk.ClientError:
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers if headers is not None else {}},
    }
    return sdk.ClientError(response, operation)


def fault(error: Exception, action: str = "ec2:RunInstances") -> CloudError:
    return fault_of(error, action=action, utc_now=lambda: NOW)


@pytest.mark.parametrize(("code", "status", "kind"), TABLE, ids=[row[0] for row in TABLE])
def test_each_code_has_one_meaning(code: str, status: int, kind: FaultKind) -> None:
    """The launcher, the tunnel and the preflight act by it, so a changed row changes what they do."""
    error = fault(answered(code, status))

    assert (kind, code, "ec2:RunInstances") == (error.kind, error.code, error.action)
    assert f"ec2:RunInstances was answered with {code}: words" == error.message
    assert error.hint


def test_every_row_of_the_table_is_tried_here() -> None:
    """A code that nobody has written down twice may have slipped into the wrong row."""
    names_of_the_same = {
        "ThrottledException",
        "RequestThrottledException",
        "RequestTimeoutException",
        "InvalidToken",
        "TokenRefreshRequired",
        "IncompleteSignatureException",
    }

    assert FAULTS.keys() - names_of_the_same == {code for code, _, _ in TABLE} & FAULTS.keys()


@pytest.mark.parametrize("code", ["InsufficientInstanceCapacity", "RequestLimitExceeded", "VcpuLimitExceeded"])
@pytest.mark.parametrize("status", [200, 400, 500, 503, None])
def test_a_known_code_counts_whatever_its_status(code: str, status: int | None) -> None:
    """Capacity comes with HTTP 500 and is definite all the same."""
    assert FAULTS[code] == kind_of(code, status)


@given(st.text(min_size=1, max_size=40).filter(lambda code: code not in FAULTS), st.integers(500, 599))
def test_an_unknown_failure_of_the_server_is_ambiguous(code: str, status: int) -> None:
    """Nobody knows what was carried out before it."""
    assert FaultKind.AMBIGUOUS == fault(answered(code, status)).kind


@given(
    st.text(min_size=1, max_size=40).filter(lambda code: code not in FAULTS),
    st.integers(400, 499).filter(lambda status: status not in (408, 429)),
)
def test_an_unknown_refusal_is_permanent(code: str, status: int) -> None:
    """The caller is to blame, and would be again."""
    assert FaultKind.PERMANENT == fault(answered(code, status)).kind


def test_two_refusals_say_by_their_status_that_they_are_none() -> None:
    """HTTP itself says that 429 is a throttle and 408 a lost request."""
    assert FaultKind.THROTTLE == fault(answered("Whatever", 429)).kind
    assert FaultKind.AMBIGUOUS == fault(answered("Whatever", 408)).kind


@pytest.mark.parametrize("status", [None, "500", 200, 0, True])
def test_an_error_without_a_usable_status_is_ambiguous(status: object) -> None:
    """It says neither that the call was refused nor that it was not."""
    assert FaultKind.AMBIGUOUS == fault(answered("Whatever", status)).kind


def test_the_words_of_a_message_decide_nothing() -> None:
    """They are for people and change without notice."""
    assert FaultKind.PERMANENT == fault(answered("Odd", 400, message="InsufficientInstanceCapacity, throttled")).kind


@pytest.mark.parametrize(
    "error",
    [
        sdk.ConnectTimeoutError(endpoint_url="https://ec2.example/?X-Amz-Signature=canary"),
        sdk.ReadTimeoutError(endpoint_url="https://ec2.example/?X-Amz-Signature=canary"),
        sdk.EndpointConnectionError(endpoint_url="https://ec2.example/canary"),
        sdk.ConnectionClosedError(endpoint_url="https://ec2.example/canary"),
        sdk.ProxyConnectionError(proxy_url="http://user:canary@proxy"),
        sdk.SSLError(endpoint_url="https://ec2.example/canary", error="canary"),
        sdk.ResponseStreamingError(error="canary"),
        sdk.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        sdk.HTTPClientError(error="canary"),
        ResponseParserError("canary"),
        ConnectionResetError("canary"),
        ValueError("canary is no JSON"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_answer_leaves_open_whether_the_call_was_carried_out(error: Exception) -> None:
    """And the SDK's text, which holds addresses, goes nowhere."""
    found = fault(error)

    assert (FaultKind.AMBIGUOUS, type(error).__name__) == (found.kind, found.code)
    assert "canary" not in str(found) + repr(found)


@pytest.mark.parametrize(
    "error",
    [
        sdk.NoCredentialsError(),
        sdk.PartialCredentialsError(provider="canary", cred_var="canary"),
        sdk.CredentialRetrievalError(provider="p", error_msg="canary"),
        sdk.TokenRetrievalError(provider="p", error_msg="canary"),
        sdk.SSOTokenLoadError(error_msg="canary"),
        sdk.UnauthorizedSSOTokenError(),
        sdk.MetadataRetrievalError(error_msg="canary"),
        sdk.ProfileNotFound(profile="canary"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_missing_credentials_are_a_matter_of_signing(error: Exception) -> None:
    """Nothing was sent, and other credentials may be accepted."""
    found = fault(error)

    assert (FaultKind.SIGNING, type(error).__name__) == (found.kind, found.code)
    assert "canary" not in str(found) + repr(found)


def test_an_account_without_credentials_says_so_in_its_own_words() -> None:
    """Those are written for people already."""
    found = fault(AwsCredentialsMissing("the AWS profile 'x' has no credentials", "Log in."))

    assert (FaultKind.SIGNING, "the AWS profile 'x' has no credentials. Log in.") == (found.kind, str(found))


@pytest.mark.parametrize(
    "error",
    [
        sdk.ParamValidationError(report="UserData: canary"),
        sdk.NoRegionError(),
        sdk.UnknownServiceError(service_name="x", known_service_names="y"),
        sdk.EndpointResolutionError(msg="canary"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_was_never_sent_is_permanent(error: Exception) -> None:
    """Nothing was carried out, and the next try would not be sent either."""
    found = fault(error)

    assert FaultKind.PERMANENT == found.kind
    assert "canary" not in str(found) + repr(found)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("AccessDenied", K.SIGNING), ("ValidationError", K.SIGNING), ("Throttling", K.THROTTLE)],
)
def test_a_role_that_cannot_be_assumed_is_a_matter_of_signing(code: str, kind: FaultKind) -> None:
    """The SDK renews credentials in the middle of a call; the refusal is not one of that call."""
    found = fault(answered(code, 403, operation="AssumeRole"))

    assert kind == found.kind
    assert (kind is K.SIGNING) == ("(in AssumeRole)" in found.message)


@pytest.mark.parametrize(
    ("code", "message", "names"),
    [
        ("InvalidInstanceID.NotFound", "The instance ID 'i-0aa1' does not exist", ("i-0aa1",)),
        (
            "InvalidInstanceID.NotFound",
            "The instance IDs 'i-0123456789abcdef0, i-0aa1' do not exist",
            ("i-0123456789abcdef0", "i-0aa1"),
        ),
        ("InvalidInstanceID.NotFound", "The instance ID 'i-0aa1' does not exist (i-0aa1)", ("i-0aa1",)),
        ("OperationNotPermitted", "The instance 'i-0bb2' may not be terminated.", ("i-0bb2",)),
        ("InvalidInstanceID.NotFound", "api-1 multi-az ami-0cc3 no instance", ()),
        ("InvalidInstanceID.NotFound", "", ()),
        ("VcpuLimitExceeded", "i-0aa1 would be one too many", ()),
    ],
)
def test_instances_are_named_where_the_code_says_so(code: str, message: str, names: tuple[str, ...]) -> None:
    """Whoever ends many at once leaves these out; other codes' messages are not looked at."""
    assert names == fault(answered(code, message=message)).names


SECRETS = [
    "You are not authorized to perform this operation. Encoded authorization failure message: canary" + "Ab9-_" * 80,
    (
        "The signature does not match.\n\nThe Canonical String for this request should have been\n"
        "'POST\n/\n\nhost:x\nx-amz-security-token:canary\n'"
    ),
    "see https://bucket.s3.amazonaws.com/canary?X-Amz-Signature=canary for more",
    "got X-Amz-Security-Token=canary&X-Amz-Signature=canary",
    "got x-amz-security-token: canary",
    "key AKIACANARYCANARYCANA was refused".replace("CANARY", "ZZZZZZ"),
    "got AWSAccessKeyId=canary&Signature=canary",
    "blob " + "canary" * 20,
]


@pytest.mark.parametrize("message", SECRETS)
@pytest.mark.parametrize("code", ["UnauthorizedOperation", "SignatureDoesNotMatch", "Whatever"])
def test_what_must_not_be_seen_is_left_out(code: str, message: str) -> None:
    """Error texts end in logs and in the batch's state."""
    try:
        raise fault(answered(code, 403, message=message)) from None
    except CloudError as error:
        shown = str(error) + repr(error) + "".join(traceback.format_exception(error))

    assert "canary" not in shown
    assert "AKIA" not in shown
    assert "://" not in shown


def test_what_people_need_is_kept() -> None:
    """Who may not do what on which resource is the point of such a message."""
    arn = "arn:aws:sts::123456789012:assumed-role/operator/somebody@example.com"
    message = (
        f"User: {arn} is not authorized to perform: ssm:StartSession on resource: arn:aws:ssm:us-east-1::document/x"
    )

    assert message in fault(answered("AccessDeniedException", message=message), "ssm:StartSession").message


def test_a_message_is_one_line_of_bounded_length() -> None:
    """An error page of a proxy must not flood the log."""
    found = fault(answered("Odd", message="several\nlines\t and words, " * 1_000))

    assert "\n" not in found.message
    assert len(found.message) < 500


@pytest.mark.parametrize("code", ["", None, 500, "no code\nat all", "x" * 200, "https://canary"])
def test_a_code_that_is_none_is_not_repeated(code: object) -> None:
    """It comes from outside like the rest."""
    assert {"canary", "\n"}.isdisjoint(fault(answered(code)).message)
    assert fault(answered(code)).code in ("Unknown", "500")


@pytest.mark.parametrize(
    "response",
    [{}, {"Error": None}, {"Error": "text", "ResponseMetadata": []}, {"Error": {"Code": "Odd", "Message": None}}],
)
def test_an_error_of_no_shape_at_all_is_ambiguous(response: Any) -> None:
    """This converts errors, so it must not make new ones."""
    error = sdk.ClientError({"Error": {}}, "Op")
    error.response = response

    assert FaultKind.AMBIGUOUS == fault(error).kind


@pytest.mark.parametrize("ahead_s", [0, 42, -900, 3_600])
def test_the_answer_tells_how_far_the_clocks_are_apart(ahead_s: int) -> None:
    """A signature that is refused for the clock looks like any other."""
    date = format_datetime(NOW + timedelta(seconds=ahead_s), usegmt=True)

    assert float(ahead_s) == fault(answered("RequestExpired", headers={"date": date})).clock_skew_s


@pytest.mark.parametrize(
    ("ahead_s", "hint"),
    [
        (3_600, "Set this machine's clock, which is 3600 s behind AWS's."),
        (-3_600, "Set this machine's clock, which is 3600 s ahead of AWS's."),
        (299, "Log in again, or correct the profile's keys."),
    ],
)
def test_a_wrong_clock_is_the_hint_of_a_refused_signature(ahead_s: int, hint: str) -> None:
    """Logging in again would not help then."""
    date = format_datetime(NOW + timedelta(seconds=ahead_s), usegmt=True)

    assert hint == fault(answered("AuthFailure", 401, headers={"date": date})).hint


@pytest.mark.parametrize("date", ["", "yesterday", "Sun, 99 Foo 2026 12:00:00 GMT", None, 7])
def test_a_date_that_is_none_tells_nothing(date: object) -> None:
    """A header comes from outside like the rest."""
    assert fault(answered("RequestExpired", headers={"date": date})).clock_skew_s is None


def test_an_unreadable_answer_is_ambiguous() -> None:
    """It said that all was well, so something may have been carried out."""
    found = unreadable("no id", action="ec2:RunInstances")

    assert (FaultKind.AMBIGUOUS, UNREADABLE, "ec2:RunInstances") == (found.kind, found.code, found.action)
