"""Everything that preflight asks of AWS, asked at once and within one deadline. Nothing here changes anything.

The one call that looks like a deed is RunInstances with `DryRun`: AWS checks permission and parameters and stops there.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from contract.config import Ec2HostConfig
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
from supervisor.cloud.families import family_of
from supervisor.cloud.ports import ALIVE, Cloud, CloudError, Instance, LaunchOrder, Reservation
from supervisor.cloud.quota import counted_types

if TYPE_CHECKING:
    from supervisor.cloud.clients import AwsClients

DEADLINE_S: Final = 10.0
# EC2 API request throttling: RunInstances has a bucket of 5 requests, refilled by 2 a second; dry runs count too.
LAUNCHES_AT_ONCE: Final = 4
LAUNCHES_PER_S: Final = 1.5

Answers = dict[str, Any]
Clock = Callable[[], datetime]
_Posted = queue.SimpleQueue[tuple[str, Any]]


def _utc_now() -> datetime:
    return datetime.now(UTC)


def read_cloud(
    host: Ec2HostConfig,
    clients: AwsClients,
    cloud: Cloud,
    *,
    deadline_s: float = DEADLINE_S,
    utc_now: Clock = _utc_now,
) -> CloudFacts:
    """Ask everything side by side. What fails or does not answer in time is a `CloudError` in its place.

    `cloud` speaks through the same `clients`.
    """
    deadline = time.monotonic() + deadline_s
    posted: _Posted = queue.SimpleQueue()
    asks = _asks(host, clients, cloud, utc_now)
    for name, ask in asks.items():
        _start(name, ask, posted)
    waiting = set(asks)
    answers: Answers = {}
    while waiting:
        try:
            name, answer = posted.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        answers[name] = answer
        waiting.discard(name)
        # Only now is it known whose sizes to ask for, and with which volumes a launch would be.
        later = _later_asks(name, host, answers, clients, cloud, utc_now)
        for number, (question, ask) in enumerate(later.items()):
            _start(question, ask, posted, delay_s=max(0, number - LAUNCHES_AT_ONCE + 1) / LAUNCHES_PER_S)
        waiting |= later.keys()
    return _facts(host, answers, utc_now)


def unanswered(host: Ec2HostConfig, *, utc_now: Clock = _utc_now) -> CloudFacts:
    """The facts when time was up before anything could be asked."""
    return _facts(host, {}, utc_now)


def _start(name: str, ask: Callable[[], Any], posted: _Posted, *, delay_s: float = 0.0) -> None:
    thread = threading.Timer(delay_s, _post, args=(name, ask, posted))
    # A server that hangs must not keep the command from ending.
    thread.daemon = True
    thread.start()


def _post(name: str, ask: Callable[[], Any], posted: _Posted) -> None:
    from supervisor.cloud.faults import unreadable

    try:
        answer = ask()
    except CloudError as error:
        answer = error
    # An answer of another shape than documented; the others and the plan go on.
    except Exception as error:  # noqa: BLE001
        answer = unreadable(type(error).__name__, action=_ACTIONS[name.partition(":")[0]])
    posted.put((name, answer))


# What each question is called in messages and in IAM policies.
_ACTIONS: Final[dict[str, str]] = {
    "caller": "sts:GetCallerIdentity",
    "image": "ec2:DescribeImages",
    "machine_type": "ec2:DescribeInstanceTypes",
    "zones": "ec2:DescribeInstanceTypeOfferings",
    "subnets": "ec2:DescribeSubnets",
    "security_group": "ec2:DescribeSecurityGroups",
    "has_profile": "iam:GetInstanceProfile",
    "bucket": "s3:ListBucket",
    "launch": "ec2:RunInstances",
    "quota": "servicequotas:GetServiceQuota",
    "instances": "ec2:DescribeInstances",
    "reservations": "ec2:DescribeCapacityReservations",
    "vcpus": "ec2:DescribeInstanceTypes",
}


def _asks(host: Ec2HostConfig, clients: AwsClients, cloud: Cloud, utc_now: Clock) -> dict[str, Callable[[], Any]]:
    def said(name: str, ask: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: _said(_ACTIONS[name], ask)

    asks = {
        "caller": said("caller", lambda: _caller(clients.sts, utc_now)),
        "image": said("image", lambda: _image(clients.ec2, host.ami_id)),
        "machine_type": said("machine_type", lambda: _machine_type(clients.ec2, host.instance_type)),
        "zones": said("zones", lambda: _zones(clients.ec2, host.instance_type)),
        "subnets": said("subnets", lambda: _subnets(clients.ec2, host.subnet_ids)),
        "security_group": said("security_group", lambda: _security_group(clients.ec2, host.security_group_id)),
        "has_profile": said("has_profile", lambda: _has_profile(clients.iam, host.instance_profile)),
        "bucket": said("bucket", lambda: _bucket(clients.s3, host.artifact_bucket)),
        "instances": lambda: tuple(cloud.find_instances({"instance-state-name": sorted(ALIVE)})),
        "reservations": lambda: tuple(cloud.read_reservations()),
    }
    family = family_of(host.instance_type)
    if family.is_supported and (code := family.quota_code) is not None:
        asks["quota"] = lambda: cloud.read_quota(code)
    return asks


def _later_asks(
    answered: str, host: Ec2HostConfig, answers: Answers, clients: AwsClients, cloud: Cloud, utc_now: Clock
) -> dict[str, Callable[[], Any]]:
    """The questions that could be put only with this answer."""
    if answered == "image":
        image = answers["image"]
        devices = image.devices if isinstance(image, Image) else ()
        expires_at = utc_now() + timedelta(seconds=host.lifetime_s)
        orders = [_order(host, subnet_id, expires_at) for subnet_id in dict.fromkeys(host.subnet_ids)]
        run = partial(_dry_run, clients.ec2, devices=devices)
        return {
            f"launch:{order.subnet_id}": partial(_said, _ACTIONS["launch"], partial(run, order)) for order in orders
        }
    is_last = answered in _USE and answers.keys() >= _USE
    return {"vcpus": _ask_vcpus(host, answers, cloud)} if is_last else {}


_USE: Final = frozenset({"instances", "reservations"})


def _ask_vcpus(host: Ec2HostConfig, answers: Answers, cloud: Cloud) -> Callable[[], Mapping[str, int]]:
    instances, reservations = answers["instances"], answers["reservations"]
    if isinstance(instances, CloudError):
        return dict
    known: tuple[Reservation, ...] = () if isinstance(reservations, CloudError) else reservations
    listed: tuple[Instance, ...] = instances
    types = counted_types(listed, known, family_of(host.instance_type))
    return lambda: cloud.read_vcpus(sorted(types)) if types else {}


def _said(action: str, ask: Callable[[], Any]) -> Any:
    """The answer, or the SDK's error as ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    from supervisor.cloud.faults import fault_of

    try:
        return ask()
    except (BotoCoreError, ClientError) as error:
        raise fault_of(error, action=action) from None


