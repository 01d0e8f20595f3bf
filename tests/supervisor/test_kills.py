"""kill -9 at many moments: siblings finish, nothing of the sandbox stays alive, the record is true.

Each seed chooses victims and moments; a failure names its seed. The pilots replay a trace that waits, so that every
moment of a rollout's life can be hit. How soon a sandbox is gone is what `scripts/bench_kills.py` prints.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from contract.batch_records import RolloutRow
from contract.phases import BatchStatus, Cause, EndedBy, Outcome, Phase
from supervisor.keyring import KernelKeyring
from supervisor.ledger import read_ledger
from tests.live_batch import LiveBatch, has_ended
from tests.seeds import few_and_more

pytestmark = pytest.mark.slow

HAS_KEYRING = KernelKeyring().keep("h-probe", SecretStr("x"), lifetime_s=1)
NewBatch = Callable[..., LiveBatch]


@pytest.fixture
def new_batch(tmp_path: Path) -> Iterator[NewBatch]:
    """Makes batches, and ends whatever a failed test leaves of them."""
    made: list[LiveBatch] = []

    def make(**options: Any) -> LiveBatch:
        made.append(LiveBatch(tmp_path / f"batch-{len(made)}", **options))
        return made[-1]

    yield make
    for batch in made:
        batch.end_everything()


@dataclass(frozen=True, slots=True)
class Kill:
    """One process that was killed. `row` is how its rollout stood a moment before."""

    kind: str
    rollout_id: str
    host_id: str
    pid: int
    row: RolloutRow
    at: datetime


def strike(batch: LiveBatch, kind: str, rollout_id: str) -> Kill | None:
    """SIGKILL this rollout's pilot or broker if it is there."""
    row = batch.row(rollout_id)
    pid = batch.pilot_of(rollout_id) if kind == "pilot" else batch.broker_of(rollout_id)
    if pid is None or row.host_id is None:
        return None
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return Kill(kind, rollout_id, row.host_id, pid, row, datetime.now(UTC))


@pytest.mark.parametrize("seed", few_and_more(4, 20))
def test_kills_of_pilots_and_brokers_at_any_moment(new_batch: NewBatch, seed: int) -> None:
    """Two of four rollouts lose a process at random moments; the others never notice."""
    chance = random.Random(seed)
    batch = new_batch(count=4)
    batch.start()
    batch.wait_for(lambda state: any(row.phase is not Phase.QUEUED for row in state.rollouts))
    kills: list[Kill] = []
    for rollout_id in chance.sample([row.rollout_id for row in batch.state().rollouts], 2):
        time.sleep(chance.uniform(0.2, 2.5))
        if (kill := strike(batch, chance.choice(["pilot", "broker"]), rollout_id)) is not None:
            kills.append(kill)
    for kill in kills:
        batch.wait_until_gone(kill.host_id, [kill.pid]) if kill.row.phase is Phase.HANDED_OFF else None
    batch.wait()

    print(f"seed {seed}: {kills}")
    assert [] == batch.torn
    assert [] == batch.alive()
    assert 0 == batch.reconcile()
    for row in batch.state().rollouts:
        _assert_true(batch, row, next((kill for kill in kills if kill.rollout_id == row.rollout_id), None))


def _assert_true(batch: LiveBatch, row: RolloutRow, kill: Kill | None) -> None:
    was_handed_off = kill is not None and read_ledger(batch.batch_dir.hosts)[kill.host_id].was_handed_off
    if kill is None or not was_handed_off:
        # A host that was killed before its hand-off was replaced, and its replacement played.
        assert (Outcome.SCORED, None) == (row.outcome, row.cause)
        return
    assert row.finished_at is not None
    if row.outcome is Outcome.SCORED:
        # The kill hit a rollout whose record was already being made, or a pilot that had said its last word.
        late = kill.row.phase is Phase.EVALUATING and kill.kind == "pilot"
        assert late or row.finished_at <= kill.at + timedelta(seconds=0.5)
        return
    cause = Cause.PILOT_DIED if kill.kind == "pilot" else Cause.BROKER_DIED
    assert (Outcome.VOID, cause, Phase.FAILED) == (row.outcome, row.cause, row.phase)
    assert row.ended_by in {EndedBy.KILLED, EndedBy.HOST_LOST, EndedBy.FINISHED}


