"""The broker as the system of a cloud instance starts it: from metadata, on a state folder that outlives a reboot."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from contract.actions import TypeText, Wait
from contract.broker_api import BROKER_VERSION, ErrorCode, Identity, Lease, LeaseRequest
from contract.broker_client import BrokerClient, Patience
from contract.errors import BrokerError, HostError
from contract.guest import GuestStart, start_line
from supervisor.cloud.ports import Instance, InstanceState
from supervisor.hosts.identity import verify_instance
from tests.metadata_service import ACCOUNT, IMAGE_ID, INSTANCE_ID, REGION, MetadataService, document_of, signer
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

TOKEN = SecretStr("canary-token-of-an-instance")
LEASE = LeaseRequest(request_id="lease-1", rollout_id="rollout", lease_s=600)
CIRCLE = TypeText(text="circle 600,400 220\n")
BEGUN = [CIRCLE, Wait(seconds=30)]
DRIVERS = ["paper", pytest.param("librecad", marks=pytest.mark.desktop)]


class Guest:
    """One instance of a stand-in cloud, switched on once."""

    def __init__(self, machine: Machine, *, boot_count: int, booted_at: datetime, options: tuple[str, ...]) -> None:
        command = [sys.executable, "-I", "-m", "broker.instance", "--imds", machine.metadata.url]
        command += ["--state-dir", str(machine.state_dir), "--deadline-file", str(machine.deadline_file), "--port", "0"]
        command += ["--boot-count", str(boot_count), "--booted-at", booted_at.isoformat(), *options]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=machine.log.open("ab"),
            env={"PATH": os.environ["PATH"]},
            start_new_session=True,
        )
        assert self.process.stdout
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline())

    def client(self, token: SecretStr = TOKEN) -> BrokerClient:
        """A client that asks once."""
        patience = Patience(read_s=PATIENCE_S, actions_s=PATIENCE_S, tries=1)
        return BrokerClient(f"http://127.0.0.1:{self.said['port']}", token, patience=patience)

    def kill(self) -> None:
        """As a machine that is reset kills it."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


