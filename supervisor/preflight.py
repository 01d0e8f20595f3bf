"""All checks in one pass. `run_preflight` reads a config, runs every check that can run, and prepares the batch.

Nothing here launches or writes anything, and no check costs money.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from contract.config import VENDOR_PROVIDERS, Assignment, BatchConfig, Ec2HostConfig, LocalHostConfig
from contract.errors import StateError
from contract.pricing import read_prices
from contract.profiles import Profile
from contract.records import dump_pretty, may_be_file
from supervisor.admission import Admission, admit, host_needs, instance_needs
from supervisor.aws_account import AwsCredentialsMissing, session_for
from supervisor.catalogs.asking import asks_for
from supervisor.catalogs.entries import Catalog, CatalogError
from supervisor.catalogs.reading import read_catalogs
from supervisor.checks.model_checks import UNPRICED
from supervisor.checks.subject import Options, PricesReading, Subject, may_ask_aws
from supervisor.checks.table import CHECKS, Check
from supervisor.checks.task_checks import replay_file
from supervisor.choices import AWS_PROVIDERS, Choices, choose
from supervisor.cloud.facts import Caller, CloudFacts
from supervisor.config_reading import Draft, Reading
from supervisor.credentials import KEY_VARIABLES, key_problem
from supervisor.ec2_preflight import admit_wave, read_certificate, start_plugin, start_reading, wave_of
from supervisor.issues import CheckResult, Finding, Issue, counted, exit_code_of
from supervisor.machine import Machine
from supervisor.prepared import PreparedBatch, PreparedRollout
from supervisor.suite import load_tasks, suites_dir_of


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says instead of the config; null leaves the config's value."""

    mode: str | None = None
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Preflight:
    """The outcome of all checks. `prepared` is there exactly when there is no issue.

    `warnings` are lines for people that are no reason to refuse.
    """

    subject: Subject
    checks: tuple[CheckResult, ...]
    issues: tuple[Issue, ...]
    prepared: PreparedBatch | None
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, 2 (the config cannot be read as one) or 3 (an issue)."""
        return exit_code_of(self.issues)


def run_preflight(
    reading: Reading,
    *,
    options: Options,
    overrides: Overrides,
    keys: Mapping[str, SecretStr],
    machine: Machine,
) -> Preflight:
    """Run every check. `keys` are the provider keys of the environment, by provider."""
    draft = _overridden(reading.draft, overrides)
    subject = _read_all(draft, options=options, keys=keys, machine=machine)
    checks = list(_shape_results(reading))
    issues = list(reading.issues)
    warnings = []
    for check in CHECKS:
        finding = _run(check, subject)
        if finding.issues:
            checks.append(CheckResult(check.name, "failed", f"{counted(len(finding.issues))}; {finding.detail}"))
        else:
            checks.append(CheckResult(check.name, "skipped" if finding.skipped else "ok", finding.detail))
        issues += finding.issues
        warnings += [finding.detail] if finding.warns else []
    prepared = None if issues else _prepare(subject)
    return Preflight(subject, tuple(checks), tuple(issues), prepared, tuple(warnings))


def _overridden(draft: Draft, overrides: Overrides) -> Draft:
    update: dict[str, object] = {}
    if overrides.mode is not None:
        update["mode"] = overrides.mode
    if overrides.max_concurrency is not None:
        update["max_concurrency"] = overrides.max_concurrency
    if not update:
        return draft
    return replace(draft, config=draft.config.model_copy(update=update), unusable=draft.unusable - update.keys())


def _shape_results(reading: Reading) -> tuple[CheckResult, CheckResult]:
    if not reading.is_json:
        skipped = CheckResult("config_fields", "skipped", "the config is not JSON")
        return CheckResult("config_json", "failed", reading.issues[0].message), skipped
    json_issues = [issue for issue in reading.issues if issue.code == "duplicate_key"]
    field_count = len(reading.issues) - len(json_issues)
    json_result = CheckResult("config_json", "failed" if json_issues else "ok", "one JSON object")
    detail = counted(field_count) if field_count else "every field is known and of its type"
    return json_result, CheckResult("config_fields", "failed" if field_count else "ok", detail)


def _run(check: Check, subject: Subject) -> Finding:
    lost = [field for field in check.needs if not subject.draft.is_usable(field)]
    if lost:
        return Finding(f"needs {', '.join(lost)}", skipped=True)
    try:
        return check.run(subject)
    # The plan lists what every other check finds, whatever one of them trips over.
    except Exception as error:  # noqa: BLE001
        message = f"the check {check.name} stopped on {type(error).__name__}: {error}"
        hint = "Run this command with --debug and report what it writes."
        return Finding(message, (Issue("check_failed", message, hint),))


def _read_all(draft: Draft, *, options: Options, keys: Mapping[str, SecretStr], machine: Machine) -> Subject:
    entries = draft.config.rollouts if draft.is_usable("rollouts") else []
    placed = [(draft.place(index), entry) for index, entry in enumerate(entries) if entry.enabled]
    enabled = [entry for _, entry in placed]
    choices = choose(draft, placed)
    cloud, plugin = start_reading(draft, machine), start_plugin(draft, machine)
    aws_missing = _aws_missing(choices, enabled) if may_ask_aws(draft) else None
    catalogs = _read_catalogs(
        draft,
        choices,
        enabled,
        options=options,
        keys=keys,
        has_aws=may_ask_aws(draft) and aws_missing is None,
    )
    facts = cloud()
    wave = wave_of(draft, enabled=len(enabled), resumes=options.resumes, cloud=facts)
    return Subject(
        draft=draft,
        options=options,
        keys=keys,
        machine=machine,
        tasks=load_tasks(draft.config, draft.root, list(dict.fromkeys(entry.task for entry in enabled))),
        prices=_read_prices(draft),
        admission=_admission(draft, enabled, machine),
        choices=choices,
        aws_missing=aws_missing,
        catalogs=catalogs,
        certificate=read_certificate(draft),
        plugin=plugin(),
        cloud=facts,
        wave=wave,
        quota=admit_wave(draft, wave, facts),
    )


def _aws_missing(choices: Choices, enabled: list[Assignment]) -> AwsCredentialsMissing | None:
    if choices.account is None or not any(entry.provider in AWS_PROVIDERS for entry in enabled):
        return None
    try:
        session_for(choices.account.profile)
    except AwsCredentialsMissing as missing:
        return missing
    return None


def _read_catalogs(
    draft: Draft,
    choices: Choices,
    enabled: list[Assignment],
    *,
    options: Options,
    keys: Mapping[str, SecretStr],
    has_aws: bool,
) -> Mapping[str, Catalog | CatalogError]:
    skipped = KEY_VARIABLES.keys() if options.skip_direct_model_check else frozenset()
    wanted: dict[str, list[str]] = {}
    facts: dict[str, Profile] = {}
    for entry in enabled:
        choice = choices.of(entry)
        if choice is not None and entry.provider not in skipped:
            wanted.setdefault(entry.provider, []).append(entry.model)
            facts.setdefault(entry.provider, choice.facts)
    judge = draft.config.judge
    if judge is not None and judge.provider not in skipped:
        wanted.setdefault(judge.provider, []).append(judge.model)
    asks = asks_for(
        wanted,
        facts=facts,
        endpoints=draft.config.endpoints,
        # No header can carry the others, which are issues already.
        keys={provider: key for provider, key in keys.items() if key_problem(key) is None},
        account=choices.account if has_aws else None,
    )
    return read_catalogs(asks)


def _read_prices(draft: Draft) -> PricesReading:
    named = draft.config.pricing
    if named is None or named == UNPRICED:
        return PricesReading(None)
    path = draft.root / named
    if not may_be_file(path):
        hint = f'Name an existing price table in `pricing`, or write "{UNPRICED}".'
        return PricesReading(None, (Issue("pricing_missing", f"the price table {path} is missing", hint, "pricing"),))
    try:
        return PricesReading(read_prices(path))
    except StateError as error:
        hint = "Correct the price table: decimal strings in USD per 1,000,000 tokens."
        return PricesReading(None, (Issue("pricing_invalid", error.message, hint, "pricing"),))


def _admission(draft: Draft, enabled: list[Assignment], machine: Machine) -> Admission | None:
    host, mode = draft.config.host, draft.config.mode
    needed = ("host.driver", "mode", "max_concurrency", "rollouts")
    if not all(draft.is_usable(field) for field in needed):
        return None
    if isinstance(host, LocalHostConfig):
        scripted = any(entry.provider not in VENDOR_PROVIDERS for entry in enabled)
        needs = host_needs(driver=host.driver, mode=mode, scripted=scripted)
    else:
        needs = instance_needs(mode=mode)
    return admit(
        enabled_rollouts=len(enabled),
        max_concurrency=draft.config.max_concurrency,
        capacity=machine.capacity(),
        needs=needs,
        in_use=machine.hosts_in_use(),
    )


def _prepare(subject: Subject) -> PreparedBatch:
    config = _with_absolute_paths(subject.config, subject.root)
    config_bytes = dump_pretty(config)
    assert subject.admission is not None, "fields that cannot be read are issues"
    caller = subject.cloud.caller if isinstance(subject.cloud, CloudFacts) else None
    used = {entry.provider for _, entry in subject.enabled()}
    return PreparedBatch(
        config=config,
        config_bytes=config_bytes,
        config_sha256=hashlib.sha256(config_bytes).hexdigest(),
        root=subject.root,
        mode=config.mode,
        max_concurrency=config.max_concurrency,
        rollouts=tuple(_prepare_rollout(subject, entry) for entry in config.rollouts if entry.enabled),
        gold_dir=Path(config.evaluator.gold_cache),
        prices=subject.prices.table,
        credentials={provider: key for provider, key in subject.keys.items() if provider in used},
        judge_key=subject.keys.get(config.judge.provider) if config.judge else None,
        admission=subject.admission,
        quota=subject.quota,
        identity_certificate=subject.certificate.content,
        account=caller.account if isinstance(caller, Caller) else None,
    )


def _with_absolute_paths(config: BatchConfig, root: Path) -> BatchConfig:
    def absolute(path: str) -> str:
        return str(root / path)

    priced = config.pricing is not None and config.pricing != UNPRICED
    rollouts = [
        entry.model_copy(update={"script": absolute(entry.script)}) if entry.script else entry
        for entry in config.rollouts
    ]
    host = config.host
    if isinstance(host, Ec2HostConfig):
        host = host.model_copy(update={"identity_certificate": absolute(host.identity_certificate)})
    update = {
        "host": host,
        "task_suites_dir": str(suites_dir_of(config, root)),
        "evaluator": config.evaluator.model_copy(update={"gold_cache": absolute(config.evaluator.gold_cache)}),
        "pricing": absolute(config.pricing) if config.pricing and priced else config.pricing,
        "rollouts": rollouts,
    }
    return config.model_copy(update=update)


def _prepare_rollout(subject: Subject, entry: Assignment) -> PreparedRollout:
    loaded = subject.tasks.playable(entry.task)
    assert loaded is not None, "a task without a file is an issue"
    assert loaded.task is not None, "playable tasks are read"
    script = None
    if entry.provider == "oracle" and loaded.task.oracle is not None:
        script = loaded.folder / loaded.task.oracle
    elif entry.provider == "replay" and entry.script is not None:
        script = replay_file(subject.root, entry.script)
    rows = subject.prices.table.rows if subject.prices.table else {}
    choice = subject.choices.of(entry)
    return PreparedRollout(
        assignment=entry,
        task=loaded.task,
        task_dir=loaded.folder.absolute(),
        host_notes=loaded.host_notes,
        script=script.absolute() if script else None,
        price=rows.get(f"{entry.provider}/{entry.model}"),
        profile_name=choice.profile_name if choice else None,
        facts=choice.facts if choice else None,
        endpoint=choice.endpoint if choice else None,
        region=choice.region if choice else None,
    )
