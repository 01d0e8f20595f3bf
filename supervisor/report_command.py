"""`report`: what run folders say, as tables, JSON, CSV and one page. Reads only; no host, no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from contract.errors import ConfigError
from contract.records import dump_pretty, replace_file
from supervisor.report.build import build_report
from supervisor.report.csv_file import csv_bytes
from supervisor.report.page import page_bytes
from supervisor.report.runs import read_runs


def run_report(
    *,
    folders: Sequence[Path],
    is_pooled: bool,
    takes_rescored: bool,
    coverage_floor: float | None,
    html: Path | None,
    csv: Path | None,
    as_json: bool,
    stream: IO[str],
) -> int:
    """Report on all runs in `folders`. Returns 1 when a mean has less coverage than its floor.

    Raises `ConfigError` when a file cannot be used or scores cannot be averaged, before anything is written.
    """
    for path, option in ((html, "--html"), (csv, "--csv")):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            hint = "Name a file in a folder that exists."
            raise ConfigError(f"{path} cannot be a file", hint=hint, code="output_invalid", field=option)
    runs = read_runs(folders, takes_rescored=takes_rescored)
    report = build_report(runs, is_pooled=is_pooled, coverage_floor=coverage_floor)
    if csv is not None:
        replace_file(csv, csv_bytes(runs))
    if html is not None:
        replace_file(html, page_bytes(report))
    if as_json:
        stream.write(dump_pretty(report).decode())
    else:
        from supervisor.report.terminal import print_report

        print_report(report, stream)
    stream.flush()
    return 1 if report.is_below_floor else 0
