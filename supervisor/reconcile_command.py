"""`reconcile`: say what batches left alive, or end it, as one JSON document; stderr has a line for each finding."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from contract.run_dir import BatchDir
from supervisor.cloud.ports import Instance
from supervisor.issues import few
from supervisor.keepers import Keepers, open_aws
from supervisor.reconcile import BatchFindings, end, exit_status, find_batches, report

RECONCILE_SCHEMA: Final = "autocad-bench.reconcile/1"


def run_reconcile(*, run_dir: Path | None, runs: Path, is_execute: bool) -> int:
    """Look at the batch in `run_dir`, or at all below `runs`. Returns 1 when something is left or cannot be seen."""
    batch_dirs = [BatchDir(run_dir)] if run_dir is not None else find_batches(runs)
    keepers = Keepers(open_aws)
    if is_execute:
        import anyio

        findings = anyio.run(partial(end, batch_dirs, keepers=keepers))
    else:
        findings = report(batch_dirs, keepers=keepers)
    for found in findings:
        for line in _lines(found, is_executed=is_execute):
            print(line, file=sys.stderr)
    ended = {host.instance_id for found in findings if found.ended for host in found.left}
    expired = [instance for instance in keepers.expired(datetime.now(UTC)) if instance.instance_id not in ended]
    for instance in expired:
        print(_expired_line(instance), file=sys.stderr)
    code = exit_status(findings) or int(bool(expired))
    document = {
        "schema": RECONCILE_SCHEMA,
        "ok": code == 0,
        "executed": is_execute,
        "batches": [_document(found) for found in findings],
        "expired": [
            {"instance_id": instance.instance_id, "tags": dict(sorted(instance.tags.items()))} for instance in expired
        ],
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
            {
                "host_id": host.host_id,
                "rollout_id": host.rollout_id,
                "processes": list(host.processes),
                "instance_id": host.instance_id,
            }
            for host in found.left
        ],
        "strangers": list(found.strangers),
        "unsettled": list(found.unsettled),
        "ended": list(found.ended),
        "voided": found.voided,
        "problem": found.problem or None,
    }


def _lines(found: BatchFindings, *, is_executed: bool) -> list[str]:
    where = f"{found.folder} ({found.batch_id})"
    if found.problem:
        return [f"{where}: {found.problem}"]
    lines = [
        f"{where}: host {host.host_id} of {host.rollout_id} "
        f"{'was ended' if host.host_id in found.ended else 'is alive without a controller'}"
        for host in found.left
    ]
    lines += [
        f"{where}: {instance_id} carries the tags of this batch, which did not launch it; it is left alone"
        for instance_id in found.strangers
    ]
    if found.voided:
        lines.append(f"{where}: {found.voided} rollouts of the dead controller were recorded as void")
    elif found.unsettled and not is_executed:
        lines.append(
            f"{where}: its controller died before {few(list(found.unsettled))} ended; go on with batch --resume, or "
            f"record that with --execute"
        )
    return lines


def _expired_line(instance: Instance) -> str:
    batch_id = instance.tags.get("BatchId", "an unknown batch")
    return (
        f"{instance.instance_id} of {batch_id} should have ended at {instance.tags.get('ExpiresAt')}; "
        f"reconcile where the run folder of that batch is, or terminate it by hand"
    )
