"""What the harness itself costs: per turn, at a pilot's start, and in memory. Each number stands beside its target.

    .venv/bin/python scripts/bench_turn.py [--turns 10 200 1000] [--starts 5] [--shared 50] [--check]
    .venv/bin/python scripts/bench_turn.py --wire [--starts 5] [--check]

Turns are played by the oracle against the paper driver's broker, whose frames weigh what LibreCAD's do. CPU is that of
the pilot alone: the broker is another process. Bytes are those that the pilot passes to write(2), from the kernel's
account of the process; syncs are counted. `--check` ends with 1 when a target is missed.
`--wire` measures what a model API adds instead: see `bench_wire`.
"""

from __future__ import annotations

import argparse
import base64
import gc
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import orjson
from benching import (
    FAKE_TOKEN,
    PYTHON,
    Row,
    cpu_clock_s,
    cpu_of,
    fake_hosts,
    memory_mb,
    peak_rss_mb,
    run_child,
    written_bytes,
)
from pydantic import SecretStr

from contract.bridge import ThreadBridge
from contract.broker_api import LeaseRequest, ResetRequest
from contract.broker_client import BrokerClient
from contract.rollout_records import (
    BROKER_TOKEN_VARIABLE,
    HostAddress,
    Limits,
    ModelChoice,
    RolloutSpec,
    RunState,
    TaskBrief,
)
from pilot.bridge import Threads
from pilot.compose import build_world
from pilot.models.scripted import Oracle
from pilot.ports import ModelReply, Observation
from pilot.rollout import run_rollout

TOKEN = "bench-token"
# A turn as models play them: look for the command line, type a command, pick a point.
TURN = [
    {"type": "click", "x": 700, "y": 500, "button": "left", "clicks": 1, "modifiers": []},
    {"type": "type", "text": "circle 100,100 25\n"},
    {"type": "keypress", "keys": ["esc"]},
]


# The history has its first few megabytes by then.
EARLY_TURN = 50


