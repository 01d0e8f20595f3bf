"""A world of cloud hosts: tunnels, relays, brokers with signed identity, tokens, all on one `FakeCloud`."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from contract.ambient import Ambient
from contract.broker_api import ErrorCode, Identity, InstanceProof
from contract.config import Ec2HostConfig
from contract.errors import DiskError, HostError
from contract.phases import Cause
from supervisor.cloud.ports import InstanceState
from supervisor.equipment import Equipment
from supervisor.hosts.ec2 import Ec2Hosts
from supervisor.hosts.ec2_timing import timing_of
from supervisor.hosts.lease import Host, HostBroker, HostOrder, LostState
from supervisor.ledger import HostHistory, read_ledger
from supervisor.quota_gate import QuotaGate
from tests.batch_fakes import (
    FakeEvaluator,
    FakeHostBroker,
    FakeMachineHost,
    FakePilots,
    FakeSlots,
    FakeUploads,
    FakeWorld,
    broker_error,
    virtual_ambient,
)
from tests.fake_cloud import START, CloudBridge, FakeCloud

T = TypeVar("T")
ACCOUNT = "123456789012"
REGION = "us-east-1"
BATCH_ID = "b-test"


def ec2_host(**changes: Any) -> dict[str, Any]:
    """A config's `host` object, with short times."""
    return {
        "kind": "ec2",
        "region": REGION,
        "ami_id": "ami-0123456789abcdef0",
        "instance_type": "g4dn.xlarge",
        "subnet_ids": ["subnet-0000000a", "subnet-0000000b"],
        "security_group_id": "sg-0123456789abcdef0",
        "instance_profile": "bench",
        "artifact_bucket": "bench-artifacts",
        "identity_certificate": "certificate.pem",
        "driver": "librecad",
        "owner": "me",
        "lease_s": 300,
        "lifetime_s": 3600,
        "boot_s": 300,
        **changes,
    }


def ec2_config(**changes: Any) -> Ec2HostConfig:
    return Ec2HostConfig.model_validate(ec2_host(**changes))


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs identity documents as a Region does. `pem` is its certificate."""

    key: rsa.RSAPrivateKey
    pem: bytes

    def sign(self, document: str) -> str:
        return base64.b64encode(self.key.sign(document.encode(), PKCS1v15(), SHA256())).decode()


@cache
def signer() -> Signer:
    """One key for the whole test run: making one takes a tenth of a second."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "us-east-1")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(START)
        .not_valid_after(START + timedelta(days=36_500))
        .sign(key, SHA256())
    )
    return Signer(key, certificate.public_bytes(Encoding.PEM))


@dataclass(slots=True)
class MemoryTokens:
    """A keyring in virtual time. What a dead controller stores goes nowhere."""

    cloud: FakeCloud
    kept: dict[str, tuple[SecretStr, float]] = field(default_factory=dict)

    def keep(self, host_id: str, token: SecretStr, *, lifetime_s: float) -> bool:
        if not self.cloud.controller.is_dead:
            self.kept[host_id] = (token, self.cloud.now_s() + lifetime_s)
        return True

    def recall(self, host_id: str) -> SecretStr | None:
        token, until_s = self.kept.get(host_id, (None, 0.0))
        return token if self.cloud.now_s() < until_s else None

    def forget(self, host_id: str) -> None:
        if not self.cloud.controller.is_dead:
            self.kept.pop(host_id, None)


class FakeRelay:
    """A port that is only a number."""

    def __init__(self, world: Ec2World) -> None:
        world.ports += 1
        self.port = world.ports
        self._world = world
        world.relays[self.port] = self
        self.target: int | None = None
        self.closed = anyio.Event()

    def point_to(self, port: int | None) -> None:
        self.target = port

    async def serve(self) -> None:
        await self.closed.wait()

    def close(self) -> None:
        self.closed.set()
        self._world.relays.pop(self.port, None)


