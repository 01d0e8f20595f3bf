"""Whole batches on EC2 hosts whose tunnels fail, in every phase: each rollout goes on, and what it did it did once.

All of them are played by the real command, plugin processes and brokers; AWS is the lab.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.batch_records import RolloutRow
from contract.phases import Cause, Outcome, Phase
from tests.lab.batches import SCORED, LabBatch, Strike, lab_batch, signal_plugin
from tests.lab.faults import Fault
from tests.lab.plugin import PluginFaults

# Each takes a minute or more, most of it waiting: make e2e.
pytestmark = pytest.mark.e2e

# An upload that takes so long is met in its middle.
UPLOAD_S = 3.0
BOTH_MODES = pytest.mark.parametrize("mode", ["process", "shared"])


def is_playing(row: RolloutRow) -> bool:
    """Some turns are behind it, and some before it."""
    return row.phase is Phase.HANDED_OFF and row.turns >= 2


def is_evaluating(row: RolloutRow) -> bool:
    """Its pilot has ended."""
    return row.phase is Phase.EVALUATING


def signalled(number: int) -> Callable[[LabBatch, RolloutRow], bool]:
    """SIGKILL: the plugin dies. SIGSTOP: its port is open and nothing answers. SIGINT: it ends with exit status 0."""

    def deed(batch: LabBatch, row: RolloutRow) -> bool:
        pid = batch.plugin_of(row)
        return pid is not None and signal_plugin(pid, number)

    return deed


def while_uploading(deed: Callable[[LabBatch, RolloutRow], bool]) -> Callable[[LabBatch, RolloutRow], bool]:
    """The host has made its first artifact, and is sending it."""

    def later(batch: LabBatch, row: RolloutRow) -> bool:
        machine = batch.machine_of(row)
        if machine is None:
            return False
        guest = batch.lab.folder / "guests" / machine.instance_id
        return any(guest.rglob("uploads/metadata.json")) and deed(batch, row)

    return later


def slow_uploads(action: str) -> Fault | None:
    """Each upload takes a while."""
    return Fault("delay", delay_s=UPLOAD_S) if action == "PutObject" else None


@BOTH_MODES
def test_a_tunnel_may_fail_in_any_phase(tmp_path: Path, mode: str) -> None:
    """It dies, hangs, or ends as if all were well, while its rollout plays, is evaluated, and uploads."""
    deeds = [signalled(number) for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT)]
    with lab_batch(tmp_path, count=10, turns=12, wait_s=0.3, mode=mode) as batch:
        batch.lab.faults.trouble = slow_uploads
        strikes = [
            *(Strike(f"r-{number}", is_playing, deed) for number, deed in enumerate(deeds, start=1)),
            *(Strike(f"r-{number}", is_evaluating, deed) for number, deed in enumerate(deeds, start=4)),
            *(
                Strike(f"r-{number}", is_evaluating, while_uploading(deed))
                for number, deed in enumerate(deeds, start=7)
            ),
        ]

        status = batch.play(*strikes)

        assert {f"r-{number}" for number in range(1, 10)} == set(batch.struck)
        assert {f"r-{number}": SCORED for number in range(10)} == batch.ends(), batch.said()
        assert 0 == status
        assert 10 == len(batch.machines())
        # Each of those that were struck has had a second session.
        assert 19 == len(batch.lab.sessions.all)
        batch.assert_done_once()
        batch.assert_nothing_is_left()


def test_a_tunnel_that_fails_before_hand_off_is_opened_again(tmp_path: Path) -> None:
    """Three plugin processes are tried in one opening, so one that fails costs no host."""
    faults = [
        PluginFaults(start="never_ready"),
        PluginFaults(start="exits", says="Cannot perform start session: EOF\n"),
        PluginFaults(start="port_taken"),
        PluginFaults(session_id="lab-somebody-else", dies_after_bytes=0),
        PluginFaults(hangs_after_bytes=0),
        PluginFaults(dies_after_bytes=10),
        PluginFaults(ends_after_bytes=10, says="Exiting session with sessionId: lab.\n\n"),
    ]
    with lab_batch(tmp_path, count=len(faults) + 1, turns=3, wait_s=0.0) as batch:
        batch.lab.plugin.fail_next(*faults)

        status = batch.play()

        assert {f"r-{number}": SCORED for number in range(len(faults) + 1)} == batch.ends(), batch.said()
        assert 0 == status
        assert len(faults) + 1 == len(batch.machines())
        batch.assert_done_once()
        batch.assert_nothing_is_left()


@BOTH_MODES
def test_a_tunnel_that_breaks_in_the_hand_off_costs_no_sample(tmp_path: Path, mode: str) -> None:
    """It carried the first answers, and breaks in the middle of proof, lease or reset: nothing was sampled then."""
    with lab_batch(tmp_path, count=4, turns=3, wait_s=0.0, mode=mode) as batch:
        batch.lab.plugin.fail_next(
            PluginFaults(dies_after_bytes=2_000),
            PluginFaults(ends_after_bytes=5_000),
            PluginFaults(hangs_after_bytes=9_000),
        )

        status = batch.play()

        ends = batch.ends()
        assert {Outcome.SCORED} == {outcome for outcome, _, _ in ends.values()}, batch.said()
        assert {0, 1} >= {replacements for _, _, replacements in ends.values()}
        assert 0 == status
        batch.assert_done_once()
        batch.assert_nothing_is_left()


def test_without_any_tunnel_nothing_starts(tmp_path: Path) -> None:
    """Two hosts are tried, and both are ended; no model was asked for anything."""
    with lab_batch(tmp_path, count=2, turns=3) as batch:
        batch.lab.plugin.fail_always(PluginFaults(start="exits", says="Cannot perform start session: EOF\n"))

        batch.play()

        assert {Phase.NOT_STARTED} == {row.phase for row in batch.state().rollouts}
        assert {"r-0": (None, Cause.TUNNEL, 1), "r-1": (None, Cause.TUNNEL, 1)} == batch.ends(), batch.said()
        assert 4 == len(batch.machines())
        assert 12 == len(batch.lab.sessions.all)
        assert not any(batch.live.batch_dir.rollout(name).model_turns.exists() for name in ("r-0", "r-1"))
        batch.assert_nothing_is_left()


def test_a_tunnel_that_crawls_is_only_slow(tmp_path: Path) -> None:
    """At 20 kB/s a frame takes seconds, and a heartbeat waits behind it; that is no reason to lose a host."""
    with lab_batch(tmp_path, count=3, turns=4, wait_s=0.0) as batch:
        batch.lab.plugin.fail_next(PluginFaults(bytes_per_s=20_000), PluginFaults(bytes_per_s=20_000))

        status = batch.play()

        assert {f"r-{number}": SCORED for number in range(3)} == batch.ends(), batch.said()
        assert 0 == status
        batch.assert_done_once()
        batch.assert_nothing_is_left()


def test_a_byte_that_the_tunnel_changes_is_never_believed(tmp_path: Path) -> None:
    """Checksums of actions and frames find it: it is asked for again, or the rollout is void and says why."""
    places = [("down", 40), ("down", 900), ("down", 3_000), ("down", 30_000), ("down", 120_000), ("down", 260_000)]
    places += [("up", 60), ("up", 1_500), ("up", 4_000), ("up", 9_000)]
    with lab_batch(tmp_path, count=len(places) + 1, turns=6, wait_s=0.0) as batch:
        batch.lab.plugin.fail_next(*(PluginFaults(corrupts=(way, at)) for way, at in places))  # type: ignore[arg-type]

        batch.play()

        assert batch.lab.plugin.events("corrupted")
        ends = batch.ends()
        print([(row.rollout_id, row.cause, row.cause_detail) for row in batch.state().rollouts])
        void = {cause for outcome, cause, _ in ends.values() if outcome is Outcome.VOID}
        assert {Outcome.SCORED, Outcome.VOID} >= {outcome for outcome, _, _ in ends.values()}
        assert {Cause.FRAME_CORRUPT, Cause.BROKER_REFUSED, Cause.BROKER_UNREACHABLE, Cause.TUNNEL} >= void
        assert len(places) // 2 <= [outcome for outcome, _, _ in ends.values()].count(Outcome.SCORED)
        batch.assert_done_once()
        batch.assert_nothing_is_left()


@BOTH_MODES
def test_an_agent_that_is_deaf_for_good_costs_its_own_rollout(tmp_path: Path, mode: str) -> None:
    """A new session cannot be had while the agent is not connected: one that comes back in time goes on."""

    def deafen(batch: LabBatch, row: RolloutRow) -> bool:
        machine = batch.machine_of(row)
        if machine is not None:
            machine.is_deaf = True
        return signalled(signal.SIGKILL)(batch, row)

    def undeafen(batch: LabBatch, row: RolloutRow) -> bool:
        machine = batch.machine_of(row)
        if machine is None or not machine.is_deaf:
            return False
        asked = [call for call in batch.lab.called("StartSession") if machine.instance_id in call.resources]
        machine.is_deaf = not any(call.status == 400 for call in asked)
        return not machine.is_deaf

    with lab_batch(tmp_path, count=3, turns=12, wait_s=0.3, mode=mode) as batch:
        status = batch.play(
            Strike("r-1", is_playing, deafen),
            Strike("r-2", is_playing, deafen),
            Strike("r-2", is_playing, undeafen),
        )

        assert ["r-1", "r-2", "r-2"] == sorted(batch.struck)
        assert {"r-0": SCORED, "r-1": (Outcome.VOID, Cause.TUNNEL, 0), "r-2": SCORED} == batch.ends(), batch.said()
        assert 1 == status
        batch.assert_done_once()
        batch.assert_nothing_is_left()
