"""One batch of the real command on the lab, struck where a seed says, and what comes after.

`tell` plays one seed and returns what it saw; each promise that did not hold is a line in `broken`. Processes, signals,
tunnels and brokers are real. A seed fixes the story; the order of what happens at the same time is the machine's.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from broker.evaluator.version import EVALUATOR_VERSION
from contract.batch_records import BatchState, RolloutRow
from contract.phases import BatchStatus, Outcome, Phase
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.hosts.folders import SCRATCH, pilot_home, tunnel_folder
from supervisor.ledger import read_ledger
from tests.lab.blows import Blow, BlowLab, Storm
from tests.lab.commands import ROOT
from tests.lab.stories import Story, Told
from tests.lab.traces import drawn_lines, replay_of_lines, twice_done
from tests.lab.victims import leavings_of

TASKS: Final = ("plate", "shaft", "flange")
# Of the instance type.
VCPUS: Final = 4
# The longest boot, the look of the dead-man timer, and a margin.
MARGIN_S: Final = 60.0
# Nothing in here takes so long; what does hangs.
COMMAND_S_MAX: Final = 240.0
SETTLE_S_MAX: Final = 15.0
UNFINISHED: Final = frozenset({Phase.HANDED_OFF, Phase.EVALUATING})
ENDED: Final = frozenset({Phase.FINISHED, Phase.FAILED, Phase.NOT_STARTED})


def tell(seed: int, folder: Path, *, story: Story | None = None) -> Told:
    """Play one seed in a new folder."""
    story = story or Story.of(seed)
    told = Told(story)
    began_s = time.monotonic()
    settings: dict[str, Any] = {"visible_after_s": story.visible_after_s, "quota": {"L-DB2E81BA": story.quota_vcpus}}
    with BlowLab.opened(folder / "lab", **settings) as lab:
        assert isinstance(lab, BlowLab)
        lab.trouble_of = Storm(random.Random(seed + 1), story.rate)
        _Teller(lab, folder, told).tell()
        told.launched = sum(machine.start is not None for machine in lab.machines.all.values())
        told.calls = len(lab.calls)
    told.took_s = time.monotonic() - began_s
    return told


class _Teller:
    def __init__(self, lab: BlowLab, folder: Path, told: Told) -> None:
        self._lab = lab
        self._folder = folder
        self._told = told
        self._story = told.story
        self._out = BatchDir(folder / "out")
        self._decoys: list[str] = []

    def tell(self) -> None:
        config = self._write_config()
        code = self._control(
            ["batch", "--config", str(config), "--output-dir", str(self._out.root), "--execute"], self._story.blow
        )
        if self._out.state.exists():
            self._add_decoys()
            if code < 0:
                self._after_death()
            else:
                self._after_end(code)
        else:
            self._told.expect(not self._ours_alive(), "a batch without a folder launched nothing")
        self._judge()

    def _after_death(self) -> None:
        before = self._rows()
        time.sleep(self._story.waits_s)
        match self._story.aftermath:
            case "nobody":
                self._let_the_lease_pass()
            case "reconcile":
                self._reconcile()
            case "reconcile twice":
                # The first may be killed, or come before what was launched is shown; then the second one finds it.
                self._control(self._reconciling, self._story.at_reconcile)
                self._reconcile()
            case "resume":
                self._resume_to_the_end(before)
            case "death":
                if self._control(self._resume, self._story.second) >= 0:
                    self._assert_clean_end()
                self._reconcile()
            case _:
                if self._control(self._resume, self._story.second) < 0:
                    before = self._rows()
                    self._resume_to_the_end(before)
                else:
                    self._resume_to_the_end(self._rows())
        self._assert_kept(before)

    def _after_end(self, code: int) -> None:
        """The controller ended by itself, whatever hit it."""
        told = self._told
        told.expect(code in (0, 1, 130), f"a controller ends with 0, 1 or 130, not {code}")
        if code != 1:
            self._assert_clean_end()
        before = self._rows()
        if self._story.aftermath.endswith("resume") and any(row.phase is Phase.QUEUED for row in before.values()):
            self._resume_to_the_end(before)
        elif self._story.aftermath == "nobody":
            self._let_the_lease_pass()
        else:
            self._reconcile()
        self._assert_kept(before)

    @property
    def _resume(self) -> list[str]:
        return ["batch", "--resume", str(self._out.root), "--execute"]

    @property
    def _reconciling(self) -> list[str]:
        return ["reconcile", "--run-dir", str(self._out.root), "--execute"]

    def _resume_to_the_end(self, before: dict[str, RolloutRow]) -> None:
        """Resume in calm weather until nothing waits, and hold it to all promises."""
        self._lab.trouble_of = lambda action: None
        code = self._control(self._resume, None)
        if code == 3:
            # A machine that is busy cannot ask everything in time, and an operator tries again.
            code = self._control(self._resume, None)
        self._told.expect(code in (0, 1), f"a resume in calm weather ends with 0 or 1, not {code}")
        self._assert_clean_end()
        rows = self._rows()
        for row in rows.values():
            self._told.expect(row.phase in ENDED, f"{row.rollout_id} was ended by the resume, not {row.phase.value}")
            if before[row.rollout_id].phase in UNFINISHED:
                if row.outcome is Outcome.SCORED:
                    self._told.continued += 1
                else:
                    self._told.given_up.append(f"{row.rollout_id} {row.cause}: {row.cause_detail}")
        self._reconcile(is_after_end=True)

    def _let_the_lease_pass(self) -> None:
        self._lab.ahead_s = self._story.lease_s + MARGIN_S
        until_s = time.monotonic() + SETTLE_S_MAX
        while self._ours_alive() and time.monotonic() < until_s:
            time.sleep(0.1)

    def _reconcile(self, *, is_after_end: bool = False) -> None:
        """As cron does it, when every index shows what was launched: one pass, one TerminateInstances."""
        self._lab.trouble_of = lambda action: None
        time.sleep(0.0 if is_after_end else self._story.visible_after_s)
        before = len(self._lab.called("TerminateInstances"))
        code = self._control(self._reconciling, None)
        calls = len(self._lab.called("TerminateInstances")) - before
        self._told.expect(code == 0, f"reconcile ends with 0, not {code}")
        self._told.expect(calls <= (0 if is_after_end else 1), f"reconcile ends all in one call, not {calls}")
        self._told.expect(BatchStatus.RUNNING is not self._state().status, "nothing runs after reconcile")
        for row in self._rows().values():
            settled = row.phase in ENDED or row.phase is Phase.QUEUED
            self._told.expect(settled, f"{row.rollout_id} is settled after reconcile, not {row.phase.value}")

    def _control(self, arguments: list[str], blow: Blow | None) -> int:
        """Run one command under its blow. Returns its exit status."""
        struck = self._folder / f"struck-{len(self._told.codes)}"
        point = None if blow is None else blow.write_point(struck)
        module = ["supervisor.cli"] if point is None else ["tests.lab.failpoint", point.order()]
        log = self._folder / f"command-{len(self._told.codes)}.txt"
        stop = threading.Event()
        watcher = None
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *module, *arguments],
                env=self._lab.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            self._lab.aim(blow, process.pid)
            if blow is not None and blow.at == "checkpoint":
                watcher = threading.Thread(target=self._lab.strike_at_checkpoint, args=(self._out.rollouts, stop))
                watcher.start()
            try:
                self._add_decoys_during(process)
                code = process.wait(COMMAND_S_MAX)
            except subprocess.TimeoutExpired:
                self._told.broken.append(f"{arguments[0]} hangs: {log.read_text()[-500:]}")
                process.kill()
                code = process.wait()
            finally:
                stop.set()
                if watcher is not None:
                    watcher.join()
        if blow is self._story.blow and blow is not None:
            self._told.has_struck = self._lab.has_struck or struck.exists()
        self._lab.rest()
        self._told.codes.append(code)
        if code == 3:
            plan = json.loads(log.read_text().rpartition("\n}\n")[0] + "\n}")
            self._told.refused = ", ".join(str(issue["code"]) for issue in plan["issues"])
        is_killed = blow is not None and blow.kills_controller
        self._told.expect(code >= 0 or is_killed, f"only SIGKILL takes {arguments[0]} its last word, not {-code}")
        if "Traceback (most recent call last)" in (said := log.read_text()):
            self._told.broken.append(f"{arguments[0]} has no word for: {said.strip().splitlines()[-1]}")
        return code

    def _assert_clean_end(self) -> None:
        self._told.expect(not self._ours_alive(), f"no instance is alive after a clean end: {self._ours_alive()}")
        sessions = self._lab.sessions.open_ids()
        self._told.expect(not sessions, f"no session is open after a clean end: {sessions}")

    def _assert_kept(self, before: dict[str, RolloutRow]) -> None:
        """What was ended stays as it was; nothing begins a second time."""
        for row in self._rows().values():
            was = before[row.rollout_id]
            if was.phase in {Phase.FINISHED, Phase.FAILED}:
                self._told.expect(was == row, f"{row.rollout_id} was ended once, and changed")

    def _judge(self) -> None:
        """What holds at the end of every story."""
        told, lab = self._told, self._lab
        until_s = time.monotonic() + SETTLE_S_MAX
        while (left := self._leavings()) and time.monotonic() < until_s:
            time.sleep(0.1)
        told.expect(not left, f"no process is left: {left}")
        told.expect(not self._ours_alive(), f"no instance outlives its lease or reconcile: {self._ours_alive()}")
        told.expect(not lab.double_launches(), f"no host was launched twice: {lab.double_launches()}")
        touched = {one for call in lab.called("TerminateInstances") for one in call.resources} & set(self._decoys)
        told.expect(not touched, f"no decoy was touched: {sorted(touched)}")
        if self._decoys:
            alive = set(lab.alive()) & set(self._decoys)
            told.expect(len(alive) == 4, f"four decoys are alive, not {len(alive)}")
        hosts = read_ledger(self._out.hosts)
        if self._story.aftermath != "nobody" or told.codes[0] >= 0:
            folders = [
                str(path)
                for host_id in hosts
                for path in (pilot_home(SCRATCH, host_id), tunnel_folder(SCRATCH, host_id))
                if path.exists()
            ]
            told.expect(not folders, f"no private folder is left: {folders}")
        if self._out.state.exists():
            self._judge_samples()

    def _judge_samples(self) -> None:
        told = self._told
        hand_offs: dict[str, int] = {}
        for host in read_ledger(self._out.hosts).values():
            hand_offs[host.rollout_id] = hand_offs.get(host.rollout_id, 0) + host.events.count("handed_off")
        for name, count in hand_offs.items():
            told.expect(count <= 1, f"{name} was handed off once, not {count} times")
        for guest in self._lab.folder.glob("guests/*/state/receipts.jsonl"):
            told.expect(not twice_done(guest), f"no action was done twice: {twice_done(guest)}")
        for number, row in enumerate(self._rows().values()):
            run_dir = self._out.rollout(row.rollout_id)
            told.expect(not twice_done(run_dir.input_receipts), f"{row.rollout_id} has each receipt once")
            if self._story.providers[number] != "replay" or not run_dir.attempt("dxf").exists():
                continue
            lines = drawn_lines(run_dir.attempt("dxf"), number)
            told.expect(lines == list(range(len(lines))), f"{row.rollout_id} drew each line once, in order: {lines}")
            if row.outcome is Outcome.SCORED:
                facts = (len(lines), row.turns)
                wanted = (self._story.turns, self._story.turns + 1)
                told.expect(facts == wanted, f"{row.rollout_id} drew {facts}, not {wanted} (lines, turns)")

    def _leavings(self) -> list[str]:
        return leavings_of(self._folder, except_for={os.getpid()})

    def _ours_alive(self) -> list[str]:
        return sorted(set(self._lab.alive()) - set(self._decoys))

    def _state(self) -> BatchState:
        return read_record(self._out.state, BatchState)

    def _rows(self) -> dict[str, RolloutRow]:
        return {row.rollout_id: row for row in self._state().rollouts}

    def _add_decoys_during(self, process: subprocess.Popen[bytes]) -> None:
        """As soon as the batch has a host whose tags can be copied."""
        until_s = time.monotonic() + SETTLE_S_MAX
        while not self._decoys and process.poll() is None and time.monotonic() < until_s:
            if self._out.hosts.exists() and self._out.hosts.stat().st_size:
                self._add_decoys()
            time.sleep(0.02)

    def _add_decoys(self) -> None:
        """Strangers that look like this batch's instances, down to its host's tag."""
        if self._decoys:
            return
        hosts = list(read_ledger(self._out.hosts))
        tags = {
            "BatchId": self._state().batch_id,
            "RolloutId": "r-0",
            "HostId": hosts[0] if hosts else "h-none",
            "Owner": "autocad-bench",
        }
        self._decoys = self._lab.decoys(tags)

    def _write_config(self) -> Path:
        story = self._story
        rollouts = []
        for number, provider in enumerate(story.providers):
            entry: dict[str, Any] = {"rollout_id": f"r-{number}", "task": TASKS[number], "provider": provider}
            entry["model"] = f"m-{number}"
            if provider == "replay":
                path = self._folder / f"trace-{number}.jsonl"
                entry["script"] = str(replay_of_lines(path, turns=story.turns, number=number))
            rollouts.append(entry)
        document = {
            "schema": "autocad-bench.config/1",
            "benchmark": "deaths",
            "mode": story.mode,
            "task_suites_dir": str(ROOT / "configs" / "suites"),
            "expected_rollouts": story.rollouts,
            # A plan whose first wave has no room is refused.
            "max_concurrency": min(story.rollouts, int(story.quota_vcpus) // VCPUS),
            "broker_version": "1.0",
            "host": self._lab.host_config(lease_s=self._story.lease_s, boot_s=60.0, lifetime_s=3600.0),
            "evaluator": {
                "name": "ezdxf",
                "version": EVALUATOR_VERSION,
                "gold_cache": str(ROOT / "configs" / "gold"),
            },
            "limits": {"actions": 200},
            "rollouts": rollouts,
        }
        config = self._folder / "config.json"
        config.write_text(json.dumps(document))
        return config
