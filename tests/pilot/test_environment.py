"""Who may read the environment, and who may import what."""

from __future__ import annotations

import re
from pathlib import Path

PILOT = Path(__file__).parents[2] / "pilot"


def test_only_the_entry_point_reads_the_environment() -> None:
    """A value from the environment that reaches the loop cannot be seen in a spec, nor tested."""
    reads = re.compile(r"os\.environ|from os import .*environ|getenv|expandvars|expanduser|\.home\(\)")

    assert ["__main__.py"] == [path.name for path in sorted(PILOT.rglob("*.py")) if reads.search(path.read_text())]


def test_nobody_sleeps_or_looks_at_the_clock_behind_our_back() -> None:
    """Time is handed in, so that a test may hand in its own."""
    reads = re.compile(r"time\.sleep|datetime\.now|time\.time\(|random\.random\(|random\.choice\(")

    assert [] == [path.name for path in sorted(PILOT.rglob("*.py")) if reads.search(path.read_text())]
