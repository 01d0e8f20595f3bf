"""Every adversary on the real CAD program: it does what its name says, and is worth nothing or its honest part."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ezdxf
import pytest
from ezdxf.document import Drawing

from broker.evaluator.export import Facts
from broker.evaluator.render import render_flats
from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.batch_records import BatchState
from contract.exploits import EXPLOITS
from contract.phases import Cause, Outcome
from contract.records import read_record
from contract.run_dir import BatchDir
from contract.score_records import Score
from evaluator_client.gold import load_entry
from evaluator_client.score import score_drawing

pytestmark = [pytest.mark.e2e, pytest.mark.desktop]

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "configs/suites/local-2d-v1/plate/start.dxf"
PLAY_S_MAX = 600
INVALID = {
    "paste-reference-picture": "empty_drawing",
    "nan-and-huge-coordinates": "nonfinite_geometry",
    "giant-file": "too_large",
    "copied-start-drawing": "untouched",
    "look-for-gold": "untouched",
    "write-result-files": "untouched",
}
# Those that draw the plate's outline and add something to it: the flag that says so.
ADDED_TO_AN_OUTLINE = {
    "off-screen-clutter": "outside_window",
    "hidden-layers": "hidden_clutter",
    "duplicates": "duplicate_geometry",
    "text-to-the-judge": "evaluator_addressed_text",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> BatchDir:
    """The batch of all adversaries, played once by its command."""
    folder = tmp_path_factory.mktemp("adversaries") / "run"
    command = [Path(sys.executable).with_name("autocad-bench-batch"), "--execute", "--allow-partial"]
    ended = subprocess.run(
        [*command, "--config", ROOT / "configs/local-adversaries.json", "--output-dir", folder],
        env={"PATH": os.environ["PATH"], "HOME": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=PLAY_S_MAX,
        check=False,
    )
    # 1: one rollout is void, which is what its adversary wants.
    assert 1 == ended.returncode, ended.stderr[-3000:]
    return BatchDir(folder)


def rows_of(run: BatchDir) -> dict[str, Any]:
    return {row.rollout_id: row for row in read_record(run.state, BatchState).rollouts}


def score_of(run: BatchDir, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run.rollout(name).evaluation.score.read_text())
    return content


def drawing_of(run: BatchDir, name: str) -> Drawing:
    return ezdxf.readfile(run.rollout(name).attempt("dxf"))


def test_only_the_crash_is_void_and_it_counts_for_nothing(run: BatchDir) -> None:
    """A fault must not look like a score, and a bad drawing must not escape its zero by looking like a fault."""
    rows = rows_of(run)
    crashed = rows["crash-the-cad-program"]

    assert set(EXPLOITS) == set(rows)
    assert (Outcome.VOID, Cause.CAD_DIED, None) == (crashed.outcome, crashed.cause, crashed.score)
    assert not run.rollout("crash-the-cad-program").evaluation.score.exists()
    assert {Outcome.SCORED} == {row.outcome for name, row in rows.items() if row is not crashed}


@pytest.mark.parametrize("name", INVALID)
def test_what_leaves_no_usable_drawing_is_worth_zero(run: BatchDir, name: str) -> None:
    """With the code that says why."""
    score = score_of(run, name)

    assert (INVALID[name], 0.0, 0.0) == (score["invalid"]["code"], score["deterministic"], score["final"])
    assert 0.0 == rows_of(run)[name].score


@pytest.mark.parametrize("name", ADDED_TO_AN_OUTLINE)
def test_what_is_added_to_an_honest_part_never_pays(run: BatchDir, name: str) -> None:
    """The outline alone is worth more than the outline and the trick, and the trick is seen."""
    score, honest = score_of(run, name), outline_alone(drawing_of(run, name))

    assert 0.5 < honest < 0.7
    assert 0.0 < score["deterministic"] < honest
    assert ADDED_TO_AN_OUTLINE[name] in score["flags"]


def test_a_part_in_inches_is_a_tiny_part(run: BatchDir) -> None:
    """Units are compared as drawn: saying inch in the header does not make it larger."""
    score = score_of(run, "wrong-units")

    assert 1 == drawing_of(run, "wrong-units").units
    assert 0.05 > score["deterministic"]
    assert "unit_mismatch" in score["flags"]


DEEDS: dict[str, Callable[[Drawing], bool]] = {
    "paste-reference-picture": lambda d: 1 == len(d.modelspace()) == len(d.modelspace().query("IMAGE")),
    "off-screen-clutter": lambda d: 30 == len(d.modelspace().query("CIRCLE")) and 119 == len(d.query("LINE")),
    "hidden-layers": lambda d: d.layers.get("0").is_frozen() and 21 == len(d.query("CIRCLE")),
    "duplicates": lambda d: 13 == len(d.modelspace().query("LWPOLYLINE")),
    "text-to-the-judge": lambda d: 3 == len(d.modelspace().query("TEXT")),
    "copied-start-drawing": lambda d: 0 == len(d.modelspace()),
    "look-for-gold": lambda d: 0 == len(d.modelspace()),
}


@pytest.mark.parametrize("name", DEEDS)
def test_each_has_done_what_its_name_says(run: BatchDir, name: str) -> None:
    """An adversary that fails at its own deed proves nothing about the score."""
    assert DEEDS[name](drawing_of(run, name))


def test_a_copied_start_drawing_is_not_the_start_drawings_bytes(run: BatchDir) -> None:
    """So it is the content that is compared."""
    assert START.read_bytes() != run.rollout("copied-start-drawing").attempt("dxf").read_bytes()


def test_no_file_of_a_model_reaches_the_results(run: BatchDir) -> None:
    """Only the drawing leaves the host, whatever else was saved there."""

    def files_of(name: str) -> set[str]:
        root = run.rollout(name).root
        return {
            str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "frames" not in path.parts
        }

    assert files_of("copied-start-drawing") == files_of("write-result-files") == files_of("look-for-gold")
    assert 0 == len(drawing_of(run, "write-result-files").modelspace())


def test_scoring_again_gives_the_same_bytes(run: BatchDir) -> None:
    """Also of a drawing that was too large to keep."""
    command = [Path(sys.executable).with_name("autocad-bench"), "evaluate", run.root, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    scored = [row["delta"] for row in json.loads(ended.stdout)["rollouts"] if row.get("delta")]

    assert len(EXPLOITS) - 1 == len(scored)
    assert all(delta["is_identical"] for delta in scored)


def outline_alone(document: Drawing) -> float:
    """The score of the same drawing with its first outline and nothing else."""
    space = document.modelspace()
    outline = space.query("LWPOLYLINE")[0]
    for entity in list(space):
        if entity is not outline:
            space.delete_entity(entity)
    text = io.StringIO()
    document.write(text)
    facts = Facts.of(text.getvalue().encode())
    gold = load_entry(
        ROOT / "configs/gold", "plate", evaluator_name=EVALUATOR_NAME, evaluator_version=EVALUATOR_VERSION
    )
    metadata = facts.metadata(START.read_bytes())
    render = render_flats(facts.flats, window=gold.window, size_px=gold.size_px, offset=(0.0, 0.0))
    score: Score = score_drawing(candidate=metadata, render=render, gold=gold).score
    return score.deterministic
