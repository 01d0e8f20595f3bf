"""Going on after a controller that died or was interrupted: what goes on, what is played, what is void, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from contract.batch_records import BatchState, HostLine, RolloutRow
from contract.broker_api import Lease
from contract.errors import StateError
from contract.phases import BatchStatus, Cause, EndedBy, Outcome, Phase
from contract.pricing import Usage
from contract.records import LineAppender, read_record, write_record
from contract.rollout_records import ArtifactRef, Checkpoint, Result, Retries
from contract.run_dir import BatchDir
from supervisor import locks
from supervisor.prepared import PreparedBatch
from supervisor.resume import resume
from tests.batch_fakes import (
    START,
    FakeMachineHost,
    FakeWorld,
    assert_nothing_is_left,
    frame_info,
    in_virtual_time,
    ledger_events,
    prepare,
    printed,
    quiet_console,
    read_result,
    read_state,
    virtual_ambient,
    write_state,
)


@dataclass(slots=True)
class DeadBatch:
    """The folder of a batch whose controller was killed, and the hosts that outlived it."""

    folder: Path
    count: int = 1
    world: FakeWorld = field(default_factory=FakeWorld)
    prepared: PreparedBatch = field(init=False)
    batch_dir: BatchDir = field(init=False)
    said: str = ""

    def __post_init__(self) -> None:
        self.prepared = prepare(self.folder, count=self.count)
        self.batch_dir = BatchDir(self.folder / "out")
        for path in (self.batch_dir.root, self.batch_dir.logs, self.batch_dir.rollouts):
            path.mkdir()
        self.batch_dir.config.write_bytes(self.prepared.config_bytes)
        self.write({})

    def write(self, rows: dict[str, dict[str, Any]], *, status: BatchStatus = BatchStatus.RUNNING) -> None:
        """`batch-state.json` with these fields; rollouts that are not named are queued."""
        all_rows = [
            RolloutRow(
                rollout_id=f"r-{number}",
                task_id="dot",
                provider="noop",
                model="m",
                profile=None,
                **{"phase": Phase.QUEUED, **rows.get(f"r-{number}", {})},
            )
            for number in range(self.count)
        ]
        state = BatchState(
            batch_id="b-dead",
            benchmark="tiny",
            status=status,
            mode="process",
            max_concurrency=2,
            created_at=START,
            updated_at=START,
            config_sha256=self.prepared.config_sha256,
            broker_version="1.0",
            evaluator_version="1.0.0",
            pricing=None,
            controller_pid=4242,
            controller_started=1.0,
            rollouts=all_rows,
        )
        write_record(self.batch_dir.state, state)

    def hand_off(self, rollout_id: str = "r-0", *, is_alive: bool = True) -> FakeMachineHost:
        """A host that was handed off to this rollout and, if so, lives on."""
        host_id = f"h-{rollout_id}"
        lines = LineAppender(self.batch_dir.hosts)
        detail = {
            "lease_id": f"l-{host_id}",
            "lease_generation": 1,
            "first_frame": frame_info().model_dump(mode="json"),
        }
        for event, extra in (("intent", {}), ("launched", {"pid": 7}), ("handed_off", detail)):
            lines.append(
                HostLine(at=START, event=event, host_id=host_id, rollout_id=rollout_id, kind="local", detail=extra)  # type: ignore[arg-type]
            )
        lines.close()
        host = FakeMachineHost(host_id, rollout_id, f"boot-{host_id}", SecretStr("canary-token"), driver_state="ready")
        host.lease = Lease(lease_id=f"l-{host_id}", generation=1, rollout_id=rollout_id, expires_in_s=60)
        self.batch_dir.rollout(rollout_id).root.mkdir()
        if is_alive:
            self.world.alive[host_id] = host
        return host

    def checkpoint(self, rollout_id: str = "r-0", *, sequence: int = 2, stage: str = "commit", **changes: Any) -> None:
        """What the pilot had written when it died with its controller."""
        host_id = f"h-{rollout_id}"
        reference = ArtifactRef(path="reference.png", sha256="0" * 64, size_bytes=1)
        fields: dict[str, Any] = {
            "rollout_id": rollout_id,
            "stage": stage,
            "host_id": host_id,
            "boot_id": f"boot-{host_id}",
            "lease_id": f"l-{host_id}",
            "lease_generation": 1,
            "sequence": sequence,
            "intent_digest": "0" * 64 if stage == "intent" else None,
            "intent_actions": None,
            "turn": sequence,
            "actions_used": 2,
            "invalid_turns": 0,
            "invalid_turns_lifetime": 0,
            "malformed_responses": 0,
            "retries": Retries(),
            "usage": Usage(),
            "cost_usd": None,
            "frame": reference,
            "reference": reference,
            "observation": "",
            "model_state": {},
            **changes,
        }
        write_record(self.batch_dir.rollout(rollout_id).checkpoint, Checkpoint(**fields))
        write_state(self.batch_dir.rollout(rollout_id), sequence, None)

    def resume(self) -> int:
        console = quiet_console()

        async def work() -> int:
            return await resume(
                self.batch_dir,
                self.prepared,
                console=console,
                ambient=virtual_ambient(),
                equipment=self.world.equipment(),
            )

        code = in_virtual_time(work)
        self.said = printed(console)
        return code

    def row(self, rollout_id: str = "r-0") -> RolloutRow:
        return next(row for row in read_state(self.batch_dir).rollouts if row.rollout_id == rollout_id)


@pytest.fixture
def dead(tmp_path: Path) -> DeadBatch:
    return DeadBatch(tmp_path)


HANDED_OFF = {"phase": Phase.HANDED_OFF, "host_id": "h-r-0", "started_at": START}
EVALUATING = {**HANDED_OFF, "phase": Phase.EVALUATING}


def test_a_rollout_goes_on_with_the_very_same_host(dead: DeadBatch) -> None:
    """Boot, lease, generation and sequence agree: the pilot goes on from its checkpoint, and no host is launched."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off().last_sequence = 2
    dead.checkpoint(sequence=2)

    code = dead.resume()

    assert (0, Outcome.SCORED) == (code, dead.row().outcome)
    assert [] == dead.world.launched
    assert [True] == [spec.is_resume for spec in dead.world.specs]
    assert "l-h-r-0" == dead.world.specs[0].host.lease_id
    assert ["intent", "launched", "handed_off", "released"] == ledger_events(dead.batch_dir, "r-0")
    assert_nothing_is_left(dead.world, dead.batch_dir)


