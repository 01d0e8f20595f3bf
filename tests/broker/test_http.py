"""The broker over HTTP, spoken to by the real client and by strangers."""

from __future__ import annotations

import http.client
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from broker.drivers.paper import PaperFaults
from contract.actions import Move, TypeText, Wait, action_to_json
from contract.broker_api import (
    ARTIFACT_BYTES_MAX,
    ActionsRequest,
    ErrorCode,
    ExportRequest,
    LeaseRequest,
    RenderRequest,
    SaveRequest,
    UploadGrant,
)
from contract.broker_client import BrokerClient
from contract.errors import BrokerError
from tests.waiting import until

CIRCLE = TypeText(text="circle 600,400 220\n")
TOKEN = "canary-token-of-the-broker-tests"
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.UnsupportedFieldAttributeWarning")
GRANT = UploadGrant(url="http://127.0.0.1:9/once", headers={"X-One": "1"}, bytes_max=1_000_000)


def code_of(call: Callable[[], Any]) -> str:
    """With which code the broker refuses."""
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value.code


def raw(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any], str | None]:
    """One request as a stranger sends it: status, JSON, and the Connection header."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    try:
        if body:
            headers = {"Content-Type": "application/json", **headers}
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.getheader("connection")
    finally:
        connection.close()


def test_a_wrong_token_is_answered_401_and_logged_without_it(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of the body is looked at, and no log ever holds what was tried."""
    broker = serve()
    with caplog.at_level(logging.DEBUG):
        code = code_of(broker.client("a-wrong-token").health)
        status, body, connection = raw(broker.url, "POST", "/v1/lease", b"{" * 1000)

    assert code == ErrorCode.UNAUTHORIZED
    assert (401, "unauthorized", "close") == (status, body["code"], connection)
    assert "a-wrong-token" not in caplog.text


def test_ten_megabytes_of_junk_are_refused_unread(serve: Any) -> None:
    """With and without the token, with and without a length."""
    broker = serve()
    junk = b"x" * 10_000_000
    bearer = {"Authorization": f"Bearer {TOKEN}"}

    assert (413, "close") == raw(broker.url, "POST", "/v1/actions", junk, **bearer)[::2]
    assert (401, "close") == raw(broker.url, "POST", "/v1/actions", junk)[::2]
    assert broker.client().health().driver == "paper"


