"""The clients that a batch shares: where they call, how often, and with which credentials."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supervisor.aws_account import AwsCredentialsMissing
from supervisor.cloud.clients import AwsClients, RenewableCredentials, open_clients

SERVICES = ("ec2", "ssm", "s3", "sts", "iam", "quotas", "scheduler")


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    return monkeypatch


def test_every_client_calls_once_with_short_patience(account: pytest.MonkeyPatch) -> None:
    """What the environment says about tries counts for other programs."""
    account.setenv("AWS_MAX_ATTEMPTS", "9")
    account.setenv("AWS_RETRY_MODE", "legacy")

    clients = open_clients(region="eu-west-1", profile=None, threads_max=17)

    configs = [getattr(clients, name).meta.config for name in SERVICES]
    assert [(1, "standard")] * 7 == [
        (config.retries["total_max_attempts"], config.retries["mode"]) for config in configs
    ]
    assert {(5.0, 20.0, 17)} == {
        (config.connect_timeout, config.read_timeout, config.max_pool_connections) for config in configs
    }
    assert "canary" not in repr(clients)
    clients.close()


def test_an_endpoint_of_the_environment_is_called(account: pytest.MonkeyPatch) -> None:
    """One address for all, another for one service; on this machine without the way out's proxy."""
    account.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    account.setenv("AWS_ENDPOINT_URL_EC2", "https://ec2.example.com")
    account.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    account.setenv("HTTP_PROXY", "http://proxy.example.com:3128")

    clients = open_clients(region="eu-west-1", profile=None)

    assert "https://ec2.example.com" == clients.ec2.meta.endpoint_url
    assert {"http://127.0.0.1:9"} == {getattr(clients, name).meta.endpoint_url for name in SERVICES[1:]}
    assert [None] + [{}] * 6 == [getattr(clients, name).meta.config.proxies for name in SERVICES]
    assert "path" == clients.s3.meta.config.s3["addressing_style"]
    clients.close()


def test_clients_are_not_made_without_credentials(account: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever opens them says what to do."""
    with pytest.raises(AwsCredentialsMissing):
        open_clients(region="eu-west-1", profile="nobody")


@dataclass(slots=True)
class Keys:
    """Credentials as botocore has them."""

    name: str

    def get_frozen_credentials(self) -> str:
        return self.name


@dataclass(slots=True)
class Finder:
    """Finds other credentials each time, and waits in a look until it is let go."""

    looks: int = 0
    is_looking: threading.Event = field(default_factory=threading.Event)
    may_go: threading.Event = field(default_factory=threading.Event)

    def find(self) -> Keys:
        self.looks += 1
        if self.looks > 1:
            self.is_looking.set()
            assert self.may_go.wait(30)
        return Keys(f"keys-{self.looks}")


def test_a_look_keeps_nobody_from_signing() -> None:
    """While one thread waits for a log-in the others sign with what there is, and afterwards with what was found."""
    finder = Finder()
    credentials = RenewableCredentials(finder.find)
    first = threading.Thread(target=credentials.renew)
    first.start()
    assert finder.is_looking.wait(30)
    others = [threading.Thread(target=credentials.renew) for _ in range(5)]
    for thread in others:
        thread.start()
    meanwhile = credentials.get_frozen_credentials()
    finder.may_go.set()
    for thread in (first, *others):
        thread.join(30)

    # Those that waited share the look; one that came when it was over looks for itself.
    assert ("keys-1", f"keys-{finder.looks}") == (meanwhile, credentials.get_frozen_credentials())
    assert 2 <= finder.looks <= 7


def test_a_look_that_finds_nothing_keeps_what_there_was() -> None:
    """The old credentials may still be good for another service."""

    def find() -> Keys:
        if found:
            raise AwsCredentialsMissing("gone", "Log in.")
        found.append(1)
        return Keys("keys-1")

    found: list[int] = []
    credentials = RenewableCredentials(find)

    with pytest.raises(AwsCredentialsMissing):
        credentials.renew()

    assert "keys-1" == credentials.get_frozen_credentials()


def test_closing_closes_every_client_and_not_the_session() -> None:
    """A client that was forgotten would keep its connections."""
    closed: list[str] = []

    class Client:
        def __init__(self, name: str) -> None:
            self._name = name

        def close(self) -> None:
            closed.append(self._name)

    AwsClients("eu-west-1", None, *(Client(name) for name in SERVICES)).close()

    assert list(SERVICES) == closed