@pytest.mark.parametrize("last_sequence", [2, 3])
def test_an_intent_goes_on_whether_or_not_the_host_had_heard_it(dead: DeadBatch, last_sequence: int) -> None:
    """The host's receipts decide, so both are fine."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off().last_sequence = last_sequence
    dead.checkpoint(sequence=2, stage="intent")

    assert 0 == dead.resume()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"boot_id": "boot-other"}, "another host, boot or lease"),
        ({"lease_id": "l-other"}, "another host, boot or lease"),
        ({"lease_generation": 2}, "another host, boot or lease"),
        ({"host_id": "h-other"}, "another host, boot or lease"),
        ({"sequence": 1}, "sequence 2"),
        ({"sequence": 3}, "sequence 2"),
    ],
)
def test_a_checkpoint_that_does_not_agree_voids_the_rollout(dead: DeadBatch, change: dict[str, Any], says: str) -> None:
    """Going on anyway could repeat an action; starting anew would be a second sample."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off().last_sequence = 2
    dead.checkpoint(**{"sequence": 2, **change})

    code = dead.resume()

    row = dead.row()
    assert (1, Outcome.VOID, Cause.RESUME_MISMATCH) == (code, row.outcome, row.cause)
    assert says in (row.cause_detail or "")
    assert ([], []) == (dead.world.played, dead.world.launched)
    assert_nothing_is_left(dead.world, dead.batch_dir)


def test_a_host_in_another_boot_voids_the_rollout(dead: DeadBatch) -> None:
    """What it remembers of the rollout is gone."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off()
    dead.checkpoint()

    async def reboot(step: str, rollout_id: str) -> None:
        if step == "identity":
            dead.world.host_of("r-0").boot_id = "boot-new"

    dead.world.trouble = reboot
    dead.resume()

    assert Cause.RESUME_MISMATCH == dead.row().cause


def test_without_a_checkpoint_a_host_that_has_done_nothing_starts_its_rollout(dead: DeadBatch) -> None:
    """The checkpoint comes before the first action: nothing was done, so going on from the start is exact."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off()

    code = dead.resume()

    assert (0, Outcome.SCORED) == (code, dead.row().outcome)
    assert [True] == [spec.is_resume for spec in dead.world.specs]
    assert [] == dead.world.launched
    assert ["intent", "launched", "handed_off", "released"] == ledger_events(dead.batch_dir, "r-0")


def test_without_a_checkpoint_a_host_that_has_acted_does_not_go_on(dead: DeadBatch) -> None:
    """Then the checkpoint is lost, and with it what was done."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off().last_sequence = 1

    dead.resume()

    assert (Cause.RESUME_MISMATCH, Outcome.VOID) == (dead.row().cause, dead.row().outcome)
    assert "the host is at sequence 1" in (dead.row().cause_detail or "")
    assert [] == dead.world.played


def test_a_checkpoint_that_cannot_be_read_does_not_go_on(dead: DeadBatch) -> None:
    """It is there, so something was done; what, nobody can say."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off()
    dead.batch_dir.rollout("r-0").checkpoint.write_text("{")

    dead.resume()

    assert (Cause.RESUME_MISMATCH, Outcome.VOID) == (dead.row().cause, dead.row().outcome)
    assert [] == dead.world.played


