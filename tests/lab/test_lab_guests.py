"""Behind each instance of the lab runs the real broker: it proves itself, and ends with its machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from pydantic import SecretStr

from contract.broker_api import BROKER_VERSION, Identity
from contract.broker_client import BrokerClient, Patience
from contract.errors import BrokerError, HostError
from contract.guest import GuestStart, start_line
from contract.phases import Cause
from supervisor.cloud.ports import Instance, InstanceState
from supervisor.hosts.identity import verify_instance
from tests.lab.asking import ec2, launch
from tests.lab.lab import Lab
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

TOKEN = SecretStr("canary-token-of-a-lab-guest")
LEASE_S = 600.0
LIFETIME_S = 3_600.0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab.opened(tmp_path, boot_s=0.0, agent_s=0.0, stop_s=0.0) as opened:
        yield opened


def launch_guest(lab: Lab) -> str:
    """An instance with a broker that plays on paper; its id."""
    start = GuestStart(
        host_id="h-1",
        token_sha256=hashlib.sha256(TOKEN.get_secret_value().encode()).hexdigest(),
        driver="paper",
        port=8_700,
        lease_s=LEASE_S,
        lifetime_s=LIFETIME_S,
    )
    return launch(lab, "t", UserData=f"#!/bin/sh\n{start_line(start)}\n")


def identity_of(lab: Lab, instance_id: str) -> Identity:
    """What its broker says of itself, as soon as it says anything."""
    patience = Patience(read_s=PATIENCE_S, tries=10_000, lost_s=PATIENCE_S, pause_s=0.05, pause_s_max=0.1)
    # The guest boots when the account is looked at next.
    until(lambda: lab.machines.is_agent_online(instance_id))
    client = BrokerClient(f"http://127.0.0.1:{lab.machines.broker_port(instance_id)}", TOKEN, patience=patience)
    try:
        return client.identity(token=TOKEN)
    finally:
        client.close()


def verify(lab: Lab, instance_id: str, identity: Identity) -> None:
    """The controller's own check, with what EC2 told it of the launch."""
    told = ec2(lab).describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    launched_at = lab.machines.all[instance_id].launched_at
    instance = Instance(
        instance_id=instance_id,
        state=InstanceState.RUNNING,
        instance_type=told["InstanceType"],
        image_id=told["ImageId"],
        subnet_id=told["SubnetId"],
        private_ip=told["PrivateIpAddress"],
        launched_at=told["LaunchTime"],
        client_token=told["ClientToken"],
    )
    verify_instance(
        identity,
        certificate=(lab.folder / "identity.pem").read_bytes(),
        instance=instance,
        region=lab.region,
        account=lab.account,
        broker_version=BROKER_VERSION,
        booted_after=launched_at,
    )


def process_of(lab: Lab, instance_id: str) -> int:
    """The process id of its broker."""
    guest = lab.machines.all[instance_id].guest
    assert guest is not None
    return guest.pid


