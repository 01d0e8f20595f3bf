"""The lists of Mantle and of Bedrock's control plane, signed with the operator's AWS account. Nothing here costs money.

Importing this module imports nothing of AWS; botocore and boto3 are imported when an AWS model is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from supervisor.addresses import is_loopback
from supervisor.aws_account import AwsCredentialsMissing, session_for
from supervisor.catalogs.entries import Ask, Catalog, CatalogError, ListedModel, bare_model
from supervisor.catalogs.http import CONNECT_S, Getter, refused_hint, unreachable
from supervisor.catalogs.vendors import catalog_of, items_of

# Signed like a turn's request, whose body here is empty.
_SIGNED_HEADERS: Final = {
    "content-type": "application/json",
    "x-amz-content-sha256": hashlib.sha256(b"").hexdigest(),
}


def mantle_catalog(ask: Ask, deadline: float) -> Catalog:
    """Mantle's own list; it does not say what reads images. Raises `CatalogError`."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest

    assert ask.url is not None, "Mantle has an address"
    region = ask.region
    credentials = _session(ask).get_credentials().get_frozen_credentials()

    def sign(url: str) -> Mapping[str, str]:
        request = AWSRequest(method="GET", url=url, headers=_SIGNED_HEADERS)
        SigV4Auth(credentials, "bedrock-mantle", region).add_auth(request)
        return dict(request.headers.items())

    secrets = (SecretStr(credentials.secret_key), SecretStr(credentials.token or ""))
    getter = Getter("mantle", sign=sign, secrets=secrets, deadline=deadline)
    items = items_of("mantle", ask.url, getter)
    return catalog_of("mantle", [ListedModel(item["id"]) for item in items])


def bedrock_catalog(ask: Ask, deadline: float) -> Catalog:
    """Bedrock's foundation models and the inference profiles that lead to them. Raises `CatalogError`."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    session = _session(ask)
    left_s = max(0.1, deadline - time.monotonic())
    host = urlsplit(ask.url or "").hostname or f"bedrock.{ask.region}.amazonaws.com"
    try:
        client = boto3.Session(botocore_session=session, region_name=ask.region).client(
            "bedrock",
            endpoint_url=ask.url,
            config=Config(
                connect_timeout=min(CONNECT_S, left_s),
                read_timeout=left_s,
                retries={"total_max_attempts": 1, "mode": "standard"},
                # A bearer token of the environment would silently take the profile's place.
                auth_scheme_preference="sigv4",
                # A proxy of the environment is for the way out of this machine.
                proxies={} if is_loopback(host) else None,
            ),
        )
        with contextlib.closing(client):
            summaries = client.list_foundation_models().get("modelSummaries")
            profiles = _profiles(client)
    except ClientError as error:
        raise _client_error(error, host) from None
    # Answers that are no JSON surface as plain ValueErrors.
    except (BotoCoreError, ValueError, AttributeError, TypeError) as error:
        raise unreachable("bedrock", host, _reason(error)) from None
    if not isinstance(summaries, list):
        raise unreachable("bedrock", host, "its answer is not a list of models")
    models = [_foundation_model(item) for item in summaries if isinstance(item, dict) and item.get("modelId")]
    by_id = {listed.model: listed for listed in models}
    aliases = {str(item.get("inferenceProfileArn", "")): item["inferenceProfileId"] for item in profiles}
    return catalog_of("bedrock", models + [_profile_model(item, by_id) for item in profiles], aliases)


def _session(ask: Ask) -> Any:
    """A session with credentials. Their absence has an issue of its own; here it is a list that is refused."""
    try:
        return session_for(ask.aws_profile)
    except AwsCredentialsMissing as error:
        raise CatalogError("catalog_refused", error.message, error.hint) from None


def _profiles(client: Any) -> list[dict[str, Any]]:
    """All inference profiles; none where they may not be listed: then an id's geography is cut off instead."""
    from botocore.exceptions import ClientError

    found: list[dict[str, Any]] = []
    try:
        for page in client.get_paginator("list_inference_profiles").paginate():
            found += page.get("inferenceProfileSummaries", [])
    except ClientError:
        return []
    return [item for item in found if item.get("inferenceProfileId")]


def _foundation_model(item: dict[str, Any]) -> ListedModel:
    modalities = item.get("inputModalities")
    kinds = item.get("inferenceTypesSupported")
    state = (item.get("modelLifecycle") or {}).get("status")
    return ListedModel(
        item["modelId"],
        reads_images="IMAGE" in modalities if isinstance(modalities, list) else None,
        state=state if state != "ACTIVE" else None,
        needs_profile=isinstance(kinds, list) and "ON_DEMAND" not in kinds,
    )


def _profile_model(item: dict[str, Any], by_id: Mapping[str, ListedModel]) -> ListedModel:
    profile_id = item["inferenceProfileId"]
    arns = [str(model.get("modelArn", "")) for model in item.get("models") or []]
    bases = [arn.rpartition("/")[2] for arn in arns if "/" in arn] or [bare_model(profile_id)]
    base = next((name for name in bases if name in by_id), bases[0])
    listed = by_id.get(base)
    state = item.get("status")
    if state == "ACTIVE":
        state = listed.state if listed is not None else None
    return ListedModel(profile_id, reads_images=listed.reads_images if listed else None, state=state, base=base)


def _client_error(error: Any, host: str) -> CatalogError:
    code = str(error.response.get("Error", {}).get("Code", ""))[:60]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status in (401, 403) or "Token" in code or "Signature" in code or code.startswith("AccessDenied"):
        message = f"bedrock refused the credential for its model list: HTTP {status} {code}"
        return CatalogError("catalog_refused", message, refused_hint("bedrock"))
    return unreachable("bedrock", host, f"it answered HTTP {status} {code}")


def _reason(error: Exception) -> str:
    name = type(error).__name__
    if "Timeout" in name:
        return "it did not answer in time"
    return "no connection" if "Connection" in name else name
