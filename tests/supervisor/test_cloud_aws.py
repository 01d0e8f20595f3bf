"""What goes out to AWS, parameter by parameter, and what incomplete or untrue answers come to."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from botocore.awsrequest import AWSResponse
from botocore.stub import Stubber
from pydantic import SecretStr

from supervisor.cloud.aws import PAGES_MAX, AwsCloud, run_parameters
from supervisor.cloud.clients import AwsClients, open_clients
from supervisor.cloud.faults import UNREADABLE
from supervisor.cloud.ports import (
    Agent,
    Cloud,
    CloudError,
    FaultKind,
    Instance,
    InstanceState,
    LaunchOrder,
    PluginAccess,
    Quota,
    Reservation,
)

LAUNCHED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ORDER = LaunchOrder(
    client_token="c" * 40,
    image_id="ami-0aa1",
    instance_type="g4dn.xlarge",
    subnet_id="subnet-0aa1",
    security_group_id="sg-0aa1",
    instance_profile="cad-host",
    user_data="#!/bin/sh\n",
    tags={"RolloutId": "r-1", "BatchId": "b-1"},
)
TAGS = [{"Key": "BatchId", "Value": "b-1"}, {"Key": "RolloutId", "Value": "r-1"}]
IMAGE = {
    "ImageId": "ami-0aa1",
    "BlockDeviceMappings": [
        {"DeviceName": "/dev/sda1", "Ebs": {"DeleteOnTermination": True, "SnapshotId": "snap-1"}},
        {"DeviceName": "xvdb", "Ebs": {"DeleteOnTermination": False}},
        {"DeviceName": "xvdca", "VirtualName": "ephemeral0"},
    ],
}
SHOWN = {
    "InstanceId": "i-0aa1",
    "State": {"Name": "running", "Code": 16},
    "InstanceType": "g4dn.xlarge",
    "ImageId": "ami-0aa1",
    "SubnetId": "subnet-0aa1",
    "PrivateIpAddress": "10.0.0.7",
    "LaunchTime": LAUNCHED,
    "ClientToken": "c" * 40,
    "Tags": TAGS,
    "Placement": {"Tenancy": "default"},
}
INSTANCE = Instance(
    instance_id="i-0aa1",
    state=InstanceState.RUNNING,
    instance_type="g4dn.xlarge",
    image_id="ami-0aa1",
    subnet_id="subnet-0aa1",
    private_ip="10.0.0.7",
    launched_at=LAUNCHED,
    client_token="c" * 40,
    tags={"BatchId": "b-1", "RolloutId": "r-1"},
)
ROLE = "arn:aws:iam::123456789012:role/expiry"
CANARIES = ("canary-secret", "canary-token", "wss://")


@dataclass(frozen=True, slots=True)
class Stubs:
    """A cloud whose every request must be the next expected one."""

    cloud: AwsCloud
    clients: AwsClients
    ec2: Stubber
    ssm: Stubber
    quotas: Stubber
    scheduler: Stubber

    def check(self) -> None:
        for stub in (self.ec2, self.ssm, self.quotas, self.scheduler):
            stub.assert_no_pending_responses()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsClients]:
    """Made once: reading EC2's model takes most of a second."""
    nowhere = tmp_path_factory.mktemp("aws")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", str(nowhere / "config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nowhere / "credentials"))
        patch.setenv("AWS_ACCESS_KEY_ID", "AKID")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
        patch.setenv("AWS_SESSION_TOKEN", "canary-token")
        # What an operator may have set must not bring the SDK's own tries back.
        patch.setenv("AWS_MAX_ATTEMPTS", "5")
        patch.setenv("AWS_RETRY_MODE", "adaptive")
        opened = open_clients(region="eu-west-1", profile=None)
        yield opened
        opened.close()


@pytest.fixture
def stubs(clients: AwsClients) -> Iterator[Stubs]:
    with (
        Stubber(clients.ec2) as ec2,
        Stubber(clients.ssm) as ssm,
        Stubber(clients.quotas) as quotas,
        Stubber(clients.scheduler) as scheduler,
    ):
        yield Stubs(AwsCloud(clients), clients, ec2, ssm, quotas, scheduler)


