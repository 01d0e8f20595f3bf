"""Where the output goes: a new folder on a disk that takes it, or the folder of the batch that is to go on."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from contract.batch_records import BatchState
from contract.errors import StateError
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.checks.subject import Subject
from supervisor.issues import Finding, Issue
from supervisor.locks import is_held

MIB: Final = 1024 * 1024
# Below this even an empty batch is likely to meet a full disk: state, logs and the scratch files of every document.
FREE_BYTES_MIN: Final = 200 * MIB
# 200 turns of a 0.1 MB frame (local desktop reference, section 4: 77-107 kB each).
ROLLOUT_BYTES_EXPECTED: Final = 20 * MIB


def output_folder(subject: Subject) -> Finding:
    """The output folder is new or empty, and can be made where it is wanted."""
    folder = subject.options.output_dir
    if folder is None:
        return Finding("no --output-dir given", skipped=True)
    try:
        # Records name this folder, and they are UTF-8.
        str(folder).encode()
        problem = _exists_problem(folder)
    except (OSError, UnicodeEncodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not UTF-8"
        message = f"{str(folder)!r} cannot be used: {reason}"
        hint = "Name a new folder that you may make with --output-dir."
        return Finding(message, (Issue("output_not_writable", message, hint, "--output-dir"),))
    if problem:
        hint = "Name a new folder with --output-dir; a batch never writes into an old one."
        return Finding(problem, (Issue("output_exists", problem, hint, "--output-dir"),))
    if (batch := _batch_around(folder)) is not None:
        message = f"{folder} is inside of the run folder {batch}"
        hint = "Name a folder outside of it with --output-dir: the record of a batch is its own."
        return Finding(message, (Issue("output_in_run_folder", message, hint, "--output-dir"),))
    parent = _nearest(folder)
    if not parent.is_dir():
        message = f"{folder} cannot be made: {parent} is not a folder"
        hint = "Name a folder below an existing one with --output-dir."
        return Finding(message, (Issue("output_not_writable", message, hint, "--output-dir"),))
    if not subject.machine.is_writable(parent):
        message = f"{folder} cannot be made: {parent} is read-only for us"
        hint = "Name a folder on a writable disk with --output-dir, or make its parent writable."
        return Finding(message, (Issue("output_not_writable", message, hint, "--output-dir"),))
    return Finding(f"{folder} will be made")


def disk_space(subject: Subject) -> Finding:
    """The output disk has room for what the enabled rollouts usually write."""
    folder = subject.options.resumes or subject.options.output_dir
    if folder is None:
        return Finding("no --output-dir given", skipped=True)
    count = sum(1 for _ in subject.enabled()) if subject.draft.is_usable("rollouts") else 0
    needed = FREE_BYTES_MIN + count * ROLLOUT_BYTES_EXPECTED
    parent = _nearest(folder)
    if not parent.is_dir():
        return Finding(f"{parent} is not a folder", skipped=True)
    free = subject.machine.free_bytes(parent)
    detail = f"{free // MIB} MiB free, {needed // MIB} MiB wanted"
    if free >= needed:
        return Finding(detail)
    message = f"the disk of {folder} has {free // MIB} MiB free; {count} rollouts want {needed // MIB} MiB"
    hint = "Free space, name a folder on another disk, or enable fewer rollouts."
    return Finding(detail, (Issue("disk_space", message, hint, "--output-dir"),))


def run_folder(subject: Subject) -> Finding:
    """The batch that is to go on has its records, nobody runs it now, and its config is the one it began with."""
    folder = subject.options.resumes
    if folder is None:
        return Finding("nothing is resumed", skipped=True)
    batch_dir = BatchDir(folder)
    try:
        state = read_record(batch_dir.state, BatchState)
        config_bytes = batch_dir.config.read_bytes()
    except (StateError, OSError) as error:
        message = error.message if isinstance(error, StateError) else f"cannot read {batch_dir.config}"
        hint = "Name the folder of an interrupted batch with --resume."
        return Finding(message, (Issue("run_folder_invalid", message, hint, "--resume"),))
    issues = []
    if hashlib.sha256(config_bytes).hexdigest() != state.config_sha256:
        message = f"{batch_dir.config} is not the config that this batch began with"
        issues.append(Issue("config_changed", message, "Restore it, or start a new batch.", "--resume"))
    if is_held(batch_dir.lock):
        message = f"{folder} is being run by another process"
        issues.append(Issue("run_folder_in_use", message, "Wait for it to end, or interrupt it first.", "--resume"))
    return Finding(f"batch {state.batch_id}, {state.status.value}", tuple(issues))


def _exists_problem(folder: Path) -> str | None:
    if not folder.exists() and not folder.is_symlink():
        return None
    if not folder.is_dir():
        return f"{folder} exists and is no folder"
    return f"{folder} exists and is not empty" if any(folder.iterdir()) else None


def _batch_around(folder: Path) -> Path | None:
    """The run folder of another batch that this folder would stand in."""
    return next((parent for parent in folder.resolve().parents if BatchDir(parent).state.is_file()), None)


def _nearest(folder: Path) -> Path:
    """The folder itself, or the nearest thing above it that exists."""
    for candidate in (folder.absolute(), *folder.absolute().parents):
        # Also false where we may not look, or where a name is too long.
        if os.path.exists(candidate):
            return candidate
    return Path("/")
