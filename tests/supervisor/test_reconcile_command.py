"""`reconcile` prints one JSON document and is nonzero when somebody has to look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_no_batches_are_no_leftovers(plan_world: Any, tmp_path: Path) -> None:
    """A cron job may run before the first batch."""
    ran = plan_world.bench("reconcile", "--all", "--runs", str(tmp_path / "runs"))

    assert (0, []) == (ran.exit_code, json.loads(ran.stdout)["batches"])


@pytest.mark.parametrize("more", [[], ["--execute"]])
def test_a_folder_that_cannot_be_looked_at_needs_attention(plan_world: Any, tmp_path: Path, more: list[str]) -> None:
    """Silence about a batch that was asked for would be a lie."""
    ran = plan_world.bench("reconcile", "--run-dir", str(tmp_path), *more)

    document = json.loads(ran.stdout)
    assert (1, False, bool(more)) == (ran.exit_code, document["ok"], document["executed"])
    assert document["batches"][0]["problem"]


@pytest.mark.parametrize("arguments", [[], ["--all", "--run-dir", "d"]])
def test_one_of_the_two_must_be_named(plan_world: Any, arguments: list[str]) -> None:
    """Ending hosts of every batch is never a default."""
    assert 2 == plan_world.bench("reconcile", *arguments).exit_code
