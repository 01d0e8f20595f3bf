"""The controller's check that a broker runs in the very instance that it launched, and in a boot since then.

Three bonds hold together: AWS's signature binds the document to one instance, the instance id binds it to our launch,
and the answer's proof (`BrokerClient.identity`) binds document and boot to our nonce and to this rollout's token. A
document that somebody has read elsewhere is therefore worth nothing.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from contract.broker_api import Identity, InstanceProof
from contract.errors import HostError
from contract.phases import Cause
from contract.records import first_problem
from supervisor.cloud.ports import Instance

# EC2 stamps document and launch at about the same time; a stopped and started instance differs by more than this.
PENDING_SLACK: Final = timedelta(minutes=5)
# The guest's clock is set by the network, and its boot time moves by seconds when that happens.
BOOT_SLACK: Final = timedelta(seconds=60)
_TIME: Final[TypeAdapter[datetime]] = TypeAdapter(AwareDatetime)


class IdentityDocument(BaseModel):
    """What is compared of an instance identity document; AWS adds fields as it likes."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance_id: str = Field(alias="instanceId")
    image_id: str = Field(alias="imageId")
    account_id: str = Field(alias="accountId")
    region: str
    pending_time: AwareDatetime = Field(alias="pendingTime")


def verify_instance(
    identity: Identity,
    *,
    certificate: bytes,
    instance: Instance,
    region: str,
    account: str | None,
    broker_version: str,
    booted_after: datetime,
) -> None:
    """Return when the answer comes from `instance`. Raises `HostError` (`host_identity`) that says what differs.

    `certificate` is PEM; `account` is compared where it is known. `booted_after` is usually the launch: an older boot
    is not one of this instance. The caller has checked nonce and proof.
    """
    proof = identity.instance
    if proof is None:
        raise _differs("the broker does not say which instance it runs on", hint="Start it as docs/image.md says.")
    document = _signed_document(proof, certificate)
    expected = {"instance": instance.instance_id, "image": instance.image_id, "Region": region}
    found = {"instance": document.instance_id, "image": document.image_id, "Region": document.region}
    if account is not None:
        expected["account"], found["account"] = account, document.account_id
    for what, value in expected.items():
        if found[what] != value:
            raise _differs(
                f"the broker runs on {what} {found[what]!r}, and {value!r} was launched",
                hint="Another machine answers at this address; end both.",
            )
    if abs(document.pending_time - instance.launched_at) > PENDING_SLACK:
        raise _differs(
            f"the identity document is of {document.pending_time.isoformat()}, and instance "
            f"{instance.instance_id} was launched at {instance.launched_at.isoformat()}",
            hint="The instance was stopped and started again by somebody; end it.",
        )
    booted_at = _booted_at(proof)
    if booted_at < booted_after - BOOT_SLACK:
        raise _differs(
            f"instance {instance.instance_id} says that it booted at {booted_at.isoformat()}, "
            f"before {booted_after.isoformat()}",
            hint="Its clock is wrong, or its boot facts come from a file in the image; see docs/image.md.",
        )
    if identity.broker_version != broker_version:
        raise _differs(
            f"the image holds broker {identity.broker_version!r}, and the config says {broker_version!r}",
            hint="Set `broker_version` to what the image holds, or use another image.",
        )


def check_certificate(pem: bytes) -> str | None:
    """What is wrong with the operator's certificate file, in words; null when it can be used."""
    try:
        keys = _keys(pem)
    except ValueError:
        return "it holds no PEM certificate"
    except UnsupportedAlgorithm:
        return "it holds a certificate with an unknown kind of key; take the one that AWS lists under RSA"
    if len(keys) < len(x509.load_pem_x509_certificates(pem)):
        return "it holds a certificate without an RSA key; take the one that AWS lists under RSA"
    return None


def _signed_document(proof: InstanceProof, certificate: bytes) -> IdentityDocument:
    content = proof.document.encode()
    try:
        signature = base64.b64decode("".join(proof.signature.split()), validate=True)
        is_signed = any(_has_signed(key, signature, content) for key in _keys(certificate))
    except (binascii.Error, ValueError, UnsupportedAlgorithm) as error:
        raise _differs(
            f"the identity document's signature cannot be checked ({type(error).__name__})",
            hint="Put the Region's RSA certificate into `host.identity_certificate`.",
        ) from error
    if not is_signed:
        raise _differs(
            "the identity document is not signed by the Region's certificate",
            hint="The document was changed or is another Region's, or `host.identity_certificate` is not the one that "
            "AWS lists under RSA for this Region.",
        )
    try:
        return IdentityDocument.model_validate_json(content)
    except ValidationError as error:
        raise _differs(
            f"the signed identity document lacks what is needed: {first_problem(error)}",
            hint="Its shape is new; update autocad-bench.",
        ) from error


def _keys(pem: bytes) -> list[RSAPublicKey]:
    # Several: while a Region changes its certificate, either may have signed. Their dates say nothing here: the
    # operator pinned exactly these, and nobody else vouches for them.
    keys = [certificate.public_key() for certificate in x509.load_pem_x509_certificates(pem)]
    return [key for key in keys if isinstance(key, RSAPublicKey)]


def _has_signed(key: RSAPublicKey, signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, content, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def _booted_at(proof: InstanceProof) -> datetime:
    try:
        return _TIME.validate_python(proof.booted_at)
    except ValidationError as error:
        raise _differs(
            f"the broker gives no time for its boot: {proof.booted_at[:64]!r}", hint="Use an image of this version."
        ) from error


def _differs(message: str, *, hint: str) -> HostError:
    return HostError(message, cause=Cause.HOST_IDENTITY, hint=hint)