def expect_launch(stubs: Stubs, answer: dict[str, Any] | None = None) -> None:
    stubs.ec2.add_response("describe_images", {"Images": [IMAGE]}, {"ImageIds": ["ami-0aa1"]})
    stubs.ec2.add_response("run_instances", answer if answer is not None else {"Instances": [SHOWN]})


def test_a_launch_says_everything_that_keeps_money_and_secrets_in(stubs: Stubs) -> None:
    """The golden request: each line of it is a leak or a bill when it is missing."""
    stubs.ec2.add_response("describe_images", {"Images": [IMAGE]}, {"ImageIds": ["ami-0aa1"]})
    stubs.ec2.add_response(
        "run_instances",
        {"Instances": [SHOWN]},
        {
            "ClientToken": "c" * 40,
            "MinCount": 1,
            "MaxCount": 1,
            "ImageId": "ami-0aa1",
            "InstanceType": "g4dn.xlarge",
            "SubnetId": "subnet-0aa1",
            "SecurityGroupIds": ["sg-0aa1"],
            "IamInstanceProfile": {"Name": "cad-host"},
            "UserData": "#!/bin/sh\n",
            "InstanceInitiatedShutdownBehavior": "terminate",
            "DisableApiTermination": False,
            "MetadataOptions": {
                "HttpEndpoint": "enabled",
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 1,
                "InstanceMetadataTags": "disabled",
            },
            "BlockDeviceMappings": [
                {"DeviceName": "/dev/sda1", "Ebs": {"DeleteOnTermination": True}},
                {"DeviceName": "xvdb", "Ebs": {"DeleteOnTermination": True}},
            ],
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": TAGS},
                {"ResourceType": "volume", "Tags": TAGS},
                {"ResourceType": "network-interface", "Tags": TAGS},
            ],
        },
    )

    assert INSTANCE == stubs.cloud.run_instance(ORDER)
    stubs.check()


def test_the_image_is_looked_at_once(stubs: Stubs) -> None:
    """A hundred launches of one image ask for its volumes once, also by a repeat of the same order."""
    expect_launch(stubs)
    stubs.ec2.add_response("run_instances", {"Instances": [SHOWN]})
    stubs.ec2.add_response("run_instances", {"Instances": [{**SHOWN, "InstanceId": "i-0bb2"}]})

    launched = [stubs.cloud.run_instance(order) for order in (ORDER, ORDER, replace(ORDER, client_token="d"))]

    assert ["i-0aa1", "i-0aa1", "i-0bb2"] == [instance.instance_id for instance in launched]
    stubs.check()


def test_a_launch_carries_its_user_data_and_its_own_token(clients: AwsClients) -> None:
    """EC2 takes user data in base64, and the SDK makes up a token where it is given none."""
    cloud = AwsCloud(clients)
    with Stubber(clients.ec2) as ec2:
        ec2.add_response("describe_images", {"Images": [IMAGE]})
        ec2.add_response("run_instances", {"Instances": [SHOWN]})
        cloud.run_instance(ORDER)

    _, (body,) = refused(clients, "ec2", lambda _: cloud.run_instance(ORDER), 500, b"")

    assert (["IyEvYmluL3NoCg=="], ["c" * 40]) == (parse_qs(body)["UserData"], parse_qs(body)["ClientToken"])


def test_the_order_of_tags_changes_no_byte_of_a_launch() -> None:
    """A repeat with other bytes is a mismatch to AWS, and a ledger may give tags back in another order."""
    turned = replace(ORDER, tags=dict(reversed(list(ORDER.tags.items()))))

    assert json.dumps(run_parameters(ORDER)) == json.dumps(run_parameters(turned))


