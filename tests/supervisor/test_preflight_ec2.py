"""Preflight of EC2 hosts: each mistake in account or config is one issue, and AWS is asked only when it may be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from contract.config import BatchConfig
from contract.records import parse_record
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.checks.subject import Options
from supervisor.cloud.facts import (
    Bucket,
    Caller,
    CloudFacts,
    Image,
    MachineType,
    SecurityGroup,
    Subnet,
    no_answer,
)
from supervisor.cloud.ports import CloudError, FaultKind, Instance, InstanceState, Quota, Reservation
from supervisor.config_reading import read_config
from supervisor.issues import EC2_CODES
from supervisor.machine import PluginAnswer
from supervisor.preflight import Overrides, Preflight, run_preflight

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
FIRST, SECOND = "subnet-0123456789abcdef0", "subnet-0123456789abcdef1"
EC2: dict[str, Any] = {
    "kind": "ec2",
    "region": "us-east-1",
    "ami_id": "ami-0123456789abcdef0",
    "instance_type": "g6.xlarge",
    "subnet_ids": [FIRST, SECOND],
    "security_group_id": "sg-0123456789abcdef0",
    "instance_profile": "autocad-bench",
    "artifact_bucket": "artifacts",
    "identity_certificate": "identity.pem",
    "driver": "librecad",
}
Change = Callable[[Any], None]


def _facts() -> CloudFacts:
    """An account that has everything that `EC2` names, and 8 free vCPUs more than the wave needs."""
    return CloudFacts(
        read_at=NOW,
        clock_skew_s=0.4,
        caller=Caller("123456789012", "arn:aws:sts::123456789012:assumed-role/bench/operator"),
        image=Image("available", is_windows=False, architecture="x86_64", boot_mode=None),
        machine_type=MachineType(
            vcpus=4,
            architectures=frozenset({"x86_64"}),
            boot_modes=frozenset({"legacy-bios", "uefi"}),
            usage_classes=frozenset({"on-demand", "spot"}),
        ),
        zones=frozenset({"us-east-1a", "us-east-1b"}),
        subnets={
            FIRST: Subnet("available", "us-east-1a", "vpc-1", 20),
            SECOND: Subnet("available", "us-east-1b", "vpc-1", 20),
        },
        security_group=SecurityGroup("vpc-1", 0),
        has_profile=True,
        bucket=Bucket("us-east-1"),
        launches={FIRST: None, SECOND: None},
        quota=Quota("L-DB2E81BA", 32, is_default=False),
        instances=(_instance("g6.xlarge"), _instance("g6.xlarge", state=InstanceState.PENDING), _instance("m5.large")),
        reservations=(Reservation("g6.xlarge", 2),),
        vcpus={"g6.xlarge": 4},
    )


def _instance(
    instance_type: str = "g6.xlarge", *, state: InstanceState = InstanceState.RUNNING, **tags: str
) -> Instance:
    return Instance(
        instance_id=f"i-{len(tags):017x}",
        state=state,
        instance_type=instance_type,
        image_id="ami-0123456789abcdef0",
        subnet_id=FIRST,
        private_ip=None,
        launched_at=NOW,
        client_token="",
        tags=tags,
    )


def _error(kind: FaultKind, code: str, action: str, **more: Any) -> CloudError:
    return CloudError(f"{action} failed", kind=kind, code=code, action=action, **more)


def _denied(action: str) -> CloudError:
    return _error(FaultKind.DENIED, "UnauthorizedOperation", action)


def _pem() -> bytes:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


PEM = _pem()


@pytest.fixture
def ec2_world(plan_world: Any) -> Any:
    """The tiny repository with EC2 hosts, and an account that has all they need."""
    plan_world.config["host"] = dict(EC2)
    (plan_world.root / "identity.pem").write_bytes(PEM)
    plan_world.machine.cloud = _facts()
    return plan_world


def _aws(**changes: Any) -> Change:
    def change(world: Any) -> None:
        world.machine.cloud = replace(world.machine.cloud, **changes)

    return change


def _host(**changes: Any) -> Change:
    return lambda world: world.config["host"].update(changes)


def _first_subnet(**changes: Any) -> Change:
    def change(world: Any) -> None:
        subnets = dict(world.machine.cloud.subnets)
        subnets[FIRST] = replace(subnets[FIRST], **changes)
        _aws(subnets=subnets)(world)

    return change


def _image(**changes: Any) -> Change:
    return lambda world: _aws(image=replace(world.machine.cloud.image, **changes))(world)


def _type(**changes: Any) -> Change:
    return lambda world: _aws(machine_type=replace(world.machine.cloud.machine_type, **changes))(world)


def _all(*changes: Change) -> Change:
    def change(world: Any) -> None:
        for one in changes:
            one(world)

    return change


def _unsupported_family(world: Any) -> None:
    """As AWS sees such a config: no zone of ours has the type, and its dry run is refused."""
    _host(instance_type="p5.48xlarge")(world)
    refused = _error(FaultKind.PERMANENT, "Unsupported", "ec2:RunInstances")
    launches = {FIRST: refused, SECOND: refused}
    _all(_type(vcpus=192), _aws(zones=frozenset({"us-east-1f"}), quota=None, launches=launches))(world)


def _all_fail(error: Callable[[str], CloudError], **more: Any) -> Change:
    """Every question ends in the same way."""
    names = ("caller", "image", "machine_type", "zones", "subnets", "security_group", "has_profile", "bucket", "quota")
    names += ("instances", "reservations", "vcpus")
    launches = {subnet: error("ec2:RunInstances") for subnet in (FIRST, SECOND)}
    return _aws(**{name: error(name) for name in names}, launches=launches, **more)


def _expired(action: str) -> CloudError:
    return _error(FaultKind.SIGNING, "ExpiredToken", action)


def _too_late(action: str) -> CloudError:
    return _error(FaultKind.SIGNING, "RequestExpired", action, clock_skew_s=1_200.0)


def _bad_certificate(world: Any) -> None:
    (world.root / "identity.pem").write_text("no certificate")


def _plugin(world: Any) -> None:
    world.machine.plugin = PluginAnswer(False, "session-manager-plugin is not on PATH", "Install it.")


def _credentials(world: Any) -> None:
    world.machine.cloud = AwsCredentialsMissing("the AWS profile 'bench' does not exist", "Name another.")


REFUSED = _error(FaultKind.PERMANENT, "InvalidParameterValue", "ec2:RunInstances")
LOST = _error(FaultKind.AMBIGUOUS, "ReadTimeoutError", "ec2:DescribeImages")

# One mistake each, the one code that must come of it, and the field that it names.
MISTAKES: list[tuple[str, str, Change]] = [
    ("boot_longer_than_lease", "host.boot_s", _host(boot_s=901)),
    ("aws_credentials_missing", "host.profile", _credentials),
    ("aws_credentials_refused", "host.profile", _all_fail(_expired, clock_skew_s=None)),
    ("clock_skew", "host.region", _all_fail(_too_late, clock_skew_s=1_200.0)),
    ("clock_skew", "host.region", _aws(clock_skew_s=-301.0)),
    ("cloud_unreachable", "host.region", _all_fail(no_answer, clock_skew_s=None)),
    ("cloud_unreachable", "host.ami_id", _aws(image=LOST)),
    (
        "cloud_unreachable",
        "host.ami_id",
        _aws(
            image=no_answer("ec2:DescribeImages"),
            launches={FIRST: no_answer("ec2:RunInstances"), SECOND: no_answer("ec2:RunInstances")},
        ),
    ),
    ("cloud_unreachable", "host.subnet_ids", _aws(subnets=no_answer("ec2:DescribeSubnets"))),
    ("cloud_unreachable", "host.instance_type", _aws(zones=no_answer("ec2:DescribeInstanceTypeOfferings"))),
    ("cloud_unreachable", "host.instance_type", _aws(instances=no_answer("ec2:DescribeInstances"), vcpus={})),
    ("cloud_unreachable", "host.instance_type", _aws(vcpus=no_answer("ec2:DescribeInstanceTypes"))),
    (
        "cloud_unreachable",
        "host.instance_type",
        _aws(reservations=no_answer("ec2:DescribeCapacityReservations"), vcpus=no_answer("ec2:DescribeInstanceTypes")),
    ),
    ("cloud_unreachable", "host", _aws(launches={FIRST: no_answer("ec2:RunInstances"), SECOND: None})),
    ("cloud_unreachable", "host.instance_profile", _aws(has_profile=no_answer("iam:GetInstanceProfile"))),
    ("cloud_refused", "host.security_group_id", _aws(security_group=REFUSED)),
    ("permission_missing", "host.ami_id", _aws(image=_denied("ec2:DescribeImages"))),
    ("permission_missing", "host.profile", _aws(caller=_denied("sts:GetCallerIdentity"))),
    ("permission_missing", "host.instance_type", _aws(machine_type=_denied("ec2:DescribeInstanceTypes"))),
    ("permission_missing", "host.instance_type", _aws(quota=_denied("servicequotas:GetServiceQuota"))),
    ("permission_missing", "host.instance_type", _aws(instances=_denied("ec2:DescribeInstances"), vcpus={})),
    ("permission_missing", "host.subnet_ids", _aws(subnets=_denied("ec2:DescribeSubnets"))),
    ("permission_missing", "host.artifact_bucket", _aws(bucket=_denied("s3:ListBucket"))),
    (
        "permission_missing",
        "host",
        _aws(launches={FIRST: _denied("ec2:RunInstances"), SECOND: _denied("ec2:RunInstances")}),
    ),
    ("launch_refused", "host", _aws(launches={FIRST: REFUSED, SECOND: REFUSED})),
    ("ami_missing", "host.ami_id", _aws(image=None, launches={FIRST: REFUSED, SECOND: REFUSED})),
    ("ami_not_available", "host.ami_id", _image(state="pending")),
    ("ami_platform", "host.ami_id", _image(is_windows=True)),
    ("ami_architecture", "host.instance_type", _image(architecture="arm64")),
    ("ami_boot_mode", "host.instance_type", _all(_image(boot_mode="uefi"), _type(boot_modes=frozenset({"x"})))),
    ("family_unsupported", "host.instance_type", _unsupported_family),
    (
        "instance_type_missing",
        "host.instance_type",
        _all(
            _host(instance_type="g6.xlage"),
            _aws(machine_type=None, zones=frozenset(), launches={FIRST: REFUSED, SECOND: REFUSED}),
        ),
    ),
    ("instance_type_not_on_demand", "host.instance_type", _type(usage_classes=frozenset({"capacity-block"}))),
    (
        "subnet_missing",
        "host.subnet_ids[1]",
        _aws(
            subnets={FIRST: Subnet("available", "us-east-1a", "vpc-1", 20)},
            launches={FIRST: None, SECOND: _error(FaultKind.NOT_FOUND, "InvalidSubnetID.NotFound", "ec2:RunInstances")},
        ),
    ),
    ("subnet_not_available", "host.subnet_ids[0]", _first_subnet(state="pending")),
    ("subnet_zone", "host.subnet_ids[0]", _first_subnet(zone="us-east-1f")),
    ("subnet_vpc", "host.subnet_ids[0]", _first_subnet(vpc_id="vpc-2")),
    ("subnet_full", "host.subnet_ids[0]", _first_subnet(free_addresses=0)),
    (
        "subnet_addresses",
        "host.subnet_ids",
        _all(
            _host(subnet_ids=[FIRST]),
            _aws(subnets={FIRST: Subnet("available", "us-east-1a", "vpc-1", 1)}, launches={FIRST: None}),
        ),
    ),
    ("security_group_missing", "host.security_group_id", _aws(security_group=None)),
    ("security_group_inbound", "host.security_group_id", _aws(security_group=SecurityGroup("vpc-1", 2))),
    (
        "instance_profile_missing",
        "host.instance_profile",
        _aws(has_profile=False, launches={FIRST: REFUSED, SECOND: REFUSED}),
    ),
    ("session_plugin", "host.kind", _plugin),
    ("certificate_missing", "host.identity_certificate", _host(identity_certificate="no.pem")),
    ("certificate_missing", "host.identity_certificate", _host(identity_certificate="suites")),
    ("certificate_invalid", "host.identity_certificate", _bad_certificate),
    ("bucket_missing", "host.artifact_bucket", _aws(bucket=None)),
    ("bucket_region", "host.artifact_bucket", _aws(bucket=Bucket("eu-west-1"))),
    ("bucket_forbidden", "host.artifact_bucket", _aws(bucket=Bucket("eu-west-1", is_allowed=False))),
    (
        "expiry_role",
        "host.expiry_role_arn",
        _host(expiry_role_arn="arn:aws:iam::210987654321:role/expiry"),
    ),
    ("quota_exceeded", "max_concurrency", _aws(quota=Quota("L-DB2E81BA", 23, is_default=True))),
]


@pytest.mark.parametrize(
    ("code", "field", "mistake"), MISTAKES, ids=[f"{row[0]}-{index}" for index, row in enumerate(MISTAKES)]
)
def test_each_mistake_is_one_issue_with_its_field_and_a_hint(
    ec2_world: Any, code: str, field: str, mistake: Change
) -> None:
    """One mistake has many echoes in AWS's answers; the operator is told of the mistake alone."""
    mistake(ec2_world)

    ran = ec2_world.plan()

    assert [code] == ran.codes
    issue = ran.issue(code)
    assert field == issue["field"]
    assert len(issue["hint"]) > 5
    assert "\n" not in issue["message"]
    assert 3 == ran.exit_code


