"""Play a list of actions on LibreCAD through the driver, in this process, and keep the drawing and the frames.

    python scripts/desk_play.py SEED.dxf ACTIONS.json OUT.dxf [--frames DIR] [--one-by-one]

ACTIONS.json is a list of actions (contract/actions.py), a list of lists (each played as one ActionBatch), or an object
with one of these as "actions".
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from broker.drivers.librecad import LibreCadDriver
from contract.actions import Action, InvalidActions, parse_action_batch


def main() -> int:
    """Play, store, print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=Path)
    parser.add_argument("actions", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--frames", type=Path, help="store the frame after each ActionBatch here")
    parser.add_argument("--one-by-one", action="store_true", help="one ActionBatch, and so one frame, per action")
    args = parser.parse_args()
    batches = _read_batches(args.actions)
    if args.one_by_one:
        batches = [(action,) for actions in batches for action in actions]
    if args.frames:
        args.frames.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="desk-play-") as state_dir:
        driver = LibreCadDriver(Path(state_dir), base_env={"PATH": os.environ["PATH"]})
        try:
            return _play(driver, args, batches)
        finally:
            driver.close()


def _play(driver: LibreCadDriver, args: argparse.Namespace, batches: list[tuple[Action, ...]]) -> int:
    began = time.monotonic()
    driver.prepare()
    prepared = time.monotonic()
    frames = [driver.reset(args.seed.read_bytes())]
    reset = time.monotonic()
    took_s = []
    for actions in batches:
        at = time.monotonic()
        acted = driver.act(actions)
        took_s.append((time.monotonic() - at) / max(1, len(actions)))
        frames.append(acted.frame)
    played = time.monotonic()
    shutil.copyfile(driver.save(), args.out)
    saved = time.monotonic()
    for sequence, frame in enumerate(frames):
        if args.frames:
            (args.frames / f"frame-{sequence:04d}.png").write_bytes(frame.png)
        print(f"{sequence:4d} {frame.verdict} settle {frame.settle_s:.3f} s  {frame.sha256[:12]}")
    print(
        f"prepare {prepared - began:.2f} s, reset {reset - prepared:.2f} s, "
        f"{sum(map(len, batches))} actions {played - reset:.2f} s "
        f"(median {statistics.median(took_s) * 1000:.0f} ms each), save {saved - played:.2f} s"
    )
    return 0


def _read_batches(path: Path) -> list[tuple[Action, ...]]:
    content = json.loads(path.read_text())
    listed = content["actions"] if isinstance(content, dict) else content
    lists = listed if listed and isinstance(listed[0], list) else [listed]
    batches = []
    for actions in lists:
        parsed = parse_action_batch({"actions": actions}, budget=1_000_000)
        if isinstance(parsed, InvalidActions):
            raise SystemExit(f"{path}: {parsed.reason}")
        batches.append(parsed)
    return batches


if __name__ == "__main__":
    sys.exit(main())
