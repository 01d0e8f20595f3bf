"""`layouts`: does each sheet show the model through the same windows at the same scale? (scoring contract, 6.8)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import numpy as np

from contract.metadata import Layout, Viewport
from evaluator_client.assignment import assign

_SCALE_SHARE: Final = 0.02
_SIZE_SHARE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Windows:
    """How many viewports agree, and how many there are."""

    matched: int
    gold_count: int
    candidate_count: int

    @property
    def score(self) -> float:
        """F1 of the viewports that agree."""
        total = self.gold_count + self.candidate_count
        return 2 * self.matched / total if total else 0.0


def compare_layouts(gold: Sequence[Layout], candidate: Sequence[Layout]) -> Windows:
    """Sheets are partners by their order of tabs, their viewports by scale and size; what is off does not count."""
    matched = gold_count = candidate_count = 0
    for ours, theirs in zip_longest(_sheets(gold), _sheets(candidate)):
        our_views, their_views = _views(ours), _views(theirs)
        gold_count += len(our_views)
        candidate_count += len(their_views)
        matched += _agreeing(our_views, their_views, ours)
    return Windows(matched, gold_count, candidate_count)


def _sheets(layouts: Sequence[Layout]) -> list[Layout]:
    return sorted((layout for layout in layouts if layout.kind == "paper"), key=lambda layout: layout.tab_order)


def _views(sheet: Layout | None) -> list[Viewport]:
    return [] if sheet is None else [view for view in sheet.viewports if view.is_on]


def _agreeing(gold: Sequence[Viewport], candidate: Sequence[Viewport], sheet: Layout | None) -> int:
    diagonal = math.hypot(*sheet.paper_size_mm) if sheet is not None else 0.0
    pairs = [
        (i, j) for i, ours in enumerate(gold) for j, theirs in enumerate(candidate) if _agree(ours, theirs, diagonal)
    ]
    if not pairs:
        return 0
    rows, columns = np.array(pairs, dtype=np.int64).T
    return len(assign(rows, columns, np.ones(len(pairs))))


def _agree(gold: Viewport, candidate: Viewport, diagonal: float) -> bool:
    # A sheet without a size: then the window is measured by itself.
    apart_max = _SIZE_SHARE * (diagonal or math.hypot(gold.width, gold.height))
    is_as_large = abs(gold.width - candidate.width) <= apart_max and abs(gold.height - candidate.height) <= apart_max
    if gold.scale is None or candidate.scale is None:
        return is_as_large and gold.scale is candidate.scale
    return is_as_large and abs(gold.scale - candidate.scale) <= _SCALE_SHARE * abs(gold.scale)