class Machine:
    """One instance of a stand-in cloud: metadata and disk stay when it is rebooted."""

    def __init__(self, folder: Path, metadata: MetadataService, launched_at: datetime) -> None:
        self.metadata = metadata
        self.launched_at = launched_at
        self.state_dir = folder / "state"
        self.deadline_file = folder / "run" / "deadline"
        self.log = folder / "log"
        self.is_off = folder / "off"
        self._guests: list[Guest] = []

    @property
    def shutdown(self) -> tuple[str, str]:
        """The option that lets it be seen whether it shut itself down."""
        return "--shutdown-command", shlex.join(["touch", str(self.is_off)])

    def boot(self, count: int = 1, *options: str, after_s: float = 30.0) -> Guest:
        """Start its broker in the boot of this number, so long after the launch."""
        booted_at = self.launched_at + timedelta(seconds=after_s)
        self._guests.append(Guest(self, boot_count=count, booted_at=booted_at, options=options))
        return self._guests[-1]

    def verify(self, identity: Identity, **other: Any) -> None:
        """The controller's check."""
        instance = Instance(
            instance_id=INSTANCE_ID,
            state=InstanceState.RUNNING,
            instance_type="g6.xlarge",
            image_id=IMAGE_ID,
            subnet_id=None,
            private_ip=None,
            launched_at=self.launched_at,
            client_token="t",
        )
        arguments: dict[str, Any] = {
            "certificate": signer().certificate,
            "instance": instance,
            "region": REGION,
            "account": ACCOUNT,
            "broker_version": BROKER_VERSION,
            "booted_after": self.launched_at,
        }
        verify_instance(identity, **{**arguments, **other})

    def close(self) -> None:
        """Switch it off."""
        for guest in self._guests:
            guest.kill()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Makes instances; the arguments are what their user data says."""
    with contextlib.ExitStack() as undo:

        def build(*, user_data: str | None = None, launched_s_ago: float = 0.0, **start: Any) -> Machine:
            folder = tmp_path / f"machine-{time.monotonic_ns()}"
            folder.mkdir()
            launched_at = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=launched_s_ago)
            told = GuestStart(
                **{
                    "host_id": "h-test",
                    "token_sha256": hashlib.sha256(TOKEN.get_secret_value().encode()).hexdigest(),
                    "driver": "paper",
                    "port": 8765,
                    "lease_s": 600,
                    "lifetime_s": 3_600,
                    **start,
                }
            )
            text = f"#!/bin/sh\n{start_line(told)}\nexit 0\n" if user_data is None else user_data
            document = document_of(pendingTime=launched_at.strftime("%Y-%m-%dT%H:%M:%SZ"))
            metadata = undo.enter_context(MetadataService.of(user_data=text, document=document))
            machine = Machine(folder, metadata, launched_at)
            undo.callback(machine.close)
            return machine

        yield build


def handed_off(guest: Guest, seed: bytes, make_reset_request: Any) -> Lease:
    """Lease and reset, as before a rollout."""
    client = guest.client()
    lease = client.lease(LEASE)
    client.reset(make_reset_request(lease, seed))
    return lease


def test_an_instance_proves_itself_from_its_user_data(launch: Any) -> None:
    """Nobody writes to it and nobody holds its input: metadata is all that it is told."""
    machine = launch()
    guest = machine.boot()
    identity = guest.client().identity(token=TOKEN)
    machine.verify(identity)

    assert ("autocad-bench.broker-ready/1", "h-test") == (guest.said["schema"], guest.said["host_id"])
    assert guest.said["boot_id"] == identity.boot_id == guest.client().health().boot_id
    assert identity.instance
    assert 1 == identity.instance.boot_count


def test_an_answer_of_another_instance_is_not_ours(launch: Any) -> None:
    """Each of two siblings answers truly, under the same token even."""
    ours, other = launch(), launch()
    document = document_of(instanceId="i-0fedcba9876543210")
    other.metadata.answers.update(
        MetadataService.of(user_data="", document=document).answers
        | {"/latest/user-data": other.metadata.answers["/latest/user-data"]}
    )
    identity = other.boot().client().identity(token=TOKEN)
    with pytest.raises(HostError, match="i-0fedcba9876543210"):
        ours.verify(identity)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_reboot_keeps_receipts_and_lease_and_is_another_boot(
    launch: Any, seed: bytes, make_reset_request: Any, driver: str
) -> None:
    """What was done is known, what was begun is never done again, and the controller sees that the machine rebooted."""
    machine = launch(driver=driver)
    first = machine.boot(1)
    lease = handed_off(first, seed, make_reset_request)
    done = first.client().act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])

    def begin() -> None:
        with contextlib.suppress(BrokerError):
            first.client().act(lease_id=lease.lease_id, sequence=2, actions=BEGUN)

    beginning = threading.Thread(target=begin)
    beginning.start()
    receipts = machine.state_dir / INSTANCE_ID / "receipts.jsonl"
    until(lambda: b'"started"' in receipts.read_bytes().splitlines()[-1])
    first.kill()
    beginning.join()
    second = machine.boot(2, after_s=95.0)
    client = second.client()

    assert first.said["boot_id"] != second.said["boot_id"]
    machine.verify(client.identity(token=TOKEN))
    again = client.lease(LEASE)
    assert (lease.lease_id, lease.generation) == (again.lease_id, again.generation)
    assert (2, "stopped") == (client.health().last_sequence, client.health().driver_state)
    assert done.model_copy(update={"is_replay": True}) == client.act(
        lease_id=lease.lease_id, sequence=1, actions=[CIRCLE]
    )
    for sequence, actions in ((2, BEGUN), (3, [CIRCLE]), (2, BEGUN)):
        with pytest.raises(BrokerError) as caught:
            client.act(lease_id=lease.lease_id, sequence=sequence, actions=actions)

        assert caught.value.code == ErrorCode.INDETERMINATE
    with pytest.raises(BrokerError, match="acted already"):
        client.reset(make_reset_request(lease, seed, "reset-2"))


def test_a_broker_that_is_started_again_is_in_the_same_boot(launch: Any, seed: bytes, make_reset_request: Any) -> None:
    """Its own death is not the machine's, though the clock moved meanwhile; the drawing is gone all the same."""
    machine = launch()
    first = machine.boot(1)
    lease = handed_off(first, seed, make_reset_request)
    done = first.client().act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE])
    first.kill()
    client = machine.boot(1, after_s=75.0).client()

    assert first.said["boot_id"] == client.health().boot_id
    assert client.act(lease_id=lease.lease_id, sequence=1, actions=[CIRCLE]).is_replay
    with pytest.raises(BrokerError) as caught:
        client.act(lease_id=lease.lease_id, sequence=done.sequence + 1, actions=[CIRCLE])

    assert caught.value.code == ErrorCode.NOT_RESET


def test_a_folder_that_was_baked_into_the_image_is_not_looked_at(launch: Any) -> None:
    """The machine on which an image is made has an id, a lease and receipts of its own."""
    machine = launch()
    baked = machine.state_dir / "i-0fedcba9876543210"
    baked.mkdir(parents=True)
    (baked / "lease.json").write_text("what is this")
    lease = machine.boot().client().lease(LEASE)

    assert 1 == lease.generation


