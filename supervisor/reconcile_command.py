"""`reconcile`: say what batches left alive, or end it, as one JSON document; stderr has a line for each finding."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from contract.run_dir import BatchDir
from supervisor.reconcile import BatchFindings, end, exit_status, find_batches, report

RECONCILE_SCHEMA: Final = "autocad-bench.reconcile/1"


def run_reconcile(*, run_dir: Path | None, runs: Path, is_execute: bool) -> int:
    """Look at the batch in `run_dir`, or at all below `runs`. Returns 1 when something is left or cannot be seen."""
    batch_dirs = [BatchDir(run_dir)] if run_dir is not None else find_batches(runs)
    if is_execute:
        import anyio

        findings = anyio.run(end, batch_dirs)
    else:
        findings = report(batch_dirs)
    for found in findings:
        for line in _lines(found):
            print(line, file=sys.stderr)
    code = exit_status(findings)
    document = {
        "schema": RECONCILE_SCHEMA,
        "ok": code == 0,
        "executed": is_execute,
        "batches": [_document(found) for found in findings],
    }
    print(json.dumps(document, indent=2, ensure_ascii=False))
    return code


def _document(found: BatchFindings) -> dict[str, Any]:
    return {
        "batch_dir": str(found.folder),
        "batch_id": found.batch_id,
        "is_running": found.is_owned,
        "hosts_in_use": found.hosts_in_use,
        "left": [
            {"host_id": host.host_id, "rollout_id": host.rollout_id, "processes": list(host.processes)}
            for host in found.left
        ],
        "unsettled": list(found.unsettled),
        "ended": list(found.ended),
        "voided": found.voided,
        "problem": found.problem or None,
    }


def _lines(found: BatchFindings) -> list[str]:
    where = f"{found.folder} ({found.batch_id})"
    if found.problem:
        return [f"{where}: {found.problem}"]
    lines = [
        f"{where}: host {host.host_id} of {host.rollout_id} "
        f"{'was ended' if host.host_id in found.ended else 'is alive without a controller'}"
        for host in found.left
    ]
    if found.voided:
        lines.append(f"{where}: {found.voided} rollouts of the dead controller were recorded as void")
    return lines