@dataclass(frozen=True)
class Mark:
    """Where the process stood at a turn's boundary."""

    turn: int
    until_s: float
    from_s: float
    written_bytes: int
    syncs: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 200, 1000])
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--shared", type=int, default=50, help="rollouts in one process, for the memory of each")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--wire", action="store_true", help="what requests to a model API cost")
    parser.add_argument("--child", choices=["turns", "shared"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "turns":
        return play_turns(json.loads(sys.stdin.readline()))
    if options.child == "shared":
        return play_shared(json.loads(sys.stdin.readline()))
    rows: list[Row] = []
    sections = [turns_section(options.turns), start_section(options.starts), shared_section(options.shared)]
    if options.wire:
        from bench_wire import wire_sections

        sections = wire_sections(options.starts)
    for section in sections:
        for item in section:
            print(item, flush=True)
            if isinstance(item, Row):
                rows.append(item)
    return 1 if options.check and not all(row.is_met for row in rows) else 0


# -- turns ------------------------------------------------------------------------------------------------------------


def turns_section(turns: list[int]) -> Iterator[Row | str]:
    """CPU, bytes and syncs per turn for each length, and how flat they are."""
    last: list[dict[str, float]] = []
    for count in turns:
        with tempfile.TemporaryDirectory() as folder, paper_host(Path(folder)) as address:
            spec = make_spec(Path(folder), address, turns=count)
            costs = json.loads(run_child(__file__, "turns", {"spec": spec.model_dump(mode="json"), "turns": count}))
        last.append(costs)
        yield f"{count} turns, {costs['frame_bytes']:,.0f} bytes a frame"
        yield Row("CPU per turn", costs["cpu_ms"], 8, "ms")
        yield Row("CPU per turn, median of the later half", costs["late_cpu_ms"], None, "ms")
        yield Row("bytes written per turn without the frame", costs["other_bytes"], None, "B")
        yield Row("bytes written per PNG byte", costs["bytes_per_png_byte"], 1.06, "")
        yield Row("syncs per turn", costs["syncs"], 2, "")
    if len(last) > 1:
        yield f"{turns[-1]} turns against {turns[0]}"
        yield Row("CPU of a late turn, ratio", last[-1]["late_cpu_ms"] / last[0]["late_cpu_ms"], 1.10, "")
        yield Row("bytes per turn, ratio", last[-1]["bytes"] / last[0]["bytes"], 1.10, "")


def play_turns(order: dict[str, Any]) -> int:
    """Child: play one rollout in this process and print what its turns cost, start and end left out.

    Memory is that of turn 50, if there was one, and of the last turn.
    """
    spec = RolloutSpec.model_validate(order["spec"])
    marks: list[Mark] = []
    anonymous_mb: dict[int, float] = {}
    syncs = 0
    fsync = os.fsync

    def counted_fsync(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        fsync(descriptor)

    os.fsync = counted_fsync  # type: ignore[assignment]  # counted at the one door that leads to the disk

    def mark(state: RunState) -> None:
        if state.ended_by is not None:
            return
        until_s = time.process_time()
        if state.turn in {EARLY_TURN, order["turns"]}:
            gc.collect()
            anonymous_mb[state.turn] = memory_mb("self", "Anonymous")
        # What measuring costs lies between the two times.
        marks.append(Mark(state.turn, until_s, time.process_time(), written_bytes(), syncs))

    async def play() -> None:
        key = SecretStr(order["provider_key"]) if "provider_key" in order else None
        token = SecretStr(order.get("broker_token", TOKEN))
        await run_rollout(spec, build_world(spec, broker_token=token, provider_key=key, on_progress=mark))

    anyio.run(play)
    # The first turn builds what is built at first use; it belongs to the start.
    marks = marks[1:]
    turns = marks[-1].turn - marks[0].turn
    frames = [path.stat().st_size for path in sorted((Path(spec.run_dir) / "frames").iterdir())][2 : 2 + turns]
    cpu_ms = [(b.until_s - a.from_s) * 1e3 for a, b in itertools.pairwise(marks)]
    total_bytes = (marks[-1].written_bytes - marks[0].written_bytes) / turns
    frame_bytes = statistics.mean(frames)
    last = max(anonymous_mb, default=0)
    costs = {
        "turns": turns,
        "cpu_ms": statistics.mean(cpu_ms),
        "late_cpu_ms": statistics.median(cpu_ms[len(cpu_ms) // 2 :]),
        "bytes": total_bytes,
        "frame_bytes": frame_bytes,
        "other_bytes": total_bytes - frame_bytes,
        "bytes_per_png_byte": total_bytes / frame_bytes,
        "syncs": (marks[-1].syncs - marks[0].syncs) / turns,
        "anonymous_mb": anonymous_mb.get(last, 0.0),
        "anonymous_growth_mb": anonymous_mb.get(last, 0.0) - anonymous_mb.get(EARLY_TURN, 0.0),
        "peak_mb": peak_rss_mb("self"),
    }
    print(json.dumps(costs))
    return 0


# -- start ------------------------------------------------------------------------------------------------------------


def start_section(starts: int) -> Iterator[Row | str]:
    """CPU from exec to the first model request, and the memory of a pilot process."""
    bare = [cpu_of([*PYTHON, "-c", "import pydantic, orjson, requests"]) for _ in range(starts)]
    measured = [measure_start() for _ in range(starts)]
    yield f"pilot process, {starts} starts"
    yield Row("CPU of a bare interpreter with pydantic, orjson, requests", min(bare), None, "s")
    yield Row("CPU from exec to the first model request, least", min(m.cpu_s for m in measured), 0.25, "s")
    yield Row(
        "CPU from exec to the first model request, median", statistics.median(m.cpu_s for m in measured), 0.25, "s"
    )
    yield Row(
        "time from exec to the first model request, median", statistics.median(m.time_s for m in measured), None, "s"
    )
    yield Row("resident memory at the first model request", max(m.start_rss_mb for m in measured), 45, "MB")
    yield Row("resident memory at its highest in 50 turns", max(m.peak_rss_mb for m in measured), 45, "MB")
    yield Row("of that anonymous", max(m.anonymous_mb for m in measured), None, "MB")


@dataclass(frozen=True)
class Start:
    """One start of a pilot process."""

    cpu_s: float
    time_s: float
    start_rss_mb: float
    peak_rss_mb: float
    anonymous_mb: float


def measure_start() -> Start:
    """Start a pilot whose script is a pipe: it stands still at its first model request until we write into it."""
    with tempfile.TemporaryDirectory() as folder, paper_host(Path(folder)) as address:
        spec = make_spec(Path(folder), address, turns=50)
        assert spec.choice.script is not None
        script = Path(spec.choice.script)
        content = script.read_bytes()
        script.unlink()
        os.mkfifo(script)
        began = time.monotonic()
        environment = {"PATH": os.environ["PATH"], BROKER_TOKEN_VARIABLE: TOKEN}
        pilot = subprocess.Popen(
            [*PYTHON, "-m", "pilot"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/"
        )
        assert pilot.stdin is not None
        assert pilot.stdout is not None
        pilot.stdin.write(orjson.dumps(spec.model_dump(mode="json")) + b"\n")
        pilot.stdin.flush()
        pilot.stdout.readline()
        time_s = time.monotonic() - began
        # Opening the pipe returns when the pilot has opened its end, which is the first thing that its model does.
        with script.open("wb") as pipe:
            cpu_s = cpu_clock_s(pilot.pid)
            start_rss = memory_mb(pilot.pid, "Rss")
            pipe.write(content)
        for _ in range(49):
            pilot.stdout.readline()
        peak, anonymous = peak_rss_mb(pilot.pid), memory_mb(pilot.pid, "Anonymous")
        pilot.stdout.read()
        pilot.stdin.close()
        assert pilot.wait() == 0
    return Start(cpu_s, time_s, start_rss, peak, anonymous)


# -- shared mode ------------------------------------------------------------------------------------------------------


def shared_section(rollouts: int) -> Iterator[Row | str]:
    """Anonymous memory of one more rollout in a process that plays many."""
    with tempfile.TemporaryDirectory() as folder, fake_hosts(rollouts + 1) as addresses:
        specs = [
            make_spec(Path(folder) / str(number), address, turns=20, rollout_id=f"rollout-{number}")
            for number, address in enumerate(addresses)
        ]
        order = {"specs": [spec.model_dump(mode="json") for spec in specs]}
        costs = json.loads(run_child(__file__, "shared", order))
    yield f"shared mode, {rollouts} rollouts at their 20th turn in one process"
    yield Row("anonymous memory per rollout", costs["anonymous_mb"], 1, "MB")
    yield Row("resident memory of the process", costs["rss_mb"], None, "MB")


class _Waiting:
    """An oracle that waits at its last turn until all the others are there, too."""

    def __init__(self, oracle: Oracle, turns: int, arrived: anyio.Semaphore, go: anyio.Event) -> None:
        self._oracle, self._turns, self._arrived, self._go = oracle, turns, arrived, go
        self.state, self.restore, self.aclose = oracle.state, oracle.restore, oracle.aclose

    async def next_turn(self, observation: Observation) -> ModelReply:
        if observation.turn == self._turns:
            self._arrived.release()
            await self._go.wait()
        return await self._oracle.next_turn(observation)


def play_shared(order: dict[str, Any]) -> int:
    """Child: play one rollout to warm up, then the others at once, and print the memory of each in its middle."""
    warm, *specs = map(RolloutSpec.model_validate, order["specs"])
    anyio.run(partial(_play_shared, warm, specs))
    return 0


async def _play_shared(warm: RolloutSpec, specs: list[RolloutSpec]) -> None:
    threads = Threads(broker=ThreadBridge(16, is_abandonable=True), disk=ThreadBridge(4))
    arrived, go = anyio.Semaphore(0), anyio.Event()

    async def play(spec: RolloutSpec, *, is_waiting: bool) -> None:
        from dataclasses import replace

        world = build_world(spec, broker_token=SecretStr(FAKE_TOKEN), provider_key=None, threads=threads)
        if is_waiting:
            assert isinstance(world.model, Oracle)
            world = replace(world, model=_Waiting(world.model, 20, arrived, go))
        await run_rollout(spec, world)

    await play(warm, is_waiting=False)
    gc.collect()
    before = memory_mb("self", "Anonymous")
    async with anyio.create_task_group() as tasks:
        for spec in specs:
            tasks.start_soon(partial(play, spec, is_waiting=True))
        for _ in specs:
            await arrived.acquire()
        gc.collect()
        after = memory_mb("self", "Anonymous")
        rss = memory_mb("self", "Rss")
        go.set()
    print(json.dumps({"anonymous_mb": (after - before) / len(specs), "rss_mb": rss}))


# -- hosts and specs --------------------------------------------------------------------------------------------------


@contextmanager
def paper_host(folder: Path) -> Iterator[HostAddress]:
    """A broker process with the paper driver, leased and reset."""
    state_dir = folder / "broker"
    state_dir.mkdir(mode=0o700, parents=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"}
    broker = subprocess.Popen(
        [*PYTHON, "-m", "broker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
    )
    assert broker.stdin is not None
    assert broker.stdout is not None
    try:
        order = {
            "schema": "autocad-bench.broker-start/1",
            "host_id": "h-bench",
            "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
            "driver": "paper",
            "state_dir": str(state_dir),
        }
        broker.stdin.write(orjson.dumps(order) + b"\n")
        broker.stdin.flush()
        ready = orjson.loads(broker.stdout.readline())
        base_url = f"http://127.0.0.1:{ready['port']}"
        client = BrokerClient(base_url, SecretStr(TOKEN))
        lease = client.lease(LeaseRequest(request_id="lease", rollout_id="bench", lease_s=600))
        drawing = b"0\nEOF\n"
        reset = client.reset(
            ResetRequest(
                request_id="reset",
                lease_id=lease.lease_id,
                task_id="bench",
                start_drawing_base64=base64.b64encode(drawing).decode(),
                start_drawing_sha256=hashlib.sha256(drawing).hexdigest(),
            )
        )
        client.close()
        yield HostAddress(
            host_id="h-bench",
            boot_id=ready["boot_id"],
            base_url=base_url,
            lease_id=lease.lease_id,
            lease_generation=lease.generation,
            first_frame=reset.frame,
        )
    finally:
        broker.stdin.close()
        broker.wait(10)


def make_spec(folder: Path, address: HostAddress, *, turns: int, rollout_id: str = "bench") -> RolloutSpec:
    """An oracle rollout of that many turns and a finish."""
    folder.mkdir(parents=True, exist_ok=True)
    script, reference = folder / "oracle.json", folder / "reference.png"
    script.write_bytes(orjson.dumps({"schema": "autocad-bench.oracle/1", "task_id": "bench", "turns": [TURN] * turns}))
    reference.write_bytes(b"\x89PNG")
    return RolloutSpec(
        batch_id="bench",
        rollout_id=rollout_id,
        run_dir=str(folder / "rollouts" / rollout_id),
        task=TaskBrief(
            task_id="bench",
            prompt="Draw.",
            host_notes="",
            reference=str(reference),
            reference_sha256=hashlib.sha256(reference.read_bytes()).hexdigest(),
        ),
        choice=ModelChoice(provider="oracle", model="reference", script=str(script)),
        host=address,
        limits=Limits(),
        price=None,
    )


if __name__ == "__main__":
    sys.exit(main())