def test_a_spot_instance_on_a_dead_volume_is_read_whole(stubs: Stubs) -> None:
    """A terminated instance has no address and no subnet any more, and says why it ended."""
    shown = {
        **{key: SHOWN[key] for key in ("InstanceId", "InstanceType", "ImageId", "LaunchTime")},
        "State": {"Name": "terminated"},
        "InstanceLifecycle": "spot",
        "Placement": {"Tenancy": "host"},
        "StateReason": {"Code": "Client.VolumeLimitExceeded", "Message": "words"},
    }
    stubs.ec2.add_response("describe_instances", {"Reservations": [{"Instances": [shown]}]})

    expected = Instance(
        instance_id="i-0aa1",
        state=InstanceState.TERMINATED,
        instance_type="g4dn.xlarge",
        image_id="ami-0aa1",
        subnet_id=None,
        private_ip=None,
        launched_at=LAUNCHED,
        client_token="",
        lifecycle="spot",
        tenancy="host",
        reason="Client.VolumeLimitExceeded",
    )
    assert [expected] == stubs.cloud.find_instances({"instance-id": ["i-0aa1"]})


def test_instances_are_found_on_every_page(stubs: Stubs) -> None:
    """A reconciler that reads the first page alone leaves the others running."""
    filters = [{"Name": "tag:BatchId", "Values": ["b-1"]}, {"Name": "client-token", "Values": ["x", "y"]}]
    first = {"Reservations": [{"Instances": [SHOWN]}, {"Instances": []}], "NextToken": "n"}
    last = {"Reservations": [{"Instances": [SHOWN, {**SHOWN, "InstanceId": "i-0bb2"}]}]}
    stubs.ec2.add_response("describe_instances", first, {"Filters": filters, "MaxResults": 1000})
    stubs.ec2.add_response("describe_instances", last, {"Filters": filters, "MaxResults": 1000, "NextToken": "n"})

    found = stubs.cloud.find_instances({"tag:BatchId": ["b-1"], "client-token": ["x", "y"]})

    assert ["i-0aa1", "i-0bb2"] == [instance.instance_id for instance in found]
    stubs.check()


def test_a_filter_without_values_finds_nothing_and_asks_nothing(stubs: Stubs) -> None:
    """EC2 might take it for no filter at all, and all instances of the account for ours."""
    assert [] == stubs.cloud.find_instances({"tag:BatchId": ["b-1"], "client-token": []})
    stubs.check()


def test_more_values_than_a_filter_takes_are_asked_for_in_parts(stubs: Stubs) -> None:
    """A batch of five hundred has five hundred tokens to look for; EC2 takes two hundred a filter."""
    tokens = [f"t{number:03}" for number in range(450)]
    for start, instance_id in ((0, "i-0"), (200, "i-1"), (400, "i-2")):
        filters = [
            {"Name": "tag:Owner", "Values": ["me"]},
            {"Name": "client-token", "Values": tokens[start : start + 200]},
        ]
        page = {"Reservations": [{"Instances": [{**SHOWN, "InstanceId": instance_id}]}]}
        stubs.ec2.add_response("describe_instances", page, {"Filters": filters, "MaxResults": 1000})

    found = stubs.cloud.find_instances({"client-token": tokens, "tag:Owner": ["me"]})

    assert ["i-0", "i-1", "i-2"] == [instance.instance_id for instance in found]
    stubs.check()


def test_many_are_terminated_by_one_call(stubs: Stubs) -> None:
    """The contract with the operator: one request at the end of a batch, and no parameter that is not certain."""
    answer = {"TerminatingInstances": [{"InstanceId": "i-1"}, {"InstanceId": "i-2"}]}
    stubs.ec2.add_response("terminate_instances", answer, {"InstanceIds": ["i-1", "i-2"]})

    stubs.cloud.terminate_instances(["i-2", "i-1", "i-2"])

    stubs.check()


def test_nobody_is_terminated_without_a_call(stubs: Stubs) -> None:
    """EC2 refuses an empty list."""
    stubs.cloud.terminate_instances([])

    stubs.check()


def test_a_termination_that_leaves_one_out_is_not_taken_for_done(stubs: Stubs) -> None:
    """An instance that the answer does not name may run on."""
    stubs.ec2.add_response("terminate_instances", {"TerminatingInstances": [{"InstanceId": "i-1"}]})

    with pytest.raises(CloudError, match="nothing about i-2") as caught:
        stubs.cloud.terminate_instances(["i-1", "i-2"])

    assert (FaultKind.AMBIGUOUS, UNREADABLE) == (caught.value.kind, caught.value.code)


