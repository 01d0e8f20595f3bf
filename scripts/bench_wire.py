"""What requests to a model API cost, beside the least that they can cost and what plain use of the SDK costs.

    .venv/bin/python scripts/bench_turn.py --wire [--starts 5] [--check]

The provider is a process that drops what it reads and answers at once, over plain HTTP. Contenders take turns within
one run, so that all of them meet the same machine: ours, *the limit* (each item serialized once and kept in memory, all
of them joined and written to a socket), and *typed* (a history of dicts through the SDK's typed call). CPU is that of
the process. All bytecode is compiled beforehand.
"""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
from bench_contenders import boto3_ms, contest, imported_sdks, near, signature_ms
from bench_specs import GROWING, KEY, dumped, make_spec, provider
from benching import FAKE_TOKEN, PYTHON, ROOT, Row, cpu_clock_s, cpu_of, fake_hosts, memory_mb, run_child

from contract.rollout_records import BROKER_TOKEN_VARIABLE, PROVIDER_KEY_VARIABLE, HostAddress, RolloutSpec

# What a provider's own SDK costs before anything of ours: import it and make its client.
SDKS = {
    "openai": "import openai; c = openai.AsyncOpenAI(api_key='k', http_client=openai.DefaultAsyncHttpxClient())",
    "anthropic": "import anthropic; c = anthropic.AsyncAnthropic(api_key='k')",
    "mantle": "import openai, botocore.auth, botocore.credentials; c = openai.AsyncOpenAI(api_key='k')",
    "bedrock": "import boto3; c = boto3.client('bedrock-runtime', region_name='us-east-1', aws_access_key_id='a',"
    " aws_secret_access_key='b')",
}
SDK_PACKAGES = ("openai", "anthropic", "boto3", "botocore", "httpx2", "httpx")
PLAYED = (10, 50, 200)
KILLED_AT = 50
SMALL_MB, LARGE_MB = 3.0, 18.0


def wire_sections(starts: int) -> list[Iterator[Row | str]]:
    """All rows of `--wire`, in the order in which they are measured."""
    return [compile_section(), cost_section(), disk_section(), aws_section(), start_section(starts)]


def compile_section() -> Iterator[Row | str]:
    """No start below pays for compiling."""
    for name in (*SDK_PACKAGES, "httpcore2", "urllib3", "pydantic", "anyio"):
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            compileall.compile_dir(folder, quiet=2, workers=0)
    for room in ("contract", "pilot"):
        compileall.compile_dir(ROOT / room, quiet=2)
    yield "bytecode of the SDKs and of the pilot: compiled"


# -- one model call, by the size of its request -----------------------------------------------------------------------


def cost_section() -> Iterator[Row | str]:
    """CPU of a model call at 3 MB and at 18 MB, and what each further megabyte costs."""
    with tempfile.TemporaryDirectory() as folder, provider() as serving:
        spec = make_spec(Path(folder), None, GROWING, serving)
        samples = contest(spec, max(PLAYED), ["limit", "ours", "typed"])
    yield f"one model call of {GROWING}, {max(PLAYED)} turns of unique frames"
    small, large = near(samples, SMALL_MB), near(samples, LARGE_MB)
    limit, ours, typed = ({at.mb: at.cpu_ms[name] for at in (small, large)} for name in ("limit", "ours", "typed"))
    for name, cpu_ms in (("limit", limit), ("typed", typed)):
        for mb, value in cpu_ms.items():
            yield Row(f"CPU at {mb:.1f} MB, {name}", value, None, "ms")
    limit_growth, growth = ((one[large.mb] - one[small.mb]) / (large.mb - small.mb) for one in (limit, ours))
    yield Row("CPU per further MB, limit", limit_growth, None, "ms")
    yield Row("CPU per further MB, ours (limit x 1.5)", growth, 1.5 * limit_growth, "ms")
    yield Row(f"CPU at {small.mb:.1f} MB, ours (limit + 5)", ours[small.mb], limit[small.mb] + 5, "ms")
    yield Row(f"CPU at {large.mb:.1f} MB, ours (limit x 2)", ours[large.mb], 2 * limit[large.mb], "ms")
    yield Row(f"CPU at {large.mb:.1f} MB, ours (typed / 12)", ours[large.mb], typed[large.mb] / 12, "ms")


def aws_section() -> Iterator[Row | str]:
    """What an AWS account adds: a signature hashes every byte, and boto3 serializes by itself."""
    yield "models of an AWS account"
    for mb in (SMALL_MB, LARGE_MB):
        yield Row(f"CPU of a signature over {mb:g} MB", signature_ms(mb), None, "ms")
    for name in ("fireworks", "mantle", "openai", "bedrock"):
        with tempfile.TemporaryDirectory() as folder, provider() as serving:
            samples = contest(make_spec(Path(folder), None, name, serving), 40, ["ours"])[10:]
        mb = statistics.mean(sample.mb for sample in samples)
        cpu_ms = statistics.median(sample.cpu_ms["ours"] for sample in samples)
        yield Row(f"CPU of a call of {name}, {mb:.2f} MB on average", cpu_ms, None, "ms")
    with provider() as serving:
        yield Row("CPU of boto3's own call with two frames", boto3_ms(serving.url), None, "ms")


# -- whole turns ------------------------------------------------------------------------------------------------------


