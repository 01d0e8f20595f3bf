"""Whole batches over fakes: waves, failures that stay with their rollout, signals, and the reconciler at exit."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import anyio
import pytest

from contract.errors import DiskError, HostsRefused, StateError
from contract.phases import BatchStatus, Cause, EndedBy, Outcome, Phase
from contract.rollout_records import RolloutSpec
from contract.run_dir import BatchDir
from supervisor import locks
from supervisor.batch import execute
from supervisor.outcome import Evaluation
from tests.batch_fakes import (
    FakeWorld,
    assert_nothing_is_left,
    died_pilot,
    host_error,
    in_virtual_time,
    ledger_events,
    phases,
    prepare,
    printed,
    quiet_console,
    read_result,
    read_state,
    virtual_ambient,
)


def play(world: FakeWorld, tmp_path: Path, **options: object) -> tuple[int, BatchDir, str]:
    """Play a small batch and return exit status, folder and what was printed."""
    prepared = prepare(tmp_path, **options)  # type: ignore[arg-type]
    batch_dir = BatchDir(tmp_path / "out")
    console = quiet_console()

    async def work() -> int:
        return await execute(
            prepared,
            batch_dir,
            rerun_of=None,
            console=console,
            ambient=virtual_ambient(),
            equipment=world.equipment(),
        )

    return in_virtual_time(work), batch_dir, printed(console)


def test_a_batch_of_sound_rollouts_ends_with_zero(tmp_path: Path) -> None:
    """The plain case: all are scored, every launch has its end in the ledger, and nothing is alive."""
    world = FakeWorld()

    code, batch_dir, said = play(world, tmp_path, count=3)

    state = read_state(batch_dir)
    assert 0 == code
    assert BatchStatus.FINISHED == state.status
    assert [Outcome.SCORED] * 3 == [row.outcome for row in state.rollouts]
    assert [1.0] * 3 == [row.score for row in state.rollouts]
    assert [3] * 3 == [row.turns for row in state.rollouts]
    assert ["intent", "launched", "handed_off", "released"] == ledger_events(batch_dir, "r-1")
    assert EndedBy.FINISHED == read_result(batch_dir, "r-0").ended_by
    assert "r-0: starting -> handed_off" in said
    assert_nothing_is_left(world, batch_dir)


def test_waves_are_bounded_and_in_the_order_of_the_config(tmp_path: Path) -> None:
    """At most `max_concurrency` play at once; the rest wait in config order."""
    world = FakeWorld()

    code, batch_dir, _ = play(world, tmp_path, count=7, max_concurrency=3)

    assert 0 == code
    assert 3 == world.places_held_max
    # Within a wave any order will do; the event loop of these tests shuffles on purpose.
    waves = [sorted(world.played[first : first + 3]) for first in (0, 3, 6)]
    assert [["r-0", "r-1", "r-2"], ["r-3", "r-4", "r-5"], ["r-6"]] == waves
    assert_nothing_is_left(world, batch_dir)


def test_a_void_rollout_makes_the_exit_status_1_and_its_siblings_do_not_notice(tmp_path: Path) -> None:
    """A killed pilot is that rollout's record and nothing else."""
    world = FakeWorld(ending=lambda spec: died_pilot(spec) if spec.rollout_id == "r-1" else None)

    code, batch_dir, _ = play(world, tmp_path, count=3)

    rows = read_state(batch_dir).rollouts
    assert 1 == code
    assert [Outcome.SCORED, Outcome.VOID, Outcome.SCORED] == [row.outcome for row in rows]
    assert (Cause.PILOT_DIED, EndedBy.KILLED, Phase.FAILED) == (rows[1].cause, rows[1].ended_by, rows[1].phase)
    assert ["r-0", "r-2"] == sorted(world.evaluated)
    assert batch_dir.rollout("r-1").attempt("dxf").exists()
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("state", ["cad_died", "cad_hung", "display_died"])
def test_a_host_that_loses_its_desktop_is_released_within_a_second(tmp_path: Path, state: str) -> None:
    """The heartbeat names the true cause, and does not wait for the pilot to meet it."""
    world = FakeWorld(turn_s=100, turns=1)
    seen: dict[str, float] = {}

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "pilot" and rollout_id == "r-0":
            world.host_of("r-0").driver_state = state  # type: ignore[assignment]
            seen["broken"] = anyio.current_time()
        if step == "terminate" and rollout_id == "r-0":
            seen["ended"] = anyio.current_time()

    world.trouble = trouble
    code, batch_dir, _ = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert 1 == code
    assert (Outcome.VOID, Cause(state)) == (rows[0].outcome, rows[0].cause)
    assert Outcome.SCORED == rows[1].outcome
    assert seen["ended"] - seen["broken"] < 1.0
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("moment", ["pilot", "evaluate"])
def test_a_host_that_says_that_its_program_is_lost_is_released_at_once(tmp_path: Path, moment: str) -> None:
    """No heartbeat is waited for, and until the evaluation is over the sample needs its whole host."""
    world = FakeWorld(turn_s=100, turns=1)
    seen: dict[str, float] = {}

    async def trouble(step: str, rollout_id: str) -> None:
        if step == moment and rollout_id == "r-0":
            host = world.host_of("r-0")
            host.driver_state = "cad_died"
            host.lost.set()
            seen["broken"] = anyio.current_time()
        if step == "terminate" and rollout_id == "r-0":
            seen["ended"] = anyio.current_time()

    world.trouble = trouble
    code, batch_dir, _ = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert 1 == code
    assert (Outcome.VOID, Cause.CAD_DIED) == (rows[0].outcome, rows[0].cause)
    assert Outcome.SCORED == rows[1].outcome
    assert seen["ended"] == seen["broken"]
    assert_nothing_is_left(world, batch_dir)


