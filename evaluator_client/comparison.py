"""Compares two drawings part by part: the order of the components, and what they share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from contract.errors import EvaluationError
from contract.gold import Profile
from contract.metadata import Invalid, Metadata
from contract.score_records import ComponentName
from evaluator_client.annotation import Notes, match_dimensions, match_texts
from evaluator_client.combine import Part
from evaluator_client.facts import Facts, Looks, facts_of
from evaluator_client.geometry import Geometry, Ink, compare_geometry
from evaluator_client.gold import GoldEntry
from evaluator_client.invalid import invalidity, lies_beyond
from evaluator_client.layouts import Windows, compare_layouts
from evaluator_client.matching import Matches, match_objects
from evaluator_client.placement import best_offset
from evaluator_client.prepare import Side, base_tolerances, measured, side_of, split
from evaluator_client.solids import Solids, compare_extents, compare_solids
from evaluator_client.strokes import Ints
from evaluator_client.structure import OBJECT_WEIGHT, Pairing, Structure, compare_structure
from evaluator_client.tolerances import Array, Tolerances


@dataclass(frozen=True, slots=True)
class Prepared:
    """Both sides, and the lengths that decide. `offset` is added to the candidate's coordinates."""

    gold: Side
    candidate: Side
    gold_ink: Ink
    candidate_ink: Ink
    tolerances: Tolerances
    offset: Array


