"""What every broker does between start and end, whoever told it how: listen, serve, notice silence, clean up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal, NoReturn

import uvicorn
from pydantic.warnings import UnsupportedFieldAttributeWarning

from broker.app import build_app
from broker.drivers import Driver
from broker.evaluation import Evaluator, LateEvaluator
from broker.lease import LeaseBook
from broker.receipts import ReceiptBook
from broker.refusal import refusal_of
from broker.service import HostFacts, Service
from broker.start import FailedLine, LostLine, ReadyLine
from contract.errors import BenchError
from contract.records import Record

# What every process of this host inherits: where programs are, and by which tags leftovers are found.
INHERITED: Final = ("PATH", "AUTOCAD_BENCH_HOST_ID", "AUTOCAD_BENCH_BATCH_ID", "AUTOCAD_BENCH_ROLLOUT_ID")
# After this long the clean-up is given up, and the kernel takes the desktop down with us.
CLEAN_UP_S_MAX: Final = 3.0
# Calls and the owner's death move the deadline of the silence; a second is fine enough to notice.
SILENCE_LOOK_S_MAX: Final = 1.0

_log = logging.getLogger("broker")


class CannotStart(BenchError):
    """The broker could not start; `code` is what its failed line says."""

    def __init__(self, code: str, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class EndKind(Enum):
    """What ended a broker: a signal or its owner's end, or that its time was over."""

    ORDER = "order"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Order:
    """What to serve. `lifetime_left_s` is how much of the host's life is left, however busy its controller is."""

    host_id: str
    token_sha256: str
    port: int
    state_dir: Path
    facts: HostFacts
    driver: Driver
    evaluator: Evaluator
    leases: Callable[[], LeaseBook]
    lifetime_left_s: Callable[[], float] = lambda: math.inf


class Ending:
    """Who may end this broker. The desktop is killed at once, from whichever thread learns it first."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.is_due = asyncio.Event()
        self.kind: EndKind | None = None
        self._service = service
        self._loop = loop

    def end(self, why: str, *, kind: EndKind = EndKind.ORDER) -> None:
        """End it. A second call changes nothing."""
        _log.info("ending: %s", why)
        self.kind = self.kind or kind
        self._service.abort()
        self._loop.call_soon_threadsafe(self.is_due.set)

    def orphaned(self, orphan_s: float) -> None:
        """The owner is gone: end at once, or after `orphan_s` seconds without another's call."""
        if orphan_s > 0:
            _log.info("the owner is gone; waiting %g s for another", orphan_s)
            self._service.leases.orphaned(orphan_s)
        else:
            self.end("the owner is gone")


def run(begin: Callable[[], int]) -> int:
    """Set up warnings and log, and call `begin`. A broker that cannot start says so in one line: exit code 1."""
    # FastAPI silences this where it builds its fields, but our records are built later, when they are first used.
    warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        return begin()
    except CannotStart as error:
        _say(FailedLine(code=error.code, message=error.message, hint=error.hint))
        leave(1)


async def serve(order: Order, *, watch: Callable[[Ending], None] = lambda _: None) -> EndKind:
    """Serve until something ends it; everything of its desktop is gone when this returns. Raises `CannotStart`.

    `watch` is called once, before the ready line, to let the owner's end be noticed. Threads may be left that are
    stuck in a request to somewhere: go on with little more than `leave`.
    """
    listener = _listen(order.port)
    service = _build_service(order)
    preparing = service.prepare()
    server = _build_server(service, order.token_sha256)
    try:
        await asyncio.wrap_future(preparing)
    except Exception as error:  # whatever it was, the owner hears of it in one line
        await _clean_up(service)
        refusal = refusal_of(error)
        raise CannotStart(refusal.code, refusal.message, hint=refusal.hint) from error
    loop = asyncio.get_running_loop()
    ending = Ending(service, loop)
    watch(ending)
    for number in (signal.SIGTERM, signal.SIGINT):
        # An event loop on Windows has no handlers of signals; whoever ends a process there ends it hard.
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, ending.end, f"signal {number.name}")
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    silence = asyncio.create_task(_watch_silence(service, ending, order.lifetime_left_s))
    _say(ReadyLine(host_id=order.host_id, boot_id=order.facts.boot_id, port=listener.getsockname()[1]))
    _tell_of_loss(service, loop)
    due = asyncio.create_task(ending.is_due.wait())
    await asyncio.wait({serving, due}, return_when=asyncio.FIRST_COMPLETED)
    silence.cancel()
    server.should_exit = True
    server.force_exit = True
    await _clean_up(service)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(serving, 0.5)
    return ending.kind or EndKind.ORDER


def leave(exit_code: int = 0) -> NoReturn:
    """End the process. Threads may be stuck somewhere; nothing that they do matters any more."""
    sys.stderr.flush()
    os._exit(exit_code)


def build_driver(
    name: Literal["librecad", "paper"],
    state_dir: Path,
    *,
    base_env: Mapping[str, str],
    isolation: Literal["auto", "bubblewrap", "own_uid", "none"] = "auto",
) -> Driver:
    """The driver of this name; `base_env` is what its programs inherit."""
    if name == "paper":
        from broker.drivers.paper import PaperDriver

        return PaperDriver(state_dir)
    from broker.desktop.isolation import chosen
    from broker.drivers.librecad import LibreCadDriver

    return LibreCadDriver(state_dir, base_env=base_env, isolation=chosen(isolation))


def build_evaluator(base_env: Mapping[str, str]) -> Evaluator:
    """The trusted evaluator in a process of its own, once it is needed."""

    def build() -> Evaluator:
        from broker.evaluator.process import EvaluatorProcess

        return EvaluatorProcess(base_env)

    return LateEvaluator(build)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What the host's own programs may inherit of an environment."""
    return {name: environ[name] for name in INHERITED if name in environ}


def _build_service(order: Order) -> Service:
    try:
        return Service(
            state_dir=order.state_dir,
            facts=order.facts,
            driver=order.driver,
            evaluator=order.evaluator,
            leases=order.leases(),
            receipts=ReceiptBook(order.state_dir),
        )
    except BenchError as error:
        raise CannotStart("state_dir_unusable", error.message, hint=error.hint) from error


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


async def _watch_silence(service: Service, ending: Ending, lifetime_left_s: Callable[[], float]) -> None:
    while True:
        silence_s, life_s = service.leases.expires_in_s(), lifetime_left_s()
        if life_s <= 0:
            ending.end("the host's lifetime is over", kind=EndKind.TIME)
            return
        if silence_s <= 0 and not service.is_busy():
            ending.end("no authenticated call for the time of the lease", kind=EndKind.TIME)
            return
        await asyncio.sleep(min(max(silence_s, 0.05), life_s, SILENCE_LOOK_S_MAX))


def _listen(port: int) -> socket.socket:
    # asyncio switches delayed sending off only for sockets that name their protocol; else each answer takes 40 ms more.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        hint = "Choose another port, or 0 for a free one."
        raise CannotStart("port_in_use", f"cannot listen on 127.0.0.1:{port}: {error.strerror}", hint=hint) from error
    listener.listen(64)
    return listener


def _build_server(service: Service, token_sha256: str) -> uvicorn.Server:

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Signals end the desktop first, so they are ours."""
            yield

    config = uvicorn.Config(
        build_app(service, token_sha256=token_sha256),
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


async def _clean_up(service: Service) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(service.close), CLEAN_UP_S_MAX)


def _say(line: Record) -> None:
    sys.stdout.write(line.model_dump_json(by_alias=True) + "\n")
    sys.stdout.flush()
