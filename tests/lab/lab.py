"""A small AWS on this machine, with real brokers behind its instances, that loses answers when it is told to."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from tests.lab import moto_shims
from tests.lab.faults import Bucket, Call, Faults, buckets_of_ec2
from tests.lab.json_services import AGENT_VERSION, Schedules, Sessions
from tests.lab.machines import Machines
from tests.lab.plugin import StandIn
from tests.lab.wire import Wire
from tests.metadata_service import Signer, signer

ACCESS_KEY = "AKIALABLABLABLABLAB1"
SECRET_KEY = "lab-secret-key-canary-5f1e"
REGION = "us-east-1"
ACCOUNT = "123456789012"
INSTANCE_TYPE = "g4dn.xlarge"
BUCKET = "lab-artifacts"
PROFILE = "lab-instance"
TICK_S = 0.2
# What the client tokens of other people begin with.
DECOY = "decoy-"


@dataclass
class Lab:
    """The whole account. Fields may be changed at any time; `opened` makes one.

    `boot_s`, `agent_s` and `stop_s` are how long an instance is pending, until its agent is online, and shutting down.
    `visible_after_s` is how long a launch stays unknown to filters and ids, `forgotten_after_s` how long a terminated
    one is still shown. `ghosts` are shown by filters, and their ids are NotFound. `ahead_s` sets the lab's clock
    forward for dead-man timers, schedules and presigned URLs. `denied` are permissions that the caller lacks
    (`ec2:RunInstances`).
    """

    folder: Path
    region: str = REGION
    account: str = ACCOUNT
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    has_guests: bool = True
    boot_s: float = 0.3
    agent_s: float = 0.3
    stop_s: float = 0.5
    visible_after_s: float = 0.0
    forgotten_after_s: float = 3_600.0
    ahead_s: float = 0.0
    agent_version: str = AGENT_VERSION
    is_throttling: bool = True
    quota: dict[str, float] = field(default_factory=lambda: {"L-DB2E81BA": 512.0, "L-1216C47A": 512.0})
    capacity: dict[str, int] = field(default_factory=dict)
    reservations: dict[str, int] = field(default_factory=dict)
    dies_in_pending: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)
    document_changes: dict[str, Any] = field(default_factory=dict)
    bedrock_models: list[dict[str, Any]] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    calls: list[Call] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    vcpus_used_max: int = 0
    url: str = ""
    subnet_ids: list[str] = field(default_factory=list)
    ami_id: str = ""
    security_group_id: str = ""
    buckets: dict[str, Bucket] = field(default_factory=buckets_of_ec2)

    def __post_init__(self) -> None:
        self.machines = Machines(self)
        self.sessions = Sessions(self)
        self.schedules = Schedules(self)
        self.signer: Signer = signer(self.region)
        self.plugin = StandIn.installed(_made(self.folder / "bin"))
        self.shutdown_script = self.folder / "shutdown.py"

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, *, has_guests: bool = True, **settings: Any) -> Iterator[Lab]:
        """An account with everything that a batch needs, until the block ends; then every guest is ended."""
        lab = cls(_made(folder), has_guests=has_guests, **settings)
        with _serving(lab):
            _furnish(lab)
            lab.calls.clear()
            stop = threading.Event()
            ticking = threading.Thread(target=lab._tick, args=(stop,), daemon=True)
            ticking.start()
            try:
                yield lab
            finally:
                stop.set()
                ticking.join()
                lab.machines.close()

    @property
    def environment(self) -> dict[str, str]:
        """What a controller's process needs to find this account, and no other."""
        return {
            "PATH": f"{self.plugin.folder}{os.pathsep}{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "HOME": str(_made(self.folder / "home")),
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(self.folder / "no-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "no-credentials"),
        }

    def host_config(self, driver: str = "paper", **changes: Any) -> dict[str, Any]:
        """The `host` of a config that plays here."""
        return {
            "kind": "ec2",
            "region": self.region,
            "ami_id": self.ami_id,
            "instance_type": INSTANCE_TYPE,
            "subnet_ids": self.subnet_ids,
            "security_group_id": self.security_group_id,
            "instance_profile": PROFILE,
            "artifact_bucket": BUCKET,
            "identity_certificate": str(self.folder / "identity.pem"),
            "driver": driver,
            **changes,
        }

    def client(self, service: str, config: Any = None) -> Any:
        """A plain client of boto3 for this account, with the lab's own keys."""
        return _session().client(service, region_name=self.region, endpoint_url=self.url, config=config)

    def note(self, call: Call, status: int | None) -> None:
        """Add to the journal."""
        if self.is_decoys(call):
            return
        with self.lock:
            self.calls.append(replace(call, status=status))

    def is_decoys(self, call: Call) -> bool:
        """True for launches of decoys: nothing goes wrong with them, and the journal does not hold them."""
        return (call.client_token or "").startswith(DECOY)

    def called(self, action: str) -> list[Call]:
        """Calls of one action, without dry runs."""
        with self.lock:
            return [call for call in self.calls if call.action == action and not call.is_dry_run]

    def mutating_calls(self) -> list[str]:
        """What a plan must not do."""
        with self.lock:
            return [call.action for call in self.calls if call.is_mutating]

    def alive(self) -> list[str]:
        """Instances that cost money, decoys among them."""
        return self.machines.alive()

    def double_launches(self) -> list[str]:
        """Hosts that had two instances alive at the same time, by their host ids."""
        return self.machines.twice_alive()

    def decoy(self, *, tags: dict[str, str], is_ended: bool = False) -> str:
        """An instance of somebody else with these tags. Returns its id."""
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        made = self.client("ec2").run_instances(
            ImageId=self.ami_id,
            InstanceType="t3.micro",
            MinCount=1,
            MaxCount=1,
            SubnetId=self.subnet_ids[0],
            ClientToken=f"{DECOY}{len(self.machines.all)}",
            **({"TagSpecifications": [{"ResourceType": "instance", "Tags": listed}]} if listed else {}),
        )
        instance_id = str(made["Instances"][0]["InstanceId"])
        if is_ended:
            self.machines.shut_down(instance_id)
        return instance_id

    def decoys(self, tags: dict[str, str], *, each: int = 1) -> list[str]:
        """Instances that only look like those with these tags, `each` of every kind. Returns the ids.

        Another owner's, a sibling batch's, one with exactly these tags and in no ledger, one that was just ended, a
        ghost, and one without a tag. Throttling does not count them, and the journal does not hold them.
        """
        made = []
        for _ in range(each):
            made.append(self.decoy(tags={**tags, "Owner": "somebody-else"}))
            made.append(self.decoy(tags={**tags, "BatchId": f"{tags.get('BatchId', '')}-sibling"}))
            made.append(self.decoy(tags=tags))
            made.append(self.decoy(tags=tags, is_ended=True))
            made.append(self.decoy(tags=tags))
            self.machines.haunt(made[-1])
            made.append(self.decoy(tags={}))
        return made

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(TICK_S):
            self.machines.step()
            self.machines.watch_guests()
            self.schedules.fire((datetime.now(UTC) + timedelta(seconds=self.ahead_s)).strftime("%Y-%m-%dT%H:%M:%S"))


@cache
def _session() -> Any:
    """Made once: a session reads AWS's descriptions of its services anew."""
    import boto3

    return boto3.Session(ACCESS_KEY, SECRET_KEY)


@contextmanager
def _serving(lab: Lab) -> Iterator[None]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: Any) -> None:
            """Quiet."""

    moto_shims.opened(lab)
    application = Wire(lab, DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    lab.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _furnish(lab: Lab) -> None:
    """What an operator prepares once: network, image, profile, bucket, certificate."""
    from moto.backends import get_backend
    from moto.core.base_backend import BackendDict
    from moto.core.models import DEFAULT_ACCOUNT_ID

    assert DEFAULT_ACCOUNT_ID == lab.account
    for service in ("ec2", "iam", "s3", "sts"):
        backends: BackendDict[Any] = get_backend(service)
        backends.reset()
    ec2, iam = lab.client("ec2"), lab.client("iam")
    vpc_id = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    for number, letter in enumerate("abc"):
        made = ec2.create_subnet(
            VpcId=vpc_id, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=f"{lab.region}{letter}"
        )
        lab.subnet_ids.append(made["Subnet"]["SubnetId"])
    lab.security_group_id = ec2.create_security_group(GroupName="lab", Description="lab", VpcId=vpc_id)["GroupId"]
    lab.ami_id = ec2.register_image(Name="lab")["ImageId"]
    image = get_backend("ec2")[lab.account][lab.region].amis[lab.ami_id]
    image.architecture, image.state, image.root_device_name = "x86_64", "available", "/dev/sda1"
    policy = '{"Version": "2012-10-17", "Statement": []}'
    iam.create_role(RoleName=PROFILE, AssumeRolePolicyDocument=policy)
    iam.create_instance_profile(InstanceProfileName=PROFILE)
    iam.add_role_to_instance_profile(InstanceProfileName=PROFILE, RoleName=PROFILE)
    lab.client("s3").create_bucket(Bucket=BUCKET)
    (lab.folder / "identity.pem").write_bytes(lab.signer.certificate)
    lab.shutdown_script.write_text(
        "import sys, urllib.request\n"
        f"urllib.request.urlopen({lab.url!r} + '/lab/shutdown/' + sys.argv[1], data=b'', timeout=5)\n"
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
