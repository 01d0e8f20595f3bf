"""Whole batches on EC2 hosts that fail, by the real command against the lab: one outcome and one cause for each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.batch_records import RolloutRow
from contract.phases import Cause, Outcome, Phase
from tests.lab.batches import SCORED, LabBatch, Strike, lab_batch
from tests.lab.faults import Fault, Kind
from tests.lab.lab import BUCKET
from tests.metadata_service import signer

# Each takes a minute or more, most of it waiting: make e2e.
pytestmark = pytest.mark.e2e

BOTH_MODES = pytest.mark.parametrize("mode", ["process", "shared"])
ROLE = "arn:aws:iam::123456789012:role/expiry"
# An upload that takes so long is met in its middle.
UPLOAD_S = 3.0


def is_playing(row: RolloutRow) -> bool:
    """Some turns are behind it, and some before it."""
    return row.phase is Phase.HANDED_OFF and row.turns >= 2


def is_evaluating(row: RolloutRow) -> bool:
    """Its pilot has ended."""
    return row.phase is Phase.EVALUATING


def is_starting(row: RolloutRow) -> bool:
    """A host is being made for it."""
    return row.phase is Phase.STARTING


def to_its_machine(deed: Callable[[LabBatch, str], None]) -> Callable[[LabBatch, RolloutRow], bool]:
    """Done to the instance of the rollout's host, by its id."""

    def found(batch: LabBatch, row: RolloutRow) -> bool:
        machine = batch.machine_of(row)
        if machine is None:
            return False
        deed(batch, machine.instance_id)
        return True

    return found


reboot = to_its_machine(lambda batch, name: batch.lab.machines.reboot(name))
kill_guest = to_its_machine(lambda batch, name: batch.lab.machines.kill_guest(name))
end_machine = to_its_machine(lambda batch, name: batch.lab.machines.shut_down(name))
let_it_die = to_its_machine(lambda batch, name: batch.lab.dies_in_pending.add(name))


@BOTH_MODES
def test_hosts_that_are_lost_while_they_are_played_on(tmp_path: Path, mode: str) -> None:
    """A reboot, a broker that dies, an instance that somebody ends: each is its own rollout's cause, told once."""
    strikes = [
        Strike("r-1", is_playing, reboot),
        Strike("r-2", is_playing, kill_guest),
        Strike("r-3", is_playing, end_machine),
        Strike("r-4", is_evaluating, reboot),
        Strike("r-5", is_evaluating, kill_guest),
        Strike("r-6", is_evaluating, end_machine),
    ]
    with lab_batch(tmp_path, count=7, turns=30, wait_s=0.3, mode=mode) as batch:
        batch.lab.faults.trouble = lambda action: Fault("delay", delay_s=UPLOAD_S) if action == "PutObject" else None

        status = batch.play(*strikes)

        lost = {row.rollout_id: row.cause for row in batch.state().rollouts if row.outcome is Outcome.VOID}
        details = {row.rollout_id: row.cause_detail for row in batch.state().rollouts}
        assert 6 == len(batch.struck)
        assert SCORED == batch.ends()["r-0"], batch.said()
        assert {
            "r-1": Cause.HOST_REBOOTED,
            "r-2": Cause.TUNNEL,
            "r-3": Cause.BROKER_DIED,
            "r-4": Cause.HOST_REBOOTED,
            "r-5": Cause.TUNNEL,
            "r-6": Cause.BROKER_DIED,
        } == lost, details
        assert 1 == status
        assert 7 == len(batch.machines())
        batch.assert_done_once()
        batch.assert_nothing_is_left()


def test_an_instance_that_dies_while_pending_costs_nothing(tmp_path: Path) -> None:
    """AWS takes it back before it ran: another one is launched under a token of its own, and nothing was sampled."""
    with lab_batch(tmp_path, count=3, turns=3, wait_s=0.0, lab={"boot_s": 2.0}) as batch:
        status = batch.play(Strike("r-1", is_starting, let_it_die))

        ends = batch.ends()
        assert ["r-1"] == batch.struck
        assert {Outcome.SCORED} == {outcome for outcome, _, _ in ends.values()}, batch.said()
        assert {"r-0": SCORED, "r-2": SCORED} == {name: end for name, end in ends.items() if name != "r-1"}
        assert 0 == status
        assert 4 == len(batch.machines())
        assert 4 == len({machine.token for machine in batch.machines()})
        assert 1 == len([host for host in batch.hosts_of("r-1") if host.was_handed_off])
        batch.assert_done_once()
        batch.assert_nothing_is_left()


