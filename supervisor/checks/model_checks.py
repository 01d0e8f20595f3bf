"""Models: their wires, their keys, the judge, and what they cost."""

from __future__ import annotations

from contract.config import VENDOR_PROVIDERS, Assignment
from contract.evaluation_records import EvaluatorName
from contract.exploits import EXPLOITS
from supervisor.catalogs.entries import CatalogError
from supervisor.checks.subject import NOT_ASKED, Subject
from supervisor.choices import AWS_PROVIDERS
from supervisor.credentials import KEY_VARIABLES, key_problem
from supervisor.issues import Finding, Issue, did_you_mean

UNPRICED = "unpriced"


def providers(subject: Subject) -> Finding:
    """Each enabled rollout's provider is known by its shape already; an exploit is known by its name."""
    issues = tuple(
        _unknown_exploit(place, entry)
        for place, entry in subject.enabled()
        if entry.provider == "exploit" and entry.model not in EXPLOITS
    )
    used = sorted({entry.provider for _, entry in subject.enabled()})
    return Finding(f"providers: {', '.join(used)}", issues)


def _unknown_exploit(place: str, entry: Assignment) -> Issue:
    hint = f"Use one of {', '.join(EXPLOITS)}.{did_you_mean(entry.model, list(EXPLOITS))}"
    return Issue("exploit_unknown", f"there is no exploit {entry.model!r}", hint, f"{place}.model", entry.rollout_id)


def profiles(subject: Subject) -> Finding:
    """The config's own rows can be used, and each model of a vendor has a profile of its provider."""
    choices = subject.choices
    names = sorted({choice.profile_name for choice in choices.made.values()})
    return Finding(f"profiles: {', '.join(names) or 'none'}", choices.row_issues + choices.entry_issues)


def credentials(subject: Subject) -> Finding:
    """Every key that an enabled rollout needs is in the environment, and can be sent."""
    issues = []
    needed = set()
    for place, entry in subject.enabled():
        variable = KEY_VARIABLES.get(entry.provider)
        if variable is None:
            continue
        needed.add(variable)
        if entry.provider not in subject.keys:
            issues.append(
                Issue(
                    "credential_missing",
                    f"{variable} is not set, and {entry.rollout_id!r} needs it",
                    f"Set {variable} in the environment of this command.",
                    f"{place}.provider",
                    entry.rollout_id,
                )
            )
        elif (problem := key_problem(subject.keys[entry.provider])) is not None:
            message = f"{variable} {problem}, and {entry.rollout_id!r} needs it"
            hint = f"Set {variable} to the key alone."
            issues.append(Issue("credential_invalid", message, hint, f"{place}.provider", entry.rollout_id))
    return Finding(f"needed: {', '.join(sorted(needed)) or 'none'}", tuple(issues))


def aws_account(subject: Subject) -> Finding:
    """Models of AWS have a region, and an account whose credentials can be read."""
    place = next((place for place, entry in subject.enabled() if entry.provider in AWS_PROVIDERS), None)
    if place is None:
        return Finding("no model is paid with an AWS account", skipped=True)
    account = subject.choices.account
    if account is None:
        message = "models of mantle and bedrock need an AWS region, and the config names none"
        hint = 'Add `"aws": {"region": "us-east-1", "profile": null}` with your own region.'
        return Finding(message, (Issue("aws_region_missing", message, hint, "aws.region"),))
    if not subject.may_ask_aws:
        return Finding(NOT_ASKED, skipped=True)
    missing = subject.aws_missing
    if missing is not None:
        field = "aws.profile" if subject.config.aws is not None else "host.profile"
        issue = Issue("aws_credentials_missing", missing.message, missing.hint, field)
        return Finding(missing.message, (issue,))
    return Finding(f"region {account.region}, {f'profile {account.profile!r}' if account.profile else 'default chain'}")


def judge(subject: Subject) -> Finding:
    """The vision judge can be asked: its key, its calibration and its price are there, and its model exists."""
    # Only configs with a judge pay for the import of the scorer.
    from supervisor.judge_admission import calibration_issues, credential_issues, model_issues, price_issues

    config, judge = subject.config, subject.config.judge
    if judge is None:
        return Finding("no judge configured", skipped=True)
    issues = credential_issues(judge, subject.keys)
    if subject.draft.is_usable("evaluator"):
        pinned = EvaluatorName(name=config.evaluator.name, version=config.evaluator.version)
        issues += calibration_issues(judge, subject.root / config.evaluator.gold_cache, pinned)
    if subject.draft.is_usable("pricing"):
        issues += price_issues(judge, config.pricing, subject.prices.table)
    answer = subject.catalogs.get(judge.provider)
    # A list that rollouts need too has its issue already.
    has_been_said = any(entry.provider == judge.provider for _, entry in subject.enabled())
    if not (isinstance(answer, CatalogError) and has_been_said):
        issues += model_issues(judge, answer)
    return Finding(f"judge {judge.judge_id!r}: {judge.provider}/{judge.model}, {judge.repeats} answers", issues)


def pricing(subject: Subject) -> Finding:
    """Each model that costs money has a pinned price, or the operator accepts unknown costs."""
    named = subject.config.pricing
    priced = [(place, entry) for place, entry in subject.enabled() if entry.provider in VENDOR_PROVIDERS]
    if named is None:
        if not priced:
            return Finding("no model costs money", skipped=True)
        hint = f'Name a price table in `pricing`, or write "{UNPRICED}" to accept unknown costs.'
        message = f"{len(priced)} rollouts cost money, but the config names no prices"
        return Finding(message, (Issue("pricing_required", message, hint, "pricing"),))
    if named == UNPRICED:
        return Finding("costs are unknown by choice", _unkept_limits(subject) if priced else ())
    table = subject.prices.table
    if table is None:
        return Finding("the price table cannot be read", subject.prices.issues)
    issues = tuple(
        Issue(
            "price_missing",
            f"the price table has no row {f'{entry.provider}/{entry.model}'!r}",
            f'Add the row to {named}, or write "{UNPRICED}" into `pricing`.',
            f"{place}.model",
            entry.rollout_id,
        )
        for place, entry in priced
        if f"{entry.provider}/{entry.model}" not in table.rows
    )
    return Finding(f"{len(table.rows)} price rows", issues + (_unkept_limits(subject) if issues else ()))


def _unkept_limits(subject: Subject) -> tuple[Issue, ...]:
    """A cost that nobody knows cannot be kept below a limit."""
    if not subject.draft.is_usable("limits"):
        return ()
    limits = subject.config.limits
    return tuple(
        Issue(
            "cost_limit_unpriced",
            f"`limits.{name}` cannot be kept, because not every model has a price",
            f"Give each model a row in the price table, or take `limits.{name}` out.",
            f"limits.{name}",
        )
        for name, limit in (("cost_usd", limits.cost_usd), ("batch_cost_usd", limits.batch_cost_usd))
        if limit is not None
    )
