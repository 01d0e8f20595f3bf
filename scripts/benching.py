"""What the benchmarks share: numbers beside their targets, the kernel's accounts of a process, and stand-in hosts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from contract.rollout_records import HostAddress

ROOT = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable, "-I"]
FAKE_TOKEN = "canary-broker-token-5b1f"  # tests.fakes.TOKEN


@dataclass(frozen=True)
class Row:
    """One measured number and what it may be at most."""

    what: str
    measured: float
    target: float | None
    unit: str

    def __str__(self) -> str:
        if self.target is None:
            return f"  {self.what:<58} {self.measured:>9.3f} {self.unit}"
        verdict = "ok" if self.is_met else "OVER"
        return f"  {self.what:<58} {self.measured:>9.3f} {self.unit:<6} target {self.target:<6g} {verdict}"

    @property
    def is_met(self) -> bool:
        return self.target is None or self.measured <= self.target


def cpu_clock_s(pid: int) -> float:
    # The CPU-time clock of another process, as clock_getcpuclockid(3) makes its id.
    return time.clock_gettime((~pid << 3) | 2)


def cpu_of(command: list[str]) -> float:
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, command
    return usage.ru_utime + usage.ru_stime


def memory_mb(pid: int | str, field: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(field)


def peak_rss_mb(pid: int | str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("VmHWM")


def written_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise AssertionError("the kernel keeps no account of this process")


@contextmanager
def fake_hosts(count: int) -> Iterator[list[HostAddress]]:
    """Many light hosts in one process, because many paper brokers would not leave the machine to the pilots."""
    hosts = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert hosts.stdin is not None
    assert hosts.stdout is not None
    try:
        yield [HostAddress.model_validate_json(hosts.stdout.readline()) for _ in range(count)]
    finally:
        hosts.stdin.close()
        hosts.wait(10)


def run_child(script: str, kind: str, order: dict[str, Any]) -> bytes:
    """The script again, in a process of its own, so that nothing but the pilot is measured."""
    command = [sys.executable, str(Path(script).resolve()), "--child", kind]
    return subprocess.run(command, input=orjson.dumps(order) + b"\n", stdout=subprocess.PIPE, check=True).stdout
