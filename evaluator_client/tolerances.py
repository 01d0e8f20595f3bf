"""Lengths that decide what counts as equal, as near, and as wrong, scaled by the gold (scoring contract, 6.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from contract.gold import GoldTolerances

Array = NDArray[np.float64]

# Shares of the gold's diagonal.
TAU0_SHARE: Final = 0.0005
TAU1_SHARE: Final = 0.01
EPSILON_SHARE: Final = 1e-6
DEGENERATE_SHARE: Final = 1e-7
# The gold is never sampled at more points than this.
SAMPLES_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Tolerances:
    """All in drawing units. `tau0`: full credit up to here; `tau1`: none from here; `h`: sampling step."""

    diagonal: float
    tau0: float
    tau1: float
    h: float

    @property
    def epsilon(self) -> float:
        """Coordinates this close are the same."""
        return EPSILON_SHARE * self.diagonal

    @property
    def degenerate(self) -> float:
        """A curve of at most this length is no curve."""
        return DEGENERATE_SHARE * self.diagonal

    def credit(self, distance: Array) -> Array:
        """1 up to tau0, 0 from tau1, linear between."""
        credit: Array = np.clip((self.tau1 - distance) / (self.tau1 - self.tau0), 0.0, 1.0)
        return credit

    def for_length(self, gold_length: float) -> Tolerances:
        """The same with the sampling step for a gold of this total length."""
        return replace(self, h=max(self.tau1 / 2, gold_length / SAMPLES_MAX))


def row_dots(a: Array, b: Array) -> Array:
    """Scalar product of each row (..., 3) of `a` with that of `b`; far faster than a general product for three."""
    dots: Array = a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1] + a[..., 2] * b[..., 2]
    return dots


def row_lengths(a: Array) -> Array:
    """Length of each row (..., 3)."""
    lengths: Array = np.sqrt(row_dots(a, a))
    return lengths


def tolerances_for(diagonal: float, shares: GoldTolerances | None) -> Tolerances:
    """Tolerances for a gold of this diagonal; `shares` are a task's own."""
    tau0 = (shares.tau0 if shares else TAU0_SHARE) * diagonal
    tau1 = (shares.tau1 if shares else TAU1_SHARE) * diagonal
    return Tolerances(diagonal=diagonal, tau0=tau0, tau1=tau1, h=tau1 / 2)
