"""A stand-in of the instance metadata service, version 2, with documents that a key of our own signs, and faults.

Facts: EC2 User Guide, "Use the Instance Metadata Service to access instance metadata" (tokens, headers, status codes)
and "Instance identity documents" (paths, fields, RSA signature with SHA-256).
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

LAUNCHED_AT = datetime(2026, 11, 30, 8, 15, 30, tzinfo=UTC)
INSTANCE_ID = "i-0123456789abcdef0"
IMAGE_ID = "ami-0123456789abcdef0"
ACCOUNT = "111122223333"
REGION = "us-east-1"
DOCUMENT_PATH = "/latest/dynamic/instance-identity/document"
SIGNATURE_PATH = "/latest/dynamic/instance-identity/signature"


@dataclass(frozen=True)
class Signer:
    """A Region's key: `certificate` is what its operator publishes, in PEM."""

    key: rsa.RSAPrivateKey
    certificate: bytes

    def sign(self, document: str) -> str:
        """The signature as the service serves it: base64 in lines."""
        return base64.encodebytes(self.key.sign(document.encode(), PKCS1v15(), SHA256())).decode().rstrip("\n")


def signer(name: str = REGION) -> Signer:
    """The key of this name; made once, because making one takes a while."""
    return _made(name)


@cache
def _made(_: str) -> Signer:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    return Signer(key, certificate_of(key))


def certificate_of(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """A self-signed certificate in PEM. Its dates are over, as those of old Regions may be."""
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Stand-in Web Services LLC")])
    builder = x509.CertificateBuilder(
        subject_name=name,
        issuer_name=name,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=datetime(2015, 1, 1, tzinfo=UTC),
        not_valid_after=datetime(2016, 1, 1, tzinfo=UTC),
    )
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def document_of(**other: Any) -> str:
    """An identity document as the service writes it; `other` are fields with other values."""
    fields = {
        "accountId": ACCOUNT,
        "architecture": "x86_64",
        "availabilityZone": f"{REGION}a",
        "billingProducts": None,
        "imageId": IMAGE_ID,
        "instanceId": INSTANCE_ID,
        "instanceType": "g6.xlarge",
        "pendingTime": LAUNCHED_AT.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": "10.0.0.17",
        "region": REGION,
        "version": "2017-09-30",
    }
    return json.dumps({**fields, **other}, indent=2)


@dataclass
class MetadataService:
    """One instance's service. `answers` may be changed at any time; `faults` are what the next requests meet, by path.

    A fault is a status, or `torn` (the connection ends in the middle), or `cut` (half of it, as if that were all).
    """

    answers: dict[str, str] = field(default_factory=dict)
    faults: dict[str, list[int | str]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    _tokens: set[str] = field(default_factory=set)
    _server: ThreadingHTTPServer | None = None

    @classmethod
    def of(cls, *, user_data: str, document: str | None = None, by: Signer | None = None) -> MetadataService:
        """The service of an instance with this user data and document, signed by `by`."""
        document = document or document_of()
        signature = (by or signer()).sign(document)
        return cls({"/latest/user-data": user_data, DOCUMENT_PATH: document, SIGNATURE_PATH: signature})

    @property
    def url(self) -> str:
        """Where it answers, with a path in front, because many instances may share a port."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}/imds/{INSTANCE_ID}"

    def forget_tokens(self) -> None:
        """As after its own restart."""
        self._tokens.clear()

    def __enter__(self) -> Self:
        self.listen(0)
        return self

    def listen(self, port: int) -> None:
        """Begin to answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        serve = self._server.serve_forever
        threading.Thread(target=lambda: serve(poll_interval=0.01), daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _answer(self, method: str, path: str, headers: Any) -> tuple[int, bytes, str]:
        """Status, body and how it is broken."""
        self.asked[f"{method} {path}"] += 1
        faults = self.faults.get(path) or [200]
        fault = faults.pop(0)
        if isinstance(fault, int) and fault != 200:
            return fault, b"<html>no</html>", ""
        how = fault if isinstance(fault, str) else ""
        if path == "/latest/api/token":
            ttl_s = headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT" or not ttl_s.isdigit() or not 1 <= int(ttl_s) <= 21_600:
                return 400, b"", ""
            token = secrets.token_urlsafe(40)
            self._tokens.add(token)
            return 200, token.encode(), how
        if headers.get("X-aws-ec2-metadata-token") not in self._tokens:
            return 401, b"", ""
        if method != "GET" or path not in self.answers:
            return 404, b"", ""
        return 200, self.answers[path].encode(), how

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                path = self.path.removeprefix(f"/imds/{INSTANCE_ID}")
                status, body, how = service._answer(self.command, path, self.headers)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) // 2 if how == "cut" else len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if how else body)

            do_GET = do_PUT = _serve  # noqa: N815 - the names that the base class calls

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        return Handler
