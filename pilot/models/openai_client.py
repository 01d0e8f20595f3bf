"""Requests through the official OpenAI SDK: OpenAI itself, and every provider that speaks like it.

Importing this module imports the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import openai
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

if TYPE_CHECKING:
    # It needs botocore, which only the models of an AWS account do.
    from pilot.models.signing import Signer

ERRORS: Final = Errors(status=openai.APIStatusError, any=openai.OpenAIError)
# The SDK insists on one; a signature, or the real key, replaces it in every request.
NO_KEY: Final = "unused"


class _Http(TamedHttp, openai.DefaultAsyncHttpxClient):
    """The SDK's own HTTP client, tamed."""


class OpenAIClient:
    """One connection pool to one address. A `signer` takes the place of a key for models of an AWS account."""

    def __init__(
        self,
        *,
        provider: str,
        endpoint: str,
        key: SecretStr | None,
        read_timeout_s: float,
        signer: Signer | None = None,
    ) -> None:
        keep_freed_memory()
        ask_no_program_for_the_processor()
        self._endpoint = endpoint
        self._read_timeout_s = read_timeout_s
        self._signer = signer
        self._key = key
        self._provider = provider
        self._sdk = openai.AsyncOpenAI(
            api_key=NO_KEY,
            base_url=endpoint,
            max_retries=0,
            timeout=timeouts(read_timeout_s),
            http_client=_Http(**http_options(read_timeout_s)),
        )
        self._left_out: dict[str, Any] = {name: openai.Omit() for name in strange_headers(self._sdk.default_headers)}

    async def send(self, request: Request) -> Answer:
        """Send once. Also raises `Refused` for a key, or AWS credentials, that cannot be used."""
        secrets: tuple[SecretStr, ...]
        if self._signer is None:
            authentication = {"authorization": f"Bearer {header_key(self._key, self._provider)}"}
            secrets = () if self._key is None else (self._key,)
        else:
            authentication, secrets = await self._signer.sign(self._endpoint.rstrip("/") + request.path, request.body)
        return await exchange(
            self._sdk,
            ERRORS,
            request,
            endpoint=self._endpoint,
            headers={**self._left_out, **authentication},
            secrets=secrets,
            read_timeout_s=self._read_timeout_s,
        )

    async def refresh_credentials(self) -> None:
        """Get new AWS credentials; a key stays what it is."""
        if self._signer is not None:
            await self._signer.refresh()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._sdk.close()
