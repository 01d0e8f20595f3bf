"""A score sees small mistakes: wrong copies of the suite's own golds, each with one geometric fault."""

from __future__ import annotations

import math
import random
from functools import cache
from pathlib import Path

import pytest

from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.metadata import Metadata
from evaluator_client.gold import GoldEntry, load_entry, read_manifest
from evaluator_client.score import score_drawing
from tests.sketches import Point, Sketch, line, mapped, moved

GOLD_DIR = Path(__file__).resolve().parents[2] / "configs" / "gold"
CURVES = frozenset({"line", "polyline", "arc", "circle", "ellipse"})
FAULTS = ("moved", "larger", "turned", "missing", "extra", "doubled", "bent")
MUTANTS = 200


@cache
def golds() -> list[GoldEntry]:
    names = sorted(read_manifest(GOLD_DIR).entries)
    return [
        load_entry(GOLD_DIR, name, evaluator_name=EVALUATOR_NAME, evaluator_version=EVALUATOR_VERSION) for name in names
    ]


def mutant(gold: GoldEntry, fault: str, chance: random.Random) -> Metadata:
    """The gold's facts with one fault in one curve."""
    document = gold.metadata.model_dump(mode="json")
    entities: list[Sketch] = document["entities"]
    index = chance.choice([i for i, record in enumerate(entities) if record["kind"] in CURVES and record["is_visible"]])
    record = entities[index]
    box = gold.metadata.extents.visible
    assert box is not None
    diagonal = math.dist(box.min, box.max)
    (x0, y0, _), (x1, y1, _) = box.min, box.max
    middle = (record["extents"]["min"][0] + record["extents"]["max"][0]) / 2
    height = (record["extents"]["min"][1] + record["extents"]["max"][1]) / 2
    angle, distance = chance.uniform(0, math.tau), chance.uniform(0.005, 0.05) * diagonal
    away = (distance * math.cos(angle), distance * math.sin(angle))
    match fault:
        case "moved":
            entities[index] = moved([record], *away)[0]
        case "larger":
            factor = chance.choice((0.9, 1.1))

            def grow(x: float, y: float) -> Point:
                return middle + factor * (x - middle), height + factor * (y - height)

            entities[index] = mapped(record, grow, scale=factor)
        case "turned":
            turn = math.radians(chance.choice((-5, 5)))

            def rotate(x: float, y: float) -> Point:
                dx, dy = x - x0, y - y0
                return (
                    x0 + dx * math.cos(turn) - dy * math.sin(turn),
                    y0 + dx * math.sin(turn) + dy * math.cos(turn),
                )

            entities[index] = mapped(record, rotate, turn_deg=math.degrees(turn))
        case "missing":
            del entities[index]
        case "extra":
            start = chance.uniform(x0, x1), chance.uniform(y0, y1)
            stray = line(start, (start[0] + 4 * away[0], start[1] + 4 * away[1]))
            entities.append(record | {"id": "FFFF", "kind": "line", "geom": stray["geom"]})
        case "doubled":
            entities.append(record | {"id": "FFFF"})
        case _:
            entities[index] = _bent(record, away)
    return Metadata.model_validate(document)


def _bent(record: Sketch, away: tuple[float, float]) -> Sketch:
    """One of its points elsewhere; an arc or a circle is moved whole."""
    geom = dict(record["geom"])
    if record["kind"] == "line":
        x, y, z = geom["end"]
        geom["end"] = (x + away[0], y + away[1], z)
    elif record["kind"] == "polyline":
        x, y, z = geom["vertices"][0]
        geom["vertices"] = [(x + away[0], y + away[1], z), *geom["vertices"][1:]]
    else:
        return moved([record], *away)[0]
    return record | {"geom": geom}


def survivors(count: int, seed: int) -> list[str]:
    """The mutants that score as much as their gold."""
    chance = random.Random(seed)
    alive = []
    for number in range(count):
        gold, fault = golds()[number % len(golds())], FAULTS[number % len(FAULTS)]
        score = score_drawing(candidate=mutant(gold, fault, chance), render=None, gold=gold).score
        if score.deterministic >= 1.0:
            alive.append(f"{number}: {gold.task_id} {fault}")
    return alive


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nearly_every_geometric_mutant_of_the_suite_is_seen(seed: int) -> None:
    """At least 95 % of 200 score strictly below their gold."""
    alive = survivors(MUTANTS, seed)

    assert len(alive) <= 0.05 * MUTANTS, alive


def test_a_few_mutants_of_the_suite_are_seen() -> None:
    """The same on a sample, at each commit: every gold, every fault."""
    assert [] == survivors(16, 3)