def runs(pid: int) -> bool:
    """True while a process of this id is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def reason_of(lab: Lab, instance_id: str) -> str:
    """Why its state changed last, as EC2 shows it."""
    told: dict[str, Any] = ec2(lab).describe_instances(InstanceIds=[instance_id])
    return str(told["Reservations"][0]["Instances"][0]["StateReason"]["Code"])


def test_a_guest_proves_that_it_runs_in_its_instance(lab: Lab) -> None:
    """Document, signature and boot are taken by the check that the controller uses, and by no weaker one."""
    instance_id = launch_guest(lab)

    verify(lab, instance_id, identity_of(lab, instance_id))


def test_a_document_of_another_instance_is_refused(tmp_path: Path) -> None:
    """It is signed well, and not ours."""
    other = {"instanceId": "i-0123456789abcdef0"}
    with Lab.opened(tmp_path, boot_s=0.0, agent_s=0.0, document_changes=other) as lab:
        instance_id = launch_guest(lab)
        identity = identity_of(lab, instance_id)

        with pytest.raises(HostError) as caught:
            verify(lab, instance_id, identity)

    assert Cause.HOST_IDENTITY == caught.value.cause


def test_a_reboot_is_another_boot_at_the_same_address(lab: Lab) -> None:
    """The controller tells the two apart by the boot id alone."""
    instance_id = launch_guest(lab)
    before, port = identity_of(lab, instance_id), lab.machines.broker_port(instance_id)
    lab.machines.reboot(instance_id)
    after = identity_of(lab, instance_id)

    assert port == lab.machines.broker_port(instance_id)
    assert before.boot_id != after.boot_id
    verify(lab, instance_id, after)


def test_terminating_ends_the_guest(lab: Lab) -> None:
    """Its process is gone when the call has been answered, and so is its address."""
    instance_id = launch_guest(lab)
    identity_of(lab, instance_id)
    pid, port = process_of(lab, instance_id), lab.machines.broker_port(instance_id)

    ec2(lab).terminate_instances(InstanceIds=[instance_id])

    assert not runs(pid)
    client = BrokerClient(f"http://127.0.0.1:{port}", TOKEN, patience=Patience(tries=1))
    with pytest.raises(BrokerError):
        client.health()


@pytest.mark.parametrize("ahead_s", [LEASE_S + 60, LIFETIME_S + 60])
@pytest.mark.parametrize("is_guest_alive", [True, False])
def test_the_timer_ends_a_machine_that_nobody_needs(lab: Lab, ahead_s: float, is_guest_alive: bool) -> None:
    """It is the system's own: it needs no broker, and no controller either."""
    instance_id = launch_guest(lab)
    identity_of(lab, instance_id)
    if not is_guest_alive:
        lab.machines.kill_guest(instance_id)
    lab.machines.watch_guests()
    assert [instance_id] == lab.alive()

    lab.ahead_s = ahead_s
    lab.machines.watch_guests()

    assert [] == lab.alive()
    assert "Client.InstanceInitiatedShutdown" == reason_of(lab, instance_id)
    assert [] == lab.called("TerminateInstances")


def test_metadata_need_a_token_and_tell_only_their_own(lab: Lab) -> None:
    """Version 2 alone is served, as the launch asks."""
    instance_id = launch_guest(lab)
    here = f"{lab.url}/imds/{instance_id}/latest"
    told = requests.put(f"{here}/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}, timeout=5)
    token = {"X-aws-ec2-metadata-token": told.text}

    assert 401 == requests.get(f"{here}/user-data", timeout=5).status_code
    assert 401 == requests.get(f"{lab.url}/imds/i-0/latest/user-data", headers=token, timeout=5).status_code
    assert 404 == requests.get(f"{here}/no-such-thing", headers=token, timeout=5).status_code
    document = requests.get(f"{here}/dynamic/instance-identity/document", headers=token, timeout=5).json()
    assert instance_id == document["instanceId"]
    assert datetime.fromisoformat(document["pendingTime"]) <= datetime.now(UTC)
    assert TOKEN.get_secret_value() not in requests.get(f"{here}/user-data", headers=token, timeout=5).text


def test_user_data_of_somebody_else_start_nothing(lab: Lab) -> None:
    """Such an instance runs, and neither timer nor broker of ours is in it."""
    instance_id = launch(lab, "t", UserData="#!/bin/sh\necho hello\n")
    lab.alive()
    lab.ahead_s = 10 * LIFETIME_S
    lab.machines.watch_guests()

    assert lab.machines.all[instance_id].guest is None
    assert [instance_id] == lab.alive()


def test_closing_ends_every_guest(tmp_path: Path) -> None:
    """Whatever a test does, no broker outlives it."""
    with Lab.opened(tmp_path, boot_s=0.0, agent_s=0.0) as lab:
        instance_id = launch_guest(lab)
        identity_of(lab, instance_id)
        pid = process_of(lab, instance_id)

    assert not runs(pid)
