"""What scoring a finished batch again costs, beside its target: 500 archived rollouts in 60 s on two cores.

    .venv/bin/python scripts/bench_rescore.py [--rollouts 500] [--keep FOLDER] [--profile] [--check]

The archive is made first and not timed: each task of the suite in turn, drawn by the trusted evaluator from its gold
with a share of the entities left out and one moved, so that no two neighbours have the same pictures to compare. Then
`evaluate` runs over it as an operator runs it, in a process of its own. Ratios are measured / allowed. `--profile`
scores 40 of the rollouts in this process instead and prints where the time goes; `--check` ends with 1 when the target
is missed.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import io
import json
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ezdxf.filemanagement import readfile

from broker.evaluator.export import Facts
from broker.evaluator.render import render_flats
from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.config import BatchConfig
from contract.evaluation_records import EvaluatorName, Stage
from contract.records import dump_pretty
from contract.run_dir import BatchDir, EvaluationDir
from evaluator_client.gold import GoldEntry, load_entry
from evaluator_client.score import score_drawing
from evaluator_client.status import StatusFile
from scripts.benching import ROOT, Row

GOLD = ROOT / "configs" / "gold"
SOURCES = GOLD / "sources"
ROLLOUTS = 500
TARGET_S = 60.0
# Each task is drawn in so many ways.
WAYS = 4
PROFILED = 40
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVALUATOR = EvaluatorName(name=EVALUATOR_NAME, version=EVALUATOR_VERSION)
# A scorer writes score, delta, diff and overlay; only what a person may look at counts as a file here.
STAGES = (
    Stage.EXPORTING,
    Stage.EXPORTED,
    Stage.RENDERING,
    Stage.RENDERED,
    Stage.SCORING,
    Stage.SCORED,
    Stage.COMPLETE,
)


def main() -> int:
    """Make the archive, score it again, print; 1 with `--check` and a missed target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--keep", type=Path, help="make the archive here and leave it")
    parser.add_argument("--profile", action="store_true", help=f"profile {PROFILED} rollouts in this process")
    parser.add_argument("--check", action="store_true", help="exit 1 when the target is missed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autocad-bench-rescore-") as scratch:
        batch_dir = BatchDir(args.keep if args.keep is not None else Path(scratch) / "batch")
        make_archive(batch_dir, args.rollouts)
        if args.profile:
            print(profile(batch_dir))
            return 0
        wall_s = timed(batch_dir)
    row = Row(f"{args.rollouts} rollouts scored again", wall_s, TARGET_S * args.rollouts / ROLLOUTS, "s")
    print(row)
    assert row.target is not None
    print(f"  ratio to the target {wall_s / row.target:.2f}, {1000 * wall_s / args.rollouts:.0f} ms a rollout")
    return 1 if args.check and not row.is_met else 0


def make_archive(batch_dir: BatchDir, count: int) -> None:
    """A batch folder as far as scoring again reads it."""
    tasks = sorted(path.stem for path in SOURCES.glob("*.dxf"))
    golds = {
        task: load_entry(GOLD, task, evaluator_name=EVALUATOR.name, evaluator_version=EVALUATOR.version)
        for task in tasks
    }
    ids = [f"r-{number:04d}" for number in range(count)]
    first: dict[tuple[str, int], EvaluationDir] = {}
    for number, rollout_id in enumerate(ids):
        kind = (tasks[number % len(tasks)], number // len(tasks) % WAYS)
        evaluation = batch_dir.rollout(rollout_id).evaluation
        evaluation.root.parent.mkdir(parents=True)
        if kind in first:
            shutil.copytree(first[kind].root, evaluation.root)
        else:
            evaluate(golds[kind[0]], drawn(kind[0], kind[1]), evaluation)
            first[kind] = evaluation
    document = {
        "schema": "autocad-bench.config/1",
        "benchmark": "rescore",
        "expected_rollouts": count,
        "max_concurrency": 1,
        "broker_version": "1.0",
        "host": {"kind": "local"},
        "evaluator": {"name": EVALUATOR.name, "version": EVALUATOR.version, "gold_cache": str(GOLD)},
        "rollouts": [
            {"rollout_id": rollout_id, "task": tasks[number % len(tasks)], "provider": "noop", "model": "noop"}
            for number, rollout_id in enumerate(ids)
        ],
    }
    batch_dir.config.write_bytes(dump_pretty(BatchConfig.model_validate_json(json.dumps(document))))


def drawn(task: str, way: int) -> bytes:
    """The gold's drawing with every so-and-so-many-th entity left out, and the first one moved."""
    document = readfile(SOURCES / f"{task}.dxf")
    space = document.modelspace()
    for number, entity in enumerate(list(space)):
        if way and number % (10 - 2 * way) == 1:
            space.delete_entity(entity)
        elif way and number == 0:
            entity.translate(2.0 * way, 1.0, 0.0)
    stream = io.StringIO()
    document.write(stream)
    return stream.getvalue().encode()


def evaluate(gold: GoldEntry, drawing: bytes, evaluation: EvaluationDir) -> None:
    """What an evaluation leaves of this drawing."""
    status = StatusFile(evaluation, EVALUATOR, utc_now=lambda: NOON)
    facts = Facts.of(drawing)
    metadata = facts.metadata(None)
    content = dump_pretty(metadata)
    render = render_flats(facts.flats, window=gold.window, size_px=gold.size_px, offset=(0.0, 0.0))
    digest = hashlib.sha256(content).hexdigest()
    scored = score_drawing(candidate=metadata, render=render, gold=gold, candidate_sha256=digest)
    assert scored.pictures is not None
    evaluation.metadata.write_bytes(content)
    evaluation.render.write_bytes(render)
    evaluation.diff.write_bytes(scored.pictures.diff_png)
    evaluation.overlay.write_bytes(scored.pictures.overlay_png)
    evaluation.score.write_bytes(scored.score_json)
    for stage in STAGES:
        status.enter(stage)


def timed(batch_dir: BatchDir) -> float:
    """Wall seconds of the command over the whole archive, start-up included."""
    command = [sys.executable, "-m", "supervisor.cli", "evaluate", str(batch_dir.root), "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    wall_s = time.perf_counter() - began
    rows = json.loads(done.stdout)["rollouts"]
    assert all(row["delta"]["is_identical"] for row in rows), "the same versions must give the same bytes"
    return wall_s


def profile(batch_dir: BatchDir) -> str:
    """Where the time of some of the rollouts goes, by function."""
    from evaluator_client.rescore import rescore

    runs = sorted(batch_dir.rollouts.iterdir())[:PROFILED]
    profiler = cProfile.Profile()
    profiler.enable()
    for run in runs:
        rescore(batch_dir.rollout(run.name), gold_dir=GOLD, evaluator=EVALUATOR)
    profiler.disable()
    stream = io.StringIO()
    pstats.Stats(profiler, stream=stream).sort_stats("cumulative").print_stats(45)
    return stream.getvalue()


if __name__ == "__main__":
    sys.exit(main())
