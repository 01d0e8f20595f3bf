"""The services that moto lacks, as far as a controller asks: SSM sessions, EC2 quotas, schedules, Bedrock lists."""

from __future__ import annotations

import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.lab.lab import Lab

# Enough for every check of the agent's version.
AGENT_VERSION = "3.3.2299.0"
DEFAULT_QUOTAS = {"L-1216C47A": 5.0, "L-DB2E81BA": 0.0}


class ServiceError(Exception):
    """An error in the service's own words."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


@dataclass
class SsmSession:
    """One session. `tokens` are those that were told, the newest last; each opens one data channel."""

    session_id: str
    instance_id: str
    reason: str
    tokens: list[str] = field(default_factory=list)
    is_open: bool = True


@dataclass
class Sessions:
    """SSM of one account: who is connected, and which sessions are open. Safe to call from any thread."""

    lab: Lab
    all: dict[str, SsmSession] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def open_ids(self) -> list[str]:
        """Sessions that nobody has ended, on instances that live."""
        return [one.session_id for one in self._listed() if one.is_open]

    def answer(self, action: str, request: dict[str, Any]) -> dict[str, Any]:
        """One call. Raises `ServiceError`."""
        match action:
            case "StartSession":
                return self._start(request)
            case "TerminateSession" | "ResumeSession":
                session = self.all.get(request["SessionId"])
                if session is None or (action == "ResumeSession" and not session.is_open):
                    raise ServiceError("DoesNotExistException", "The session does not exist")
                if action == "TerminateSession":
                    session.is_open = False
                    return {"SessionId": session.session_id}
                return self._opened(session)
            case "GetConnectionStatus":
                is_online = self.lab.machines.is_agent_online(request["Target"])
                return {"Target": request["Target"], "Status": "connected" if is_online else "notconnected"}
            case "DescribeSessions":
                return {"Sessions": self._described(request)}
            case "DescribeInstanceInformation":
                return {"InstanceInformationList": self._information(request)}
        raise ServiceError("InvalidAction", f"the lab has no {action}")

    def end_of(self, instance_id: str) -> None:
        """An instance that ends takes its sessions with it."""
        for session in self._listed():
            if session.instance_id == instance_id:
                session.is_open = False

    def _listed(self) -> list[SsmSession]:
        with self._guard:
            return list(self.all.values())

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        instance_id = request["Target"]
        if request.get("DocumentName") != "AWS-StartPortForwardingSession":
            raise ServiceError("InvalidDocument", "The document does not exist")
        if not self.lab.machines.is_agent_online(instance_id):
            raise ServiceError("TargetNotConnected", f"{instance_id} is not connected.")
        session = SsmSession(f"lab-{secrets.token_hex(8)}", instance_id, request.get("Reason", ""))
        with self._guard:
            self.all[session.session_id] = session
        return self._opened(session)

    def _opened(self, session: SsmSession) -> dict[str, Any]:
        port = self.lab.machines.broker_port(session.instance_id)
        session.tokens.append(secrets.token_urlsafe(48))
        return {
            "SessionId": session.session_id,
            "TokenValue": session.tokens[-1],
            "StreamUrl": f"tcp://127.0.0.1:{port}",
        }

    def _described(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = {item["value"] for item in request.get("Filters", []) if item["key"] == "Target"}
        return [
            {"SessionId": one.session_id, "Target": one.instance_id, "Status": "Connected", "Reason": one.reason}
            for one in self._listed()
            if one.is_open == (request["State"] == "Active") and (not wanted or one.instance_id in wanted)
        ]

    def _information(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        asked = [value for item in request.get("Filters", []) for value in item["Values"]]
        wanted = asked if request.get("Filters") else self.lab.machines.ids()
        return [
            {
                "InstanceId": instance_id,
                "PingStatus": "Online",
                "LastPingDateTime": time.time(),
                "AgentVersion": self.lab.agent_version,
                "PlatformType": "Linux",
            }
            for instance_id in wanted
            if self.lab.machines.is_agent_online(instance_id)
        ]


def answer_quota(lab: Lab, action: str, request: dict[str, Any]) -> dict[str, Any]:
    """Service Quotas for EC2. Raises `ServiceError`."""
    code = request["QuotaCode"]
    if action == "GetServiceQuota" and code in lab.quota:
        return {"Quota": {"ServiceCode": "ec2", "QuotaCode": code, "Value": float(lab.quota[code])}}
    if action == "GetAWSDefaultServiceQuota" and code in DEFAULT_QUOTAS:
        return {"Quota": {"ServiceCode": "ec2", "QuotaCode": code, "Value": DEFAULT_QUOTAS[code]}}
    raise ServiceError("NoSuchResourceException", "The request failed because the specified quota does not exist.")


def answer_reservations(lab: Lab) -> bytes:
    """DescribeCapacityReservations in EC2's XML."""
    items = "".join(
        f"<item><capacityReservationId>cr-0{number:016x}</capacityReservationId><instanceType>{instance_type}"
        f"</instanceType><state>active</state><tenancy>default</tenancy>"
        f"<totalInstanceCount>{unused}</totalInstanceCount><availableInstanceCount>{unused}</availableInstanceCount></item>"
        for number, (instance_type, unused) in enumerate(lab.reservations.items())
    )
    return (
        '<DescribeCapacityReservationsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>lab</requestId>'
        f"<capacityReservationSet>{items}</capacityReservationSet></DescribeCapacityReservationsResponse>"
    ).encode()


