"""The error tree. A class names the boundary that was crossed, because the boundary decides who acts next.

BenchError
├── ConfigError        the operator's input: exit 2
├── PreflightFailed    a check found an issue, nothing was launched: exit 3
├── StateError         a file on disk is missing, torn, or of another schema
├── DiskError          the output disk refused a write (full, read-only)
├── HostError          a host could not be started, handed off or ended
│   ├── HostsRefused   what refuses this host refuses every other: credentials, permissions
│   └── BrokerError    the broker refused a call, or could not be reached
├── PilotError         the pilot ended without saying how
└── EvaluationError    we could not evaluate; never a score of zero
"""

from __future__ import annotations

from contract.phases import Cause


class BenchError(Exception):
    """Says in one line what is, and in `hint` what to do about it.

    `exit_code` is what a command ends with when this error reaches its top: 1 unless a subclass says otherwise.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class ConfigError(BenchError):
    """The operator's input is wrong; `code` and `field` name what."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str, code: str = "config_invalid", field: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.field = field


class PreflightFailed(BenchError):
    """At least one preflight check found an issue. Nothing was launched."""

    exit_code = 3


class StateError(BenchError):
    """A file that we wrote, or should have, cannot be used."""


class DiskError(BenchError):
    """The output disk refused a write."""


class HostError(BenchError):
    """A host failed; `cause` is what the rollout's record says when this ends it."""

    def __init__(self, message: str, *, cause: Cause, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.cause = cause


class HostsRefused(HostError):
    """No further host can be had before the operator has done something; the hosts that there are may be well."""


class BrokerError(HostError):
    """The broker refused a call or could not be reached. `code` is from `broker_api.ErrorCode`."""

    def __init__(self, message: str, *, code: str, cause: Cause, status: int | None = None, hint: str = "") -> None:
        super().__init__(message, cause=cause, hint=hint)
        self.code = code
        self.status = status


class PilotError(BenchError):
    """The pilot ended without a final record, or could not start."""

    def __init__(self, message: str, *, cause: Cause, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.cause = cause


class EvaluationError(BenchError):
    """We could not evaluate. `code` is the failure code of `evaluation/status.json` (scoring contract, section 11)."""

    def __init__(self, message: str, *, code: str, is_retryable: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.is_retryable = is_retryable
