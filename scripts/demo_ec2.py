"""Plays the demo batch on EC2 hosts of a stand-in AWS on this machine, and says what the cloud saw.

Everything is the real thing but AWS itself: the command, preflight, launches, the Session Manager plugin's process and
the relay in front of it, the broker's start from user data, LibreCAD, the presigned uploads, the terminations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    """The command's exit status; 1 when an instance is left as well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", type=Path, required=True, help="a new folder for the batch")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "local-demo.json")
    parser.add_argument("--driver", choices=("librecad", "paper"), default="librecad")
    parser.add_argument("--mode", choices=("process", "shared"), default="process")
    parser.add_argument("--boot-s", type=float, default=2.0, help="how long an instance boots (default %(default)s)")
    arguments = parser.parse_args()

    from tests.lab.lab import Lab

    with tempfile.TemporaryDirectory(prefix="autocad-bench-lab-") as folder:
        print("Opening the stand-in of AWS ...", file=sys.stderr)
        with Lab.opened(Path(folder), boot_s=arguments.boot_s) as lab:
            config = Path(folder) / "config.json"
            config.write_text(json.dumps(_config(arguments.config, lab.host_config(arguments.driver)), indent=2))
            status = subprocess.run(
                [
                    *(sys.executable, "-m", "supervisor.cli", "batch", "--config", str(config), "--execute"),
                    *("--output-dir", str(arguments.output_dir), "--mode", arguments.mode),
                ],
                env=lab.environment,
                cwd=ROOT,
                check=False,
            ).returncode
            _tell(lab)
            return status or int(bool(lab.alive()))


def _config(path: Path, host: dict[str, Any]) -> dict[str, Any]:
    """The config with its paths made absolute and its host replaced."""
    document: dict[str, Any] = json.loads(path.read_text())
    document["benchmark"] = "ec2-demo"
    document["host"] = host
    document["task_suites_dir"] = str(ROOT / document.get("task_suites_dir", "configs/suites"))
    document["evaluator"]["gold_cache"] = str(ROOT / document["evaluator"]["gold_cache"])
    if document.get("pricing"):
        document["pricing"] = str(ROOT / document["pricing"])
    return document


def _tell(lab: Any) -> None:
    """What the cloud saw, in a few lines."""
    counts = Counter(call.action for call in lab.calls if not call.is_dry_run)
    dry_runs = sum(call.is_dry_run for call in lab.calls)
    print("\nWhat the stand-in of AWS saw:", file=sys.stderr)
    for action, count in sorted(counts.items()):
        print(f"  {action:<32} {count:>4}", file=sys.stderr)
    print(f"  {'dry runs':<32} {dry_runs:>4}", file=sys.stderr)
    for what, count in {
        "instances launched": len(lab.machines.all),
        "hosts launched twice": len(lab.double_launches()),
        "instances terminated": len({name for call in lab.called("TerminateInstances") for name in call.resources}),
        "instances left": len(lab.alive()),
        "sessions opened": len(lab.sessions.all),
        "sessions left open": len(lab.sessions.open_ids()),
        "artifacts uploaded": counts["PutObject"],
    }.items():
        print(f"{what + ':':<34} {count:>4}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
