"""All six model providers on this machine: they check what vendors check, answer as vendors answer, and keep the bill.

    with Simulator(players.script(turns)) as simulator:
        ...play with simulator.endpoints and simulator.keys...
        assert [] == simulator.refused

Each provider has a port of its own; paths are the vendors'. Faults are queued and befall the next turns.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from tests.providers import chat, converse, messages, responses
from tests.providers.accounts import Account, Used
from tests.providers.answering import Answering
from tests.providers.catalogs import Catalogs
from tests.providers.faults import Fault, reply_of_file
from tests.providers.http import Drop, Reply, Request, Server
from tests.providers.images import ImageReader
from tests.providers.models import SOLD
from tests.providers.players import Player
from tests.providers.prompt import Asked
from tests.providers.refusals import JSON, Refusal, invalid, reply_of
from tests.providers.sigv4 import AwsAccount
from tests.providers.vault import VAULT, Vault

PROVIDERS: Final = ("openai", "openrouter", "anthropic", "fireworks", "mantle", "bedrock")
KEYS: Final = {
    "openai": "sk-proj-canary-openai-3f9c1b7d",
    "openrouter": "sk-or-v1-canary-openrouter-77aa02",
    "anthropic": "sk-ant-api03-canary-anthropic-51d0",
    "fireworks": "fw_canary_fireworks_9b2e64",
}
SIGNING: Final = {"mantle": frozenset({"bedrock-mantle"}), "bedrock": frozenset({"bedrock"})}
MIB: Final = 1024 * 1024
BODY_BYTES_MAX: Final = {
    "openai": 512 * MIB,
    "openrouter": 64 * MIB,
    "anthropic": 32 * 1000 * 1000,
    "fireworks": 16 * MIB,
    "mantle": 4 * MIB,
    "bedrock": 25 * MIB,
}
TURN_PATHS: Final = {
    "openai": {"/v1/responses": "responses"},
    "openrouter": {"/api/v1/responses": "responses"},
    "anthropic": {"/v1/messages": "messages"},
    "fireworks": {"/inference/v1/chat/completions": "chat"},
    "mantle": {
        "/v1/chat/completions": "chat",
        "/v1/responses": "responses",
        "/openai/v1/chat/completions": "chat",
        "/openai/v1/responses": "responses",
    },
}
READERS: Final = {"responses": responses.read, "chat": chat.read, "messages": messages.read, "converse": converse.read}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came, and what became of it. `body` is empty unless bodies are kept.

    `extends` says whether it began with the session's previous body up to that one's closing brackets (None for a
    first one); `number` is which answer of its session it got, None when it got none. `head` is equal for requests
    that begin with the same tools, system, task and reference.
    """

    provider: str
    method: str
    path: str
    headers: dict[str, str]
    body_bytes: int
    body: bytes
    status: int
    session: str = ""
    extends: bool | None = None
    head: int | None = None
    prompt_tokens: int = 0
    images: int = 0
    used: tuple[Used, ...] = ()
    number: int | None = None
    fault: str = ""
    refusal: str = ""


@dataclass
class Session:
    """One rollout as a provider sees it. `answered`: which answer a conversation got, for it to get the same again."""

    answered: dict[int, int] = field(default_factory=dict)
    next_number: int = 0
    last_body: bytes = b""


