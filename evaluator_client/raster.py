"""`raster`: does it look the same? Ink compared by distance, never by counting equal pixels (section 6.10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evaluator_client.renders import Mask
from evaluator_client.tolerances import Array

_FULL_PX: Final = 1.0
_NONE_SHARE: Final = 0.008


@dataclass(frozen=True, slots=True)
class Raster:
    """F1 of how well each side's ink is covered by the other's."""

    score: float
    precision: float
    recall: float


def compare_ink(gold: Mask, *, from_gold: Array, from_candidate: Array) -> Raster:
    """`from_gold` are the distances of the gold's ink to the candidate's, `from_candidate` the other way."""
    none_px = _NONE_SHARE * float(np.hypot(*gold.shape))
    recall, precision = _covered(from_gold, none_px), _covered(from_candidate, none_px)
    total = recall + precision
    return Raster(2 * recall * precision / total if total else 0.0, precision, recall)


def _covered(distance: Array, none_px: float) -> float:
    if not len(distance):
        return 0.0
    return float(np.clip((none_px - distance) / (none_px - _FULL_PX), 0.0, 1.0).mean())
