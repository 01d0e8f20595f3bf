"""What one score costs, beside its targets (scoring contract, section 17).

    .venv/bin/python scripts/bench_score.py [--primitives 1000 10000 50000] [--check]

Each side has that many lines, circles and arcs at random places on four layers; of the candidate's, 5 % are missing,
5 % extra and the rest displaced by 0.02 % of the diagonal. From the bytes of both `metadata.json` to the deterministic
score, without the render. CPU counts all threads. `--check` ends with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contract.records import dump_pretty
from evaluator_client.collector import parse_metadata
from evaluator_client.gold import GoldEntry
from evaluator_client.score import score_drawing
from tests.sketches import Sketch, arc, circle, gold, line, metadata, moved

SHEET = (4_000.0, 3_000.0)
LAYERS = ("OUTLINE", "HOLES", "CENTER", "0")
NOISE_SHARE = 0.0002
CPU_S_MAX = {1_000: 0.15, 10_000: 1.0, 50_000: 6.0}
MEMORY_MIB_MAX = 1024


def sheet(count: int, seed: int) -> list[Sketch]:
    """Random curves of 2 to 80 units."""
    chance = random.Random(seed)
    drawing = []
    for _ in range(count):
        x, y = chance.uniform(0, SHEET[0]), chance.uniform(0, SHEET[1])
        kind, layer = chance.random(), chance.choice(LAYERS)
        if kind < 0.7:
            angle, length = chance.uniform(0, math.tau), chance.uniform(5, 80)
            drawing.append(line((x, y), (x + length * math.cos(angle), y + length * math.sin(angle)), layer))
        elif kind < 0.85:
            drawing.append(circle((x, y), chance.uniform(2, 20), layer))
        else:
            drawing.append(arc((x, y), chance.uniform(2, 20), chance.uniform(0, 360), chance.uniform(0, 360), layer))
    return drawing


def imperfect(drawing: list[Sketch], seed: int) -> list[Sketch]:
    """5 % missing, 5 % extra, the rest a little elsewhere."""
    chance = random.Random(seed)
    distance = NOISE_SHARE * math.hypot(*SHEET)
    copy = []
    for entity in drawing:
        if chance.random() >= 0.05:
            angle = chance.uniform(0, math.tau)
            copy += moved([entity], distance * math.cos(angle), distance * math.sin(angle))
    return copy + sheet(len(drawing) // 20, seed + 1)


def main() -> int:
    """Measure and print; 1 with `--check` and a missed target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--primitives", type=int, nargs="+", default=sorted(CPU_S_MAX))
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    args = parser.parse_args()
    _measure(200, rounds=1)  # so that what is imported counts for nothing
    is_missed = False
    print(f"{'primitives':>10} {'CPU s':>7} {'at most':>8} {'wall s':>7} {'peak MiB':>9}")
    for count in args.primitives:
        cpu_s, wall_s = _measure(count, rounds=3 if count <= 10_000 else 1)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        target_s = CPU_S_MAX.get(count, math.inf)
        is_missed |= cpu_s > target_s or peak_mib > MEMORY_MIB_MAX
        print(f"{count:>10} {cpu_s:>7.2f} {target_s:>8.2f} {wall_s:>7.2f} {peak_mib:>9.0f}")
    return 1 if args.check and is_missed else 0


def _measure(count: int, *, rounds: int) -> tuple[float, float]:
    """CPU and wall seconds of the best round."""
    drawing = sheet(count, 1)
    ours, theirs = dump_pretty(metadata(drawing)), dump_pretty(metadata(imperfect(drawing, 2)))
    entry = gold(drawing[:1]).entry
    best = (math.inf, math.inf)
    for _ in range(rounds):
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        reference = GoldEntry(entry, parse_metadata(ours, source="gold"), b"", "0" * 64)
        digest = hashlib.sha256(theirs).hexdigest()
        candidate = parse_metadata(theirs, source="candidate")
        score_drawing(candidate=candidate, render=None, gold=reference, candidate_sha256=digest)
        best = min(best, (time.process_time() - cpu_s, time.perf_counter() - wall_s))
    return best


if __name__ == "__main__":
    sys.exit(main())