def disk_section() -> Iterator[Row | str]:
    """Whole turns of whole rollouts: CPU, bytes, syncs, memory."""
    for turns in PLAYED:
        with tempfile.TemporaryDirectory() as folder, provider() as serving, fake_hosts(1) as (host,):
            spec = make_spec(Path(folder), host, GROWING, serving, turns=turns)
            order = {"spec": dumped(spec), "turns": turns, "broker_token": FAKE_TOKEN, "provider_key": KEY}
            costs = json.loads(run_child(str(ROOT / "scripts" / "bench_turn.py"), "turns", order))
        yield f"{turns} whole turns of {GROWING}, {costs['frame_bytes']:,.0f} bytes a frame"
        yield Row("CPU per turn", costs["cpu_ms"], None, "ms")
        yield Row("CPU per turn, median of the later half", costs["late_cpu_ms"], None, "ms")
        yield Row("bytes written per turn without the frame", costs["other_bytes"], None, "B")
        yield Row("bytes written per PNG byte", costs["bytes_per_png_byte"], 1.06 if turns >= KILLED_AT else None, "")
        yield Row("syncs per turn", costs["syncs"], 2, "")
        yield Row("resident memory at its highest", costs["peak_mb"], None, "MB")
        yield Row("anonymous memory at the end", costs["anonymous_mb"], None, "MB")
        if turns > KILLED_AT:
            yield Row("anonymous memory, growth from turn 50 on", costs["anonymous_growth_mb"], 1, "MB")


# -- starts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """A process at the moment that counts."""

    cpu_s: float
    rss_mb: float


def start_section(starts: int) -> Iterator[Row | str]:
    """From exec to the first request, per provider, and to the first request after a kill."""
    own = min(cpu_of([*PYTHON, "-c", "import pydantic, anyio, orjson"]) for _ in range(starts))
    yield "starts"
    # The SDKs of OpenAI and Anthropic import these, too; boto3 does not.
    yield Row("CPU of an interpreter with pydantic, anyio and orjson", own, None, "s")
    for name in ("openai", "anthropic", "mantle", "bedrock"):
        bare = [sdk_start(name) for _ in range(starts)]
        ours = [pilot_start(name) for _ in range(starts)]
        with tempfile.TemporaryDirectory() as folder, provider() as serving:
            spec = make_spec(Path(folder), None, name, serving)
            imported = imported_sdks(spec)
        sdk_s, sdk_mb = min(start.cpu_s for start in bare), min(start.rss_mb for start in bare)
        yield f"pilot of {name}, least of {starts} starts; SDK modules in it: {imported}"
        yield Row("CPU of importing its SDK and making its client", sdk_s, None, "s")
        yield Row("CPU from exec to the first request beyond that", min(s.cpu_s for s in ours) - sdk_s, 0.15, "s")
        yield Row("resident memory with the SDK and its client", sdk_mb, None, "MB")
        yield Row("resident memory at the first request beyond that", min(s.rss_mb for s in ours) - sdk_mb, 10, "MB")
        if name == "openai":
            resumed = [pilot_resume() for _ in range(starts)]
            yield f"pilot of {GROWING}, killed at turn {KILLED_AT} and resumed, least of {starts}"
            yield Row(
                "CPU from exec to the next request beyond the SDK", min(s.cpu_s for s in resumed) - sdk_s, 0.2, "s"
            )
            yield Row("resident memory at the next request", min(s.rss_mb for s in resumed), None, "MB")


def sdk_start(name: str) -> Start:
    """An interpreter with the SDK and a client, and nothing else."""
    tell = "import time, pathlib; s = pathlib.Path('/proc/self/status').read_text().split('VmRSS:')[1].split()[0]"
    command = [*PYTHON, "-c", f"{SDKS[name]}; {tell}; print(time.process_time(), s)"]
    cpu_s, rss_kb = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={}).stdout.split()
    return Start(float(cpu_s), int(rss_kb) / 1024)


def pilot_start(name: str) -> Start:
    """A pilot process whose first request is on its way."""
    with tempfile.TemporaryDirectory() as folder, fake_hosts(1) as (host,):
        return _at_next_request(Path(folder), host, name)


def pilot_resume() -> Start:
    """A pilot process that goes on where another one was killed, with its next request on the way."""
    with tempfile.TemporaryDirectory() as folder, fake_hosts(1) as (host,):
        with provider() as serving, _pilot(make_spec(Path(folder), host, GROWING, serving)) as pilot:
            assert pilot.stdout is not None
            while json.loads(pilot.stdout.readline())["turn"] < KILLED_AT:
                pass
            pilot.send_signal(signal.SIGKILL)
        return _at_next_request(Path(folder), host, GROWING, is_resume=True)


def _at_next_request(folder: Path, host: HostAddress, name: str, *, is_resume: bool = False) -> Start:
    with provider("--hold", "1") as holding:
        spec = make_spec(folder, host, name, holding, is_resume=is_resume)
        with _pilot(spec) as pilot:
            holding.next_line()
            start = Start(cpu_clock_s(pilot.pid), memory_mb(pilot.pid, "Rss"))
            pilot.kill()
    return start


@contextmanager
def _pilot(spec: RolloutSpec) -> Iterator[subprocess.Popen[bytes]]:
    environment = {"PATH": os.environ["PATH"], BROKER_TOKEN_VARIABLE: FAKE_TOKEN, PROVIDER_KEY_VARIABLE: KEY}
    pilot = subprocess.Popen(
        [*PYTHON, "-m", "pilot"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/"
    )
    assert pilot.stdin is not None
    pilot.stdin.write(orjson.dumps(dumped(spec)) + b"\n")
    pilot.stdin.flush()
    try:
        yield pilot
    finally:
        pilot.kill()
        pilot.wait()
        pilot.stdin.close()
