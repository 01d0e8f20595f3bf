"""What AWS's answers say, as the SDK parses them. Each function takes one answer or one page of it.

The SDK checks no answer for completeness: a field that the API reference promises may be missing, and a state may be
one that did not exist when this was written. `read` makes an error of both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import SecretStr

from supervisor.cloud.faults import unreadable
from supervisor.cloud.ports import Agent, Instance, InstanceState, Quota, Reservation, Session

T = TypeVar("T")

Answer = Mapping[str, Any]


def read(action: str, take: Callable[[Any], T], answer: Any) -> T:
    """What `take` finds in the answer. Raises `CloudError` (ambiguous, `UnreadableAnswer`) when it is not there."""
    try:
        return take(answer)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = " ".join(str(error).split())[:80]
        raise unreadable(f"{type(error).__name__}: {what}", action=action) from None


def one_instance(answer: Answer) -> Instance:
    """The one instance of a RunInstances answer."""
    made = [_instance(item) for item in answer["Instances"]]
    if len(made) != 1:
        raise ValueError(f"{len(made)} instances instead of one")
    return made[0]


def instances(page: Answer) -> dict[str, Instance]:
    """The instances of one page of DescribeInstances, by id."""
    found = [_instance(item) for reservation in page["Reservations"] for item in reservation["Instances"]]
    return {instance.instance_id: instance for instance in found}


def terminating(answer: Answer) -> frozenset[str]:
    """The ids that TerminateInstances has taken."""
    return frozenset(_text(item["InstanceId"]) for item in answer["TerminatingInstances"])


def agents(page: Answer) -> dict[str, Agent]:
    """The agents of one page of DescribeInstanceInformation, by instance id."""
    return {
        _text(item["InstanceId"]): Agent(is_online=item["PingStatus"] == "Online", version=_text(item["AgentVersion"]))
        for item in page["InstanceInformationList"]
    }


def session_id(answer: Answer) -> str:
    """The id of a session that StartSession has opened, whatever else the answer lacks."""
    return _text(answer["SessionId"])


def session(answer: Answer) -> Session:
    """The session, with the JSON document that the plugin takes."""
    response = {key: _text(answer[key]) for key in ("SessionId", "TokenValue", "StreamUrl")}
    return Session(response["SessionId"], SecretStr(json.dumps(response)))


def session_ids_for(reason: str) -> Callable[[Answer], list[str]]:
    """Reads the ids of the sessions of one page of DescribeSessions that were started for this reason."""
    return lambda page: [_text(item["SessionId"]) for item in page["Sessions"] if item.get("Reason") == reason]


def quota_limit(code: str, *, is_default: bool) -> Callable[[Answer], Quota]:
    """Reads the value of a quota answer: whole vCPUs, which AWS sends as a float."""
    return lambda answer: Quota(code, _count(answer["Quota"]["Value"]), is_default)


def default_vcpus(page: Answer) -> dict[str, int]:
    """The default vCPUs of each type of one page of DescribeInstanceTypes."""
    return {_text(item["InstanceType"]): _count(item["VCpuInfo"]["DefaultVCpus"]) for item in page["InstanceTypes"]}


def unused_reservations(page: Answer) -> list[Reservation]:
    """What is unused of each reservation of one page that counts against an on-demand quota.

    Capacity blocks are bought for a time and have a quota of their own.
    """
    return [
        Reservation(_text(item["InstanceType"]), _count(item["AvailableInstanceCount"]))
        for item in page["CapacityReservations"]
        if item.get("ReservationType") != "capacity-block" and item["AvailableInstanceCount"]
    ]


def schedule_arn(answer: Answer) -> str:
    """The ARN of a schedule that CreateSchedule has made."""
    return _text(answer["ScheduleArn"])


def devices(answer: Answer) -> tuple[str, ...]:
    """The device names of the EBS volumes that the one image of a DescribeImages answer brings along."""
    (image,) = answer["Images"]
    return tuple(_text(item["DeviceName"]) for item in image.get("BlockDeviceMappings", []) if "Ebs" in item)


def _instance(item: Answer) -> Instance:
    launched_at = item["LaunchTime"]
    if not isinstance(launched_at, datetime):
        raise TypeError("LaunchTime is no time")
    return Instance(
        instance_id=_text(item["InstanceId"]),
        state=InstanceState(item["State"]["Name"]),
        instance_type=_text(item["InstanceType"]),
        image_id=_text(item["ImageId"]),
        # A terminated instance has neither any more.
        subnet_id=item.get("SubnetId"),
        private_ip=item.get("PrivateIpAddress"),
        launched_at=launched_at.astimezone(UTC),
        # One that was launched without a token, by somebody else, has none.
        client_token=item.get("ClientToken", ""),
        tags={_text(tag["Key"]): tag.get("Value", "") for tag in item.get("Tags", [])},
        lifecycle=item.get("InstanceLifecycle"),
        tenancy=item.get("Placement", {}).get("Tenancy", "default"),
        reason=item.get("StateReason", {}).get("Code"),
    )


def _text(value: object) -> str:
    # The value itself may be a secret, so it is not quoted.
    if not isinstance(value, str) or not value:
        raise TypeError("a text is missing")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return int(value)
