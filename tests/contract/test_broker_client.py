"""The client against a broker, and a tunnel, that lie."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from pydantic import SecretStr

from contract.actions import Click, digest_of
from contract.broker_api import FRAME_BYTES_MAX, HEAD_BYTES_MAX, TOKEN_CHARS_MAX, ErrorCode, Verdict
from contract.broker_client import CAUSES, BrokerClient, Patience, is_header_safe
from contract.errors import BrokerError, ConfigError
from contract.phases import Cause
from tests.fakes import TOKEN, FakeBroker, FakeHost, refusal, screen_png, send

CLICK = Click(x=1, y=2, button="left", clicks=1, modifiers=[])
HASTE = Patience(connect_s=0.5, read_s=0.4, actions_s=0.3, tries=3, pause_s=0.01)
REFUSALS = [code for code in CAUSES if code not in {ErrorCode.UNREACHABLE, ErrorCode.PROTOCOL}]


@contextmanager
def speaking(
    host: FakeHost | None = None,
    *,
    meddle: Callable[[BaseHTTPRequestHandler], bool] | None = None,
    patience: Patience = HASTE,
    token: str = TOKEN,
) -> Iterator[tuple[BrokerClient, FakeBroker]]:
    """A client and the broker that it speaks to."""
    with FakeBroker(host or FakeHost(), meddle=meddle) as broker:
        client = BrokerClient(broker.base_url, SecretStr(token), patience=patience)
        yield client, broker
        client.close()


def first(times: int, deed: Callable[[BaseHTTPRequestHandler], None]) -> Callable[[BaseHTTPRequestHandler], bool]:
    """Meddle with that many requests, then let all pass."""
    left = [times]

    def meddle(handler: BaseHTTPRequestHandler) -> bool:
        if not left[0]:
            return False
        left[0] -= 1
        deed(handler)
        return True

    return meddle


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def garble(handler: BaseHTTPRequestHandler) -> None:
    """Answer with bytes that are no HTTP."""
    handler.wfile.write(b"\x16\x03\x01 not http\r\n\r\n")
    handler.close_connection = True


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    """Promise a hundred bytes and send three."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b'{"a')
    handler.close_connection = True


def fall_silent(handler: BaseHTTPRequestHandler) -> None:
    """Keep the port open and say nothing."""
    time.sleep(1)
    handler.close_connection = True


def test_an_action_batch_gets_its_receipt_and_its_frame() -> None:
    """The plain way."""
    host = FakeHost(make_png=screen_png, verdict=Verdict.MODAL)
    with speaking(host) as (client, _):
        receipt = client.act(lease_id="lease-1", sequence=1, actions=[CLICK])
        png = client.frame(receipt.frame)

    assert (1, digest_of([CLICK]), 1, False) == (
        receipt.sequence,
        receipt.digest,
        receipt.performed,
        receipt.is_replay,
    )
    assert Verdict.MODAL == receipt.frame.verdict
    assert host.frame(1) == png
    assert 1 == len(host.performed)


@pytest.mark.parametrize("deed", [hang_up, garble, cut_off, fall_silent])
def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(
    deed: Callable[[BaseHTTPRequestHandler], None],
) -> None:
    """The host acts on the first request; its answer is lost; the second gets the stored receipt."""
    host = FakeHost()

    def act_then_lose(handler: BaseHTTPRequestHandler) -> None:
        host.act(1, [CLICK], digest_of([CLICK]))
        deed(handler)

    with speaking(host, meddle=first(1, act_then_lose)) as (client, _):
        receipt = client.act(lease_id="lease-1", sequence=1, actions=[CLICK])

    assert receipt.is_replay
    assert 1 == len(host.performed)


def damage(handler: BaseHTTPRequestHandler) -> None:
    """An answer with one changed byte, from a tunnel."""
    send(handler, 200, b'{"broker_version": "1.0", \x00')


def test_an_answer_that_was_damaged_on_the_way_is_asked_for_again() -> None:
    """Every call may be repeated, so bytes that are no answer are a lost one."""
    with speaking(meddle=first(2, damage)) as (client, broker):
        health = client.health()
        heads = list(broker.heads)

    assert "1.0" == health.broker_version
    assert 3 == len(heads)


def test_answers_that_stay_damaged_are_a_fault_of_the_way() -> None:
    """The record names what changes bytes, not a broker that is silent."""
    with (
        speaking(meddle=first(99, damage)) as (client, _),
        pytest.raises(BrokerError, match="cannot be read") as caught,
    ):
        client.health()

    assert ErrorCode.PROTOCOL == caught.value.code