class Simulator:
    """The providers. Start it with `with`; everything is readable while it runs and after."""

    def __init__(
        self,
        player: Player,
        *,
        keeps_bodies: bool = False,
        utc_now: Callable[[], datetime] = lambda: datetime.now(UTC),
        catalogs: Catalogs | None = None,
        latency_s: float = 0.0,
    ) -> None:
        self.player = player
        self.keys = dict(KEYS)
        self.aws = AwsAccount()
        self.vault = Vault(self.aws)
        self.answering = Answering()
        self.catalogs = catalogs or Catalogs()
        self.body_bytes_max = dict(BODY_BYTES_MAX)
        self.signing_services = dict(SIGNING)
        self.seen: list[Seen] = []
        self.sessions: dict[tuple[str, str, str], Session] = {}
        self._latency_s = latency_s
        self._keeps_bodies = keeps_bodies
        self._utc_now = utc_now
        self._images = ImageReader()
        self._faults: dict[str, deque[Fault]] = {provider: deque() for provider in PROVIDERS}
        self._held: list[asyncio.Event] = []
        self._changed = threading.Condition()
        self._server = Server((*PROVIDERS, VAULT), self._handle, before_body=self._before_body)

    def __enter__(self) -> Simulator:
        self._server.__enter__()
        return self

    def __exit__(self, *unused: object) -> None:
        self._server.__exit__(*unused)

    @property
    def endpoints(self) -> dict[str, str]:
        """The address of each provider, without a path."""
        return {provider: self._server.url(provider) for provider in PROVIDERS}

    @property
    def credentials_url(self) -> str:
        """Where short-lived AWS credentials are to be had for `vault.token`."""
        return f"{self._server.url(VAULT)}/credentials"

    @property
    def account(self) -> Account:
        """The bill."""
        return self.answering.account

    @property
    def turns(self) -> list[Seen]:
        """The requests for a turn."""
        return [seen for seen in self.seen if seen.method == "POST"]

    @property
    def refused(self) -> list[Seen]:
        """The requests that broke a vendor's rule."""
        return [seen for seen in self.seen if seen.refusal]

    def inject(self, provider: str, faults: Iterable[Fault]) -> None:
        """Queue faults for this provider's next turns."""
        self._faults[provider].extend(faults)

    def faults_left(self, provider: str) -> int:
        """How many have not befallen anyone yet."""
        return len(self._faults[provider])

    def release(self) -> None:
        """Let every answer go that `slow` keeps back."""

        def set_all() -> None:
            while self._held:
                self._held.pop().set()

        self._server.call_soon(set_all)

    def wait_for_held(self, count: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until so many answers are kept back."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._held) >= count, timeout_s)

    def wait_for_turns(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until so many requests for a turn have been seen."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.turns) >= count, timeout_s)

    def _before_body(self, provider: str, method: str, path: str) -> None:
        faults = self._faults.get(provider)
        if method == "POST" and faults and faults[0].kind == "drop_before":
            faults.popleft()
            with self._changed:
                self.seen.append(Seen(provider, method, path, {}, 0, b"", 0, fault="drop_before"))
                self._changed.notify_all()
            raise Drop

    async def _handle(self, request: Request) -> Reply:
        if request.server == VAULT:
            return self.vault.answer(request, now=self._utc_now())
        try:
            self._check_caller(request)
            api = _api_of(request)
            if api is None:
                reply = self.catalogs.answer(request) if request.method == "GET" else None
                if reply is None:
                    raise _unknown_path(request)
                self._note(request, status=reply.status)
                return reply
            self._check_size(request)
            asked = self._read(request, api)
        except Refusal as refusal:
            self._note(request, status=refusal.status, refusal=refusal.message)
            return reply_of(request.server, refusal)
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        return await self._turn(request, asked)

    def _check_caller(self, request: Request) -> None:
        provider, headers = request.server, request.headers
        if provider in self.signing_services:
            self.aws.check(request, services=self.signing_services[provider], now=self._utc_now())
            return
        key = self.keys[provider]
        bearer = headers.get("authorization") == f"Bearer {key}"
        if not bearer and not (provider == "anthropic" and headers.get("x-api-key") == key):
            raise Refusal(401, "Incorrect API key provided.", code="invalid_api_key")

    def _check_size(self, request: Request) -> None:
        if request.body_bytes <= self.body_bytes_max[request.server]:
            return
        if request.server == "mantle":
            raise invalid("Request body length exceeds the maximum allowed length.")
        code = "RequestEntityTooLargeException" if request.server == "bedrock" else None
        raise Refusal(413, "Request body too large.", code=code)

    def _read(self, request: Request, api: str) -> Asked:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise Refusal(400, "content-type: application/json is expected")
        try:
            body = orjson.loads(request.body)
        except orjson.JSONDecodeError as error:
            raise invalid("We could not parse the JSON body of your request.") from error
        if not isinstance(body, dict):
            raise invalid("The body has to be a JSON object.")
        if request.server == "mantle":
            _check_route(request, body.get("model"))
        asked = READERS[api](request, body, self._images)
        if api == "messages":
            asked.facts["context"] = messages.conversation_of(body)
        sold = SOLD[asked.provider, asked.model]
        if not sold.reads_images and asked.images:
            raise invalid("This model does not support image input.")
        if len(asked.images) > sold.images_max:
            raise invalid(f"Too many images: {len(asked.images)} > {sold.images_max}")
        if asked.prompt.tokens > sold.context_tokens:
            raise _context_full(asked.provider, asked.prompt.tokens, sold.context_tokens)
        return asked

    async def _turn(self, request: Request, asked: Asked) -> Reply:
        faults = self._faults[asked.provider]
        fault = faults.popleft() if faults else None
        session = self.sessions.setdefault((asked.provider, asked.model, asked.session), Session())
        extends = _extends(session.last_body, request.body)
        session.last_body = request.body
        facts: dict[str, Any] = {"session": asked.session, "extends": extends, "prompt_tokens": asked.prompt.tokens}
        facts |= {"head": asked.prompt.head, "images": len(asked.images)}
        if fault is not None:
            facts["fault"] = fault.file or fault.kind
            if fault.kind == "file":
                reply = reply_of_file(fault.file)
                self._note(request, status=reply.status, **facts)
                return reply
            if fault.kind == "drop_after":
                self._note(request, status=0, **facts)
                return Reply(0, is_lost=True)
            if fault.kind == "echo" and fault.value != 200:
                self._note(request, status=fault.value, **facts)
                return reply_of(asked.provider, Refusal(fault.value, f"refused: {_credentials(request)}"))
        number = session.answered.setdefault(asked.prompt.chain, session.next_number)
        session.next_number = max(session.next_number, number + 1)
        play = self.player(asked, number)
        if fault is not None and fault.kind == "echo":
            play = replace(play, text=f"I was called with {_credentials(request)}")
        body, runs = self.answering.answer(asked, play, number)
        reply = Reply(200, orjson.dumps(body), {**JSON, **_telemetry(asked.provider, runs)})
        self._note(request, status=200, used=tuple(runs), number=number, **facts)
        return reply if fault is None else await self._spoiled(reply, body, fault)

    async def _spoiled(self, reply: Reply, body: dict[str, Any], fault: Fault) -> Reply:
        match fault.kind:
            case "cut":
                return replace(reply, cut_after=fault.after_bytes)
            case "lost":
                return replace(reply, is_lost=True)
            case "lie":
                return replace(reply, body=orjson.dumps({**body, "usage": fault.value}))
            case "content_type":
                return replace(reply, headers={**reply.headers, "content-type": fault.value})
            case "slow":
                event = asyncio.Event()
                with self._changed:
                    self._held.append(event)
                    self._changed.notify_all()
                await event.wait()
                return reply
            case _:
                return reply

    def _note(self, request: Request, *, status: int, **facts: Any) -> None:
        seen = Seen(
            request.server,
            request.method,
            request.path,
            request.headers,
            request.body_bytes,
            request.body if self._keeps_bodies else b"",
            status,
            **facts,
        )
        with self._changed:
            self.seen.append(seen)
            self._changed.notify_all()


def _api_of(request: Request) -> str | None:
    if request.method != "POST":
        return None
    if request.server == "bedrock":
        is_turn = request.path.startswith("/model/") and request.path.endswith("/converse")
        return "converse" if is_turn else None
    return TURN_PATHS[request.server].get(request.path)


def _check_route(request: Request, model: Any) -> None:
    sold = SOLD.get(("mantle", model))
    route = "/openai/v1" if request.path.startswith("/openai/") else "/v1"
    if sold is not None and sold.route != route:
        raise invalid(f"model `{model}` isn't supported on this route")


def _unknown_path(request: Request) -> Refusal:
    code = "UnknownOperationException" if request.server == "bedrock" else None
    return Refusal(404, f"{request.method} {request.path} is not there.", code=code)


def _context_full(provider: str, tokens: int, most: int) -> Refusal:
    if provider == "anthropic":
        return invalid(f"prompt is too long: {tokens} tokens > {most} maximum")
    if provider == "fireworks":
        return invalid(f"The prompt is too long: {tokens}, model maximum context length: {most}")
    if provider == "bedrock":
        return invalid("Input is too long for requested model.")
    if provider == "openrouter":
        return invalid(f"This endpoint has a maximum context length of {most} tokens.")
    return invalid("The input exceeds the context window of this model.", code="context_length_exceeded")


def _credentials(request: Request) -> str:
    headers = request.headers
    return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")


def _telemetry(provider: str, runs: list[Used]) -> dict[str, str]:
    match provider:
        case "openai":
            return {"x-request-id": "req_sim", "x-ratelimit-remaining-requests": "9999"}
        case "openrouter":
            return {"x-generation-id": "gen-sim"}
        case "anthropic":
            return {"request-id": "req_sim"}
        case "fireworks":
            return {
                "x-request-id": "fw-sim",
                "fireworks-prompt-tokens": str(runs[-1].input_total),
                "fireworks-cached-prompt-tokens": str(runs[-1].read),
                "fireworks-server-time-to-first-token": "0.4",
            }
        case _:
            return {"x-amzn-requestid": "11111111-2222-3333-4444-555555555555"}


def _extends(previous: bytes, body: bytes) -> bool | None:
    """Whether `body` begins with `previous` up to its closing brackets."""
    if not previous:
        return None
    return body.startswith(previous.rstrip(b"]}"))
