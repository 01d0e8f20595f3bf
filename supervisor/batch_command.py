"""`batch` and `rollout`: plan, and after a plan without issues, play."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from contract.run_dir import BatchDir
from supervisor.checks.subject import Options
from supervisor.config_reading import Reading, read_config
from supervisor.credentials import keys_in
from supervisor.entry import Session
from supervisor.issues import counted
from supervisor.machine import ThisMachine
from supervisor.plan import plan_text
from supervisor.preflight import Overrides, Preflight, run_preflight
from supervisor.rerun import read_rerun

if TYPE_CHECKING:
    from contract.batch_records import Link
    from supervisor.prepared import PreparedBatch


def run_batch(
    session: Session,
    *,
    config_path: Path | None,
    resumed: Path | None,
    output_dir: Path | None,
    is_execute: bool,
    allow_partial: bool,
    skip_direct_model_check: bool,
    mode: str | None,
    max_concurrency: int | None,
    as_json: bool,
) -> int:
    """Plan, execute or resume a batch. Returns the exit code."""
    if resumed is not None:
        hint = "Name the folder of an interrupted batch with --resume."
        reading = read_config(BatchDir(resumed).config, hint=hint)
    else:
        assert config_path is not None, "the command line asks for one of the two"
        reading = read_config(config_path)
    options = Options(
        # What is resumed was admitted when it began, with or without the flag.
        allow_partial=allow_partial or resumed is not None,
        skip_direct_model_check=skip_direct_model_check,
        output_dir=output_dir,
        resumes=resumed,
    )
    preflight = _preflight(session, reading, options, Overrides(mode, max_concurrency))
    if not is_execute or preflight.prepared is None:
        return _print_plan(preflight, is_execute=is_execute)
    folder = resumed if resumed is not None else output_dir
    assert folder is not None, "the command line asks for one of the two"
    return _play(preflight.prepared, BatchDir(folder), resumes=resumed is not None, rerun_of=None, as_json=as_json)


def run_rollout(
    session: Session,
    *,
    folder: Path,
    rollout_id: str,
    output_dir: Path | None,
    is_execute: bool,
    mode: str | None,
    as_json: bool,
) -> int:
    """Plan or play one rollout of an earlier batch again. Returns the exit code; raises `ConfigError`."""
    rerun = read_rerun(folder, rollout_id)
    # One rollout of a suite is a smaller batch by intent.
    options = Options(allow_partial=True, output_dir=output_dir)
    preflight = _preflight(session, rerun.reading, options, Overrides(mode))
    if not is_execute or preflight.prepared is None:
        return _print_plan(preflight, is_execute=is_execute)
    assert output_dir is not None, "the command line asks for it"
    return _play(preflight.prepared, BatchDir(output_dir), resumes=False, rerun_of=rerun.link, as_json=as_json)


def _preflight(session: Session, reading: Reading, options: Options, overrides: Overrides) -> Preflight:
    preflight = run_preflight(
        reading,
        options=options,
        overrides=overrides,
        keys=keys_in(session.environment),
        machine=session.machine if session.machine is not None else ThisMachine(),
    )
    for warning in preflight.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return preflight


def _print_plan(preflight: Preflight, *, is_execute: bool) -> int:
    sys.stdout.write(plan_text(preflight))
    sys.stdout.flush()
    if preflight.issues:
        said = "nothing was launched" if is_execute else "with --execute nothing would be launched"
        print(f"{counted(len(preflight.issues))} found; {said}", file=sys.stderr)
    else:
        how = "--execute" if preflight.subject.options.resumes is not None else "--output-dir and --execute"
        print(f"the plan has no issue; add {how} to play it", file=sys.stderr)
    return preflight.exit_code


def _play(prepared: PreparedBatch, batch_dir: BatchDir, *, resumes: bool, rerun_of: Link | None, as_json: bool) -> int:
    from functools import partial

    import anyio
    from rich.console import Console

    from contract.ambient import Ambient
    from supervisor.batch import execute
    from supervisor.open_files import make_room_for_files
    from supervisor.resume import resume
    from supervisor.summary import print_summary

    # Processes of other folders write here too.
    batch_dir = BatchDir(batch_dir.root.absolute())
    console = Console(stderr=True)
    make_room_for_files(prepared.max_concurrency)
    if resumes:
        play = partial(resume, batch_dir, prepared, console=console, ambient=Ambient())
    else:
        play = partial(execute, prepared, batch_dir, rerun_of=rerun_of, console=console, ambient=Ambient())
    exit_code = anyio.run(play)
    print_summary(batch_dir, as_json=as_json, stream=sys.stdout, exit_code=exit_code)
    return exit_code
