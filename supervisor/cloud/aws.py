"""The `Cloud` of `ports.py` on AWS itself. Nothing here is tried twice, and nothing waits.

An answer that lacks what the API reference promises is an error like a lost one: whether the call was carried out is
not known.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pydantic import SecretStr

from supervisor.cloud import answers
from supervisor.cloud.answers import read
from supervisor.cloud.clients import AwsClients
from supervisor.cloud.faults import fault_of, unreadable
from supervisor.cloud.ports import (
    Agent,
    CloudError,
    FaultKind,
    Instance,
    LaunchOrder,
    PluginAccess,
    Quota,
    Reservation,
    Session,
)

# API reference: TerminateInstances takes up to 1000 ids, DescribeInstances gives up to 1000 instances a page.
TERMINATED_AT_ONCE_MAX: Final = 1000
INSTANCES_A_PAGE: Final = 1000
# API reference: DescribeInstanceTypes and DescribeInstanceInformation give up to 100 and 50 items a page.
TYPES_A_PAGE: Final = 100
AGENTS_A_PAGE: Final = 50
# API reference: DescribeSessions gives up to 200 items a page.
SESSIONS_A_PAGE: Final = 200
# EC2 user guide, "List and filter using the CLI and API".
FILTER_VALUES_MAX: Final = 200
# A hundred thousand instances and more: whoever sends more pages sends the same for ever.
PAGES_MAX: Final = 200
# How many questions the agents of one page may take when AWS refuses ids that it does not know yet.
AGENT_QUESTIONS_MAX: Final = 16

PORT_FORWARDING: Final = "AWS-StartPortForwardingSession"


class AwsCloud:
    """One account in one Region, by the clients that the batch shares.

    `proxies` are variables that a plugin gets beside its credentials: the SDK finds its own way out, the plugin has no
    environment of ours.
    """

    def __init__(self, clients: AwsClients, *, proxies: Mapping[str, SecretStr] = MappingProxyType({})) -> None:
        self._clients = clients
        self._proxies = proxies
        self._guard = threading.Lock()
        self._volumes: dict[str, tuple[str, ...]] = {}
        self._vcpus: dict[str, int] = {}

    def run_instance(self, order: LaunchOrder) -> Instance:
        """RunInstances for one instance. The image is looked at first, once, for the volumes that it brings along."""
        action = "ec2:RunInstances"
        parameters = run_parameters(order, devices=self._devices_of(order.image_id))
        answer = _call(action, self._clients.ec2.run_instances, **parameters)
        return read(action, answers.one_instance, answer)

    def find_instances(self, filters: Mapping[str, Sequence[str]]) -> list[Instance]:
        """DescribeInstances, all pages. A filter without values finds nothing; no filter at all finds everything."""
        action = "ec2:DescribeInstances"
        found: dict[str, Instance] = {}
        for part in _filter_parts(filters):
            for page in self._pages("ec2", "describe_instances", action, INSTANCES_A_PAGE, Filters=part):
                found |= read(action, answers.instances, page)
        return list(found.values())

    def terminate_instances(self, instance_ids: Collection[str]) -> None:
        """One TerminateInstances call; one for each thousand where there are more. None for no ids.

        The guest's own shutdown is not skipped: that AWS takes such a request in every state is not documented.
        """
        action = "ec2:TerminateInstances"
        for part in _parts(sorted(set(instance_ids)), TERMINATED_AT_ONCE_MAX):
            answer = _call(action, self._clients.ec2.terminate_instances, InstanceIds=part)
            taken = read(action, answers.terminating, answer)
            if missing := [name for name in part if name not in taken]:
                raise unreadable(f"it says nothing about {', '.join(missing[:5])}", action=action)

    def find_agents(self, instance_ids: Collection[str]) -> dict[str, Agent]:
        """DescribeInstanceInformation, fifty ids a call. An id that AWS does not know yet hides no other agent."""
        found: dict[str, Agent] = {}
        for part in _parts(sorted(set(instance_ids)), AGENTS_A_PAGE):
            waiting, questions = [part], 0
            while waiting and questions < AGENT_QUESTIONS_MAX:
                asked = waiting.pop()
                questions += 1
                try:
                    found |= self._agents_of(asked)
                except CloudError as error:
                    if error.kind is not FaultKind.NOT_FOUND:
                        raise
                    waiting += _without_unknown(asked, error.names)
        return found

    def start_session(self, instance_id: str, *, port: int, reason: str) -> Session:
        """StartSession. A session whose answer lacks the token is ended at once, for nobody could use it."""
        action = "ssm:StartSession"
        answer = _call(
            action,
            self._clients.ssm.start_session,
            Target=instance_id,
            DocumentName=PORT_FORWARDING,
            Reason=reason,
            # 0: the plugin takes a port that is free, and says which.
            Parameters={"portNumber": [str(port)], "localPortNumber": ["0"]},
        )
        session_id = read(action, answers.session_id, answer)
        try:
            return read(action, answers.session, answer)
        except CloudError:
            with suppress(CloudError):
                self.terminate_session(session_id)
            raise

    def find_sessions(self, instance_id: str, *, reason: str) -> list[str]:
        """DescribeSessions, state active, all pages."""
        action = "ssm:DescribeSessions"
        only = [{"key": "Target", "value": instance_id}]
        pages = self._pages("ssm", "describe_sessions", action, SESSIONS_A_PAGE, State="Active", Filters=only)
        return [name for page in pages for name in read(action, answers.session_ids_for(reason), page)]

    def terminate_session(self, session_id: str) -> None:
        """TerminateSession."""
        _call("ssm:TerminateSession", self._clients.ssm.terminate_session, SessionId=session_id)

    def plugin_access(self) -> PluginAccess:
        """The credentials of now; AWS is asked for new ones where these are about to end."""
        frozen = _call("ssm:StartSession", self._clients.session.get_credentials().get_frozen_credentials)
        environment = {
            **self._proxies,
            "AWS_ACCESS_KEY_ID": SecretStr(frozen.access_key),
            "AWS_SECRET_ACCESS_KEY": SecretStr(frozen.secret_key),
        }
        if frozen.token:
            environment["AWS_SESSION_TOKEN"] = SecretStr(frozen.token)
        return PluginAccess(self._clients.region, self._clients.ssm.meta.endpoint_url, environment)

    def read_quota(self, code: str) -> Quota:
        """GetServiceQuota, then GetAWSDefaultServiceQuota where the account has no value of its own."""
        which, action = {"ServiceCode": "ec2", "QuotaCode": code}, "servicequotas:GetServiceQuota"
        quotas, is_default = self._clients.quotas, False
        try:
            answer = _call(action, quotas.get_service_quota, **which)
        except CloudError as error:
            if error.kind is not FaultKind.NOT_FOUND:
                raise
            action, is_default = "servicequotas:GetAWSDefaultServiceQuota", True
            answer = _call(action, quotas.get_aws_default_service_quota, **which)
        return read(action, answers.quota_limit(code, is_default=is_default), answer)

    def read_vcpus(self, instance_types: Collection[str]) -> dict[str, int]:
        """DescribeInstanceTypes for the types that were not asked for before. A type unknown to AWS is left out."""
        asked = frozenset(instance_types)
        with self._guard:
            new = sorted(asked - self._vcpus.keys())
        action = "ec2:DescribeInstanceTypes"
        told: dict[str, int] = {}
        for part in _parts(new, TYPES_A_PAGE):
            only = [{"Name": "instance-type", "Values": part}]
            for page in self._pages("ec2", "describe_instance_types", action, TYPES_A_PAGE, Filters=only):
                told |= read(action, answers.default_vcpus, page)
        with self._guard:
            self._vcpus |= told
            return {name: self._vcpus[name] for name in sorted(asked & self._vcpus.keys())}

    def read_reservations(self) -> list[Reservation]:
        """DescribeCapacityReservations, state active. Capacity blocks have a quota of their own and are left out."""
        action = "ec2:DescribeCapacityReservations"
        active = [{"Name": "state", "Values": ["active"]}]
        pages = self._pages("ec2", "describe_capacity_reservations", action, INSTANCES_A_PAGE, Filters=active)
        return [item for page in pages for item in read(action, answers.unused_reservations, page)]

    def create_expiry(self, name: str, *, instance_id: str, at: datetime, role_arn: str) -> None:
        """CreateSchedule for one time, to the second."""
        # A role's ARN names the partition (aws, aws-cn, aws-us-gov) that the target's must name too.
        partition = role_arn.split(":")[1]
        action = "scheduler:CreateSchedule"
        try:
            answer = _call(
                action,
                self._clients.scheduler.create_schedule,
                Name=name,
                ScheduleExpression=f"at({at.astimezone(UTC):%Y-%m-%dT%H:%M:%S})",
                ScheduleExpressionTimezone="UTC",
                FlexibleTimeWindow={"Mode": "OFF"},
                ActionAfterCompletion="DELETE",
                Target={
                    "Arn": f"arn:{partition}:scheduler:::aws-sdk:ec2:terminateInstances",
                    "RoleArn": role_arn,
                    "Input": json.dumps({"InstanceIds": [instance_id]}),
                },
            )
        except CloudError as error:
            if error.code != "ConflictException":
                raise
            return
        read(action, answers.schedule_arn, answer)

    def delete_expiry(self, name: str) -> None:
        """DeleteSchedule."""
        try:
            _call("scheduler:DeleteSchedule", self._clients.scheduler.delete_schedule, Name=name)
        except CloudError as error:
            if error.kind is not FaultKind.NOT_FOUND:
                raise

    def refresh_credentials(self) -> None:
        """Find the credentials again, files and log-ins included. Raises `CloudError` (signing) when there are none."""
        _call("the signing of requests", self._clients.renew_credentials)

    def _devices_of(self, image_id: str) -> tuple[str, ...]:
        """The device names of an image's EBS volumes. An image never changes them."""
        with self._guard:
            known = self._volumes.get(image_id)
        if known is not None:
            return known
        action = "ec2:DescribeImages"
        answer = _call(action, self._clients.ec2.describe_images, ImageIds=[image_id])
        devices = read(action, answers.devices, answer)
        with self._guard:
            self._volumes[image_id] = devices
        return devices

    def _agents_of(self, instance_ids: list[str]) -> dict[str, Agent]:
        action = "ssm:DescribeInstanceInformation"
        only = [{"Key": "InstanceIds", "Values": instance_ids}]
        found: dict[str, Agent] = {}
        for page in self._pages("ssm", "describe_instance_information", action, AGENTS_A_PAGE, Filters=only):
            found |= read(action, answers.agents, page)
        return {name: agent for name, agent in found.items() if name in instance_ids}

    def _pages(self, service: str, method: str, action: str, size: int, **parameters: Any) -> Iterator[Any]:
        """Every page of an answer, whose size AWS takes as a wish. Raises `CloudError` where they do not end."""
        paginator = getattr(self._clients, service).get_paginator(method)
        pages = iter(paginator.paginate(**parameters, PaginationConfig={"PageSize": size}))
        for _ in range(PAGES_MAX):
            page = _call(action, next, pages, None)
            if page is None:
                return
            yield page
        raise unreadable(f"it has more than {PAGES_MAX} pages", action=action)


