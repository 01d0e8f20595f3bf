"""The turns of a conversation, read back from where the pilot wrote them, and the files that they show."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import orjson
from pydantic import ValidationError

from contract.errors import StateError
from contract.rollout_records import ModelTurn
from pilot.models.body import Image


def read_turns(path: Path, *, first: int, last: int) -> Iterator[ModelTurn]:
    """The lines `first` to `last` of a `model_turns.jsonl`, both included, one at a time.

    Lines of later turns are not looked at. Raises `StateError` when one is missing, torn, out of order or not what we
    write.
    """
    wanted = first
    try:
        with path.open("rb") as file:
            for line in file:
                if wanted > last:
                    return
                turn = _turn_of(line, path, first=first, last=last)
                if turn is None:
                    continue
                if turn.turn != wanted:
                    break
                yield turn
                wanted += 1
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror or error}") from error
    if wanted <= last:
        raise StateError(f"turn {wanted} is missing in {path}, or is not in its place")


def check_image(image: Image) -> None:
    """Raise `StateError` unless the file is there, byte for byte."""
    if hashlib.sha256(image.png()).hexdigest() != image.artifact.sha256:
        raise StateError(f"{image.root / image.artifact.path} does not have the checksum that the trace names")


def _turn_of(line: bytes, path: Path, *, first: int, last: int) -> ModelTurn | None:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        # What a killed writer left. If its turn is needed, it will be missed.
        return None
    number = fields.get("turn") if isinstance(fields, dict) else None
    if not isinstance(number, int) or not first <= number <= last:
        return None
    try:
        return ModelTurn.model_validate(fields)
    except ValidationError as error:
        raise StateError(
            f"{path}: turn {number} is not a record of this version: {error.errors()[0]['msg']}"
        ) from error
