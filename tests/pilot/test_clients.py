"""One request through each vendor's SDK, against servers on loopback that answer well, badly, late and not at all."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pybase64
import pytest
from pydantic import SecretStr

from contract.errors import PilotError, StateError
from contract.phases import Cause
from contract.profiles import HistoryKind, Profile, Wire
from contract.rollout_records import ArtifactRef, ModelChoice
from pilot.models.body import CHUNK_BYTES, Body, Image
from pilot.models.clients import Clients
from pilot.models.sdk_http import ANSWER_BYTES_MAX, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Sending
from pilot.models.wire import Answer, Client, Request
from pilot.ports import Refused, TransportFailed

# The real SDKs take seconds to import.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = SecretStr("canary-provider-key-77c1")
ROOT = Path(__file__).resolve().parents[2]
PATHS = {
    "openai": ("/v1", "/responses"),
    "openrouter": ("/api/v1", "/responses"),
    "fireworks": ("/inference/v1", "/chat/completions"),
    "anthropic": ("", "/v1/messages"),
    "mantle": ("/openai/v1", "/responses"),
    "bedrock": ("", "/model/vendor.model-v1%3A0/converse"),
}
EVERY = sorted(PATHS)
# boto3 has its own HTTP stack; what is said of the body's bytes or of cancellation differs there.
STREAMED = sorted(set(PATHS) - {"bedrock"})
# One for each HTTP stack and SDK.
KINDS = ["openai", "anthropic", "bedrock"]
STATUSES = [400, 401, 402, 403, 404, 408, 409, 413, 425, 429, 500, 503, 529]
CREDENTIALS = {
    "AccessKeyId": "AKIDEXAMPLE",
    "SecretAccessKey": "canary-secret-key-77c1",
    "Token": "canary-session-token-77c1",
    "Expiration": "2099-01-01T00:00:00Z",
}
# In the shape of a model's answer, because boto3 reads it, too.
GOOD = b'{"output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}}, "stopReason": "end_turn"}'


@pytest.fixture
def anyio_backend() -> str:
    """Real time and sockets: the SDKs' HTTP stacks are what is tested here."""
    return "asyncio"


