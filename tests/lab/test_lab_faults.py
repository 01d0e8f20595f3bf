"""The stand-in of AWS refuses, hides, forgets and breaks off as AWS does, each in the words of its service."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from botocore.config import Config
from botocore.exceptions import HTTPClientError, ResponseStreamingError

from tests.lab.asking import ec2, found, launch, refused
from tests.lab.faults import UNFILTERED, Bucket
from tests.lab.lab import BUCKET, Lab

pytestmark = pytest.mark.slow

UNKNOWN = "i-0123456789abcdef0"
ONCE = Config(retries={"total_max_attempts": 1})
STORAGE = Config(
    signature_version="s3v4",
    s3={"addressing_style": "path"},
    retries={"total_max_attempts": 1},
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
PORT_FORWARDING = {
    "DocumentName": "AWS-StartPortForwardingSession",
    "Parameters": {"portNumber": ["1"], "localPortNumber": ["0"]},
}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab.opened(tmp_path, has_guests=False, boot_s=0.0, stop_s=0.0, agent_s=0.0) as opened:
        yield opened


def state_of(lab: Lab, instance_id: str) -> str:
    """As DescribeInstances shows it by id."""
    shown = ec2(lab).describe_instances(InstanceIds=[instance_id])
    return str(shown["Reservations"][0]["Instances"][0]["State"]["Name"])


def presign(lab: Lab, *, method: str = "put_object", expires_s: int = 60, **more: Any) -> str:
    """A presigned URL for one key."""
    parameters = {"Bucket": BUCKET, "Key": "b/r/k", **more}
    url = lab.client("s3", STORAGE).generate_presigned_url(method, Params=parameters, ExpiresIn=expires_s)
    return str(url)


def code_of(answer: requests.Response) -> str:
    """S3's code of an error."""
    return answer.text.partition("<Code>")[2].partition("</Code>")[0]


def test_states_take_their_time(lab: Lab) -> None:
    """`pending` and `shutting-down` are seen from outside, not in the answers of their calls alone."""
    lab.boot_s = lab.stop_s = 3_600.0
    first = launch(lab, "t")
    pending = state_of(lab, first)
    lab.boot_s = 0.0
    running = state_of(lab, first)
    ended = ec2(lab).terminate_instances(InstanceIds=[first])["TerminatingInstances"][0]
    ending = state_of(lab, first)
    lab.stop_s = 0.0

    assert ("pending", "running") == (pending, running)
    assert {"Code": 16, "Name": "running"} == ended["PreviousState"]
    assert {"Code": 32, "Name": "shutting-down"} == ended["CurrentState"]
    assert ("shutting-down", "terminated") == (ending, state_of(lab, first))


def test_an_instance_that_dies_in_pending_says_why(lab: Lab) -> None:
    """The reason is in its description; its token is spent."""
    lab.boot_s = 3_600.0
    first = launch(lab, "t")
    lab.dies_in_pending.add(first)
    lab.boot_s = 0.0

    shown = ec2(lab).describe_instances(InstanceIds=[first])["Reservations"][0]["Instances"][0]

    assert "Server.InsufficientInstanceCapacity" == shown["StateReason"]["Code"]
    assert "t" == shown["ClientToken"]
    assert [] == lab.alive()


def test_what_was_just_launched_is_not_found_by_its_id(lab: Lab) -> None:
    """Describe and Terminate alike say NotFound, and nothing is ended; a token is remembered all the same."""
    lab.visible_after_s = 3_600.0
    first = launch(lab, "t")
    clients = ec2(lab)

    assert "InvalidInstanceID.NotFound" == refused(lambda: clients.describe_instances(InstanceIds=[first]))
    assert "InvalidInstanceID.NotFound" == refused(lambda: clients.terminate_instances(InstanceIds=[first]))
    assert first == launch(lab, "t")
    lab.visible_after_s = 0.0
    assert [first] == found(lab, client_token="t")
    assert [first] == lab.alive()


def test_an_unknown_id_is_an_error_by_id_and_nothing_by_filter(lab: Lab) -> None:
    """Two questions that look the same."""
    assert "InvalidInstanceID.NotFound" == refused(lambda: ec2(lab).describe_instances(InstanceIds=[UNKNOWN]))
    assert [] == found(lab, instance_id=UNKNOWN)


