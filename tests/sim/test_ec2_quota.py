"""A hundred rollouts while the account's vCPU limit moves and zones run out of machines: in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest

from contract.phases import Outcome, Phase
from contract.run_dir import BatchDir
from supervisor.batch import execute
from supervisor.cloud.ports import FaultKind, LaunchOrder
from tests.batch_fakes import in_virtual_time, prepare, quiet_console, read_state, virtual_ambient
from tests.ec2_world import Ec2World, ec2_config, ec2_host
from tests.fake_cloud import FakeCloud, Trouble, fault

ROLLOUTS = 100
VCPUS = 4
# A rollout plays for twenty minutes: 20 turns of a minute.
TURNS, TURN_S = 20, 60.0
# When the limit becomes how many instances; between two of them nobody is turned out.
LIMITS = ((0.0, 40), (1_000.0, 25), (3_000.0, 30), (4_500.0, 12), (6_000.0, 20))
# How many launches meet a zone without machines.
FULL_SHARE = 0.15
LOOK_S = 5.0
SEED = 1


@dataclass(slots=True)
class Use:
    """Seconds of instances that the limit had room for while rollouts waited, and that were used."""

    offered_s: float = 0.0
    used_s: float = 0.0


@pytest.mark.slow
def test_a_limit_that_moves_costs_no_rollout_and_is_used(tmp_path: Path) -> None:
    """No quota rejection reaches an outcome, EC2's rates are kept, and what the limit allows is used."""
    cloud = FakeCloud(quota_vcpus=LIMITS[0][1] * VCPUS, shutdown_s=30, lag_s=1.0)
    cloud.trouble = sometimes_full(cloud, random.Random(SEED))
    world = Ec2World(cloud=cloud, turns=TURNS, turn_s=TURN_S)
    host = ec2_host(lifetime_s=86_400)
    prepared = prepare(tmp_path, count=ROLLOUTS, max_concurrency=ROLLOUTS, host=host, mode="shared")
    batch_dir = BatchDir(tmp_path / "out")
    ambient = replace(virtual_ambient(), chance=random.Random(SEED))
    use = Use()

    async def story() -> int:
        async with anyio.create_task_group() as group:
            equipment = world.late_equipment(
                ec2_config(lifetime_s=86_400), group, ledger_path=batch_dir.hosts, ambient=ambient
            )
            group.start_soon(move_the_limit, cloud)
            group.start_soon(watch, cloud, batch_dir, use)
            code = await execute(
                prepared, batch_dir, rerun_of=None, console=quiet_console(), ambient=ambient, equipment=equipment
            )
            group.cancel_scope.cancel()
        return code

    code = in_virtual_time(story, seed=SEED)

    assert 0 == code
    assert {Outcome.SCORED: ROLLOUTS} == Counter(row.outcome for row in read_state(batch_dir).rollouts)
    outcomes = cloud.outcomes()
    assert 0 < outcomes["RunInstances:InsufficientInstanceCapacity"]
    assert 0 == sum(count for name, count in outcomes.items() if name.endswith(":RequestLimitExceeded"))
    assert [] == cloud.doubles
    print(f"{use.used_s / use.offered_s:.4f} of the limit was used; {dict(outcomes)}")
    assert use.used_s / use.offered_s >= 0.95


def sometimes_full(cloud: FakeCloud, chance: random.Random) -> Callable[[str, object], Trouble | None]:
    """Launches that meet a zone without machines."""

    def trouble(action: str, order: object) -> Trouble | None:
        if isinstance(order, LaunchOrder) and not cloud.has_launched(order) and chance.random() < FULL_SHARE:
            return Trouble(fault(FaultKind.CAPACITY, action))
        return None

    return trouble


async def move_the_limit(cloud: FakeCloud) -> None:
    for at_s, instances in LIMITS:
        await anyio.sleep(at_s - cloud.now_s())
        cloud.quota_vcpus = instances * VCPUS


async def watch(cloud: FakeCloud, batch_dir: BatchDir, use: Use) -> None:
    """Compare use and limit while rollouts wait, once the first wave is launched, which EC2's rate bounds."""
    await anyio.sleep(LIMITS[0][1] / 1.5)
    while True:
        await anyio.sleep(LOOK_S)
        if any(row.phase is Phase.QUEUED for row in read_state(batch_dir).rollouts):
            use.offered_s += cloud.quota_vcpus * LOOK_S
            use.used_s += min(cloud.used_vcpus(), cloud.quota_vcpus) * LOOK_S
