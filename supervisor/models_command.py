"""`models`: the vendors' live lists, what reads images, and whether the models of a config are there."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

from pydantic import SecretStr, ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from contract.config import VENDOR_PROVIDERS, Assignment, AwsConfig
from contract.errors import ConfigError
from contract.profiles import KNOWN_MODELS, PROFILES, Profile, UnknownProfile, profile_of
from contract.redaction import redact
from supervisor.aws_account import AwsCredentialsMissing, session_for
from supervisor.catalogs.asking import asks_for
from supervisor.catalogs.entries import Catalog, CatalogError, ListedModel
from supervisor.catalogs.reading import read_catalogs
from supervisor.catalogs.verdicts import Answers, find, images_of, issue_of
from supervisor.choices import AWS_PROVIDERS, AwsAccount, Choices, account_of, choose
from supervisor.config_reading import Draft, read_config
from supervisor.credentials import KEY_VARIABLES, keys_in
from supervisor.entry import EXIT_FAILED, Session
from supervisor.issues import CONFIG_CODES, Issue

MODELS_SCHEMA: Final = "autocad-bench.models/1"
EXIT_ISSUE: Final = 3
_IMAGE_WORDS: Final = {True: "yes", False: "no", None: "unknown"}


@dataclass(frozen=True, slots=True)
class _Config:
    """What a config adds: its models, and how its providers are reached."""

    entries: tuple[tuple[str, Assignment], ...] = ()
    choices: Choices = field(default_factory=Choices)
    endpoints: Mapping[str, str] = field(default_factory=dict)


def run_models(
    session: Session,
    *,
    region: str | None,
    providers: Sequence[str],
    config_path: Path | None,
    as_json: bool,
) -> int:
    """Print the lists and return the exit code: 3 for a configured model that cannot play, 1 for a list not had.

    Without `providers` every vendor is asked for whom there is a credential. `region` outranks the config's, and that
    the environment's. Raises `ConfigError` for a region that is none and a config that cannot be read as one.
    """
    keys = keys_in(session.environment)
    given = _checked_region(region)
    config = _read(config_path, given) if config_path is not None else _Config()
    account = config.choices.account or _account_of(given, session.environment)
    asked = list(providers) or list(VENDOR_PROVIDERS)
    skipped = _skipped(asked, keys=keys, account=account)
    answers = read_catalogs(
        asks_for(
            {name: _wanted(config, name) for name in asked if name not in skipped},
            facts={name: facts for name in asked if (facts := _facts(config, name)) is not None},
            endpoints=config.endpoints,
            keys=keys,
            account=account,
        )
    )
    issues = _issues(config, answers, asked)
    document = {
        "schema": MODELS_SCHEMA,
        "ok": not issues and not _failed(answers, skipped, required=providers),
        "region": account.region if account is not None else None,
        "providers": [_provider(name, answers, skipped, config) for name in asked],
        "issues": [issue.to_json() for issue in issues],
    }
    if as_json or not sys.stdout.isatty():
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(redact(text, keys.values()) + "\n")
    else:
        _print(document, sys.stdout, keys)
    if issues:
        return EXIT_ISSUE
    return EXIT_FAILED if _failed(answers, skipped, required=providers) else 0


def _read(path: Path, region: AwsConfig | None) -> _Config:
    reading = read_config(path)
    wrong = next((issue for issue in reading.issues if issue.code in CONFIG_CODES), None)
    if wrong is not None:
        raise ConfigError(wrong.message, hint=wrong.hint, code=wrong.code, field=wrong.field)
    draft = _in_region(reading.draft, region)
    # Disabled entries too: somebody wants to know before enabling them.
    entries = tuple((draft.place(index), entry) for index, entry in enumerate(draft.config.rollouts))
    return _Config(entries, choose(draft, entries), draft.config.endpoints)


def _checked_region(region: str | None) -> AwsConfig | None:
    if region is None:
        return None
    try:
        return AwsConfig(region=region)
    except ValidationError:
        hint = "Give a region like us-east-1."
        raise ConfigError(f"--region {region!r} is no AWS region", hint=hint, field="aws.region") from None


def _account_of(given: AwsConfig | None, environment: Mapping[str, str]) -> AwsAccount | None:
    if given is not None:
        return AwsAccount(given.region, None)
    # The variables of the AWS tools, the newer one first.
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    found = _checked_region(region) if region else None
    return AwsAccount(found.region, None) if found is not None else None


def _in_region(draft: Draft, given: AwsConfig | None) -> Draft:
    if given is None:
        return draft
    known = account_of(draft.config)
    aws = given.model_copy(update={"profile": known.profile if known is not None else None})
    return replace(draft, config=draft.config.model_copy(update={"aws": aws}))


def _skipped(asked: Sequence[str], *, keys: Mapping[str, SecretStr], account: AwsAccount | None) -> dict[str, str]:
    """Who cannot be asked, and why."""
    skipped = {}
    for name in asked:
        if name not in AWS_PROVIDERS and name not in keys:
            skipped[name] = f"{KEY_VARIABLES[name]} is not set"
    aws = [name for name in asked if name in AWS_PROVIDERS]
    if aws and account is None:
        skipped |= dict.fromkeys(aws, "no AWS region: give --region, or --config with `aws`")
    elif aws and account is not None:
        try:
            session_for(account.profile)
        except AwsCredentialsMissing as missing:
            skipped |= dict.fromkeys(aws, f"{missing.message}. {missing.hint}")
    return skipped


def _wanted(config: _Config, provider: str) -> list[str]:
    configured = [entry.model for _, entry in config.entries if entry.provider == provider]
    # Lists leave routers out; those that are known here are looked up all the same.
    return configured + list(KNOWN_MODELS[provider]) if provider == "fireworks" else configured


def _facts(config: _Config, provider: str) -> Profile | None:
    made = (config.choices.of(entry) for _, entry in config.entries if entry.provider == provider)
    return next((choice.facts for choice in made if choice is not None), None)


def _failed(answers: Answers, skipped: Mapping[str, str], *, required: Sequence[str]) -> bool:
    """A list that should have been had was not; one without a credential only when it was asked for by name."""
    return any(isinstance(answer, CatalogError) for answer in answers.values()) or any(
        name in skipped for name in required
    )


def _issues(config: _Config, answers: Answers, asked: Sequence[str]) -> list[Issue]:
    issues = list(config.choices.row_issues + config.choices.entry_issues)
    for place, entry in config.entries:
        answer = answers.get(entry.provider)
        choice = config.choices.of(entry)
        if entry.provider in asked and choice is not None and isinstance(answer, Catalog):
            found = issue_of(
                answer, entry.model, choice.facts, answers, field=f"{place}.model", rollout_id=entry.rollout_id
            )
            issues += [found] if found is not None else []
    return issues


def _provider(name: str, answers: Answers, skipped: Mapping[str, str], config: _Config) -> dict[str, Any]:
    answer = answers.get(name)
    if isinstance(answer, Catalog):
        listed = sorted(answer.models.values(), key=lambda model: model.model)
        used: dict[str, list[str]] = {}
        facts: dict[str, Profile] = {}
        for _, entry in config.entries:
            choice = config.choices.of(entry)
            if entry.provider == name and choice is not None:
                used.setdefault(entry.model, []).append(entry.rollout_id)
                facts[entry.model] = choice.facts
        models = [_model(answer, model, answers, used, facts) for model in listed]
        return {"provider": name, "status": "ok", "detail": f"{len(models)} models", "models": models}
    if isinstance(answer, CatalogError):
        return {"provider": name, "status": "failed", "detail": f"{answer.message}. {answer.hint}", "models": []}
    reason = skipped.get(name, f"`endpoints.{name}` cannot be used")
    return {"provider": name, "status": "skipped", "detail": reason, "models": []}


def _model(
    catalog: Catalog,
    listed: ListedModel,
    answers: Answers,
    used: Mapping[str, list[str]],
    configured: Mapping[str, Profile],
) -> dict[str, Any]:
    facts = configured.get(listed.model) or _default_facts(catalog.provider, listed)
    images = images_of(find(catalog, listed.model), listed.model, facts, answers)
    return {
        "model": listed.model,
        "image_input": images.reads,
        "image_source": images.source,
        "state": listed.state,
        "needs_profile": listed.needs_profile,
        "base_model": listed.base,
        "rollouts": used.get(listed.model, []),
    }


def _default_facts(provider: str, listed: ListedModel) -> Profile:
    try:
        return profile_of(provider, listed.model)[1]
    except UnknownProfile:
        # Nothing is pinned about it; a row of its provider says where else to look.
        return next(row for row in PROFILES.values() if row.provider == provider).model_copy(
            update={"reads_images": None}
        )


def _print(document: Mapping[str, Any], stream: IO[str], keys: Mapping[str, SecretStr]) -> None:
    console = Console(file=stream, highlight=False)
    table = Table("provider", "model", "images", "notes", "rollouts")
    for provider in document["providers"]:
        for model in provider["models"]:
            notes = [model["state"] or "", "only by inference profile" if model["needs_profile"] else ""]
            notes.append(f"leads to {model['base_model']}" if model["base_model"] else "")
            table.add_row(
                provider["provider"],
                escape(model["model"]),
                _IMAGE_WORDS[model["image_input"]],
                escape(", ".join(note for note in notes if note)),
                str(len(model["rollouts"]) or ""),
            )
    console.print(table)
    for provider in document["providers"]:
        console.print(escape(redact(f"{provider['provider']}: {provider['detail']}", keys.values())), soft_wrap=True)
    for issue in document["issues"]:
        line = f"{issue.get('field', '')}: {issue['message']}. {issue['hint']}"
        console.print(escape(redact(line, keys.values())), soft_wrap=True)
