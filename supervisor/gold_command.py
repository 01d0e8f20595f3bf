"""`gold verify`: check every file of a gold cache, and say all that is wrong with it at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

from contract.config import root_of
from contract.errors import EvaluationError
from evaluator_client.gold import read_manifest, verify_cache

GOLD_SCHEMA: Final = "autocad-bench.gold-verify/1"


def run_verify(gold_cache: Path | None, *, stream: IO[str]) -> int:
    """Verify the cache, by default `configs/gold` of the repository around the working folder. Returns 0 or 1."""
    cache = gold_cache if gold_cache is not None else root_of(Path.cwd() / "any") / "configs" / "gold"
    issues = verify_cache(cache)
    document = {
        "schema": GOLD_SCHEMA,
        "ok": not issues,
        "gold_cache": str(cache),
        "entries": _entries(cache),
        "issues": [asdict(issue) for issue in issues],
    }
    stream.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    stream.flush()
    return 1 if issues else 0


def _entries(cache: Path) -> list[str]:
    try:
        return sorted(read_manifest(cache).entries)
    except EvaluationError:
        # `verify_cache` has said why.
        return []
