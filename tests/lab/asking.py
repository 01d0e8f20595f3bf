"""Questions to the lab as boto3 asks them, each tried once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.lab.lab import INSTANCE_TYPE, Lab


def ec2(lab: Lab) -> Any:
    """A client that tries once."""
    return lab.client("ec2", Config(retries={"total_max_attempts": 1}))


def launch(lab: Lab, token: str, *, subnet: int = 0, **more: Any) -> str:
    """RunInstances for one instance; its id."""
    order = {
        "ImageId": lab.ami_id,
        "InstanceType": INSTANCE_TYPE,
        "MinCount": 1,
        "MaxCount": 1,
        "SubnetId": lab.subnet_ids[subnet],
        "ClientToken": token,
        **more,
    }
    return str(ec2(lab).run_instances(**order)["Instances"][0]["InstanceId"])


def found(lab: Lab, **filters: str) -> list[str]:
    """What DescribeInstances shows with these filters."""
    asked = [{"Name": name.replace("_", "-"), "Values": [value]} for name, value in filters.items()]
    pages = ec2(lab).describe_instances(Filters=asked)["Reservations"]
    return [instance["InstanceId"] for page in pages for instance in page["Instances"]]


def refused(deed: Callable[[], Any]) -> str:
    """The code with which AWS refuses it."""
    with pytest.raises(ClientError) as caught:
        deed()
    return str(caught.value.response["Error"]["Code"])