def test_every_code_about_ec2_is_tried() -> None:
    """A code that no mistake leads to may have stopped working."""
    assert EC2_CODES == {row[0] for row in MISTAKES} - {"aws_credentials_missing"}


def test_a_right_account_has_no_issue_and_every_check_of_it_ran(ec2_world: Any) -> None:
    """The table above proves something only if the untouched account passes."""
    ran = ec2_world.plan()

    assert [] == ran.plan["issues"]
    assert 0 == ran.exit_code
    checks = {check["name"]: check for check in ran.plan["checks"]}
    ours = [name for name in checks if checks[name]["detail"] != "no local host"]
    skipped = {name for name in ours if checks[name]["status"] == "skipped"}
    no_use = {"aws_account", "aws_catalogs", "judge", "model_catalogs", "replay_scripts", "run_folder"}
    assert no_use | {"expiry_role", "output_folder", "disk_space", "display"} == skipped
    identity = "account 123456789012, arn:aws:sts::123456789012:assumed-role/bench/operator, region us-east-1"
    assert identity == checks["aws_identity"]["detail"]


def test_the_plan_shows_all_numbers_of_the_quota(ec2_world: Any) -> None:
    """Who is refused, or wonders why so few run, finds the whole sum in the plan."""
    ran = ec2_world.plan()

    admission = ran.plan["admission"]
    assert {
        "quota_code": "L-DB2E81BA",
        "quota_name": "Running On-Demand G and VT instances",
        "limit_vcpus": 32,
        "is_default_limit": False,
        "running_vcpus": 4,
        "pending_vcpus": 4,
        "reserved_vcpus": 8,
        "launching_vcpus": 0,
        "used_vcpus": 16,
        "free_vcpus": 16,
        "vcpus_per_instance": 4,
        "needed_vcpus": 8,
        "wanted": 2,
        "fits": 4,
        "admitted": 2,
        "limiting_factor": "wanted",
        "uncounted_types": [],
        "own_instances": 0,
    } == admission["quota"]
    assert (2, 1, "max_concurrency") == (admission["admitted"], admission["queued"], admission["limiting_factor"])


