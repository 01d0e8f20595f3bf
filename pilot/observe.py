"""What the model is told in words beside the frame. Every provider gets the same words."""

from __future__ import annotations

from typing import Final

from contract.broker_api import Receipt, Verdict
from contract.rollout_records import Limits
from pilot.budgets import Ledger

_OF_VERDICT: Final[dict[Verdict, str]] = {
    Verdict.OK: "",
    Verdict.BLACK: "The screen is black.",
    Verdict.WRONG_SIZE: "The screen does not have its usual size.",
    Verdict.LOCKED: "The screen is locked.",
    Verdict.UNSETTLED: "The screen was still changing when this frame was taken.",
    Verdict.MODAL: "A dialog is open and takes all input.",
}


def at_start(verdict: Verdict, limits: Limits) -> str:
    """For the first turn."""
    return _joined("This is the desktop at the start.", _OF_VERDICT[verdict], _left(limits.actions, limits))


def after_acting(receipt: Receipt, *, asked: int, ledger: Ledger, limits: Limits) -> str:
    """After an ActionBatch of `asked` actions; `ledger` has been charged for it."""
    done = f"All {asked} actions were carried out." if asked > 1 else "The action was carried out."
    if receipt.performed < asked:
        done = f"{receipt.performed} of {asked} actions were carried out."
    return _joined(done, _OF_VERDICT[receipt.frame.verdict], _left(limits.actions - ledger.actions_used, limits))


def after_invalid(reason: str, *, ledger: Ledger, limits: Limits) -> str:
    """After an ActionBatch that was refused whole."""
    return _joined(
        f"Nothing was carried out, because the ActionBatch is invalid: {reason}",
        f"Invalid turns in a row: {ledger.invalid_turns} of {limits.invalid_turns}.",
        _left(limits.actions - ledger.actions_used, limits),
    )


def after_malformed(*, ledger: Ledger, limits: Limits) -> str:
    """After a response without one usable call."""
    return _joined(
        "Nothing was carried out, because the response had no usable computer_action call. Answer with exactly one.",
        f"Such responses in a row: {ledger.malformed_responses} of {limits.malformed_responses}.",
        _left(limits.actions - ledger.actions_used, limits),
    )


def _left(actions: int, limits: Limits) -> str:
    return f"Actions left: {actions} of {limits.actions}."


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
