"""The worked example of docs/scoring.md: its numbers are what the code computes, and what its formulas give by hand."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path

from broker.evaluator.export import Facts
from broker.evaluator.render import render_flats
from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.score_records import Score
from evaluator_client.comparison import Comparison, Prepared, compare, prepare
from evaluator_client.gold import GoldEntry, load_entry
from evaluator_client.raster import compare_ink
from evaluator_client.renders import distances, ink_of
from evaluator_client.score import score_drawing

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "scoring.md").read_text()
ATTEMPT = (ROOT / "docs" / "examples" / "bracket-attempt.dxf").read_bytes()
NONE_PX = 0.008 * math.hypot(1600, 1200)
_NUMBER = re.compile(r"`([^`=\n]+?) = (-?[0-9][0-9.]*)`")


@cache
def example() -> tuple[Score, Prepared, Comparison, dict[str, float]]:
    """The score of the attempt, what it was made of, and the sums of its pictures in pixels."""
    gold = bracket()
    facts = Facts.of(ATTEMPT)
    metadata = facts.metadata(None)
    render = render_flats(facts.flats, window=gold.window, size_px=gold.size_px, offset=(0.0, 0.0))
    score = score_drawing(candidate=metadata, render=render, gold=gold).score
    prepared = prepare(metadata, gold)
    assert isinstance(prepared, Prepared)
    return score, prepared, compare(prepared, "2d"), pictures(gold, render)


def bracket() -> GoldEntry:
    return load_entry(
        ROOT / "configs" / "gold", "bracket", evaluator_name=EVALUATOR_NAME, evaluator_version=EVALUATOR_VERSION
    )


def pictures(gold: GoldEntry, render: bytes) -> dict[str, float]:
    ours, theirs = (
        ink_of(png, size_px=gold.size_px, whose=whose) for png, whose in ((gold.render, "gold"), (render, "candidate"))
    )
    from_gold, from_candidate = distances(ours, theirs), distances(theirs, ours)
    raster = compare_ink(ours, from_gold=from_gold, from_candidate=from_candidate)
    return {
        "gold ink": len(from_gold),
        "candidate ink": len(from_candidate),
        "gold ink covered": raster.recall * len(from_gold),
        "candidate ink covered": raster.precision * len(from_candidate),
    }


def computed() -> dict[str, float]:
    """Every number that the page must have, from the code."""
    score, prepared, comparison, ink = example()
    tolerances, parts = prepared.tolerances, score.components
    matches = comparison.matches
    weight = dict(
        zip([round(float(x), 3) for x in prepared.gold.objects.primitives.lengths], matches.gold_weight, strict=True)
    )
    sums = {
        "D": tolerances.diagonal,
        "τ0": tolerances.tau0,
        "τ1": tolerances.tau1,
        "h": tolerances.h,
        "credit(0.8)": float(matches.credit.min()),
        "L gold": prepared.gold.ink.length,
        "L candidate": prepared.candidate.ink.length,
        "R": comparison.geometry.recall,
        "P": comparison.geometry.precision,
        "w(98)": float(weight[98.0]),
        "w(25)": float(weight[25.0]),
        "w(56.549)": float(weight[56.549]),
        "W gold": float(matches.gold_weight.sum()),
        "denominator": matches.denominator,
        "annotation denominator": 10,
        "same layer": comparison.structure.layer,
        "same colour": comparison.structure.colour,
        "same linetype": comparison.structure.linetype,
        "raster recall": float(parts["raster"].detail["recall"] or 0),
        "raster precision": float(parts["raster"].detail["precision"] or 0),
        "gate": score.adjustments.core_gate,
        "deterministic": score.deterministic,
    }
    return sums | ink | {str(name): part.score or 0.0 for name, part in parts.items()}


def by_hand() -> dict[str, float]:
    """The same from the two drawings' lengths alone, as the page says."""
    diagonal = math.hypot(120, 110)
    tau0, tau1 = 0.0005 * diagonal, 0.01 * diagonal
    h = tau1 / 2
    credit = (tau1 - 0.8) / (tau1 - tau0)
    quarters, halves = 4 * math.pi / 2 * 10, 4 * math.pi * 6
    fillet, hole = math.pi / 2 * 15, 2 * math.pi * 9
    lines = [100, 110, 20, 45, 45, 30, 25, 25, 25, 25, 98, 93]
    gold = sum(lines) + quarters + halves + fillet + hole
    candidate = gold - hole + 30
    lost = 98 * (1 - credit)
    recall, precision = (gold - hole - lost) / gold, (candidate - 30 - lost) / candidate
    weights = [math.log2(1 + length / h) for length in [*lines, *[quarters / 4] * 4, *[halves / 4] * 4, fillet, hole]]
    mean = gold / len(weights)
    of_hole, of_axis, of_slot = (math.log2(1 + length / h) for length in (hole, 98, 25))
    extra = min(math.log2(1 + 30 / h), 30 / mean * math.log2(1 + mean / h))
    denominator = 2 * sum(weights) - of_hole + extra
    matched = 2 * (sum(weights) - of_hole)
    near = (0.03 * diagonal - 4 / 3) / (0.025 * diagonal)
    annotation = 2 * (4 + 0.30 * near) / 10
    whole = denominator + 20
    layer, linetype = (matched + 20 - 2 * of_slot) / whole, (matched + 20) / whole
    return {
        "h": h,
        "credit(0.8)": credit,
        "L gold": gold,
        "L candidate": candidate,
        "geometry": 2 * precision * recall / (precision + recall),
        "W gold": sum(weights),
        "ℓ": mean,
        "U": extra,
        "denominator": denominator,
        "entities": (matched - 2 * of_axis * (1 - credit)) / denominator,
        "near": near,
        "annotation": annotation,
        "structure": 0.5 * layer + 0.2 * layer + 0.2 * linetype + 0.1 * linetype,
    }


def test_every_number_of_the_example_is_what_the_code_computes() -> None:
    """Rounded as printed; and the page leaves none of them out."""
    printed: dict[str, str] = dict(_NUMBER.findall(DOC))
    wanted = by_hand() | computed()

    assert {} == {
        name: (text, wanted.get(name))
        for name, text in printed.items()
        if name not in wanted or f"{wanted[name]:.{len(text.partition('.')[2])}f}" != text
    }
    assert set() == wanted.keys() - printed.keys()


def test_the_formulas_by_hand_give_what_the_code_computes() -> None:
    """Whoever follows the page with a pocket calculator ends at the same score."""
    hand, code = by_hand(), computed()

    assert {} == {
        name: (hand[name], code[name]) for name in hand.keys() & code.keys() if abs(hand[name] - code[name]) > 1e-6
    }


def test_the_example_adds_up() -> None:
    """The weighted mean of the five components, which neither gate nor clutter lowers."""
    code = computed()
    weights = {"geometry": 0.35, "entities": 0.25, "annotation": 0.20, "structure": 0.10, "raster": 0.10}
    base = sum(weight * code[name] for name, weight in weights.items())

    assert abs(base - code["deterministic"]) < 1e-6
    assert code["gate"] == round(0.25 + 0.75 * code["geometry"], 6) > base
