"""`structure`: is it organised the same way? Layers, colours and linetypes of matched objects (section 6.9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evaluator_client.strokes import Ints
from evaluator_client.tolerances import Array

_LAYER: Final = 0.5
_COLOUR: Final = 0.2
_LINETYPE: Final = 0.2
_UNITS: Final = 0.1
# What a text, a dimension or a body weighs.
OBJECT_WEIGHT: Final = 2.0


@dataclass(frozen=True, slots=True)
class Pairing:
    """Partners of one kind: their looks (n, 3), the weight of each pair, and what all pairs are divided by."""

    gold_look: Ints
    candidate_look: Ints
    weight: Array
    denominator: float


@dataclass(frozen=True, slots=True)
class Structure:
    """Shares of the weight whose layer, colour or linetype is right, and the score made of them."""

    score: float
    layer: float
    colour: float
    linetype: float
    has_units: bool


def compare_structure(pairings: Sequence[Pairing], *, has_units: bool) -> Structure:
    """Weigh all partners of all kinds together; without partners nothing is earned."""
    denominator = sum(pairing.denominator for pairing in pairings)
    if not denominator:
        return Structure(0.0, 0.0, 0.0, 0.0, has_units)
    same = np.zeros(3)
    matched = 0.0
    for pairing in pairings:
        same += pairing.weight @ (pairing.gold_look == pairing.candidate_look)
        matched += float(pairing.weight.sum())
    layer, colour, linetype = (float(value) for value in same / denominator)
    score = _LAYER * layer + _COLOUR * colour + _LINETYPE * linetype
    score += _UNITS * (matched / denominator) * has_units
    return Structure(score, layer, colour, linetype, has_units)