def test_a_quota_that_is_too_small_names_the_largest_wave_that_fits(ec2_world: Any) -> None:
    """The remedy within the operator's reach is a smaller max_concurrency."""
    _aws(quota=Quota("L-DB2E81BA", 23, is_default=False))(ec2_world)
    some = ec2_world.plan()
    _aws(quota=Quota("L-DB2E81BA", 8, is_default=False))(ec2_world)
    none = ec2_world.plan()
    smaller = ec2_world.plan("--max-concurrency", "1")

    assert "Set max_concurrency to 1," in some.issue("quota_exceeded")["hint"]
    assert (1, 2, "quota") == tuple(some.plan["admission"][key] for key in ("admitted", "queued", "limiting_factor"))
    assert "End instances that use the quota," in none.issue("quota_exceeded")["hint"]
    assert ["quota_exceeded"] == smaller.codes


def test_without_sight_of_reservations_the_quota_is_checked_all_the_same(ec2_world: Any) -> None:
    """A permission that is only nice to have does not stop a batch."""
    _aws(reservations=_denied("ec2:DescribeCapacityReservations"))(ec2_world)

    ran = ec2_world.plan()

    detail = next(check["detail"] for check in ran.plan["checks"] if check["name"] == "quota")
    assert [] == ran.codes
    assert "8 used (running 4, pending 4, reserved 0)" in detail
    assert "ec2:DescribeCapacityReservations is denied to us" in detail


