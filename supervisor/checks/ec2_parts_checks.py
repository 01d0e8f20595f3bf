"""Step 6 of the admission sequence: the things that have to be there before an instance can be launched and reached."""

from __future__ import annotations

from contract.config import Ec2HostConfig
from supervisor.checks.ec2_answers import can_be_launched, for_aws, for_ec2, unread
from supervisor.checks.subject import Subject
from supervisor.cloud.facts import CloudFacts, SecurityGroup, Subnet
from supervisor.cloud.ports import CloudError, FaultKind
from supervisor.issues import Finding, Issue, few


@for_aws
def subnets(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """Each subnet can take instances of the type, and together they have addresses for the whole wave."""
    found = facts.subnets
    if isinstance(found, CloudError):
        return unread(found, "host.subnet_ids")
    issues: list[Issue] = []
    if isinstance(facts.zones, CloudError):
        issues += unread(facts.zones, "host.instance_type").issues
    for index, subnet_id in enumerate(host.subnet_ids):
        field = f"host.subnet_ids[{index}]"
        subnet = found.get(subnet_id)
        if subnet is None:
            message = f"there is no subnet {subnet_id} in {host.region} that this account can see"
            hint = "Name a subnet of this Region and account."
            issues.append(Issue("subnet_missing", message, hint, field))
        else:
            issues += _subnet_issues(subnet_id, subnet, host, facts, field)
    free = sum(subnet.free_addresses for subnet in found.values())
    wave = subject.wave
    detail = f"{len(found)} subnets with {free} free addresses"
    is_complete = all(subnet_id in found for subnet_id in host.subnet_ids)
    if is_complete and wave is not None and 0 < free < wave.new:
        message = f"the subnets have {free} free addresses, the first {wave.new} instances need one each"
        hint = f"Add a subnet, or set max_concurrency to {free + wave.running}."
        issues.append(Issue("subnet_addresses", message, hint, "host.subnet_ids"))
    return Finding(detail, tuple(issues))


@for_aws
def security_group(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """The security group exists and lets nobody in: the way to an instance leads through Session Manager."""
    group = facts.security_group
    if isinstance(group, CloudError):
        return unread(group, "host.security_group_id")
    if group is None:
        message = f"there is no security group {host.security_group_id} in {host.region} that this account can see"
        hint = "Name a security group of this Region and account."
        return Finding(message, (Issue("security_group_missing", message, hint, "host.security_group_id"),))
    detail = f"{host.security_group_id} in {group.vpc_id}"
    if group.inbound_rules == 0:
        return Finding(detail)
    message = f"security group {host.security_group_id} has {group.inbound_rules} inbound rules"
    hint = "Remove them, or name a group without any: nothing has to reach an instance from outside."
    return Finding(detail, (Issue("security_group_inbound", message, hint, "host.security_group_id"),))


@for_aws
def instance_profile(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """The instance profile exists. Without the permission to see it the dry run of the launch must do."""
    found = facts.has_profile
    if isinstance(found, CloudError):
        if found.kind is FaultKind.DENIED:
            return Finding(f"not seen, because {found.action} is denied to us; the dry run uses it all the same")
        return unread(found, "host.instance_profile")
    if found:
        return Finding(host.instance_profile)
    message = f"there is no instance profile {host.instance_profile!r} in this account"
    hint = "Make it (docs/ec2.md says with what), or correct its name; the name of a role is not enough."
    return Finding(message, (Issue("instance_profile_missing", message, hint, "host.instance_profile"),))


@for_ec2
def session_plugin(subject: Subject, host: Ec2HostConfig) -> Finding:
    """The Session Manager plugin of this machine can hold the tunnels."""
    answer = subject.plugin
    assert answer is not None, "it is asked wherever there are EC2 hosts"
    if answer.is_usable:
        return Finding(answer.reason)
    return Finding(answer.reason, (Issue("session_plugin", answer.reason, answer.hint, "host.kind"),))


@for_ec2
def identity_certificate(subject: Subject, host: Ec2HostConfig) -> Finding:
    """The certificate that proves which instance answers can be read and used."""
    from supervisor.hosts.identity import check_certificate

    path = subject.root / host.identity_certificate
    hint = f"Copy the RSA certificate of {host.region} from AWS's page on instance identity documents into this file."
    reading = subject.certificate
    if reading.content is None:
        message = f"the identity certificate {path} cannot be read: {reading.problem}"
        return Finding(message, (Issue("certificate_missing", message, hint, "host.identity_certificate"),))
    problem = check_certificate(reading.content)
    if problem is None:
        return Finding(str(path))
    message = f"the identity certificate {path} cannot be used: {problem}"
    return Finding(message, (Issue("certificate_invalid", message, hint, "host.identity_certificate"),))


@for_aws
def artifact_bucket(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """The bucket exists, in the hosts' Region, and is open to us."""
    bucket = facts.bucket
    field = "host.artifact_bucket"
    name = host.artifact_bucket
    if isinstance(bucket, CloudError):
        return unread(bucket, field)
    if bucket is None:
        message = f"there is no bucket {name!r}"
        return Finding(message, (Issue("bucket_missing", message, f"Make it in {host.region}.", field),))
    # A bucket elsewhere and not ours is most likely somebody else's of the same name: then the Region says nothing.
    if not bucket.is_allowed:
        message = f"the bucket {name!r} exists and is closed to us"
        hint = f"Allow s3:ListBucket, s3:GetObject and s3:PutObject on it, or name a bucket of yours in {host.region}."
        return Finding(message, (Issue("bucket_forbidden", message, hint, field),))
    if bucket.region is not None and bucket.region != host.region:
        message = f"the bucket {name!r} is in {bucket.region}, the hosts are in {host.region}"
        return Finding(message, (Issue("bucket_region", message, f"Name a bucket in {host.region}.", field),))
    return Finding(f"{name} in {bucket.region or 'a Region that AWS does not tell'}")


@for_aws
def expiry_role(subject: Subject, host: Ec2HostConfig, facts: CloudFacts) -> Finding:
    """The role by which AWS ends an instance at its time is of the account that launches it."""
    arn = host.expiry_role_arn
    if arn is None:
        return Finding("no expiry schedule configured", skipped=True)
    if isinstance(facts.caller, CloudError):
        return Finding("the caller is not known", skipped=True)
    _, partition, _, _, account, _ = arn.split(":", 5)
    caller_partition = facts.caller.arn.split(":")[1]
    if (partition, account) == (caller_partition, facts.caller.account):
        return Finding(arn)
    message = f"the role {arn} is not of the account {facts.caller.account} ({caller_partition}) that launches"
    hint = "Name a role of this account, made as docs/iam/expiry-role.json says, or leave `expiry_role_arn` out."
    return Finding(message, (Issue("expiry_role", message, hint, "host.expiry_role_arn"),))


def _subnet_issues(subnet_id: str, subnet: Subnet, host: Ec2HostConfig, facts: CloudFacts, field: str) -> list[Issue]:
    issues = []
    if subnet.state != "available":
        message = f"subnet {subnet_id} is {subnet.state!r}, not available"
        issues.append(Issue("subnet_not_available", message, "Wait for it, or name another subnet.", field))
    # A type that the Region does not have at all has its own issue.
    is_known = can_be_launched(host) and facts.machine_type is not None
    if is_known and not isinstance(facts.zones, CloudError) and subnet.zone not in facts.zones:
        message = f"subnet {subnet_id} is in {subnet.zone}, which does not offer {host.instance_type}"
        where = few(sorted(facts.zones)) or "another Region"
        hint = f"Name a subnet in {where}, or use another instance type."
        issues.append(Issue("subnet_zone", message, hint, field))
    group = facts.security_group
    if isinstance(group, SecurityGroup) and group.vpc_id != subnet.vpc_id:
        message = f"subnet {subnet_id} is in {subnet.vpc_id}, the security group in {group.vpc_id}"
        issues.append(Issue("subnet_vpc", message, "Name subnets and a security group of one VPC.", field))
    if subnet.free_addresses < 1:
        message = f"subnet {subnet_id} has no free address"
        issues.append(Issue("subnet_full", message, "Leave this subnet out, or free addresses in it.", field))
    return issues
