"""Whole batches on hosts of the lab, in a process of their own, and what becomes of each of their rollouts.

All rollouts of a batch draw the same lines on the same task, one line a turn. So the frames and the drawing of each are
those of every other, and what was done twice or was shown wrongly cannot hide.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ezdxf

from contract.batch_records import BatchState, RolloutRow
from contract.phases import Cause, Outcome
from contract.records import read_lines
from supervisor.ledger import HostHistory, read_ledger
from tests.lab.lab import Lab
from tests.lab.machines import Machine
from tests.live_batch import LiveBatch

TASK = "plate"
# A batch that takes longer hangs. Most of it is waiting: heartbeats come each 15 s.
BATCH_S_MAX = 400.0
LOOK_S = 0.02

# What one rollout came to: outcome, cause and replacements.
End = tuple[Outcome | None, Cause | None, int]
SCORED: End = (Outcome.SCORED, None, 0)


@dataclass(frozen=True, slots=True)
class Strike:
    """Something that happens to one rollout. `deed` is tried at each look from the moment that `when` is true.

    It says true once it has happened.
    """

    rollout_id: str
    when: Callable[[RolloutRow], bool]
    deed: Callable[[LabBatch, RolloutRow], bool]


@dataclass(slots=True)
class LabBatch:
    """A batch of `count` rollouts, `r-0` and on, in the lab's account."""

    lab: Lab
    live: LiveBatch
    turns: int
    struck: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.live.batch_dir.root

    def play(self, *strikes: Strike) -> int:
        """From start to end, with what strikes on the way. Returns the command's exit status."""
        self.live.start()
        return self.go_on(*strikes)

    def go_on(self, *strikes: Strike) -> int:
        """To the end of a batch that runs."""
        stop = threading.Event()
        striking = threading.Thread(target=self._strike, args=(list(strikes), stop), daemon=True)
        striking.start()
        try:
            return self.live.wait(BATCH_S_MAX)
        finally:
            stop.set()
            striking.join()

    def ends(self) -> dict[str, End]:
        """What each rollout came to."""
        return {row.rollout_id: (row.outcome, row.cause, row.host_replacements) for row in self.state().rollouts}

    def state(self) -> BatchState:
        return self.live.state()

    def said(self) -> str:
        """What the command printed for people."""
        return (self.live.folder / "stderr.txt").read_text()

    def hosts_of(self, rollout_id: str) -> list[HostHistory]:
        """Its hosts by the ledger, in the order of their launches."""
        hosts = read_ledger(self.live.batch_dir.hosts).values()
        return [host for host in hosts if host.rollout_id == rollout_id]

    def machine_of(self, row: RolloutRow) -> Machine | None:
        """The instance of its host of now."""
        for machine in self.machines():
            if machine.start is not None and machine.start.host_id == row.host_id:
                return machine
        return None

    def machines(self) -> list[Machine]:
        """Every instance that ever was."""
        with self.lab.machines.lock:
            return list(self.lab.machines.all.values())

    def plugin_of(self, row: RolloutRow) -> int | None:
        """The process of its tunnel, once that is ready."""
        machine = self.machine_of(row)
        if machine is None:
            return None
        sessions = {one.session_id for one in list(self.lab.sessions.all.values())}
        mine = {one for one in sessions if self.lab.sessions.all[one].instance_id == machine.instance_id}
        started = [event["pid"] for event in self.lab.plugin.events("started") if event["session_id"] in mine]
        ready = {event["pid"] for event in self.lab.plugin.events("ready")}
        return next((pid for pid in reversed(started) if pid in ready and is_plugin(pid)), None)

    def frames_of(self, rollout_id: str) -> list[str]:
        """Its frames in order, by their checksums."""
        frames = sorted(self.live.batch_dir.rollout(rollout_id).frames.glob("*.png"))
        return [hashlib.sha256(frame.read_bytes()).hexdigest() for frame in frames]

    def assert_nothing_is_left(self) -> None:
        """No instance, no session, no plugin, no schedule; and no host ever had two instances."""
        assert [] == self.lab.alive()
        assert [] == self.lab.sessions.open_ids()
        assert [] == [pid for pid in self.lab.plugin.pids() if is_plugin(pid)]
        assert {} == self.lab.schedules.pending
        assert [] == self.lab.double_launches()
        open_hosts = [host for host in read_ledger(self.live.batch_dir.hosts).values() if not host.is_over]
        assert [] == open_hosts
        assert [] == self.live.torn

    def assert_done_once(self) -> None:
        """No action was carried out twice and no frame is wrong, in any rollout, whatever it came to."""
        whole = max((self.frames_of(row.rollout_id) for row in self.state().rollouts), key=len)
        for row in self.state().rollouts:
            run_dir = self.live.batch_dir.rollout(row.rollout_id)
            if not run_dir.root.exists():
                continue
            sequences = [line["sequence"] for line in read_lines(run_dir.input_receipts)]
            frames = self.frames_of(row.rollout_id)

            assert list(range(1, len(sequences) + 1)) == sequences
            assert whole[: len(frames)] == frames, row.rollout_id
            if row.outcome is Outcome.SCORED:
                # The reset comes before them, and the finish behind.
                assert self.turns + 2 == len(frames)
                assert self.turns == lines_drawn(run_dir.attempt("dxf"))
        for machine in self.machines():
            started = starts_of(self.lab.folder / "guests" / machine.instance_id)
            assert [] == [sequence for sequence, times in started.items() if times > 1]

    def _strike(self, strikes: list[Strike], stop: threading.Event) -> None:
        while strikes and not stop.wait(LOOK_S):
            if not self.live.batch_dir.state.exists():
                continue
            rows = {row.rollout_id: row for row in self.state().rollouts}
            for strike in list(strikes):
                row = rows[strike.rollout_id]
                if strike.when(row) and strike.deed(self, row):
                    strikes.remove(strike)
                    self.struck.append(strike.rollout_id)


