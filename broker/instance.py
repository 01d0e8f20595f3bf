"""Composition root of the broker on a cloud instance: `python -I -m broker.instance`, started by the system itself.

Who it is and whom it serves it reads from the instance's metadata, after every boot anew; what it did lies in its state
folder. It has no owner: it ends when its controller has been silent for the time of the lease, or when the instance's
lifetime is over, and then runs the shutdown command. Shutting down terminates the instance.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from broker.boot import SystemBoot, boot_id_of, read_system_boot, settle_boot
from broker.deadman import Deadman
from broker.imds import IMDS_URL, WAIT_S, Imds, ImdsError, Launched
from broker.lease import LeaseBook
from broker.service import HostFacts
from broker.serving import CannotStart, EndKind, Order, build_driver, build_evaluator, inherited, leave, run, serve
from contract.broker_api import InstanceProof
from contract.errors import DiskError, StateError
from contract.guest import GuestStart, read_guest_start

IS_WINDOWS: Final = sys.platform == "win32"
STATE_DIR: Final = Path(r"C:\ProgramData\autocad-bench\state" if IS_WINDOWS else "/var/lib/autocad-bench")
# The timer that the user data sets up reads it there.
DEADLINE_FILE: Final = Path(r"C:\ProgramData\autocad-bench\deadline" if IS_WINDOWS else "/run/autocad-bench/deadline")
# Handing the shutdown over to the system takes no longer; the dead-man timer is behind it.
SHUTDOWN_S_MAX: Final = 30.0

_log = logging.getLogger("broker")


def main(options: Sequence[str]) -> int:
    """Serve until the controller has been silent for too long. Exit code 1 when it could not start, and says why."""
    settings = _settings(options)
    return run(lambda: _begin(settings, os.environ))


@dataclass(frozen=True, slots=True)
class Settings:
    """What the image's start of the broker says. `shutdown` is empty where only the dead-man timer shuts down."""

    imds_url: str
    imds_wait_s: float
    state_dir: Path
    deadline_file: Path
    port: int | None
    shutdown: tuple[str, ...]
    boot_count: int | None
    booted_at: datetime | None


def _settings(options: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="python -I -m broker.instance", description=__doc__)
    add = parser.add_argument
    add("--imds", default=IMDS_URL, metavar="URL", help="the instance metadata service (default %(default)s)")
    add("--imds-wait-s", type=float, default=WAIT_S, metavar="S", help="how long it is waited for (%(default)s)")
    add("--state-dir", type=Path, default=STATE_DIR, help="receipts and lease; survives reboots (%(default)s)")
    add("--deadline-file", type=Path, default=DEADLINE_FILE, help="what the dead-man timer reads (%(default)s)")
    add("--port", type=int, help="instead of the port in the user data; 0 takes a free one")
    add("--shutdown-command", default="", help="run when the time is over; by default only the broker ends")
    add("--boot-count", type=int, help="instead of the system's own counter of boots")
    add("--booted-at", type=_time, metavar="RFC3339", help="instead of the system's own time of its last boot")
    args = parser.parse_args(options)
    return Settings(
        imds_url=args.imds,
        imds_wait_s=args.imds_wait_s,
        state_dir=args.state_dir,
        deadline_file=args.deadline_file,
        port=args.port,
        shutdown=tuple(shlex.split(args.shutdown_command, posix=not IS_WINDOWS)),
        boot_count=args.boot_count,
        booted_at=args.booted_at,
    )


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("a time of no zone")
    return found


def order_of(settings: Settings, environ: Mapping[str, str]) -> Order:
    """What this instance is to serve, from its metadata and its state folder. Blocks. Raises `CannotStart`."""
    try:
        launched = Imds(settings.imds_url).read(wait_s=settings.imds_wait_s)
    except ImdsError as error:
        raise CannotStart("metadata_missing", error.message, hint=error.hint) from error
    try:
        start = read_guest_start(launched.user_data)
    except StateError as error:
        raise CannotStart("user_data_invalid", error.message, hint=error.hint) from error
    state_dir = _own_folder(settings, instance_id=launched.facts.instance_id)
    try:
        boot = settle_boot(read_system_boot(count=settings.boot_count, booted_at=settings.booted_at), state_dir)
    except DiskError as error:
        raise CannotStart("state_dir_unusable", error.message, hint=error.hint) from error
    if start.driver == "autocad":
        hint = "Use an image with LibreCAD and the driver `librecad`."
        raise CannotStart("driver_not_built", "this version has no AutoCAD driver", hint=hint)
    base_env = inherited(environ)
    deadman = Deadman(settings.deadline_file, ends_at=launched.facts.pending_time.timestamp() + start.lifetime_s)
    return Order(
        host_id=start.host_id,
        token_sha256=start.token_sha256,
        port=start.port if settings.port is None else settings.port,
        state_dir=state_dir,
        facts=_facts(start, launched, boot),
        driver=build_driver(start.driver, state_dir, base_env=base_env),
        evaluator=build_evaluator(base_env),
        leases=partial(LeaseBook, state_dir, silence_s=start.lease_s, on_heard=deadman.feed),
        lifetime_left_s=deadman.lifetime_left_s,
    )


def _begin(settings: Settings, environ: Mapping[str, str]) -> int:
    end = asyncio.run(serve(order_of(settings, environ)))
    if end is EndKind.TIME and settings.shutdown:
        _shut_down(settings.shutdown)
    leave()


def _own_folder(settings: Settings, *, instance_id: str) -> Path:
    """The state folder of this instance. One that lies in the image is that of another, and is never looked at."""
    folder = settings.state_dir / instance_id
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.deadline_file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        hint = "Let the broker's user write to the state folder and to the folder of the deadline file."
        raise CannotStart("state_dir_missing", f"cannot make {error.filename}: {error.strerror}", hint=hint) from error
    return folder.resolve()


def _facts(start: GuestStart, launched: Launched, boot: SystemBoot) -> HostFacts:
    return HostFacts(
        host_id=start.host_id,
        boot_id=boot_id_of(boot, instance_id=launched.facts.instance_id, pending_time=launched.facts.pending_time),
        started_at=datetime.now(UTC).isoformat(),
        instance=InstanceProof(
            document=launched.document,
            signature=launched.signature,
            booted_at=boot.booted_at.astimezone(UTC).isoformat(),
            boot_count=boot.count,
        ),
    )


def _shut_down(command: tuple[str, ...]) -> None:
    _log.info("shutting this instance down")
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=SHUTDOWN_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _log.error("the shutdown command failed, the dead-man timer is left: %s", error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