class FakeTunnel:
    """Opens once the guest's broker is up; a broker comes up with the SSM agent."""

    def __init__(self, world: Ec2World, host: Host, instance_id: str) -> None:
        self._world = world
        self._host = host
        self._instance_id = instance_id
        self._broken: anyio.Event | None = None
        self.is_cut_off = False

    async def open(self) -> int:
        world = self._world
        await self.close()
        await world.step("tunnel", self._host.rollout_id)
        if not world.is_running(self._instance_id):
            raise HostError("the instance is not there", cause=Cause.TUNNEL)
        world.boot(self._host)
        world.ports += 1
        world.tunnels[world.ports] = self
        world.opened.append(self._host.host_id)
        self._broken = anyio.Event()
        return world.ports

    async def wait_broken(self) -> None:
        if self._broken is not None:
            await self._broken.wait()

    async def healthy(self) -> bool:
        await anyio.sleep(0.1)
        is_open = self._broken is not None and not self._broken.is_set()
        return is_open and self._world.is_running(self._instance_id)

    async def close(self) -> None:
        if self._broken is not None:
            self._broken.set()
            self._world.closed.append(self._host.host_id)
        self._broken = None

    def break_down(self) -> None:
        """The plugin dies."""
        if self._broken is not None:
            self._broken.set()


class Ec2Broker(FakeHostBroker):
    """A broker on an instance: behind its relay, with a signed document, feeding the dead-man timer."""

    def __init__(self, world: Ec2World, host: Host, base_url: str) -> None:
        super().__init__(world, host)
        self._ec2 = world
        self._base_url = base_url

    async def identity(self) -> Identity:
        host = await self._at("identity")
        document = self._ec2.document_of(host.host_id)
        return Identity(
            nonce="n",
            host_id=host.host_id,
            boot_id=host.boot_id,
            broker_version="1.0",
            started_at="",
            proof="0" * 64,
            instance=InstanceProof(
                document=document,
                signature=signer().sign(document),
                booted_at=self._ec2.booted_at(host.host_id),
            ),
        )

    async def _at(self, step: str) -> FakeMachineHost:
        port = int(self._base_url.rpartition(":")[2])
        relay = self._ec2.relays.get(port)
        tunnel = None if relay is None or relay.target is None else self._ec2.tunnels.get(relay.target)
        if tunnel is None or not await tunnel.healthy():
            raise broker_error(ErrorCode.UNREACHABLE)
        return await super()._at(step)


class DiskBridge:
    """Does disk work where it stands, for as long as its controller lives."""

    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    async def call(self, work: Callable[[], T]) -> T:
        await anyio.lowlevel.checkpoint()
        self._live()
        result = work()
        self._live()
        return result

    def _live(self) -> None:
        self._cloud.controller.deed()
        if self._cloud.controller.is_dead:
            raise DiskError("the controller is dead", hint="It cannot write.")


