"""Puts components together: weights, clutter, the core gate, caps and rounding (scoring contract, 6.11)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contract.gold import Profile
from contract.score_records import Adjustments, Component, ComponentName

SCORE_VERSION: Final = "1.0"
WEIGHTS: Final[dict[Profile, dict[ComponentName, float]]] = {
    "2d": {"geometry": 0.35, "entities": 0.25, "annotation": 0.20, "structure": 0.10, "raster": 0.10},
    "3d": {
        "geometry": 0.15,
        "entities": 0.10,
        "annotation": 0.10,
        "structure": 0.10,
        "raster": 0.05,
        "solids": 0.45,
        "layouts": 0.05,
    },
    "3d-extents": {
        "geometry": 0.30,
        "entities": 0.20,
        "annotation": 0.15,
        "structure": 0.10,
        "raster": 0.10,
        "extents": 0.10,
        "layouts": 0.05,
    },
}
CORE: Final[dict[Profile, ComponentName]] = {"2d": "geometry", "3d": "solids", "3d-extents": "geometry"}
FOREIGN_RASTER_CAP: Final = 0.60

Detail = dict[str, float | int | bool | None]


@dataclass(frozen=True, slots=True)
class Part:
    """What a component found; `score` is None when the gold has nothing for it to look at."""

    score: float | None
    detail: Detail


@dataclass(frozen=True, slots=True)
class Combined:
    """The deterministic score and how it came about."""

    deterministic: float
    components: dict[ComponentName, Component]
    adjustments: Adjustments


def combine(
    profile: Profile,
    parts: Mapping[ComponentName, Part],
    *,
    clutter: int,
    gold_count: int,
    has_foreign_raster: bool,
) -> Combined:
    """Weigh what applies, then lower it; nothing ever raises it."""
    weights = WEIGHTS[profile]
    applicable = {name: part.score for name in weights if (part := parts[name]).score is not None}
    total = sum(weights[name] for name in applicable)
    base = sum(weights[name] * (score or 0.0) for name, score in applicable.items()) / total if total else 0.0
    factor = 1 - 0.2 * clutter / (clutter + gold_count) if clutter else 1.0
    core = applicable.get(CORE[profile])
    gate = 1.0 if core is None else 0.25 + 0.75 * core
    caps = ["foreign_raster"] if has_foreign_raster else []
    limits = [base * factor, gate] + [FOREIGN_RASTER_CAP] * len(caps)
    components = {
        name: Component(
            score=None if (score := parts[name].score) is None else rounded(score),
            weight=weight,
            applicable=name in applicable,
            detail={key: _rounded_value(value) for key, value in parts[name].detail.items()},
        )
        for name, weight in weights.items()
    }
    adjustments = Adjustments(clutter=clutter, clutter_factor=rounded(factor), core_gate=rounded(gate), caps=caps)
    return Combined(rounded(min(limits)), components, adjustments)


def zero_components(profile: Profile) -> dict[ComponentName, Component]:
    """Every component of an invalid drawing."""
    return {
        name: Component(score=0.0, weight=weight, applicable=True, detail={})
        for name, weight in WEIGHTS[profile].items()
    }


def rounded(value: float) -> float:
    """Half even to six decimals, without negative zero."""
    assert math.isfinite(value)
    return round(value, 6) + 0.0


def _rounded_value(value: float | int | bool | None) -> float | int | bool | None:
    return rounded(value) if isinstance(value, float) else value
