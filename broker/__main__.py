"""Composition root of the broker: `python -I -m broker`, one start line on stdin, one ready line on stdout.

It lives as long as stdin stays open and its lease is alive; then everything of its desktop is ended within a second.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from pydantic import ValidationError

from broker.lease import LeaseBook
from broker.service import HostFacts
from broker.serving import CannotStart, Ending, Order, build_driver, build_evaluator, inherited, leave, run, serve
from broker.start import START_LINE_BYTES_MAX, StartLine
from contract.records import first_problem


def main() -> int:
    """Serve until the owner is gone, the lease has expired or a signal says so. Exit code 1 when it could not start."""
    return run(lambda: asyncio.run(_serve(_read_start_line(), os.environ)))


def _read_start_line() -> StartLine:
    line = sys.stdin.buffer.readline(START_LINE_BYTES_MAX)
    try:
        start = StartLine.model_validate_json(line)
    except ValidationError as error:
        hint = "Write one JSON line of schema autocad-bench.broker-start/1 on stdin and keep it open."
        raise CannotStart("invalid_start", f"the start line is wrong: {first_problem(error)}", hint=hint) from error
    if not start.state_dir.is_absolute() or not start.state_dir.is_dir():
        hint = "Make the folder first, private to this host."
        raise CannotStart("state_dir_missing", f"{start.state_dir} is not an absolute path of a folder", hint=hint)
    return start


async def _serve(start: StartLine, environ: Mapping[str, str]) -> int:
    base_env = inherited(environ)
    order = Order(
        host_id=start.host_id,
        token_sha256=start.token_sha256,
        port=start.port,
        state_dir=start.state_dir,
        facts=HostFacts(
            host_id=start.host_id, boot_id=f"b-{secrets.token_hex(12)}", started_at=datetime.now(UTC).isoformat()
        ),
        driver=build_driver(start.driver, start.state_dir, base_env=base_env, isolation=start.isolation),
        evaluator=build_evaluator(base_env),
        leases=lambda: LeaseBook(start.state_dir, silence_s=start.lease_s),
    )

    def watch(ending: Ending) -> None:
        _watch_stdin(lambda: ending.orphaned(start.orphan_s))

    await serve(order, watch=watch)
    leave()


def _watch_stdin(on_end: Callable[[], None]) -> None:
    def watch() -> None:
        while os.read(0, 4096):
            pass
        on_end()

    threading.Thread(target=watch, name="owner", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
