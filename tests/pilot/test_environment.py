"""Who may read the environment, and who may import what."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PILOT = Path(__file__).parents[2] / "pilot"


def test_only_the_entry_point_reads_the_environment() -> None:
    """A value from the environment that reaches the loop cannot be seen in a spec, nor tested."""
    reads = re.compile(r"environ|getenv|expandvars|expanduser|\.home\(\)")

    assert ["__main__.py"] == [path.name for path in sorted(PILOT.rglob("*.py")) if reads.search(path.read_text())]


def test_nobody_sleeps_or_looks_at_the_clock_behind_our_back() -> None:
    """Time is handed in, so that a test may hand in its own."""
    reads = re.compile(r"time\.sleep|datetime\.now|time\.time\(|random\.random\(|random\.choice\(")

    assert ["ports.py"] == [path.name for path in sorted(PILOT.rglob("*.py")) if reads.search(path.read_text())]


def test_a_pilot_imports_nothing_that_its_start_would_pay_for() -> None:
    """Each of these costs milliseconds of CPU before the first model request, and does nothing for a pilot."""
    program = (
        "import sys, pilot.__main__ as entry; entry.leave_out_plugins();\n"
        "import pilot.process\n"
        "from contract.rollout_records import RolloutSpec\n"
        "RolloutSpec.model_rebuild()\n"
        "print(*sys.modules)\n"
    )
    output = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, check=True, text=True).stdout

    heavy = {"requests", "urllib3", "http.client", "email.message", "importlib.metadata", "numpy", "PIL", "ezdxf"}
    heavy |= {"click", "fastapi", "contract.config", "contract.batch_records", "supervisor", "broker"}
    assert set() == heavy & set(output.split())