def test_without_sight_of_the_instance_profile_the_dry_run_must_do(ec2_world: Any) -> None:
    """Reading IAM is often kept from those who may launch."""
    _aws(has_profile=_denied("iam:GetInstanceProfile"))(ec2_world)

    ran = ec2_world.plan()

    detail = next(check["detail"] for check in ran.plan["checks"] if check["name"] == "instance_profile")
    assert [] == ran.codes
    assert "denied" in detail


def test_expired_instances_of_older_batches_are_told_and_are_no_issue(ec2_world: Any) -> None:
    """They cost money, and they do not stand in the way."""
    late, soon = "2026-12-02T11:59:59Z", "2026-12-02T12:00:01Z"
    ours = _instance(state=InstanceState.STOPPED, Owner="autocad-bench", ExpiresAt=late, BatchId="old")
    others = (
        _instance(Owner="somebody", ExpiresAt=late),
        _instance(Owner="autocad-bench", ExpiresAt=soon),
        _instance(Owner="autocad-bench", ExpiresAt="tomorrow"),
        _instance(Owner="autocad-bench"),
    )
    _aws(instances=(ours, *others), quota=Quota("L-DB2E81BA", 64, is_default=False))(ec2_world)

    ran = ec2_world.plan()

    detail = next(check["detail"] for check in ran.plan["checks"] if check["name"] == "leftovers")
    assert [] == ran.codes
    assert f"past their ExpiresAt and still there: {ours.instance_id};" in detail


