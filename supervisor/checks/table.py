"""Every preflight check in the order of the operator contract, with the config fields that it cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from supervisor.checks import (
    catalog_checks,
    config_checks,
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

CHECKS: Final[tuple[Check, ...]] = (
    Check("rollout_ids", config_checks.rollout_ids, ("rollouts",)),
    Check("assignments", config_checks.assignments, ("rollouts",)),
    Check("rollout_count", config_checks.rollout_count, ("rollouts", "expected_rollouts")),
    Check("task_suite", task_checks.task_suite, _TASKS),
    Check("task_files", task_checks.task_files, _TASKS),
    Check("oracle_scripts", task_checks.oracle_scripts, (*_TASKS, "limits.actions")),
    Check("replay_scripts", task_checks.replay_scripts, ("rollouts",)),
    Check("broker_version", config_checks.broker_version, ("broker_version",)),
    Check("host_kind", config_checks.host_kind, ("host.kind",)),
    Check("endpoints", config_checks.endpoints, ("endpoints",)),
    Check("secrets", config_checks.secrets),
    Check("providers", model_checks.providers, ("rollouts",)),
    Check("profiles", model_checks.profiles, ("profiles", "rollouts")),
    Check("credentials", model_checks.credentials, ("rollouts",)),
    Check("aws_account", model_checks.aws_account, ("aws", "host", "rollouts")),
    Check("judge", model_checks.judge, ("judge",)),
    Check("pricing", model_checks.pricing, ("pricing", "rollouts")),
    Check("evaluator", gold_checks.evaluator, ("evaluator", "host.kind")),
    Check("gold_cache", gold_checks.gold_cache, ("evaluator", "rollouts")),
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
