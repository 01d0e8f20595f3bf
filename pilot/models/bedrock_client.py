"""Requests through boto3's Converse. Importing this module imports boto3.

boto3 takes no ready body: the request is read back into its arguments, and images go in as bytes. Whatever comes back
is kept as it came, so that it is classified like every other provider's answer.
"""

from __future__ import annotations

import base64
import binascii
import threading
from functools import cache
from typing import Any, Final

import boto3
import botocore.session
import orjson
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.credentials import CredentialResolver
from botocore.exceptions import (
    ConnectTimeoutError,
    EndpointConnectionError,
    ParamValidationError,
    ProxyConnectionError,
    SSLError,
)
from botocore.loaders import Loader

from contract.bridge import Bridge
from pilot.models.body import Body, Image
from pilot.models.credentials import AwsCredentials
from pilot.models.echoes import without_secrets
from pilot.models.wire import Answer, Request
from pilot.ports import Refused, TransportFailed

SERVICE: Final = "bedrock-runtime"
CONNECT_TIMEOUT_S: Final = 10.0
# boto3's own 60 s is too short for a model that thinks.
READ_TIMEOUT_S_MIN: Final = 300.0
# Stands for an image while the body is read as JSON; only ever looked for where Converse wants bytes.
IMAGE_MARK: Final = "image:"
NEVER_SENT: Final = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError, SSLError)


class BedrockClient:
    """One boto3 client, whose calls block and therefore cross the bridge."""

    def __init__(
        self,
        *,
        endpoint: str,
        region: str,
        credentials: AwsCredentials,
        read_timeout_s: float,
        bridge: Bridge,
        connections_max: int,
    ) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._bridge = bridge
        # What came back on this thread: a call does not leave its thread.
        self._came_back = threading.local()
        self._boto = boto3.Session(botocore_session=_session(credentials)).client(
            SERVICE,
            region_name=region,
            endpoint_url=endpoint,
            verify=True,
            config=Config(
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=max(read_timeout_s, READ_TIMEOUT_S_MIN),
                max_pool_connections=connections_max,
                # A bearer token in the environment would win over these credentials.
                auth_scheme_preference="sigv4",
                proxies={},
                tcp_keepalive=True,
            ),
        )
        self._boto.meta.events.register(f"before-parse.{SERVICE}.Converse", self._keep)

    async def send(self, request: Request) -> Answer:
        """Send once. Also raises `Refused` for credentials or arguments that cannot be used."""
        return await self._bridge.call(lambda: self._converse(request))

    async def refresh_credentials(self) -> None:
        """Get new credentials, for the next request."""
        await self._bridge.call(self._credentials.refresh)

    async def aclose(self) -> None:
        """Close the connections. A call that a cancelled rollout left behind ends by itself."""
        self._boto.close()

    def _converse(self, request: Request) -> Answer:
        arguments = converse_arguments(request.body)
        # First, so that a failure to get credentials is not told by boto3.
        self._credentials.frozen()
        self._came_back.answer = None
        problem: str
        is_charge_unknown = True
        try:
            self._boto.converse(modelId=request.model, **arguments)
            problem = "nothing came back"
        except ParamValidationError as error:
            raise Refused(f"boto3 refuses the request: {str(error).splitlines()[-1]}") from None
        except Exception as error:  # noqa: BLE001  # boto3 stumbles over what is no JSON object with errors of any class
            problem = type(error).__name__
            is_charge_unknown = not isinstance(error, NEVER_SENT)
        answer: Answer | None = self._came_back.answer
        self._came_back.answer = None
        if answer is not None and _is_cut(answer):
            answer, problem = None, "the answer was cut off"
        if answer is None:
            raise TransportFailed(f"no answer from {SERVICE}: {problem}", is_charge_unknown=is_charge_unknown)
        return without_secrets(answer, self._credentials.secrets())

    def _keep(self, response_dict: dict[str, Any], **_: Any) -> None:
        headers = {str(name).lower(): str(value) for name, value in response_dict["headers"].items()}
        self._came_back.answer = Answer(response_dict["status_code"], headers, response_dict["body"])


def _is_cut(answer: Answer) -> bool:
    """True when fewer bytes came than were announced, which boto3 does not look at."""
    announced = answer.headers.get("content-length", "")
    return announced.isdecimal() and len(answer.body) < int(announced)


def converse_arguments(body: Body) -> dict[str, Any]:
    """The keyword arguments of boto3's `converse` for a body as it would be on the wire. Raises `StateError`."""
    images = [piece for piece in body.pieces if isinstance(piece, Image)]
    numbers = iter(range(len(images)))
    text = b"".join(
        piece if isinstance(piece, bytes) else f"{IMAGE_MARK}{next(numbers)}".encode() for piece in body.pieces
    )
    arguments: dict[str, Any] = _with_bytes(orjson.loads(text), images)
    return arguments


def _with_bytes(value: Any, images: list[Image]) -> Any:
    if isinstance(value, list):
        return [_with_bytes(item, images) for item in value]
    if not isinstance(value, dict):
        return value
    out = {name: _with_bytes(item, images) for name, item in value.items()}
    source = out.get("image")
    if isinstance(source, dict) and isinstance(source.get("source"), dict):
        encoded = source["source"].get("bytes")
        if isinstance(encoded, str):
            source["source"]["bytes"] = _image_bytes(encoded, images)
    return out


def _image_bytes(encoded: str, images: list[Image]) -> bytes:
    if encoded.startswith(IMAGE_MARK):
        return images[int(encoded.removeprefix(IMAGE_MARK))].png()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise Refused("an image of the request is not base64") from None


class _NoStore(CredentialResolver):  # type: ignore[misc]  # botocore has no types
    """A chain of credential providers with one link, which is ours."""

    def __init__(self, credentials: AwsCredentials) -> None:
        super().__init__([])
        self._credentials = credentials

    def load_credentials(self) -> Any:
        return _Current(self._credentials)


class _Current:
    """What botocore's signer asks for credentials, so that a refresh reaches a client that exists already."""

    method = "container-role"
    account_id = None

    def __init__(self, credentials: AwsCredentials) -> None:
        self._credentials = credentials

    def get_frozen_credentials(self) -> Any:
        return self._credentials.frozen()

    def get_deferred_property(self, name: str) -> Any:
        return lambda: getattr(self.get_frozen_credentials(), name)


def _session(credentials: AwsCredentials) -> botocore.session.Session:
    """A session that reads no environment variable, no profile and no config file."""
    # Each entry is (name in the config file, environment variable, default, conversion).
    variables = {
        name: (None, None, default, convert)
        for name, (_, _, default, convert) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()
    }
    variables["config_file"] = (None, None, "/dev/null", None)
    variables["credentials_file"] = (None, None, "/dev/null", None)
    session = botocore.session.Session(session_vars=variables)
    session.register_component("credential_provider", _NoStore(credentials))
    session.register_component("data_loader", _models())
    return session


@cache
def _models() -> Loader:
    # Reading the service's description is most of what a client costs, and it is the same for all of them.
    return Loader()