WRONG_DOCUMENTS: dict[str, dict[str, Any]] = {
    "account": {"accountId": "999999999999"},
    "instance": {"instanceId": "i-0aaaaaaaaaaaaaaaa"},
    "image": {"imageId": "ami-0aaaaaaaaaaaaaaaa"},
    "region": {"region": "eu-west-1"},
    "clock": {"pendingTime": f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"},
    "signature": {},
}


@pytest.mark.parametrize("wrong", WRONG_DOCUMENTS)
def test_a_host_that_is_somebody_else_is_replaced_once_and_then_given_up(tmp_path: Path, wrong: str) -> None:
    """Its document, the signature on it, or its clock is not that of the instance that was launched."""
    with lab_batch(tmp_path, count=1, turns=3) as batch:
        batch.lab.document_changes.update(WRONG_DOCUMENTS[wrong])
        if wrong == "signature":
            batch.lab.signer = signer("somebody-else")

        status = batch.play()

        assert {"r-0": (None, Cause.HOST_IDENTITY, 1)} == batch.ends(), batch.said()
        assert {Phase.NOT_STARTED} == {row.phase for row in batch.state().rollouts}
        assert 1 == status
        assert 2 == len(batch.machines())
        assert not batch.live.batch_dir.rollout("r-0").model_turns.exists()
        batch.assert_nothing_is_left()


def test_a_host_that_was_somebody_else_once_is_replaced(tmp_path: Path) -> None:
    """The replacement proves who it is, and plays the sample."""

    def correct(batch: LabBatch, row: RolloutRow) -> bool:
        batch.lab.document_changes.clear()
        return True

    with lab_batch(tmp_path, count=1, turns=3) as batch:
        batch.lab.document_changes.update({"accountId": "999999999999"})

        status = batch.play(Strike("r-0", lambda row: row.host_replacements == 1, correct))

        assert {"r-0": (Outcome.SCORED, None, 1)} == batch.ends(), batch.said()
        assert 0 == status
        batch.assert_done_once()
        batch.assert_nothing_is_left()


def test_what_s3_loses_is_sent_or_fetched_again(tmp_path: Path) -> None:
    """Answers to uploads and fetches are lost, errors come and go, bodies end early: no rollout notices."""
    losses: list[tuple[str, Kind]] = [
        ("PutObject", "drop_after"),
        ("PutObject", "drop_before"),
        ("PutObject", "error"),
        ("GetObject", "drop_before"),
        ("GetObject", "cut"),
        ("GetObject", "error"),
    ]
    with lab_batch(tmp_path, count=4, turns=3, wait_s=0.0) as batch:
        for action, kind in losses:
            batch.lab.faults.add(action, kind)

        status = batch.play()

        assert {f"r-{number}": SCORED for number in range(4)} == batch.ends(), batch.said()
        assert 0 == status
        batch.assert_done_once()
        batch.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        ("PutObject", Fault("error", "AccessDenied", 403, "Access Denied")),
        ("PutObject", Fault("error", "AccessDenied", 403, "Request has expired")),
        ("GetObject", Fault("error", "AccessDenied", 403, "Access Denied")),
        ("GetObject", Fault("error", "NoSuchKey", 404, "The specified key does not exist.")),
    ],
    ids=["put-denied", "put-expired", "get-denied", "get-missing"],
)
def test_artifacts_that_never_arrive_make_their_rollout_void(tmp_path: Path, action: str, fault: Fault) -> None:
    """The drawing cannot be scored, and that is nobody's score of zero."""
    with lab_batch(tmp_path, count=1, turns=3, wait_s=0.0) as batch:
        batch.lab.faults.trouble = lambda asked: fault if asked == action else None

        status = batch.play()

        assert {"r-0": (Outcome.VOID, Cause.EVALUATION_FAILED, 0)} == batch.ends(), batch.said()
        assert 1 == status
        batch.assert_done_once()
        batch.assert_nothing_is_left()


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 2_000_000], ids=["empty", "short", "long"])
def test_an_object_that_is_not_what_was_announced_is_never_used(tmp_path: Path, content: bytes) -> None:
    """Somebody writes into the bucket, again and again: the rollout is void, and nothing of it stands in its folder."""
    from moto.backends import get_backend

    with lab_batch(tmp_path, count=1, turns=3, wait_s=0.0) as batch:

        def tamper(action: str) -> Fault | None:
            if action == "GetObject":
                store = get_backend("s3")[batch.lab.account]["aws"]
                for key in list(store.buckets[BUCKET].keys):
                    store.put_object(BUCKET, key, content)
            return None

        batch.lab.faults.trouble = tamper

        batch.play()

        assert {"r-0": (Outcome.VOID, Cause.EVALUATION_FAILED, 0)} == batch.ends(), batch.said()
        assert not batch.live.batch_dir.rollout("r-0").evaluation.render.exists()
        assert not batch.live.batch_dir.rollout("r-0").attempt("dxf").exists()
        batch.assert_nothing_is_left()


