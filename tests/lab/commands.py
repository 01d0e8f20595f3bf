"""The real command against the lab: a config of the repository's own suite, played by models that need no account."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[2]


def write_config(
    lab: Lab, *, count: int = 1, driver: str = "paper", host: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """A config of `count` rollouts by models that do nothing, on this lab's hosts."""
    tasks = ("plate", "shaft", "flange", "bracket", "gasket", "stair", "floor-plan", "gear-cover")
    document = {
        "schema": "autocad-bench.config/1",
        "benchmark": "lab",
        "task_suites_dir": str(ROOT / "configs" / "suites"),
        "expected_rollouts": count,
        "max_concurrency": count,
        "broker_version": "1.0",
        "host": lab.host_config(driver, **(host or {})),
        "evaluator": {"name": "ezdxf", "version": _evaluator_version(), "gold_cache": str(ROOT / "configs" / "gold")},
        "rollouts": [
            {"rollout_id": f"r-{number}", "task": tasks[number % 8], "provider": "noop", "model": f"m-{number}"}
            for number in range(count)
        ],
        **changes,
    }
    path = lab.folder / "config.json"
    path.write_text(json.dumps(document))
    return path


def run_command(lab: Lab, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """`autocad-bench` with these arguments, in the environment of the lab's operator."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor.cli", *arguments],
        env=lab.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _evaluator_version() -> str:
    from broker.evaluator.version import EVALUATOR_VERSION

    return EVALUATOR_VERSION