def test_a_driver_that_no_broker_of_this_version_has_is_told_before_anything_is_paid(ec2_world: Any) -> None:
    """The image is the operator's own, so it is no reason to refuse."""
    silent = ec2_world.plan()
    _host(driver="autocad")(ec2_world)
    warned = ec2_world.plan()

    assert "warning" not in silent.stderr
    assert "host_driver" not in [check["name"] for check in warned.plan["checks"] if check["status"] == "failed"]
    assert "warning: the broker of this version has no AutoCAD driver" in warned.stderr


def test_the_pinned_evaluator_is_that_of_the_driver(ec2_world: Any) -> None:
    """AutoCAD's evaluator is known by name before a host is up; the others are this project's own."""
    ec2_world.config["evaluator"]["version"] = "9.9.9"
    other_version = ec2_world.plan().issue("evaluator_version_mismatch")
    ec2_world.config["evaluator"]["version"] = "1.0.0"
    _host(driver="autocad")(ec2_world)
    other_name = ec2_world.plan().issue("evaluator_version_mismatch")
    ec2_world.config["evaluator"]["name"] = "autocad"
    right = [issue for issue in ec2_world.plan().plan["issues"] if issue.get("field") == "evaluator.name"]

    assert ("evaluator.version", "evaluator.name") == (other_version["field"], other_name["field"])
    assert "hosts with driver 'librecad' have ezdxf 1.0.0" in other_version["message"]
    assert [] == right


def test_a_windows_image_is_for_autocad_alone(ec2_world: Any) -> None:
    """The driver decides what the user data is written in."""
    _host(driver="autocad")(ec2_world)

    assert "ami_platform" in ec2_world.plan().codes
    _image(is_windows=True)(ec2_world)
    assert "ami_platform" not in ec2_world.plan().codes


@pytest.mark.parametrize("version", ["9.9", None, 1])
def test_an_unsupported_broker_label_asks_nothing_of_aws(ec2_world: Any, version: Any) -> None:
    """The label is checked before any call: not even credentials are looked for, nor any model list."""
    ec2_world.machine.cloud = None
    ec2_world.config["broker_version"] = version
    ec2_world.config["rollouts"][0].update(provider="mantle", model="moonshotai.kimi-k2.5")
    ec2_world.config["host"]["profile"] = "no-such-profile"

    ran = ec2_world.plan()

    checks = {check["name"]: check for check in ran.plan["checks"]}
    assert [] == ec2_world.machine.asked
    assert not {"aws_credentials_missing", "check_failed", "catalog_refused"} & set(ran.codes)
    for name in ("aws_identity", "ami", "quota", "aws_account", "aws_catalogs"):
        assert "skipped" == checks[name]["status"]
        assert "not asked, because broker_version is not supported" == checks[name]["detail"]


def test_what_needs_no_answer_of_aws_is_checked_without_one(ec2_world: Any) -> None:
    """One pass finds what is wrong on this machine too, whatever keeps AWS from being asked."""
    ec2_world.machine.cloud = None
    ec2_world.config["broker_version"] = "9.9"
    _all(_plugin, _bad_certificate, _host(instance_type="p5.48xlarge"))(ec2_world)

    codes = {"broker_version_unsupported", "family_unsupported", "session_plugin", "certificate_invalid"}
    assert codes == set(ec2_world.plan().codes)


