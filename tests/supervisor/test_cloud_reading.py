"""One look at an AWS account: everything is asked once and side by side, changes nothing, and ends in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError, ConfigParseError, ReadTimeoutError

from contract.config import Ec2HostConfig
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.cloud.account import read_account
from supervisor.cloud.aws import run_parameters
from supervisor.cloud.clients import AwsClients
from supervisor.cloud.facts import NO_ANSWER, Bucket, Caller, CloudFacts, Image, MachineType, SecurityGroup, Subnet
from supervisor.cloud.ports import (
    Cloud,
    CloudError,
    FaultKind,
    Instance,
    InstanceState,
    LaunchOrder,
    Quota,
    Reservation,
)
from supervisor.cloud.reading import read_cloud

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
FIRST, SECOND = "subnet-0123456789abcdef0", "subnet-0123456789abcdef1"
HOST = Ec2HostConfig(
    kind="ec2",
    region="us-east-1",
    ami_id="ami-0123456789abcdef0",
    instance_type="g6.xlarge",
    subnet_ids=[FIRST, SECOND],
    security_group_id="sg-0123456789abcdef0",
    instance_profile="autocad-bench",
    artifact_bucket="artifacts",
    identity_certificate="identity.pem",
    driver="librecad",
    owner="tester",
)
CALLER_ARN = "arn:aws:sts::123456789012:assumed-role/bench/operator"
Answer = Callable[[Mapping[str, Any]], Any]


def _error(code: str, *, status: int = 400, headers: Mapping[str, str] | None = None) -> Answer:
    def answer(parameters: Mapping[str, Any]) -> Any:
        about = {"HTTPStatusCode": status, "HTTPHeaders": dict(headers or {})}
        raise ClientError({"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": about}, "Action")  # type: ignore[typeddict-item]

    return answer


def _always(value: Any) -> Answer:
    return lambda parameters: value


IMAGE = {
    "State": "available",
    "Architecture": "x86_64",
    "BootMode": "uefi",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {}}, {"DeviceName": "/dev/sdb", "VirtualName": "e0"}],
}
TYPE = {
    "InstanceType": "g6.xlarge",
    "VCpuInfo": {"DefaultVCpus": 4},
    "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
    "SupportedBootModes": ["legacy-bios", "uefi"],
    "SupportedUsageClasses": ["on-demand", "spot"],
}
SUBNETS = [
    {
        "SubnetId": subnet,
        "State": "available",
        "AvailabilityZone": zone,
        "VpcId": "vpc-1",
        "AvailableIpAddressCount": 250,
    }
    for subnet, zone in ((FIRST, "us-east-1a"), (SECOND, "us-east-1b"))
]
GROUP = {"VpcId": "vpc-1", "IpPermissions": [{"IpProtocol": "tcp"}]}
IDENTITY = {
    "Account": "123456789012",
    "Arn": CALLER_ARN,
    "ResponseMetadata": {"HTTPHeaders": {"date": "Wed, 02 Dec 2026 12:00:07 GMT"}},
}
# What a healthy account answers to each method of the SDK.
ANSWERS: dict[str, Answer] = {
    "get_caller_identity": _always(IDENTITY),
    "describe_images": _always({"Images": [IMAGE]}),
    "describe_instance_types": _always({"InstanceTypes": [TYPE]}),
    "describe_instance_type_offerings": _always({"InstanceTypeOfferings": [{"Location": "us-east-1a"}]}),
    "describe_subnets": _always({"Subnets": SUBNETS}),
    "describe_security_groups": _always({"SecurityGroups": [GROUP]}),
    "get_instance_profile": _always({}),
    "head_bucket": _always({"BucketRegion": "us-east-1"}),
    "run_instances": _error("DryRunOperation", status=412),
}


class FakeClient:
    """Every client of the SDK in one: answers by method, and keeps what it was asked."""

    meta = SimpleNamespace(region_name="us-east-1")

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, method: str) -> Any:
        def call(**parameters: Any) -> Any:
            self.calls.append((method, parameters))
            return self.answers[method](parameters)

        return call


@dataclass(slots=True)
class CountedCloud:
    """The part of a `Cloud` that only looks. Anything else that is called fails the test."""

    instances: list[Instance] = field(default_factory=list)
    denied: frozenset[str] = frozenset()
    asked: list[object] = field(default_factory=list)

    def find_instances(self, filters: Mapping[str, Sequence[str]]) -> list[Instance]:
        self._ask("ec2:DescribeInstances", filters)
        return self.instances

    def read_reservations(self) -> list[Reservation]:
        self._ask("ec2:DescribeCapacityReservations", None)
        return [Reservation("gr6.4xlarge", 1)]

    def read_quota(self, code: str) -> Quota:
        self._ask("servicequotas:GetServiceQuota", code)
        return Quota(code, 64, is_default=False)

    def read_vcpus(self, instance_types: Collection[str]) -> dict[str, int]:
        self._ask("ec2:DescribeInstanceTypes", sorted(instance_types))
        return dict.fromkeys(instance_types, 4)

    def _ask(self, action: str, about: object) -> None:
        if action in self.denied:
            raise CloudError(action, kind=FaultKind.DENIED, code="UnauthorizedOperation", action=action)
        self.asked.append(about)


@dataclass(slots=True)
class Account:
    """An account as its clients show it."""

    client: FakeClient = field(default_factory=lambda: FakeClient(ANSWERS))
    cloud: CountedCloud = field(default_factory=lambda: CountedCloud([_instance("g6.xlarge"), _instance("m5.large")]))
    host: Ec2HostConfig = HOST

    def answer(self, method: str, answer: Answer) -> None:
        self.client.answers[method] = answer

    def read(self, *, deadline_s: float = 60.0) -> CloudFacts:
        one = self.client
        clients = AwsClients("us-east-1", None, one, one, one, one, one, one, one)
        cloud = cast(Cloud, self.cloud)
        return read_cloud(self.host, clients, cloud, deadline_s=deadline_s, utc_now=lambda: NOW)


@pytest.fixture
def account() -> Account:
    return Account()


def _instance(instance_type: str) -> Instance:
    return Instance(
        instance_id="i-0123456789abcdef0",
        state=InstanceState.RUNNING,
        instance_type=instance_type,
        image_id=HOST.ami_id,
        subnet_id=FIRST,
        private_ip=None,
        launched_at=NOW,
        client_token="",
    )


def test_a_healthy_account_answers_every_question(account: Account) -> None:
    """The facts are AWS's, with nothing added."""
    facts = account.read()

    assert facts == CloudFacts(
        read_at=NOW,
        clock_skew_s=7.0,
        caller=Caller("123456789012", CALLER_ARN),
        image=Image("available", False, "x86_64", "uefi", ("/dev/sda1",)),
        machine_type=MachineType(
            4, frozenset({"x86_64"}), frozenset({"legacy-bios", "uefi"}), frozenset({"on-demand", "spot"})
        ),
        zones=frozenset({"us-east-1a"}),
        subnets={
            FIRST: Subnet("available", "us-east-1a", "vpc-1", 250),
            SECOND: Subnet("available", "us-east-1b", "vpc-1", 250),
        },
        security_group=SecurityGroup("vpc-1", 1),
        has_profile=True,
        bucket=Bucket("us-east-1"),
        launches={FIRST: None, SECOND: None},
        quota=Quota("L-DB2E81BA", 64, is_default=False),
        instances=(_instance("g6.xlarge"), _instance("m5.large")),
        reservations=(Reservation("gr6.4xlarge", 1),),
        vcpus={"g6.xlarge": 4, "gr6.4xlarge": 4},
    )


