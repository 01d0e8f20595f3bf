"""Every preflight check in the order of the operator contract, with the config fields that it cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from supervisor.checks import (
    catalog_checks,
    config_checks,
    ec2_checks,
    ec2_parts_checks,
    gold_checks,
    host_checks,
    model_checks,
    output_checks,
    task_checks,
)
from supervisor.checks.subject import Subject
from supervisor.issues import Finding


@dataclass(frozen=True, slots=True)
class Check:
    """One row: it is skipped when a field in `needs` cannot be read."""

    name: str
    run: Callable[[Subject], Finding]
    needs: tuple[str, ...] = ()


_TASKS: Final = ("task_suite", "task_suites_dir", "rollouts")
_HOST: Final = ("host",)

CHECKS: Final[tuple[Check, ...]] = (
    Check("rollout_ids", config_checks.rollout_ids, ("rollouts",)),
    Check("assignments", config_checks.assignments, ("rollouts",)),
    Check("rollout_count", config_checks.rollout_count, ("rollouts", "expected_rollouts")),
    Check("task_suite", task_checks.task_suite, _TASKS),
    Check("task_files", task_checks.task_files, _TASKS),
    Check("oracle_scripts", task_checks.oracle_scripts, (*_TASKS, "limits.actions")),
    Check("replay_scripts", task_checks.replay_scripts, ("rollouts",)),
    Check("broker_version", config_checks.broker_version, ("broker_version",)),
    Check("endpoints", config_checks.endpoints, ("endpoints",)),
    Check("secrets", config_checks.secrets),
    Check("providers", model_checks.providers, ("rollouts",)),
    Check("profiles", model_checks.profiles, ("profiles", "rollouts")),
    Check("credentials", model_checks.credentials, ("rollouts",)),
    Check("aws_account", model_checks.aws_account, ("aws", "host", "rollouts")),
    Check("judge", model_checks.judge, ("judge",)),
    Check("pricing", model_checks.pricing, ("pricing", "rollouts")),
    Check("evaluator", gold_checks.evaluator, ("evaluator", "host.kind", "host.driver")),
    Check("gold_cache", gold_checks.gold_cache, ("evaluator", "rollouts")),
    Check("host_times", ec2_checks.host_times, (*_HOST, "host.boot_s", "host.lease_s")),
    Check("host_driver", ec2_checks.host_driver, (*_HOST, "host.driver")),
    Check("aws_identity", ec2_checks.aws_identity, _HOST),
    Check("clock", ec2_checks.clock, _HOST),
    Check("ami", ec2_checks.ami, (*_HOST, "host.driver")),
    Check("instance_family", ec2_checks.instance_family, _HOST),
    Check("instance_type", ec2_checks.instance_type, _HOST),
    Check("subnets", ec2_parts_checks.subnets, _HOST),
    Check("security_group", ec2_parts_checks.security_group, _HOST),
    Check("instance_profile", ec2_parts_checks.instance_profile, _HOST),
    Check("session_plugin", ec2_parts_checks.session_plugin, _HOST),
    Check("identity_certificate", ec2_parts_checks.identity_certificate, _HOST),
    Check("artifact_bucket", ec2_parts_checks.artifact_bucket, _HOST),
    Check("launch_permission", ec2_checks.launch_permission, _HOST),
    Check("expiry_role", ec2_parts_checks.expiry_role, (*_HOST, "host.expiry_role_arn")),
    Check("quota", ec2_checks.quota, (*_HOST, "max_concurrency", "rollouts")),
    Check("leftovers", ec2_checks.leftovers, (*_HOST, "host.owner")),
    Check("output_folder", output_checks.output_folder),
    Check("run_folder", output_checks.run_folder),
    Check("disk_space", output_checks.disk_space),
    Check("programs", host_checks.programs, ("host.driver",)),
    Check("isolation", host_checks.isolation, ("host.driver", "host.isolation")),
    Check("display", host_checks.display, ("host.driver",)),
    Check("admission", host_checks.admission, ("host.driver", "mode", "max_concurrency", "rollouts")),
    Check("model_catalogs", catalog_checks.direct_models, ("rollouts",)),
    Check("aws_catalogs", catalog_checks.aws_models, ("rollouts",)),
)
