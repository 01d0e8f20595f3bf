"""Which profile, address and AWS account each rollout of a vendor's model has, resolved once for every user of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from contract.config import VENDOR_PROVIDERS, Assignment, BatchConfig, Ec2HostConfig
from contract.profiles import (
    KNOWN_MODELS,
    PROFILES,
    BadProfile,
    Profile,
    UnknownProfile,
    base_url,
    custom_profiles,
    nearest,
    profile_of,
)
from supervisor.addresses import url_problem
from supervisor.config_reading import Draft
from supervisor.issues import Issue

AWS_PROVIDERS: Final = frozenset({"mantle", "bedrock"})


@dataclass(frozen=True, slots=True)
class AwsAccount:
    """The account that pays: a region, and a profile's name or null for the default chain."""

    region: str
    profile: str | None


@dataclass(frozen=True, slots=True)
class Choice:
    """How one model is asked. `endpoint` is the complete base URL; `region` is null outside AWS."""

    profile_name: str
    facts: Profile
    endpoint: str
    region: str | None


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices that could be made, by provider, model and profile; and why the others could not.

    `row_issues` are about the config's `profiles`, `entry_issues` about entries of `rollouts`.
    """

    custom: Mapping[str, Profile] = field(default_factory=dict)
    account: AwsAccount | None = None
    made: Mapping[tuple[str, str, str | None], Choice] = field(default_factory=dict)
    row_issues: tuple[Issue, ...] = ()
    entry_issues: tuple[Issue, ...] = ()

    def of(self, entry: Assignment) -> Choice | None:
        """The choice of this entry; null for a scripted model, and for one that has an issue."""
        return self.made.get((entry.provider, entry.model, entry.profile))


def choose(draft: Draft, entries: Sequence[tuple[str, Assignment]]) -> Choices:
    """Resolve `entries`, each with its field path. An entry whose address or region is missing has no choice."""
    config = draft.config
    custom, broken, row_issues = _custom_rows(config) if draft.is_usable("profiles") else ({}, frozenset(), ())
    account = account_of(config) if draft.is_usable("aws") and draft.is_usable("host") else None
    made: dict[tuple[str, str, str | None], Choice] = {}
    issues = []
    for place, entry in entries:
        # A row that cannot be used has its own issue; those who name it need no second one.
        is_lost = entry.profile is not None and (entry.profile in broken or not draft.is_usable("profiles"))
        if entry.provider not in VENDOR_PROVIDERS or is_lost:
            continue
        try:
            name, facts = profile_of(entry.provider, entry.model, entry.profile, custom)
        except UnknownProfile as error:
            issues.append(_profile_issue(place, entry, error, custom))
            continue
        endpoint = config.endpoints.get(entry.provider)
        region = account.region if account is not None and entry.provider in AWS_PROVIDERS else None
        is_reachable = endpoint is None or url_problem(endpoint) is None
        if is_reachable and (region is not None or entry.provider not in AWS_PROVIDERS):
            address = base_url(facts, endpoint=endpoint, region=region)
            made[entry.provider, entry.model, entry.profile] = Choice(name, facts, address, region)
    return Choices(custom, account, made, row_issues, tuple(issues))


def account_of(config: BatchConfig) -> AwsAccount | None:
    """The config's `aws`, or else the account of its EC2 hosts; null when it has neither."""
    if config.aws is not None:
        return AwsAccount(config.aws.region, config.aws.profile)
    if isinstance(config.host, Ec2HostConfig):
        return AwsAccount(config.host.region, config.host.profile)
    return None


def _custom_rows(config: BatchConfig) -> tuple[dict[str, Profile], frozenset[str], tuple[Issue, ...]]:
    """The rows that can be used, the names of the others, and why."""
    rows: dict[str, Profile] = {}
    issues = []
    for name, raw in config.profiles.items():
        try:
            rows |= custom_profiles({name: raw})
        except BadProfile as error:
            where = f"profiles.{error.row}{f'.{error.field}' if error.field else ''}"
            hint = "Correct the row; its fields are those of a profile, and `extends` names a built-in one."
            issues.append(Issue("profile_invalid", f"{where!r} cannot be used: {error.problem}", hint, where))
    return rows, frozenset(config.profiles.keys() - rows.keys()), tuple(issues)


def _profile_issue(place: str, entry: Assignment, error: UnknownProfile, custom: Mapping[str, Profile]) -> Issue:
    if entry.profile is None:
        near = nearest(entry.model, KNOWN_MODELS.get(entry.provider, ()))
        meant = f" Did you mean the model {near!r}?" if near else ""
        return Issue(
            "profile_unknown",
            f"no profile is known for the {entry.provider} model {entry.model!r}",
            f"Name one in `profile`: {', '.join(error.known)}; or add a row to `profiles`.{meant}",
            f"{place}.profile",
            entry.rollout_id,
        )
    owner = {**PROFILES, **custom}.get(entry.profile)
    near = nearest(entry.profile, error.known)
    meant = f" Did you mean {near!r}?" if near else ""
    known = f"Use one of {', '.join(error.known)}, or leave `profile` out for the model's own.{meant}"
    if owner is not None:
        message = f"profile {entry.profile!r} belongs to {owner.provider}, not to {entry.provider}"
        return Issue("profile_wrong_provider", message, known, f"{place}.profile", entry.rollout_id)
    message = f"there is no profile {entry.profile!r}"
    return Issue("profile_unknown", message, known, f"{place}.profile", entry.rollout_id)
