"""How the checks of EC2 hosts come to their facts, and what they say when a question had no answer.

Credentials that AWS refuses and an AWS that nobody reaches are one issue each, however many questions had no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final

from contract.config import Ec2HostConfig
from supervisor.checks.subject import NOT_ASKED, Subject
from supervisor.cloud.facts import CloudFacts, is_unreachable
from supervisor.cloud.families import refusal_of
from supervisor.cloud.ports import CloudError, FaultKind
from supervisor.issues import Finding, Issue

NO_HOST: Final = "no EC2 host"
POLICY_HINT: Final = "Allow it to the caller that `aws_identity` names; docs/iam/controller.json is the least policy."

Ec2Check = Callable[[Subject, Ec2HostConfig], Finding]
AwsCheck = Callable[[Subject, Ec2HostConfig, CloudFacts], Finding]


def for_ec2(check: Ec2Check) -> Callable[[Subject], Finding]:
    """A check that is skipped for hosts of other kinds. It asks nothing of AWS."""

    @wraps(check)
    def run(subject: Subject) -> Finding:
        host = subject.config.host
        return check(subject, host) if isinstance(host, Ec2HostConfig) else Finding(NO_HOST, skipped=True)

    return run


def for_aws(check: AwsCheck) -> Callable[[Subject], Finding]:
    """A check of what AWS answered. It is skipped when AWS answered nothing that could be checked."""

    @wraps(check)
    def run(subject: Subject) -> Finding:
        host = subject.config.host
        if not isinstance(host, Ec2HostConfig):
            return Finding(NO_HOST, skipped=True)
        if not subject.may_ask_aws:
            return Finding(NOT_ASKED, skipped=True)
        facts = subject.cloud
        if not isinstance(facts, CloudFacts):
            return Finding("not asked, because there are no credentials", skipped=True)
        if facts.refusal is not None:
            return Finding("not known, because AWS refuses the credentials", skipped=True)
        if facts.is_out_of_reach:
            return Finding("not known, because AWS cannot be reached", skipped=True)
        return check(subject, host, facts)

    return run


def unread(error: CloudError, field: str) -> Finding:
    """The finding of a question that has no answer."""
    if error.kind is FaultKind.DENIED:
        message = f"{error.action} is denied to us"
        return Finding(message, (Issue("permission_missing", message, POLICY_HINT, field),))
    if is_unreachable(error):
        message = f"{error.action} had no usable answer ({error.code})"
        hint = "Look at this machine's network and at the AWS endpoint of the Region, then plan again."
        return Finding(message, (Issue("cloud_unreachable", message, hint, field),))
    message = one_line(error.message)
    hint = error.hint or "Correct what AWS complains about, then plan again."
    return Finding(message, (Issue("cloud_refused", message, hint, field),))


def can_be_launched(host: Ec2HostConfig) -> bool:
    """False for a type of a family that has an issue already; how it fits to other things does not matter then."""
    return refusal_of(host.instance_type) is None


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())
