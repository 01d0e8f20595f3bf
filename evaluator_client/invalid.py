"""Drawings that cannot be scored because of what is in them: complete records of zeros (scoring contract, section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from contract.metadata import Invalid, InvalidCode, Metadata
from evaluator_client.facts import Facts

COORDINATE_MAX: Final = 1e12
ENTITIES_MAX: Final = 200_000


def invalidity(metadata: Metadata, facts: Facts) -> Invalid | None:
    """Why the drawing is invalid, by the evaluator's word or by its own facts; None when it can be scored."""
    if metadata.invalid is not None:
        return metadata.invalid
    if len(metadata.entities) > ENTITIES_MAX:
        return _invalid("too_large", f"the drawing has more than {ENTITIES_MAX} entities")
    for entity in metadata.entities:
        if any(abs(number) > COORDINATE_MAX for number in _numbers(entity.geom)):
            return _invalid("nonfinite_geometry", f"entity {entity.id} lies beyond every drawing")
    if facts.is_empty:
        return _invalid("empty_drawing", "nothing visible in model space can be compared")
    return None


def _invalid(code: InvalidCode, message: str) -> Invalid:
    return Invalid(code=code, message=message)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif hasattr(value, "__dict__"):
        for item in value.__dict__.values():
            yield from _numbers(item)
