"""Composition root of the broker: `python -I -m broker`, one start line on stdin, one ready line on stdout.

It lives as long as stdin stays open and its lease is alive; then everything of its desktop is ended within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import uvicorn
from pydantic import ValidationError
from pydantic.warnings import UnsupportedFieldAttributeWarning

from broker.app import build_app
from broker.drivers import Driver
from broker.evaluation import Evaluator, LateEvaluator
from broker.lease import LeaseBook
from broker.receipts import ReceiptBook
from broker.refusal import Refusal
from broker.service import HostFacts, Service
from broker.start import START_LINE_BYTES_MAX, FailedLine, LostLine, ReadyLine, StartLine
from contract.errors import BenchError
from contract.records import Record, first_problem

# What every process of this host inherits: where programs are, and by which tags leftovers are found.
INHERITED: Final = ("PATH", "AUTOCAD_BENCH_HOST_ID", "AUTOCAD_BENCH_BATCH_ID", "AUTOCAD_BENCH_ROLLOUT_ID")
# After this long the clean-up is given up, and the kernel takes the desktop down with us.
CLEAN_UP_S_MAX: Final = 3.0

_log = logging.getLogger("broker")


def main() -> int:
    """Serve until the owner is gone, the lease has expired or a signal says so. Exit code 1 when it could not start."""
    # FastAPI silences this where it builds its fields, but our records are built later, when they are first used.
    warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        start = _read_start_line()
        return asyncio.run(_serve(start, os.environ))
    except _CannotStart as error:
        _say(FailedLine(code=error.code, message=error.message, hint=error.hint))
        return 1


class _CannotStart(BenchError):
    def __init__(self, code: str, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def _read_start_line() -> StartLine:
    line = sys.stdin.buffer.readline(START_LINE_BYTES_MAX)
    try:
        start = StartLine.model_validate_json(line)
    except ValidationError as error:
        hint = "Write one JSON line of schema autocad-bench.broker-start/1 on stdin and keep it open."
        raise _CannotStart("invalid_start", f"the start line is wrong: {first_problem(error)}", hint=hint) from error
    if not start.state_dir.is_absolute() or not start.state_dir.is_dir():
        hint = "Make the folder first, private to this host."
        raise _CannotStart("state_dir_missing", f"{start.state_dir} is not an absolute path of a folder", hint=hint)
    return start


async def _serve(start: StartLine, environ: Mapping[str, str]) -> int:
    listener = _listen(start.port)
    facts = HostFacts(
        host_id=start.host_id, boot_id=f"b-{secrets.token_hex(12)}", started_at=datetime.now(UTC).isoformat()
    )
    base_env = {name: environ[name] for name in INHERITED if name in environ}
    try:
        service = Service(
            state_dir=start.state_dir,
            facts=facts,
            driver=_build_driver(start, base_env),
            evaluator=_build_evaluator(base_env),
            leases=LeaseBook(start.state_dir, silence_s=start.lease_s),
            receipts=ReceiptBook(start.state_dir),
        )
    except BenchError as error:
        raise _CannotStart("state_dir_unusable", error.message, hint=error.hint) from error
    preparing = service.prepare()
    server = _build_server(service, start)
    try:
        await asyncio.wrap_future(preparing)
    except Refusal as error:
        _clean_up(service)
        raise _CannotStart(error.code, error.message, hint=error.hint) from error
    ending = _Ending(service, asyncio.get_running_loop())
    _watch_stdin(lambda: ending.orphaned(start.orphan_s))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.end, f"signal {number.name}")
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    silence = asyncio.create_task(_watch_silence(service, ending))
    _say(ReadyLine(host_id=start.host_id, boot_id=facts.boot_id, port=listener.getsockname()[1]))
    _tell_of_loss(service, asyncio.get_running_loop())
    await asyncio.wait({serving, asyncio.create_task(ending.is_due.wait())}, return_when=asyncio.FIRST_COMPLETED)
    silence.cancel()
    server.should_exit = True
    server.force_exit = True
    await asyncio.to_thread(_clean_up, service)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(serving, 0.5)
    # Threads may be stuck in a request to somewhere; nothing that they do matters any more.
    sys.stderr.flush()
    os._exit(0)


class _Ending:
    """Who may end this broker. The desktop is killed at once, from whichever thread learns it first."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.is_due = asyncio.Event()
        self._service = service
        self._loop = loop

    def end(self, why: str) -> None:
        _log.info("ending: %s", why)
        self._service.abort()
        self._loop.call_soon_threadsafe(self.is_due.set)

    def orphaned(self, orphan_s: float) -> None:
        if orphan_s > 0:
            _log.info("the owner is gone; waiting %g s for another", orphan_s)
            self._service.leases.orphaned(orphan_s)
        else:
            self.end("the owner is gone")


def _tell_of_loss(service: Service, loop: asyncio.AbstractEventLoop) -> None:
    """Say on stdout, once, that the CAD program is lost. The owner may be gone, and then nobody reads it."""
    is_told = False

    def look() -> None:
        nonlocal is_told
        state = service.health().driver_state
        if is_told or state in ("stopped", "ready"):
            return
        is_told = True
        _log.warning("the CAD program is lost: %s", state)
        with contextlib.suppress(OSError):
            _say(LostLine(driver_state=state))

    def look_soon() -> None:
        loop.call_soon_threadsafe(look)

    service.watch(look_soon)
    # It may have happened while we got ready.
    look()


async def _watch_silence(service: Service, ending: _Ending) -> None:
    while True:
        left_s = service.leases.expires_in_s()
        if left_s <= 0 and not service.is_busy():
            ending.end("no authenticated call for the time of the lease")
            return
        # Calls and the owner's death move the deadline; a second is fine enough to notice.
        await asyncio.sleep(min(max(left_s, 0.05), 1.0))


def _watch_stdin(on_end: Callable[[], None]) -> None:
    def watch() -> None:
        while os.read(0, 4096):
            pass
        on_end()

    threading.Thread(target=watch, name="owner", daemon=True).start()


def _listen(port: int) -> socket.socket:
    # asyncio switches delayed sending off only for sockets that name their protocol; else each answer takes 40 ms more.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        hint = "Choose another port, or 0 for a free one."
        raise _CannotStart("port_in_use", f"cannot listen on 127.0.0.1:{port}: {error.strerror}", hint=hint) from error
    listener.listen(64)
    return listener


def _build_server(service: Service, start: StartLine) -> uvicorn.Server:

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Signals end the desktop first, so they are ours."""
            yield

    app = build_app(service, token_sha256=start.token_sha256)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Server(config)


def _build_driver(start: StartLine, base_env: Mapping[str, str]) -> Driver:
    if start.driver == "paper":
        from broker.drivers.paper import PaperDriver

        return PaperDriver(start.state_dir)
    from broker.desktop.isolation import chosen
    from broker.drivers.librecad import LibreCadDriver

    return LibreCadDriver(start.state_dir, base_env=base_env, isolation=chosen(start.isolation))


def _build_evaluator(base_env: Mapping[str, str]) -> Evaluator:
    def build() -> Evaluator:
        from broker.evaluator.process import EvaluatorProcess

        return EvaluatorProcess(base_env)

    return LateEvaluator(build)


def _clean_up(service: Service) -> None:
    giving_up = threading.Timer(CLEAN_UP_S_MAX, os._exit, (0,))
    giving_up.daemon = True
    giving_up.start()
    service.close()
    giving_up.cancel()


def _say(line: Record) -> None:
    sys.stdout.write(line.model_dump_json(by_alias=True) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