def agent_question(*ids: str) -> dict[str, Any]:
    return {"Filters": [{"Key": "InstanceIds", "Values": list(ids)}], "MaxResults": 50}


def agent(instance_id: str, status: str = "Online") -> dict[str, Any]:
    return {"InstanceId": instance_id, "PingStatus": status, "AgentVersion": "3.3.1"}


def test_agents_are_asked_for_by_fifty(stubs: Stubs) -> None:
    """More ids are refused. An agent that has not reported is left out, and so is one that nobody asked about."""
    ids = [f"i-{number:03}" for number in range(60)]
    pages = [agent("i-000"), agent("i-001", "ConnectionLost"), agent("i-stranger")]
    first = {"InstanceInformationList": pages, "NextToken": "n"}
    stubs.ssm.add_response("describe_instance_information", first, agent_question(*ids[:50]))
    second = {"InstanceInformationList": [agent("i-049")]}
    stubs.ssm.add_response("describe_instance_information", second, {**agent_question(*ids[:50]), "NextToken": "n"})
    stubs.ssm.add_response("describe_instance_information", {"InstanceInformationList": []}, agent_question(*ids[50:]))

    found = stubs.cloud.find_agents(reversed(ids))

    expected = {"i-000": Agent(True, "3.3.1"), "i-001": Agent(False, "3.3.1"), "i-049": Agent(True, "3.3.1")}
    assert expected == found
    stubs.check()


def test_an_unknown_instance_has_no_agent_yet(stubs: Stubs) -> None:
    """SSM may refuse an id that is seconds old; that is no error."""
    stubs.ssm.add_client_error("describe_instance_information", "InvalidInstanceId")

    assert {} == stubs.cloud.find_agents(["i-1"])
    stubs.check()


@pytest.mark.parametrize("named", ["i-2 is not known", ""])
def test_an_unknown_instance_hides_no_other(stubs: Stubs, named: str) -> None:
    """While a batch starts, one of its instances is always too new; the others must be seen all the same."""
    stubs.ssm.add_client_error(
        "describe_instance_information", "InvalidInstanceId", named, expected_params=agent_question("i-1", "i-2")
    )
    if not named:
        stubs.ssm.add_client_error(
            "describe_instance_information", "InvalidInstanceId", expected_params=agent_question("i-2")
        )
    answer = {"InstanceInformationList": [agent("i-1")]}
    stubs.ssm.add_response("describe_instance_information", answer, agent_question("i-1"))

    assert {"i-1": Agent(True, "3.3.1")} == stubs.cloud.find_agents(["i-1", "i-2"])
    stubs.check()


def test_ids_that_are_all_unknown_do_not_use_up_the_rate(stubs: Stubs) -> None:
    """Fifty new instances are not fifty questions."""
    for _ in range(16):
        stubs.ssm.add_client_error("describe_instance_information", "InvalidInstanceId")

    assert {} == stubs.cloud.find_agents([f"i-{number:03}" for number in range(50)])
    stubs.check()


def test_a_session_forwards_one_port_to_a_free_one(stubs: Stubs) -> None:
    """The response is what the plugin takes; its token shows nowhere."""
    answer = {"SessionId": "s-1", "TokenValue": "canary-token", "StreamUrl": "wss://x", "ResponseMetadata": {}}
    expected = {
        "Target": "i-1",
        "DocumentName": "AWS-StartPortForwardingSession",
        "Reason": "ours",
        "Parameters": {"portNumber": ["8765"], "localPortNumber": ["0"]},
    }
    stubs.ssm.add_response("start_session", answer, expected)

    session = stubs.cloud.start_session("i-1", port=8765, reason="ours")

    response = '{"SessionId": "s-1", "TokenValue": "canary-token", "StreamUrl": "wss://x"}'
    assert ("s-1", response) == (session.session_id, session.response.get_secret_value())
    assert "canary" not in repr(session) + str(session)
    stubs.check()


