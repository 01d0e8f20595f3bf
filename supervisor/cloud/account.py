"""The operator's account, opened and read within one deadline, whatever its credentials come from."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from contract.config import Ec2HostConfig
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.cloud.facts import CloudFacts
from supervisor.cloud.reading import DEADLINE_S, Clock, read_cloud, unanswered

if TYPE_CHECKING:
    from supervisor.cloud.clients import AwsClients


def _open_account(host: Ec2HostConfig) -> AwsClients:
    from supervisor.cloud.clients import open_clients

    return open_clients(region=host.region, profile=host.profile)


def read_account(
    host: Ec2HostConfig,
    *,
    deadline_s: float = DEADLINE_S,
    utc_now: Clock = lambda: datetime.now(UTC),
    open_account: Callable[[Ec2HostConfig], AwsClients] = _open_account,
) -> CloudFacts | AwsCredentialsMissing:
    """What the account of `host` has for a batch, or why nobody can ask. Never raises; returns within `deadline_s`."""
    from supervisor.cloud.aws import AwsCloud

    deadline = time.monotonic() + deadline_s
    opened: queue.SimpleQueue[AwsClients | AwsCredentialsMissing] = queue.SimpleQueue()
    # Credentials may come from a program or from a server, which may hang.
    threading.Thread(target=_post_clients, args=(host, open_account, opened), name="aws-open", daemon=True).start()
    try:
        clients = opened.get(timeout=deadline_s)
    except queue.Empty:
        return unanswered(host, utc_now=utc_now)
    if isinstance(clients, AwsCredentialsMissing):
        return clients
    left_s = max(0.0, deadline - time.monotonic())
    return read_cloud(host, clients, AwsCloud(clients), deadline_s=left_s, utc_now=utc_now)


def _post_clients(
    host: Ec2HostConfig,
    open_account: Callable[[Ec2HostConfig], AwsClients],
    opened: queue.SimpleQueue[AwsClients | AwsCredentialsMissing],
) -> None:
    try:
        opened.put(open_account(host))
    except AwsCredentialsMissing as missing:
        opened.put(missing)
    # A configuration that botocore cannot read ends in errors of many classes; their texts may quote it.
    except Exception as error:  # noqa: BLE001
        message = f"the AWS configuration cannot be used ({type(error).__name__})"
        opened.put(AwsCredentialsMissing(message, "Correct your AWS configuration files and variables."))
