"""Steps 8 and 9 of the admission sequence: the vendors' live lists have every configured model, and it reads images."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.catalogs.entries import CatalogError
from supervisor.catalogs.verdicts import issue_of
from supervisor.checks.subject import NOT_ASKED, Subject
from supervisor.choices import AWS_PROVIDERS
from supervisor.credentials import KEY_VARIABLES
from supervisor.issues import Finding, Issue


def direct_models(subject: Subject) -> Finding:
    """Step 8: models of providers that are asked with a key, where the key is there."""
    if subject.options.skip_direct_model_check:
        return Finding("skipped by --skip-direct-model-check", skipped=True)
    return _finding(subject, KEY_VARIABLES)


def aws_models(subject: Subject) -> Finding:
    """Step 9: models of Mantle and Bedrock. No option skips it."""
    if not subject.may_ask_aws:
        return Finding(NOT_ASKED, skipped=True)
    return _finding(subject, sorted(AWS_PROVIDERS))


def _finding(subject: Subject, providers: Iterable[str]) -> Finding:
    entries = [(place, entry) for place, entry in subject.enabled() if entry.provider in providers]
    if not entries:
        return Finding("no model to look up", skipped=True)
    issues: list[Issue] = []
    said: dict[str, str] = {}
    for place, entry in entries:
        answer = subject.catalogs.get(entry.provider)
        choice = subject.choices.of(entry)
        if answer is None:
            said.setdefault(entry.provider, "not asked")
        elif isinstance(answer, CatalogError):
            # One list that cannot be had is one issue, however many models it would have had.
            if entry.provider not in said:
                issues.append(_catalog_issue(subject, entry.provider, answer, place))
            said[entry.provider] = "no list"
        elif choice is not None:
            said[entry.provider] = f"{len(answer.models)} models"
            found = issue_of(
                answer,
                entry.model,
                choice.facts,
                subject.catalogs,
                field=f"{place}.model",
                rollout_id=entry.rollout_id,
            )
            issues += [found] if found is not None else []
    issues += _bedrock_for_mantle(subject, {entry.provider for _, entry in entries})
    detail = ", ".join(f"{provider}: {words}" for provider, words in said.items())
    was_asked = any(entry.provider in subject.catalogs for _, entry in entries)
    return Finding(detail or "no list was asked", tuple(issues), skipped=not was_asked and not issues)


def _bedrock_for_mantle(subject: Subject, providers: set[str]) -> list[Issue]:
    """Bedrock's list is asked for Mantle's models too; when it cannot be had, somebody has to know."""
    answer = subject.catalogs.get("bedrock")
    if "mantle" not in providers or "bedrock" in providers or not isinstance(answer, CatalogError):
        return []
    return [Issue(answer.code, answer.message, answer.hint, "endpoints.bedrock")]


def _catalog_issue(subject: Subject, provider: str, answer: CatalogError, place: str) -> Issue:
    is_elsewhere = provider in subject.config.endpoints
    field = f"endpoints.{provider}" if is_elsewhere else f"{place}.provider"
    return Issue(answer.code, answer.message, answer.hint, field)
