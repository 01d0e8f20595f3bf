"""Drawings made by chance, in general position: what the properties of the scorer are tried on."""

from __future__ import annotations

import math
import random
from functools import cache

from evaluator_client.gold import GoldEntry
from tests.sketches import Point, Sketch, arc, circle, dimension, gold, hatch, line, polyline, text

LAYERS = ("OUTLINE", "HOLES", "CENTER")
WIDTH, HEIGHT = 200.0, 120.0
WORDS = ("PLATE", "SECTION A", "4x ⌀12", "R 8", "⌀ 25", "120", "SCALE 1:2", "DETAIL")


def drawing(seed: int) -> list[Sketch]:
    """15 to 30 curves, some areas, texts and dimensions. No two of them lie on one line or circle."""
    chance = random.Random(seed)

    def place(margin: float = 0.0) -> Point:
        return chance.uniform(margin, WIDTH - margin), chance.uniform(margin, HEIGHT - margin)

    def layer() -> str:
        return chance.choice(LAYERS)

    entities = [line((0.0, 0.0), (WIDTH, 0.0)), line((0.0, 0.0), (0.0, HEIGHT))]
    for _ in range(chance.randint(7, 14)):
        (x, y), angle, length = place(), chance.uniform(0, math.tau), chance.uniform(15, 70)
        entities.append(line((x, y), (x + length * math.cos(angle), y + length * math.sin(angle)), layer()))
    entities += [circle(place(20), chance.uniform(4, 20), layer()) for _ in range(chance.randint(3, 6))]
    for _ in range(chance.randint(2, 5)):
        start = chance.uniform(0, 360)
        entities.append(arc(place(20), chance.uniform(5, 20), start, start + chance.uniform(40, 300), layer()))
    for _ in range(chance.randint(1, 3)):
        corners = [place() for _ in range(chance.randint(3, 6))]
        bulges = [chance.choice((0.0, 0.0, chance.uniform(-0.8, 0.8))) for _ in corners]
        entities.append(polyline(corners, bulges, is_closed=chance.random() < 0.5))
    for _ in range(chance.randint(0, 2)):
        (x, y), size = place(20), chance.uniform(8, 20)
        entities.append(hatch([(x, y), (x + size, y), (x + size, y + size), (x, y + size)]))
    entities += [text(word, place()) for word in chance.sample(WORDS, chance.randint(1, 4))]
    entities += [dimension(place(), place()) for _ in range(chance.randint(1, 3))]
    return entities


@cache
def reference(seed: int) -> GoldEntry:
    """The drawing as a gold, compared where it stands."""
    return gold(drawing(seed))


@cache
def free_reference(seed: int) -> GoldEntry:
    """The drawing as a gold that may stand elsewhere."""
    return gold(drawing(seed), placement="translation")