def _caller(sts: Any, utc_now: Clock) -> tuple[Caller, float | None]:
    answer = sts.get_caller_identity()
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    skew_s = (parsedate_to_datetime(date) - utc_now()).total_seconds() if date else None
    return Caller(account=answer["Account"], arn=answer["Arn"]), skew_s


def _image(ec2: Any, ami_id: str) -> Image | None:
    from botocore.exceptions import ClientError

    try:
        # By id and not by filter: only so does AWS show a deprecated image of somebody else.
        found = ec2.describe_images(ImageIds=[ami_id])["Images"]
    except ClientError as error:
        if error.response["Error"]["Code"].startswith("InvalidAMIID."):
            return None
        raise
    if not found:
        return None
    image = found[0]
    return Image(
        state=image["State"],
        is_windows=str(image.get("Platform", "")).lower() == "windows",
        architecture=image["Architecture"],
        boot_mode=image.get("BootMode") or None,
        devices=tuple(device["DeviceName"] for device in image.get("BlockDeviceMappings", []) if "Ebs" in device),
    )


def _machine_type(ec2: Any, instance_type: str) -> MachineType | None:
    found = ec2.describe_instance_types(Filters=[_filter("instance-type", instance_type)])["InstanceTypes"]
    if not found:
        return None
    facts = found[0]
    return MachineType(
        vcpus=int(facts["VCpuInfo"]["DefaultVCpus"]),
        architectures=frozenset(facts.get("ProcessorInfo", {}).get("SupportedArchitectures", [])),
        boot_modes=frozenset(facts.get("SupportedBootModes", [])),
        usage_classes=frozenset(facts.get("SupportedUsageClasses", [])),
    )


