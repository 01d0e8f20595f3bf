"""What goes wrong between a controller and the cloud, one call at a time, and the journal of what was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["error", "delay", "drop_before", "drop_after", "cut"]

# What changes something or costs something; a dry run of any of them does neither.
MUTATING = frozenset(
    {
        "RunInstances",
        "TerminateInstances",
        "StopInstances",
        "StartInstances",
        "RebootInstances",
        "CreateTags",
        "DeleteTags",
        "StartSession",
        "ResumeSession",
        "TerminateSession",
        "CreateSchedule",
        "DeleteSchedule",
        "PutObject",
        "DeleteObject",
    }
)


# DescribeInstances without filter, id and page size has a smaller bucket of its own.
UNFILTERED = "DescribeInstances without a filter"


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the cloud saw it. `at_s` is monotonic time; `status` is null when no answer went out."""

    at_s: float
    service: str
    action: str
    is_dry_run: bool = False
    client_token: str | None = None
    resources: tuple[str, ...] = ()
    status: int | None = None
    body: bytes = b""

    @property
    def is_mutating(self) -> bool:
        """True for what a plan must never do."""
        return self.action in MUTATING and not self.is_dry_run


@dataclass(frozen=True, slots=True)
class Fault:
    """`drop_after` carries the request out and loses the answer; `drop_before` loses the request.

    `cut` carries it out and ends the connection in the middle of the answer's body.
    """

    kind: Kind
    code: str = "InternalError"
    status: int = 500
    message: str = "An internal error has occurred"
    delay_s: float = 0.0
    spares_dry_runs: bool = False


@dataclass
class Faults:
    """What the next calls meet. `trouble` is asked when nothing was ordered, for chaos that follows a seed.

    Dry runs meet only what was ordered for them too: `trouble` never, and `drop_after` neither, for they carry nothing
    out.
    """

    trouble: Callable[[str], Fault | None] = lambda action: None
    _queued: dict[str, list[Fault]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self,
        action: str,
        kind: Kind = "error",
        *,
        times: int = 1,
        code: str = "InternalError",
        status: int = 500,
        message: str = "An internal error has occurred",
        delay_s: float = 0.0,
        spares_dry_runs: bool = False,
    ) -> None:
        """The next `times` calls of `action` meet this."""
        fault = Fault(kind, code, status, message, delay_s, spares_dry_runs or kind == "drop_after")
        with self._lock:
            self._queued.setdefault(action, []).extend([fault] * times)

    def take(self, action: str, *, is_dry_run: bool = False) -> Fault | None:
        """The fault of the call that is here now."""
        with self._lock:
            queued = self._queued.get(action, [])
            for fault in queued:
                if not (is_dry_run and fault.spares_dry_runs):
                    queued.remove(fault)
                    return fault
            return None if is_dry_run else self.trouble(action)

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        with self._lock:
            self._queued.clear()
            self.trouble = lambda action: None


@dataclass
class Bucket:
    """A token bucket as EC2 throttles with: `size` requests at once, `per_s` more each second."""

    size: float
    per_s: float
    _level: float = -1.0
    _at_s: float = 0.0

    def take(self, now_s: float) -> bool:
        """True when a request passes."""
        if self._level < 0:
            self._level, self._at_s = self.size, now_s
        self._level = min(self.size, self._level + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        if self._level < 1:
            return False
        self._level -= 1
        return True


def buckets_of_ec2() -> dict[str, Bucket]:
    """EC2 API request throttling, per account and Region (EC2 developer guide, "Request throttling")."""
    return {
        "RunInstances": Bucket(5, 2),
        "TerminateInstances": Bucket(100, 5),
        "CreateTags": Bucket(100, 10),
        "DescribeInstances": Bucket(100, 20),
        UNFILTERED: Bucket(50, 10),
    }
