"""What preflight learns about this machine without starting a desktop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.desktop.isolation import IsolationKind, available
from broker.desktop.requirements import PROGRAMS, missing_programs

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup-desktop"


def test_what_is_missing_is_named_with_its_package(tmp_path: Path) -> None:
    """The operator reads which apt package to install."""
    missing = missing_programs(path=str(tmp_path))

    assert len(PROGRAMS) == len(missing)
    assert "Xvfb (Debian package xvfb)" in missing


def test_the_isolation_says_why() -> None:
    """Without walls the reason is what preflight shows; it is one line always."""
    report = available()

    assert report.kind in IsolationKind
    assert report.reason
    assert "\n" not in report.reason


def test_trying_the_walls_hands_on_nothing_of_the_environment(tmp_path: Path) -> None:
    """It is preflight that tries them, and preflight runs where all keys are."""
    seen = tmp_path / "seen"
    for name in ("bwrap", "setpriv", "unshare"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n/usr/bin/env >> {seen}\nexit 1\n")
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OPENAI_API_KEY": "canary"}
    code = "from broker.desktop.isolation import available; available()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)

    assert "PATH=" in seen.read_text()
    assert "canary" not in seen.read_text()


@pytest.mark.desktop
def test_setup_does_nothing_where_all_is_installed() -> None:
    """`make demo` calls it every time; it must not need the network or root then."""
    done = subprocess.run([str(SETUP)], capture_output=True, text=True, check=False)

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_setup_says_one_line_where_apt_is_missing(tmp_path: Path) -> None:
    """Another distribution: exit code 3 and the names of what is needed."""
    (tmp_path / "bash").symlink_to("/bin/bash")
    done = subprocess.run(
        ["/bin/bash", str(SETUP)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )

    assert done.returncode == 3
    assert [1, True] == [len(done.stderr.splitlines()), "librecad" in done.stderr]
