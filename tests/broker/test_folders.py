"""What killed brokers leave is removed, and nothing of anybody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from broker.desktop.folders import make_folder


def test_a_dead_owners_folder_is_removed_and_no_other(tmp_path: Path) -> None:
    """They lie in /tmp, where a folder `desktop-2024-backup` may be somebody's."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stale = tmp_path / f"autocad-bench-desktop-{dead.pid}-x"
    others = [tmp_path / f"desktop-{dead.pid}-backup", tmp_path / f"autocad-bench-screen-{dead.pid}-x"]
    for folder in (stale, *others):
        (folder / "home").mkdir(parents=True)
    mine = make_folder("desktop", tmp_path)
    second = make_folder("desktop", tmp_path)

    assert sorted([mine, second, *others]) == sorted(tmp_path.iterdir())
