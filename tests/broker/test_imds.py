"""The metadata service as a guest meets it: late, torn, forgetful, or closed to containers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from broker.imds import WAIT_S, Imds, ImdsError, Launched
from tests.metadata_service import (
    DOCUMENT_PATH,
    INSTANCE_ID,
    LAUNCHED_AT,
    SIGNATURE_PATH,
    MetadataService,
    document_of,
    signer,
)

TOKEN_PATH = "/latest/api/token"
USER_DATA_PATH = "/latest/user-data"
USER_DATA = "#!/bin/sh\r\n# a line for the broker\n"


@pytest.fixture
def service() -> Iterator[MetadataService]:
    """A service that answers."""
    with MetadataService.of(user_data=USER_DATA) as made:
        yield made


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        """Let it pass."""
        self.now += seconds

    def elapsed_s(self) -> float:
        """What has passed."""
        return self.now


def read(url: str, clock: Clock | None = None, *, wait_s: float = WAIT_S) -> Launched:
    """What the guest learns."""
    clock = clock or Clock()
    return Imds(url, pause=clock.pause, elapsed_s=clock.elapsed_s).read(wait_s=wait_s)


def test_the_document_is_read_to_the_byte(service: MetadataService) -> None:
    """Its signature holds for exactly these bytes; so does the user data, whatever ends its lines."""
    launched = read(service.url)

    assert (USER_DATA, document_of()) == (launched.user_data, launched.document)
    assert signer().sign(document_of()) == launched.signature
    assert (INSTANCE_ID, LAUNCHED_AT) == (launched.facts.instance_id, launched.facts.pending_time)


def test_one_token_serves_all_requests(service: MetadataService) -> None:
    """Version 2 takes no request without one, and a fresh one for each is not needed."""
    read(service.url)

    assert {
        f"PUT {TOKEN_PATH}": 1,
        f"GET {USER_DATA_PATH}": 1,
        f"GET {DOCUMENT_PATH}": 1,
        f"GET {SIGNATURE_PATH}": 1,
    } == dict(service.asked)


def test_a_service_that_comes_up_late_is_waited_for() -> None:
    """Programs start before the network does."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    service = MetadataService.of(user_data=USER_DATA)
    clock = Clock()

    def pause(seconds: float) -> None:
        clock.pause(seconds)
        if clock.now > 20 and service._server is None:
            service.listen(port)

    try:
        url = f"http://127.0.0.1:{port}/imds/{INSTANCE_ID}"
        launched = Imds(url, pause=pause, elapsed_s=clock.elapsed_s).read()
    finally:
        service.__exit__(None, None, None)

    assert USER_DATA == launched.user_data
    assert 20 < clock.now < 30


@pytest.mark.parametrize(
    ("path", "faults"),
    [
        (TOKEN_PATH, [503, 503]),
        (TOKEN_PATH, ["torn"]),
        (USER_DATA_PATH, [404, 500, "torn"]),
        (DOCUMENT_PATH, [404]),
        (DOCUMENT_PATH, ["torn", "cut"]),
        (SIGNATURE_PATH, ["torn", 404]),
        (DOCUMENT_PATH, [307]),
    ],
)
def test_an_answer_that_is_torn_or_refused_is_asked_for_again(
    service: MetadataService, path: str, faults: list[int | str]
) -> None:
    """A document that is half a document must never become this guest's identity."""
    service.faults[path] = faults

    assert document_of() == read(service.url).document
    assert [] == faults


@pytest.mark.parametrize("spoilt", ["not base64!", "", "QUJD" * 2_000])
def test_a_signature_that_is_none_is_asked_for_again(service: MetadataService, spoilt: str) -> None:
    """It would only be refused by the controller, after a whole boot."""
    good = service.answers[SIGNATURE_PATH]
    service.answers[SIGNATURE_PATH] = spoilt
    clock = Clock()

    def pause(seconds: float) -> None:
        clock.pause(seconds)
        service.answers[SIGNATURE_PATH] = good

    launched = Imds(service.url, pause=pause, elapsed_s=clock.elapsed_s).read()

    assert good == launched.signature


def test_a_token_that_the_service_forgot_is_replaced(service: MetadataService) -> None:
    """The service may start again under us."""
    clock = Clock()
    imds = Imds(service.url, pause=clock.pause, elapsed_s=clock.elapsed_s)
    imds.read()
    service.forget_tokens()

    assert USER_DATA == imds.read().user_data
    assert 2 == service.asked[f"PUT {TOKEN_PATH}"]


def test_a_hop_limit_that_is_too_low_is_named_after_the_wait(service: MetadataService) -> None:
    """In a container every request is refused for ever; the operator learns which setting to look at."""
    service.faults[TOKEN_PATH] = [401] * 10_000
    clock = Clock()
    with pytest.raises(ImdsError) as caught:
        read(service.url, clock)

    assert "PUT /latest/api/token was answered with HTTP 401" in caught.value.message
    assert "hop limit" in caught.value.hint
    assert WAIT_S == pytest.approx(clock.now)
    assert service.asked[f"PUT {TOKEN_PATH}"] < 80


def test_a_machine_without_user_data_says_so(service: MetadataService) -> None:
    """Whoever prepares an image starts it by hand."""
    del service.answers[USER_DATA_PATH]
    with pytest.raises(ImdsError) as caught:
        read(service.url, wait_s=10.0)

    assert "GET /latest/user-data was answered with HTTP 404" in caught.value.message


def test_the_answer_of_something_else_is_not_taken(service: MetadataService) -> None:
    """A megabyte of anything is no user data."""
    service.answers[USER_DATA_PATH] = "x" * 1_000_000
    with pytest.raises(ImdsError, match="wrong length"):
        read(service.url, wait_s=1.0)
