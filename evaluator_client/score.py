"""The deterministic score: one pure function of a candidate's facts and render and a gold entry. Start reading here.

Each component is a module of its own; this one decides their order, what they share, and what is reported.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from contract.errors import EvaluationError
from contract.metadata import Invalid, Metadata
from contract.records import dump_pretty
from contract.score_records import (
    Adjustments,
    Artifacts,
    ComponentName,
    Flag,
    Inputs,
    JudgeSummary,
    Score,
    ToleranceValues,
    Unmatched,
)
from evaluator_client.addressed import addresses_evaluator
from evaluator_client.annotation import Notes, match_dimensions, match_texts
from evaluator_client.collector import collector_paused
from evaluator_client.combine import SCORE_VERSION, Part, combine, rounded, zero_components
from evaluator_client.diff import diff_png
from evaluator_client.facts import Looks, facts_of
from evaluator_client.geometry import Geometry, Ink, compare_geometry
from evaluator_client.gold import GoldEntry
from evaluator_client.invalid import invalidity, lies_beyond
from evaluator_client.matching import Matches, match_objects
from evaluator_client.placement import best_offset
from evaluator_client.prepare import Side, base_tolerances, measured, side_of, split
from evaluator_client.raster import compare_ink
from evaluator_client.renders import distances, ink_of
from evaluator_client.strokes import Ints
from evaluator_client.structure import OBJECT_WEIGHT, Pairing, Structure, compare_structure
from evaluator_client.tolerances import Array, Tolerances

_UNMATCHED_MAX: Final = 200
_NO_OFFSET: Final = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ScoredDrawing:
    """The score, its bytes as they stand on disk, and the difference picture of a valid drawing."""

    score: Score
    score_json: bytes
    diff_png: bytes | None


def score_drawing(
    *, candidate: Metadata, render: bytes | None, gold: GoldEntry, candidate_sha256: str | None = None
) -> ScoredDrawing:
    """Score one candidate. Without a render the `raster` component does not apply and there is no difference picture.

    `candidate_sha256` is the digest of the candidate's `metadata.json`, for a caller that has it at hand; it is that
    of the record written the canonical way otherwise.

    Raises `EvaluationError` (`evaluator_version_mismatch`, `render_size_mismatch`, `render_unreadable`) where the
    fault is ours; a fault of the drawing is an invalid score.
    """
    with collector_paused():
        return _scored(candidate, render, gold, candidate_sha256)


def _scored(candidate: Metadata, render: bytes | None, gold: GoldEntry, candidate_sha256: str | None) -> ScoredDrawing:
    _demand_one_evaluator(candidate, gold)
    digest = candidate_sha256 or hashlib.sha256(dump_pretty(candidate)).hexdigest()
    prepared = _prepare(candidate, gold)
    if isinstance(prepared, Invalid):
        return _packed(_invalid_score(gold, prepared, digest))
    comparison = _compare(prepared, gold)
    raster, picture = _compare_renders(render, gold)
    score = _assembled(comparison, raster, prepared, gold, metadata_sha256=digest, render=render)
    return _packed(score, picture)


def missing_artifact_score(gold: GoldEntry) -> ScoredDrawing:
    """The score of a rollout that left no drawing at all."""
    return _packed(_invalid_score(gold, Invalid(code="missing_artifact", message="the model left no drawing"), None))


def placement_offset(candidate: Metadata, gold: GoldEntry) -> tuple[float, float, float]:
    """What is added to the candidate's coordinates before it is compared and rendered, in drawing units."""
    if gold.placement == "absolute":
        return _NO_OFFSET
    with collector_paused():
        prepared = _prepare(candidate, gold)
    return _NO_OFFSET if isinstance(prepared, Invalid) else _triple(prepared.offset)


@dataclass(frozen=True, slots=True)
class _Prepared:
    gold: Side
    candidate: Side
    gold_ink: Ink
    candidate_ink: Ink
    tolerances: Tolerances
    offset: Array


def _prepare(candidate: Metadata, gold: GoldEntry) -> _Prepared | Invalid:
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
    return _Prepared(ours, theirs, gold_ink, candidate_ink, tolerances, offset)


@dataclass(frozen=True, slots=True)
class _Comparison:
    geometry: Geometry
    matches: Matches
    texts: Notes
    dimensions: Notes
    structure: Structure


def _compare(prepared: _Prepared, gold: GoldEntry) -> _Comparison:
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
    has_units = ours.facts.insunits == theirs.facts.insunits
    return _Comparison(geometry, matches, texts, dimensions, compare_structure(pairings, has_units=has_units))