@pytest.mark.parametrize("lost", ["TokenValue", "StreamUrl"])
def test_a_session_that_nobody_can_use_is_ended(stubs: Stubs, lost: str) -> None:
    """Else it stays open until its idle time is over. The error names the field and not its siblings' values."""
    answer = {"SessionId": "s-1", "TokenValue": "canary-token", "StreamUrl": "wss://x"}
    del answer[lost]
    stubs.ssm.add_response("start_session", answer)
    stubs.ssm.add_response("terminate_session", {"SessionId": "s-1"}, {"SessionId": "s-1"})

    with pytest.raises(CloudError, match=lost) as caught:
        stubs.cloud.start_session("i-1", port=8765, reason="ours")

    assert not [word for word in CANARIES if word in str(caught.value) + repr(caught.value)]
    stubs.check()


def test_a_session_is_found_by_what_it_was_started_for(stubs: Stubs) -> None:
    """An instance may have sessions of people too, which are none of ours."""
    asked = {"State": "Active", "Filters": [{"key": "Target", "value": "i-1"}], "MaxResults": 200}
    sessions = [{"SessionId": "s-1", "Reason": "ours"}, {"SessionId": "s-2", "Reason": "a look"}, {"SessionId": "s-3"}]
    stubs.ssm.add_response("describe_sessions", {"Sessions": sessions, "NextToken": "more"}, asked)
    last = {"Sessions": [{"SessionId": "s-4", "Reason": "ours"}]}
    stubs.ssm.add_response("describe_sessions", last, {**asked, "NextToken": "more"})

    assert ["s-1", "s-4"] == stubs.cloud.find_sessions("i-1", reason="ours")
    stubs.check()


def test_the_plugin_gets_the_credentials_of_now(stubs: Stubs) -> None:
    """With the operator's way out, and nothing else of the environment."""
    proxies = {"HTTPS_PROXY": SecretStr("http://me:canary-password@proxy.invalid:3128")}
    access = AwsCloud(stubs.clients, proxies=proxies).plugin_access()

    expected = PluginAccess(
        region="eu-west-1",
        ssm_endpoint="https://ssm.eu-west-1.amazonaws.com",
        environment={
            "AWS_ACCESS_KEY_ID": SecretStr("AKID"),
            "AWS_SECRET_ACCESS_KEY": SecretStr("canary-secret"),
            "AWS_SESSION_TOKEN": SecretStr("canary-token"),
            **proxies,
        },
    )
    assert expected == access
    assert "canary" not in repr(access)


def test_credentials_are_found_again_for_every_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who logs in again while a batch runs need not start it again."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    write_keys(tmp_path / "credentials", "AKFIRST")
    opened = open_clients(region="eu-west-1", profile="bench")
    cloud = AwsCloud(opened)

    write_keys(tmp_path / "credentials", "AKSECOND")
    keys = [key_of(cloud)]
    cloud.refresh_credentials()
    keys.append(key_of(cloud))
    url = opened.s3.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
    (tmp_path / "credentials").unlink()

    with pytest.raises(CloudError) as caught:
        cloud.refresh_credentials()
    assert FaultKind.SIGNING == caught.value.kind
    assert ["AKFIRST", "AKSECOND", "AKSECOND"] == [*keys, key_of(cloud)]
    assert "AKSECOND" in url
    opened.close()


def write_keys(path: Path, key: str) -> None:
    path.write_text(f"[bench]\naws_access_key_id = {key}\naws_secret_access_key = canary-secret\n")


def key_of(cloud: AwsCloud) -> str:
    return cloud.plugin_access().environment["AWS_ACCESS_KEY_ID"].get_secret_value()


def test_a_quota_is_read_in_whole_vcpus(stubs: Stubs) -> None:
    """AWS sends a float."""
    which = {"ServiceCode": "ec2", "QuotaCode": "L-DB2E81BA"}
    stubs.quotas.add_response("get_service_quota", {"Quota": {"Value": 768.0}}, which)

    assert Quota("L-DB2E81BA", 768, is_default=False) == stubs.cloud.read_quota("L-DB2E81BA")