@dataclass
class Seen:
    """One request as it arrived. `connection` counts from 1."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


Answering = Callable[["Server", Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """What a test looks at: requests to the model, which do not include those for AWS credentials."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    hang: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def serving(answer: Answering, *, reads_body: bool = True) -> AsyncIterator[Server]:
    """A server that answers every POST so, and every GET with AWS credentials."""
    server = Server()
    tasks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        number = server.connections
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                if head[0].startswith("GET"):
                    await reply(200, json.dumps(CREDENTIALS).encode())(server, Seen("", {}, b"", 0), writer)
                    continue
                length = int(headers.get("content-length", 0)) if reads_body else 0
                seen = Seen(head[0], headers, await reader.readexactly(length), number)
                server.seen.append(seen)
                server.arrived.set()
                await answer(server, seen, writer)
        writer.close()
        server.closed.set()

    def started(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(talk(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(started, "127.0.0.1", 0, limit=1 << 20)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.hang.set()
        listener.close()
        for task in tasks:
            task.cancel()


def reply(status: int, body: bytes, *, length: int | None = None, headers: str = "", kind: str = "json") -> Answering:
    """A whole answer, or one whose `length` is a lie."""

    async def answer(server: Server, seen: Seen, writer: asyncio.StreamWriter) -> None:
        size = len(body) if length is None else length
        head = f"HTTP/1.1 {status} S\r\nContent-Type: application/{kind}\r\nContent-Length: {size}\r\n{headers}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        if size > len(body):
            writer.close()

    return answer


async def hang(server: Server, seen: Seen, writer: asyncio.StreamWriter) -> None:
    """No answer until the test is over."""
    await server.hang.wait()


async def reset(server: Server, seen: Seen, writer: asyncio.StreamWriter) -> None:
    """The connection is gone."""
    writer.transport.abort()


def profile_of(provider: str, *, read_timeout_s: float = 20) -> Profile:
    return Profile(
        provider=provider,
        wire=Wire.RESPONSES,
        history=HistoryKind.APPEND,
        read_timeout_s=read_timeout_s,
        signing_service="bedrock-mantle" if provider == "mantle" else None,
    )


def choice_of(provider: str, url: str) -> ModelChoice:
    return ModelChoice(
        provider=provider,
        model="vendor.model-v1:0",
        endpoint=url + PATHS[provider][0],
        region="us-east-1",
        credentials_url=f"{url}/credentials",
    )


def client_on(url: str, provider: str, clients: Clients | None = None, *, key: SecretStr = KEY) -> Client:
    return (clients or Clients()).client_for(choice_of(provider, url), key, profile_of(provider))


def request_of(provider: str, *pieces: bytes | Image) -> Request:
    """A small request, or one of these pieces."""
    if not pieces:
        pieces = (b'{"messages": [{"role": "user", "content": [{"text": "hi"}]}]}',)
    headers = {"anthropic-version": "2023-06-01"} if provider == "anthropic" else {}
    return Request(model="vendor.model-v1:0", path=PATHS[provider][1], body=Body.of(pieces), headers=headers)


def picture(folder: Path, size: int = 3 * CHUNK_BYTES) -> Image:
    content = bytes(range(256)) * (size // 256)
    (folder / "frame.png").write_bytes(content)
    artifact = ArtifactRef(path="frame.png", sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    return Image(folder, artifact)


def converse_with(image: Image) -> tuple[bytes | Image, ...]:
    """A body that all servers here, and boto3, can read."""
    start = b'{"messages": [{"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": "'
    return start, image, b'"}}}]}]}'


async def send_once(provider: str, answer: Answering, *, reads_body: bool = True) -> tuple[Answer, Server]:
    async with serving(answer, reads_body=reads_body) as server:
        client = client_on(server.url, provider)
        got = await client.send(request_of(provider))
        await client.aclose()
    return got, server


async def send_each(provider: str, answers: list[Answering]) -> list[Answer]:
    """One request for each of these answers, and not one more."""
    scripted = iter(answers)

    async def answer(server: Server, seen: Seen, writer: asyncio.StreamWriter) -> None:
        await next(scripted)(server, seen, writer)

    async with serving(answer) as server:
        client = client_on(server.url, provider)
        got = [await client.send(request_of(provider)) for _ in answers]
        await client.aclose()

    assert len(answers) == len(server.seen)
    return got


async def fail_once(provider: str, answer: Answering, *, reads_body: bool = True) -> tuple[TransportFailed, Server]:
    with pytest.raises(TransportFailed) as caught:
        async with serving(answer, reads_body=reads_body) as server:
            await client_on(server.url, provider).send(request_of(provider))
    return caught.value, server


@pytest.mark.parametrize("provider", EVERY)
async def test_a_request_arrives_as_it_was_made(provider: str, tmp_path: Path) -> None:
    """The path follows the endpoint's own, and an image is the file's base64, with the length known beforehand."""
    image = picture(tmp_path)
    async with serving(reply(200, GOOD, headers="X-Request-Id: r-1\r\n")) as server:
        client = client_on(server.url, provider)
        answer = await client.send(request_of(provider, *converse_with(image)))
        await client.aclose()

    (seen,) = server.seen
    encoded = json.loads(seen.body)["messages"][0]["content"][0]["image"]["source"]["bytes"]
    assert f"POST {PATHS[provider][0]}{PATHS[provider][1]} HTTP/1.1" == seen.line
    assert (tmp_path / "frame.png").read_bytes() == pybase64.b64decode(encoded)
    assert str(len(seen.body)) == seen.headers["content-length"]
    assert "transfer-encoding" not in seen.headers
    assert (200, "r-1", GOOD) == (answer.status, answer.headers["x-request-id"], answer.body)


@pytest.mark.parametrize("provider", EVERY)
async def test_the_key_is_in_the_authentication_header_alone(provider: str) -> None:
    """And for AWS accounts nowhere: there it only opens the credentials endpoint."""
    _, server = await send_once(provider, reply(200, GOOD))

    (seen,) = server.seen
    carrying = {name for name, value in seen.headers.items() if KEY.get_secret_value() in value}
    expected = {"anthropic": {"x-api-key"}, "mantle": set(), "bedrock": set()}.get(provider, {"authorization"})
    assert expected == carrying
    assert KEY.get_secret_value().encode() not in seen.body


async def test_mantle_signs_the_bytes_that_arrive(tmp_path: Path) -> None:
    """With the profile's service name, and no header that a proxy may change."""
    async with serving(reply(200, GOOD)) as server:
        client = client_on(server.url, "mantle")
        await client.send(request_of("mantle", *converse_with(picture(tmp_path))))
        await client.aclose()

    (seen,) = server.seen
    authorization = seen.headers["authorization"]
    assert hashlib.sha256(seen.body).hexdigest() == seen.headers["x-amz-content-sha256"]
    assert "/us-east-1/bedrock-mantle/aws4_request" in authorization
    assert "SignedHeaders=content-type;host;x-amz-content-sha256;x-amz-date;x-amz-security-token," in authorization
    assert CREDENTIALS["Token"] == seen.headers["x-amz-security-token"]


async def test_bedrock_signs_also_when_the_environment_offers_a_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 would prefer that token to everything else."""
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "canary-wrong")
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    _, server = await send_once("bedrock", reply(200, GOOD))

    assert server.seen[0].headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")


@pytest.mark.parametrize("provider", STREAMED)
async def test_the_environment_changes_no_request(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shared process the operator's own variables are in reach of the SDKs."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for vendor in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{vendor}_CUSTOM_HEADERS", "X-Gateway: canary\nAuthorization: canary")
        monkeypatch.setenv(f"{vendor}_API_KEY", "canary-wrong")
        monkeypatch.setenv(f"{vendor}_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_ORG_ID", "canary")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "canary")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "canary")

    _, server = await send_once(provider, reply(200, GOOD))

    headers = server.seen[0].headers
    credentials = {KEY.get_secret_value(), CREDENTIALS["Token"]}
    assert [] == [
        name
        for name, value in headers.items()
        if "canary" in value and value.removeprefix("Bearer ") not in credentials
    ]
    assert not {"x-gateway", "openai-organization", "openai-project"} & set(headers)


@pytest.mark.parametrize("provider", EVERY)
async def test_every_failure_status_is_one_request_and_an_answer(provider: str) -> None:
    """Retries are counted by the rollout, so no SDK may have any of its own."""
    body = b'{"message": "no", "error": {"type": "x", "message": "no"}}'
    advice = "Retry-After: 0\r\nX-Should-Retry: true\r\n"

    got = await send_each(provider, [reply(status, body, headers=advice) for status in STATUSES])

    assert [(status, "0", body) for status in STATUSES] == [
        (answer.status, answer.headers["retry-after"], answer.body) for answer in got
    ]


@pytest.mark.parametrize("provider", EVERY)
async def test_a_redirect_is_an_answer_and_never_followed(provider: str) -> None:
    """A followed one would carry a key, or a signature, to another place."""
    statuses = [301, 302, 307, 308]

    got = await send_each(provider, [reply(s, b"{}", headers="Location: /elsewhere\r\n") for s in statuses])

    assert [(status, "/elsewhere") for status in statuses] == [(a.status, a.headers["location"]) for a in got]


@pytest.mark.parametrize("provider", EVERY)
async def test_whatever_a_200_holds_is_an_answer(provider: str) -> None:
    """What it means is decided in one place for all providers; an SDK's opinion must not come first."""
    bodies = [(b"<html>hello</html>", "html"), (b"null", "json"), (b'{"output": {"mess', "json"), (b"[]", "json")]
    bodies += [(b"", "json"), (b"\xff\xfe", "json"), (b'{"output": [], "usage": "many"}', "json")]

    got = await send_each(provider, [reply(200, body, kind=kind) for body, kind in bodies])

    assert [(200, body) for body, _ in bodies] == [(answer.status, answer.body) for answer in got]


@pytest.mark.parametrize("provider", EVERY)
async def test_a_cut_answer_is_a_transport_failure_that_may_cost(provider: str) -> None:
    """The model has answered; nobody says what that cost."""
    error, server = await fail_once(provider, reply(200, GOOD, length=len(GOOD) + 10))

    assert error.is_charge_unknown
    assert 1 == len(server.seen)


@pytest.mark.parametrize("provider", EVERY)
async def test_a_lost_connection_after_the_request_may_cost(provider: str) -> None:
    """The request was there as a whole."""
    error, server = await fail_once(provider, reset)

    assert error.is_charge_unknown
    assert 1 == len(server.seen)


@pytest.mark.parametrize("provider", EVERY)
async def test_a_refused_connection_costs_nothing(provider: str) -> None:
    """Nothing was sent. For AWS accounts the credentials endpoint is still there."""
    async with serving(reply(200, GOOD)) as server, serving(reply(200, GOOD)) as gone:
        pass
    async with serving(reply(200, GOOD)) as server:
        choice = choice_of(provider, gone.url).model_copy(update={"credentials_url": f"{server.url}/credentials"})
        with pytest.raises(TransportFailed) as caught:
            await Clients().client_for(choice, KEY, profile_of(provider)).send(request_of(provider))

    assert not caught.value.is_charge_unknown
    assert "127.0.0.1" in str(caught.value) or provider == "bedrock"


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_connection_lost_within_the_body_costs_nothing(provider: str, tmp_path: Path) -> None:
    """No provider can charge for half a request."""
    async with serving(reset, reads_body=False) as server:
        body = (b'"', picture(tmp_path, 32 * 1024 * 1024), b'"')
        with pytest.raises(TransportFailed) as caught:
            await client_on(server.url, provider).send(request_of(provider, *body))

    assert not caught.value.is_charge_unknown


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_an_early_413_is_heard_while_the_body_is_still_going_out(provider: str, tmp_path: Path) -> None:
    """Servers do not read what they will not take."""

    async def too_large(server: Server, seen: Seen, writer: asyncio.StreamWriter) -> None:
        await reply(413, b"{}", headers="Connection: close\r\n")(server, seen, writer)
        writer.write_eof()
        # The rest of the body is not wanted, but a reset would overtake the answer.
        await server.hang.wait()

    async with serving(too_large, reads_body=False) as server:
        client = client_on(server.url, provider)
        answer = await client.send(request_of(provider, b'"', picture(tmp_path, 256 * 1024), b'"'))
        await client.aclose()

    assert 413 == answer.status


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_an_answer_that_does_not_come_ends_at_the_read_timeout(provider: str) -> None:
    """The profile says how long a model may think."""
    async with serving(hang) as server:
        client = Clients().client_for(choice_of(provider, server.url), KEY, profile_of(provider, read_timeout_s=0.05))
        with pytest.raises(TransportFailed, match="Timeout") as caught:
            await client.send(request_of(provider))

    assert caught.value.is_charge_unknown
    assert 1 == len(server.seen)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_an_endless_answer_is_cut_off(provider: str) -> None:
    """A lying provider must not fill the memory that two hundred rollouts share."""

    async def flood(server: Server, seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 S\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        block = b" " * (1 << 20)
        for _ in range(ANSWER_BYTES_MAX // len(block) + 2):
            writer.write(b"%x\r\n%b\r\n" % (len(block), block))
            await writer.drain()

    error, _ = await fail_once(provider, flood)

    assert "AnswerTooLong" in str(error)
    assert error.is_charge_unknown


@pytest.mark.parametrize("provider", KINDS)
async def test_bytes_beyond_the_announced_length_are_no_part_of_an_answer(provider: str) -> None:
    """An answer ends where it said."""
    answer, _ = await send_once(provider, reply(200, GOOD + b"more", length=len(GOOD)))

    assert GOOD == answer.body


@pytest.mark.parametrize("provider", EVERY)
async def test_rollouts_with_the_same_key_share_connections(provider: str) -> None:
    """One after the other they need one; with a second key there is a second pool."""
    async with serving(reply(200, GOOD)) as server:
        clients = Clients()
        shared = [client_on(server.url, provider, clients) for _ in range(3)]
        other = client_on(server.url, provider, clients, key=SecretStr("canary-other-key-9d02"))
        for client in (*shared, *shared, other):
            await client.send(request_of(provider))
        await clients.aclose()

    *first, last = [seen.connection for seen in server.seen]
    assert 1 == len(set(first))
    assert last not in first


@pytest.mark.parametrize("provider", KINDS)
async def test_a_rollout_that_ends_does_not_close_what_others_use(provider: str) -> None:
    """Closing twice is no second end, either."""
    async with serving(reply(200, GOOD)) as server:
        clients = Clients()
        one, two = (client_on(server.url, provider, clients) for _ in range(2))
        await one.send(request_of(provider))
        await one.aclose()
        await one.aclose()
        await two.send(request_of(provider))
        await two.aclose()
        # Everybody is gone, so this one begins anew.
        three = client_on(server.url, provider, clients)
        await three.send(request_of(provider))
        await three.aclose()

    assert 3 == len(server.seen)
    assert server.seen[0].connection == server.seen[1].connection != server.seen[2].connection


@pytest.mark.parametrize("provider", STREAMED)
async def test_a_cancelled_request_ends_at_once_and_gives_its_connection_back(provider: str) -> None:
    """A stopped batch does not wait for two hundred models to finish thinking."""
    async with serving(hang) as server:
        client = client_on(server.url, provider)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.send, request_of(provider))
            await server.arrived.wait()
            tasks.cancel_scope.cancel()
        server.hang.set()
        with anyio.fail_after(10):
            await server.closed.wait()

    assert 1 == len(server.seen)


async def test_a_cancelled_converse_ends_at_once() -> None:
    """Its thread is left behind and ends by itself."""
    async with serving(hang) as server:
        client = client_on(server.url, "bedrock")
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.send, request_of("bedrock"))
                await server.arrived.wait()
                tasks.cancel_scope.cancel()

    assert 1 == len(server.seen)


@pytest.mark.parametrize("provider", EVERY)
@pytest.mark.parametrize("change", [b"", b"short", b"x" * (4 * CHUNK_BYTES)], ids=["gone", "shorter", "longer"])
async def test_a_picture_that_changed_is_an_error_of_our_state(provider: str, change: bytes, tmp_path: Path) -> None:
    """It is neither the provider's fault nor a failed transport, and asking again would not help."""
    image = picture(tmp_path)
    (tmp_path / "frame.png").write_bytes(change)
    if not change:
        (tmp_path / "frame.png").unlink()
    async with serving(reply(200, GOOD)) as server:
        client = client_on(server.url, provider)
        with pytest.raises(StateError):
            await client.send(request_of(provider, *converse_with(image)))
        await client.aclose()

    assert [] == server.seen


async def test_bodies_on_their_way_share_a_bounded_memory(tmp_path: Path) -> None:
    """Two hundred rollouts on a slow line hold a small chunk each; one rollout alone may use large ones."""
    body = Body.of([picture(tmp_path, 96 * 1024)] * 16)
    async with AsyncExitStack() as under_way:
        sizes = [len(await anext(await under_way.enter_async_context(chunks_of(body)))) for _ in range(200)]
    alone = [len(chunk) async for chunk in Sending(body)]

    assert CHUNK_BYTES_MAX <= sizes[0] == alone[0]
    assert CHUNK_BYTES_MIN <= sizes[-1] < 2 * CHUNK_BYTES_MIN
    assert sum(sizes) < 64 * 1024 * 1024
    assert body.length == sum(alone)


@asynccontextmanager
async def chunks_of(body: Body) -> AsyncIterator[AsyncIterator[bytes]]:
    """A body on its way until the end of the block."""
    async with aclosing(Sending(body).__aiter__()) as chunks:
        yield chunks


@pytest.mark.parametrize("provider", EVERY)
async def test_an_echoed_key_is_replaced(provider: str) -> None:
    """Wherever a provider puts it, no trace may hold it."""
    secret = CREDENTIALS["Token"] if provider in {"mantle", "bedrock"} else KEY.get_secret_value()
    body = json.dumps({"message": f"the key {secret} is wrong", "error": {"message": secret}}).encode()

    answer, _ = await send_once(provider, reply(401, body, headers=f"X-Echo: {secret}\r\n"))

    assert secret.encode() not in answer.body
    assert b"the key [secret] is wrong" in answer.body
    assert "[secret]" == answer.headers["x-echo"]


@pytest.mark.parametrize("provider", sorted(set(STREAMED) - {"mantle"}))
@pytest.mark.parametrize("key", ["canary\nkey", "canary key", "canary-schlüssel", "\r\n", ""], ids=repr)
async def test_a_key_that_no_header_can_carry_is_refused_once(provider: str, key: str) -> None:
    """The HTTP library would show it in its error, ten times."""
    async with serving(reply(200, GOOD)) as server:
        with pytest.raises(Refused) as caught:
            await client_on(server.url, provider, key=SecretStr(key)).send(request_of(provider))

    assert Cause.PROVIDER_AUTH == caught.value.cause
    assert "canary" not in str(caught.value)
    assert [] == server.seen


@pytest.mark.parametrize("provider", EVERY)
async def test_no_failure_and_no_log_shows_a_key(provider: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also not for somebody who walks the chain of exceptions, with every logger turned up."""
    caplog.set_level(logging.DEBUG)

    error, _ = await fail_once(provider, reset)

    told = [repr(error), str(error), repr(error.__cause__), repr(error.__context__), caplog.text]
    assert [] == [text for text in told if "canary" in text]


@pytest.mark.parametrize("provider", ["mantle", "bedrock"])
async def test_refreshed_credentials_sign_the_next_request(provider: str) -> None:
    """AWS may call credentials expired before their time."""
    async with serving(reply(200, GOOD)) as server:
        client = client_on(server.url, provider)
        await client.send(request_of(provider))
        before, CREDENTIALS["Token"] = CREDENTIALS["Token"], "canary-newer-token-77c1"
        try:
            await client.send(request_of(provider))
            await client.refresh_credentials()
            await client.send(request_of(provider))
        finally:
            CREDENTIALS["Token"] = before
        await client.aclose()

    tokens = [seen.headers["x-amz-security-token"] for seen in server.seen]
    assert [before, before, "canary-newer-token-77c1"] == tokens


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_key_has_nothing_to_refresh(provider: str) -> None:
    """The call is there for models of an AWS account."""
    async with serving(reply(200, GOOD)) as server:
        client = client_on(server.url, provider)
        await client.refresh_credentials()
        await client.aclose()

    assert [] == server.seen


async def test_a_choice_without_an_address_is_refused_before_anything_is_imported() -> None:
    """A spec of another version says less."""
    choice = ModelChoice(provider="openai", model="m")

    with pytest.raises(PilotError, match="no endpoint"):
        Clients().client_for(choice, KEY, profile_of("openai"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("provider", "forbidden"),
    [
        ("openai", {"anthropic", "boto3", "botocore"}),
        ("anthropic", {"openai", "boto3", "botocore"}),
        ("mantle", {"anthropic", "boto3"}),
        ("bedrock", {"openai", "anthropic", "httpx2", "httpx"}),
    ],
)
def test_a_pilot_imports_the_sdk_of_its_own_provider_alone(provider: str, forbidden: set[str]) -> None:
    """Each costs most of a second and tens of megabytes, and importing happens with the first request."""
    program = f"""
import sys, anyio
from pydantic import SecretStr
from contract.profiles import HistoryKind, Profile, Wire
from contract.rollout_records import ModelChoice
from pilot.models.body import Body
from pilot.models.clients import Clients
from pilot.models.wire import Request
from pilot.ports import TransportFailed
sdks = {{"openai", "anthropic", "boto3", "botocore", "httpx2", "httpx"}}
print(sorted(sdks & set(sys.modules)))
choice = ModelChoice(provider={provider!r}, model="m", endpoint="http://127.0.0.1:9", region="us-east-1",
                     credentials_url="http://127.0.0.1:9/")
profile = Profile(provider={provider!r}, wire=Wire.RESPONSES, history=HistoryKind.APPEND, signing_service="s")
client = Clients().client_for(choice, SecretStr("k" * 20), profile)
try:
    anyio.run(client.send, Request(model="m", path="/x", body=Body.of([b"{{}}"])))
except TransportFailed:
    print(sorted(sdks & set(sys.modules)))
"""
    command = [sys.executable, "-c", program]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env={}).stdout.splitlines()

    assert "[]" == lines[0]
    imported: Any = json.loads(lines[1].replace("'", '"'))
    assert set() == forbidden & set(imported)
