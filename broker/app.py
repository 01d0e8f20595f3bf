"""The broker over HTTP: authentication and bounds before anything is read, then one route for each call.

Every refusal is an `ErrorBody`. A wrong token is answered and logged without it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from concurrent.futures import Future
from typing import Annotated, Final, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.refusal import Refusal, refusal_of
from broker.service import Service
from contract.broker_api import (
    BODY_BYTES_MAX,
    BROKER_VERSION,
    HTTP_STATUS,
    TOKEN_CHARS_MAX,
    ActionsRequest,
    ArtifactReply,
    ErrorBody,
    ErrorCode,
    ExportRequest,
    Health,
    Identity,
    Lease,
    LeaseCall,
    LeaseRequest,
    Receipt,
    RenderRequest,
    ResetReply,
    ResetRequest,
    SaveRequest,
)
from contract.broker_client import sign_identity
from contract.errors import BenchError
from contract.records import Record

OPENAPI_PATH: Final = "/v1/openapi.json"
# A tunnel moves 1 MB/s: four times what the largest body needs.
BODY_S_MAX: Final = 20.0
# Junk is read and dropped for a moment, so that its sender hears the answer before the connection closes.
JUNK_BYTES_MAX: Final = 32 * 1024 * 1024
JUNK_S_MAX: Final = 2.0
# What is wrong with a request is quoted from it, and it may have megabytes.
MESSAGE_CHARS_MAX: Final = 1_000
_CALL: Final = re.compile(r"/v1/[a-z.]{1,12}(/\d{1,9})?")

T = TypeVar("T", bound=Record)
_log = logging.getLogger(__name__)


def build_app(service: Service, *, token_sha256: str) -> ASGIApp:
    """The whole application. `token_sha256` (hex) is all that the host knows of its token."""
    return Guard(build_routes(service, token_sha256=token_sha256), service=service, token_sha256=token_sha256)


def build_routes(service: Service, *, token_sha256: str) -> FastAPI:
    """The routes without their guard; `scripts/publish_openapi.py` asks them for the OpenAPI document."""
    app = FastAPI(
        title="autocad-bench broker",
        version=BROKER_VERSION,
        description="Runs on the CAD host and moves its mouse and keyboard, for one rollout at a time.",
        openapi_url=OPENAPI_PATH,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": ErrorBody, "description": "The call was refused."}},
    )
    _add_error_handlers(app)
    _add_fact_routes(app, service, token_sha256)
    _add_deed_routes(app, service)
    return app


def _add_fact_routes(app: FastAPI, service: Service, token_sha256: str) -> None:
    @app.get("/v1/health", response_model=Health)
    async def health() -> Response:
        """The broker is there, and what its CAD program is doing."""
        return _json(service.health())

    @app.get("/v1/identity", response_model=Identity)
    async def identity(nonce: Annotated[str, Query(min_length=1, max_length=128)]) -> Response:
        """Who answers, bound to the caller's nonce."""
        unsigned = Identity(
            nonce=nonce,
            host_id=service.facts.host_id,
            boot_id=service.facts.boot_id,
            broker_version=BROKER_VERSION,
            started_at=service.facts.started_at,
            proof="0" * 64,
            instance=service.facts.instance,
        )
        return _json(unsigned.model_copy(update={"proof": sign_identity(unsigned, token_sha256=token_sha256)}))

    @app.get("/v1/frames/{sequence}", responses={200: {"content": {"image/png": {}}}}, response_class=Response)
    async def frame(sequence: int) -> Response:
        """The PNG that followed the reset (0) or an ActionBatch; only the last two are held."""
        return Response(service.frame(sequence).png, media_type="image/png")


def _add_deed_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/lease", response_model=Lease)
    async def lease(request: LeaseRequest) -> Response:
        """Take the lease, or get the same one again for the same request id."""
        return _json(await asyncio.to_thread(service.lease, request))

    @app.post("/v1/heartbeat", response_model=Lease)
    async def heartbeat(call: LeaseCall) -> Response:
        """Push the lease's expiry back."""
        return _json(service.leases.demand(call.lease_id))

    @app.post("/v1/release", response_model=Health)
    async def release(call: LeaseCall) -> Response:
        """Give the lease back; the desktop is ended."""
        return await _reply(service.release(call.lease_id))

    @app.post("/v1/reset", response_model=ResetReply)
    async def reset(request: ResetRequest) -> Response:
        """A fresh CAD program on a fresh copy of the start drawing."""
        return await _reply(service.reset(request))

    @app.post("/v1/actions", response_model=Receipt)
    async def actions(request: ActionsRequest) -> Response:
        """Carry the actions out exactly once."""
        return await _reply(service.act(request))

    @app.post("/v1/save", response_model=ArtifactReply)
    async def save(request: SaveRequest) -> Response:
        """Have the CAD program write its drawing, and hand it over."""
        return await _reply(service.save(request))

    @app.post("/v1/export", response_model=ArtifactReply)
    async def export(request: ExportRequest) -> Response:
        """Facts about the saved drawing, handed over."""
        return await _reply(service.export(request))

    @app.post("/v1/render", response_model=ArtifactReply)
    async def render(request: RenderRequest) -> Response:
        """The canonical render of the saved drawing, handed over."""
        return await _reply(service.render(request))