@BOTH_MODES
def test_credentials_that_expire_in_the_middle_cost_nothing(tmp_path: Path, mode: str) -> None:
    """Whatever is asked of EC2, SSM and S3 is refused for a while; the batch waits, and goes on."""
    refused: list[str] = []

    def expired(action: str) -> Fault | None:
        if len(refused) >= 12 or action in {"PutObject", "GetSchedule"}:
            return None
        refused.append(action)
        return Fault("error", "ExpiredToken", 400, "The security token included in the request is expired")

    def expire(batch: LabBatch, row: RolloutRow) -> bool:
        batch.lab.faults.trouble = expired
        return True

    with lab_batch(tmp_path, count=3, turns=10, wait_s=0.3, mode=mode) as batch:
        status = batch.play(Strike("r-0", is_playing, expire))

        assert 12 == len(refused)
        assert {f"r-{number}": SCORED for number in range(3)} == batch.ends(), batch.said()
        assert 0 == status
        batch.assert_done_once()
        batch.assert_nothing_is_left()


def test_a_schedule_ends_an_instance_by_itself(tmp_path: Path) -> None:
    """It is made with each instance and removed with it; one that fires ends its rollout, and no other."""

    def fire(batch: LabBatch, row: RolloutRow) -> bool:
        machine = batch.machine_of(row)
        for request in list(batch.lab.schedules.pending.values()):
            if machine is not None and machine.instance_id in request["Target"]["Input"]:
                request["ScheduleExpression"] = "at(2000-01-01T00:00:00)"
                return True
        return False

    with lab_batch(tmp_path, count=3, turns=30, wait_s=0.3, host={"expiry_role_arn": ROLE}) as batch:
        status = batch.play(Strike("r-1", is_playing, fire))

        assert ["r-1"] == batch.struck
        assert {"r-0": SCORED, "r-1": (Outcome.VOID, Cause.BROKER_DIED, 0), "r-2": SCORED} == batch.ends(), batch.said()
        assert 1 == status
        assert 3 == len(batch.lab.called("CreateSchedule"))
        batch.assert_done_once()
        batch.assert_nothing_is_left()


def test_guests_whose_controller_is_gone_end_themselves(tmp_path: Path) -> None:
    """A killed controller ends nobody; the dead-man timers do, after the lease, and the resumed batch says so."""
    with lab_batch(tmp_path, count=2, turns=60, wait_s=0.3, host={"lease_s": 60, "boot_s": 60}) as batch:
        batch.live.start()
        batch.live.wait_until_playing()
        batch.live.kill_controller()
        alive = batch.lab.alive()
        batch.lab.ahead_s = 60.0 + 30.0
        batch.lab.machines.watch_guests()
        left = batch.lab.alive()
        batch.live.resume()
        status = batch.go_on()

        assert 2 == len(alive)
        assert [] == left
        assert {"Client.InstanceInitiatedShutdown"} == {machine.reason for machine in batch.machines()}
        assert {(Outcome.VOID, Cause.CONTROLLER_DIED, 0)} == set(batch.ends().values()), batch.said()
        assert 1 == status
        assert 2 == len(batch.machines())
        batch.assert_done_once()
        batch.assert_nothing_is_left()


def test_a_lifetime_ends_a_guest_that_is_played_on(tmp_path: Path) -> None:
    """However well it is: the bound of its whole life is the last one against a machine that nobody ends."""

    def age(batch: LabBatch, row: RolloutRow) -> bool:
        batch.lab.ahead_s = 700.0
        return True

    with lab_batch(tmp_path, count=1, turns=60, wait_s=0.3, host={"lifetime_s": 600}) as batch:
        status = batch.play(Strike("r-0", is_playing, age))

        assert {"r-0": (Outcome.VOID, Cause.BROKER_DIED, 0)} == batch.ends(), batch.said()
        assert 1 == status
        batch.assert_done_once()
        batch.assert_nothing_is_left()