def test_a_broker_that_dies_is_named_even_when_the_pilot_only_saw_silence(tmp_path: Path) -> None:
    """The pilot says `broker_unreachable`; the ended process says why."""
    world = FakeWorld()

    def kill(spec: RolloutSpec, turn: int) -> None:
        if spec.rollout_id == "r-0" and turn == 2:
            world.host_of("r-0").die()

    world.on_turn = kill
    code, batch_dir, _ = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert 1 == code
    assert (Outcome.VOID, Cause.BROKER_DIED) == (rows[0].outcome, rows[0].cause)
    assert Outcome.SCORED == rows[1].outcome
    assert ["r-1"] == world.evaluated
    assert_nothing_is_left(world, batch_dir)


def test_a_host_that_never_comes_up_is_replaced_once_and_then_not_started(tmp_path: Path) -> None:
    """Nothing was sampled, so there is no result; the batch is not whole, so the exit status is 1."""
    world = FakeWorld()

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "launch" and rollout_id == "r-0":
            raise host_error()

    world.trouble = trouble
    code, batch_dir, _ = play(world, tmp_path)

    row = read_state(batch_dir).rollouts[0]
    assert 1 == code
    assert (Phase.NOT_STARTED, None, Cause.HOST_LAUNCH, 1) == (
        row.phase,
        row.outcome,
        row.cause,
        row.host_replacements,
    )
    assert row.cause_detail == "it did not start"
    assert ["intent", "launch_failed"] * 2 == ledger_events(batch_dir, "r-0")
    assert not batch_dir.rollout("r-0").result.exists()
    assert_nothing_is_left(world, batch_dir)


@pytest.mark.parametrize("step", ["launch", "tunnel"])
def test_what_refuses_one_host_refuses_all_is_said_once_and_stops_the_starting(tmp_path: Path, step: str) -> None:
    """Credentials that expired would fail each rollout by itself. Those that play go on; the rest is not begun."""
    world = FakeWorld()

    async def trouble(at: str, rollout_id: str) -> None:
        if at == step and rollout_id not in {"r-0", "r-1"}:
            raise HostsRefused("AWS refuses the credentials", cause=Cause.HOST_LAUNCH, hint="Log in again.")

    world.trouble = trouble
    code, batch_dir, said = play(world, tmp_path, count=6, max_concurrency=2)

    rows = read_state(batch_dir).rollouts
    assert 1 == code
    assert [Phase.FINISHED] * 2 + [Phase.NOT_STARTED] * 4 == phases(batch_dir)
    assert [(Cause.HOST_LAUNCH, "AWS refuses the credentials. Log in again.", 0)] * 4 == [
        (row.cause, row.cause_detail, row.host_replacements) for row in rows[2:]
    ]
    assert 1 == said.count("AWS refuses the credentials; no rollout is started any more"), said
    assert 4 >= len(world.launched)
    assert_nothing_is_left(world, batch_dir)


