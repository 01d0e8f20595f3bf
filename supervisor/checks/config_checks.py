"""What a readable config says about itself: counts, names, versions, addresses, and no secrets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from contract.broker_api import SUPPORTED_BROKER_VERSIONS
from contract.config import VENDOR_PROVIDERS
from supervisor.addresses import url_problem
from supervisor.checks.subject import Subject
from supervisor.credentials import KEY_VARIABLES, SECRET_CHARS_MIN
from supervisor.issues import Finding, Issue, did_you_mean


def rollout_ids(subject: Subject) -> Finding:
    """Every entry has an id of its own, the disabled and the unreadable ones too."""
    seen: dict[str, int] = {}
    issues = []
    entries = subject.draft.document["rollouts"]
    for index, entry in enumerate(entries):
        rollout_id = entry.get("rollout_id") if isinstance(entry, dict) else None
        if not isinstance(rollout_id, str):
            continue
        first = seen.setdefault(rollout_id, index)
        if first != index:
            issues.append(
                Issue(
                    "duplicate_rollout_id",
                    f"rollout_id {rollout_id!r} stands at rollouts[{first}] and again at rollouts[{index}]",
                    "Give each entry in `rollouts` its own rollout_id.",
                    f"rollouts[{index}].rollout_id",
                    rollout_id,
                )
            )
    return Finding(f"{len(seen)} rollout ids", tuple(issues))


def assignments(subject: Subject) -> Finding:
    """No two entries pair the same task with the same provider, model and profile, enabled or not."""
    seen: dict[tuple[str, str, str, str | None], str] = {}
    issues = []
    for index, entry in enumerate(subject.config.rollouts):
        key = (entry.task, entry.provider, entry.model, entry.profile)
        if key not in seen:
            seen[key] = entry.rollout_id
            continue
        profile = f" (profile {entry.profile!r})" if entry.profile else ""
        model = f"{entry.provider}/{entry.model}{profile}"
        issues.append(
            Issue(
                "duplicate_assignment",
                f"{entry.rollout_id!r} and {seen[key]!r} both play task {entry.task!r} with {model}",
                "Keep one of them; an assignment is played once in a batch.",
                subject.draft.place(index),
                entry.rollout_id,
            )
        )
    return Finding(f"{len(seen)} assignments", tuple(issues))


def rollout_count(subject: Subject) -> Finding:
    """As many entries are enabled as the config expects; fewer only when the operator says so."""
    enabled = sum(1 for _ in subject.enabled()) + subject.draft.unreadable_enabled
    expected = subject.config.expected_rollouts
    detail = f"{enabled} enabled, {expected} expected"
    if enabled == 0:
        issue = Issue("nothing_enabled", "no rollout is enabled", "Enable at least one entry.", "rollouts")
        return Finding(detail, (issue,))
    if enabled == expected or (enabled < expected and subject.options.allow_partial):
        return Finding(detail)
    hint = "Correct `expected_rollouts` or the enabled entries"
    hint += ", or pass --allow-partial for a deliberately smaller batch." if enabled < expected else "."
    message = f"{enabled} rollouts are enabled, but `expected_rollouts` is {expected}"
    return Finding(detail, (Issue("rollout_count", message, hint, "expected_rollouts"),))


def broker_version(subject: Subject) -> Finding:
    """The broker on the host speaks a version that we speak too."""
    version = subject.config.broker_version
    if version in SUPPORTED_BROKER_VERSIONS:
        return Finding(f"broker {version}")
    supported = ", ".join(sorted(SUPPORTED_BROKER_VERSIONS))
    message = f"broker_version {version!r} is not supported; supported: {supported}"
    hint = "Use a host whose broker has a supported version and write that version into the config."
    return Finding(message, (Issue("broker_version_unsupported", message, hint, "broker_version"),))


def endpoints(subject: Subject) -> Finding:
    """Other base URLs belong to known vendors, are encrypted or loopback, and carry no secret."""
    issues = []
    for provider, url in subject.config.endpoints.items():
        field = f"endpoints.{provider}"
        if provider not in VENDOR_PROVIDERS:
            known = sorted(VENDOR_PROVIDERS)
            hint = f"Use one of {', '.join(known)}.{did_you_mean(provider, known)}"
            issues.append(
                Issue("endpoint_unknown_provider", f"endpoints names {provider!r}, which is no vendor", hint, field)
            )
        problem = url_problem(url)
        if problem:
            hint = "Give an https URL, or http on a loopback address, without user, query or fragment."
            issues.append(Issue("endpoint_invalid", f"the endpoint of {provider!r} {problem}", hint, field))
    return Finding(f"{len(subject.config.endpoints)} endpoints", tuple(issues))


def secrets(subject: Subject) -> Finding:
    """No string of the config is or holds a key from the environment: the config is copied into the run folder."""
    found = defaultdict(list)
    for provider, key in subject.keys.items():
        value = key.get_secret_value()
        if len(value) >= SECRET_CHARS_MIN:
            found[value].append(KEY_VARIABLES[provider])
    issues = []
    for field, text in _strings(subject.draft.document, ""):
        variables = [name for value, names in found.items() if value in text for name in names]
        if variables:
            message = f"{field!r} holds the value of {variables[0]}"
            hint = "Take the key out of the config; it is read from the environment only."
            issues.append(Issue("secret_in_config", message, hint, field))
    return Finding("no key in the config" if not issues else "a key stands in the config", tuple(issues))


def _strings(value: object, field: str) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield field, value
        case dict():
            for name, item in value.items():
                yield from _strings(item, f"{field}.{name}" if field else name)
                yield field or "document", name
        case list():
            for index, item in enumerate(value):
                yield from _strings(item, f"{field}[{index}]")
        case _:
            return
