"""What a cloud host is told at its launch, in its user data: everything but a secret.

Every process of the instance can read user data, and so can whoever may describe the instance: the token itself never
stands there, only its SHA-256.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from contract.broker_api import Name, Sha256
from contract.errors import StateError
from contract.records import Record, first_problem

# The line of the user data that the broker reads; for every shell it is a comment.
START_MARK: Final = "# autocad-bench-start: "
# EC2 refuses longer user data (API reference, RunInstances: 16 KB before base64).
USER_DATA_BYTES_MAX: Final = 16_384


class GuestStart(Record):
    """How the broker of an instance starts. Times are seconds.

    `lease_s` bounds the silence of the controller, `lifetime_s` the whole life of the instance: whichever is over first
    shuts it down, and shutting down terminates it.
    """

    schema_: Annotated[Literal["autocad-bench.guest-start/1"], Field(alias="schema")] = "autocad-bench.guest-start/1"
    host_id: Name
    token_sha256: Sha256
    driver: Literal["autocad", "librecad", "paper"]
    port: Annotated[int, Field(ge=1, le=65_535)]
    lease_s: Annotated[float, Field(gt=0)]
    lifetime_s: Annotated[float, Field(gt=0)]


def start_line(start: GuestStart) -> str:
    """The marked line, without a newline."""
    return START_MARK + start.model_dump_json(by_alias=True)


def read_guest_start(user_data: str) -> GuestStart:
    """The start that stands in some user data. Raises `StateError` when there is none or it is not one of ours."""
    lines = [line for line in user_data.splitlines() if line.startswith(START_MARK)]
    hint = "Launch the instance with autocad-bench-batch; its user data is not for other uses."
    if len(lines) != 1:
        raise StateError(f"the user data has {len(lines)} start lines, not one", hint=hint)
    try:
        return GuestStart.model_validate_json(lines[0].removeprefix(START_MARK))
    except ValidationError as error:
        raise StateError(f"the start line of the user data is wrong: {first_problem(error)}", hint=hint) from error