def test_a_way_that_is_mended_in_time_loses_nothing() -> None:
    """A tunnel is opened again by somebody else; until then every answer is lost, and pauses grow to their bound."""
    clock = [0.0]
    pauses: list[float] = []

    def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        clock[0] += pause_s

    patience = Patience(connect_s=0.5, read_s=0.4, tries=1, pause_s=1.0, lost_s=60.0)
    with FakeBroker(FakeHost(), meddle=first(14, hang_up)) as broker:
        client = BrokerClient(
            broker.base_url, SecretStr(TOKEN), patience=patience, pause=pause, elapsed_s=lambda: clock[0]
        )
        health = client.health()
        client.close()

    assert "1.0" == health.broker_version
    assert [1.0, 2.0, 3.0, 4.0, *[5.0] * 10] == pauses


@pytest.mark.parametrize("deed", [hang_up, garble, cut_off, fall_silent])
def test_a_broker_that_never_answers_is_unreachable(deed: Callable[[BaseHTTPRequestHandler], None]) -> None:
    """After three tries, within their deadlines."""
    with speaking(meddle=first(99, deed)) as (client, broker):
        with pytest.raises(BrokerError) as caught:
            client.health(read_s=0.3)
        heads = list(broker.heads)

    assert (ErrorCode.UNREACHABLE, Cause.BROKER_UNREACHABLE) == (caught.value.code, caught.value.cause)
    assert caught.value.message.startswith("no answer from the broker to GET /v1/health (")
    assert 3 == len(heads)


