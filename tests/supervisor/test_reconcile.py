"""What a dead controller left alive: found, proven, ended once; and a state that tells the truth afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from contract.batch_records import BatchState, HostLine, RolloutRow
from contract.phases import BatchStatus, Cause, Outcome, Phase
from contract.records import LineAppender, write_record
from contract.run_dir import BatchDir
from supervisor import locks, reconcile
from supervisor.processes import BATCH_ID_VARIABLE, HOST_ID_VARIABLE, ROLLOUT_ID_VARIABLE
from supervisor.reconcile_command import run_reconcile
from tests.batch_fakes import START, ledger_events, read_result, read_state

Spawn = Callable[[str, str], subprocess.Popen[bytes]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Processes that carry a host's tags, ended with the test."""
    made: list[subprocess.Popen[bytes]] = []

    def start(host_id: str, batch_id: str) -> subprocess.Popen[bytes]:
        tags = {HOST_ID_VARIABLE: host_id, BATCH_ID_VARIABLE: batch_id, ROLLOUT_ID_VARIABLE: "r-0"}
        made.append(subprocess.Popen(["sleep", "60"], env={**os.environ, **tags}, start_new_session=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def make_batch(folder: Path, rows: dict[str, Phase], hosts: dict[str, tuple[str, ...]], batch_id: str) -> BatchDir:
    """A run folder of a dead controller: phases by rollout, ledger events by host."""
    batch_dir = BatchDir(folder)
    batch_dir.rollouts.mkdir(parents=True)
    batch_dir.logs.mkdir()
    state = BatchState(
        batch_id=batch_id,
        benchmark="tiny",
        status=BatchStatus.RUNNING,
        mode="process",
        max_concurrency=2,
        created_at=START,
        updated_at=START,
        config_sha256="0" * 64,
        broker_version="1.0",
        evaluator_version="1.0.0",
        pricing=None,
        controller_pid=4242,
        controller_started=1.0,
        rollouts=[
            RolloutRow(rollout_id=name, task_id="dot", provider="noop", model="m", profile=None, phase=phase)
            for name, phase in rows.items()
        ],
    )
    write_record(batch_dir.state, state)
    lines = LineAppender(batch_dir.hosts)
    for host_id, events in hosts.items():
        for event in events:
            lines.append(HostLine(at=START, event=event, host_id=host_id, rollout_id="r-0", kind="local"))  # type: ignore[arg-type]
    lines.close()
    return batch_dir


def end(*batch_dirs: BatchDir) -> list[reconcile.BatchFindings]:
    async def work() -> list[reconcile.BatchFindings]:
        return await reconcile.end(batch_dirs)

    return anyio.run(work)


OPEN = ("intent", "launched", "handed_off")


def test_what_is_left_is_reported_and_then_ended(tmp_path: Path, spawn: Spawn) -> None:
    """The report changes nothing and asks for attention; the end leaves nothing, and a second report is clean."""
    batch_dir = make_batch(tmp_path / "b", {"r-0": Phase.HANDED_OFF}, {"h-1": OPEN}, "b-1")
    left = spawn("h-1", "b-1")

    before = reconcile.report([batch_dir])
    state_before = batch_dir.state.read_bytes()
    ended = end(batch_dir)
    after = reconcile.report([batch_dir])

    assert [("h-1", (left.pid,))] == [(host.host_id, host.processes) for host in before[0].left]
    assert (1, 0, 0) == tuple(reconcile.exit_status(found) for found in (before, ended, after))
    assert -9 == left.wait(timeout=2)
    assert ("h-1",) == ended[0].ended
    assert "reconciled" == ledger_events(batch_dir, "r-0")[-1]
    assert b'"running"' in state_before


def test_a_dead_batch_says_the_truth_afterwards(tmp_path: Path) -> None:
    """What was handed off is void and says who died; what was starting is queued; the batch is interrupted."""
    rows = {
        "r-0": Phase.HANDED_OFF,
        "r-1": Phase.EVALUATING,
        "r-2": Phase.STARTING,
        "r-3": Phase.QUEUED,
        "r-4": Phase.FINISHED,
    }
    batch_dir = make_batch(tmp_path / "b", rows, {"h-1": OPEN}, "b-1")

    found = end(batch_dir)[0]

    state = read_state(batch_dir)
    assert 2 == found.voided
    assert BatchStatus.INTERRUPTED == state.status
    assert [Phase.FAILED, Phase.FAILED, Phase.QUEUED, Phase.QUEUED, Phase.FINISHED] == [
        row.phase for row in state.rollouts
    ]
    assert (Outcome.VOID, Cause.CONTROLLER_DIED) == (
        read_result(batch_dir, "r-0").outcome,
        read_result(batch_dir, "r-0").cause,
    )
    assert "controller 4242 died while this rollout was evaluating" == state.rollouts[1].cause_detail


def test_people_are_told_what_a_dead_controller_left_in_the_middle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is alive, so it is no alarm; but its state says `running`, and somebody has to go on with it."""
    rows = {"r-0": Phase.HANDED_OFF, "r-1": Phase.STARTING, "r-2": Phase.QUEUED}
    batch_dir = make_batch(tmp_path / "b", rows, {"h-1": OPEN}, "b-1")

    code = run_reconcile(run_dir=batch_dir.root, runs=tmp_path, is_execute=False)
    told = capsys.readouterr().err
    run_reconcile(run_dir=batch_dir.root, runs=tmp_path, is_execute=True)
    run_reconcile(run_dir=batch_dir.root, runs=tmp_path, is_execute=False)
    told_later = capsys.readouterr().err

    assert 0 == code
    assert "its controller died before r-0, r-1 ended; go on with batch --resume" in told
    assert "before r-0" not in told_later


def test_a_running_batch_is_left_alone(tmp_path: Path, spawn: Spawn) -> None:
    """Its controller holds the lock: its hosts are in use, not left over."""
    batch_dir = make_batch(tmp_path / "b", {"r-0": Phase.HANDED_OFF}, {"h-1": OPEN}, "b-1")
    host = spawn("h-1", "b-1")
    held = locks.take(batch_dir.lock)
    assert held is not None
    state_before = batch_dir.state.read_bytes()

    findings = [*reconcile.report([batch_dir]), *end(batch_dir)]
    held.release()

    assert [(True, 1, ())] * 2 == [(found.is_owned, found.hosts_in_use, found.left) for found in findings]
    assert 0 == reconcile.exit_status(findings)
    assert host.poll() is None
    assert state_before == batch_dir.state.read_bytes()


def test_nothing_is_touched_that_the_ledger_does_not_name(tmp_path: Path, spawn: Spawn) -> None:
    """Another host's id, another batch's id, and a host that was seen to end are no leftovers."""
    hosts = {"h-1": OPEN, "h-over": (*OPEN, "released")}
    batch_dir = make_batch(tmp_path / "b", {"r-0": Phase.HANDED_OFF}, hosts, "b-1")
    decoys = [spawn("h-unknown", "b-1"), spawn("h-1", "b-other"), spawn("h-over", "b-1")]

    before = reconcile.report([batch_dir])
    end(batch_dir)

    assert () == before[0].left
    assert [None, None, None] == [decoy.poll() for decoy in decoys]


def test_all_batches_below_a_folder_are_looked_at(tmp_path: Path, spawn: Spawn) -> None:
    """One command for cron, also when runs stand in folders of their own; run folders are not searched inside."""
    deep = make_batch(tmp_path / "runs" / "nightly" / "monday", {"r-0": Phase.HANDED_OFF}, {"h-1": OPEN}, "b-1")
    make_batch(tmp_path / "runs" / "plain", {"r-0": Phase.FINISHED}, {}, "b-2")
    make_batch(deep.rollouts / "r-0" / "copy", {"r-0": Phase.FINISHED}, {}, "b-3")
    (tmp_path / "runs" / "notes.txt").write_text("no batch")
    spawn("h-1", "b-1")

    found = reconcile.report(reconcile.find_batches(tmp_path / "runs"))

    assert ["b-1", "b-2"] == [one.batch_id for one in found]
    assert 1 == reconcile.exit_status(found)
    assert 0 == reconcile.exit_status(end(*reconcile.find_batches(tmp_path / "runs")))


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": "autocad-bench.batch-state/9"}'])
def test_a_batch_that_cannot_be_read_is_a_problem_and_not_a_clean_bill(tmp_path: Path, content: bytes) -> None:
    """And the other batches are looked at all the same."""
    torn = make_batch(tmp_path / "torn", {"r-0": Phase.QUEUED}, {}, "b-1")
    torn.state.write_bytes(content)
    sound = make_batch(tmp_path / "sound", {"r-0": Phase.FINISHED}, {}, "b-2")

    found = reconcile.report([torn, sound])

    assert [True, False] == [bool(one.problem) for one in found]
    assert 1 == reconcile.exit_status(found)


def test_ending_twice_is_ending_once(tmp_path: Path, spawn: Spawn) -> None:
    """The second pass finds nothing and changes nothing."""
    batch_dir = make_batch(tmp_path / "b", {"r-0": Phase.HANDED_OFF}, {"h-1": OPEN}, "b-1")
    spawn("h-1", "b-1")
    end(batch_dir)
    files = _files(batch_dir)

    second = end(batch_dir)

    assert (0, ()) == (second[0].voided, second[0].left)
    assert files == _files(batch_dir)


def _files(batch_dir: BatchDir) -> dict[str, Any]:
    return {str(path): path.read_bytes() for path in sorted(batch_dir.root.rglob("*")) if path.is_file()}