def test_a_quota_that_was_never_applied_is_the_default(stubs: Stubs) -> None:
    """The plan says so, because the default is often 0."""
    which = {"ServiceCode": "ec2", "QuotaCode": "L-DB2E81BA"}
    stubs.quotas.add_client_error("get_service_quota", "NoSuchResourceException", expected_params=which)
    stubs.quotas.add_response("get_aws_default_service_quota", {"Quota": {"Value": 0.0}}, which)

    assert Quota("L-DB2E81BA", 0, is_default=True) == stubs.cloud.read_quota("L-DB2E81BA")
    stubs.check()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_quota_that_is_no_number_is_no_answer(stubs: Stubs, value: float | None) -> None:
    """Whatever it was made into would admit too much or nothing."""
    stubs.quotas.add_response("get_service_quota", {"Quota": {"Value": value} if value is not None else {}})

    with pytest.raises(CloudError) as caught:
        stubs.cloud.read_quota("L-DB2E81BA")
    assert UNREADABLE == caught.value.code


def test_sizes_of_types_are_asked_for_once(stubs: Stubs) -> None:
    """They never change. A type that AWS does not know is left out, and asked for again."""
    first = [{"Name": "instance-type", "Values": ["g4dn.xlarge", "no.type"]}]
    types = {"InstanceTypes": [{"InstanceType": "g4dn.xlarge", "VCpuInfo": {"DefaultVCpus": 4}}]}
    stubs.ec2.add_response("describe_instance_types", types, {"Filters": first, "MaxResults": 100})
    again = [{"Name": "instance-type", "Values": ["no.type"]}]
    stubs.ec2.add_response("describe_instance_types", {"InstanceTypes": []}, {"Filters": again, "MaxResults": 100})

    told = [stubs.cloud.read_vcpus({"no.type", "g4dn.xlarge"}) for _ in range(2)]

    assert [{"g4dn.xlarge": 4}] * 2 == told
    stubs.check()


def test_what_is_reserved_and_unused_counts(stubs: Stubs) -> None:
    """A reservation takes quota whether it is used or not; capacity blocks have one of their own."""
    page = {
        "CapacityReservations": [
            {"InstanceType": "g4dn.xlarge", "AvailableInstanceCount": 3},
            {"InstanceType": "m7i.large", "AvailableInstanceCount": 0},
            {"InstanceType": "p5.48xlarge", "AvailableInstanceCount": 2, "ReservationType": "capacity-block"},
        ]
    }
    expected = {"Filters": [{"Name": "state", "Values": ["active"]}], "MaxResults": 1000}
    stubs.ec2.add_response("describe_capacity_reservations", page, expected)

    assert [Reservation("g4dn.xlarge", 3)] == stubs.cloud.read_reservations()
    stubs.check()


@pytest.mark.parametrize("partition", ["aws", "aws-us-gov", "aws-cn"])
def test_an_expiry_is_a_schedule_for_once(stubs: Stubs, partition: str) -> None:
    """It ends the instance when nobody else does, and then itself. Its time is UTC wherever the caller is."""
    role = ROLE.replace("arn:aws:", f"arn:{partition}:")
    expected = {
        "Name": "expiry-1",
        "ScheduleExpression": "at(2026-03-01T12:00:00)",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": f"arn:{partition}:scheduler:::aws-sdk:ec2:terminateInstances",
            "RoleArn": role,
            "Input": '{"InstanceIds": ["i-1"]}',
        },
    }
    stubs.scheduler.add_response("create_schedule", {"ScheduleArn": "arn:x"}, expected)

    at = LAUNCHED.astimezone(timezone(timedelta(hours=5)))
    stubs.cloud.create_expiry("expiry-1", instance_id="i-1", at=at, role_arn=role)

    stubs.check()


def test_an_expiry_that_exists_is_kept(stubs: Stubs) -> None:
    """The one that created it may have died before it knew."""
    stubs.scheduler.add_client_error("create_schedule", "ConflictException", http_status_code=409)

    stubs.cloud.create_expiry("expiry-1", instance_id="i-1", at=LAUNCHED, role_arn=ROLE)

    stubs.check()


