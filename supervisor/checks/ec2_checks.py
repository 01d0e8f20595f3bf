"""Steps 6 and 7 of the admission sequence: who asks, what is launched, whether we may, and what the quota holds."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from contract.config import Ec2HostConfig
from supervisor.checks import ec2_parts_checks
from supervisor.checks.ec2_answers import (
    POLICY_HINT,
    can_be_launched,
    for_aws,
    for_ec2,
    one_line,
    unread,
)
from supervisor.checks.subject import NOT_ASKED, Subject
from supervisor.cloud.facts import NO_ANSWER, CloudFacts, Image, MachineType, is_unreachable
from supervisor.cloud.families import family_of, refusal_of
from supervisor.cloud.ports import ALIVE, CloudError, FaultKind
from supervisor.hosts.ec2_leftovers import is_expired
from supervisor.hosts.ec2_names import OWNER_TAG
from supervisor.issues import Finding, Issue, did_you_mean, few

# AWS refuses a signature that is 15 minutes off; a clock that is a third of that off is not kept by anything.
CLOCK_SKEW_MAX: Final = timedelta(minutes=5)


@for_ec2
def host_times(subject: Subject, host: Ec2HostConfig) -> Finding:
    """An instance that still boots is not taken for one whose controller is gone."""
    detail = f"boot {host.boot_s:.0f} s, lease {host.lease_s:.0f} s, lifetime {host.lifetime_s:.0f} s"
    if host.boot_s <= host.lease_s:
        return Finding(detail)
    message = (
        f"an instance may boot for {host.boot_s:.0f} s, and shuts itself down after {host.lease_s:.0f} s of silence"
    )
    hint = "Make `lease_s` at least as long as `boot_s`."
    return Finding(detail, (Issue("boot_longer_than_lease", message, hint, "host.boot_s"),))


@for_ec2
def host_driver(subject: Subject, host: Ec2HostConfig) -> Finding:
    """A driver that the broker of this version does not have is told, and is no reason to refuse: images are yours."""
    if host.driver != "autocad":
        return Finding(host.driver)
    detail = (
        "the broker of this version has no AutoCAD driver (docs/image.md): an instance of its image answers "
        "`driver_not_built` and is never handed off; use the driver `librecad` with such an image"
    )
    return Finding(detail, warns=True)


@for_ec2
def aws_identity(subject: Subject, host: Ec2HostConfig) -> Finding:
    """Whose credentials these are; account and ARN stand in the detail."""
    if not subject.may_ask_aws:
        return Finding(NOT_ASKED, skipped=True)
    facts = subject.cloud
    if facts is None:
        return Finding("not asked", skipped=True)
    if not isinstance(facts, CloudFacts):
        account = subject.choices.account
        if subject.aws_missing is not None and account is not None and account.profile == host.profile:
            return Finding("no credentials, as aws_account says", skipped=True)
        issue = Issue("aws_credentials_missing", facts.message, facts.hint, "host.profile")
        return Finding(facts.message, (issue,))
    if facts.refusal is not None:
        return _refused(facts.refusal, facts, host)
    if facts.is_out_of_reach:
        message = f"nothing that AWS was asked in {host.region} was answered"
        hint = "Look at this machine's way to the AWS endpoints of the Region, and at `host.region`."
        return Finding(message, (Issue("cloud_unreachable", message, hint, "host.region"),))
    if isinstance(facts.caller, CloudError):
        return unread(facts.caller, "host.profile")
    return Finding(f"account {facts.caller.account}, {facts.caller.arn}, region {host.region}")


@for_ec2
def clock(subject: Subject, host: Ec2HostConfig) -> Finding:
    """This machine's clock agrees with AWS's, or every signature will be refused sooner or later."""
    facts = subject.cloud
    if not isinstance(facts, CloudFacts) or facts.clock_skew_s is None:
        return Finding("AWS told no time", skipped=True)
    skew_s = facts.clock_skew_s
    detail = f"AWS's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s >= 0 else 'behind'} ours"
    if not _is_off(facts):
        return Finding(detail)
    hint = "Set this machine's clock (NTP), then plan again."
    return Finding(detail, (Issue("clock_skew", detail, hint, "host.region"),))


@for_aws
def ami(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """The image is in this Region, ready, and made for the driver and the instance type."""
    image = facts.image
    if isinstance(image, CloudError):
        return unread(image, "host.ami_id")
    if image is None:
        message = f"there is no image {host.ami_id} in {host.region} that this account can see"
        hint = "An AMI belongs to one Region: name the copy of this Region, or correct `host.region`."
        return Finding(message, (Issue("ami_missing", message, hint, "host.ami_id"),))
    issues = []
    if image.state != "available":
        message = f"image {host.ami_id} is {image.state!r}, not available"
        issues.append(Issue("ami_not_available", message, "Wait for it, or name another image.", "host.ami_id"))
    wants_windows = host.driver == "autocad"
    if image.is_windows != wants_windows:
        message = f"driver {host.driver!r} does not run on {'Windows' if image.is_windows else 'Linux'} images"
        hint = f"Name {'a Windows' if wants_windows else 'a Linux'} image, or correct `host.driver`."
        issues.append(Issue("ami_platform", message, hint, "host.ami_id"))
    if isinstance(facts.machine_type, MachineType) and can_be_launched(host):
        issues += _does_not_boot(host, image, facts.machine_type)
    return Finding(f"{host.ami_id}: {image.state}, {image.architecture}", tuple(issues))


@for_ec2
def instance_family(subject: Subject, host: Ec2HostConfig) -> Finding:
    """The type counts against one of the two quotas that admission knows."""
    refusal = refusal_of(host.instance_type)
    if refusal is None:
        family = family_of(host.instance_type)
        return Finding(f"{host.instance_type} counts against {family.quota_name} ({family.quota_code})")
    hint = "Name a type of the Standard or the G and VT families, for example g6.xlarge."
    return Finding(refusal, (Issue("family_unsupported", refusal, hint, "host.instance_type"),))


@for_aws
def instance_type(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """The Region has the type, on demand."""
    found = facts.machine_type
    if not can_be_launched(host):
        return Finding("its family is not supported", skipped=True)
    if isinstance(found, CloudError):
        return unread(found, "host.instance_type")
    if found is None:
        message = f"there is no instance type {host.instance_type!r} in {host.region}"
        known = [] if isinstance(facts.vcpus, CloudError) else sorted(facts.vcpus)
        hint = f"Correct the name, or use a type that this Region has.{did_you_mean(host.instance_type, known)}"
        return Finding(message, (Issue("instance_type_missing", message, hint, "host.instance_type"),))
    detail = f"{host.instance_type}: {found.vcpus} vCPUs"
    if found.usage_classes and "on-demand" not in found.usage_classes:
        message = f"instance type {host.instance_type!r} is not sold on demand"
        issue = Issue("instance_type_not_on_demand", message, "Use another type.", "host.instance_type")
        return Finding(detail, (issue,))
    return Finding(detail)


@for_aws
def launch_permission(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """A dry run of the launch in every subnet: we may launch exactly this. It proves neither quota nor capacity."""
    refused: dict[tuple[FaultKind, str], list[str]] = {}
    errors: dict[tuple[FaultKind, str], CloudError] = {}
    for subnet_id, error in facts.launches.items():
        if error is not None:
            refused.setdefault((error.kind, error.code), []).append(subnet_id)
            errors.setdefault((error.kind, error.code), error)
    issues: list[Issue] = []
    explained = []
    for key, error in errors.items():
        where = few(refused[key])
        if error.kind is FaultKind.DENIED:
            message = f"ec2:RunInstances is denied to us in {where}, or ec2:CreateTags or iam:PassRole with it"
            issues.append(Issue("permission_missing", message, POLICY_HINT, "host"))
        elif error.code == NO_ANSWER and isinstance(facts.image, CloudError):
            explained.append(f"not asked in {where}, because the image is not known")
        elif is_unreachable(error):
            issues += unread(error, "host").issues
        # Quota and capacity are no matter of permission, and a part that has an issue cannot be launched with.
        elif error.kind in (FaultKind.CAPACITY, FaultKind.QUOTA, FaultKind.SUBNET_FULL) or _is_explained(subject):
            explained.append(f"{error.code} in {where}")
        else:
            message = f"a dry run of the launch in {where} is refused: {one_line(error.message)}"
            hint = error.hint or "Correct what AWS complains about, then plan again."
            issues.append(Issue("launch_refused", message, hint, "host"))
    allowed = sum(error is None for error in facts.launches.values())
    detail = f"allowed in {allowed} of {len(facts.launches)} subnets"
    return Finding(f"{detail}; {', '.join(explained)}" if explained else detail, tuple(issues))


@for_aws
def quota(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """Step 7: the wave fits beside everything else in the quota. AWS still has the last word at each launch."""
    field = "host.instance_type"
    if not can_be_launched(host):
        return Finding("its family is not supported", skipped=True)
    issues: list[Issue] = []
    for answer in (facts.quota, facts.instances):
        if isinstance(answer, CloudError):
            issues += unread(answer, field).issues
    # Sizes are asked for last; when nobody knows whose, there is nothing to say about them.
    is_asked = not isinstance(facts.instances, CloudError) and not _is_late(facts.reservations)
    if is_asked and isinstance(facts.vcpus, CloudError):
        issues += unread(facts.vcpus, field).issues
    unseen = ""
    if isinstance(facts.reservations, CloudError):
        if facts.reservations.kind is FaultKind.DENIED:
            unseen = f"; unused reservations are not counted: {facts.reservations.action} is denied to us"
        else:
            issues += unread(facts.reservations, field).issues
    admitted = subject.quota
    if issues:
        return Finding(f"not known{unseen}", tuple(issues))
    if admitted is None:
        return Finding("the wave or the size of an instance is not known", skipped=True)
    limit = f"{admitted.quota.limit_vcpus} vCPUs of {admitted.quota.code}"
    use = admitted.use
    detail = (
        f"{admitted.needed_vcpus} needed, {admitted.used_vcpus} used (running {use.running_vcpus}, "
        f"pending {use.pending_vcpus}, reserved {use.reserved_vcpus}) of {limit}"
        f"{', which is the default of AWS' if admitted.quota.is_default else ''}{unseen}"
    )
    if use.uncounted_types:
        detail += f"; not counted, because of unknown size: {few(list(use.uncounted_types))}"
    if admitted.admitted == admitted.wanted:
        return Finding(detail)
    message = (
        f"{admitted.wanted} instances of {host.instance_type} need {admitted.needed_vcpus} vCPUs; "
        f"{admitted.used_vcpus} of {limit} are used"
    )
    fitting = admitted.fits + (subject.wave.running if subject.wave is not None else 0)
    lower = f"Set max_concurrency to {fitting}" if fitting else "End instances that use the quota"
    hint = f"{lower}, or ask AWS for a higher quota {admitted.quota.code} in {host.region}."
    return Finding(detail, (Issue("quota_exceeded", message, hint, "max_concurrency"),))


@for_aws
def leftovers(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """Instances of older batches that are past their time are told, and are no reason to refuse."""
    if isinstance(facts.instances, CloudError):
        return Finding("not known", skipped=True)
    ours = [one for one in facts.instances if one.tags.get(OWNER_TAG) == host.owner and one.state in ALIVE]
    expired = sorted(one.instance_id for one in ours if is_expired(one, facts.read_at))
    if not expired:
        return Finding(f"no instance of owner {host.owner!r} is past its time")
    command = "autocad-bench reconcile --all --execute"
    return Finding(f"past their ExpiresAt and still there: {few(expired)}; end them with `{command}`", warns=True)


def _refused(error: CloudError, facts: CloudFacts, host: Ec2HostConfig) -> Finding:
    if _is_off(facts):
        return Finding("AWS refuses signatures of another time, as clock says", skipped=True)
    message = f"AWS refuses the credentials: {error.code} at {error.action}"
    named = f" --profile {host.profile}" if host.profile else ""
    hint = error.hint or f"Get new credentials (`aws sso login{named}` for SSO), or name another profile."
    return Finding(message, (Issue("aws_credentials_refused", message, hint, "host.profile"),))


def _is_off(facts: CloudFacts) -> bool:
    return facts.clock_skew_s is not None and abs(facts.clock_skew_s) > CLOCK_SKEW_MAX.total_seconds()


def _is_late(answer: object) -> bool:
    return isinstance(answer, CloudError) and answer.code == NO_ANSWER


def _does_not_boot(host: Ec2HostConfig, image: Image, machine: MachineType) -> list[Issue]:
    issues = []
    if machine.architectures and image.architecture not in machine.architectures:
        others = few(sorted(machine.architectures))
        message = f"image {host.ami_id} is for {image.architecture}, {host.instance_type} is {others}"
        hint = "Name an instance type of the image's architecture, or another image."
        issues.append(Issue("ami_architecture", message, hint, "host.instance_type"))
    # uefi-preferred boots either way; an image without a mode takes the type's own.
    is_free = image.boot_mode in (None, "uefi-preferred")
    if machine.boot_modes and not is_free and image.boot_mode not in machine.boot_modes:
        message = (
            f"image {host.ami_id} boots by {image.boot_mode}, {host.instance_type} by {few(sorted(machine.boot_modes))}"
        )
        hint = "Name an instance type that boots as the image does, or another image."
        issues.append(Issue("ami_boot_mode", message, hint, "host.instance_type"))
    return issues


def _is_explained(subject: Subject) -> bool:
    """True when a part of the launch has an issue of its own, of which a dry run would only be the echo."""
    parts = (
        ami,
        instance_family,
        instance_type,
        ec2_parts_checks.subnets,
        ec2_parts_checks.security_group,
        ec2_parts_checks.instance_profile,
    )
    return any(part(subject).issues for part in parts)