def test_an_invalid_drawing_is_scored_and_a_failed_evaluation_is_void(tmp_path: Path) -> None:
    """A fault of ours is never a zero, and a broken drawing is never a fault of ours."""
    invalid, failed = FakeWorld(), FakeWorld()
    invalid.evaluation = Evaluation(state="invalid", score=0.0, final=0.0, invalid_code="untouched")
    failed.evaluation = Evaluation(state="failed", failure="evaluator_export: it broke")

    invalid_code, invalid_dir, _ = play(invalid, tmp_path / "invalid", count=1)
    failed_code, failed_dir, _ = play(failed, tmp_path / "failed", count=1)

    assert (0, 1) == (invalid_code, failed_code)
    scored, void = read_result(invalid_dir, "r-0"), read_result(failed_dir, "r-0")
    assert (Outcome.SCORED, 0.0, "untouched") == (scored.outcome, scored.score, scored.invalid_code)
    assert (Outcome.VOID, Cause.EVALUATION_FAILED, None) == (void.outcome, void.cause, void.score)


def test_one_signal_stops_starting_and_ends_pilots_at_their_turn(tmp_path: Path) -> None:
    """Exit 130, nothing alive; what played is void and says so, what waited still waits."""
    world = FakeWorld(turns=50)
    world.on_turn = lambda spec, turn: (
        signal.raise_signal(signal.SIGINT) if (spec.rollout_id, turn) == ("r-0", 2) else None
    )

    code, batch_dir, said = play(world, tmp_path, count=4)

    state = read_state(batch_dir)
    assert 130 == code
    assert BatchStatus.INTERRUPTED == state.status
    assert [Phase.FAILED, Phase.FAILED, Phase.QUEUED, Phase.QUEUED] == [row.phase for row in state.rollouts]
    assert [Cause.INTERRUPTED] * 2 == [row.cause for row in state.rollouts[:2]]
    assert ["r-0", "r-1"] == sorted(world.played)
    assert "SIGINT" in said
    assert_nothing_is_left(world, batch_dir)


def test_a_terminal_that_closes_ends_pilots_at_their_turn_however_often_it_says_so(tmp_path: Path) -> None:
    """The kernel, the shell and the session's end each send a SIGHUP; none of them is a second order."""
    world = FakeWorld(turns=50)

    def close_terminal(spec: RolloutSpec, turn: int) -> None:
        if (spec.rollout_id, turn) == ("r-0", 2):
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)

    world.on_turn = close_terminal
    code, batch_dir, said = play(world, tmp_path, count=3)

    rows = read_state(batch_dir).rollouts
    assert 130 == code
    assert "ending everything now" not in said
    assert [Phase.FAILED, Phase.FAILED, Phase.QUEUED] == [row.phase for row in rows]
    assert [Cause.INTERRUPTED] * 2 == [row.cause for row in rows[:2]]
    assert_nothing_is_left(world, batch_dir)


