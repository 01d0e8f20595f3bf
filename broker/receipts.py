"""Exactly-once hands: what was begun and what was done, on disk before anyone is told.

A line `started` is durable before the first action, a line `receipt` (or `failed`) before the answer. A sequence that
was started and has neither is `indeterminate` for ever: the broker died in the middle, nobody knows how far it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from broker.refusal import Refusal
from contract.broker_api import ErrorBody, ErrorCode, Receipt
from contract.errors import StateError
from contract.records import LineAppender, Record, first_problem, read_lines, sync_folder


class Started(Record):
    """Actions are about to be carried out."""

    kind: Literal["started"] = "started"
    lease_id: str
    sequence: int
    digest: str


class Done(Record):
    """They were, and this is the receipt."""

    kind: Literal["receipt"] = "receipt"
    lease_id: str
    receipt: Receipt


class Failed(Record):
    """The desktop failed under them; a repeated request is told the same."""

    kind: Literal["failed"] = "failed"
    lease_id: str
    sequence: int
    digest: str
    error: ErrorBody


ReceiptLine = Annotated[Started | Done | Failed, Field(discriminator="kind")]
_LINES: Final[TypeAdapter[ReceiptLine]] = TypeAdapter(ReceiptLine)


@dataclass(slots=True)
class _Leased:
    """What one lease has done."""

    receipts: dict[int, Receipt] = field(default_factory=dict)
    open_sequence: int | None = None
    open_digest: str = ""
    error: ErrorBody | None = None


class ReceiptBook:
    """All receipts of one broker's state folder. Used by one thread; `last_sequence` may be asked by any."""

    def __init__(self, state_dir: Path) -> None:
        """Read what an earlier broker on this folder has left, and go on from there.

        Raises `DiskError`, and `StateError` when what is there are no receipts.
        """
        path = state_dir / "receipts.jsonl"
        self._leases: dict[str, _Leased] = {}
        self._lines = LineAppender(path)
        try:
            for line in read_lines(path):
                self._note(_LINES.validate_python(line))
        except ValidationError as error:
            raise StateError(
                f"{path} holds no receipts: {first_problem(error)}",
                hint="It was made by another version or changed by hand; give the broker a fresh state folder.",
            ) from error
        sync_folder(state_dir)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def last_sequence(self, lease_id: str) -> int:
        """The last sequence that was begun under this lease; 0 when none was."""
        leased = self._leases.get(lease_id, _Leased())
        return leased.open_sequence if leased.open_sequence is not None else len(leased.receipts)

    def stored(self, lease_id: str, sequence: int, digest: str) -> Receipt | None:
        """The receipt of a sequence that was done before; None when it is the next to do.

        Raises `Refusal`: `digest_mismatch`, `sequence_gap`, `indeterminate`, or what the desktop failed with.
        """
        leased = self._leases.get(lease_id, _Leased())
        done = leased.receipts.get(sequence)
        if done is not None:
            _demand_same(sequence, digest, done.digest)
            return done.model_copy(update={"is_replay": True})
        if leased.open_sequence is not None:
            raise _not_again(leased, sequence, digest)
        if sequence != len(leased.receipts) + 1:
            raise Refusal(
                ErrorCode.SEQUENCE_GAP,
                f"sequence {sequence} does not follow {len(leased.receipts)}",
                hint=f"Send sequence {len(leased.receipts) + 1}.",
            )
        return None

    def begin(self, lease_id: str, sequence: int, digest: str) -> None:
        """Make it durable that the actions may have begun. Raises `DiskError`, and then nothing may be done."""
        self._write(Started(lease_id=lease_id, sequence=sequence, digest=digest))

    def finish(self, lease_id: str, receipt: Receipt) -> None:
        """Make the receipt durable. Raises `DiskError`; the sequence is indeterminate then."""
        self._write(Done(lease_id=lease_id, receipt=receipt))

    def fail(self, lease_id: str, sequence: int, digest: str, error: ErrorBody) -> None:
        """Make it durable that, and how, the desktop failed."""
        self._write(Failed(lease_id=lease_id, sequence=sequence, digest=digest, error=error))

    def _write(self, line: Started | Done | Failed) -> None:
        self._lines.append(line)
        self._lines.sync()
        self._note(line)

    def _note(self, line: Started | Done | Failed) -> None:
        leased = self._leases.setdefault(line.lease_id, _Leased())
        match line:
            case Started(sequence=sequence, digest=digest):
                leased.open_sequence, leased.open_digest = sequence, digest
            case Done(receipt=receipt):
                leased.receipts[receipt.sequence] = receipt
                leased.open_sequence = None
            case Failed(error=error):
                leased.error = error


def _demand_same(sequence: int, digest: str, known: str) -> None:
    if digest != known:
        raise Refusal(
            ErrorCode.DIGEST_MISMATCH,
            f"sequence {sequence} was begun with other actions",
            hint="A sequence number belongs to one list of actions; a retry repeats both.",
        )


def _not_again(leased: _Leased, sequence: int, digest: str) -> Refusal:
    """Why nothing follows a sequence that was begun and not finished."""
    if sequence == leased.open_sequence:
        _demand_same(sequence, digest, leased.open_digest)
    if leased.error is not None:
        return Refusal(leased.error.code, leased.error.message, hint=leased.error.hint)
    return Refusal(
        ErrorCode.INDETERMINATE,
        f"sequence {leased.open_sequence} was begun and has no receipt",
        hint="Nobody knows how much of it was done; the rollout is void.",
    )
