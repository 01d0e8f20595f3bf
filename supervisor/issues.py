"""What a preflight check finds: issues as data, the closed list of their codes, and the exit code they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal

CheckStatus = Literal["ok", "failed", "skipped"]

# The config cannot be read as a config: exit 2. Every other code is about what a readable config asks for: exit 3.
CONFIG_CODES: Final = frozenset(
    {
        "config_missing",
        "config_not_json",
        "duplicate_key",
        "unknown_field",
        "missing_field",
        "wrong_type",
        "wrong_value",
        "out_of_range",
    }
)
# What is about hosts on EC2.
EC2_CODES: Final = frozenset(
    {
        # The account, and whether it may
        "aws_credentials_refused",
        "clock_skew",
        "cloud_unreachable",
        "cloud_refused",
        "permission_missing",
        "launch_refused",
        "quota_exceeded",
        "expiry_role",
        "boot_longer_than_lease",
        # What an instance is made of
        "ami_missing",
        "ami_not_available",
        "ami_platform",
        "ami_architecture",
        "ami_boot_mode",
        "family_unsupported",
        "instance_type_missing",
        "instance_type_not_on_demand",
        "subnet_missing",
        "subnet_not_available",
        "subnet_zone",
        "subnet_vpc",
        "subnet_full",
        "subnet_addresses",
        "security_group_missing",
        "security_group_inbound",
        "instance_profile_missing",
        "bucket_missing",
        "bucket_region",
        "bucket_forbidden",
        # How it is reached and known
        "session_plugin",
        "certificate_missing",
        "certificate_invalid",
    }
)
PREFLIGHT_CODES: Final = EC2_CODES | frozenset(
    {
        # What the config says about itself
        "duplicate_rollout_id",
        "duplicate_assignment",
        "rollout_count",
        "nothing_enabled",
        "broker_version_unsupported",
        "endpoint_invalid",
        "endpoint_unknown_provider",
        "secret_in_config",
        # Tasks and their suite
        "suite_missing",
        "suite_invalid",
        "suite_mismatch",
        "suite_order",
        "task_missing",
        "task_ambiguous",
        "task_invalid",
        "task_file_missing",
        "task_file_checksum",
        "oracle_missing",
        "oracle_invalid",
        "oracle_over_budget",
        "replay_script_missing",
        "replay_script_invalid",
        # Models, judge and prices
        "exploit_unknown",
        "profile_invalid",
        "profile_unknown",
        "profile_wrong_provider",
        "credential_missing",
        "credential_invalid",
        "aws_region_missing",
        "aws_credentials_missing",
        "catalog_unreachable",
        "catalog_refused",
        "model_unknown",
        "model_inactive",
        "model_needs_profile",
        "model_no_image_input",
        "judge_credential_missing",
        "judge_uncalibrated",
        "judge_unpriced",
        "judge_model_unknown",
        "pricing_required",
        "pricing_missing",
        "pricing_invalid",
        "price_missing",
        "cost_limit_unpriced",
        # Gold
        "cache_missing",
        "cache_checksum",
        "cache_schema",
        "gold_mismatch",
        "evaluator_version_mismatch",
        # Where the output goes
        "output_exists",
        "output_in_run_folder",
        "output_not_writable",
        "disk_space",
        # The run folder of a batch that is to be resumed
        "run_folder_invalid",
        "run_folder_in_use",
        "config_changed",
        # This machine
        "program_missing",
        "no_isolation",
        "no_display",
        "memory_too_small",
        "memory_in_use",
        # A check of ours stopped on something it does not know
        "check_failed",
    }
)


@dataclass(frozen=True, slots=True)
class Issue:
    """One failed check: what is, in one line, and an order that mends it.

    `code` is from `CONFIG_CODES` or `PREFLIGHT_CODES`; `field` is a path into the config, like `rollouts[3].task`.
    """

    code: str
    message: str
    hint: str
    field: str | None = None
    rollout_id: str | None = None

    def __post_init__(self) -> None:
        assert self.code in CONFIG_CODES or self.code in PREFLIGHT_CODES, f"issue code {self.code!r} is not listed"

    def to_json(self) -> dict[str, str]:
        """The issue as the plan document carries it; fields without a value are left out."""
        document = {"code": self.code, "message": self.message, "hint": self.hint}
        if self.field is not None:
            document["field"] = self.field
        if self.rollout_id is not None:
            document["rollout_id"] = self.rollout_id
        return document


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has to say: a line for people, and its issues. A check with issues has failed.

    `skipped` is for a check that has nothing to look at, which is no fault. `warns`: the line is no reason to refuse,
    and people should see it before they spend anything.
    """

    detail: str
    issues: tuple[Issue, ...] = ()
    skipped: bool = False
    warns: bool = False


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One row of the plan's `checks`."""

    name: str
    status: CheckStatus
    detail: str


def exit_code_of(issues: tuple[Issue, ...]) -> int:
    """0 without issues, 2 when the config cannot be read as one, else 3."""
    if not issues:
        return 0
    return 2 if any(issue.code in CONFIG_CODES for issue in issues) else 3


def did_you_mean(word: str, known: list[str]) -> str:
    """` Did you mean 'x'?` for the nearest known word, or nothing."""
    near = get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def few(words: list[str], *, limit: int = 8) -> str:
    """The words with commas, cut after `limit` with a count of the rest."""
    shown = ", ".join(words[:limit])
    return shown if len(words) <= limit else f"{shown} and {len(words) - limit} more"


def counted(count: int) -> str:
    """`1 issue`, `2 issues`."""
    return "1 issue" if count == 1 else f"{count} issues"
