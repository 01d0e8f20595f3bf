"""`annotation`: texts and dimensions, matched one to one by what they say and where (scoring contract, 6.7)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from contract.entities import DimensionEntity, TextEntity
from evaluator_client.assignment import assign
from evaluator_client.strokes import Ints
from evaluator_client.tolerances import Array

_NUMBER: Final = re.compile(r"[⌀R±]?\s*([+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+))\s*°?")
_DIAMETERS: Final = str.maketrans(dict.fromkeys("Ø∅φ", "⌀"))
# More possible pairs than this are cut down to the nearest of each.
_PAIRS_MAX: Final = 200_000
_NEAREST: Final = 16
_TEXT_CHARS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Notes:
    """Matched texts or dimensions: partners by index, and 2 * worth over the count of both sides."""

    gold: Ints
    candidate: Ints
    score: float
    gold_count: int
    candidate_count: int


def match_texts(
    gold: Sequence[TextEntity], candidate: Sequence[TextEntity], *, diagonal: float, offset: Array
) -> Notes:
    """TEXT and MTEXT are one kind. `offset` moves the candidate."""
    our_text = [normalised(entity.geom.text) for entity in gold]
    their_text = [normalised(entity.geom.text) for entity in candidate]
    ours, theirs = _places([e.geom.center for e in gold]), _places([e.geom.center for e in candidate]) + offset

    def worth(g: int, c: int) -> float:
        same = text_similarity(our_text[g], their_text[c])
        if same == 0.0:
            return 0.0
        a, b = gold[g].geom, candidate[c].geom
        high = max(a.height, b.height)
        turn = abs(a.rotation_deg - b.rotation_deg) % 360.0
        return same * (
            0.55
            + 0.25 * near(ours[g], theirs[c], diagonal)
            + 0.10 * (min(a.height, b.height) / high if high > 0 else 1.0)
            + 0.10 * (min(turn, 360.0 - turn) <= 2.0)
        )

    return _matched(ours, theirs, worth)


def match_dimensions(
    gold: Sequence[DimensionEntity], candidate: Sequence[DimensionEntity], *, diagonal: float, offset: Array
) -> Notes:
    """Only dimensions of one kind are partners, and only when they measure the same or stand at the same place."""
    our_text = [normalised(entity.geom.text_shown) for entity in gold]
    their_text = [normalised(entity.geom.text_shown) for entity in candidate]
    ours = _places([_mean(entity) for entity in gold])
    theirs = _places([_mean(entity) for entity in candidate]) + offset

    def worth(g: int, c: int) -> float:
        a, b = gold[g].geom, candidate[c].geom
        if a.dim_kind != b.dim_kind:
            return 0.0
        agrees = _measure_agrees(a.measurement, b.measurement)
        place = near(ours[g], theirs[c], diagonal)
        if not agrees and place == 0.0:
            return 0.0
        return 0.35 * agrees + 0.35 * text_similarity(our_text[g], their_text[c]) + 0.30 * place

    return _matched(ours, theirs, worth)


def _matched(ours: Array, theirs: Array, worth: Callable[[int, int], float]) -> Notes:
    g, c = _possible(ours, theirs)
    value = np.array([worth(a, b) for a, b in zip(g.tolist(), c.tolist(), strict=True)], dtype=np.float64)
    chosen = assign(g, c, value)
    total = len(ours) + len(theirs)
    score = 2 * float(value[chosen].sum()) / total if total else 0.0
    return Notes(g[chosen], c[chosen], score, len(ours), len(theirs))


def _possible(ours: Array, theirs: Array) -> tuple[Ints, Ints]:
    if len(ours) * len(theirs) <= _PAIRS_MAX:
        g, c = np.divmod(np.arange(len(ours) * len(theirs)), max(1, len(theirs)))
        return g, c
    from scipy.spatial import cKDTree

    k = min(_NEAREST, len(theirs))
    near_index = cKDTree(theirs).query(ours, k=k)[1].reshape(len(ours), k)
    return np.repeat(np.arange(len(ours)), k), near_index.ravel()


def _places(points: Sequence[tuple[float, float, float]]) -> Array:
    return np.array(points, dtype=np.float64).reshape(-1, 3)


def _mean(entity: DimensionEntity) -> tuple[float, float, float]:
    points = entity.geom.points or [entity.geom.text_center or (0.0, 0.0, 0.0)]
    x, y, z = (sum(part) / len(points) for part in zip(*points, strict=True))
    return x, y, z


def _measure_agrees(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return False
    return abs(a - b) <= 0.005 * max(abs(a), 1e-12)


def near(a: Array, b: Array, diagonal: float) -> float:
    """1 up to half a percent of the diagonal apart, 0 from three percent."""
    distance = float(np.linalg.norm(a - b))
    return min(1.0, max(0.0, (0.03 * diagonal - distance) / (0.025 * diagonal)))


@lru_cache(maxsize=16_384)
def normalised(text: str) -> str:
    """One spelling of what looks alike: compatibility forms, diameter signs, white space."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(_DIAMETERS).split())[:_TEXT_CHARS_MAX]


@lru_cache(maxsize=65_536)
def text_similarity(a: str, b: str) -> float:
    """1 for equal texts, 0 when two fifths differ or when both are different numbers."""
    if a == b:
        return 1.0
    longer = max(len(a), len(b))
    if not a or not b or abs(len(a) - len(b)) >= 0.4 * longer:
        return 0.0
    first, second = _NUMBER.fullmatch(a), _NUMBER.fullmatch(b)
    if first and second and _value(first) != _value(second):
        return 0.0
    return max(0.0, 1 - 2.5 * (levenshtein(a, b) / longer))


def _value(match: re.Match[str]) -> float:
    return float(match.group(1).replace(",", "."))


def levenshtein(a: str, b: str) -> int:
    """Edits between two texts, by Myers' bit vectors: one step a character of `b`."""
    if not a or not b:
        return max(len(a), len(b))
    mask, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    places: dict[str, int] = {}
    for i, char in enumerate(a):
        places[char] = places.get(char, 0) | 1 << i
    up, down, distance = mask, 0, len(a)
    for char in b:
        match = places.get(char, 0)
        across = (((match & up) + up) ^ up) | match | down
        rise, fall = down | (~(across | up) & mask), up & across
        distance += bool(rise & last) - bool(fall & last)
        rise, fall = (rise << 1 | 1) & mask, (fall << 1) & mask
        down_next = rise & (match | down)
        up = fall | (~((match | down) | rise) & mask)
        down = down_next
    return distance
