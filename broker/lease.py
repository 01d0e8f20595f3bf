"""The right of one rollout to this broker: one lease at a time, numbered, ended by release or by silence."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.refusal import Refusal
from contract.broker_api import ErrorCode, Lease, LeaseRequest
from contract.records import Record, read_record, write_record

FILE_NAME: Final = "lease.json"


class HeldLease(Record):
    """The lease as it lies on disk, so that a restarted broker knows whom it serves."""

    request_id: str
    lease_id: str
    rollout_id: str
    lease_s: float


class LeaseFile(Record):
    """`lease.json`. `generation` counts the leases given so far; `held` is null after a release."""

    generation: int = 0
    held: HeldLease | None = None
    released_request_ids: tuple[str, ...] = ()


class LeaseBook:
    """The lease and the clock of silence. Any thread may call."""

    def __init__(
        self,
        state_dir: Path,
        *,
        silence_s: float,
        elapsed_s: Callable[[], float] = time.monotonic,
        on_heard: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`silence_s` bounds the silence until there is a lease, which brings its own bound.

        `on_heard` is told at each authenticated call how many seconds of silence are allowed from now on.
        """
        self._path = state_dir / FILE_NAME
        self._lock = threading.Lock()
        self._silence_s = silence_s
        self._orphan_s: float | None = None
        self._elapsed_s = elapsed_s
        self._on_heard = on_heard
        self._heard_at = elapsed_s()
        self._file = read_record(self._path, LeaseFile) if self._path.exists() else LeaseFile()

    @property
    def generation(self) -> int:
        """How many leases were given."""
        return self._file.generation

    @property
    def lease_id(self) -> str | None:
        """The lease that is held now."""
        return self._file.held.lease_id if self._file.held else None

    def heard(self) -> None:
        """An authenticated call has arrived: the silence begins anew, and whoever waits for such calls is told."""
        self.touch()
        self._on_heard(self._bound_s())

    def touch(self) -> None:
        """Begin the silence anew: the broker itself was at work."""
        self._heard_at = self._elapsed_s()

    def orphaned(self, orphan_s: float) -> None:
        """The owner is gone; from now on this much silence is allowed, so that another may take over."""
        self._orphan_s = orphan_s
        self.touch()

    def expires_in_s(self) -> float:
        """How much silence is left; negative when there was too much."""
        return self._bound_s() - (self._elapsed_s() - self._heard_at)

    def grant(self, request: LeaseRequest) -> Lease:
        """Give the lease, or the same one again for the same request. Raises `lease_held`, `lease_unknown`."""
        with self._lock:
            held = self._file.held
            if held is not None and held.request_id == request.request_id:
                return self._reply(held)
            if held is not None:
                raise Refusal(
                    ErrorCode.LEASE_HELD,
                    f"rollout {held.rollout_id!r} holds this host",
                    hint="Take a fresh host; each serves one rollout.",
                )
            if request.request_id in self._file.released_request_ids:
                raise _unknown("the lease of this request was released")
            held = HeldLease(
                request_id=request.request_id,
                lease_id=f"l-{secrets.token_hex(12)}",
                rollout_id=request.rollout_id,
                lease_s=request.lease_s,
            )
            self._store(self._file.model_copy(update={"generation": self._file.generation + 1, "held": held}))
            self._on_heard(self._bound_s())
            return self._reply(held)

    def demand(self, lease_id: str) -> Lease:
        """The lease, if this is the one that is held. Raises `lease_unknown`."""
        with self._lock:
            held = self._file.held
            if held is None or held.lease_id != lease_id:
                raise _unknown(f"lease {lease_id!r} is not held")
            return self._reply(held)

    def release(self, lease_id: str) -> None:
        """Give it back. A lease that is not held any more is no error: the answer to the first release was lost."""
        with self._lock:
            held = self._file.held
            if held is not None and held.lease_id == lease_id:
                released = (*self._file.released_request_ids, held.request_id)
                self._store(self._file.model_copy(update={"held": None, "released_request_ids": released}))

    def _bound_s(self) -> float:
        if self._orphan_s is not None:
            return self._orphan_s
        return self._file.held.lease_s if self._file.held else self._silence_s

    def _store(self, file: LeaseFile) -> None:
        write_record(self._path, file)
        self._file = file

    def _reply(self, held: HeldLease) -> Lease:
        return Lease(
            lease_id=held.lease_id,
            generation=self._file.generation,
            rollout_id=held.rollout_id,
            expires_in_s=round(max(0.0, self.expires_in_s()), 3),
        )


def _unknown(message: str) -> Refusal:
    return Refusal(ErrorCode.LEASE_UNKNOWN, message, hint="Take the lease again; it may have expired.")