@pytest.mark.parametrize("seed", few_and_more(3, 10))
def test_a_killed_controller_leaves_nothing_and_its_batch_is_finished_by_resume(new_batch: NewBatch, seed: int) -> None:
    """By default hosts and pilots die with their controller; what was handed off is void, the rest is played."""
    chance = random.Random(seed)
    batch = new_batch(count=3, max_concurrency=2, turns=8)
    batch.start()
    batch.wait_for(lambda state: True)
    time.sleep(chance.uniform(0, 4))
    pilots = [pid for row in batch.state().rollouts if (pid := batch.pilot_of(row.rollout_id)) is not None]
    batch.kill_controller()
    before = batch.state()
    for host_id in batch.host_ids():
        batch.wait_until_gone(host_id, pilots)
    clean = batch.reconcile()
    handed_off = [row.rollout_id for row in before.rollouts if row.phase in {Phase.HANDED_OFF, Phase.EVALUATING}]
    if chance.random() < 0.5:
        assert 0 == batch.reconcile("--execute")
        assert BatchStatus.RUNNING != batch.state().status
        assert {Phase.HANDED_OFF, Phase.EVALUATING, Phase.STARTING}.isdisjoint(
            row.phase for row in batch.state().rollouts
        )
    batch.resume()
    code = batch.wait()

    assert 0 == clean
    assert [] == batch.torn
    assert [] == batch.alive()
    assert (1 if handed_off else 0) == code
    for row in batch.state().rollouts:
        if row.rollout_id in handed_off:
            assert (Outcome.VOID, Cause.CONTROLLER_DIED) == (row.outcome, row.cause)
        else:
            assert (Outcome.SCORED, None) == (row.outcome, row.cause)


@pytest.mark.skipif(not HAS_KEYRING, reason="no kernel keyring here: a token dies with its controller")
def test_a_rollout_whose_desktop_outlived_its_controller_goes_on_exactly(new_batch: NewBatch) -> None:
    """Same host, no action twice, none left out: the finished trace is one trace."""
    host = {"kind": "local", "driver": "paper", "orphan_s": 300}
    batch = new_batch(count=2, max_concurrency=2, turns=30, host=host)
    batch.start()
    batch.wait_until_playing()
    batch.kill_controller()
    before = batch.state()
    left = batch.reconcile()
    batch.resume()
    code = batch.wait()

    assert 1 == left
    assert 0 == code
    assert [row.host_id for row in before.rollouts] == [row.host_id for row in batch.state().rollouts]
    for row in batch.state().rollouts:
        receipts = (batch.batch_dir.rollout(row.rollout_id).input_receipts).read_text().splitlines()
        sequences = [line.partition('"sequence":')[2].partition(",")[0] for line in receipts]
        assert (Outcome.SCORED, 31, 31) == (row.outcome, row.turns, row.actions_used)
        assert sorted(set(sequences), key=int) == sequences
    assert [] == batch.alive()
    assert 0 == batch.reconcile()


def test_hosts_that_outlived_their_controller_are_found_and_ended(new_batch: NewBatch) -> None:
    """For cron: nonzero while anything is left, zero after `--execute`."""
    host = {"kind": "local", "driver": "paper", "orphan_s": 300}
    batch = new_batch(count=2, max_concurrency=2, host=host)
    batch.start()
    batch.wait_until_playing()
    batch.kill_controller()
    alive = batch.alive()
    codes = [batch.reconcile(), batch.reconcile("--execute"), batch.reconcile()]

    # A broker each, and what it has started.
    assert len(alive) >= 2
    assert [1, 0, 0] == codes
    assert [] == batch.alive()
    assert [(Outcome.VOID, Cause.CONTROLLER_DIED)] * 2 == [(row.outcome, row.cause) for row in batch.state().rollouts]
    assert BatchStatus.INTERRUPTED == batch.state().status


@pytest.mark.parametrize("mode", ["process", "shared"])
def test_sigint_ends_with_the_turn_and_resume_plays_what_waited(new_batch: NewBatch, mode: str) -> None:
    """Exit 130, nothing alive, and the second command finishes the batch."""
    batch = new_batch(count=3, max_concurrency=2, mode=mode, turns=15)
    batch.start()
    batch.wait_until_playing()
    assert batch.process is not None
    batch.process.send_signal(signal.SIGINT)
    code, state, alive = batch.wait(10), batch.state(), batch.alive()
    batch.resume()
    again = batch.wait()

    assert (130, BatchStatus.INTERRUPTED, []) == (code, state.status, alive)
    assert [Cause.INTERRUPTED, Cause.INTERRUPTED, None] == [row.cause for row in state.rollouts]
    assert [Phase.FAILED, Phase.FAILED, Phase.QUEUED] == [row.phase for row in state.rollouts]
    assert 1 == again
    assert state.rollouts[:2] == batch.state().rollouts[:2]
    assert Outcome.SCORED == batch.state().rollouts[2].outcome
    assert [] == batch.torn


