"""AWS signatures over final bytes, and the short-lived credentials that they are made with."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import ReadOnlyCredentials
from pydantic import SecretStr

from contract.phases import Cause
from pilot.models.body import Body
from pilot.models.credentials import AwsCredentials
from pilot.models.signing import Signer, signed_headers
from pilot.ports import Refused, TransportFailed
from tests.fakes import InlineBridge, send

VECTORS = json.loads((Path(__file__).parent / "wire" / "sigv4_vectors.json").read_text())
TOKEN = SecretStr("canary-credentials-token")
FAR = "2099-01-01T00:00:00Z"


def document(number: int = 1, *, expiration: str = FAR) -> bytes:
    fields = {
        "AccessKeyId": f"AKIDEXAMPLE{number}",
        "SecretAccessKey": f"canary-secret-key-{number}",
        "Token": f"canary-session-token-{number}",
        "Expiration": expiration,
    }
    return json.dumps(fields).encode()


@contextmanager
def endpoint(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A credentials endpoint that gives these answers in turn, the last one for ever; its address, and who asked."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            send(self, *answers[min(len(asked), len(answers)) - 1])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/credentials/one", asked
    finally:
        server.shutdown()
        server.server_close()


# Converse is signed by boto3 itself, and the model list by whoever asks for it.
OURS = [vector for vector in VECTORS["vectors"] if vector["url"].endswith("/chat/completions")]


@pytest.mark.parametrize("vector", OURS, ids=lambda vector: vector["name"])
def test_a_signature_equals_the_published_one(vector: dict[str, Any]) -> None:
    """The vectors were made by hand-checked code; canonical path, signed headers and scope all go into the result."""
    credentials = ReadOnlyCredentials(VECTORS["access_key"], VECTORS["secret_key"], vector["session_token"])

    headers = signed_headers(
        credentials,
        service=vector["service"],
        region=vector["region"],
        url=vector["url"],
        body_sha256=Body.of([vector["body"].encode()]).sha256(),
        at=datetime.strptime(vector["amz_date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC),
    )

    assert vector["authorization"] == headers["authorization"]
    assert vector["amz_date"] == headers["x-amz-date"]
    assert vector["session_token"] == headers.get("x-amz-security-token")


def test_credentials_are_asked_for_once_and_with_the_token() -> None:
    """A day of requests does not ask the supervisor a thousand times."""
    with endpoint((200, document())) as (url, asked):
        credentials = AwsCredentials(credentials_url=url, token=TOKEN)
        keys = {credentials.frozen().access_key for _ in range(5)}

    assert {"AKIDEXAMPLE1"} == keys
    assert [("/credentials/one", TOKEN.get_secret_value())] == asked


def test_a_forced_refresh_brings_new_credentials() -> None:
    """AWS may call credentials expired before their time."""
    with endpoint((200, document(1)), (200, document(2))) as (url, _):
        credentials = AwsCredentials(credentials_url=url, token=TOKEN)
        before = credentials.frozen().access_key
        credentials.refresh()
        after = credentials.frozen().access_key

    assert ("AKIDEXAMPLE1", "AKIDEXAMPLE2") == (before, after)


def test_credentials_that_run_out_are_replaced_before_they_do() -> None:
    """Within minutes of their end new ones are fetched, without anyone asking."""
    soon = datetime.fromtimestamp(datetime.now(UTC).timestamp() + 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with endpoint((200, document(1, expiration=soon)), (200, document(2))) as (url, _):
        credentials = AwsCredentials(credentials_url=url, token=TOKEN)

        assert "AKIDEXAMPLE2" == credentials.frozen().access_key


def test_the_environment_gives_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process shared with the supervisor, its own credentials are in reach and must not be used."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with endpoint((200, document())) as (url, _):
        credentials = AwsCredentials(credentials_url=url, token=TOKEN)

        assert "AKIDEXAMPLE1" == credentials.frozen().access_key


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_endpoint_that_refuses_ends_the_rollout_with_what_to_do(status: int) -> None:
    """Waiting does not log anybody in."""
    with endpoint((status, b"{}")) as (url, asked):
        credentials = AwsCredentials(credentials_url=url, token=TOKEN)
        with pytest.raises(Refused, match="aws sso login") as caught:
            credentials.frozen()

    assert Cause.PROVIDER_AUTH == caught.value.cause
    assert 1 == len(asked)


@pytest.mark.parametrize(
    "answer",
    [(500, b"oops"), (200, b"null"), (200, b"{"), (200, b'{"AccessKeyId": 1}'), (302, b"")],
    ids=["500", "null", "cut", "fields missing", "redirect"],
)
def test_an_endpoint_that_fails_is_asked_again_later(answer: tuple[int, bytes]) -> None:
    """It is a transport failure that nobody charges for, and has a budget of its own."""
    with endpoint(answer, (200, document())) as (url, asked):
        credentials = AwsCredentials(credentials_url=url, token=TOKEN)
        with pytest.raises(TransportFailed) as caught:
            credentials.frozen()

        assert not caught.value.is_charge_unknown
        assert 1 == len(asked)
        assert "AKIDEXAMPLE1" == credentials.frozen().access_key


def test_an_endpoint_that_is_gone_is_a_transport_failure() -> None:
    """The supervisor may be on its way back."""
    with endpoint((200, document())) as (url, _):
        pass

    with pytest.raises(TransportFailed, match="ConnectionRefusedError"):
        AwsCredentials(credentials_url=url, token=TOKEN).frozen()


def test_a_token_with_a_line_break_is_refused_without_being_shown() -> None:
    """It would split a header in two."""
    token = SecretStr("canary-one\r\ncanary-two")
    with endpoint((200, document())) as (url, asked), pytest.raises(Refused) as caught:
        AwsCredentials(credentials_url=url, token=token).frozen()

    assert [] == asked
    assert "canary" not in str(caught.value)


def test_expired_credentials_are_refused_when_no_newer_ones_come() -> None:
    """The supervisor hands out what it has, and its login may be over."""
    with endpoint((200, document(expiration="2020-01-01T00:00:00Z"))) as (url, _):
        credentials = AwsCredentials(credentials_url=url, token=TOKEN)

        with pytest.raises(Refused, match="expired"):
            credentials.frozen()


@pytest.mark.anyio
async def test_every_attempt_is_signed_anew_over_its_own_bytes() -> None:
    """A signature that waited with its request for an hour would be refused."""
    with endpoint((200, document(1)), (200, document(2))) as (url, _):
        credentials = AwsCredentials(credentials_url=url, token=TOKEN)
        signer = Signer(credentials, service="bedrock-mantle", region="us-east-1", bridge=InlineBridge())
        first, secrets = await signer.sign("https://mantle.test/v1/responses", Body.of([b"{}"]))
        await signer.refresh()
        second, _ = await signer.sign("https://mantle.test/v1/responses", Body.of([b"[]"]))

    assert first["x-amz-content-sha256"] != second["x-amz-content-sha256"]
    assert "canary-session-token-2" == second["x-amz-security-token"]
    assert {TOKEN, SecretStr("canary-secret-key-1"), SecretStr("canary-session-token-1")} == set(secrets)