async def _reply(future: Future[T]) -> Response:
    # Shielded: a caller that hangs up does not stop a deed half-way.
    waiting: asyncio.Future[T] = asyncio.wrap_future(future)
    return _json(await asyncio.shield(waiting))


def _json(record: Record) -> Response:
    return Response(record.model_dump_json(), media_type="application/json")


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(BenchError)
    @app.exception_handler(OSError)
    async def refused(request: Request, error: Exception) -> Response:
        return _refused(request.url.path, refusal_of(error).body())

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        item = error.errors()[0]
        where = ".".join(str(part) for part in item["loc"])
        return _refused(request.url.path, _invalid(f"{where}: {item['msg']}"))

    @app.exception_handler(HTTPException)
    async def no_such_call(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code not in (404, 405):
            return _refused(request.url.path, _invalid("the body is not JSON"))
        hint = f"The calls are listed at {OPENAPI_PATH}."
        return _refused(request.url.path, ErrorBody(code=ErrorCode.NOT_FOUND, message="no such call", hint=hint))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return _refused(request.url.path, refusal_of(error).body())


def _invalid(message: str) -> ErrorBody:
    return ErrorBody(code=ErrorCode.INVALID_REQUEST, message=message, hint=f"See {OPENAPI_PATH} for what is expected.")


def _refused(path: str, body: ErrorBody, *, closes: bool = False) -> Response:
    # A stranger's path may be anything, also a token or a line that looks like one of ours.
    known = path if _CALL.fullmatch(path) else "a call"
    body = body.model_copy(update={"message": _one_line(body.message)})
    _log.info("%s refused: %s: %s", known, body.code, body.message)
    headers = {"connection": "close"} if closes else {}
    return Response(body.model_dump_json(), HTTP_STATUS[body.code], headers, "application/json")


def _one_line(message: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in message[: MESSAGE_CHARS_MAX + 1])
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"


class Guard:
    """Lets through what carries the token and has a body of bounded size; reads nothing of what does not."""

    def __init__(self, app: ASGIApp, *, service: Service, token_sha256: str) -> None:
        self._app = app
        self._service = service
        self._token_sha256 = token_sha256

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = str(scope["path"])
        if self._is_authorized(scope):
            self._service.leases.heard()
        elif path != OPENAPI_PATH:
            body = ErrorBody(
                code=ErrorCode.UNAUTHORIZED, message="the token is missing or wrong", hint="Send this rollout's token."
            )
            await _refuse_unread(path, body, scope, receive, send)
            return
        try:
            content = await _read_body(scope, receive)
        except Refusal as error:
            await _refuse_unread(path, error.body(), scope, receive, send)
            return
        if content is None:
            return
        await self._app(scope, _replayed(content, receive), send)

    def _is_authorized(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer" or len(token) > TOKEN_CHARS_MAX:
            return False
        return hmac.compare_digest(hashlib.sha256(token).hexdigest(), self._token_sha256)


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """The body, read while it fits; None when the caller hung up. Raises `body_too_large`, `invalid_request`."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
        raise _too_large()
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                content += message.get("body", b"")
                if len(content) > BODY_BYTES_MAX:
                    raise _too_large()
                if not message.get("more_body", False):
                    return bytes(content)
    except TimeoutError as error:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"the body did not arrive within {BODY_S_MAX:g} s", hint="Send it again."
        ) from error


def _too_large() -> Refusal:
    return Refusal(
        ErrorCode.BODY_TOO_LARGE, f"a body may have {BODY_BYTES_MAX} bytes", hint="Split the actions into more calls."
    )


async def _refuse_unread(path: str, body: ErrorBody, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without having read the body, and hang up."""
    dropped = 0
    deadline = time.monotonic() + JUNK_S_MAX
    try:
        async with asyncio.timeout(JUNK_S_MAX):
            while dropped < JUNK_BYTES_MAX and time.monotonic() < deadline:
                message = await receive()
                dropped += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    break
    except TimeoutError:
        pass
    await _refused(path, body, closes=True)(scope, receive, send)


def _replayed(content: bytes, receive: Receive) -> Receive:
    """A receive channel that gives the body once, then what the connection says."""
    is_given = False

    async def replayed() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": content, "more_body": False}

    return replayed