def test_only_authenticated_calls_move_the_deadline(launch: Any) -> None:
    """Whoever else reaches the port of the tunnel keeps no machine alive."""
    machine = launch(lease_s=700)
    guest = machine.boot()
    with pytest.raises(BrokerError):
        guest.client(SecretStr("wrong")).health()
    is_fed_too_soon = machine.deadline_file.exists()
    began = time.time()
    guest.client().health()
    deadline = int(machine.deadline_file.read_text())
    guest.client().lease(LEASE)

    assert not is_fed_too_soon
    assert began + 700 - 1 <= deadline <= time.time() + 711
    # A lease of another length is told to the timer at once.
    assert began + 600 - 1 <= int(machine.deadline_file.read_text()) <= time.time() + 611


def test_the_deadline_is_never_behind_the_lifetime(launch: Any) -> None:
    """It counts from the launch, not from a boot."""
    machine = launch(launched_s_ago=3_000)
    machine.boot().client().health()

    assert int(machine.launched_at.timestamp()) + 3_600 == int(machine.deadline_file.read_text())


@pytest.mark.parametrize("is_leased", [False, True])
def test_silence_ends_the_broker_and_shuts_the_machine_down(launch: Any, is_leased: bool) -> None:
    """Its controller died before it took the lease, or behind."""
    machine = launch(lease_s=600 if is_leased else 0.5)
    guest = machine.boot(1, *machine.shutdown)
    if is_leased:
        guest.client().lease(LEASE.model_copy(update={"lease_s": 0.5}))

    assert 0 == guest.process.wait(PATIENCE_S)
    assert machine.is_off.exists()
    assert "no authenticated call" in machine.log.read_text()


def test_the_lifetime_ends_a_machine_whose_controller_still_calls(launch: Any) -> None:
    """A controller that hangs in a loop is not cheaper than a dead one."""
    machine = launch(lifetime_s=3_600, launched_s_ago=3_597)
    guest = machine.boot(1, *machine.shutdown)
    client = guest.client()
    with pytest.raises(BrokerError):
        until(lambda: not client.health())

    assert 0 == guest.process.wait(PATIENCE_S)
    assert machine.is_off.exists()
    assert "lifetime is over" in machine.log.read_text()


def test_a_service_that_is_stopped_shuts_nothing_down(launch: Any) -> None:
    """Whoever works on the machine restarts it; the dead-man timer goes on."""
    machine = launch()
    guest = machine.boot(1, *machine.shutdown)
    guest.process.send_signal(signal.SIGTERM)

    assert 0 == guest.process.wait(PATIENCE_S)
    assert not machine.is_off.exists()


def test_a_shutdown_that_fails_is_logged(launch: Any) -> None:
    """The timer is left, and it does not need this broker."""
    machine = launch(lease_s=0.3)
    guest = machine.boot(1, "--shutdown-command", "/nowhere/shutdown now")

    assert 0 == guest.process.wait(PATIENCE_S)
    assert "the dead-man timer is left" in machine.log.read_text()


@pytest.mark.parametrize(
    ("told", "options", "code"),
    [
        ({"user_data": "#!/bin/sh\nexit 0\n"}, (), "user_data_invalid"),
        ({"user_data": '# autocad-bench-start: {"host_id": "h"}\n'}, (), "user_data_invalid"),
        ({"driver": "autocad"}, (), "driver_not_built"),
        ({}, ("--imds", "http://127.0.0.1:9", "--imds-wait-s", "0.2"), "metadata_missing"),
        ({}, ("--state-dir", "/dev/null/state"), "state_dir_missing"),
    ],
)
def test_a_guest_that_cannot_start_says_why_in_one_line(
    launch: Any, told: dict[str, Any], options: tuple[str, ...], code: str
) -> None:
    """It stands in the system's log, and the machine is ended by its timer."""
    guest = launch(**told).boot(1, *options)

    assert ("autocad-bench.broker-failed/1", code) == (guest.said["schema"], guest.said["code"])
    assert guest.said["hint"]
    assert 1 == guest.process.wait(PATIENCE_S)


def test_the_port_is_that_of_the_user_data_unless_told(launch: Any) -> None:
    """A tunnel is opened to that port; one that is taken is told in one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = launch().boot(1, "--port", str(port)).said
        assert "port_in_use" == refused["code"]

    assert port == launch(port=port).boot(1, "--port", str(port)).said["port"]


def test_neither_disk_nor_log_hold_the_token(launch: Any, seed: bytes, make_reset_request: Any) -> None:
    """The guest knows its hash only, and the client's header is not logged."""
    machine = launch()
    guest = machine.boot()
    handed_off(guest, seed, make_reset_request)
    guest.kill()
    files = [path for path in machine.log.parent.rglob("*") if path.is_file()]

    assert {"lease.json", "boot.json", "log", "deadline"} <= {path.name for path in files}
    assert [] == [path for path in files if TOKEN.get_secret_value().encode() in path.read_bytes()]
