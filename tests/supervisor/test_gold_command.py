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

    issues = json.loads(ran.stdout)["issues"]
    expected = [("box", "cache_checksum"), ("line", "cache_missing")]
    assert expected == [(issue["task_id"], issue["code"]) for issue in issues]
    assert 1 == ran.exit_code


def test_no_cache_at_all_is_one_issue(plan_world: Any) -> None:
    """A wrong path is said as such."""
    ran = plan_world.bench("gold", "verify", "--gold-cache", str(plan_world.root / "no"))

    (issue,) = json.loads(ran.stdout)["issues"]
    assert ("cache_missing", 1) == (issue["code"], ran.exit_code)
