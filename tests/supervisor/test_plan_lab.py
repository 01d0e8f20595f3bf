"""Plans against a small AWS: every mistake is found in one pass, and nothing is changed by looking."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from supervisor.machine import ThisMachine
from tests.lab.lab import REGION, SECRET_KEY, Lab

pytestmark = pytest.mark.slow

SEEDS = range(50)
GRAPHICS = "L-DB2E81BA"


@dataclass(frozen=True, slots=True)
class Furniture:
    """Things in the account that no batch could use."""

    arm_image: str
    far_subnet: str
    other_subnet: str
    open_group: str
    far_bucket: str


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One account for all plans: plans leave nothing behind."""
    with Lab.opened(tmp_path_factory.mktemp("lab"), has_guests=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def furniture(lab: Lab) -> Furniture:
    """The bad parts, made once."""
    from moto.backends import get_backend

    ec2 = lab.client("ec2")
    backend = get_backend("ec2")[lab.account][lab.region]
    arm_image = ec2.register_image(Name="arm")["ImageId"]
    backend.amis[arm_image].architecture, backend.amis[arm_image].state = "arm64", "available"
    own_vpc = ec2.describe_subnets(SubnetIds=lab.subnet_ids[:1])["Subnets"][0]["VpcId"]
    # AWS has zones that lack a type; which ones, moto knows.
    offers = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["g4dn.xlarge"]}]
    )["InstanceTypeOfferings"]
    zones = {zone["ZoneName"] for zone in ec2.describe_availability_zones()["AvailabilityZones"]}
    lacking = sorted(zones - {offer["Location"] for offer in offers})[0]
    far = ec2.create_subnet(VpcId=own_vpc, CidrBlock="10.0.200.0/24", AvailabilityZone=lacking)
    other_vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    other = ec2.create_subnet(VpcId=other_vpc, CidrBlock="10.1.0.0/24", AvailabilityZone=f"{REGION}a")
    group = ec2.create_security_group(GroupName="open", Description="open", VpcId=own_vpc)["GroupId"]
    ec2.authorize_security_group_ingress(
        GroupId=group, IpPermissions=[{"IpProtocol": "tcp", "FromPort": 3389, "ToPort": 3389, "IpRanges": [ANYBODY]}]
    )
    lab.client("s3").create_bucket(
        Bucket="far-artifacts", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    return Furniture(arm_image, far["Subnet"]["SubnetId"], other["Subnet"]["SubnetId"], group, "far-artifacts")


ANYBODY = {"CidrIp": "0.0.0.0/0"}


class Machine(ThisMachine):
    """This machine, with the evaluator that the tiny repository's gold was made with."""

    def evaluator(self) -> tuple[str, str]:
        return "ezdxf", "1.0.0"


@dataclass(slots=True)
class World:
    """The tiny repository with hosts in the lab."""

    plans: Any
    lab: Lab
    furniture: Furniture
    monkeypatch: pytest.MonkeyPatch

    @property
    def host(self) -> dict[str, Any]:
        host = self.plans.config["host"]
        assert isinstance(host, dict)
        return host

    def without_plugin(self) -> None:
        """A machine on which nobody has installed it."""
        self.monkeypatch.setenv("PATH", str(self.lab.folder / "home"))


@pytest.fixture
def world(plan_world: Any, lab: Lab, furniture: Furniture, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A config without a mistake, and an environment that leads to the lab alone."""
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    plan_world.config["host"] = lab.host_config()
    plan_world.machine = Machine()
    # The bucket of RunInstances requests is full again after so many plans in a row.
    lab.is_throttling = False
    lab.calls.clear()
    yield World(plan_world, lab, furniture, monkeypatch)
    lab.denied.clear()
    lab.faults.clear()
    lab.quota[GRAPHICS] = 512.0


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong. Two with a common part would be one mistake, or hide each other."""

    code: str
    parts: frozenset[str]
    make: Callable[[World], object]


def _mistake(code: str, parts: str, make: Callable[[World], object]) -> Mistake:
    return Mistake(code, frozenset(parts.split()), make)


def _host(**changes: Any) -> Callable[[World], object]:
    return lambda world: world.host.update(changes)


def _denied(action: str) -> Callable[[World], object]:
    return lambda world: world.lab.denied.add(action)


def _subnets(change: Callable[[World], str]) -> Callable[[World], object]:
    return lambda world: world.host.update(subnet_ids=[world.lab.subnet_ids[0], change(world)])


def _used_folder(world: World) -> object:
    folder = world.plans.root / "old"
    folder.mkdir()
    return (folder / "batch-state.json").write_text("{}")


def _text_for_certificate(world: World) -> object:
    (world.plans.root / "text.pem").write_text("no certificate")
    return world.host.update(identity_certificate="text.pem")


MISTAKES = [
    _mistake("ami_missing", "image", _host(ami_id="ami-00000000000000bad")),
    _mistake("ami_architecture", "image type", lambda world: world.host.update(ami_id=world.furniture.arm_image)),
    _mistake("permission_missing", "image permission", _denied("ec2:DescribeImages")),
    _mistake("family_unsupported", "type zone quota", _host(instance_type="p3.2xlarge")),
    _mistake("instance_type_missing", "type zone quota", _host(instance_type="g4dn.xlage")),
    _mistake("subnet_missing", "subnet", _subnets(lambda world: "subnet-00000000000000bad")),
    _mistake("subnet_zone", "subnet zone type", _subnets(lambda world: world.furniture.far_subnet)),
    _mistake("subnet_vpc", "subnet group", _subnets(lambda world: world.furniture.other_subnet)),
    _mistake("permission_missing", "subnet permission", _denied("ec2:DescribeSubnets")),
    _mistake("security_group_missing", "group", _host(security_group_id="sg-00000000000000bad")),
    _mistake(
        "security_group_inbound", "group", lambda world: world.host.update(security_group_id=world.furniture.open_group)
    ),
    _mistake("instance_profile_missing", "profile", _host(instance_profile="nobody")),
    _mistake("bucket_missing", "bucket", _host(artifact_bucket="no-such-bucket-of-ours")),
    _mistake("bucket_region", "bucket", lambda world: world.host.update(artifact_bucket=world.furniture.far_bucket)),
    _mistake("certificate_missing", "certificate", _host(identity_certificate="no.pem")),
    _mistake("certificate_invalid", "certificate", _text_for_certificate),
    _mistake("session_plugin", "plugin", World.without_plugin),
    _mistake("quota_exceeded", "quota type", lambda world: world.lab.quota.update({GRAPHICS: 7.0})),
    _mistake("permission_missing", "quota type permission", _denied("servicequotas:GetServiceQuota")),
    _mistake("expiry_role", "role", _host(expiry_role_arn="arn:aws:iam::210987654321:role/expiry")),
    _mistake("permission_missing", "launch permission", _denied("ec2:RunInstances")),
    _mistake("rollout_count", "count", lambda world: world.plans.config.update(expected_rollouts=4)),
    _mistake("output_exists", "output", _used_folder),
]


def _chosen(seed: int) -> list[Mistake]:
    """One to four mistakes that do not hide each other. The first are each mistake alone."""
    chance = random.Random(seed)
    chosen = [MISTAKES[seed]] if seed < len(MISTAKES) else []
    count = 1 if seed < len(MISTAKES) else chance.randint(2, 4)
    for mistake in chance.sample(MISTAKES, len(MISTAKES)):
        if len(chosen) < count and all(mistake.parts.isdisjoint(other.parts) for other in chosen):
            chosen.append(mistake)
    return chosen


@pytest.mark.parametrize("seed", SEEDS)
def test_all_mistakes_are_found_in_one_pass_and_nothing_else_is(world: World, seed: int) -> None:
    """An operator mends a config once; an echo of one mistake is no second one. Looking launches and writes nothing."""
    mistakes = _chosen(seed)
    for mistake in mistakes:
        mistake.make(world)
    files = world.plans.snapshot()
    world.plans.write_config()

    ran = world.plans.plan("--output-dir", str(world.plans.root / "old"))

    assert sorted(mistake.code for mistake in mistakes) == sorted(ran.codes), ran.plan["issues"]
    assert 3 == ran.exit_code
    assert all(len(issue["hint"]) > 5 for issue in ran.plan["issues"])
    assert [] == world.lab.mutating_calls()
    assert [] == world.lab.alive()
    assert SECRET_KEY not in ran.stdout + ran.stderr
    assert files.keys() | {str(world.plans.config_path)} == world.plans.snapshot().keys()


def test_a_plan_without_issues_changes_nothing_and_says_who_asks(world: World) -> None:
    """The dry runs are in the journal as what they are, and everything else only reads."""
    ran = world.plans.plan("--output-dir", str(world.plans.root / "new"))

    assert [] == ran.plan["issues"]
    assert 0 == ran.exit_code
    assert [] == world.lab.mutating_calls()
    assert [] == world.lab.alive()
    assert 3 == sum(call.is_dry_run for call in world.lab.calls if call.action == "RunInstances")
    identity = next(check["detail"] for check in ran.plan["checks"] if check["name"] == "aws_identity")
    assert identity.startswith("account 123456789012, arn:aws:sts::123456789012:")
    quota = ran.plan["admission"]["quota"]
    assert (512, 0, 8) == (quota["limit_vcpus"], quota["used_vcpus"], quota["needed_vcpus"])
    assert SECRET_KEY not in ran.stdout + ran.stderr


def test_credentials_that_have_expired_are_one_issue(world: World) -> None:
    """Every question is refused then; the operator has one thing to do."""
    for action in {call.action for call in _calls_of_a_plan(world)}:
        world.lab.faults.add(action, code="ExpiredToken", status=400, times=9)

    ran = world.plans.plan()

    assert ["aws_credentials_refused"] == ran.codes
    assert 3 == ran.exit_code
    assert [] == world.lab.mutating_calls()


def test_an_unsupported_broker_label_makes_no_call_at_all(world: World) -> None:
    """The journal of the cloud stays empty."""
    world.plans.config["broker_version"] = "9.9"
    world.plans.config["rollouts"][0].update(provider="bedrock", model="amazon.nova-pro-v1:0")

    ran = world.plans.plan()

    assert "broker_version_unsupported" in ran.codes
    assert [] == world.lab.calls


def test_an_account_that_nobody_answers_for_is_one_issue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a way to AWS gets one line about it."""
    # Nobody listens at the port that the system keeps for the discard service.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    ran = world.plans.plan()

    assert ["cloud_unreachable"] == ran.codes


def _calls_of_a_plan(world: World) -> list[Any]:
    world.plans.plan()
    return list(world.lab.calls)
