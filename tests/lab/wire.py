"""The lab's front door: one WSGI application that keeps the journal, lets things go wrong, and passes on to moto."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from tests.lab.faults import UNFILTERED, Bucket, Call, Fault
from tests.lab.json_services import ServiceError, answer_bedrock, answer_quota, answer_reservations
from tests.lab.signatures import Key, Request, header_problem, presigned_problem

if TYPE_CHECKING:
    from tests.lab.lab import Lab

StartResponse = Callable[..., Any]
BEDROCK_ACTIONS = {"/foundation-models": "ListFoundationModels", "/inference-profiles": "ListInferenceProfiles"}
S3_ACTIONS = {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}


class Wire:
    """`inner` is moto's application."""

    def __init__(self, lab: Lab, inner: Callable[[dict[str, Any], StartResponse], Iterable[bytes]]) -> None:
        self._lab = lab
        self._inner = inner

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path.startswith("/imds/"):
            return self._metadata(environ, start_response, path)
        if path.startswith("/lab/shutdown/"):
            self._lab.machines.shut_down(path.rpartition("/")[2], "Client.InstanceInitiatedShutdown")
            return _respond(start_response, 200, b"")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        service, action, request = _what(environ, body)
        call = _call(service, action, request, body)
        fault = None
        if not self._lab.is_decoys(call):
            fault = self._throttled(call, request) or self._lab.faults.take(action, is_dry_run=call.is_dry_run)
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        if fault is not None and fault.kind == "drop_before":
            return self._drop(environ, call)
        if fault is not None and fault.kind == "error":
            self._lab.note(call, fault.status)
            return _error(start_response, service, fault)
        told: list[int] = []

        def telling(status: str, headers: Any, *more: Any) -> Any:
            told.append(int(status.split()[0]))
            return start_response(status, headers, *more)

        answer = b"".join(self._answer(environ, telling, service, action, request, body))
        if fault is not None and fault.kind == "drop_after":
            return self._drop(environ, call)
        self._lab.note(call, told[-1])
        if fault is not None and fault.kind == "cut":
            return self._cut(environ, answer)
        return [answer]

    def _answer(
        self,
        environ: dict[str, Any],
        start_response: StartResponse,
        service: str,
        action: str,
        request: dict[str, Any],
        body: bytes,
    ) -> Iterable[bytes]:
        lab = self._lab
        try:
            self._check_signature(environ, service, body)
            if service == "s3" and environ["REQUEST_METHOD"] == "PUT":
                _check_content(environ, body)
            if lab.denied & {f"{service}:{action}", f"{service}:*"}:
                code = "UnauthorizedOperation" if service == "ec2" else "AccessDeniedException"
                raise ServiceError(code, "You are not authorized to perform this operation.", status=403)
            if action == "DescribeCapacityReservations":
                return _respond(start_response, 200, answer_reservations(lab), "text/xml")
            if service == "ssm":
                return _json(start_response, lab.sessions.answer(action, request))
            if service == "servicequotas":
                return _json(start_response, answer_quota(lab, action, request))
            if service == "scheduler":
                name = unquote(environ["PATH_INFO"].rpartition("/")[2])
                return _json(start_response, lab.schedules.answer(action, name, request))
            if service == "bedrock":
                return _json(start_response, answer_bedrock(lab, environ["PATH_INFO"]))
        except ServiceError as error:
            return _error(start_response, service, Fault("error", error.code, error.status, error.message))
        return self._inner(environ, start_response)

    def _check_signature(self, environ: dict[str, Any], service: str, body: bytes) -> None:
        lab = self._lab
        path, _, query = environ.get("RAW_URI", environ["PATH_INFO"]).partition("?")
        request = Request(environ["REQUEST_METHOD"], path, query, _headers(environ), body)
        key = Key(lab.access_key, lab.secret_key)
        if "X-Amz-Signature" in query:
            problem = presigned_problem(request, key, now=datetime.now(UTC) + timedelta(seconds=lab.ahead_s))
        else:
            problem = header_problem(request, key, service=service)
        if problem is not None:
            # EC2 says 401 for credentials that it does not take, everyone else 403.
            raise ServiceError(*problem, status=401 if service == "ec2" else 403)

    def _throttled(self, call: Call, request: dict[str, Any]) -> Fault | None:
        if call.service != "ec2" or call.is_dry_run or not self._lab.is_throttling:
            return None
        name = call.action
        if name == "DescribeInstances" and not any(
            key.startswith(("Filter.", "InstanceId.", "Max")) for key in request
        ):
            name = UNFILTERED
        with self._lab.lock:
            if name.startswith("Describe"):
                self._lab.buckets.setdefault(name, Bucket(100, 20))
            bucket = self._lab.buckets.get(name)
            passes = bucket is None or bucket.take(time.monotonic())
        return None if passes else Fault("error", "RequestLimitExceeded", 503, "Request limit exceeded.")

    def _drop(self, environ: dict[str, Any], call: Call) -> Iterable[bytes]:
        self._lab.note(call, None)
        _hang_up(environ)
        return []

    def _cut(self, environ: dict[str, Any], answer: bytes) -> Iterator[bytes]:
        yield answer[: len(answer) // 2]
        _hang_up(environ)

    def _metadata(self, environ: dict[str, Any], start_response: StartResponse, path: str) -> Iterable[bytes]:
        _, _, instance_id, rest = path.split("/", 3)
        if rest == "latest/api/token" and environ["REQUEST_METHOD"] == "PUT":
            return _respond(start_response, 200, f"token-of-{instance_id}".encode())
        if environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN") != f"token-of-{instance_id}":
            return _respond(start_response, 401, b"")
        found = self._lab.machines.metadata(instance_id, f"/{rest}")
        return _respond(start_response, 404, b"") if found is None else _respond(start_response, 200, found.encode())


def _what(environ: dict[str, Any], body: bytes) -> tuple[str, str, dict[str, Any]]:
    """Service, action and parameters of a request."""
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        name, _, action = target.partition(".")
        service = {"AmazonSSM": "ssm", "ServiceQuotasV20190624": "servicequotas"}.get(name, name.lower())
        return service, action, json.loads(body or b"{}")
    service = _signed_for(environ)
    method = environ["REQUEST_METHOD"]
    if service == "scheduler":
        action = {"POST": "CreateSchedule", "DELETE": "DeleteSchedule"}.get(method, "GetSchedule")
        return service, action, json.loads(body or b"{}")
    if service == "bedrock":
        return service, BEDROCK_ACTIONS.get(environ["PATH_INFO"], "GetFoundationModel"), {}
    if service == "s3":
        is_bucket = environ["PATH_INFO"].strip("/").count("/") == 0
        action = {"PUT": "CreateBucket", "HEAD": "HeadBucket", "GET": "ListBucket"}.get(method, method)
        return service, action if is_bucket else S3_ACTIONS.get(method, method), {"Key": environ["PATH_INFO"]}
    form = {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}
    return service, form.get("Action", "?"), form


def _signed_for(environ: dict[str, Any]) -> str:
    credential = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition(",")[0]
    if not credential:
        credential = parse_qs(environ.get("QUERY_STRING", "")).get("X-Amz-Credential", [""])[0]
    parts = credential.split("/")
    return parts[-2] if len(parts) >= 5 else "s3"


def _call(service: str, action: str, request: dict[str, Any], body: bytes) -> Call:
    is_dry_run = str(request.get("DryRun", "false")).lower() == "true"
    resources = [str(value) for name, value in request.items() if name.startswith("InstanceId.")]
    resources += [str(request[name]) for name in ("Target", "SessionId", "Key") if name in request]
    return Call(time.monotonic(), service, action, is_dry_run, request.get("ClientToken"), tuple(resources), None, body)


def _check_content(environ: dict[str, Any], body: bytes) -> None:
    """What S3 checks of an object that comes: a length, and the checksum where one is named. Raises `ServiceError`."""
    if not environ.get("CONTENT_LENGTH"):
        raise ServiceError("MissingContentLength", "You must provide the Content-Length HTTP header.", status=411)
    named = environ.get("HTTP_X_AMZ_CHECKSUM_SHA256")
    if named is not None and named != base64.b64encode(hashlib.sha256(body).digest()).decode():
        raise ServiceError("BadDigest", "The SHA256 you specified did not match the calculated checksum.")


def _hang_up(environ: dict[str, Any]) -> None:
    # An error that is raised in here would leave the client waiting.
    with suppress(OSError):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def _headers(environ: dict[str, Any]) -> dict[str, str]:
    found = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            found[name.replace("_", "-").lower()] = environ[name]
    return found


def _error(start_response: StartResponse, service: str, fault: Fault) -> Iterable[bytes]:
    """The error in the envelope of its service."""
    if service == "ec2":
        text = (
            f"<Response><Errors><Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error></Errors>"
            "<RequestID>lab</RequestID></Response>"
        )
        return _respond(start_response, fault.status, text.encode(), "text/xml")
    if service in ("sts", "iam"):
        text = (
            f"<ErrorResponse><Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
            "<RequestId>lab</RequestId></ErrorResponse>"
        )
        return _respond(start_response, fault.status, text.encode(), "text/xml")
    if service == "s3":
        text = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
        return _respond(start_response, fault.status, text.encode(), "application/xml")
    content = json.dumps({"__type": fault.code, "message": fault.message, "Message": fault.message}).encode()
    headers = [("x-amzn-ErrorType", fault.code)]
    return _respond(start_response, fault.status, content, "application/x-amz-json-1.1", headers)


def _json(start_response: StartResponse, value: dict[str, Any]) -> Iterable[bytes]:
    return _respond(start_response, 200, json.dumps(value).encode(), "application/x-amz-json-1.1")


def _respond(
    start_response: StartResponse,
    status: int,
    content: bytes,
    kind: str = "text/plain",
    headers: list[tuple[str, str]] | None = None,
) -> Iterable[bytes]:
    start_response(
        f"{status} {'OK' if status < 400 else 'Error'}",
        [("Content-Type", kind), ("Content-Length", str(len(content))), *(headers or [])],
    )
    return [content]