def test_an_expiry_that_is_gone_is_deleted(stubs: Stubs) -> None:
    """It deletes itself, so being late is the usual case."""
    stubs.scheduler.add_response("delete_schedule", {}, {"Name": "expiry-1"})
    stubs.scheduler.add_client_error("delete_schedule", "ResourceNotFoundException", http_status_code=404)

    stubs.cloud.delete_expiry("expiry-1")
    stubs.cloud.delete_expiry("expiry-1")

    stubs.check()


CALLS: dict[str, tuple[str, str, Callable[[Cloud], object]]] = {
    "describe_images": ("ec2", "ec2:DescribeImages", lambda cloud: cloud.run_instance(ORDER)),
    "describe_instances": ("ec2", "ec2:DescribeInstances", lambda cloud: cloud.find_instances({"x": ["y"]})),
    "terminate_instances": ("ec2", "ec2:TerminateInstances", lambda cloud: cloud.terminate_instances(["i-1"])),
    "describe_instance_types": ("ec2", "ec2:DescribeInstanceTypes", lambda cloud: cloud.read_vcpus(["t3.micro"])),
    "describe_capacity_reservations": (
        "ec2",
        "ec2:DescribeCapacityReservations",
        lambda cloud: cloud.read_reservations(),
    ),
    "describe_instance_information": (
        "ssm",
        "ssm:DescribeInstanceInformation",
        lambda cloud: cloud.find_agents(["i-1"]),
    ),
    "start_session": ("ssm", "ssm:StartSession", lambda cloud: cloud.start_session("i-1", port=1, reason="x")),
    "describe_sessions": ("ssm", "ssm:DescribeSessions", lambda cloud: cloud.find_sessions("i-1", reason="x")),
    "terminate_session": ("ssm", "ssm:TerminateSession", lambda cloud: cloud.terminate_session("s-1")),
    "get_service_quota": ("quotas", "servicequotas:GetServiceQuota", lambda cloud: cloud.read_quota("L-1")),
    "create_schedule": (
        "scheduler",
        "scheduler:CreateSchedule",
        lambda cloud: cloud.create_expiry("x", instance_id="i-1", at=LAUNCHED, role_arn=ROLE),
    ),
    "delete_schedule": ("scheduler", "scheduler:DeleteSchedule", lambda cloud: cloud.delete_expiry("x")),
}


@pytest.mark.parametrize(("code", "status"), [("Throttling", 400), ("InternalFailure", 500), ("Odd", 503)])
@pytest.mark.parametrize("method", CALLS)
def test_an_error_is_one_request_and_one_cloud_error(clients: AwsClients, method: str, code: str, status: int) -> None:
    """The SDK's own tries would use up rates and budgets that are counted elsewhere, whatever the environment says."""
    service, action, call = CALLS[method]

    error, sent = refused(clients, service, call, status, error_body(service, code))

    assert (code, action, 1) == (error.code, error.action, len(sent))


@pytest.mark.parametrize("code", ["InsufficientInstanceCapacity", "RequestLimitExceeded", "InternalError"])
def test_a_launch_that_fails_went_out_once(clients: AwsClients, code: str) -> None:
    """Capacity comes with HTTP 500, which the SDK would try three times."""
    cloud = AwsCloud(clients)
    with Stubber(clients.ec2) as ec2:
        expect_launch(Stubs(cloud, clients, ec2, ec2, ec2, ec2))
        cloud.run_instance(ORDER)

    error, sent = refused(clients, "ec2", lambda _: cloud.run_instance(ORDER), 500, error_body("ec2", code))

    assert (code, "ec2:RunInstances", 1) == (error.code, error.action, len(sent))


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b"\x00\xff", b'{"half'])
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("method", [name for name in CALLS if name not in ("delete_schedule", "terminate_session")])
def test_an_answer_that_is_none_leaves_open_what_happened(
    clients: AwsClients, method: str, status: int, body: bytes
) -> None:
    """A proxy's page, half an answer and none at all are lost answers; none ends in an error of another class."""
    service, action, call = CALLS[method]

    error, sent = refused(clients, service, call, status, body)

    assert (FaultKind.AMBIGUOUS, action, 1) == (error.kind, error.action, len(sent))