def _zones(ec2: Any, instance_type: str) -> frozenset[str]:
    found = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[_filter("instance-type", instance_type)]
    )["InstanceTypeOfferings"]
    return frozenset(offer["Location"] for offer in found)


def _subnets(ec2: Any, subnet_ids: list[str]) -> Mapping[str, Subnet]:
    found = ec2.describe_subnets(Filters=[_filter("subnet-id", *subnet_ids)])["Subnets"]
    return {
        subnet["SubnetId"]: Subnet(
            state=subnet["State"],
            zone=subnet["AvailabilityZone"],
            vpc_id=subnet["VpcId"],
            free_addresses=int(subnet["AvailableIpAddressCount"]),
        )
        for subnet in found
    }


def _security_group(ec2: Any, group_id: str) -> SecurityGroup | None:
    found = ec2.describe_security_groups(Filters=[_filter("group-id", group_id)])["SecurityGroups"]
    if not found:
        return None
    return SecurityGroup(vpc_id=found[0]["VpcId"], inbound_rules=len(found[0].get("IpPermissions", [])))


def _has_profile(iam: Any, name: str) -> bool:
    from botocore.exceptions import ClientError

    try:
        iam.get_instance_profile(InstanceProfileName=name)
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchEntity":
            return False
        raise
    return True


def _bucket(s3: Any, name: str) -> Bucket | None:
    from botocore.exceptions import ClientError

    try:
        # The SDK follows the redirection to another Region by itself, and then names the Region.
        return Bucket(region=s3.head_bucket(Bucket=name).get("BucketRegion"))
    except ClientError as error:
        about = error.response.get("ResponseMetadata", {})
        region = about.get("HTTPHeaders", {}).get("x-amz-bucket-region")
        match about.get("HTTPStatusCode"):
            case 404:
                return None
            case 403:
                return Bucket(region=region, is_allowed=False)
            case 301 | 307 | 400 if region is not None and region != s3.meta.region_name:
                return Bucket(region=region)
        raise


def _dry_run(ec2: Any, order: LaunchOrder, *, devices: Sequence[str]) -> None:
    """RunInstances as it will be called, up to AWS's checks of permission and parameters."""
    from botocore.exceptions import ClientError

    from supervisor.cloud.aws import run_parameters

    try:
        ec2.run_instances(**run_parameters(order, devices=devices), DryRun=True)
    except ClientError as error:
        if error.response["Error"]["Code"] != "DryRunOperation":
            raise


def _order(host: Ec2HostConfig, subnet_id: str, expires_at: datetime) -> LaunchOrder:
    token = secrets.token_hex(20)
    tags = {
        "Name": "autocad-bench preflight",
        "Owner": host.owner,
        "BatchId": "preflight",
        "RolloutId": "preflight",
        "HostId": "preflight",
        "ClientToken": token,
        "ExpiresAt": f"{expires_at:%Y-%m-%dT%H:%M:%SZ}",
    }
    return LaunchOrder(
        client_token=token,
        image_id=host.ami_id,
        instance_type=host.instance_type,
        subnet_id=subnet_id,
        security_group_id=host.security_group_id,
        instance_profile=host.instance_profile,
        user_data="#!/bin/sh\n",
        tags=tags,
    )


def _filter(name: str, *values: str) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}


def _facts(host: Ec2HostConfig, answers: Answers, utc_now: Clock) -> CloudFacts:

    def answer(name: str) -> Any:
        found = answers.get(name, answers)
        return no_answer(_ACTIONS[name.partition(":")[0]]) if found is answers else found

    caller = answer("caller")
    if isinstance(caller, CloudError):
        skew_s = caller.clock_skew_s
    else:
        caller, skew_s = caller
    family = family_of(host.instance_type)
    return CloudFacts(
        read_at=utc_now(),
        clock_skew_s=skew_s,
        caller=caller,
        image=answer("image"),
        machine_type=answer("machine_type"),
        zones=answer("zones"),
        subnets=answer("subnets"),
        security_group=answer("security_group"),
        has_profile=answer("has_profile"),
        bucket=answer("bucket"),
        launches={subnet_id: answer(f"launch:{subnet_id}") for subnet_id in dict.fromkeys(host.subnet_ids)},
        quota=answer("quota") if family.is_supported else None,
        instances=answer("instances"),
        reservations=answer("reservations"),
        vcpus=answer("vcpus"),
    )
