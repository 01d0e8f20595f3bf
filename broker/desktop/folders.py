"""The folders of one desktop: they may lie in /tmp and /dev/shm, among those of other desktops and other programs."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "autocad-bench"


def make_folder(kind: str, parent: Path) -> Path:
    """A fresh folder of our own in `parent`. What killed brokers left of the same kind goes first, and nothing else."""
    prefix = f"{PREFIX}-{kind}-"
    for folder in parent.glob(f"{prefix}*-*"):
        # The owner's number is in the name.
        pid = folder.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


def home_env(home: Path) -> dict[str, str]:
    """What has a program keep its files below `home`."""
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_RUNTIME_DIR": str(home / ".run"),
    }
