"""What moto's EC2 lacks, put around its own methods: tokens, quotas, capacity, slow states, indexes that lag.

Installed once in a process; the lab that is open decides.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")

import moto.ec2.utils
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses.instances import InstanceResponse

from tests.lab.machines import STATES

if TYPE_CHECKING:
    from tests.lab.lab import Lab

_open: list[Lab] = []
_plain_run = InstanceResponse.run_instances
_plain_describe = InstanceResponse.describe_instances
_plain_terminate = InstanceResponse.terminate_instances
# The prefixes of the two classes that a benchmark may use; each lab instance is in one of them.
CLASSES = {"L-1216C47A": "acdhimrtz", "L-DB2E81BA": "gv"}


class CapacityError(EC2ClientError):
    """EC2 reports a lack of machines as a fault of its own."""

    code = "InsufficientInstanceCapacity"
    status = 500


def opened(lab: Lab) -> None:
    """From now on this lab answers."""
    _open[:] = [lab]
    InstanceResponse.run_instances = run_instances
    InstanceResponse.describe_instances = describe_instances
    InstanceResponse.terminate_instances = terminate_instances
    InstanceResponse._validate_block_device_mapping = staticmethod(_complete_mapping)
    moto.ec2.utils.filter_dict_attribute_mapping["client-token"] = "client_token"
    _forget_methods()


def _complete_mapping(mapping: dict[str, Any]) -> None:
    """EC2 takes size and snapshot of a device from the image where a launch names neither; moto wants one of them."""
    mapping.setdefault("Ebs", {}).setdefault("VolumeSize", "30")


def vcpus_of(instance_type: str) -> int:
    """Default vCPUs of a type."""
    return int(INSTANCE_TYPES[instance_type]["VCpuInfo"]["DefaultVCpus"])


def run_instances(self: Any) -> ActionResult:
    """RunInstances with what a token, a quota and a zone's capacity mean."""
    lab = _open[-1]
    if str(self._get_param("DryRun", "false")).lower() == "true":
        return _plain_run(self)
    token = self._get_param("ClientToken") or f"none-{time.monotonic()}"
    nics = self._get_param("NetworkInterfaces", [])
    subnet_id = self._get_param("SubnetId") or next((nic.get("SubnetId") for nic in nics), None)
    image_id, instance_type = self._get_param("ImageId"), self._get_param("InstanceType")
    if image_id not in self.ec2_backend.amis:
        raise EC2ClientError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    if instance_type not in INSTANCE_TYPES:
        raise EC2ClientError("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
    zone = self.ec2_backend.get_subnet(subnet_id).availability_zone
    machines = lab.machines
    with machines.lock:
        machines.step()
        digest = machines.digest_of(dict(self.data))
        known = machines.known(token, zone)
        if known is not None:
            if known.digest != digest:
                raise EC2ClientError(
                    "IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent"
                )
            return ActionResult(self.ec2_backend.describe_instances(filters={"instance-id": [known.instance_id]})[0])
        _check_quota(lab, instance_type)
        if lab.capacity.get(subnet_id, 1) <= _alive_in(lab, subnet_id) and subnet_id in lab.capacity:
            raise CapacityError("InsufficientInstanceCapacity", f"We currently do not have capacity in {zone}")
        result = _plain_run(self)
        model = result._result.instances[0]
        model.iam_instance_profile = None
        machines.launched(model, token=token, digest=digest, zone=zone)
        return result


def describe_instances(self: Any) -> ActionResult:
    """DescribeInstances without what is too young to be indexed, or over for too long. An id of such is NotFound."""
    lab = _open[-1]
    with lab.machines.lock:
        lab.machines.step()
        _refuse_unknown(lab, self._get_param("InstanceIds", []))
        result = _plain_describe(self)
        hidden = {instance_id for instance_id in lab.machines.all if lab.machines.is_hidden(instance_id)}
        found = result._result
        found["Reservations"] = [
            reservation
            for reservation in found["Reservations"]
            if not hidden & {instance.id for instance in reservation.instances}
        ]
        return result


def terminate_instances(self: Any) -> ActionResult:
    """TerminateInstances, all or nothing; a machine takes a while to be gone."""
    lab = _open[-1]
    self.error_on_dryrun()
    with lab.machines.lock:
        lab.machines.step()
        ids = self._get_param("InstanceIds", [])
        _refuse_unknown(lab, ids)
        before = {instance_id: lab.machines.all[instance_id].state for instance_id in ids}
        for instance_id in ids:
            lab.machines.shut_down(instance_id)
        return ActionResult(
            {
                "TerminatingInstances": [
                    {
                        "InstanceId": instance_id,
                        "CurrentState": _state(lab.machines.all[instance_id].state),
                        "PreviousState": _state(before[instance_id]),
                    }
                    for instance_id in ids
                ]
            }
        )


def _refuse_unknown(lab: Lab, ids: list[str]) -> None:
    unknown = [instance_id for instance_id in ids if lab.machines.is_unknown(instance_id)]
    if len(unknown) == 1:
        raise EC2ClientError("InvalidInstanceID.NotFound", f"The instance ID '{unknown[0]}' does not exist")
    if unknown:
        raise EC2ClientError("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(unknown)}' do not exist")


def _state(name: str) -> dict[str, Any]:
    return {"Code": STATES[name], "Name": name}


def _check_quota(lab: Lab, instance_type: str) -> None:
    code = next((code for code, letters in CLASSES.items() if instance_type[0] in letters), None)
    if code is None or code not in lab.quota:
        return
    letters = CLASSES[code]
    used = sum(
        vcpus_of(machine.model.instance_type)
        for machine in lab.machines.all.values()
        if machine.state in ("pending", "running") and machine.model.instance_type[0] in letters
    )
    if used + vcpus_of(instance_type) > lab.quota[code]:
        raise EC2ClientError(
            "VcpuLimitExceeded",
            f"You have requested more vCPU capacity than your current vCPU limit of {lab.quota[code]}",
        )
    lab.vcpus_used_max = max(lab.vcpus_used_max, used + vcpus_of(instance_type))


def _alive_in(lab: Lab, subnet_id: str) -> int:
    return sum(
        machine.state in ("pending", "running") and machine.model.subnet_id == subnet_id
        for machine in lab.machines.all.values()
    )


def _forget_methods() -> None:
    # moto remembers which methods its response classes have.
    from moto.core import responses

    clear = getattr(getattr(responses, "method_names_from_class", None), "cache_clear", None)
    if clear is not None:
        clear()
