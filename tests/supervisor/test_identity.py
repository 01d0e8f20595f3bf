"""Who answers at the end of a tunnel: only the instance that was launched, in a boot since then, is taken."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from contract.broker_api import BROKER_VERSION, Identity, InstanceProof
from contract.broker_client import BrokerClient, Patience, sign_identity
from contract.errors import BrokerError, HostError
from contract.phases import Cause
from supervisor.cloud.ports import Instance, InstanceState
from supervisor.hosts.identity import check_certificate, verify_instance
from tests.metadata_service import (
    ACCOUNT,
    IMAGE_ID,
    INSTANCE_ID,
    LAUNCHED_AT,
    REGION,
    certificate_of,
    document_of,
    signer,
)

TOKEN = SecretStr("canary-token-of-the-identity-tests")
INSTANCE = Instance(
    instance_id=INSTANCE_ID,
    state=InstanceState.RUNNING,
    instance_type="g6.xlarge",
    image_id=IMAGE_ID,
    subnet_id="subnet-0123456789abcdef0",
    private_ip="10.0.0.17",
    launched_at=LAUNCHED_AT,
    client_token="t",
)


def proof_of(document: str, *, by: str = REGION, booted_s: float = 30.0) -> InstanceProof:
    """What the guest says: this document, signed, and a boot so long after the launch."""
    booted_at = (LAUNCHED_AT + timedelta(seconds=booted_s)).isoformat()
    return InstanceProof(document=document, signature=signer(by).sign(document), booted_at=booted_at, boot_count=3)


def identity_of(instance: InstanceProof | None, *, nonce: str = "n", token: SecretStr = TOKEN) -> Identity:
    """What the broker answers."""
    unsigned = Identity(
        nonce=nonce,
        host_id="h-1",
        boot_id="b-1",
        broker_version=BROKER_VERSION,
        started_at="2026-11-30T08:16:30+00:00",
        proof="0" * 64,
        instance=instance,
    )
    key = hashlib.sha256(token.get_secret_value().encode()).hexdigest()
    return unsigned.model_copy(update={"proof": sign_identity(unsigned, token_sha256=key)})


def verify(identity: Identity, **other: Any) -> None:
    """The check as a batch makes it; `other` are arguments with other values."""
    arguments: dict[str, Any] = {
        "certificate": signer().certificate,
        "instance": INSTANCE,
        "region": REGION,
        "account": ACCOUNT,
        "broker_version": BROKER_VERSION,
        "booted_after": LAUNCHED_AT,
    }
    verify_instance(identity, **{**arguments, **other})


def test_the_launched_instance_in_its_first_boot_is_taken() -> None:
    """Also where our own account is not known."""
    identity = identity_of(proof_of(document_of()))
    verify(identity)
    verify(identity, account=None)


def test_either_certificate_may_have_signed_while_a_region_changes_its_own() -> None:
    """The operator puts both into one file."""
    verify(identity_of(proof_of(document_of())), certificate=signer("the-old-one").certificate + signer().certificate)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("instanceId", "i-0fedcba9876543210", "instance 'i-0fedcba9876543210'"),
        ("imageId", "ami-0fedcba9876543210", "image 'ami-0fedcba9876543210'"),
        ("region", "us-west-2", "Region 'us-west-2'"),
        ("accountId", "999988887777", "account '999988887777'"),
        ("pendingTime", "2026-11-30T08:21:31Z", "2026-11-30T08:21:31+00:00"),
        ("pendingTime", "2026-11-30T08:10:29Z", "2026-11-30T08:10:29+00:00"),
    ],
)
def test_a_signed_document_of_another_machine_is_refused(field: str, value: str, said: str) -> None:
    """AWS signs the document of every instance of everybody: the signature alone says little."""
    with pytest.raises(HostError) as caught:
        verify(identity_of(proof_of(document_of(**{field: value}))))

    assert Cause.HOST_IDENTITY is caught.value.cause
    assert said in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "spoil",
    [
        lambda proof: {"document": proof.document.replace("g6.xlarge", "g6.2xlarge")},
        lambda proof: {"document": proof.document + "\n"},
        lambda proof: {"document": proof.document.replace("\n", "\r\n")},
        lambda proof: {"document": proof.document[:-10]},
        lambda proof: {"document": ""},
        lambda proof: {"signature": signer("us-west-2").sign(proof.document)},
        lambda proof: {"signature": proof.signature[:-8]},
        lambda proof: {"signature": "not base64"},
        lambda proof: {"signature": ""},
    ],
)
def test_a_document_that_is_not_as_aws_signed_it_is_refused(
    spoil: Callable[[InstanceProof], dict[str, str]],
) -> None:
    """One byte more is enough; so is another Region's key."""
    proof = proof_of(document_of())
    with pytest.raises(HostError) as caught:
        verify(identity_of(proof.model_copy(update=spoil(proof))))

    assert Cause.HOST_IDENTITY is caught.value.cause


@pytest.mark.parametrize("document", ["[]", '{"instanceId": "i-1"}', '"text"', document_of(pendingTime="soon")])
def test_a_signed_document_of_another_shape_is_refused(document: str) -> None:
    """Nothing that is missing counts as equal."""
    with pytest.raises(HostError, match="lacks what is needed"):
        verify(identity_of(proof_of(document)))


@pytest.mark.parametrize("booted_s", [-60.0, -59.0, 0.0, 900.0, 90_000.0])
def test_a_boot_since_the_launch_is_taken_with_some_seconds_of_the_guests_clock(booted_s: float) -> None:
    """A guest sets its clock while it boots; a reboot later on is another boot of the same instance."""
    verify(identity_of(proof_of(document_of(), booted_s=booted_s)))


