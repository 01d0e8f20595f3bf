"""Receipts: every action list is done once, whatever is repeated, lost or killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.receipts import ReceiptBook
from broker.refusal import Refusal
from contract.broker_api import ErrorBody, ErrorCode, FrameInfo, Receipt, Verdict

DIGEST = "a" * 64
OTHER = "b" * 64
FRAME = FrameInfo(
    sequence=1, sha256="c" * 64, size_bytes=9, width_px=1920, height_px=1080, verdict=Verdict.OK, settle_s=0.1
)


def receipt_of(sequence: int, digest: str = DIGEST) -> Receipt:
    """A receipt of one action."""
    return Receipt(sequence=sequence, digest=digest, performed=1, took_s=0.1, frame=FRAME)


def refusal_of(book: ReceiptBook, sequence: int, digest: str = DIGEST) -> ErrorCode:
    """With which code the sequence is refused."""
    with pytest.raises(Refusal) as caught:
        book.stored("l", sequence, digest)
    return caught.value.code


def test_a_repeated_sequence_gets_its_receipt_again(tmp_path: Path) -> None:
    """An answer that was lost on the way is asked for again, and nothing is done twice."""
    book = ReceiptBook(tmp_path)
    book.begin("l", 1, DIGEST)
    book.finish("l", receipt_of(1))

    assert receipt_of(1).model_copy(update={"is_replay": True}) == book.stored("l", 1, DIGEST)
    assert book.stored("l", 2, DIGEST) is None


def test_other_actions_and_gaps_are_refused(tmp_path: Path) -> None:
    """A sequence number belongs to one list of actions, and none is left out."""
    book = ReceiptBook(tmp_path)
    book.begin("l", 1, DIGEST)
    book.finish("l", receipt_of(1))

    assert refusal_of(book, 1, OTHER) is ErrorCode.DIGEST_MISMATCH
    assert refusal_of(book, 3) is ErrorCode.SEQUENCE_GAP


def test_what_was_begun_and_not_finished_stays_indeterminate_after_a_restart(tmp_path: Path) -> None:
    """The broker died in the middle: nobody may do it again, nor go on after it."""
    book = ReceiptBook(tmp_path)
    book.begin("l", 1, DIGEST)
    book.finish("l", receipt_of(1))
    book.begin("l", 2, DIGEST)
    book.close()

    again = ReceiptBook(tmp_path)

    assert again.stored("l", 1, DIGEST) is not None
    assert refusal_of(again, 2) is ErrorCode.INDETERMINATE
    assert refusal_of(again, 2, OTHER) is ErrorCode.DIGEST_MISMATCH
    assert refusal_of(again, 3) is ErrorCode.INDETERMINATE
    assert again.last_sequence("l") == 2


def test_a_torn_last_line_counts_as_not_written(tmp_path: Path) -> None:
    """A receipt that did not get to the disk whole was never sent."""
    book = ReceiptBook(tmp_path)
    book.begin("l", 1, DIGEST)
    book.finish("l", receipt_of(1))
    book.close()
    path = tmp_path / "receipts.jsonl"
    path.write_bytes(path.read_bytes()[:-20])

    assert refusal_of(ReceiptBook(tmp_path), 1) is ErrorCode.INDETERMINATE


def test_a_failed_desktop_is_told_again(tmp_path: Path) -> None:
    """When the answer `cad_died` is lost, the retry must hear the true cause, not `indeterminate`."""
    book = ReceiptBook(tmp_path)
    book.begin("l", 1, DIGEST)
    book.fail("l", 1, DIGEST, ErrorBody(code=ErrorCode.CAD_DIED, message="gone"))

    assert refusal_of(book, 1) is ErrorCode.CAD_DIED
    assert refusal_of(ReceiptBook(tmp_path), 2) is ErrorCode.CAD_DIED


def test_each_lease_counts_for_itself(tmp_path: Path) -> None:
    """A second rollout on a host begins at 1."""
    book = ReceiptBook(tmp_path)
    book.begin("l", 1, DIGEST)
    book.finish("l", receipt_of(1))

    assert book.stored("m", 1, OTHER) is None