def run_parameters(order: LaunchOrder, *, devices: Sequence[str] = ()) -> dict[str, Any]:
    """The parameters of RunInstances, the same for the same order. `devices` are the image's EBS volumes by name."""
    tags = [{"Key": key, "Value": value} for key, value in sorted(order.tags.items())]
    return {
        "ClientToken": order.client_token,
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": order.image_id,
        "InstanceType": order.instance_type,
        "SubnetId": order.subnet_id,
        "SecurityGroupIds": [order.security_group_id],
        "IamInstanceProfile": {"Name": order.instance_profile},
        "UserData": order.user_data,
        # EC2's default is to stop, and a stopped instance keeps its volumes and its price.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "DisableApiTermination": False,
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        # An image may say that its volumes outlive the instance.
        "BlockDeviceMappings": [{"DeviceName": name, "Ebs": {"DeleteOnTermination": True}} for name in devices],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume", "network-interface")
        ],
    }


def _call(action: str, ask: Callable[..., Any], *arguments: Any, **parameters: Any) -> Any:
    """What the SDK answers, or its error as ours."""
    try:
        return ask(*arguments, **parameters)
    # Errors of its parsers, of urllib3 and of sockets come through it with classes of their own.
    except Exception as error:  # noqa: BLE001
        raise fault_of(error, action=action) from None


def _filter_parts(filters: Mapping[str, Sequence[str]]) -> Iterator[list[dict[str, Any]]]:
    """The filters as EC2 takes them, in as many requests as its bound on values asks for."""
    if any(not values for values in filters.values()):
        return
    long = [name for name in filters if len(filters[name]) > FILTER_VALUES_MAX]
    assert len(long) <= 1, "one filter at most may have more values than one request takes"
    rest = [{"Name": name, "Values": list(values)} for name, values in filters.items() if name not in long]
    if not long:
        yield rest
    for name in long:
        for part in _parts(list(filters[name]), FILTER_VALUES_MAX):
            yield [*rest, {"Name": name, "Values": part}]


def _parts(names: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]


def _without_unknown(asked: list[str], unknown: Collection[str]) -> list[list[str]]:
    """What is left to ask about: without the ids that AWS named, or in two halves when it named none of them."""
    rest = [name for name in asked if name not in unknown]
    if len(rest) < len(asked):
        return [rest] if rest else []
    half = len(asked) // 2
    return [asked[:half], asked[half:]] if half else []