def test_what_was_terminated_is_forgotten(lab: Lab) -> None:
    """It is shown for an hour; afterwards its id is NotFound, as if it had never been."""
    first = launch(lab, "t")
    ec2(lab).terminate_instances(InstanceIds=[first])
    again = ec2(lab).terminate_instances(InstanceIds=[first])["TerminatingInstances"][0]

    assert "terminated" == again["PreviousState"]["Name"] == state_of(lab, first)
    lab.forgotten_after_s = 0.0
    assert [] == found(lab, client_token="t")
    assert "InvalidInstanceID.NotFound" == refused(lambda: ec2(lab).terminate_instances(InstanceIds=[first]))


def test_decoys_look_like_ours_and_are_in_no_journal(lab: Lab) -> None:
    """Two of six kinds are over: the one that was just ended, and the ghost, which a filter still shows running."""
    mine = {"BatchId": "b-1", "Owner": "me"}

    made = lab.decoys(mine, each=1)

    other, sibling, same, ended, ghost, plain = made
    tagged = ec2(lab).describe_instances(
        Filters=[
            {"Name": "tag:BatchId", "Values": ["b-1"]},
            {"Name": "tag:Owner", "Values": ["me"]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
    )["Reservations"]
    assert {same, ghost} == {item["InstanceId"] for page in tagged for item in page["Instances"]}
    assert {other, sibling, same, plain} == set(lab.alive())
    assert "terminated" == state_of(lab, ended)
    assert "InvalidInstanceID.NotFound" == refused(lambda: ec2(lab).terminate_instances(InstanceIds=[same, ghost]))
    assert [] == lab.called("RunInstances")


def test_a_dry_run_of_an_ending_ends_nothing(lab: Lab) -> None:
    """It proves a permission, or the lack of it."""
    first = launch(lab, "t")

    assert "DryRunOperation" == refused(lambda: ec2(lab).terminate_instances(InstanceIds=[first], DryRun=True))
    lab.denied.add("ec2:TerminateInstances")
    assert "UnauthorizedOperation" == refused(lambda: ec2(lab).terminate_instances(InstanceIds=[first], DryRun=True))
    assert [first] == lab.alive()


def test_a_question_for_everything_has_a_smaller_bucket(lab: Lab) -> None:
    """The bucket of filtered questions stays full meanwhile, and the other way round."""
    lab.buckets[UNFILTERED] = Bucket(1, 0)
    lab.buckets["DescribeInstances"] = Bucket(2, 0)

    ec2(lab).describe_instances()
    assert "RequestLimitExceeded" == refused(ec2(lab).describe_instances)
    assert [[], []] == [found(lab, client_token="t"), found(lab, client_token="t")]
    assert "RequestLimitExceeded" == refused(lambda: found(lab, client_token="t"))


@pytest.mark.parametrize(
    ("service", "action", "method", "parameters"),
    [
        ("ec2", "DescribeInstances", "describe_instances", {}),
        ("ssm", "StartSession", "start_session", {"Target": UNKNOWN, **PORT_FORWARDING}),
        ("s3", "HeadBucket", "head_bucket", {"Bucket": BUCKET}),
        ("sts", "GetCallerIdentity", "get_caller_identity", {}),
        ("iam", "GetInstanceProfile", "get_instance_profile", {"InstanceProfileName": "lab-instance"}),
        ("service-quotas", "GetServiceQuota", "get_service_quota", {"ServiceCode": "ec2", "QuotaCode": "L-1216C47A"}),
        ("scheduler", "DeleteSchedule", "delete_schedule", {"Name": "s"}),
        ("bedrock", "ListFoundationModels", "list_foundation_models", {}),
    ],
)
def test_a_fault_comes_in_its_services_own_envelope(
    lab: Lab, service: str, action: str, method: str, parameters: dict[str, Any]
) -> None:
    """boto3 reads code and status from each, the number of times that was ordered, and then the call is served."""
    lab.faults.add(action, code="Throttling", status=429, times=1)
    ask = getattr(lab.client(service, ONCE), method)

    # An answer to HEAD has no body, so that only its status tells.
    expected = "429" if service == "s3" else "Throttling"
    assert expected == refused(lambda: ask(**parameters))
    assert [429] == [call.status for call in lab.called(action)]
    if service in ("ssm", "scheduler"):
        assert refused(lambda: ask(**parameters)) in ("TargetNotConnected", "ResourceNotFoundException")
    else:
        assert 200 == ask(**parameters)["ResponseMetadata"]["HTTPStatusCode"]


def test_a_lost_answer_has_been_carried_out_in_every_service(lab: Lab) -> None:
    """A session and a schedule exist though nobody was told; the journal has calls without a status."""
    first = launch(lab, "t")
    lab.alive()
    for action in ("StartSession", "TerminateInstances"):
        lab.faults.add(action, "drop_after")

    with pytest.raises(HTTPClientError):
        lab.client("ssm", ONCE).start_session(Target=first, **PORT_FORWARDING)
    sessions = lab.sessions.open_ids()
    with pytest.raises(HTTPClientError):
        ec2(lab).terminate_instances(InstanceIds=[first])

    assert 1 == len(sessions)
    assert [] == lab.alive()
    assert [None, None] == [lab.called(action)[0].status for action in ("StartSession", "TerminateInstances")]


def test_an_object_may_end_in_its_middle(lab: Lab) -> None:
    """The head of the answer promises the whole; a later try gets it."""
    s3 = lab.client("s3", STORAGE)
    s3.put_object(Bucket=BUCKET, Key="k", Body=bytes(10_000))
    lab.faults.add("GetObject", "cut")

    with pytest.raises(ResponseStreamingError):
        s3.get_object(Bucket=BUCKET, Key="k")["Body"].read()
    assert bytes(10_000) == s3.get_object(Bucket=BUCKET, Key="k")["Body"].read()


def test_only_the_accounts_own_key_is_taken(lab: Lab) -> None:
    """Once the secret is another, what was signed with the old one is refused everywhere, in each service's words."""
    services: dict[str, tuple[str, dict[str, Any]]] = {
        "ec2": ("describe_instances", {}),
        "ssm": ("start_session", {"Target": UNKNOWN, **PORT_FORWARDING}),
        "sts": ("get_caller_identity", {}),
        "scheduler": ("delete_schedule", {"Name": "a b"}),
    }
    asks = {name: getattr(lab.client(name, ONCE), method) for name, (method, _) in services.items()}

    def codes() -> dict[str, str]:
        return {name: refused(lambda name=name: asks[name](**services[name][1])) for name in services}  # type: ignore[misc]

    lab.secret_key = "another"
    wrong_secret = codes()
    lab.access_key = "AKIAANOTHER"
    wrong_key = codes()

    mismatch = dict.fromkeys(("ssm", "sts", "scheduler"), "SignatureDoesNotMatch")
    assert {"ec2": "AuthFailure", **mismatch} == wrong_secret
    unknown = dict.fromkeys(("ssm", "scheduler"), "UnrecognizedClientException")
    assert {"ec2": "AuthFailure", "sts": "InvalidClientTokenId", **unknown} == wrong_key
    assert 403 == requests.put(f"{lab.url}/{BUCKET}/k", b"x", timeout=5).status_code


def test_a_presigned_request_is_bounded_in_time_and_form(lab: Lab) -> None:
    """A week at most, not before its time, not after, and in version 4 alone."""
    good = presign(lab, method="get_object")
    too_long = presign(lab, expires_s=604_801)
    old_form = f"{lab.url}/{BUCKET}/b/r/k?AWSAccessKeyId=k&Signature=s&Expires=99999999999"

    assert "NoSuchKey" == code_of(requests.get(good, timeout=5))
    assert "AuthorizationQueryParametersError" == code_of(requests.put(too_long, b"x", timeout=5))
    assert "AccessDenied" == code_of(requests.get(old_form, timeout=5))
    assert "SignatureDoesNotMatch" == code_of(requests.get(good.replace("Expires=60", "Expires=90"), timeout=5))
    lab.ahead_s = -3_600.0
    assert "Request is not valid yet" in requests.get(good, timeout=5).text
    lab.ahead_s = 3_600.0
    assert "Request has expired" in requests.get(good, timeout=5).text


def test_what_is_uploaded_must_be_what_its_checksum_says(lab: Lab) -> None:
    """The checksum is a signed header: it can neither be left out nor be that of other bytes."""
    checksum = base64.b64encode(hashlib.sha256(b"drawing").digest()).decode()
    url = presign(lab, ChecksumSHA256=checksum)
    header = {"x-amz-checksum-sha256": checksum}

    assert "BadDigest" == code_of(requests.put(url, b"other", headers=header, timeout=5))
    assert "SignatureDoesNotMatch" == code_of(requests.put(url, b"drawing", timeout=5))
    assert 200 == requests.put(url, b"drawing", headers=header, timeout=5).status_code


def test_an_upload_names_its_length(lab: Lab) -> None:
    """S3 takes no upload in chunks of HTTP."""
    url = urlsplit(presign(lab))
    connection = http.client.HTTPConnection(url.netloc, timeout=5)
    connection.putrequest("PUT", f"{url.path}?{url.query}")
    connection.endheaders()

    assert 411 == connection.getresponse().status
    connection.close()


def test_a_token_of_a_session_is_told_once(lab: Lab) -> None:
    """Resuming gives another one, and an ended session is not resumed."""
    first = launch(lab, "t")
    ssm = lab.client("ssm", ONCE)
    assert "connected" == ssm.get_connection_status(Target=first)["Status"]

    started = ssm.start_session(Target=first, **PORT_FORWARDING)
    resumed = ssm.resume_session(SessionId=started["SessionId"])
    ssm.terminate_session(SessionId=started["SessionId"])

    assert started["SessionId"] == resumed["SessionId"]
    assert started["TokenValue"] != resumed["TokenValue"]
    assert "DoesNotExistException" == refused(lambda: ssm.resume_session(SessionId=started["SessionId"]))
    assert started["SessionId"] == ssm.terminate_session(SessionId=started["SessionId"])["SessionId"]
    assert "notconnected" == ssm.get_connection_status(Target=UNKNOWN)["Status"]


def test_agents_are_told_of_those_that_were_asked_for(lab: Lab) -> None:
    """An id that has not reported is left out."""
    first = launch(lab, "t")
    asked = [{"Key": "InstanceIds", "Values": [first, UNKNOWN]}]

    listed = lab.client("ssm", ONCE).describe_instance_information(Filters=asked)["InstanceInformationList"]

    assert [(first, "Online")] == [(agent["InstanceId"], agent["PingStatus"]) for agent in listed]


def test_a_schedule_is_shown_until_it_is_deleted(lab: Lab) -> None:
    """Looking does not change it; its name is taken once."""
    scheduler = lab.client("scheduler", ONCE)
    order = {
        "Name": "autocad-bench-h-1",
        "ScheduleExpression": f"at({datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M:%S})",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {
            "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
            "RoleArn": f"arn:aws:iam::{lab.account}:role/expiry",
            "Input": json.dumps({"InstanceIds": [UNKNOWN]}),
        },
    }
    scheduler.create_schedule(**order)

    shown = [scheduler.get_schedule(Name=order["Name"])["ScheduleExpression"] for _ in range(2)]

    assert [order["ScheduleExpression"]] * 2 == shown
    assert "ConflictException" == refused(lambda: scheduler.create_schedule(**order))
    scheduler.delete_schedule(Name=order["Name"])
    assert "ResourceNotFoundException" == refused(lambda: scheduler.get_schedule(Name=order["Name"]))


def test_quotas_are_the_accounts_or_else_the_default(lab: Lab) -> None:
    """An account without a value of its own has none to show."""
    quotas = lab.client("service-quotas", ONCE)
    which = {"ServiceCode": "ec2", "QuotaCode": "L-1216C47A"}
    lab.quota = {"L-1216C47A": 96.0}
    applied = quotas.get_service_quota(**which)["Quota"]["Value"]
    lab.quota = {}

    assert 96.0 == applied
    assert "NoSuchResourceException" == refused(lambda: quotas.get_service_quota(**which))
    assert 5.0 == quotas.get_aws_default_service_quota(**which)["Quota"]["Value"]


def test_bedrock_lists_what_the_account_has(lab: Lab) -> None:
    """Models with their inputs, as a catalog needs them; no inference profiles."""
    lab.bedrock_models = [{"modelId": "vendor.sees-v1", "inputModalities": ["TEXT", "IMAGE"]}]
    bedrock = lab.client("bedrock", ONCE)

    assert ["vendor.sees-v1"] == [item["modelId"] for item in bedrock.list_foundation_models()["modelSummaries"]]
    assert [] == bedrock.list_inference_profiles()["inferenceProfileSummaries"]
    assert ["ListFoundationModels", "ListInferenceProfiles"] == [call.action for call in lab.calls]


def test_a_dry_run_meets_only_what_was_ordered_for_it(lab: Lab) -> None:
    """It carries nothing out, so no answer of that is lost; chaos is for what costs money."""
    lab.faults.add("RunInstances", "drop_after")
    lab.faults.add("RunInstances", code="RequestLimitExceeded", status=503, spares_dry_runs=True)
    lab.faults.add("RunInstances", code="UnauthorizedOperation", status=403)
    codes = [refused(lambda: launch(lab, "t", DryRun=True)) for _ in range(2)]

    assert ["UnauthorizedOperation", "DryRunOperation"] == codes
    with pytest.raises(HTTPClientError):
        launch(lab, "t")
    assert "RequestLimitExceeded" == refused(lambda: launch(lab, "t"))
    assert lab.alive() == [launch(lab, "t")]
