"""The broker's one error: a call, or a deed of the desktop, that cannot be done, with the code that the caller gets."""

from __future__ import annotations

from contract.broker_api import ErrorBody, ErrorCode
from contract.errors import BenchError


class Refusal(BenchError):
    """Says no to one call. `code` decides the HTTP status and, at the other end, the cause of a void rollout."""

    def __init__(self, code: ErrorCode, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code

    def body(self) -> ErrorBody:
        """What the caller is answered."""
        return ErrorBody(code=self.code, message=self.message, hint=self.hint)
