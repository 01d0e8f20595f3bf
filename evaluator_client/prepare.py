"""Gets two drawings ready to be compared: tolerances from the gold, canonical primitives and objects of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contract.entities import Entity
from contract.errors import EvaluationError
from contract.gold import GoldTolerances
from evaluator_client.areas import area_of
from evaluator_client.canonical import Primitives, canonicalise
from evaluator_client.facts import BodyEntity, Facts, Looks
from evaluator_client.matching import Objects
from evaluator_client.strokes import Ints, RawStrokes, Strokes, reference_box, split_curves, strokes_of
from evaluator_client.tolerances import Array, Tolerances, tolerances_for


@dataclass(frozen=True, slots=True)
class Side:
    """One drawing as the components see it. `box` is its reference box."""

    facts: Facts
    ink: Primitives
    objects: Objects
    text_look: Ints
    dimension_look: Ints
    body_look: Ints
    degenerate_count: int
    box: tuple[Array, Array]

    def ids_of(self, index: int) -> list[str]:
        """The entities that object `index` was made from."""
        sources = self.objects.primitives.sources
        if index >= len(sources):
            return [self.objects.other_ids[index - len(sources)]]
        return [self.facts.curves[i].id for i in sources[index]]


@dataclass(frozen=True, slots=True)
class Split:
    """A drawing's facts with its curves taken apart, before tolerances are known."""

    facts: Facts
    raw: RawStrokes
    box: tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Measured:
    """A drawing's facts as strokes under the gold's tolerances."""

    facts: Facts
    strokes: Strokes
    box: tuple[Array, Array]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to compare once degenerate curves and areas are gone."""
        strokes, facts = self.strokes, self.facts
        has_curves = len(strokes.segments) or len(strokes.arcs) or strokes.polylines
        has_areas = any(entity.geom.area > 0 for entity in facts.areas)
        return not (has_curves or has_areas or facts.points or facts.texts or facts.dimensions or facts.bodies)


def split(facts: Facts) -> Split:
    """Take a drawing's curves apart."""
    raw = split_curves(facts.curves)
    return Split(facts, raw, reference_box(facts, raw))


def base_tolerances(gold: Split, shares: GoldTolerances | None) -> Tolerances:
    """Tolerances from the gold's reference box; the sampling step is still that of a short gold."""
    low, high = gold.box
    # A gold that is one point has no size: any positive one serves.
    return tolerances_for(float(np.linalg.norm(high - low)) or 1.0, shares)


def measured(drawing: Split, tolerances: Tolerances) -> Measured:
    """Flatten and filter a drawing's curves."""
    return Measured(drawing.facts, strokes_of(drawing.raw, tolerances), drawing.box)


def side_of(drawing: Measured, looks: Looks, tolerances: Tolerances) -> Side:
    """Canonicalise over everything and within groups of equal look."""
    facts, strokes = drawing.facts, drawing.strokes
    curve_look = np.array(looks.codes(facts.curves), dtype=np.int64)
    grouped = canonicalise(strokes, curve_look, tolerances)
    areas = [entity for entity in facts.areas if entity.geom.area > 0]
    others = [*areas, *facts.points]
    codes = [*grouped.group.tolist(), *looks.codes(others)]
    objects = Objects(
        primitives=grouped,
        areas=[area_of(entity) for entity in areas],
        points=np.array([entity.geom.position for entity in facts.points], dtype=np.float64).reshape(-1, 3),
        look=looks.table[np.array(codes, dtype=np.int64)],
        other_ids=[entity.id for entity in others],
    )
    flat_areas = len(facts.areas) - len(areas)
    return Side(
        facts=facts,
        ink=canonicalise(strokes, None, tolerances),
        objects=objects,
        text_look=_look_rows(facts.texts, looks),
        dimension_look=_look_rows(facts.dimensions, looks),
        body_look=_look_rows(_entities_of(facts), looks),
        degenerate_count=strokes.degenerate_count + flat_areas,
        box=drawing.box,
    )


def _entities_of(facts: Facts) -> list[BodyEntity]:
    """The entity that each physical body is named after. Raises `EvaluationError` when there is none."""
    entities = {entity.id: entity for entity in facts.bodies}
    try:
        return [entities[body.entity_id] for body in facts.physical]
    except KeyError as error:
        raise EvaluationError(
            f"physical body {error} is no visible body of model space",
            code="metadata_schema",
            hint="The evaluator is broken; report it with this drawing.",
        ) from error


def _look_rows(entities: Sequence[Entity], looks: Looks) -> Ints:
    rows: Ints = looks.table[np.array(looks.codes(entities), dtype=np.int64)]
    return rows.reshape(-1, 3)
