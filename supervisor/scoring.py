"""What `score pair` and `score corpus` do: the local evaluator in a process of its own, and tables for people."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from broker.evaluator.process import EvaluatorProcess
from contract.errors import ConfigError
from contract.records import replace_file
from contract.score_records import Score
from evaluator_client.corpus import CorpusResult, score_corpus
from evaluator_client.pair import compare_pair

TABLE_COLUMNS_MIN: Final = 120
# Every version of the format from R14 on begins with `AC10`.
_DWG_TAG: Final = b"AC10"


def run_pair(
    environment: Mapping[str, str],
    *,
    gold: Path,
    candidate: Path,
    profile: Any,
    placement: Any,
    out: Path,
    has_render: bool,
    as_json: bool,
    stream: IO[str],
) -> int:
    """Score one drawing against another; returns 0. `profile` and `placement` are those of `contract.gold`.

    When one of them is a DWG file both are read for inspection, so that they have one reader; that is never a pinned
    score, and all that is written says so.
    """
    _demand_new(out, option="--out")
    is_inspection = is_dwg(gold) or is_dwg(candidate)
    with local_evaluator(environment, is_inspection=is_inspection) as reader:
        scored = compare_pair(
            reader,
            gold=gold,
            candidate=candidate,
            profile=profile,
            placement=placement,
            out=out,
            has_render=has_render,
        )
    if as_json:
        stream.write(scored.score_json.decode())
    else:
        _print_score(scored.score, out, stream)
        if is_inspection:
            stream.write("a DWG file was read to be looked at: this is no pinned score\n")
    stream.flush()
    return 0


def run_corpus(
    environment: Mapping[str, str],
    *,
    manifest: Path,
    out: Path,
    keep: Path | None,
    has_render: bool,
    stream: IO[str],
) -> int:
    """Score a corpus into `out`; returns 1 when an ordering does not hold or a case has no score."""
    if keep is not None:
        _demand_new(keep, option="--keep")
    with tempfile.TemporaryDirectory(prefix="autocad-bench-corpus-") as scratch, local_evaluator(environment) as reader:
        folder = keep if keep is not None else Path(scratch)
        result = score_corpus(manifest, reader, scratch=folder, has_render=has_render)
    content = json.dumps(result.document(), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    replace_file(out, content.encode() + b"\n")
    _print_result(result, out, stream)
    stream.flush()
    return 1 if result.violations or result.failures else 0


def is_dwg(drawing: Path) -> bool:
    """Whether a file begins like a DWG drawing. One that cannot be read does not."""
    try:
        with drawing.open("rb") as file:
            return file.read(4) == _DWG_TAG
    except OSError:
        return False


@contextmanager
def local_evaluator(environment: Mapping[str, str], *, is_inspection: bool = False) -> Iterator[EvaluatorProcess]:
    """Drawings come from strangers: they are read where memory and time are bounded and no secret is."""
    reader = EvaluatorProcess({"PATH": environment.get("PATH", os.defpath)}, is_inspection=is_inspection)
    try:
        yield reader
    finally:
        reader.close()


def _demand_new(folder: Path, *, option: str) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and is not an empty folder",
            hint="Name a new folder; nothing is ever overwritten.",
            code="output_exists",
            field=option,
        )


def _print_score(score: Score, out: Path, stream: IO[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("component", "weight", "score", "detail"):
        table.add_column(name, justify="right" if name in ("weight", "score") else "left", no_wrap=name != "detail")
    for name, part in score.components.items():
        found = "does not apply" if part.score is None else f"{part.score:.6f}"
        detail = ", ".join(f"{key} {value}" for key, value in part.detail.items())
        table.add_row(str(name), f"{part.weight:.2f}", found, detail)
    table.add_section()
    table.add_row("deterministic", "", f"{score.deterministic:.6f}", _adjusted(score))
    console = Console(file=stream, highlight=False, markup=False)
    console.width = max(console.width, TABLE_COLUMNS_MIN)
    console.print(table)
    if score.invalid is not None:
        console.print(f"invalid: {score.invalid.code}: {score.invalid.message}", soft_wrap=True)
    for what, values in (("flags", score.flags), ("gold without a partner", score.unmatched.gold)):
        if values:
            console.print(f"{what}: {', '.join(values)}", soft_wrap=True)
    if score.unmatched.candidate:
        console.print(f"candidate without a partner: {', '.join(score.unmatched.candidate)}", soft_wrap=True)
    console.print(f"written to {out}", soft_wrap=True)


def _adjusted(score: Score) -> str:
    adjustments = score.adjustments
    parts = [f"clutter factor {adjustments.clutter_factor}"] if adjustments.clutter else []
    parts += [f"at most {adjustments.core_gate} by its core"] if adjustments.core_gate < 1.0 else []
    return ", ".join([*parts, *(f"capped: {cap}" for cap in adjustments.caps)])


def _print_result(result: CorpusResult, out: Path, stream: IO[str]) -> None:
    held = result.expectation_count - len(result.violations)
    partial = ", without renders" if result.is_partial else ""
    stream.write(f"{len(result.scores)} cases scored{partial}; {held} of {result.expectation_count} orderings hold\n")
    for case_id, reason in result.failures.items():
        stream.write(f"not scored: {case_id}: {reason}\n")
    for violation in result.violations:
        demand = violation.expectation
        what = f"{demand.left} {demand.op} {demand.right or ', '.join(demand.codes) or demand.value}"
        stream.write(f"does not hold: {what} ({demand.metric}: {violation.left}, {violation.right}): {demand.why}\n")
    stream.write(f"written to {out}\n")
