"""Requests through the official Anthropic SDK. Importing this module imports the SDK."""

from __future__ import annotations

from typing import Any, Final

import anthropic
from pydantic import SecretStr

from pilot.models.sdk_http import (
    Errors,
    TamedHttp,
    ask_no_program_for_the_processor,
    exchange,
    header_key,
    http_options,
    keep_freed_memory,
    strange_headers,
    timeouts,
)
from pilot.models.wire import Answer, Request

ERRORS: Final = Errors(status=anthropic.APIStatusError, any=anthropic.AnthropicError)
# The SDK insists on one; the real key goes into the header of every request.
NO_KEY: Final = "unused"


class _Http(TamedHttp, anthropic.DefaultAsyncHttpxClient):
    """The SDK's own HTTP client, tamed."""


class AnthropicClient:
    """One connection pool to one address.

    The key travels as `x-api-key`, which the API version that the profiles pin documents; from release 2 on, the SDK by
    itself would send `Authorization: Bearer`.
    """

    def __init__(self, *, provider: str, endpoint: str, key: SecretStr | None, read_timeout_s: float) -> None:
        keep_freed_memory()
        ask_no_program_for_the_processor()
        self._endpoint = endpoint
        self._read_timeout_s = read_timeout_s
        self._key = key
        self._provider = provider
        self._sdk = anthropic.AsyncAnthropic(
            api_key=NO_KEY,
            base_url=endpoint,
            max_retries=0,
            timeout=timeouts(read_timeout_s),
            open_telemetry=False,
            http_client=_Http(**http_options(read_timeout_s)),
        )
        names = ("authorization", *strange_headers(self._sdk.default_headers))
        self._left_out: dict[str, Any] = {name: anthropic.Omit() for name in names}

    async def send(self, request: Request) -> Answer:
        """Send once. Also raises `Refused` for a key that no header can carry."""
        return await exchange(
            self._sdk,
            ERRORS,
            request,
            endpoint=self._endpoint,
            headers={**self._left_out, "x-api-key": header_key(self._key, self._provider)},
            secrets=() if self._key is None else (self._key,),
            read_timeout_s=self._read_timeout_s,
        )

    async def refresh_credentials(self) -> None:
        """A key stays what it is."""

    async def aclose(self) -> None:
        """Close all connections."""
        await self._sdk.close()