def _note_pairing(notes: Notes, gold_look: Ints, candidate_look: Ints) -> Pairing:
    return Pairing(
        gold_look[notes.gold],
        candidate_look[notes.candidate],
        np.full(len(notes.gold), 2 * OBJECT_WEIGHT),
        OBJECT_WEIGHT * (notes.gold_count + notes.candidate_count),
    )


def _compare_renders(render: bytes | None, gold: GoldEntry) -> tuple[Part, bytes | None]:
    if render is None:
        return Part(None, {}), None
    ours = ink_of(gold.render, size_px=gold.size_px, whose="gold")
    theirs = ink_of(render, size_px=gold.size_px, whose="candidate")
    from_gold, from_candidate = distances(ours, theirs), distances(theirs, ours)
    picture = diff_png(ours, theirs, from_gold=from_gold, from_candidate=from_candidate)
    if not ours.any():
        return Part(None, {}), picture
    raster = compare_ink(ours, from_gold=from_gold, from_candidate=from_candidate)
    return Part(raster.score, {"precision": raster.precision, "recall": raster.recall}), picture


def _parts(comparison: _Comparison, raster: Part, prepared: _Prepared) -> dict[ComponentName, Part]:
    geometry, matches, structure = comparison.geometry, comparison.matches, comparison.structure
    ours, theirs = prepared.gold, prepared.candidate
    nothing = Part(None, {})
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
        # Not computed by this version: they never apply, so they neither earn nor cost.
        "solids": nothing,
        "extents": nothing,
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
    return parts


def _annotation(texts: Notes, dimensions: Notes) -> Part:
    wanted = [(0.6, "text", texts), (0.4, "dimension", dimensions)]
    present = [(weight, notes) for weight, _, notes in wanted if notes.gold_count]
    if not present:
        return Part(None, {})
    score = sum(weight * notes.score for weight, notes in present) / sum(weight for weight, _ in present)
    return Part(score, {name: notes.score if notes.gold_count else None for _, name, notes in wanted})


def _assembled(
    comparison: _Comparison,
    raster: Part,
    prepared: _Prepared,
    gold: GoldEntry,
    *,
    metadata_sha256: str,
    render: bytes | None,
) -> Score:
    ours, theirs = prepared.gold.facts, prepared.candidate.facts
    hidden = max(0, theirs.hidden_count - ours.hidden_count)
    clutter = hidden + max(0, prepared.candidate.degenerate_count - prepared.gold.degenerate_count)
    clutter += max(0, theirs.other_count - ours.other_count)
    clutter += 0 if ours.texts else len(theirs.texts)
    clutter += 0 if ours.dimensions else len(theirs.dimensions)
    gold_count = prepared.gold.objects.count + len(ours.texts) + len(ours.dimensions) + len(ours.bodies)
    has_foreign_raster = theirs.raster_count > ours.raster_count
    combined = combine(
        gold.profile,
        _parts(comparison, raster, prepared),
        clutter=clutter,
        gold_count=gold_count,
        has_foreign_raster=has_foreign_raster,
    )
    flags: dict[Flag, bool] = {
        "foreign_raster": has_foreign_raster,
        "foreign_xref": theirs.xref_count > ours.xref_count,
        "hidden_clutter": hidden >= max(1, gold_count),
        "duplicate_geometry": comparison.geometry.excess > 0.05 * prepared.gold.ink.length,
        "outside_window": _outside_share(prepared, gold) > 0.05,
        "unit_mismatch": theirs.insunits != ours.insunits,
        "evaluator_addressed_text": addresses_evaluator(
            (ours.texts, ours.dimensions), (theirs.texts, theirs.dimensions)
        ),
        "offset_applied": bool(prepared.offset.any()),
    }
    return Score(
        score_version=SCORE_VERSION,
        task_id=gold.task_id,
        profile=gold.profile,
        placement=gold.placement,
        valid=True,
        invalid=None,
        deterministic=combined.deterministic,
        components=combined.components,
        adjustments=combined.adjustments,
        offset=_triple(prepared.offset),
        flags=[flag for flag, holds in flags.items() if holds],
        unmatched=_unmatched(comparison, prepared),
        diagnostics={} if render is not None else {"no_render": True},
        vision_judge=JudgeSummary(status="disabled", score=None),
        final=combined.deterministic,
        final_basis="deterministic_only",
        inputs=_inputs(gold, prepared.tolerances, metadata_sha256=metadata_sha256, render=render),
        artifacts=Artifacts(
            render_png=None if render is None else "render.png", diff_png=None if render is None else "diff.png"
        ),
    )


