"""A gold cache is made on an instance by the same way as on this machine, and the instance is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.commands import ROOT, run_command, write_config
from tests.lab.lab import Lab

pytestmark = pytest.mark.slow
ENTRY = "ezdxf-1.1.0/plate/metadata.json"


def test_an_instance_makes_the_gold_that_the_suite_has(tmp_path: Path) -> None:
    """An AutoCAD gold is made by AutoCAD: whichever host a config names makes it."""
    cache = tmp_path / "made" / "gold"
    with Lab.opened(tmp_path / "lab") as lab:
        config = write_config(lab, count=1)
        ran = run_command(
            lab,
            *("gold", "build", "--config", str(config), "--gold-cache", str(cache), "--task", "plate"),
            *("--drawings", str(ROOT / "configs" / "gold" / "sources")),
        )
        left, launched, open_sessions = lab.alive(), len(lab.machines.all), lab.sessions.open_ids()

    assert 0 == ran.returncode, ran.stderr
    assert (1, [], []) == (launched, left, open_sessions)
    assert ["plate"] == list(json.loads(ran.stdout)["entries"])
    made, committed = (json.loads((folder / ENTRY).read_text()) for folder in (cache, ROOT / "configs" / "gold"))
    # Only the file differs, by the mark that says what it is.
    assert {**committed, "source": made["source"]} == made
