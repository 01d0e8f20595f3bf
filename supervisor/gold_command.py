"""`gold verify`: check every file of a gold cache, and say all that is wrong with it at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any, Final

from contract.config import root_of
from contract.errors import EvaluationError, StateError
from contract.gold import Manifest
from contract.records import read_record
from evaluator_client.gold import load_entry

GOLD_SCHEMA: Final = "autocad-bench.gold-verify/1"


def run_verify(gold_cache: Path | None, *, stream: IO[str]) -> int:
    """Verify the cache, by default `configs/gold` of the repository around the working folder. Returns 0 or 1."""
    cache = gold_cache if gold_cache is not None else root_of(Path.cwd() / "any") / "configs" / "gold"
    entries, problems = verify(cache)
    document = {
        "schema": GOLD_SCHEMA,
        "ok": not problems,
        "gold_cache": str(cache),
        "entries": entries,
        "problems": problems,
    }
    stream.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    stream.flush()
    return 1 if problems else 0


def verify(cache: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of all entries, and a problem for each that is not whole. Raises nothing for what is in the cache."""
    try:
        manifest = read_record(cache / "manifest.json", Manifest)
    except StateError as error:
        code = "cache_schema" if (cache / "manifest.json").is_file() else "cache_missing"
        return [], [{"task_id": None, "code": code, "message": error.message, "hint": error.hint}]
    pinned = manifest.evaluator
    problems = []
    for task_id in sorted(manifest.entries):
        try:
            load_entry(cache, task_id, evaluator_name=pinned.name, evaluator_version=pinned.version)
        except EvaluationError as error:
            problems.append({"task_id": task_id, "code": error.code, "message": error.message, "hint": error.hint})
    return sorted(manifest.entries), problems
