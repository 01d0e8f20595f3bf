"""`reconcile` over a cloud: what a dead controller left is found, proven by its ledger and ended; all else is told."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from contract.batch_records import HostLine, RolloutRow
from contract.config import Ec2HostConfig
from contract.phases import BatchStatus, Cause, Outcome, Phase
from contract.records import LineAppender, write_record
from contract.run_dir import BatchDir
from supervisor import reconcile
from supervisor.cloud.ports import Cloud, CloudError, FaultKind, Instance, InstanceState
from supervisor.keepers import Keepers
from tests.batch_fakes import START, batch_state, ledger_events, prepare, read_result, read_state
from tests.ec2_world import ec2_host

NOW = datetime(2026, 12, 2, tzinfo=UTC)


@dataclass
class Account:
    """The instances of an account, as far as a keeper asks."""

    instances: list[Instance] = field(default_factory=list)
    terminated: list[list[str]] = field(default_factory=list)
    opened: int = 0
    asked: int = 0
    refusal: CloudError | None = None

    def open(self, config: Ec2HostConfig) -> Cloud:
        """What `Keepers` calls."""
        self.opened += 1
        return cast(Cloud, self)

    def find_instances(self, filters: Mapping[str, Sequence[str]]) -> list[Instance]:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        return [instance for instance in self.instances if all(_has(instance, *item) for item in filters.items())]

    def terminate_instances(self, instance_ids: Collection[str]) -> None:
        self.terminated.append(sorted(instance_ids))
        gone = InstanceState.SHUTTING_DOWN
        self.instances = [
            replace(instance, state=gone) if instance.instance_id in instance_ids else instance
            for instance in self.instances
        ]


def _has(instance: Instance, name: str, values: Sequence[str]) -> bool:
    if name.startswith("tag:"):
        return instance.tags.get(name.removeprefix("tag:")) in values
    known = {"instance-id": instance.instance_id, "client-token": instance.client_token}
    return {**known, "instance-state-name": instance.state.value}[name] in values


def instance(name: str, *, token: str = "other", batch_id: str = "b-1", owner: str = "me", **tags: str) -> Instance:
    """An instance that is alive, and expires in an hour."""
    expires_at = (NOW + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Instance(
        instance_id=name,
        state=InstanceState.RUNNING,
        instance_type="g4dn.xlarge",
        image_id="ami-0",
        subnet_id=None,
        private_ip=None,
        launched_at=START,
        client_token=token,
        tags={"BatchId": batch_id, "Owner": owner, "ExpiresAt": expires_at, **tags},
    )


@pytest.fixture
def batch_dir(tmp_path: Path) -> BatchDir:
    """A batch whose controller died while `r-0` played on `i-0`, and while `i-1` was being launched for `r-1`."""
    prepared = prepare(tmp_path, host=ec2_host(owner="me"))
    made = BatchDir(tmp_path / "out")
    made.rollouts.mkdir(parents=True)
    made.config.write_bytes(prepared.config_bytes)
    rows = [
        RolloutRow(rollout_id=name, task_id="dot", provider="noop", model="m", profile=None, phase=phase)
        for name, phase in (("r-0", Phase.HANDED_OFF), ("r-1", Phase.STARTING))
    ]
    write_record(made.state, batch_state(*rows))
    lines = LineAppender(made.hosts)
    for event, host_id, rollout_id, detail in (
        ("intent", "h-0", "r-0", {"client_token": "t-0", "asked_at": START.isoformat()}),
        ("instance", "h-0", "r-0", {"instance_id": "i-0"}),
        ("handed_off", "h-0", "r-0", {}),
        # Its answer was never heard.
        ("intent", "h-1", "r-1", {"client_token": "t-1", "asked_at": START.isoformat()}),
    ):
        line = {"at": START, "event": event, "host_id": host_id, "rollout_id": rollout_id, "kind": "ec2"}
        lines.append(HostLine.model_validate({**line, "detail": detail}))
    lines.close()
    return made


def end(batch_dir: BatchDir, account: Account) -> reconcile.BatchFindings:
    """`reconcile --execute` for this batch."""

    async def work() -> list[reconcile.BatchFindings]:
        return await reconcile.end([batch_dir], keepers=Keepers(account.open))

    return anyio.run(work)[0]


def test_what_the_ledger_proves_is_ended_in_one_request(batch_dir: BatchDir) -> None:
    """By instance id, and by the client token of a launch whose answer was lost. The records say what became of it."""
    account = Account([instance("i-0", token="t-0"), instance("i-1", token="t-1")])

    found = end(batch_dir, account)

    assert [["i-0", "i-1"]] == account.terminated
    assert ("h-0", "h-1") == found.ended
    assert "reconciled" == ledger_events(batch_dir, "r-0")[-1] == ledger_events(batch_dir, "r-1")[-1]
    assert (Outcome.VOID, Cause.CONTROLLER_DIED) == (
        read_result(batch_dir, "r-0").outcome,
        read_result(batch_dir, "r-0").cause,
    )
    assert (BatchStatus.INTERRUPTED, Phase.QUEUED) == (
        read_state(batch_dir).status,
        read_state(batch_dir).rollouts[1].phase,
    )


def test_a_launch_too_young_to_be_found_is_found_by_the_next_look(batch_dir: BatchDir) -> None:
    """The index of instances lags, and the batch is closed by then."""
    account = Account()
    end(batch_dir, account)
    account.instances = [instance("i-1", token="t-1")]

    found = end(batch_dir, account)

    assert ("h-1",) == found.ended
    assert [["i-1"]] == account.terminated


def test_tags_alone_prove_nothing(batch_dir: BatchDir) -> None:
    """Copied tags are told of; another owner's, a sibling's and what is ending already are not even that."""
    ending = replace(instance("i-4", token="t-1"), state=InstanceState.SHUTTING_DOWN)
    account = Account(
        [
            instance("i-0", token="t-0"),
            instance("i-2"),
            instance("i-3", owner="somebody"),
            instance("i-5", batch_id="b-10", token="t-9"),
            ending,
        ]
    )

    found = end(batch_dir, account)

    assert [["i-0"]] == account.terminated
    assert ("i-2",) == found.strangers
    assert ["i-2", "i-3", "i-5"] == [one.instance_id for one in account.instances if one.state is InstanceState.RUNNING]


def test_a_report_changes_nothing(batch_dir: BatchDir) -> None:
    """Cron looks first."""
    account = Account([instance("i-0", token="t-0")])
    before = batch_dir.hosts.read_bytes()

    [found] = reconcile.report([batch_dir], keepers=Keepers(account.open))

    assert [("h-0", "r-0", "i-0")] == [(left.host_id, left.rollout_id, left.instance_id) for left in found.left]
    assert found.needs_attention
    assert [] == account.terminated
    assert before == batch_dir.hosts.read_bytes()


def test_a_host_that_its_ledger_calls_over_and_that_lives_is_found(batch_dir: BatchDir) -> None:
    """An ending that was acknowledged may not have happened."""
    lines = LineAppender(batch_dir.hosts)
    for host_id, rollout_id in (("h-0", "r-0"), ("h-1", "r-1")):
        line = {"at": START, "event": "released", "host_id": host_id, "rollout_id": rollout_id, "kind": "ec2"}
        lines.append(HostLine.model_validate(line))
    lines.close()
    account = Account([instance("i-0", token="t-0")])

    found = end(batch_dir, account)

    assert [["i-0"]] == account.terminated
    assert ("h-0",) == found.ended


def test_many_closed_batches_cost_one_question(batch_dir: BatchDir, tmp_path: Path) -> None:
    """A year of nightlies is looked through in one call for each account."""
    account = Account()
    end(batch_dir, account)
    account.asked = 0

    found = reconcile.report([batch_dir] * 50, keepers=Keepers(account.open))

    assert 1 == account.asked
    assert [False] * 50 == [one.needs_attention for one in found]


def test_a_cloud_that_cannot_be_asked_needs_attention(batch_dir: BatchDir) -> None:
    """Not knowing is not the same as nothing being there."""
    refusal = CloudError("no", kind=FaultKind.SIGNING, code="ExpiredToken", action="DescribeInstances")

    [found] = reconcile.report([batch_dir], keepers=Keepers(Account(refusal=refusal).open))

    assert found.needs_attention
    assert "no" in found.problem


def test_an_instance_of_ours_that_outlived_its_time_is_told_whoever_launched_it(batch_dir: BatchDir) -> None:
    """Its batch's folder may be on another machine."""
    old = instance("i-9", batch_id="b-elsewhere", ExpiresAt="2026-12-01T00:00:00Z")
    account = Account([old, instance("i-8", batch_id="b-elsewhere"), instance("i-0", token="t-0")])
    keepers = Keepers(account.open)
    reconcile.report([batch_dir], keepers=keepers)

    assert ["i-9"] == [one.instance_id for one in keepers.expired(NOW)]


def test_without_its_config_the_account_is_unknown_and_said(batch_dir: BatchDir) -> None:
    """The instances may be alive, and nobody can tell from here."""
    document: dict[str, Any] = json.loads(batch_dir.config.read_text())
    batch_dir.config.write_text(json.dumps({**document, "host": {"kind": "local"}}))

    [found] = reconcile.report([batch_dir], keepers=Keepers(Account().open))

    assert found.needs_attention
    assert "account" in found.problem
