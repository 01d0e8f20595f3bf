"""`score pair` and `score corpus` from the command line: tables, files, exit codes, and refusals in one line."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from supervisor.entry import run
from supervisor.score_command import score

DATA = Path(__file__).parents[1] / "evaluator_client" / "data"
RIGHT, WORSE = DATA / "plate.dxf", DATA / "plate__missing_30.dxf"


def ran(*arguments: str | Path) -> int:
    return run(
        score,
        [str(argument) for argument in arguments],
        program="autocad-bench-score",
        environment={"PATH": os.environ["PATH"]},
    )


@pytest.mark.slow
def test_a_pair_prints_a_table_and_leaves_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a person who has no run at all."""
    code = ran("pair", "--gold", RIGHT, "--candidate", WORSE, "--out", tmp_path / "out")

    printed = capsys.readouterr().out
    assert 0 == code
    assert all(word in printed for word in ("geometry", "deterministic", "written to"))
    assert (tmp_path / "out" / "overlay.png").is_file()


@pytest.mark.slow
def test_a_pair_prints_its_record_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bytes of score.json, and nothing else."""
    code = ran("pair", "--gold", RIGHT, "--candidate", RIGHT, "--out", tmp_path / "out", "--no-render", "--json")

    printed = capsys.readouterr().out
    assert (0, 1.0) == (code, json.loads(printed)["deterministic"])
    assert (tmp_path / "out" / "score.json").read_text() == printed


def test_an_output_folder_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The person is told before anything is read."""
    (tmp_path / "mine.txt").write_text("keep")

    assert 2 == ran("pair", "--gold", RIGHT, "--candidate", WORSE, "--out", tmp_path)
    assert "not an empty folder" in capsys.readouterr().err
    assert ["mine.txt"] == [path.name for path in tmp_path.iterdir()]


def test_a_file_that_is_not_there_is_a_wrong_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a drawing at fault."""
    assert 2 == ran("pair", "--gold", RIGHT, "--candidate", tmp_path / "none.dxf", "--out", tmp_path / "out")
    assert "does not exist" in capsys.readouterr().err


def _corpus(folder: Path, op: str) -> Path:
    files = {"right": RIGHT, "worse": WORSE}
    digests = {}
    for name, source in files.items():
        (folder / f"{name}.dxf").write_bytes(source.read_bytes())
        digests[name] = hashlib.sha256(source.read_bytes()).hexdigest()
    manifest = {
        "corpus": "test",
        "corpus_version": 1,
        "golds": {"plate": {"file": "right.dxf", "sha256": digests["right"], "profile": "2d", "placement": "absolute"}},
        "cases": [
            {"id": name, "gold": "plate", "candidate": f"{name}.dxf", "sha256": digest}
            for name, digest in digests.items()
        ],
        "expect": [{"op": op, "left": "right", "right": "worse", "margin": 0.01, "why": "less is worse"}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder / "manifest.json"


@pytest.mark.slow
@pytest.mark.parametrize(("op", "code", "said"), [("gt", 0, "1 of 1 orderings hold"), ("eq", 1, "less is worse")])
def test_a_corpus_says_which_orderings_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], op: str, code: int, said: str
) -> None:
    """Its exit status does too, and the scores are in one file."""
    manifest = _corpus(tmp_path, op)

    assert code == ran("corpus", "--manifest", manifest, "--out", tmp_path / "scores.json", "--no-render")
    assert said in capsys.readouterr().out
    assert {"right", "worse"} == set(json.loads((tmp_path / "scores.json").read_bytes()))


@pytest.mark.slow
def test_a_corpus_keeps_its_pictures_when_asked(tmp_path: Path) -> None:
    """To look at what a score comes from."""
    manifest, keep = _corpus(tmp_path, "gt"), tmp_path / "kept"

    assert 0 == ran("corpus", "--manifest", manifest, "--out", tmp_path / "scores.json", "--keep", keep)
    assert 2 == len(list(keep.glob("0*/overlay.png")))