def test_a_body_without_a_length_is_bounded_while_it_streams(serve: Any) -> None:
    """Chunked encoding declares nothing."""
    broker = serve()
    parts = urlsplit(broker.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    chunks = (b"y" * 65_536 for _ in range(150))
    headers = {"Authorization": f"Bearer {TOKEN}", "Transfer-Encoding": "chunked"}
    connection.request("POST", "/v1/actions", chunks, headers, encode_chunked=True)

    assert connection.getresponse().status == 413
    connection.close()


def test_what_a_refusal_quotes_is_one_short_line(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the log nor the answer repeats megabytes, and nobody writes a line of the log for us."""
    broker = serve()
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with caplog.at_level(logging.INFO):
        _, long, _ = raw(
            broker.url, "POST", "/v1/heartbeat", b'{"lease_id": "l", "%s": 1}' % (b"q" * 100_000), **bearer
        )
        _, broken, _ = raw(broker.url, "POST", "/v1/heartbeat", b'{"lease_id": "l", "a\\nb": 1}', **bearer)
        raw(broker.url, "GET", "/v1/x%0aINFO%20all%20is%20well")

    assert len(long["message"]) == 1_000
    assert "body.a?b: " in broken["message"]
    said = [record.getMessage() for record in caplog.records if record.name == "broker.app"]
    assert [1, 1, 1] == [len(message.splitlines()) for message in said]
    assert max(len(message) for message in said) < 1_200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/lease", b"not json", 400, "invalid_request"),
        ("POST", "/v1/lease", b"\xff\x00 not even text", 400, "invalid_request"),
        ("POST", "/v1/lease", b"[" * 100_000, 400, "invalid_request"),
        (
            "POST",
            "/v1/heartbeat",
            b'{"lease_id": "l-1", "more": 1}',
            400,
            "invalid_request",
        ),
        ("GET", "/v1/nothing", b"", 404, "not_found"),
        ("GET", "/v1/lease", b"", 404, "not_found"),
        ("GET", "/v1/frames/7", b"", 404, "not_found"),
        ("POST", "/v1/heartbeat", b'{"lease_id": "l-unknown"}', 403, "lease_unknown"),
    ],
)
def test_every_refusal_is_an_error_body(
    serve: Any, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    """Programs read the code, people the message."""
    answer = raw(serve().url, method, path, body, Authorization=f"Bearer {TOKEN}")

    assert (status, code) == (answer[0], answer[1]["code"])
    assert answer[1]["message"]


def test_the_openapi_document_needs_no_token(serve: Any) -> None:
    """It tells nothing about this host."""
    status, document, _ = raw(serve().url, "GET", "/v1/openapi.json")

    assert status == 200
    assert "/v1/actions" in document["paths"]


def test_the_identity_is_bound_to_the_token(serve: Any) -> None:
    """A broker that knows another token cannot pose as ours."""
    client = serve().client()

    assert client.identity(token=SecretStr(TOKEN)).host_id == "h-1"
    assert code_of(lambda: client.identity(token=SecretStr("another"))) == ErrorCode.PROTOCOL


def test_a_rollout_is_played(serve: Any, seed: bytes) -> None:
    """Lease, reset, actions, frame, save, export, render, release."""
    broker = serve()
    client = broker.client()
    lease = broker.handed_off(client, seed)
    receipt = client.act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])
    png = client.frame(receipt.frame)
    saved = client.save(SaveRequest(request_id="s", lease_id=lease.lease_id, upload=GRANT))
    client.export(ExportRequest(request_id="e", lease_id=lease.lease_id, upload=GRANT))
    client.render(
        RenderRequest(request_id="r", lease_id=lease.lease_id, upload=GRANT, window=(0, 0, 4, 3), size_px=(1600, 1200))
    )
    released = client.release(lease.lease_id)

    assert png.startswith(b"\x89PNG")
    assert (True, "attempt.dxf") == (saved.is_present, saved.name)
    assert b"CIRCLE" in broker.sent[0][1]
    assert {"drawing": "attempt.dxf", "start": "start.dxf"} == json.loads(broker.sent[1][1])
    assert [0, 0, 4, 3] == json.loads(broker.sent[2][1])["window"]
    assert ("stopped", 0) == (released.driver_state, released.last_sequence)


def test_a_lost_answer_is_asked_for_again(serve: Any, seed: bytes) -> None:
    """The stored receipt comes back, the same but for its mark, and nothing is drawn twice."""
    broker = serve()
    client = broker.client()
    lease = broker.handed_off(client, seed)
    first = client.act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])
    again = client.act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])
    client.save(SaveRequest(request_id="s", lease_id=lease.lease_id, upload=GRANT))

    assert first.model_copy(update={"is_replay": True}) == again
    assert 1 == broker.sent[0][1].count(b"AcDbCircle")


def test_a_repeat_during_the_first_waits_for_it(serve: Any, seed: bytes) -> None:
    """The tunnel was reopened while the desktop was still acting."""
    broker = serve()
    lease = broker.handed_off(broker.client(), seed)

    def act(_: int) -> bool:
        return bool(
            broker.client().act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE, Wait(seconds=0.3)]).is_replay
        )

    with ThreadPoolExecutor(3) as threads:
        replays = sorted(threads.map(act, range(3)))

    assert [False, True, True] == replays


def test_gaps_and_other_actions_are_refused(serve: Any, seed: bytes) -> None:
    """And so is a request that was damaged on the way."""
    broker = serve()
    client = broker.client()
    lease_id = broker.handed_off(client, seed).lease_id
    client.act(lease_id=lease_id, sequence=1, actions=[CIRCLE])
    damaged = ActionsRequest(lease_id=lease_id, sequence=2, digest="0" * 64, actions=[action_to_json(CIRCLE)])
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    status, body, _ = raw(broker.url, "POST", "/v1/actions", damaged.model_dump_json().encode(), **bearer)

    assert code_of(lambda: client.act(lease_id=lease_id, sequence=3, actions=[CIRCLE])) == ErrorCode.SEQUENCE_GAP
    assert code_of(lambda: client.act(lease_id=lease_id, sequence=1, actions=[])) == ErrorCode.DIGEST_MISMATCH
    assert (409, "digest_mismatch") == (status, body["code"])
    assert client.act(lease_id=lease_id, sequence=2, actions=[CIRCLE]).performed == 1


def test_invalid_actions_are_refused_whole_and_the_sequence_stays_free(serve: Any, seed: bytes) -> None:
    """The host checks again what the controller has checked: an action outside the screen never happens."""
    broker = serve()
    client = broker.client()
    lease_id = broker.handed_off(client, seed).lease_id
    outside = Move.model_construct(type="move", x=5_000, y=1)

    assert code_of(lambda: client.act(lease_id=lease_id, sequence=1, actions=[CIRCLE, outside])) == "invalid_actions"
    assert client.act(lease_id=lease_id, sequence=1, actions=[CIRCLE]).is_replay is False


def test_an_unknown_lease_may_do_nothing(serve: Any, seed: bytes, make_reset_request: Any) -> None:
    """Also one that was released."""
    broker = serve()
    client = broker.client()
    lease = broker.handed_off(client, seed)
    client.release(lease.lease_id)

    assert code_of(lambda: client.act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])) == "lease_unknown"
    assert code_of(lambda: client.reset(make_reset_request(lease, seed))) == "lease_unknown"
    assert code_of(lambda: client.heartbeat(lease.lease_id)) == "lease_unknown"


def test_a_second_rollout_is_refused(serve: Any, seed: bytes) -> None:
    """One host, one rollout."""
    broker = serve()
    broker.handed_off(broker.client(), seed)
    other = LeaseRequest(request_id="lease-2", rollout_id="other", lease_s=60)

    assert code_of(lambda: broker.client().lease(other)) == ErrorCode.LEASE_HELD


def test_a_reset_is_repeated_by_its_id_and_refused_after_the_first_action(
    serve: Any, seed: bytes, make_reset_request: Any
) -> None:
    """The answer to a reset may be lost; a rollout that has begun is never begun again."""
    broker = serve()
    client = broker.client()
    lease = client.lease(LeaseRequest(request_id="lease-1", rollout_id="rollout", lease_s=60))
    request = make_reset_request(lease, seed)
    first = client.reset(request)
    again = client.reset(request)
    client.act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])

    assert first == again
    assert code_of(lambda: client.reset(make_reset_request(lease, seed, "reset-2"))) == "invalid_request"


@pytest.mark.parametrize(("failures", "attempts"), [(0, 1), (1, 2), (2, None)])
def test_a_reset_has_two_clean_attempts(
    serve: Any, seed: bytes, make_reset_request: Any, failures: int, attempts: int | None
) -> None:
    """A host that fails both is replaced by the controller."""
    client = serve(faults=PaperFaults(resets_that_fail=failures)).client()
    lease = client.lease(LeaseRequest(request_id="lease-1", rollout_id="rollout", lease_s=60))
    request = make_reset_request(lease, seed)

    if attempts is None:
        assert code_of(lambda: client.reset(request)) == ErrorCode.RESET_FAILED
    else:
        assert client.reset(request).attempts == attempts


def test_a_dead_cad_program_is_named_and_named_again(serve: Any, seed: bytes) -> None:
    """The true cause, also when its first answer was lost."""
    broker = serve(faults=PaperFaults(cad_dies_at=2))
    client = broker.client()
    lease_id = broker.handed_off(client, seed).lease_id

    for _ in range(2):
        assert code_of(lambda: client.act(lease_id=lease_id, sequence=1, actions=[CIRCLE, CIRCLE])) == "cad_died"
    assert client.health().driver_state == "cad_died"


def test_a_restarted_broker_knows_its_lease_and_its_receipts(serve: Any, seed: bytes) -> None:
    """The desktop is gone, so it goes no further; but what was done is still known."""
    broker = serve()
    client = broker.client()
    lease_id = broker.handed_off(client, seed).lease_id
    client.act(lease_id=lease_id, sequence=1, actions=[CIRCLE])
    again = serve(state_dir=broker.state_dir).client()

    assert again.act(lease_id=lease_id, sequence=1, actions=[CIRCLE]).is_replay
    assert code_of(lambda: again.act(lease_id=lease_id, sequence=2, actions=[CIRCLE])) == ErrorCode.NOT_RESET


def test_only_the_last_two_frames_are_held(serve: Any, seed: bytes) -> None:
    """A long rollout must not fill the host's memory."""
    broker = serve()
    client = broker.client()
    lease_id = broker.handed_off(client, seed).lease_id
    receipts = [client.act(lease_id=lease_id, sequence=n, actions=[Move(x=n, y=n)]) for n in (1, 2, 3)]

    assert [client.frame(receipt.frame)[:4] for receipt in receipts[1:]] == [b"\x89PNG"] * 2
    assert code_of(lambda: client.frame(receipts[0].frame)) == ErrorCode.NOT_FOUND


def test_save_is_repeated_by_its_id_without_a_second_upload(serve: Any, seed: bytes) -> None:
    """Grants are good for one use."""
    broker = serve()
    client = broker.client()
    lease_id = broker.handed_off(client, seed).lease_id
    request = SaveRequest(request_id="s", lease_id=lease_id, upload=GRANT)

    assert client.save(request) == client.save(request)
    assert [(GRANT.url, seed)] == broker.sent
    other = request.model_copy(update={"upload": GRANT.model_copy(update={"bytes_max": 1})})
    assert code_of(lambda: client.save(other)) == ErrorCode.INVALID_REQUEST


def test_a_drawing_that_is_too_large_is_told_and_not_sent(serve: Any, seed: bytes) -> None:
    """What it is worth is for export to say; a fault of ours it is not."""
    broker = serve(faults=PaperFaults(artifact_bytes=ARTIFACT_BYTES_MAX + 1))
    client = broker.client()
    lease_id = broker.handed_off(client, seed).lease_id
    saved = client.save(SaveRequest(request_id="s", lease_id=lease_id, upload=GRANT))
    client.export(ExportRequest(request_id="e", lease_id=lease_id, upload=GRANT))

    assert (True, ARTIFACT_BYTES_MAX + 1) == (saved.is_present, saved.size_bytes)
    assert ["export"] == broker.evaluator.calls
    assert 1 == len(broker.sent)


def test_a_long_batch_is_no_silence(serve: Any, seed: bytes) -> None:
    """A lease must not expire under the very actions that its holder waits for."""
    broker = serve(faults=PaperFaults(action_s=0.3))
    client = broker.client()
    lease_id = broker.handed_off(client, seed).lease_id
    acting = threading.Thread(target=lambda: client.act(lease_id=lease_id, sequence=1, actions=[CIRCLE]))
    acting.start()
    until(broker.service.is_busy)
    broker.clock[0] = 1_000.0

    assert broker.service.is_busy()
    acting.join()
    assert broker.service.leases.expires_in_s() > 50


def test_two_clients_do_not_disturb_each_other(serve: Any, seed: bytes) -> None:
    """Heartbeats come while the desktop acts."""
    broker = serve()
    lease_id = broker.handed_off(broker.client(), seed).lease_id
    slow: BrokerClient = broker.client()
    refused: list[str] = []
    acting = threading.Thread(
        target=lambda: refused.append(
            code_of(lambda: slow.act(lease_id=lease_id, sequence=1, actions=[Wait(seconds=30)]))
        )
    )
    acting.start()
    until(broker.service.is_busy)
    beat = broker.client().heartbeat(lease_id)
    is_acting = broker.service.is_busy()
    broker.service.abort()
    acting.join()

    assert beat.lease_id == lease_id
    assert is_acting
    assert 1 == len(refused)