def test_a_batch_under_nohup_plays_on_when_its_terminal_closes(tmp_path: Path) -> None:
    """Who starts it so has said that it is to outlive the login."""
    world = FakeWorld()
    world.on_turn = lambda spec, turn: signal.raise_signal(signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code, _, _ = play(world, tmp_path)
        after = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert (0, signal.SIG_IGN) == (code, after)


def test_a_signal_while_hosts_come_up_puts_their_rollouts_back_into_the_queue(tmp_path: Path) -> None:
    """Nothing was sampled, so nothing is recorded as a failure."""
    world = FakeWorld()

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "reset":
            signal.raise_signal(signal.SIGTERM)
            await anyio.sleep(60)

    world.trouble = trouble
    code, batch_dir, _ = play(world, tmp_path)

    assert 130 == code
    assert [Phase.QUEUED, Phase.QUEUED] == phases(batch_dir)
    assert [] == world.played
    assert_nothing_is_left(world, batch_dir)


def test_a_batch_that_has_ended_gives_the_signals_back(tmp_path: Path) -> None:
    """A signal while the summary is printed is answered by the program, and does not end it without a word."""

    def handler(*_: object) -> None:
        """The program's own."""

    before = signal.signal(signal.SIGTERM, handler)
    try:
        play(FakeWorld(), tmp_path, count=1)
        after = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert handler is after


def test_a_second_signal_does_not_wait_for_the_turn_and_still_cleans_up(tmp_path: Path) -> None:
    """Twice means now: the turn of an hour is cut off, and the host is released all the same."""
    world = FakeWorld(turn_s=3600)
    when: dict[str, float] = {}

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "health" and not when:
            when["signalled"] = anyio.current_time()
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep(1)
            signal.raise_signal(signal.SIGINT)

    world.trouble = trouble
    code, batch_dir, _ = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert 130 == code
    assert [(Outcome.VOID, Cause.INTERRUPTED)] * 2 == [(row.outcome, row.cause) for row in rows]
    assert Cause.INTERRUPTED == read_result(batch_dir, "r-1").cause
    assert_nothing_is_left(world, batch_dir)


def test_a_folder_with_a_live_controller_is_refused(tmp_path: Path) -> None:
    """Two controllers in one folder would write each other's state."""
    out = tmp_path / "out"
    out.mkdir()
    held = locks.take(out / ".lock")
    assert held is not None

    with pytest.raises(StateError, match="another controller"):
        play(FakeWorld(), tmp_path)
    held.release()
    code, _, _ = play(FakeWorld(), tmp_path)

    assert 0 == code


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    """A batch never writes over what it did not make."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")

    with pytest.raises(StateError, match=r"thesis\.txt"):
        play(FakeWorld(), tmp_path)


def test_a_host_that_could_not_be_released_is_ended_by_the_reconciler_at_exit(tmp_path: Path) -> None:
    """What slips through a sandbox's fingers is in the ledger without an end, so it is found."""
    world = FakeWorld()

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "terminate" and rollout_id == "r-0":
            raise host_error(Cause.UNKNOWN)

    world.trouble = trouble
    _, batch_dir, said = play(world, tmp_path)

    assert ["intent", "launched", "handed_off", "reconciled"] == ledger_events(batch_dir, "r-0")
    assert "reconciler: host" in said
    assert_nothing_is_left(world, batch_dir)


def test_a_reconciler_that_is_refused_says_what_to_run(tmp_path: Path) -> None:
    """Whoever pays must learn that something may still be alive, and by which command it ends."""
    world = FakeWorld()

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "reconcile" or (step == "terminate" and rollout_id == "r-0"):
            raise host_error()

    world.trouble = trouble
    code, batch_dir, said = play(world, tmp_path)

    assert (1, 1) == (code, len(world.alive))
    lines = said.replace("\n", "")
    assert "Hosts may still be alive. Run: autocad-bench reconcile --run-dir" in lines
    assert f"{batch_dir.root} --execute" in lines


def test_a_release_that_hangs_is_bounded(tmp_path: Path) -> None:
    """Clean-up is shielded from cancellation, so it must end by itself."""
    world = FakeWorld()

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "terminate":
            await anyio.sleep_forever()

    world.trouble = trouble
    _, batch_dir, _ = play(world, tmp_path)

    assert_nothing_is_left(world, batch_dir)


def test_a_reconciler_that_hangs_is_bounded_and_said(tmp_path: Path) -> None:
    """Something may be alive then: the exit status must not say that all is well, and the operator hears what to do."""
    world = FakeWorld()

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "terminate" and rollout_id == "r-0":
            raise host_error(Cause.UNKNOWN)
        if step == "reconcile":
            await anyio.sleep_forever()

    world.trouble = trouble
    code, batch_dir, said = play(world, tmp_path)

    assert 1 == code
    assert f"autocad-bench reconcile --run-dir {batch_dir.root} --execute" in said


def test_a_bug_in_one_sandbox_is_that_rollouts_record(tmp_path: Path) -> None:
    """An exception without a class is void with cause `unknown`, and says what it was."""
    world = FakeWorld()

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "turn" and rollout_id == "r-0":
            raise ZeroDivisionError("a bug")

    world.trouble = trouble
    code, batch_dir, _ = play(world, tmp_path)

    rows = read_state(batch_dir).rollouts
    assert 1 == code
    assert (Outcome.VOID, Cause.UNKNOWN, "ZeroDivisionError: a bug") == (
        rows[0].outcome,
        rows[0].cause,
        rows[0].cause_detail,
    )
    assert Outcome.SCORED == rows[1].outcome
    assert "test_batch.py" in batch_dir.log("r-0").read_text()


def test_a_disk_that_refuses_a_pilot_voids_its_rollout(tmp_path: Path) -> None:
    """The cause is `disk`, so the operator frees space instead of suspecting the model."""
    world = FakeWorld()

    async def trouble(step: str, rollout_id: str) -> None:
        if step == "turn" and rollout_id == "r-0":
            raise DiskError("cannot write frames/000001.png: No space left on device")

    world.trouble = trouble
    code, batch_dir, said = play(world, tmp_path, count=3)

    state = read_state(batch_dir)
    assert 1 == code
    assert [Cause.DISK, None, None] == [row.cause for row in state.rollouts]
    # The sibling went on; the third, which could not have been recorded, waits for a resume.
    assert [Phase.FAILED, Phase.FINISHED, Phase.QUEUED] == [row.phase for row in state.rollouts]
    assert BatchStatus.INTERRUPTED == state.status
    assert "no rollout is started any more" in said


def test_a_run_folder_that_is_moved_away_is_not_made_again(tmp_path: Path) -> None:
    """Half a batch in its old place would look like a whole one; the moved one still says all that was written."""
    world, moved = FakeWorld(), BatchDir(tmp_path / "moved")
    world.on_turn = lambda spec, turn: (
        (tmp_path / "out").rename(moved.root) if (spec.rollout_id, turn) == ("r-0", 2) else None
    )

    code, batch_dir, said = play(world, tmp_path, count=3)

    assert 1 == code
    assert not batch_dir.root.exists()
    assert [Phase.HANDED_OFF, Phase.HANDED_OFF, Phase.QUEUED] == phases(moved)
    assert "put it back, then resume the batch" in said.replace("\n", " ")
    assert_nothing_is_left(world, moved)


def test_a_row_carries_the_turns_of_a_running_pilot(tmp_path: Path) -> None:
    """Readers of batch-state.json see progress about once a second."""
    world = FakeWorld(turns=10)
    seen: list[int] = []

    def look(spec: RolloutSpec, turn: int) -> None:
        if spec.rollout_id == "r-0":
            seen.append(read_state(BatchDir(tmp_path / "out")).rollouts[0].turns)

    world.on_turn = look
    play(world, tmp_path)

    assert [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] == seen


def test_execute_is_a_coroutine_of_its_arguments_alone(tmp_path: Path) -> None:
    """Two batches in one process do not share anything."""
    worlds = [FakeWorld(), FakeWorld()]
    outs = [BatchDir(tmp_path / "a"), BatchDir(tmp_path / "b")]
    prepared = prepare(tmp_path)

    async def work() -> None:
        async with anyio.create_task_group() as group:
            for world, out in zip(worlds, outs, strict=True):
                group.start_soon(
                    partial(
                        execute,
                        prepared,
                        out,
                        rerun_of=None,
                        console=quiet_console(),
                        ambient=virtual_ambient(),
                        equipment=world.equipment(),
                    )
                )

    in_virtual_time(work)

    assert read_state(outs[0]).batch_id != read_state(outs[1]).batch_id
    for world, out in zip(worlds, outs, strict=True):
        assert [Phase.FINISHED] * 2 == phases(out)
        assert_nothing_is_left(world, out)
