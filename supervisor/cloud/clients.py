"""The clients of AWS that a batch shares: one session, one client for each service, all made before threads use them.

Clients are safe to call from many threads; sessions are not, and neither is making clients. Each call goes out once:
whoever asks counts the tries, so the SDK's hidden retries are off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config

from supervisor.addresses import is_loopback
from supervisor.aws_account import session_for

# A control plane that is well answers in far less; botocore's own bounds are 60 s each.
CONNECT_S_MAX: Final = 5.0
# Between two bytes of an answer.
READ_S_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class AwsClients:
    """One client of boto3 for each service, for one Region and one profile. `session` is a `boto3.Session`."""

    region: str
    session: Any
    ec2: Any
    ssm: Any
    s3: Any
    sts: Any
    iam: Any
    quotas: Any
    scheduler: Any

    def renew_credentials(self) -> None:
        """Look for the credentials again, from the beginning. Every client signs with what is found.

        Blocks; threads that ask together share one look. Raises `AwsCredentialsMissing`; the old ones stay then.
        """
        self.session.get_credentials().renew()

    def close(self) -> None:
        """Close all connections. No call may be under way."""
        for field in fields(self):
            if field.name not in ("region", "session"):
                getattr(self, field.name).close()


class RenewableCredentials:
    """Credentials that can be looked for again while clients hold them.

    botocore renews what says when it ends. What was revoked, or replaced in a file, only a new look finds. This is the
    part of `botocore.credentials.Credentials` that clients use.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        """`find` gives botocore's credentials, or raises `AwsCredentialsMissing`; it is called now."""
        self._find = find
        self._finding = threading.Lock()
        self._generation = 0
        self._found = find()

    def renew(self) -> None:
        """Find them again. Whoever waited while another thread looked takes what that one found."""
        seen = self._generation
        with self._finding:
            if self._generation == seen:
                self._found = self._find()
                self._generation += 1

    def get_frozen_credentials(self) -> Any:
        """Key, secret and token that belong together; renewed first where they are about to end."""
        return self._found.get_frozen_credentials()

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """A function that reads one property when it is needed."""
        return lambda: self._found.get_deferred_property(name)()

    def load_credentials(self) -> RenewableCredentials:
        """What a session calls to find its credentials: these."""
        return self


def open_clients(*, region: str, profile: str | None, threads_max: int = 64) -> AwsClients:
    """Make all clients in the calling thread. `threads_max` may call one of them at once without queueing.

    Addresses are those that botocore reads from the environment and the AWS configuration (`AWS_ENDPOINT_URL`,
    `AWS_ENDPOINT_URL_<SERVICE>`). Raises `AwsCredentialsMissing`. No service is called, but finding credentials may.
    """
    found = botocore.session.Session(profile=profile)
    found.register_component(
        "credential_provider", RenewableCredentials(lambda: session_for(profile).get_credentials())
    )
    session = boto3.Session(botocore_session=found, region_name=region)
    config = Config(
        connect_timeout=CONNECT_S_MAX,
        read_timeout=READ_S_MAX,
        max_pool_connections=threads_max,
        # Given here, it beats AWS_MAX_ATTEMPTS and AWS_RETRY_MODE of the environment.
        retries={"total_max_attempts": 1, "mode": "standard"},
    )
    storage = Config(
        # Without it botocore presigns for us-east-1 in version 2, which binds no headers.
        signature_version="s3v4",
        s3={"addressing_style": "virtual", "us_east_1_regional_endpoint": "regional"},
        # A checksum that the SDK adds by itself to a presigned request is one of an empty body.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return AwsClients(
        region=region,
        session=session,
        ec2=_client(session, "ec2", config),
        ssm=_client(session, "ssm", config),
        s3=_client(session, "s3", config.merge(storage)),
        sts=_client(session, "sts", config),
        iam=_client(session, "iam", config),
        quotas=_client(session, "service-quotas", config),
        scheduler=_client(session, "scheduler", config),
    )


def _client(session: Any, service: str, config: Config) -> Any:
    client = session.client(service, config=config)
    if not is_loopback(urlsplit(client.meta.endpoint_url).hostname or ""):
        return client
    client.close()
    # A proxy is for the way out of this machine, and a bucket's name before `localhost` leads nowhere.
    here = Config(proxies={}, s3={**(config.s3 or {}), "addressing_style": "path"})
    return session.client(service, config=config.merge(here))
