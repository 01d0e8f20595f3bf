"""`gold verify` names every damaged entry in one pass."""

from __future__ import annotations

import json
from typing import Any


def test_a_whole_cache_is_ok(plan_world: Any) -> None:
    """The exit status is enough for cron."""
    ran = plan_world.bench("gold", "verify", "--gold-cache", str(plan_world.root / "gold"))

    document = json.loads(ran.stdout)
    assert (0, True, ["box", "dot", "line"]) == (ran.exit_code, document["ok"], document["entries"])


def test_every_damaged_entry_is_named(plan_world: Any) -> None:
    """A cache is mended once, not once for each file."""
    gold = plan_world.root / "gold" / "ezdxf-1.0.0"
    (gold / "box" / "render.png").write_bytes(b"rendez")
    (gold / "line" / "metadata.json").unlink()

    ran = plan_world.bench("gold", "verify", "--gold-cache", str(plan_world.root / "gold"))

    problems = json.loads(ran.stdout)["problems"]
    expected = [("box", "cache_checksum"), ("line", "cache_missing")]
    assert expected == [(problem["task_id"], problem["code"]) for problem in problems]
    assert 1 == ran.exit_code


def test_no_cache_at_all_is_one_problem(plan_world: Any) -> None:
    """A wrong path is said as such."""
    ran = plan_world.bench("gold", "verify", "--gold-cache", str(plan_world.root / "no"))

    (problem,) = json.loads(ran.stdout)["problems"]
    assert ("cache_missing", 1) == (problem["code"], ran.exit_code)
