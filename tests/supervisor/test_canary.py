"""Planted secrets: they are in no file, argv, log or environment but their own, while a batch runs and afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contract.phases import Outcome
from contract.rollout_records import BROKER_TOKEN_VARIABLE, PROVIDER_KEY_VARIABLE
from tests.live_batch import LiveBatch

pytestmark = pytest.mark.slow

PLANTED = {
    "OPENAI_API_KEY": "canary-openai-2b7e151628aed2a6",
    "ANTHROPIC_API_KEY": "canary-anthropic-abf7158809cf4f3c",
    "AWS_SECRET_ACCESS_KEY": "canary-aws-3ad77bb40d7a3660",
    "AWS_PROFILE": "canary-profile-a89ecaf32466ef97",
    "HTTPS_PROXY": "http://canary-proxy-user:canary-f5d3d58503b9699d@127.0.0.1:1",
}
ALLOWED = {"PATH", "LANG", "TZ", "HOME", "LC_CTYPE"}
TAGS = {"AUTOCAD_BENCH_HOST_ID", "AUTOCAD_BENCH_BATCH_ID", "AUTOCAD_BENCH_ROLLOUT_ID"}
# What the broker sets for its evaluator, so that the same drawing gives the same bytes.
EVALUATOR = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED"}


@dataclass(slots=True)
class Watch:
    """Looks at every descendant of the controller, over and over, and keeps what it has seen."""

    batch: LiveBatch
    environments: dict[int, dict[str, str]] = field(default_factory=dict)
    commands: dict[int, str] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        assert self.batch.process is not None
        while not self.stop.is_set():
            for pid in list(_descendants(self.batch.process.pid)):
                self._look(pid)
            time.sleep(0.01)

    def tokens(self) -> set[str]:
        """The broker tokens of all pilots that were seen."""
        found = {variables.get(BROKER_TOKEN_VARIABLE) for variables in self.environments.values()}
        return {token for token in found if token}

    def _look(self, pid: int) -> None:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            return
        # Between fork and exec a child still is a copy of its parent.
        if "supervisor.cli" in command or not command:
            return
        self.commands[pid] = command
        self.environments[pid] = dict(item.split("=", 1) for item in content.split("\0") if "=" in item)


def _descendants(pid: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield child
        yield from _descendants(child)


@pytest.mark.parametrize("mode", ["process", "shared"])
def test_secrets_stay_where_they_belong(tmp_path: Path, mode: str) -> None:
    """The controller's own environment is the only one that holds what was planted in it."""
    batch = LiveBatch(tmp_path / "batch", count=2, max_concurrency=2, turns=10, mode=mode, environment=PLANTED)
    batch.start()
    watch = Watch(batch)
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    code = batch.wait()
    watch.stop.set()
    thread.join()
    secrets = {*PLANTED.values(), *watch.tokens(), "canary-"}
    files = [path for path in batch.folder.rglob("*") if path.is_file()]
    leaks = [(str(path), secret) for path in files for secret in secrets if secret.encode() in path.read_bytes()]

    assert 0 == code
    assert [Outcome.SCORED] * 2 == [row.outcome for row in batch.state().rollouts]
    assert [] == leaks
    assert [] == [command for command in watch.commands.values() if any(secret in command for secret in secrets)]
    pilots = {pid for pid, command in watch.commands.items() if command.rstrip().endswith("-m pilot")}
    brokers = {pid for pid, command in watch.commands.items() if command.rstrip().endswith("-m broker")}
    assert (2 if mode == "process" else 0, 2) == (len(pilots), len(brokers))
    for pid, variables in watch.environments.items():
        allowed = ALLOWED | ({BROKER_TOKEN_VARIABLE} if pid in pilots else TAGS | EVALUATOR)
        assert variables.keys() <= allowed, f"{watch.commands[pid]} has {sorted(variables.keys() - allowed)}"
        assert PROVIDER_KEY_VARIABLE not in variables
        if pid not in pilots:
            assert not any(secret in value for secret in secrets for value in variables.values())
    assert len(pilots) == len(watch.tokens())
