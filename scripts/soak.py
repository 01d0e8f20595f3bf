"""Many rollouts in one process, with slow answers and large requests: memory, the loop's lag, and how fast all end.

    .venv/bin/python scripts/soak.py [--rollouts 200] [--latency-s 0.5] [--body-mib 8] [--seconds 30] [--check]

The rollouts are played by the launcher of shared mode against a provider that answers late and drops what it reads,
and against hosts that do nothing; both are other processes. Requests grow with each turn until they have the size that
is asked for. Numbers are taken from then on. `--check` ends with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
from pydantic import SecretStr

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from contract.profiles import base_url, profile_of  # noqa: E402  # the script's own repository comes first
from contract.rollout_records import HostAddress, Limits, ModelChoice, RolloutSpec, TaskBrief  # noqa: E402
from supervisor.launch import PilotSecrets, Progress, SharedPilot  # noqa: E402

PROVIDER: Final = "openrouter"
MODEL: Final = "openai/gpt-5.6-sol"
BROKER_TOKEN: Final = "canary-broker-token-5b1f"  # tests.fakes.TOKEN
MIB: Final = 1024 * 1024
# A frame that LibreCAD's desktop compresses to, as base64.
FRAME_BODY_BYTES: Final = 107_000
LAG_EVERY_S: Final = 0.01
# Targets: what two hundred rollouts in one process may cost.
RSS_MB_MAX: Final = 250.0
LAG_P99_S_MAX: Final = 0.25
CANCEL_S_MAX: Final = 1.0
WARM_UP_S_MAX: Final = 600.0


@dataclass
class Measured:
    """What was seen while all rollouts played with requests of full size."""

    lags_s: list[float] = field(default_factory=list)
    rss_mb: float = 0.0
    warm_up_s: float = 0.0
    turns: int = 0
    cancel_s: float = 0.0
    cancel_cpu_s: float = 0.0
    ended: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--latency-s", type=float, default=0.5)
    parser.add_argument("--body-mib", type=float, default=8.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return soak(json.loads(sys.stdin.readline()))
    with (
        tempfile.TemporaryDirectory() as folder,
        _provider(options.latency_s) as endpoint,
        _hosts(options.rollouts) as hosts,
    ):
        specs = [make_spec(Path(folder), n, host, endpoint, options.body_mib) for n, host in enumerate(hosts)]
        order = {"specs": [spec.model_dump(mode="json") for spec in specs], "seconds": options.seconds}
        command = [sys.executable, str(Path(__file__).resolve()), "--child"]
        ended = subprocess.run(command, input=orjson.dumps(order) + b"\n", stdout=subprocess.PIPE, check=True, cwd=ROOT)
    measured = json.loads(ended.stdout)
    print(f"{options.rollouts} rollouts, answers after {options.latency_s} s, requests of {options.body_mib} MiB")
    print(f"  all requests had their size after {measured['warm_up_s']:.0f} s; {measured['turns']} turns since")
    rows = [
        ("resident memory at its highest", measured["rss_mb"], RSS_MB_MAX, "MB"),
        ("lag of the loop, 99th percentile", measured["lag_p99_s"], LAG_P99_S_MAX, "s"),
        ("lag of the loop, most", measured["lag_max_s"], None, "s"),
        ("time to cancel all", measured["cancel_s"], CANCEL_S_MAX, "s"),
        ("CPU of cancelling all", measured["cancel_cpu_s"], None, "s"),
    ]
    for what, value, target, unit in rows:
        verdict = "" if target is None else f"target {target:<6g} {'ok' if value <= target else 'OVER'}"
        print(f"  {what:<58} {value:>9.3f} {unit:<6} {verdict}")
    if measured["ended"]:
        print(f"  {len(measured['ended'])} rollouts ended by themselves: {sorted(set(measured['ended']))}")
    is_met = all(target is None or value <= target for _, value, target, _ in rows) and not measured["ended"]
    return 1 if options.check and not is_met else 0


def soak(order: dict[str, Any]) -> int:
    """Child: play all of them, measure, cancel, and print the numbers as one JSON line."""
    specs = [RolloutSpec.model_validate(spec) for spec in order["specs"]]
    measured = anyio.run(partial(_soak, specs, order["seconds"]))
    lags = sorted(measured.lags_s)
    print(
        json.dumps(
            {
                "rss_mb": measured.rss_mb,
                "lag_p99_s": lags[int(len(lags) * 0.99)],
                "lag_max_s": lags[-1],
                "warm_up_s": measured.warm_up_s,
                "turns": measured.turns,
                "cancel_s": measured.cancel_s,
                "cancel_cpu_s": measured.cancel_cpu_s,
                "ended": measured.ended,
            }
        )
    )
    return 0


async def _soak(specs: list[RolloutSpec], seconds: float) -> Measured:
    measured = Measured()
    turns: dict[str, int] = {}
    launcher = SharedPilot(max_concurrency=len(specs))
    stop = anyio.Event()

    async def play(spec: RolloutSpec) -> None:
        def on_progress(progress: Progress) -> None:
            turns[spec.rollout_id] = progress.turn

        log = Path(spec.run_dir).parent / f"{spec.rollout_id}.log"
        secrets = PilotSecrets(SecretStr(BROKER_TOKEN), SecretStr("sk-or-soak"))
        end = await launcher.play(spec, secrets, log=log, stop=stop, on_progress=on_progress)
        measured.ended.append(f"{end.state.ended_by if end.state else end.status}: {end.problem}")

    started = time.monotonic()
    cancelled = cpu_s = 0.0
    async with anyio.create_task_group() as tasks:
        for spec in specs:
            tasks.start_soon(play, spec)
        with anyio.fail_after(WARM_UP_S_MAX):
            # The first turn has the reference in it, which makes the request as large as it is asked for.
            while len(turns) < len(specs) or min(turns.values()) < 2:
                await anyio.sleep(0.1)
        measured.warm_up_s = time.monotonic() - started
        before = sum(turns.values())
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            await anyio.sleep(LAG_EVERY_S)
            measured.lags_s.append(time.monotonic() - now - LAG_EVERY_S)
            measured.rss_mb = max(measured.rss_mb, _rss_mb())
        measured.turns = sum(turns.values()) - before
        cancelled, cpu_s = time.monotonic(), time.process_time()
        tasks.cancel_scope.cancel()
    measured.cancel_s = time.monotonic() - cancelled
    measured.cancel_cpu_s = time.process_time() - cpu_s
    measured.rss_mb = max(measured.rss_mb, _rss_mb("VmHWM"))
    await launcher.aclose()
    return measured


def _rss_mb(name: str = "VmRSS") -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel keeps no account of this process")


def make_spec(folder: Path, number: int, host: HostAddress, endpoint: str, body_mib: float) -> RolloutSpec:
    """A rollout whose reference picture makes its first request as large as it is asked for."""
    reference = folder / "reference.png"
    if not reference.exists():
        reference.write_bytes(_picture(int((body_mib * MIB - FRAME_BODY_BYTES) * 3 / 4)))
    rollout_id = f"soak-{number}"
    name, profile = profile_of(PROVIDER, MODEL)
    return RolloutSpec(
        batch_id="soak",
        rollout_id=rollout_id,
        run_dir=str(folder / "rollouts" / rollout_id),
        task=TaskBrief(
            task_id="soak",
            prompt="Draw.",
            host_notes="",
            reference=str(reference),
            reference_sha256=hashlib.sha256(reference.read_bytes()).hexdigest(),
        ),
        choice=ModelChoice(
            provider=PROVIDER,
            model=MODEL,
            profile=name,
            facts=profile,
            endpoint=base_url(profile, endpoint=endpoint, region=None),
        ),
        host=host,
        limits=Limits(actions=1_000_000),
        price=None,
    )


def _picture(size_bytes: int) -> bytes:
    """A PNG of this size: a small picture and a long comment."""
    from tests.fakes import screen_png

    bare = len(screen_png("", size_bytes=2_000))
    return screen_png("x" * (size_bytes - bare), size_bytes=2_000)


@contextmanager
def _provider(latency_s: float) -> Iterator[str]:
    options = ["--turns", "1000000", "--latency-s", str(latency_s)]
    with _served(["-m", "tests.providers.light", *options]) as lines:
        yield next(lines)


@contextmanager
def _hosts(count: int) -> Iterator[list[HostAddress]]:
    with _served(["-m", "tests.fakes", str(count)]) as lines:
        yield [HostAddress.model_validate_json(next(lines)) for _ in range(count)]


@contextmanager
def _served(arguments: list[str]) -> Iterator[Iterator[str]]:
    """Another process that prints where it serves and ends with its stdin."""
    server = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield (line.strip() for line in server.stdout)
    finally:
        server.stdin.close()
        server.wait(30)


if __name__ == "__main__":
    sys.exit(main())