@pytest.mark.parametrize("booted_s", [-61.0, -3_600.0, -90_000_000.0])
def test_a_boot_before_the_launch_is_refused(booted_s: float) -> None:
    """Boot facts that lie in an image are those of the machine on which it was made."""
    with pytest.raises(HostError, match="says that it booted at") as caught:
        verify(identity_of(proof_of(document_of(), booted_s=booted_s)))

    assert Cause.HOST_IDENTITY is caught.value.cause


@pytest.mark.parametrize("booted_at", ["", "yesterday", "2026-11-30T08:16:00"])
def test_a_boot_without_a_clear_time_is_refused(booted_at: str) -> None:
    """A time without its zone is off by hours."""
    proof = proof_of(document_of()).model_copy(update={"booted_at": booted_at})
    with pytest.raises(HostError, match="gives no time for its boot"):
        verify(identity_of(proof))


def test_launch_times_may_differ_by_minutes() -> None:
    """EC2 writes both; five minutes are far from any other launch of the same instance."""
    for slack in (timedelta(minutes=5), timedelta(minutes=-5)):
        verify(
            identity_of(proof_of(document_of())),
            instance=replace(INSTANCE, launched_at=LAUNCHED_AT + slack),
            booted_after=LAUNCHED_AT,
        )


def test_an_image_with_another_broker_is_refused() -> None:
    """The label in the config was only believed until now."""
    with pytest.raises(HostError, match=r"broker '1\.0', and the config says '0\.9'") as caught:
        verify(identity_of(proof_of(document_of())), broker_version="0.9")

    assert Cause.HOST_IDENTITY is caught.value.cause


def test_a_broker_on_no_instance_is_refused() -> None:
    """A local broker at the end of a tunnel is somebody else's."""
    with pytest.raises(HostError, match="which instance"):
        verify(identity_of(None))


def test_a_wrong_certificate_file_is_described_before_anything_is_launched() -> None:
    """The page of AWS has several for each Region; only the RSA one fits this signature."""
    elliptic = certificate_of(ec.generate_private_key(ec.SECP256R1()))

    assert check_certificate(signer().certificate) is None
    assert check_certificate(signer().certificate + signer("the-old-one").certificate) is None
    assert check_certificate(b"") == "it holds no PEM certificate"
    assert check_certificate(signer().certificate[:300]) == "it holds no PEM certificate"
    assert "RSA" in (check_certificate(elliptic) or "")
    assert "RSA" in (check_certificate(signer().certificate + elliptic) or "")


def test_a_certificate_that_cannot_be_read_later_is_a_host_error() -> None:
    """Somebody edits the file while a batch runs."""
    with pytest.raises(HostError) as caught:
        verify(identity_of(proof_of(document_of())), certificate=b"-----BEGIN CERTIFICATE-----\nxx")

    assert Cause.HOST_IDENTITY is caught.value.cause


# -- over the wire: nonce and token ------------------------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[str], Identity]) -> Iterator[BrokerClient]:
    """A client whose broker answers identity as told; `answer` gets the nonce."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonce = parse_qs(urlsplit(self.path).query)["nonce"][0]
            body = answer(nonce).model_dump_json().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True).start()
    client = BrokerClient(f"http://127.0.0.1:{server.server_port}", TOKEN, patience=Patience(tries=1))
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        server.server_close()


def test_the_whole_check_over_the_wire() -> None:
    """Document and signature come through JSON and HTTP byte by byte."""
    with answering(lambda nonce: identity_of(proof_of(document_of()), nonce=nonce)) as client:
        identity = client.identity(token=TOKEN)

    verify(identity)
    assert document_of() == identity.instance.document if identity.instance else ""


def test_an_answer_that_was_given_before_is_refused() -> None:
    """Whoever once saw the true broker answer can say it again, with the nonce of then or with ours."""
    heard = identity_of(proof_of(document_of()), nonce="n-of-then")
    for answer in (lambda _: heard, lambda nonce: heard.model_copy(update={"nonce": nonce})):
        with answering(answer) as client, pytest.raises(BrokerError) as caught:
            client.identity(token=TOKEN)

        assert Cause.HOST_IDENTITY is caught.value.cause


@pytest.mark.parametrize(
    "change",
    [
        {"document": document_of(instanceId="i-0fedcba9876543210")},
        {"signature": "AAAA"},
        {"booted_at": "2026-11-30T09:00:00+00:00"},
        {"boot_count": 4},
        {"boot_count": None},
        None,
    ],
)
def test_what_the_proof_covers_cannot_be_changed_on_the_way(change: dict[str, Any] | None) -> None:
    """A true document under somebody else's boot, or no document at all, are other answers."""

    def changed(nonce: str) -> Identity:
        told = identity_of(proof_of(document_of()), nonce=nonce)
        assert told.instance
        return told.model_copy(update={"instance": change and told.instance.model_copy(update=change)})

    with answering(changed) as client, pytest.raises(BrokerError) as caught:
        client.identity(token=TOKEN)

    assert Cause.HOST_IDENTITY is caught.value.cause


def test_the_true_document_under_another_token_is_refused() -> None:
    """A sibling's broker on the same controller: its tunnel was swapped with ours."""
    other = SecretStr("canary-token-of-a-sibling")
    with (
        answering(lambda nonce: identity_of(proof_of(document_of()), nonce=nonce, token=other)) as client,
        pytest.raises(BrokerError) as caught,
    ):
        client.identity(token=TOKEN)

    assert Cause.HOST_IDENTITY is caught.value.cause