@dataclass(slots=True)
class Ec2World(FakeWorld):
    """Everything outside of the supervisor, with instances for hosts. `alive` has the guests whose brokers run."""

    cloud: FakeCloud = field(default_factory=FakeCloud)
    ports: int = 40_000
    relays: dict[int, FakeRelay] = field(default_factory=dict)
    tunnels: dict[int, FakeTunnel] = field(default_factory=dict)
    # Host ids, once for each tunnel.
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    tokens: MemoryTokens = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = MemoryTokens(self.cloud)

    async def step(self, name: str, rollout_id: str) -> None:
        if self.cloud.controller.is_dead:
            # Pilots and calls to brokers die with the controller.
            await anyio.sleep_forever()
        await FakeWorld.step(self, name, rollout_id)
        self._settle()
        if name in {"identity", "lease", "reset", "heartbeat", "health", "turn", "save", "evaluate"}:
            for host in self.alive.values():
                if host.rollout_id == rollout_id:
                    self.cloud.hear(host.host_id)

    def _settle(self) -> None:
        for host in tuple(self.alive.values()):
            machine = self.cloud.machine_of(host.host_id)
            if machine is None or not self.is_running(machine.instance_id):
                host.ended.set()
                del self.alive[host.host_id]

    def is_running(self, instance_id: str) -> bool:
        machine = self.cloud.machines[instance_id]
        return machine.state_at(self.cloud.now_s()) is InstanceState.RUNNING

    def boot(self, host: Host) -> None:
        if host.host_id not in self.alive:
            self.alive[host.host_id] = FakeMachineHost(
                host.host_id, host.rollout_id, f"boot-{host.host_id}", host.token
            )
            self.launched.append(host.host_id)

    def document_of(self, host_id: str) -> str:
        machine = self.cloud.machine_of(host_id)
        assert machine is not None
        return json.dumps(
            {
                "instanceId": machine.instance_id,
                "imageId": machine.order.image_id,
                "accountId": ACCOUNT,
                "region": REGION,
                "pendingTime": (START + timedelta(seconds=machine.launched_s)).isoformat(),
            }
        )

    def booted_at(self, host_id: str) -> str:
        machine = self.cloud.machine_of(host_id)
        assert machine is not None
        return (START + timedelta(seconds=machine.running_s)).isoformat()

    @asynccontextmanager
    async def hosts(
        self,
        config: Ec2HostConfig,
        *,
        ledger: Callable[[], Mapping[str, HostHistory]] = dict,
        batch_id: str = BATCH_ID,
        ambient: Ambient | None = None,
        on_quota_refused: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[Ec2Hosts]:
        async with Ec2Hosts.opened(
            config,
            cloud=self.cloud,
            cloud_bridge=CloudBridge(self.cloud),
            tunnels=lambda host, instance_id, say: FakeTunnel(self, host, instance_id),
            relays=lambda say: FakeRelay(self),
            certificate=signer().pem,
            broker_version="1.0",
            account=ACCOUNT,
            tokens=self.tokens,
            ledger=ledger,
            batch_id=batch_id,
            ambient=ambient or virtual_ambient(),
            on_quota_refused=on_quota_refused,
        ) as hosts:
            yield hosts

    def late_equipment(
        self, config: Ec2HostConfig, group: anyio.abc.TaskGroup, *, ledger_path: Path, ambient: Ambient
    ) -> Equipment:
        """All that a batch works with, on this world's cloud; hosts and gate are opened once its id is known.

        `group` is where they live until it is cancelled.
        """
        late = _Late(self, config, group, ledger_path, ambient)
        return Equipment(
            hosts=LateHosts(late),
            reach=lambda host, base_url: Ec2Broker(self, host, base_url),
            reach_for_heartbeat=lambda host, base_url: Ec2Broker(self, host, base_url),
            pilots=FakePilots(self),
            evaluator=FakeEvaluator(self),
            uploads=FakeUploads(),
            aws=None,
            slots=LateSlots(late),
            disk=DiskBridge(self.cloud),
            ambient=ambient,
        )


class _Late:
    """Opens hosts and gate of a batch when its id is heard for the first time."""

    def __init__(
        self, world: Ec2World, config: Ec2HostConfig, group: anyio.abc.TaskGroup, ledger_path: Path, ambient: Ambient
    ) -> None:
        self.world = world
        self.config = config
        self._group = group
        self._ledger_path = ledger_path
        self._ambient = ambient
        self._opening = anyio.Lock()
        self.inner: Ec2Hosts | None = None
        self._gate: QuotaGate | None = None

    async def hosts(self, batch_id: str) -> Ec2Hosts:
        async with self._opening:
            if self.inner is None:
                self.inner = await self._group.start(self._keep, batch_id)
            assert self.inner is not None
            return self.inner

    def gate(self, batch_id: str) -> QuotaGate:
        if self._gate is None:
            cloud = self.world.cloud
            self._gate = QuotaGate(
                FakeSlots(self.world),
                self.config,
                cloud=cloud,
                bridge=CloudBridge(cloud),
                batch_id=batch_id,
                ambient=self._ambient,
            )
        return self._gate

    async def _keep(self, batch_id: str, *, task_status: anyio.abc.TaskStatus[Ec2Hosts]) -> None:
        async with self.world.hosts(
            self.config,
            ledger=lambda: read_ledger(self._ledger_path),
            batch_id=batch_id,
            ambient=self._ambient,
            on_quota_refused=self.gate(batch_id).expire,
        ) as hosts:
            task_status.started(hosts)
            await anyio.sleep_forever()


class LateSlots:
    """The quota gate of a batch whose id is not known yet."""

    def __init__(self, late: _Late) -> None:
        self._late = late

    def slot(self, needs: Any, *, batch_id: str, rollout_id: str, has_host: bool = False, on_wait: Any) -> Any:
        gate = self._late.gate(batch_id)
        return gate.slot(needs, batch_id=batch_id, rollout_id=rollout_id, has_host=has_host, on_wait=on_wait)


class LateHosts:
    """The `HostProvider` of a batch whose id is not known yet."""

    def __init__(self, late: _Late) -> None:
        self.kind: Literal["local", "ec2"] = "ec2"
        self.extension = "dxf"
        self.timing = timing_of(late.config)
        self._late = late

    @property
    def _inner(self) -> Ec2Hosts:
        assert self._late.inner is not None, "something was launched or found again before"
        return self._late.inner

    async def launch(self, order: HostOrder) -> Host:
        return await (await self._late.hosts(order.batch_id)).launch(order)

    async def open_tunnel(self, host: Host) -> str:
        return await self._inner.open_tunnel(host)

    async def prove(self, host: Host, broker: HostBroker) -> Host:
        return await self._inner.prove(host, broker)

    async def wait_tunnel_broken(self, host_id: str) -> None:
        await self._inner.wait_tunnel_broken(host_id)

    async def mend_tunnel(self, host_id: str, *, misses: int) -> None:
        await self._inner.mend_tunnel(host_id, misses=misses)

    async def close_tunnel(self, host_id: str) -> None:
        await self._inner.close_tunnel(host_id)

    async def wait_ended(self, host_id: str) -> str:
        return await self._inner.wait_ended(host_id)

    async def wait_lost(self, host_id: str) -> LostState:
        return await self._inner.wait_lost(host_id)

    def has_ended(self, host_id: str) -> bool:
        return self._inner.has_ended(host_id)

    async def terminate(self, host_id: str, *, batch_id: str) -> None:
        await (await self._late.hosts(batch_id)).terminate(host_id, batch_id=batch_id)

    async def terminate_all(self, host_ids: Collection[str], *, batch_id: str) -> None:
        await (await self._late.hosts(batch_id)).terminate_all(host_ids, batch_id=batch_id)

    async def reattach(self, history: HostHistory, *, batch_id: str) -> Host | None:
        return await (await self._late.hosts(batch_id)).reattach(history, batch_id=batch_id)

    def renew(self, host: Host) -> None:
        self._inner.renew(host)

    async def find_leftovers(self, host_ids: Collection[str], *, batch_id: str) -> dict[str, str]:
        return await (await self._late.hosts(batch_id)).find_leftovers(host_ids, batch_id=batch_id)


@dataclass(slots=True)
class Notes:
    """A ledger in memory, and what was said."""

    lines: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def order(self, rollout_id: str = "r-0", host_id: str | None = None, batch_id: str = BATCH_ID) -> HostOrder:
        name = host_id or f"h-{secrets.token_hex(6)}"

        async def note(event: str, detail: dict[str, Any]) -> None:
            await anyio.lowlevel.checkpoint()
            self.lines.append((name, event, detail))

        return HostOrder(name, batch_id, rollout_id, Path("/dev/null"), note, self.said.append)

    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]

    def tokens(self) -> list[str]:
        return [detail["client_token"] for _, event, detail in self.lines if event == "intent"]

    def subnets(self) -> list[str]:
        return [detail["subnet_id"] for _, event, detail in self.lines if event == "intent"]

    def ledger(self) -> dict[str, HostHistory]:
        """The hosts as `read_ledger` would give them."""
        histories: dict[str, HostHistory] = {}
        for host_id, event, detail in self.lines:
            known = histories.get(host_id) or HostHistory(host_id, "r-0", "ec2", ())
            tokens, ids = known.client_tokens, known.instance_ids
            token, instance_id = detail.get("client_token"), detail.get("instance_id")
            histories[host_id] = replace(
                known,
                events=(*known.events, event),
                detail={**known.detail, **detail},
                client_tokens=(*tokens, token) if token and token not in tokens else tokens,
                instance_ids=(*ids, instance_id) if instance_id and instance_id not in ids else ids,
            )
        return histories


async def settle(hosts: Ec2Hosts, host_id: str) -> None:
    """End a host as the sandbox does: what cannot be ended stays for the reconciler."""
    with anyio.CancelScope(shield=True), suppress(HostError):
        await hosts.terminate(host_id, batch_id=BATCH_ID)
