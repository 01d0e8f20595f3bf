"""Measure how long a sandbox is still there after SIGKILL of one of its processes, on real desktops.

    python scripts/bench_kills.py

A batch of two rollouts for each victim: the longest time over both modes from the signal until no process of the host
and no pilot of that rollout is alive. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benching import Row  # noqa: E402 - found through the line above when not installed

from supervisor.processes import facts_of, is_alive  # noqa: E402
from tests.live_batch import LiveBatch  # noqa: E402

# DESIGN promises a second for a desktop whose owner died; the operator's contract two for everything of a sandbox.
GONE_S_MAX: Final = 2.0
LOOK_S: Final = 0.005
VICTIMS: Final = ("pilot", "broker", "librecad", "Xvfb", "controller")
MODES: Final = ("process", "shared")


def main() -> int:
    """Measure and print."""
    rows = []
    for victim in VICTIMS:
        # In shared mode the pilot has no process of its own.
        modes = MODES[:1] if victim == "pilot" else MODES
        rows.append(Row(f"gone after SIGKILL of the {victim}", max(map(gone_s, [victim] * 2, modes)), GONE_S_MAX, "s"))
        print(rows[-1], flush=True)
    return 0 if all(row.is_met for row in rows) else 1


def gone_s(victim: str, mode: str) -> float:
    """Seconds until nothing of the first rollout's sandbox is alive."""
    with tempfile.TemporaryDirectory(prefix="bench-kills-") as folder:
        batch = LiveBatch(Path(folder), count=2, max_concurrency=2, turns=200, mode=mode, host={"kind": "local"})
        try:
            batch.start()
            batch.wait_until_playing()
            return _struck(batch, victim)
        finally:
            batch.end_everything()


def _struck(batch: LiveBatch, victim: str) -> float:
    host_id = str(batch.row("r-0").host_id)
    pilot = batch.pilot_of("r-0")
    watched = [facts for pid in [pilot] if pid is not None and (facts := facts_of(pid)) is not None]
    match victim:
        case "pilot":
            pid = pilot
        case "broker":
            pid = batch.broker_of("r-0")
        case "controller":
            pid = batch.process.pid if batch.process else None
        case _:
            [pid] = batch.programs_of(host_id, victim)
    assert pid is not None, f"the batch has no {victim}"
    begun_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while batch.alive([host_id]) or any(is_alive(one.pid, one.started_s) for one in watched):
        time.sleep(LOOK_S)
    return time.monotonic() - begun_s


if __name__ == "__main__":
    sys.exit(main())
