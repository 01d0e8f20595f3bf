"""A pilot as a process of its own: spec on stdin, progress on stdout, and no life without a supervisor.

stdout says one JSON line per turn, stderr is for people. stdin stays open: its end is the end of the supervisor, and
then of this process. SIGTERM ends the rollout at the next turn boundary. Exit status 0: `run-state.json` is final;
`DISK_EXIT_STATUS`: it could not be written.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import orjson
from pydantic import SecretStr

from contract.errors import BenchError, DiskError
from contract.records import parse_record
from contract.rollout_records import DISK_EXIT_STATUS, RolloutSpec, RunState
from pilot.compose import build_world
from pilot.ports import World
from pilot.rollout import run_rollout

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main(broker_token: str, provider_key: str | None) -> int:
    """Play the rollout on stdin and return the exit status. `gc` may be off; it is on while playing."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C reaches everything on the terminal; what it means for a rollout is the supervisor's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    early_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: early_stop.set())
    logging.basicConfig(format="pilot: %(message)s", stream=sys.stderr)
    try:
        spec = parse_record(sys.stdin.buffer.readline(), RolloutSpec, source="the first line of stdin")
        threading.Thread(target=_die_with_stdin, name="stdin", daemon=True).start()
        gc.freeze()
        gc.enable()
        secrets = (SecretStr(broker_token), SecretStr(provider_key) if provider_key else None)
        anyio.run(partial(_play, spec, *secrets, early_stop))
    except BenchError as error:
        # The log may be on the very disk that is full.
        with suppress(OSError):
            print(f"pilot: {error}", file=sys.stderr)
        return DISK_EXIT_STATUS if isinstance(error, DiskError) else error.exit_code
    return 0


async def _play(
    spec: RolloutSpec, broker_token: SecretStr, provider_key: SecretStr | None, early_stop: threading.Event
) -> None:
    world = build_world(spec, broker_token=broker_token, provider_key=provider_key, on_progress=_print_progress)
    failure: BenchError | None = None
    async with anyio.create_task_group() as tasks:
        await tasks.start(_stop_on_sigterm, world)
        if early_stop.is_set():
            world.stop.set()
        try:
            await run_rollout(spec, world)
        except BenchError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _stop_on_sigterm(world: World, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            world.stop.set()


def _print_progress(state: RunState) -> None:
    line = {
        "turn": state.turn,
        "actions_used": state.actions_used,
        "cost_usd": None if state.cost_usd is None else format(state.cost_usd, "f"),
        "requests_of_unknown_cost": state.requests_of_unknown_cost,
        "phase": state.phase,
        "waiting": state.waiting.model_dump(mode="json") if state.waiting else None,
        "alarm": state.waiting.alarm if state.waiting else None,
        "ended_by": state.ended_by,
        "cause": state.error.cause if state.error else None,
    }
    # When whoever listened is gone, run-state.json says the same.
    with suppress(OSError):
        os.write(sys.stdout.fileno(), orjson.dumps(line) + b"\n")


def _die_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)
