"""Build task suite `local-2d-v1` and its gold, or check that what is committed is what is built.

    python scripts/build_suite.py            write configs/suites/local-2d-v1 and configs/gold
    python scripts/build_suite.py --check    exit 1 and name each file that differs

Everything comes from the modules in `scripts/suite/tasks`; change a task there, never in `configs`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.suite.files import GOLD_DIR, SUITE_DIR, suite_files

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Build or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a committed file differs")
    args = parser.parse_args()
    built = {ROOT / path: content for path, content in suite_files().items()}
    if args.check:
        problems = differences(built)
        print("\n".join(problems) or f"{len(built)} files are as built")
        return 1 if problems else 0
    for path, content in built.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for path in leftovers(built):
        path.unlink()
    print(f"{len(built)} files written")
    return 0


def differences(built: dict[Path, bytes]) -> list[str]:
    """One line for each file that is missing, differs, or is there and not built."""
    lines = []
    for path, content in sorted(built.items()):
        name = path.relative_to(ROOT)
        if not path.is_file():
            lines.append(f"missing: {name}")
        elif path.read_bytes() != content:
            lines.append(f"differs: {name}")
    return lines + [f"not built: {path.relative_to(ROOT)}" for path in leftovers(built)]


def leftovers(built: dict[Path, bytes]) -> list[Path]:
    """Files in the built folders that are not built any more. The gold of other evaluator versions is left alone."""
    gold = ROOT / GOLD_DIR
    gold_folders = {gold / path.relative_to(gold).parts[0] for path in built if path.is_relative_to(gold)}
    folders = [ROOT / SUITE_DIR, *sorted(gold_folders)]
    there = (path for folder in folders if folder.is_dir() for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in there if path not in built)


if __name__ == "__main__":
    sys.exit(main())
