"""An evaluator process does not outlive its owner, whatever it is doing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GONE_S_MAX = 10.0
OWNER = """
import os
from broker.evaluator.process import EvaluatorProcess
EvaluatorProcess({"PATH": os.environ["PATH"]}).warm()
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has its evaluator load what it needs."""
    made = subprocess.Popen([sys.executable, "-c", OWNER], cwd=Path(__file__).parents[2])
    yield made
    made.kill()
    made.wait()


def evaluator_of(owner: subprocess.Popen[bytes]) -> int:
    """Its evaluator, as soon as there is one that has become a Python."""
    while owner.poll() is None:
        for child in Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if command[0] == sys.executable.encode() and b"broker.evaluator" in command:
                return int(child)
        threading.Event().wait(0.001)
    raise AssertionError("the owner has ended")


def test_an_evaluator_that_still_loads_ends_with_its_owner(owner: subprocess.Popen[bytes]) -> None:
    """One that is stopped reads no end of its input, and must be gone all the same."""
    evaluator = evaluator_of(owner)
    os.kill(evaluator, signal.SIGSTOP)
    end = os.pidfd_open(evaluator)
    owner.kill()
    is_gone = bool(select.select([end], [], [], GONE_S_MAX)[0])
    os.close(end)
    if not is_gone:
        os.kill(evaluator, signal.SIGKILL)

    assert is_gone