def _outside_share(prepared: _Prepared, gold: GoldEntry) -> float:
    """Share of the candidate's length that lies outside the gold's window."""
    samples = prepared.candidate_ink.samples
    if not samples.total:
        return 0.0
    x, y = (samples.position[:, :2] + prepared.offset[:2]).T
    xmin, ymin, xmax, ymax = gold.window
    is_outside = (x < xmin) | (x > xmax) | (y < ymin) | (y > ymax)
    return float(samples.weight[is_outside].sum()) / samples.total


def _unmatched(comparison: _Comparison, prepared: _Prepared) -> Unmatched:
    matches = comparison.matches
    gold, gold_more = _without_partner(
        prepared.gold, matches.gold, matches.gold_weight, comparison.texts.gold, comparison.dimensions.gold
    )
    candidate, candidate_more = _without_partner(
        prepared.candidate,
        matches.candidate,
        matches.candidate_weight,
        comparison.texts.candidate,
        comparison.dimensions.candidate,
    )
    return Unmatched(gold=gold, candidate=candidate, truncated=gold_more or candidate_more)


def _without_partner(side: Side, matched: Ints, weight: Array, texts: Ints, dimensions: Ints) -> tuple[list[str], bool]:
    taken = set(matched.tolist())
    found = [
        (-float(weight[i]), entity_id)
        for i in range(side.objects.count)
        if i not in taken
        for entity_id in side.ids_of(i)
    ]
    for entities, used in ((side.facts.texts, texts), (side.facts.dimensions, dimensions)):
        partners = set(used.tolist())
        found += [(-OBJECT_WEIGHT, entity.id) for i, entity in enumerate(entities) if i not in partners]
    ids = list(dict.fromkeys(entity_id for _, entity_id in sorted(found)))
    return ids[:_UNMATCHED_MAX], len(ids) > _UNMATCHED_MAX


def _invalid_score(gold: GoldEntry, verdict: Invalid, metadata_sha256: str | None) -> Score:
    tolerances = base_tolerances(split(facts_of(gold.metadata)), gold.entry.tolerances)
    return Score(
        score_version=SCORE_VERSION,
        task_id=gold.task_id,
        profile=gold.profile,
        placement=gold.placement,
        valid=False,
        invalid=verdict,
        deterministic=0.0,
        components=zero_components(gold.profile),
        adjustments=Adjustments(clutter=0, clutter_factor=1.0, core_gate=1.0, caps=[]),
        offset=_NO_OFFSET,
        flags=[],
        unmatched=Unmatched(gold=[], candidate=[], truncated=False),
        diagnostics={},
        vision_judge=JudgeSummary(status="skipped", score=None, reason="invalid_artifact"),
        final=0.0,
        final_basis="invalid",
        inputs=_inputs(gold, tolerances, metadata_sha256=metadata_sha256, render=None),
        artifacts=Artifacts(render_png=None, diff_png=None),
    )


def _inputs(gold: GoldEntry, tolerances: Tolerances, *, metadata_sha256: str | None, render: bytes | None) -> Inputs:
    evaluator = gold.metadata.evaluator
    return Inputs(
        candidate_metadata_sha256=metadata_sha256,
        candidate_render_sha256=None if render is None else hashlib.sha256(render).hexdigest(),
        gold_entry_sha256=gold.entry_sha256,
        evaluator=f"{evaluator.name} {evaluator.version}",
        tolerances=ToleranceValues(
            tau0=tolerances.tau0, tau1=tolerances.tau1, h=tolerances.h, diagonal=tolerances.diagonal
        ),
    )


def _demand_one_evaluator(candidate: Metadata, gold: GoldEntry) -> None:
    theirs, ours = candidate.evaluator, gold.metadata.evaluator
    if (theirs.name, theirs.version) != (ours.name, ours.version):
        raise EvaluationError(
            f"the candidate was read by {theirs.name} {theirs.version}, the gold by {ours.name} {ours.version}",
            code="evaluator_version_mismatch",
            hint="Export the candidate with the evaluator that made the gold.",
        )


def _triple(offset: Array) -> tuple[float, float, float]:
    x, y, z = (rounded(float(part)) for part in offset)
    return x, y, z


def _packed(score: Score, picture: bytes | None = None) -> ScoredDrawing:
    return ScoredDrawing(score, dump_pretty(score), picture)
