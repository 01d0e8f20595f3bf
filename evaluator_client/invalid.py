"""Which drawings cannot be scored because of what is in them (scoring contract, section 7)."""

from __future__ import annotations

from typing import Final

import numpy as np

from contract.metadata import Invalid, InvalidCode, Metadata
from evaluator_client.facts import Facts
from evaluator_client.tolerances import Array

COORDINATE_MAX: Final = 1e12
ENTITIES_MAX: Final = 200_000


def invalidity(metadata: Metadata, facts: Facts) -> Invalid | None:
    """Why the drawing is invalid, by the evaluator's word or by its own facts; None when it can be scored."""
    if metadata.invalid is not None:
        return metadata.invalid
    if len(metadata.entities) > ENTITIES_MAX:
        return _invalid("too_large", f"the drawing has more than {ENTITIES_MAX} entities")
    if facts.is_empty:
        return _invalid("empty_drawing", "nothing visible in model space can be compared")
    return None


def lies_beyond(facts: Facts, box: tuple[Array, Array]) -> Invalid | None:
    """Whether something lies further out than any drawing goes; `box` is the drawing's reference box."""
    places = [entity.geom.position for entity in facts.points]
    for text in facts.texts:
        places += [text.geom.anchor, text.geom.center]
    for dimension in facts.dimensions:
        places += dimension.geom.points
    array = np.concatenate([np.stack(box), np.array(places, dtype=np.float64).reshape(-1, 3)])
    # Written so that what is no number fails too.
    if np.all(np.abs(array) <= COORDINATE_MAX):
        return None
    return _invalid("nonfinite_geometry", f"a coordinate is larger than {COORDINATE_MAX:g}")


def _invalid(code: InvalidCode, message: str) -> Invalid:
    return Invalid(code=code, message=message)
