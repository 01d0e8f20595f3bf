"""The deterministic score: one pure function of a candidate's facts and render and a gold entry. Start reading here.

`comparison` runs the components, each a module of its own; this one decides what is reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from contract.errors import EvaluationError
from contract.gold import Profile
from contract.metadata import Invalid, Metadata
from contract.records import dump_pretty
from contract.score_records import (
    Adjustments,
    Artifacts,
    Flag,
    Inputs,
    JudgeSummary,
    Score,
    ToleranceValues,
    Unmatched,
)
from evaluator_client.addressed import addresses_evaluator
from evaluator_client.collector import collector_paused
from evaluator_client.combine import SCORE_VERSION, Part, combine, rounded, zero_components
from evaluator_client.comparison import Comparison, Prepared, compare, parts_of, prepare
from evaluator_client.diff import diff_png
from evaluator_client.facts import facts_of
from evaluator_client.gold import GoldEntry
from evaluator_client.overlay import overlay_png
from evaluator_client.prepare import Side, base_tolerances, split
from evaluator_client.raster import compare_ink
from evaluator_client.renders import distances, ink_of, ink_of_gold
from evaluator_client.strokes import Ints
from evaluator_client.structure import OBJECT_WEIGHT
from evaluator_client.tolerances import Array, Tolerances

_UNMATCHED_MAX: Final = 200
_NO_OFFSET: Final = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Pictures:
    """What differs, for the record and for people."""

    diff_png: bytes
    overlay_png: bytes


@dataclass(frozen=True, slots=True)
class ScoredDrawing:
    """The score, its bytes as they stand on disk, and the pictures of what differs in a valid drawing."""

    score: Score
    score_json: bytes
    pictures: Pictures | None = None


def score_drawing(
    *, candidate: Metadata, render: bytes | None, gold: GoldEntry, candidate_sha256: str | None = None
) -> ScoredDrawing:
    """Score one candidate. Without a render the `raster` component does not apply and there are no pictures.

    `candidate_sha256` is the digest of the candidate's `metadata.json`, for a caller that has it at hand; it is that
    of the record written the canonical way otherwise.

    Raises `EvaluationError` (`evaluator_version_mismatch`, `evaluator_unsupported`, `render_size_mismatch`,
    `render_unreadable`) where the fault is ours; a fault of the drawing is an invalid score.
    """
    with collector_paused():
        return _scored(candidate, render, gold, candidate_sha256)


def _scored(candidate: Metadata, render: bytes | None, gold: GoldEntry, candidate_sha256: str | None) -> ScoredDrawing:
    _demand_one_evaluator(candidate, gold)
    digest = candidate_sha256 or hashlib.sha256(dump_pretty(candidate)).hexdigest()
    prepared = prepare(candidate, gold)
    if isinstance(prepared, Invalid):
        return _packed(_invalid_score(gold, prepared, digest))
    comparison = compare(prepared, gold.profile)
    raster, pictures = _compare_renders(render, gold)
    diagnostics = {
        "no_render": render is None,
        # Boxes of texts and pixels of letters may differ by a little.
        "other_build": candidate.evaluator.config_sha256 != gold.metadata.evaluator.config_sha256,
    }
    score = _assembled(
        comparison,
        raster,
        prepared,
        gold,
        metadata_sha256=digest,
        render=render,
        diagnostics={name: holds for name, holds in diagnostics.items() if holds},
    )
    return _packed(score, pictures)


def missing_artifact_score(gold: GoldEntry) -> ScoredDrawing:
    """The score of a rollout that left no drawing at all."""
    return _packed(_invalid_score(gold, Invalid(code="missing_artifact", message="the model left no drawing"), None))


def placement_offset(candidate: Metadata, gold: GoldEntry) -> tuple[float, float, float]:
    """What is added to the candidate's coordinates before it is compared and rendered, in drawing units."""
    if gold.placement == "absolute":
        return _NO_OFFSET
    with collector_paused():
        prepared = prepare(candidate, gold)
    return _NO_OFFSET if isinstance(prepared, Invalid) else _triple(prepared.offset)