def test_a_host_that_cannot_be_read_asks_nothing_of_aws(ec2_world: Any) -> None:
    """Without its Region, its profile or its parts there is no question."""
    ec2_world.machine.cloud = None
    _host(profile=7)(ec2_world)
    profile = ec2_world.plan()
    _host(profile=None, ami_id="ami-x")(ec2_world)
    image = ec2_world.plan()

    assert [["wrong_type"], ["wrong_value"]] == [profile.codes, image.codes]
    assert [] == ec2_world.machine.asked


def test_one_missing_profile_is_one_issue_for_hosts_and_models(ec2_world: Any) -> None:
    """Both are paid from the same account, and it is to be corrected once."""
    ec2_world.config["rollouts"][0].update(provider="mantle", model="moonshotai.kimi-k2.5")
    ec2_world.config["pricing"] = "unpriced"
    ec2_world.config.pop("task_suite")
    ec2_world.config["host"]["profile"] = "no-such-profile"
    _credentials(ec2_world)

    assert ["aws_credentials_missing"] == ec2_world.plan().codes


def test_a_prepared_batch_has_what_its_hosts_need(ec2_world: Any) -> None:
    """Certificate, account and quota are read once, and the config as run finds its certificate from anywhere."""
    prepared = _preflight(ec2_world).prepared

    assert prepared is not None
    assert PEM == prepared.identity_certificate
    assert "123456789012" == prepared.account
    assert prepared.quota is not None
    assert 2 == prepared.quota.admitted
    config = parse_record(prepared.config_bytes, BatchConfig, source="config")
    assert str(ec2_world.root / "identity.pem") == config.host.identity_certificate  # type: ignore[union-attr]
    assert 60 * 1024**2 == prepared.admission.needs.memory_bytes


def test_what_a_resumed_batch_has_running_is_not_asked_for_again(ec2_world: Any) -> None:
    """AWS counts the batch's own instances as used; to demand room for them twice would keep it from ever going on."""
    rows = [
        {"rollout_id": "oracle-dot", "phase": "evaluating"},
        {"rollout_id": "oracle-line", "phase": "queued"},
        {"rollout_id": "oracle-box", "phase": "finished"},
    ]
    folder = _interrupted(ec2_world, rows)
    own = _instance(Owner="autocad-bench", BatchId="b-1")
    _aws(instances=(own,), reservations=(), quota=Quota("L-DB2E81BA", 8, is_default=False))(ec2_world)
    enough = _preflight(ec2_world, resumes=folder)
    _aws(quota=Quota("L-DB2E81BA", 7, is_default=False))(ec2_world)
    short = _preflight(ec2_world, resumes=folder)

    assert [] == [issue.code for issue in enough.issues]
    assert enough.prepared is not None
    assert (1, 4) == (enough.prepared.quota.wanted, enough.prepared.quota.used_vcpus)  # type: ignore[union-attr]
    assert ["quota_exceeded"] == [issue.code for issue in short.issues]
    assert "Set max_concurrency to 1," in short.issues[0].hint


def test_the_folder_of_another_batch_is_refused(ec2_world: Any) -> None:
    """Two batches in one folder would end each other's instances."""
    folder = _interrupted(ec2_world, [])

    ran = ec2_world.plan("--output-dir", str(folder))

    assert ["output_exists"] == ran.codes


def _preflight(world: Any, **options: Any) -> Preflight:
    return run_preflight(
        read_config(world.write_config()),
        options=Options(**options),
        overrides=Overrides(),
        keys={},
        machine=world.machine,
    )


def _interrupted(world: Any, rows: list[dict[str, Any]]) -> Any:
    """The folder of a batch `b-1` that has these rows; everything else of a row is as at its start."""
    folder = world.root / "runs" / "old"
    folder.mkdir(parents=True)
    config_bytes = world.write_config().read_bytes()
    (folder / "batch-config.json").write_bytes(config_bytes)
    state = {
        "schema": "autocad-bench.batch-state/1",
        "batch_id": "b-1",
        "benchmark": "tiny",
        "status": "interrupted",
        "mode": "process",
        "max_concurrency": 2,
        "created_at": "2026-12-02T10:00:00Z",
        "updated_at": "2026-12-02T10:00:00Z",
        "config_sha256": hashlib.sha256(config_bytes).hexdigest(),
        "broker_version": "1.0",
        "evaluator_version": "1.0.0",
        "pricing": None,
        "controller_pid": 1,
        "controller_started": 0.0,
        "rollouts": [
            {"task_id": "dot", "provider": "oracle", "model": "reference", "profile": None, **row} for row in rows
        ],
    }
    (folder / "batch-state.json").write_text(json.dumps(state))
    return folder