def prepare(candidate: Metadata, gold: GoldEntry) -> Prepared | Invalid:
    """Get both sides ready, or say why the candidate is invalid.

    Raises `EvaluationError` (`evaluator_unsupported`) when a body decides that the evaluator could not measure.
    """
    gold_facts, candidate_facts = facts_of(gold.metadata), facts_of(candidate)
    verdict = invalidity(candidate, candidate_facts)
    if verdict is not None:
        return verdict
    gold_split = split(gold_facts)
    tolerances = base_tolerances(gold_split, gold.entry.tolerances)
    candidate_split = split(candidate_facts)
    verdict = lies_beyond(candidate_facts, candidate_split.box)
    if verdict is not None:
        return verdict
    drawing = measured(candidate_split, tolerances)
    if drawing.is_empty:
        return Invalid(code="empty_drawing", message="nothing visible in model space can be compared")
    if gold.profile != "2d":
        _demand_measured(candidate_facts)
    looks = Looks(gold_facts, candidate_facts)
    ours, theirs = side_of(measured(gold_split, tolerances), looks, tolerances), side_of(drawing, looks, tolerances)
    tolerances = tolerances.for_length(ours.ink.length)
    gold_ink, candidate_ink = Ink(ours.ink, tolerances), Ink(theirs.ink, tolerances)
    offset = np.zeros(3)
    if gold.placement == "translation":
        offset = best_offset(
            gold_ink,
            candidate_ink,
            gold_primitives=ours.ink,
            candidate_primitives=theirs.ink,
            gold_box=ours.box,
            candidate_box=theirs.box,
            tolerances=tolerances,
        )
    return Prepared(ours, theirs, gold_ink, candidate_ink, tolerances, offset)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What every component found, but for the renders. `extents` is None when the gold has no box."""

    geometry: Geometry
    matches: Matches
    texts: Notes
    dimensions: Notes
    solids: Solids
    extents: float | None
    layouts: Windows
    structure: Structure


def compare(prepared: Prepared, profile: Profile) -> Comparison:
    """Run all components that need no render."""
    ours, theirs, offset = prepared.gold, prepared.candidate, prepared.offset
    geometry = compare_geometry(prepared.gold_ink, prepared.candidate_ink, offset)
    objects = theirs.objects.moved(offset) if offset.any() else theirs.objects
    matches = match_objects(ours.objects, objects, prepared.tolerances, excess=geometry.excess)
    diagonal = prepared.tolerances.diagonal
    texts = match_texts(ours.facts.texts, theirs.facts.texts, diagonal=diagonal, offset=offset)
    dimensions = match_dimensions(ours.facts.dimensions, theirs.facts.dimensions, diagonal=diagonal, offset=offset)
    pairings = [
        Pairing(
            ours.objects.look[matches.gold],
            objects.look[matches.candidate],
            matches.pair_weight,
            matches.denominator,
        ),
        _note_pairing(texts, ours.text_look, theirs.text_look),
        _note_pairing(dimensions, ours.dimension_look, theirs.dimension_look),
    ]
    tau0 = prepared.tolerances.tau0
    solids = compare_solids(ours.facts.physical, theirs.facts.physical, tau0=tau0, offset=offset)
    if profile == "3d":
        pairings.append(
            Pairing(
                ours.body_look[solids.gold], theirs.body_look[solids.candidate], solids.pair_weight, solids.denominator
            )
        )
    extents = None
    if ours.facts.extents is not None:
        extents = compare_extents(ours.facts.extents, theirs.facts.extents, tau0=tau0, offset=offset)
    layouts = compare_layouts(ours.facts.layouts, theirs.facts.layouts)
    has_units = ours.facts.insunits == theirs.facts.insunits
    structure = compare_structure(pairings, has_units=has_units)
    return Comparison(geometry, matches, texts, dimensions, solids, extents, layouts, structure)


def _demand_measured(facts: Facts) -> None:
    if facts.unsupported:
        raise EvaluationError(
            f"bodies that this evaluator cannot measure: {', '.join(facts.unsupported[:5])}",
            code="evaluator_unsupported",
            hint="Evaluate 3D tasks on a host whose evaluator has a modeler.",
        )


def _note_pairing(notes: Notes, gold_look: Ints, candidate_look: Ints) -> Pairing:
    return Pairing(
        gold_look[notes.gold],
        candidate_look[notes.candidate],
        np.full(len(notes.gold), 2 * OBJECT_WEIGHT),
        OBJECT_WEIGHT * (notes.gold_count + notes.candidate_count),
    )


def parts_of(comparison: Comparison, raster: Part, prepared: Prepared) -> dict[ComponentName, Part]:
    """The components by name; one without a score does not apply to this gold."""
    geometry, matches, structure = comparison.geometry, comparison.matches, comparison.structure
    ours, theirs = prepared.gold, prepared.candidate
    nothing = Part(None, {})
    solids, layouts = comparison.solids, comparison.layouts
    parts: dict[ComponentName, Part] = {
        "geometry": nothing,
        "entities": nothing,
        "annotation": _annotation(comparison.texts, comparison.dimensions),
        "structure": Part(
            structure.score,
            {
                "layer": structure.layer,
                "colour": structure.colour,
                "linetype": structure.linetype,
                "units": structure.has_units,
            },
        ),
        "raster": raster,
        "solids": nothing,
        "extents": Part(comparison.extents, {}),
        "layouts": nothing,
    }
    if len(ours.ink.lengths):
        parts["geometry"] = Part(
            geometry.score,
            {"precision": geometry.precision, "recall": geometry.recall, "excess_length": geometry.excess},
        )
    if ours.objects.count:
        counts = {"matched": len(matches.gold), "gold": ours.objects.count, "candidate": theirs.objects.count}
        parts["entities"] = Part(matches.score, dict(counts))
    if solids.gold_count:
        counts = {"matched": len(solids.gold), "gold": solids.gold_count, "candidate": solids.candidate_count}
        parts["solids"] = Part(solids.score, {"bodies": solids.bodies, "union": solids.union, **counts})
    if layouts.gold_count:
        counts = {"matched": layouts.matched, "gold": layouts.gold_count, "candidate": layouts.candidate_count}
        parts["layouts"] = Part(layouts.score, dict(counts))
    return parts


def _annotation(texts: Notes, dimensions: Notes) -> Part:
    wanted = [(0.6, "text", texts), (0.4, "dimension", dimensions)]
    present = [(weight, notes) for weight, _, notes in wanted if notes.gold_count]
    if not present:
        return Part(None, {})
    score = sum(weight * notes.score for weight, notes in present) / sum(weight for weight, _ in present)
    return Part(score, {name: notes.score if notes.gold_count else None for _, name, notes in wanted})