def test_a_host_that_died_with_its_controller_voids_the_rollout(dead: DeadBatch) -> None:
    """This is the default for local hosts: the result says who died."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off(is_alive=False)
    dead.checkpoint()

    code = dead.resume()

    result = read_result(dead.batch_dir, "r-0")
    assert (1, Outcome.VOID, Cause.CONTROLLER_DIED) == (code, result.outcome, result.cause)
    assert "controller 4242 died while this rollout was handed_off" in (result.cause_detail or "")
    assert 2 == result.turns
    assert "reconciled" in ledger_events(dead.batch_dir, "r-0") or "released" in ledger_events(dead.batch_dir, "r-0")


def test_an_evaluation_that_was_cut_off_is_made_again_on_a_living_host(dead: DeadBatch) -> None:
    """The pilot had ended; it is not played again."""
    dead.write({"r-0": EVALUATING})
    dead.hand_off()
    write_state(dead.batch_dir.rollout("r-0"), 5, EndedBy.FINISHED)

    code = dead.resume()

    assert (0, Outcome.SCORED, 5) == (code, dead.row().outcome, dead.row().turns)
    assert ([], ["r-0"]) == (dead.world.played, dead.world.evaluated)
    assert_nothing_is_left(dead.world, dead.batch_dir)


def test_an_evaluation_without_its_host_is_void(dead: DeadBatch) -> None:
    """There is nothing left to evaluate on."""
    dead.write({"r-0": EVALUATING})
    dead.hand_off(is_alive=False)
    write_state(dead.batch_dir.rollout("r-0"), 5, EndedBy.FINISHED)

    dead.resume()

    assert (Outcome.VOID, Cause.CONTROLLER_DIED) == (dead.row().outcome, dead.row().cause)


def test_what_had_not_been_handed_off_is_played_and_what_had_ended_is_not(tmp_path: Path) -> None:
    """Queued, starting and not-started rollouts never were samples; finished ones stay to the byte."""
    dead = DeadBatch(tmp_path, count=5)
    ended = {"phase": Phase.FINISHED, "outcome": Outcome.SCORED, "score": 0.25}
    dead.write(
        {
            "r-0": ended,
            "r-1": {"phase": Phase.FAILED, "outcome": Outcome.VOID, "cause": Cause.CAD_DIED},
            "r-2": {"phase": Phase.STARTING, "host_id": "h-r-2"},
            "r-3": {"phase": Phase.NOT_STARTED, "cause": Cause.RESET, "host_replacements": 1},
        }
    )

    code = dead.resume()

    assert 1 == code
    assert ["r-2", "r-3", "r-4"] == sorted(dead.world.played)
    assert (0.25, Phase.FINISHED) == (dead.row("r-0").score, dead.row("r-0").phase)
    assert Cause.CAD_DIED == dead.row("r-1").cause
    assert (Outcome.SCORED, None, 0) == (
        dead.row("r-3").outcome,
        dead.row("r-3").cause,
        dead.row("r-3").host_replacements,
    )
    assert BatchStatus.FINISHED == read_state(dead.batch_dir).status


def test_a_stale_host_of_a_starting_rollout_is_ended_before_anything_is_played(tmp_path: Path) -> None:
    """Nobody goes on with it, and its memory is wanted."""
    dead = DeadBatch(tmp_path)
    dead.hand_off()
    dead.write({"r-0": {"phase": Phase.STARTING, "host_id": "h-r-0"}})
    alive_when_played: list[list[str]] = []
    dead.world.on_turn = lambda spec, turn: alive_when_played.append(sorted(dead.world.alive))

    code = dead.resume()

    assert 0 == code
    assert all("h-r-0" not in alive for alive in alive_when_played)
    assert "reconciled" in ledger_events(dead.batch_dir, "r-0")


def test_the_living_are_seen_to_before_the_queued(tmp_path: Path) -> None:
    """A host without a controller lives for seconds; a queued rollout can wait."""
    dead = DeadBatch(tmp_path, count=4)
    dead.write({"r-3": {**HANDED_OFF, "host_id": "h-r-3"}})
    dead.hand_off("r-3").last_sequence = 2
    dead.checkpoint("r-3", sequence=2)

    dead.resume()

    assert "r-3" in dead.world.played[:2]


def test_a_batch_whose_controller_is_alive_is_refused(dead: DeadBatch) -> None:
    """Resume is for the dead."""
    held = locks.take(dead.batch_dir.lock)
    assert held is not None

    with pytest.raises(StateError, match="another controller"):
        dead.resume()
    held.release()


def test_resume_of_a_folder_without_a_batch_is_refused(tmp_path: Path) -> None:
    """And the folder is not made."""
    prepared = prepare(tmp_path)

    async def work() -> int:
        return await resume(
            BatchDir(tmp_path / "nothing"), prepared, console=quiet_console(), ambient=virtual_ambient()
        )

    with pytest.raises(StateError, match="holds no batch"):
        anyio.run(work)

    assert not (tmp_path / "nothing").exists()


def test_resuming_twice_changes_nothing_more(dead: DeadBatch) -> None:
    """The second time there is nothing left to do."""
    dead.write({"r-0": HANDED_OFF})
    dead.hand_off(is_alive=False)

    codes = [dead.resume()]
    first = read_record(dead.batch_dir.rollout("r-0").result, Result)
    codes.append(dead.resume())

    assert [1, 1] == codes
    assert first == read_record(dead.batch_dir.rollout("r-0").result, Result)
