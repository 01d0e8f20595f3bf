"""Finds text that speaks to whoever evaluates the drawing (scoring contract, 10.5). It is flagged, never obeyed."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from contract.entities import DimensionEntity, TextEntity
from evaluator_client.annotation import normalised

_PATTERNS: Final = (
    "grader",
    "judge",
    "evaluator",
    "score",
    "full marks",
    "ignore",
    "instruction",
    "system prompt",
    "perfect match",
)


def addresses_evaluator(
    gold: tuple[Sequence[TextEntity], Sequence[DimensionEntity]],
    candidate: tuple[Sequence[TextEntity], Sequence[DimensionEntity]],
) -> bool:
    """Whether a candidate text that the gold lacks, alone or with its neighbours, matches a pattern."""
    known = {normalised(text) for text, _ in _written(*gold)}
    new = [(text, place) for text, place in _written(*candidate) if normalised(text) not in known]
    # In reading order, so that a phrase that was cut into texts is found.
    new.sort(key=lambda item: (-item[1][1], item[1][0], item[0]))
    folded = [unicodedata.normalize("NFKC", text).casefold().split() for text, _ in new]
    spaced = " ".join(" ".join(words) for words in folded)
    closed = "".join("".join(words) for words in folded)
    return any(pattern in spaced or pattern.replace(" ", "") in closed for pattern in _PATTERNS)


def _written(
    texts: Sequence[TextEntity], dimensions: Sequence[DimensionEntity]
) -> list[tuple[str, tuple[float, float, float]]]:
    found = [(entity.geom.text, entity.geom.center) for entity in texts]
    own = [entity.geom for entity in dimensions if entity.geom.text_override]
    return found + [(geom.text_override, geom.text_center or (0.0, 0.0, 0.0)) for geom in own]
