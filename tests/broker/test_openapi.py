"""The published OpenAPI document is the one that the broker serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_published_document_is_current() -> None:
    """`scripts/publish_openapi.py` rebuilds it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "publish_openapi.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
