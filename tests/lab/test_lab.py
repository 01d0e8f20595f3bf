"""The stand-in of AWS does what AWS does where money or truth depends on it: tokens, quotas, lags, lost answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError

from tests.lab.asking import ec2, found, launch, refused
from tests.lab.faults import Bucket
from tests.lab.lab import BUCKET, Lab

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab.opened(tmp_path, has_guests=False, boot_s=0.0, stop_s=0.0) as opened:
        yield opened


def test_a_token_launches_once_in_a_zone_and_again_in_another(lab: Lab) -> None:
    """The most expensive trap of RunInstances: idempotency ends at the zone."""
    first = launch(lab, "t")

    assert first == launch(lab, "t")
    assert first != launch(lab, "t", subnet=1)
    assert 2 == len(lab.alive())
    assert "IdempotentParameterMismatch" == refused(lambda: launch(lab, "t", EbsOptimized=True))
    assert 2 == len(found(lab, client_token="t"))


def test_a_spent_token_answers_with_the_dead_instance(lab: Lab) -> None:
    """Asking again does not bring it back to life."""
    first = launch(lab, "t")
    ec2(lab).terminate_instances(InstanceIds=[first])

    assert first == launch(lab, "t")
    assert [] == lab.alive()


def test_one_wrong_id_keeps_all_alive(lab: Lab) -> None:
    """TerminateInstances is all or nothing."""
    first = launch(lab, "t")
    terminate = ec2(lab).terminate_instances

    assert "InvalidInstanceID.NotFound" == refused(lambda: terminate(InstanceIds=[first, "i-0123456789abcdef0"]))
    assert [first] == lab.alive()


def test_a_lost_answer_has_launched(lab: Lab) -> None:
    """The caller sees a broken connection, the account an instance."""
    lab.faults.add("RunInstances", "drop_after")

    with pytest.raises(HTTPClientError):
        launch(lab, "t")

    assert found(lab, client_token="t") == lab.alive()
    assert 1 == len(lab.alive())


def test_a_lost_request_has_not(lab: Lab) -> None:
    """From outside the two look the same."""
    lab.faults.add("RunInstances", "drop_before")

    with pytest.raises(HTTPClientError):
        launch(lab, "t")

    assert [] == lab.alive()


def test_what_was_just_launched_is_not_found_by_a_filter(lab: Lab) -> None:
    """An index lags; the instance is alive all the same."""
    lab.visible_after_s = 3_600.0
    first = launch(lab, "t")

    assert [] == found(lab, client_token="t")
    assert [first] == lab.alive()


def test_quota_and_capacity_refuse_in_the_words_of_ec2(lab: Lab) -> None:
    """vCPUs are counted in the class of the type; capacity belongs to a subnet, and is AWS's own fault."""
    lab.quota["L-DB2E81BA"] = 8
    launch(lab, "t-1")
    lab.capacity[lab.subnet_ids[1]] = 0

    assert "InsufficientInstanceCapacity" == refused(lambda: launch(lab, "t-2", subnet=1))
    launch(lab, "t-3")
    assert "VcpuLimitExceeded" == refused(lambda: launch(lab, "t-4"))
    assert 2 == len(lab.alive())


def test_the_sixth_launch_at_once_is_throttled(lab: Lab) -> None:
    """RunInstances has five tokens; the two more a second are left out here, so that no clock decides."""
    lab.buckets["RunInstances"] = Bucket(5, 0)
    codes = []
    for number in range(7):
        try:
            launch(lab, f"t-{number}")
        except ClientError as error:
            codes.append(error.response["Error"]["Code"])

    assert ["RequestLimitExceeded"] * 2 == codes
    assert 5 == len(lab.alive())


def test_a_dry_run_changes_nothing_and_says_so(lab: Lab) -> None:
    """It proves a permission."""
    assert "DryRunOperation" == refused(lambda: launch(lab, "t", DryRun=True))
    assert [] == lab.mutating_calls()
    assert [] == lab.alive()


def presigned(lab: Lab, **more: Any) -> tuple[str, dict[str, str]]:
    """A presigned PUT, as the supervisor makes it."""
    s3 = lab.client("s3", Config(signature_version="s3v4", s3={"addressing_style": "path"}))
    parameters = {"Bucket": BUCKET, "Key": "b/r/k", "ContentType": "image/png", "IfNoneMatch": "*"}
    url = s3.generate_presigned_url("put_object", Params=parameters, ExpiresIn=60, **more)
    return str(url), {"Content-Type": "image/png", "If-None-Match": "*"}


def test_a_presigned_request_is_taken_once_and_only_as_it_was_signed(lab: Lab) -> None:
    """S3 refuses what has another header, another key, or comes twice or late."""
    url, headers = presigned(lab)
    wrong = {**headers, "Content-Type": "text/html"}

    assert 403 == requests.put(url, b"x", headers=wrong, timeout=5).status_code
    assert 403 == requests.put(url, b"x", headers={**headers, "x-amz-acl": "public-read"}, timeout=5).status_code
    assert 403 == requests.put(url.replace("b/r/k", "b/r/other"), b"x", headers=headers, timeout=5).status_code
    assert 200 == requests.put(url, b"x", headers=headers, timeout=5).status_code
    assert 412 == requests.put(url, b"y", headers=headers, timeout=5).status_code
    lab.ahead_s = 61.0
    assert 403 == requests.put(url, b"x", headers=headers, timeout=5).status_code


def test_a_session_needs_an_agent_that_has_reported(lab: Lab) -> None:
    """Until then the target is not connected; an ended instance takes its sessions with it."""
    lab.agent_s = 3_600.0
    first = launch(lab, "t")
    ssm = lab.client("ssm")
    start = {
        "Target": first,
        "DocumentName": "AWS-StartPortForwardingSession",
        "Parameters": {"portNumber": ["1"], "localPortNumber": ["0"]},
    }
    assert "TargetNotConnected" == refused(lambda: ssm.start_session(**start))
    lab.agent_s = 0.0

    session = ssm.start_session(**start)

    assert [session["SessionId"]] == lab.sessions.open_ids()
    ec2(lab).terminate_instances(InstanceIds=[first])
    assert [] == lab.sessions.open_ids()


def test_a_schedule_fires_once(lab: Lab) -> None:
    """What it names is ended at its time, with nobody else alive."""
    first = launch(lab, "t")
    lab.client("scheduler").create_schedule(
        Name="autocad-bench-h-1",
        ScheduleExpression=f"at({time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(time.time() + 1_000))})",
        FlexibleTimeWindow={"Mode": "OFF"},
        ActionAfterCompletion="DELETE",
        Target={
            "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
            "RoleArn": f"arn:aws:iam::{lab.account}:role/expiry",
            "Input": f'{{"InstanceIds": ["{first}"]}}',
        },
    )
    assert [first] == lab.alive()
    lab.ahead_s = 1_001.0

    lab.schedules.fire(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 1_001)))

    assert [] == lab.alive()
    assert {} == lab.schedules.pending
