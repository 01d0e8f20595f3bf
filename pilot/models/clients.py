"""One client per provider, address and key, shared by all rollouts of this process.

A vendor's SDK is imported when the first request goes to that vendor, once, and on a thread, so that other rollouts go
on meanwhile. A process of one rollout and a shared one use the same code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
from pydantic import SecretStr

from contract.bridge import ThreadBridge
from contract.errors import PilotError
from contract.phases import Cause
from contract.profiles import Profile
from contract.rollout_records import ModelChoice
from pilot.models.wire import Answer, Client, Request

# Imports, and signing: short work.
HELPER_THREADS_MAX: Final = 8
# One blocking call to Bedrock per rollout, and as many rollouts as a shared process is meant for.
BEDROCK_THREADS_MAX: Final = 200
# They would print requests, with their headers, at a lower level.
TALKATIVE: Final = ("openai", "anthropic", "httpx2", "httpcore2", "boto3", "botocore", "urllib3")


class Clients:
    """The clients of one process. Belongs to one event loop."""

    def __init__(self) -> None:
        self._pools: dict[_Identity, _Pool] = {}
        self._threads = _Threads(
            helpers=ThreadBridge(HELPER_THREADS_MAX, is_abandonable=True),
            bedrock=ThreadBridge(BEDROCK_THREADS_MAX, is_abandonable=True),
        )

    def client_for(self, choice: ModelChoice, key: SecretStr | None, profile: Profile) -> Client:
        """The client for this model, open or not. Close it when its rollout ends; the last one closes the connections.

        Raises `PilotError` when `choice` does not say where to send requests.
        """
        identity = _identity(choice, key, profile)
        pool = self._pools.get(identity)
        if pool is None:
            pool = self._pools[identity] = _Pool(identity, self._threads)
        return _Use(pool, self._forget)

    async def aclose(self) -> None:
        """Close all connections, whoever uses them."""
        pools = list(self._pools.values())
        self._pools.clear()
        for pool in pools:
            await pool.aclose()

    def _forget(self, pool: _Pool) -> None:
        if self._pools.get(pool.identity) is pool:
            del self._pools[pool.identity]


@dataclass(frozen=True, slots=True)
class _Threads:
    helpers: ThreadBridge
    bedrock: ThreadBridge


@dataclass(frozen=True, slots=True)
class _Identity:
    """Requests that are equal in all this may share connections."""

    provider: str
    endpoint: str
    key: SecretStr | None
    read_timeout_s: float
    region: str = ""
    credentials_url: str = ""
    signing_service: str = ""


class _Pool:
    """A client that is made at the first request."""

    def __init__(self, identity: _Identity, threads: _Threads) -> None:
        self.identity = identity
        self.uses = 0
        self._threads = threads
        self._opening = anyio.Lock()
        self._client: Client | None = None

    async def opened(self) -> Client:
        """The vendor's client, made now if it must be."""
        async with self._opening:
            if self._client is None:
                self._client = await self._threads.helpers.call(lambda: _open(self.identity, self._threads))
                # Here, because an SDK may set its own logger's level while it is imported.
                for name in TALKATIVE:
                    logging.getLogger(name).setLevel(logging.WARNING)
            return self._client

    async def aclose(self) -> None:
        """Close the connections, if there are any."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class _Use:
    """One rollout's share in a pool."""

    def __init__(self, pool: _Pool, forget: Callable[[_Pool], None]) -> None:
        self._pool = pool
        self._forget = forget
        self._is_closed = False
        pool.uses += 1

    async def send(self, request: Request) -> Answer:
        return await (await self._pool.opened()).send(request)

    async def refresh_credentials(self) -> None:
        await (await self._pool.opened()).refresh_credentials()

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.uses -= 1
        if self._pool.uses == 0:
            self._forget(self._pool)
            await self._pool.aclose()


def _identity(choice: ModelChoice, key: SecretStr | None, profile: Profile) -> _Identity:
    needed = {"endpoint": choice.endpoint}
    if choice.provider in {"mantle", "bedrock"}:
        needed |= {"region": choice.region, "credentials_url": choice.credentials_url}
    missing = [name for name, value in needed.items() if not value]
    if missing or choice.provider not in OPENERS:
        raise PilotError(
            f"the choice of provider {choice.provider!r} has no {missing[0]}"
            if missing
            else f"provider {choice.provider!r} has no client",
            cause=Cause.PILOT_ERROR,
            hint="Start the rollout with the supervisor of the same version.",
        )
    return _Identity(
        provider=choice.provider,
        endpoint=choice.endpoint or "",
        key=key,
        read_timeout_s=profile.read_timeout_s,
        region=choice.region or "",
        credentials_url=choice.credentials_url or "",
        signing_service=profile.signing_service or "",
    )


def _open(identity: _Identity, threads: _Threads) -> Client:
    """Import what this provider needs, and nothing else."""
    return OPENERS[identity.provider](identity, threads)


def _open_openai(identity: _Identity, threads: _Threads) -> Client:
    from pilot.models.openai_client import OpenAIClient

    return OpenAIClient(
        provider=identity.provider,
        endpoint=identity.endpoint,
        key=identity.key,
        read_timeout_s=identity.read_timeout_s,
    )


def _open_anthropic(identity: _Identity, threads: _Threads) -> Client:
    from pilot.models.anthropic_client import AnthropicClient

    return AnthropicClient(
        provider=identity.provider,
        endpoint=identity.endpoint,
        key=identity.key,
        read_timeout_s=identity.read_timeout_s,
    )


def _open_mantle(identity: _Identity, threads: _Threads) -> Client:
    from pilot.models.credentials import AwsCredentials
    from pilot.models.openai_client import OpenAIClient
    from pilot.models.signing import Signer

    credentials = AwsCredentials(credentials_url=identity.credentials_url, token=identity.key or SecretStr(""))
    signer = Signer(credentials, service=identity.signing_service, region=identity.region, bridge=threads.helpers)
    return OpenAIClient(
        provider=identity.provider,
        endpoint=identity.endpoint,
        key=None,
        read_timeout_s=identity.read_timeout_s,
        signer=signer,
    )


def _open_bedrock(identity: _Identity, threads: _Threads) -> Client:
    from pilot.models.bedrock_client import BedrockClient
    from pilot.models.credentials import AwsCredentials

    return BedrockClient(
        endpoint=identity.endpoint,
        region=identity.region,
        credentials=AwsCredentials(credentials_url=identity.credentials_url, token=identity.key or SecretStr("")),
        read_timeout_s=identity.read_timeout_s,
        bridge=threads.bedrock,
        connections_max=BEDROCK_THREADS_MAX,
    )


OPENERS: Final[dict[str, Callable[[_Identity, _Threads], Client]]] = {
    "openai": _open_openai,
    "openrouter": _open_openai,
    "fireworks": _open_openai,
    "anthropic": _open_anthropic,
    "mantle": _open_mantle,
    "bedrock": _open_bedrock,
}
