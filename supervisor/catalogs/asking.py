"""Which lists to ask for, and where they are: each address follows from that of the provider's turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from pydantic import SecretStr

from contract.profiles import PROFILES, Profile, base_url
from supervisor.addresses import url_problem
from supervisor.catalogs.entries import Ask
from supervisor.choices import AWS_PROVIDERS, AwsAccount


def asks_for(
    wanted: Mapping[str, Iterable[str]],
    *,
    facts: Mapping[str, Profile],
    endpoints: Mapping[str, str],
    keys: Mapping[str, SecretStr],
    account: AwsAccount | None,
) -> list[Ask]:
    """An ask for each provider in `wanted` (with its configured ids) that can be asked.

    `facts` are the profiles that say where a provider's turns go; a provider without one has its first built-in's. Left
    out are providers without a key, account or usable endpoint: those have issues of their own. Bedrock's list is asked
    for Mantle's models too, because Mantle's does not say what reads images.
    """
    asks = []
    for provider, models in wanted.items():
        endpoint = endpoints.get(provider)
        if endpoint is not None and url_problem(endpoint) is not None:
            continue
        profile = facts.get(provider) or next(row for row in PROFILES.values() if row.provider == provider)
        if provider in AWS_PROVIDERS:
            if account is not None:
                asks.append(_aws_ask(provider, profile, endpoint, account))
        elif provider in keys:
            base = base_url(profile, endpoint=endpoint, region=None)
            asks.append(_direct_ask(provider, profile, base, keys[provider], tuple(models)))
    if account is not None and "mantle" in wanted and "bedrock" not in wanted:
        asks.append(_bedrock_for_mantle(endpoints, account))
    return asks


def control_plane_of(endpoint: str | None) -> str | None:
    """Where Bedrock's lists are when its turns go to `endpoint`; null means the SDK's own address."""
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    if parts.netloc.startswith("bedrock-runtime") and ".amazonaws." in parts.netloc:
        return f"{parts.scheme}://{parts.netloc.replace('bedrock-runtime', 'bedrock', 1)}"
    # A server that stands in for a provider has all of its paths.
    return endpoint.rstrip("/")


def _direct_ask(provider: str, profile: Profile, base: str, key: SecretStr, wanted: tuple[str, ...]) -> Ask:
    url = f"{base}/v1/models" if provider == "anthropic" else f"{base}/models"
    control = f"{base.removesuffix(profile.base_path)}/v1" if profile.base_path else base
    return Ask(provider, url, control_url=control, key=key, wanted=wanted)


def _aws_ask(provider: str, profile: Profile, endpoint: str | None, account: AwsAccount) -> Ask:
    if provider == "bedrock":
        return Ask("bedrock", control_plane_of(endpoint), region=account.region, aws_profile=account.profile)
    base = base_url(profile, endpoint=endpoint, region=account.region)
    # Whatever the base path of a model's turns, there is one list.
    is_usual = bool(profile.base_path) and base.endswith(profile.base_path)
    url = f"{base.removesuffix(profile.base_path)}/v1/models" if is_usual else f"{base}/models"
    return Ask("mantle", url, region=account.region, aws_profile=account.profile)


def _bedrock_for_mantle(endpoints: Mapping[str, str], account: AwsAccount) -> Ask:
    own = endpoints.get("bedrock")
    if own is not None and url_problem(own) is None:
        return Ask("bedrock", control_plane_of(own), region=account.region, aws_profile=account.profile)
    # Whoever stands in for Mantle may stand in for Bedrock's lists too, or not.
    parts = urlsplit(endpoints.get("mantle", ""))
    is_own = not parts.netloc or parts.netloc.endswith(".api.aws")
    root = None if is_own else f"{parts.scheme}://{parts.netloc}"
    return Ask("bedrock", root, region=account.region, aws_profile=account.profile, is_guess=not is_own)