def error_body(service: str, code: str) -> bytes:
    if service == "ec2":
        error = f"<Error><Code>{code}</Code><Message>words</Message></Error>"
        return f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>".encode()
    return json.dumps({"__type": code, "message": "words"}).encode()


def refused(
    clients: AwsClients, service: str, call: Callable[[Cloud], object], status: int, body: bytes
) -> tuple[CloudError, list[str]]:
    """The error of a call that is answered so before it reaches a socket, and the body of each request."""
    sent: list[str] = []

    def answer(request: Any, **_: object) -> AWSResponse:
        sent.append(request.body.decode() if isinstance(request.body, bytes) else str(request.body))
        return AWSResponse(request.url, status, {}, Raw(body))

    events = getattr(clients, service).meta.events
    events.register_first("before-send", answer)
    try:
        with pytest.raises(CloudError) as caught:
            call(AwsCloud(clients))
    finally:
        events.unregister("before-send", answer)
    return caught.value, sent


class Raw(io.BytesIO):
    """A body as urllib3 hands it over."""

    def stream(self, **_: object) -> Iterator[bytes]:
        while chunk := self.read(1024):
            yield chunk


@pytest.mark.parametrize("lost", ["InstanceId", "State", "InstanceType", "ImageId", "LaunchTime"])
def test_an_instance_without_its_facts_is_no_answer(stubs: Stubs, lost: str) -> None:
    """Of a launch it leaves open what runs; in a list nobody can tell whether it is ours."""
    shown = {key: value for key, value in SHOWN.items() if key != lost}
    expect_launch(stubs, {"Instances": [shown]})
    stubs.ec2.add_response("describe_instances", {"Reservations": [{"Instances": [shown]}]})

    for call in (lambda: stubs.cloud.run_instance(ORDER), lambda: stubs.cloud.find_instances({"x": ["y"]})):
        with pytest.raises(CloudError, match=lost) as caught:
            call()
        assert (FaultKind.AMBIGUOUS, UNREADABLE) == (caught.value.kind, caught.value.code)


@pytest.mark.parametrize(
    "answer",
    [{}, {"Instances": []}, {"Instances": [SHOWN, SHOWN]}, {"Instances": [{**SHOWN, "State": {"Name": "melted"}}]}],
)
def test_a_launch_is_one_instance_in_a_known_state(stubs: Stubs, answer: dict[str, Any]) -> None:
    """Anything else is looked up by its token before anything else happens."""
    expect_launch(stubs, answer)

    with pytest.raises(CloudError) as caught:
        stubs.cloud.run_instance(ORDER)
    assert (FaultKind.AMBIGUOUS, UNREADABLE) == (caught.value.kind, caught.value.code)


def test_an_image_that_nobody_shows_is_not_launched(stubs: Stubs) -> None:
    """Its volumes might outlive the instance."""
    stubs.ec2.add_response("describe_images", {"Images": []})

    with pytest.raises(CloudError) as caught:
        stubs.cloud.run_instance(ORDER)
    assert "ec2:DescribeImages" == caught.value.action
    stubs.check()


def test_a_list_that_is_missing_is_not_an_empty_one(stubs: Stubs) -> None:
    """A reconciler that finds nothing says that all is well."""
    stubs.ec2.add_response("describe_instances", {})

    with pytest.raises(CloudError, match="Reservations"):
        stubs.cloud.find_instances({"x": ["y"]})


@pytest.mark.parametrize("tokens", [lambda number: "same", lambda number: f"n{number}"])
def test_pages_without_an_end_end(stubs: Stubs, tokens: Callable[[int], str]) -> None:
    """A page that names itself as the next, and one that always names another."""
    for number in range(PAGES_MAX + 1):
        stubs.ec2.add_response("describe_instances", {"Reservations": [], "NextToken": tokens(number)})

    with pytest.raises(CloudError) as caught:
        stubs.cloud.find_instances({"x": ["y"]})
    assert FaultKind.AMBIGUOUS == caught.value.kind