def test_every_question_is_asked_once_and_only_a_dry_run_looks_like_a_deed(account: Account) -> None:
    """A plan that launches something would be the worst of all defects."""
    account.read()

    methods = [method for method, _ in account.client.calls]
    assert sorted([*ANSWERS, "run_instances"]) == sorted(methods)
    deeds = [parameters for method, parameters in account.client.calls if method == "run_instances"]
    assert [True, True] == [parameters["DryRun"] for parameters in deeds]
    assert {FIRST, SECOND} == {parameters["SubnetId"] for parameters in deeds}


def test_the_dry_run_has_the_parameters_of_the_launch(account: Account) -> None:
    """A permission that depends on tags, volumes or the profile is proven only by the same request."""
    account.read()

    sent = next(parameters for method, parameters in account.client.calls if method == "run_instances")
    tags = {tag["Key"]: tag["Value"] for tag in sent["TagSpecifications"][0]["Tags"]}
    order = LaunchOrder(
        client_token=sent["ClientToken"],
        image_id=HOST.ami_id,
        instance_type="g6.xlarge",
        subnet_id=sent["SubnetId"],
        security_group_id=HOST.security_group_id,
        instance_profile="autocad-bench",
        user_data=sent["UserData"],
        tags=tags,
    )
    assert {**run_parameters(order, devices=["/dev/sda1"]), "DryRun": True} == sent
    assert {"Name", "Owner", "BatchId", "RolloutId", "HostId", "ClientToken", "ExpiresAt"} == tags.keys()
    assert ("tester", "2026-12-03T00:00:00Z") == (tags["Owner"], tags["ExpiresAt"])