@dataclass
class Schedules:
    """EventBridge Scheduler's one-time schedules, which here fire."""

    lab: Lab
    pending: dict[str, dict[str, Any]] = field(default_factory=dict)

    def answer(self, action: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """One call about the schedule of this name. Raises `ServiceError`."""
        match action:
            case "CreateSchedule":
                return self.create(name, request)
            case "DeleteSchedule":
                return self.delete(name)
            case _:
                return self.show(name)

    def create(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """CreateSchedule. Raises `ServiceError`."""
        if name in self.pending:
            raise ServiceError("ConflictException", f"Schedule {name} already exists.", status=409)
        self.pending[name] = request
        return {"ScheduleArn": f"arn:aws:scheduler:{self.lab.region}:{self.lab.account}:schedule/default/{name}"}

    def show(self, name: str) -> dict[str, Any]:
        """GetSchedule. Raises `ServiceError`."""
        if name not in self.pending:
            raise ServiceError("ResourceNotFoundException", f"Schedule {name} does not exist.", status=404)
        return {"Name": name, **self.pending[name]}

    def delete(self, name: str) -> dict[str, Any]:
        """DeleteSchedule. Raises `ServiceError`."""
        if self.pending.pop(name, None) is None:
            raise ServiceError("ResourceNotFoundException", f"Schedule {name} does not exist.", status=404)
        return {}

    def fire(self, now: str) -> None:
        """Carry out what is due at `now` (`YYYY-MM-DDTHH:MM:SS`)."""
        for name, request in list(self.pending.items()):
            if request["ScheduleExpression"].removeprefix("at(").rstrip(")") <= now:
                del self.pending[name]
                target = json.loads(request["Target"]["Input"])
                for instance_id in target.get("InstanceIds") or target["instanceIds"]:
                    self.lab.machines.shut_down(instance_id, "Server.ScheduledStop")


def answer_bedrock(lab: Lab, path: str) -> dict[str, Any]:
    """Bedrock's lists. Raises `ServiceError`."""
    if path.startswith("/foundation-models"):
        return {"modelSummaries": lab.bedrock_models}
    if path.startswith("/inference-profiles"):
        return {"inferenceProfileSummaries": []}
    raise ServiceError("ResourceNotFoundException", path, status=404)
