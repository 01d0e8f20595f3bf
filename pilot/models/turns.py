"""The turns of a conversation, read back from where the pilot wrote them, and the files that they show."""

from __future__ import annotations

import hashlib
from pathlib import Path

import orjson
from pydantic import ValidationError

from contract.errors import StateError
from contract.rollout_records import ModelTurn
from pilot.models.body import Image


def read_turns(path: Path, *, first: int, last: int) -> list[ModelTurn]:
    """The lines `first` to `last` of a `model_turns.jsonl`, both included. Lines of later turns are not looked at.

    Raises `StateError` when one is missing, torn, out of order or not what we write.
    """
    turns: list[ModelTurn] = []
    try:
        with path.open("rb") as file:
            for line in file:
                if len(turns) > last - first:
                    break
                turn = _turn_of(line, path, first=first, last=last)
                if turn is not None:
                    turns.append(turn)
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror or error}") from error
    found = [turn.turn for turn in turns]
    if found != list(range(first, last + 1)):
        raise StateError(f"{path} holds the turns {found}, and {first} to {last} are needed")
    return turns


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
