"""Kills controllers and pilots of real batches on a stand-in of AWS, seed by seed, and prints what was left.

    .venv/bin/python scripts/kills_ec2.py [--first SEED] [--count N] [--jobs 2] [--keep FOLDER]

Each seed is a batch of the real command on paper guests, a moment at which somebody is killed, and what comes after:
nobody until the lease is over, a reconciler, a resume, or a resume that is killed too. Exit status 1 when a promise was
broken; the seed and the command that plays it again are printed then.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from tests.lab.stories import Told


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="default %(default)s")
    parser.add_argument("--count", type=int, default=10, metavar="N", help="so many seeds (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="so many at once (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files of broken seeds here")
    options = parser.parse_args()

    told: list[Told] = []
    print(f"{'seed':>5} {'blow':<46} {'after':<15} {'exits':<15} {'calls':>5} {'inst.':>5} {'went on':>7} {'s':>5}")
    # Processes of their own: an account is made of what a process has only one of.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=20) as pool:
        seeds = range(options.first, options.first + options.count)
        for future in as_completed([pool.submit(play, seed, options.keep) for seed in seeds]):
            told.append(future.result())
            print(_line(told[-1]), flush=True)
            _complain(told[-1])
    _sum_up(told)
    return int(any(one.broken for one in told))


def play(seed: int, keep: Path | None) -> Told:
    """One seed, in a folder that goes when all is well."""
    from tests.lab.death_story import tell

    folder = Path(tempfile.mkdtemp(prefix="autocad-bench-deaths-"))
    try:
        told = tell(seed, folder)
        if told.broken and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder, keep / str(seed), dirs_exist_ok=True)
        return told
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _line(told: Told) -> str:
    story = told.story
    blow = f"{story.blow}{'' if told.has_struck else ' (never came)'}"
    remarks = ["BROKEN"] if told.broken else []
    remarks += [f"refused: {told.refused}"] if told.refused else []
    remarks += [f"void: {reason}" for reason in told.given_up]
    codes = " ".join(str(code) for code in told.codes)
    return (
        f"{story.seed:>5} {blow:<46} {story.aftermath:<15} {codes:<15} {told.calls:>5} {told.launched:>5} "
        f"{told.continued:>7} {told.took_s:>5.1f} {'; '.join(remarks)}"
    )


def _complain(told: Told) -> None:
    if not told.broken:
        return
    print(f"seed {told.story.seed}: {told.story}", file=sys.stderr)
    print("".join(f"  {promise}\n" for promise in told.broken), end="", file=sys.stderr)
    print(f"  again: scripts/kills_ec2.py --first {told.story.seed} --count 1 --keep FOLDER", file=sys.stderr)


def _sum_up(told: Sequence[Told]) -> None:
    struck = [one for one in told if one.has_struck]
    died = sum(one.codes[0] < 0 for one in told)
    print(
        f"\n{len(told)} seeds, {len(struck)} of them struck, {died} controllers killed by it; "
        f"{sum(one.launched for one in told)} instances, {sum(one.calls for one in told)} calls, "
        f"{sum(one.continued for one in told)} rollouts went on after their controller's death, "
        f"{sum(len(one.given_up) for one in told)} were void; {sum(bool(one.broken) for one in told)} seeds broken"
    )


if __name__ == "__main__":
    sys.exit(main())