def test_a_closed_port_is_unreachable() -> None:
    """The broker died."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pauses: list[float] = []
    client = BrokerClient(f"http://127.0.0.1:{port}", SecretStr(TOKEN), pause=pauses.append)

    with pytest.raises(BrokerError, match=r"GET /v1/health \(ConnectionRefusedError\)"):
        client.health()

    assert [0.2, 0.4] == pauses


def test_no_try_has_the_head_size_of_another() -> None:
    """A tunnel that hangs on one size must not meet it three times."""
    with speaking(meddle=first(99, hang_up)) as (client, broker):
        with pytest.raises(BrokerError):
            client.health()
        sizes = [len(head) for head in broker.heads]

    assert 3 == len(set(sizes)) == len(sizes)


def test_every_head_is_short_enough_for_the_tunnel() -> None:
    """Also with the longest token, the longest path and a retry."""
    token = "t" * TOKEN_CHARS_MAX
    with FakeBroker(FakeHost(), token=token) as broker:
        client = BrokerClient(broker.base_url, SecretStr(token))
        client.identity(token=SecretStr(token))
        client.act(lease_id="lease-1", sequence=1, actions=[CLICK])
        client.close()

    assert broker.heads
    assert [] == [head for head in broker.heads if len(head) >= HEAD_BYTES_MAX]
    assert [] == [body for body in broker.bodies if body.endswith(b"\n")]


def test_an_answer_that_trickles_meets_the_deadline() -> None:
    """A byte now and then is no sign of life: the deadline is for the whole answer, which would break off later."""

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b" ")
            time.sleep(0.1)

    with (
        speaking(meddle=first(99, trickle), patience=Patience(tries=1)) as (client, _),
        pytest.raises(BrokerError, match="TimeoutError"),
    ):
        client.health(read_s=0.3)


def test_a_damaged_frame_is_fetched_again() -> None:
    """Length and SHA-256 are checked on every frame."""
    host = FakeHost()

    def damage(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 200, host.frame(0)[:-1] + b"x")

    with speaking(host, meddle=first(2, damage)) as (client, _):
        png = client.frame(host.frame_info(0))

    assert host.frame(0) == png


def test_a_frame_that_stays_damaged_is_corrupt() -> None:
    """Three times is the tunnel."""
    host = FakeHost()
    with (
        speaking(host, meddle=first(99, lambda handler: send(handler, 200, b"short"))) as (client, _),
        pytest.raises(BrokerError) as caught,
    ):
        client.frame(host.frame_info(0))

    assert Cause.FRAME_CORRUPT == caught.value.cause


def test_an_answer_without_end_is_cut() -> None:
    """No host may fill our memory."""

    def pour(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        block = bytes(1024 * 1024)
        try:
            for _ in range(200):
                handler.wfile.write(block)
        except OSError:
            handler.close_connection = True

    with (
        speaking(meddle=first(99, pour), patience=Patience(tries=1)) as (client, _),
        pytest.raises(BrokerError, match=f"more than {FRAME_BYTES_MAX} bytes"),
    ):
        client.health(read_s=5)


def test_a_connection_that_the_broker_closed_meanwhile_is_made_anew() -> None:
    """A model thinks for minutes; that a server ends idle connections is not a lost answer."""

    def answer_and_close(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 200, FakeHost().health().model_dump_json().encode())
        handler.close_connection = True

    pauses: list[float] = []
    with FakeBroker(FakeHost(), meddle=first(3, answer_and_close)) as broker:
        client = BrokerClient(broker.base_url, SecretStr(TOKEN), pause=pauses.append)
        for _ in range(4):
            client.health()
            time.sleep(0.05)
        client.close()

    assert [] == pauses


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_keeps_the_brokers_code_and_gets_its_cause(code: ErrorCode) -> None:
    """What the record will say is decided here, once. A refusal is not asked again."""

    def refuse(sequence: int) -> None:
        raise refusal(code)

    with speaking(FakeHost(refuse=refuse)) as (client, broker):
        with pytest.raises(BrokerError) as caught:
            client.act(lease_id="lease-1", sequence=1, actions=[CLICK])
        asked = len(broker.heads)

    assert (code, CAUSES[code]) == (caught.value.code, caught.value.cause)
    assert 1 == asked


def test_a_refusal_without_a_code_that_we_know_is_the_brokers() -> None:
    """Every way to say no has a cause."""
    host = FakeHost()
    with speaking(host) as (client, _), pytest.raises(BrokerError) as caught:
        client.act(lease_id="lease-1", sequence=5, actions=[CLICK])

    assert (ErrorCode.SEQUENCE_GAP, Cause.BROKER_REFUSED, 409) == (
        caught.value.code,
        caught.value.cause,
        caught.value.status,
    )


@pytest.mark.parametrize(
    ("status", "content"),
    [(500, b"<html>"), (502, b""), (301, b""), (200, b"<html>"), (200, b"[]"), (200, b'{"broker_version": 1}')],
)
def test_an_answer_of_another_shape_is_a_protocol_error(status: int, content: bytes) -> None:
    """A proxy's page, a redirect, another version: none is a broker's word."""
    with (
        speaking(meddle=first(99, lambda handler: send(handler, status, content))) as (client, _),
        pytest.raises(BrokerError) as caught,
    ):
        client.health()

    assert ErrorCode.PROTOCOL == caught.value.code


def test_the_identity_must_be_signed_with_our_token() -> None:
    """Whoever holds the port must know the hash of the token."""
    with speaking() as (client, _):
        assert "h-fake" == client.identity(token=SecretStr(TOKEN)).host_id
        with pytest.raises(BrokerError) as caught:
            client.identity(token=SecretStr("another"))

    assert Cause.HOST_IDENTITY == caught.value.cause


def test_no_error_holds_the_token() -> None:
    """Not its text, and not the texts of what caused it."""
    for deed in (hang_up, garble, cut_off):
        with speaking(meddle=first(99, deed)) as (client, _), pytest.raises(BrokerError) as caught:
            client.health()
        assert TOKEN not in f"{caught.value!r}{caught.value.__cause__!r}{caught.value.hint}{client!r}"


def test_a_token_that_a_head_cannot_hold_is_refused_without_saying_it() -> None:
    """http.client would print it."""
    assert [False] * 4 == [is_header_safe(token) for token in ("a\nb", "", "ü", "x" * 257)]
    with pytest.raises(AssertionError) as caught:
        BrokerClient("http://127.0.0.1:1", SecretStr("a\r\nX-Evil: 1"))

    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "ftp://x", "127.0.0.1:80", "http://", "http://host/path"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """The road to a distant broker is a tunnel on loopback, never TLS of our own."""
    with pytest.raises(ConfigError, match="is not the address of a broker"):
        BrokerClient(url, SecretStr(TOKEN))


def test_close_ends_a_call_that_another_thread_waits_in() -> None:
    """A cancelled rollout leaves no thread behind."""
    errors: list[BrokerError] = []
    with speaking(meddle=first(99, lambda handler: time.sleep(3)), patience=Patience()) as (client, _):

        def ask() -> None:
            try:
                client.health(read_s=30)
            except BrokerError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.2)
        client.close()
        thread.join(2)

    assert not thread.is_alive()
    assert [ErrorCode.UNREACHABLE] == [error.code for error in errors]


def test_the_environments_proxies_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token goes to the broker and nowhere else."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with speaking() as (client, _):
        assert "h-fake" == client.health().host_id
