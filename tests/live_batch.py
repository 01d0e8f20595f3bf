"""A batch in processes of its own, as an operator starts it, for tests that kill parts of it and see what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.batch_records import BatchState, RolloutRow
from contract.phases import Phase
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.ledger import read_ledger
from supervisor.processes import facts_of, is_alive, processes_of_hosts
from tests.waiting import until

REPOSITORY = Path(__file__).resolve().parent.parent
TASKS = ("plate", "shaft", "flange", "bracket", "gasket", "stair", "floor-plan", "gear-cover")


def replay_of_waits(path: Path, *, turns: int, wait_s: float) -> Path:
    """A stored trace whose model waits `turns` times and then finishes."""
    actions: list[list[dict[str, Any]]] = [[{"type": "wait", "seconds": wait_s}] for _ in range(turns)]
    actions.append([{"type": "finish", "status": "done", "summary": "waited"}])
    path.write_text("".join(json.dumps({"arguments": {"actions": batch}}) + "\n" for batch in actions))
    return path


@dataclass(slots=True)
class LiveBatch:
    """One run folder and whatever controller works in it.

    While a controller runs, a thread reads `batch-state.json` without pause; what it could not parse is in `torn`.
    """

    folder: Path
    count: int = 3
    turns: int = 25
    wait_s: float = 0.1
    max_concurrency: int = 4
    mode: str = "process"
    provider: str = "replay"
    host: Mapping[str, Any] = field(default_factory=lambda: {"kind": "local", "driver": "paper"})
    environment: Mapping[str, str] = field(default_factory=dict)
    # Further fields of the config, also in the place of those that it would have; and of the command line.
    config: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    torn: list[str] = field(default_factory=list)
    _watcher: threading.Thread | None = None

    @property
    def batch_dir(self) -> BatchDir:
        return BatchDir(self.folder / "out")

    def start(self) -> None:
        """`--execute` into the run folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.json"
        config.write_text(json.dumps(self._config()))
        self._run("--config", str(config), "--output-dir", str(self.batch_dir.root), "--execute", *self.options)

    def resume(self) -> None:
        """`--resume --execute`."""
        self._run("--resume", str(self.batch_dir.root), "--execute")

    def wait(self, timeout_s: float = 90) -> int:
        """Wait for the controller. Returns its exit status."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        assert self._watcher is not None
        self._watcher.join()
        return code

    def reconcile(self, *options: str) -> int:
        """`autocad-bench reconcile --run-dir`."""
        command = [*_command("main"), "reconcile", "--run-dir", str(self.batch_dir.root), *options]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False, timeout=60).returncode

    def kill_controller(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def state(self) -> BatchState:
        return read_record(self.batch_dir.state, BatchState)

    def row(self, rollout_id: str) -> RolloutRow:
        return next(row for row in self.state().rollouts if row.rollout_id == rollout_id)

    def wait_for(self, is_so: Callable[[BatchState], bool], timeout_s: float = 60) -> BatchState:
        """The first state of which `is_so` is true."""
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            has_ended = self.process.poll() is not None
            if self.batch_dir.state.exists() and is_so(state := self.state()):
                return state
            if has_ended:
                break
            time.sleep(0.02)
        said = "".join((self.folder / name).read_text()[-4000:] for name in ("stderr.txt", "stdout.txt"))
        raise AssertionError(f"the batch did not come so far in {timeout_s} s, or ended before: {said}")

    def wait_until_playing(self, count: int | None = None) -> None:
        """So many rollouts have been handed off and are at their first turns."""
        wanted = count or min(self.count, self.max_concurrency)
        self.wait_for(lambda state: sum(row.turns > 0 for row in state.rollouts) >= wanted)

    def pilot_of(self, rollout_id: str) -> int | None:
        """The process of this rollout's pilot, known by the log that it writes to."""
        log = str(self.batch_dir.log(rollout_id))
        return next((pid for pid in self._children("pilot") if _target(f"/proc/{pid}/fd/2") == log), None)

    def broker_of(self, rollout_id: str) -> int | None:
        """The process of this rollout's broker, known by its tag."""
        tag = f"AUTOCAD_BENCH_ROLLOUT_ID={rollout_id}".encode()
        return next((pid for pid in self._children("broker") if tag in _read(f"/proc/{pid}/environ")), None)

    def programs_of(self, host_id: str, name: str) -> list[int]:
        """The host's processes that run the program `name`."""
        found = processes_of_hosts([host_id], batch_id=self.state().batch_id)
        return [one.pid for one in found if _read(f"/proc/{one.pid}/comm").strip() == name.encode()]

    def host_ids(self) -> list[str]:
        return list(read_ledger(self.batch_dir.hosts))

    def alive(self, host_ids: Iterable[str] | None = None) -> list[int]:
        """Processes of these hosts (of all that were ever launched, if none are named)."""
        ids = list(host_ids) if host_ids is not None else self.host_ids()
        return [process.pid for process in processes_of_hosts(ids, batch_id=self.state().batch_id)]

    def wait_until_gone(self, host_id: str, pids: Iterable[int] = ()) -> None:
        """Until nothing of this host, and none of these processes, is alive, while nobody does anything about it."""
        watched = [facts for pid in pids if (facts := facts_of(pid)) is not None]
        until(lambda: not self.alive([host_id]) and not any(is_alive(one.pid, one.started_s) for one in watched))

    def end_everything(self) -> None:
        """For the end of a test, also of one that failed in the middle: no process and no private folder stays."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.batch_dir.state.exists():
            self.reconcile("--execute")

    def _config(self) -> dict[str, Any]:
        script = replay_of_waits(self.folder / "model_turns.jsonl", turns=self.turns, wait_s=self.wait_s)
        rollouts = [
            {
                "rollout_id": f"r-{number}",
                "task": TASKS[number % len(TASKS)],
                "provider": self.provider,
                "model": f"m-{number // len(TASKS)}",
                **({"script": str(script)} if self.provider == "replay" else {}),
            }
            for number in range(self.count)
        ]
        return {
            "schema": "autocad-bench.config/1",
            "benchmark": "live",
            "mode": self.mode,
            "task_suites_dir": str(REPOSITORY / "configs" / "suites"),
            "expected_rollouts": self.count,
            "max_concurrency": self.max_concurrency,
            "broker_version": "1.0",
            "host": dict(self.host),
            "evaluator": {
                "name": EVALUATOR_NAME,
                "version": EVALUATOR_VERSION,
                "gold_cache": str(REPOSITORY / "configs" / "gold"),
            },
            "rollouts": rollouts,
            **self.config,
        }

    def _run(self, *arguments: str) -> None:
        with (self.folder / "stdout.txt").open("ab") as stdout, (self.folder / "stderr.txt").open("ab") as stderr:
            self.process = subprocess.Popen(
                [*_command("batch_main"), *arguments],
                cwd=REPOSITORY,
                env={**os.environ, **self.environment},
                stdout=stdout,
                stderr=stderr,
            )
        self._watcher = threading.Thread(target=self._watch, args=(self.process,), daemon=True)
        self._watcher.start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        path, content = self.batch_dir.state, b""
        while process.poll() is None:
            before = content
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            finally:
                time.sleep(0.002)
            if content == before:
                continue
            try:
                BatchState.model_validate_json(content)
            except ValueError as error:
                self.torn.append(f"{error}: {content[:200]!r}")

    def _children(self, module: str) -> list[int]:
        assert self.process is not None
        try:
            pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:
            return []
        return [int(pid) for pid in pids if _read(f"/proc/{pid}/cmdline").endswith(b"-m\0" + module.encode() + b"\0")]


def has_ended(row: RolloutRow) -> bool:
    return row.phase in {Phase.FINISHED, Phase.FAILED, Phase.NOT_STARTED}


def _command(entry: str) -> list[str]:
    return [sys.executable, "-c", f"from supervisor.cli import {entry}; {entry}()"]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