@pytest.mark.parametrize(
    ("method", "answer", "field_name", "expected"),
    [
        ("describe_images", _error("InvalidAMIID.NotFound"), "image", None),
        ("describe_images", _always({"Images": []}), "image", None),
        ("describe_instance_types", _always({"InstanceTypes": []}), "machine_type", None),
        ("describe_subnets", _always({"Subnets": []}), "subnets", {}),
        ("describe_security_groups", _always({"SecurityGroups": []}), "security_group", None),
        ("get_instance_profile", _error("NoSuchEntity", status=404), "has_profile", False),
        ("head_bucket", _error("404", status=404), "bucket", None),
        ("head_bucket", _error("403", status=403), "bucket", Bucket(None, is_allowed=False)),
        ("head_bucket", _always({"BucketRegion": "eu-west-1"}), "bucket", Bucket("eu-west-1")),
        (
            "head_bucket",
            _error("301", status=301, headers={"x-amz-bucket-region": "eu-west-1"}),
            "bucket",
            Bucket("eu-west-1"),
        ),
        (
            "head_bucket",
            _error("400", status=400, headers={"x-amz-bucket-region": "eu-west-1"}),
            "bucket",
            Bucket("eu-west-1"),
        ),
    ],
)
def test_what_is_not_there_is_an_answer(
    account: Account, method: str, answer: Answer, field_name: str, expected: object
) -> None:
    """Whether a thing is missing, or cannot be seen, leads to different remedies."""
    account.answer(method, answer)

    assert expected == getattr(account.read(), field_name)


@pytest.mark.parametrize(
    ("method", "field_name", "action"),
    [
        ("get_caller_identity", "caller", "sts:GetCallerIdentity"),
        ("describe_images", "image", "ec2:DescribeImages"),
        ("describe_instance_types", "machine_type", "ec2:DescribeInstanceTypes"),
        ("describe_instance_type_offerings", "zones", "ec2:DescribeInstanceTypeOfferings"),
        ("describe_subnets", "subnets", "ec2:DescribeSubnets"),
        ("describe_security_groups", "security_group", "ec2:DescribeSecurityGroups"),
        ("get_instance_profile", "has_profile", "iam:GetInstanceProfile"),
        ("head_bucket", "bucket", "s3:ListBucket"),
    ],
)
def test_one_question_that_fails_hides_no_other(account: Account, method: str, field_name: str, action: str) -> None:
    """Each failure stands in its own place, with the name that a policy has for it; an odd answer is a failure too."""
    healthy = account.read()
    failures = {
        FaultKind.DENIED: _error("AccessDeniedException", status=400),
        FaultKind.SIGNING: _error("ExpiredToken", status=400),
        FaultKind.AMBIGUOUS: _always("<html>"),
    }
    for kind, failure in failures.items():
        # A method that needs no part of its answer cannot be given an odd one.
        if method == "get_instance_profile" and kind is FaultKind.AMBIGUOUS:
            continue
        account.answer(method, failure)
        facts = account.read()

        error = getattr(facts, field_name)
        assert isinstance(error, CloudError)
        assert (kind, action) == (error.kind, error.action)
        rest = replace(facts, **{field_name: getattr(healthy, field_name)}, clock_skew_s=healthy.clock_skew_s)
        assert healthy == rest


def test_a_dry_run_that_is_refused_is_told_for_its_subnet(account: Account) -> None:
    """A policy may allow one subnet and not another."""

    def answer(parameters: Mapping[str, Any]) -> Any:
        code = "DryRunOperation" if parameters["SubnetId"] == FIRST else "UnauthorizedOperation"
        return _error(code, status=403)(parameters)

    account.answer("run_instances", answer)

    launches = account.read().launches

    assert launches[FIRST] is None
    refused = launches[SECOND]
    assert refused is not None
    assert (FaultKind.DENIED, "ec2:RunInstances") == (refused.kind, refused.action)