def _compare_renders(render: bytes | None, gold: GoldEntry) -> tuple[Part, Pictures | None]:
    if render is None:
        return Part(None, {}), None
    ours = ink_of_gold(gold.render, size_px=gold.size_px)
    theirs = ink_of(render, size_px=gold.size_px, whose="candidate")
    from_gold, from_candidate = distances(ours, theirs), distances(theirs, ours)
    pictures = Pictures(
        diff_png=diff_png(ours, theirs, from_gold=from_gold, from_candidate=from_candidate),
        overlay_png=overlay_png(ours, theirs, from_gold=from_gold, from_candidate=from_candidate),
    )
    if not ours.any():
        return Part(None, {}), pictures
    raster = compare_ink(ours, from_gold=from_gold, from_candidate=from_candidate)
    return Part(raster.score, {"precision": raster.precision, "recall": raster.recall}), pictures


def _assembled(
    comparison: Comparison,
    raster: Part,
    prepared: Prepared,
    gold: GoldEntry,
    *,
    metadata_sha256: str,
    render: bytes | None,
    diagnostics: dict[str, float | bool],
) -> Score:
    ours, theirs = prepared.gold.facts, prepared.candidate.facts
    hidden = max(0, theirs.hidden_count - ours.hidden_count)
    clutter = hidden + max(0, prepared.candidate.degenerate_count - prepared.gold.degenerate_count)
    clutter += max(0, theirs.other_count - ours.other_count)
    clutter += 0 if ours.texts else len(theirs.texts)
    clutter += 0 if ours.dimensions else len(theirs.dimensions)
    bodies = len(ours.physical) if gold.profile == "3d" else len(ours.bodies)
    gold_count = prepared.gold.objects.count + len(ours.texts) + len(ours.dimensions) + bodies
    has_foreign_raster = theirs.raster_count > ours.raster_count
    combined = combine(
        gold.profile,
        parts_of(comparison, raster, prepared),
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
        unmatched=_unmatched(comparison, prepared, gold.profile),
        diagnostics=diagnostics,
        vision_judge=JudgeSummary(status="disabled", score=None),
        final=combined.deterministic,
        final_basis="deterministic_only",
        inputs=_inputs(gold, prepared.tolerances, metadata_sha256=metadata_sha256, render=render),
        artifacts=Artifacts(
            render_png=None if render is None else "render.png", diff_png=None if render is None else "diff.png"
        ),
    )


def _outside_share(prepared: Prepared, gold: GoldEntry) -> float:
    """Share of the candidate's length that lies outside the gold's window."""
    samples = prepared.candidate_ink.samples
    if not samples.total:
        return 0.0
    x, y = (samples.position[:, :2] + prepared.offset[:2]).T
    xmin, ymin, xmax, ymax = gold.window
    is_outside = (x < xmin) | (x > xmax) | (y < ymin) | (y > ymax)
    return float(samples.weight[is_outside].sum()) / samples.total


def _unmatched(comparison: Comparison, prepared: Prepared, profile: Profile) -> Unmatched:
    matches, texts, dimensions = comparison.matches, comparison.texts, comparison.dimensions
    solids = comparison.solids
    ours, theirs = prepared.gold.facts, prepared.candidate.facts
    gold, gold_more = _without_partner(
        prepared.gold,
        matches.gold,
        matches.gold_weight,
        [
            ([text.id for text in ours.texts], texts.gold),
            ([dimension.id for dimension in ours.dimensions], dimensions.gold),
            ([body.entity_id for body in ours.physical] if profile == "3d" else [], solids.gold),
        ],
    )
    candidate, candidate_more = _without_partner(
        prepared.candidate,
        matches.candidate,
        matches.candidate_weight,
        [
            ([text.id for text in theirs.texts], texts.candidate),
            ([dimension.id for dimension in theirs.dimensions], dimensions.candidate),
            ([body.entity_id for body in theirs.physical] if profile == "3d" else [], solids.candidate),
        ],
    )
    return Unmatched(gold=gold, candidate=candidate, truncated=gold_more or candidate_more)


def _without_partner(
    side: Side, matched: Ints, weight: Array, others: Sequence[tuple[Sequence[str], Ints]]
) -> tuple[list[str], bool]:
    """Ids of what has no partner, at most so many, and whether there are more; `others` all weigh the same."""
    taken = set(matched.tolist())
    found = [
        (-float(weight[i]), entity_id)
        for i in range(side.objects.count)
        if i not in taken
        for entity_id in side.ids_of(i)
    ]
    for all_ids, used in others:
        partners = set(used.tolist())
        found += [(-OBJECT_WEIGHT, entity_id) for i, entity_id in enumerate(all_ids) if i not in partners]
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


def _packed(score: Score, pictures: Pictures | None = None) -> ScoredDrawing:
    return ScoredDrawing(score, dump_pretty(score), pictures)
