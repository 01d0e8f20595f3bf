"""The broker's one error: a call, or a deed of the desktop, that cannot be done, with the code that the caller gets."""

from __future__ import annotations

import logging

from contract.broker_api import ErrorBody, ErrorCode
from contract.errors import BenchError

_log = logging.getLogger(__name__)


class Refusal(BenchError):
    """Says no to one call. `code` decides the HTTP status and, at the other end, the cause of a void rollout."""

    def __init__(self, code: ErrorCode, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code

    def body(self) -> ErrorBody:
        """What the caller is answered."""
        return ErrorBody(code=self.code, message=self.message, hint=self.hint)


def refusal_of(error: Exception) -> Refusal:
    """What the caller is told of an error, whatever it is. One that is our own fault is logged with its traceback."""
    match error:
        case Refusal():
            return error
        case BenchError(message=message, hint=hint):
            return Refusal(ErrorCode.INTERNAL, message, hint=hint)
        case OSError(strerror=str() as why, filename=where):
            hint = "See the host's disk, its rights and its programs (scripts/setup-desktop)."
            return Refusal(ErrorCode.INTERNAL, f"the host's system refused {where or 'a write'}: {why}", hint=hint)
        case _:
            _log.error("a deed failed in a way that it should not", exc_info=error)
            message = f"the broker has a bug: {type(error).__name__}"
            return Refusal(ErrorCode.INTERNAL, message, hint="See the broker's log.")