def test_a_clock_that_is_off_is_told_by_a_refusal_too(account: Account) -> None:
    """AWS refuses a wrong time before it says who we are; its answer carries the right one all the same."""
    # The adapter's own clock stamps refusals, so the header is relative to now.
    ahead = (datetime.now(UTC) + timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    account.answer("get_caller_identity", _error("RequestExpired", headers={"date": ahead}))

    facts = account.read()

    assert facts.clock_skew_s is not None
    assert 3_000 < facts.clock_skew_s < 3_700
    assert facts.refusal is facts.caller


def test_sizes_are_asked_of_the_types_of_the_quota_alone(account: Account) -> None:
    """A Region holds types of many families; those of other quotas do not matter."""
    account.read()

    assert ["g6.xlarge", "gr6.4xlarge"] in account.cloud.asked
    alive = {"instance-state-name": ["pending", "running", "stopped", "stopping"]}
    assert alive in account.cloud.asked


def test_reservations_that_may_not_be_seen_leave_the_instances_counted(account: Account) -> None:
    """Their permission is nice to have."""
    account.cloud.denied = frozenset({"ec2:DescribeCapacityReservations"})

    facts = account.read()

    assert isinstance(facts.reservations, CloudError)
    assert {"g6.xlarge": 4} == facts.vcpus
    use = facts.use_for("g6.xlarge")
    assert use is not None
    assert (4, 0) == (use.running_vcpus, use.reserved_vcpus)


def test_the_quota_of_a_family_that_is_not_launched_is_not_asked(account: Account) -> None:
    """The refusal of the family says what has to be changed."""
    account.host = HOST.model_copy(update={"instance_type": "p5.48xlarge"})

    facts = account.read()

    assert facts.quota is None
    assert "L-417A185B" not in account.cloud.asked


@pytest.fixture
def never() -> Iterator[Answer]:
    """An answer that does not come while the test runs."""
    ended = threading.Event()

    def answer(parameters: Mapping[str, Any]) -> Any:
        ended.wait()
        raise ReadTimeoutError(endpoint_url="https://example.com")

    yield answer
    ended.set()


@pytest.mark.parametrize("method", sorted(ANSWERS))
def test_a_question_that_hangs_is_named_and_keeps_nobody_waiting(account: Account, never: Answer, method: str) -> None:
    """A plan ends in time, whichever service is down."""
    account.answer(method, never)
    began = time.monotonic()

    facts = account.read(deadline_s=0.1)

    late = [*(getattr(facts, name) for name in facts.__slots__), *facts.launches.values()]
    codes = [answer.code for answer in late if isinstance(answer, CloudError)]
    assert NO_ANSWER in codes
    assert time.monotonic() - began >= 0.1


def test_nobody_who_answers_is_out_of_reach(account: Account, never: Answer) -> None:
    """One issue says that there is no way to AWS, instead of a dozen."""
    healthy = account.read()
    for method in ANSWERS:
        account.answer(method, never)
    account.cloud.denied = frozenset()
    hanging = replace(account.read(deadline_s=0.1), quota=None, instances=_lost(), reservations=_lost(), vcpus=_lost())

    assert (False, True) == (healthy.is_out_of_reach, hanging.is_out_of_reach)


def test_an_account_that_cannot_be_opened_in_time_is_out_of_reach(never: Answer) -> None:
    """Credentials may come from a program that hangs; nothing is known then, and the plan ends."""
    facts = read_account(HOST, deadline_s=0.1, utc_now=lambda: NOW, open_account=lambda host: never({}))

    assert isinstance(facts, CloudFacts)
    assert facts.is_out_of_reach


@pytest.mark.parametrize("error", [ConfigParseError(path="config", error="quoted"), PermissionError("quoted")])
def test_a_configuration_that_cannot_be_read_is_told_without_its_text(error: Exception) -> None:
    """The text of such an error may quote the file, keys included."""

    def fail(host: Ec2HostConfig) -> AwsClients:
        raise error

    missing = read_account(HOST, open_account=fail)

    assert isinstance(missing, AwsCredentialsMissing)
    assert f"the AWS configuration cannot be used ({type(error).__name__})" == missing.message


def _lost() -> CloudError:
    return CloudError("lost", kind=FaultKind.AMBIGUOUS, code=NO_ANSWER, action="ec2:DescribeInstances")