@contextmanager
def lab_batch(
    folder: Path,
    *,
    count: int,
    turns: int = 5,
    wait_s: float = 0.2,
    mode: str = "process",
    host: Mapping[str, Any] | None = None,
    lab: Mapping[str, Any] | None = None,
    **config: Any,
) -> Iterator[LabBatch]:
    """A batch that is not started yet, in an account of its own. `lab` are settings of `Lab`; `host` of the config."""
    with Lab.opened(folder / "lab", **(lab or {})) as opened:
        script = replay_of_lines(folder / "model_turns.jsonl", turns=turns, wait_s=wait_s)
        rollouts = [
            {
                "rollout_id": f"r-{number}",
                "task": TASK,
                "provider": "replay",
                "model": f"m-{number}",
                "script": str(script),
            }
            for number in range(count)
        ]
        live = LiveBatch(
            folder / "batch",
            count=count,
            max_concurrency=count,
            mode=mode,
            host=opened.host_config(**(host or {})),
            environment=opened.environment,
            config={"rollouts": rollouts, **config},
        )
        try:
            yield LabBatch(opened, live, turns)
        finally:
            if live.process is not None and live.process.poll() is None:
                live.process.kill()
                live.process.wait()
            for pid in opened.plugin.pids():
                signal_plugin(pid, signal.SIGKILL)


def replay_of_lines(path: Path, *, turns: int, wait_s: float) -> Path:
    """A stored trace whose model types one line a turn, waits, and at last finishes."""
    batches: list[list[dict[str, Any]]] = [
        [{"type": "type", "text": f"line {20 * turn},10 {20 * turn},200\n"}, {"type": "wait", "seconds": wait_s}]
        for turn in range(1, turns + 1)
    ]
    batches.append([{"type": "finish", "status": "done", "summary": "drawn"}])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"arguments": {"actions": batch}}) + "\n" for batch in batches))
    return path


def lines_drawn(drawing: Path) -> int:
    """How many lines of the script are in a drawing; one that was drawn twice counts twice."""
    found = ezdxf.readfile(drawing).modelspace().query("LINE")
    return sum(1 for line in found if (line.dxf.start.y, line.dxf.end.y) == (10, 200))


def starts_of(guest: Path) -> Counter[tuple[str, int]]:
    """How often a guest has begun to carry out each ActionBatch, by its own receipt book."""
    books = guest.rglob("*receipts*.jsonl")
    lines = [line for book in books for line in read_lines(book) if line["kind"] == "started"]
    return Counter((line["lease_id"], line["sequence"]) for line in lines)


def signal_plugin(pid: int, number: int) -> bool:
    """Send a signal, if that process still is a plugin of ours. True when it was."""
    if not is_plugin(pid):
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def is_plugin(pid: int) -> bool:
    """True while this process lives and is the stand-in plugin."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"session-manager-plugin" in command and stat.rpartition(")")[2].split()[0] != "Z"
