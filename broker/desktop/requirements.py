"""What a desktop needs of this machine, for a preflight that starts nothing."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from broker.desktop.xserver import SOCKET_DIR

# Program -> the Debian package that has it.
PROGRAMS: Final[dict[str, str]] = {
    "librecad": "librecad",
    "Xvfb": "xvfb",
    "openbox": "openbox",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
}
# Servers look for a free number upwards from 0; a machine with this many X servers has another problem.
DISPLAYS_MAX: Final = 1_000
# The framebuffer of one desktop: 1920 * 1080 * 4 bytes and a header.
SCREEN_BYTES: Final = 8_300_000


def missing_programs(path: str | None = None) -> list[str]:
    """One line for each program that is not on `path` (None: the process's own), with its Debian package."""
    return [
        f"{program} (Debian package {package})"
        for program, package in PROGRAMS.items()
        if shutil.which(program, path=path) is None
    ]


def display_problem() -> str | None:
    """Why no X server could get a display here, in one line; None when one can."""
    problem = _socket_dir_problem(SOCKET_DIR)
    if problem is not None:
        return problem
    taken = {path.name for path in SOCKET_DIR.iterdir()} if SOCKET_DIR.is_dir() else set()
    if all(f"X{number}" in taken for number in range(DISPLAYS_MAX)):
        return f"all {DISPLAYS_MAX} X displays of this machine are taken"
    memory = Path("/dev/shm")
    if memory.is_dir():
        facts = os.statvfs(memory)
        if facts.f_bavail * facts.f_frsize < SCREEN_BYTES:
            return f"{memory} is full; each desktop keeps its screen there"
    return None


def _socket_dir_problem(folder: Path) -> str | None:
    try:
        facts = folder.stat()
    except FileNotFoundError:
        return None if os.access(folder.parent, os.W_OK | os.X_OK) else f"{folder} does not exist and cannot be made"
    if not stat.S_ISDIR(facts.st_mode):
        return f"{folder} is not a folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable"