@pytest.mark.parametrize("mode", ["process", "shared"])
def test_a_second_sigint_ends_at_once(new_batch: NewBatch, mode: str) -> None:
    """A turn of half a minute is not waited for, and still nothing is left."""
    batch = new_batch(count=2, max_concurrency=2, turns=1, wait_s=30.0, mode=mode)
    batch.start()
    batch.wait_for(
        lambda state: all(batch.batch_dir.rollout(row.rollout_id).checkpoint.exists() for row in state.rollouts)
    )
    assert batch.process is not None
    batch.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    playing = [row.phase for row in batch.state().rollouts]
    batch.process.send_signal(signal.SIGINT)
    code = batch.wait(10)

    assert [Phase.HANDED_OFF] * 2 == playing
    assert 130 == code
    assert [] == batch.alive()
    assert [Cause.INTERRUPTED] * 2 == [row.cause for row in batch.state().rollouts]


def test_a_pilot_that_is_stopped_while_it_starts_is_interrupted(new_batch: NewBatch) -> None:
    """The signal meets an interpreter that does not listen yet: that it died of it is our doing."""
    batch = new_batch(count=2, max_concurrency=2)
    batch.start()
    batch.wait_for(lambda state: any(row.phase is Phase.HANDED_OFF for row in state.rollouts))
    assert batch.process is not None
    batch.process.send_signal(signal.SIGINT)
    code = batch.wait(20)

    assert 130 == code
    assert {Cause.INTERRUPTED, None} >= {row.cause for row in batch.state().rollouts}
    assert [] == batch.alive()


@pytest.mark.parametrize("seed", range(2))
def test_kills_in_shared_mode_hurt_one_rollout(new_batch: NewBatch, seed: int) -> None:
    """Pilots share the controller's process there; a killed broker still is one rollout's affair."""
    chance = random.Random(seed)
    batch = new_batch(count=3, mode="shared")
    batch.start()
    batch.wait_until_playing()
    time.sleep(chance.uniform(0, 1.5))
    kill = strike(batch, "broker", "r-1")
    assert kill is not None
    batch.wait_until_gone(kill.host_id, [kill.pid])
    code = batch.wait()

    rows = batch.state().rollouts
    assert 1 == code
    assert [Outcome.SCORED, Outcome.VOID, Outcome.SCORED] == [row.outcome for row in rows]
    assert Cause.BROKER_DIED == rows[1].cause


def test_two_batches_at_once_do_not_touch_each_other(new_batch: NewBatch) -> None:
    """Cron beside an operator: one loses its controller, the other plays on to its end."""
    first, second = new_batch(count=2, turns=8), new_batch(count=2, turns=30)
    first.start()
    second.start()
    first.wait_until_playing()
    second.wait_until_playing()
    second.kill_controller()
    code = first.wait()

    assert 0 == code
    assert [Outcome.SCORED] * 2 == [row.outcome for row in first.state().rollouts]
    assert (0, 0) == (first.reconcile(), second.reconcile("--execute"))
    assert [] == second.alive()


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("program", "cause"),
    [("librecad", Cause.CAD_DIED), ("Xvfb", Cause.DISPLAY_DIED), ("broker", Cause.BROKER_DIED)],
)
def test_kills_on_a_real_desktop(new_batch: NewBatch, program: str, cause: Cause) -> None:
    """CAD program, X server and broker: the true cause, a sibling that finishes, and nothing left."""
    batch = new_batch(count=2, max_concurrency=2, host={"kind": "local"}, turns=60)
    batch.start()
    batch.wait_until_playing()
    host_id = str(batch.row("r-0").host_id)
    pids = [batch.broker_of("r-0")] if program == "broker" else batch.programs_of(host_id, program)
    assert 1 == len(pids)
    assert pids[0] is not None
    os.kill(pids[0], signal.SIGKILL)
    batch.wait_until_gone(host_id)
    row = batch.wait_for(lambda state: has_ended(state.rollouts[0])).rollouts[0]
    code = batch.wait()

    assert (1, Outcome.VOID, cause) == (code, row.outcome, row.cause)
    assert Outcome.SCORED == batch.row("r-1").outcome
    assert [] == batch.torn
    assert [] == batch.alive()


@pytest.mark.desktop
def test_a_killed_controller_takes_its_desktops_along(new_batch: NewBatch) -> None:
    """X server, window manager and CAD program are gone with the broker's pipe."""
    batch = new_batch(count=2, max_concurrency=2, host={"kind": "local"}, turns=60)
    batch.start()
    batch.wait_until_playing()
    before = batch.alive()
    batch.kill_controller()
    for host_id in batch.host_ids():
        batch.wait_until_gone(host_id)

    assert len(before) >= 8
    assert 0 == batch.reconcile("--execute")
    assert [Cause.CONTROLLER_DIED] * 2 == [row.cause for row in batch.state().rollouts]
