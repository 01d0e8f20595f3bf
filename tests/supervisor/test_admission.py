"""Admission is arithmetic: the same numbers admit the same hosts, and the answer names what limits it."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.admission import MIB, RESERVE_MEMORY_BYTES, HostNeeds, MachineCapacity, admit, host_needs

HOST_BYTES = 100 * MIB
NEEDS = HostNeeds(memory_bytes=HOST_BYTES, hosts_per_core=3)


def _machine(*, hosts_free: int = 100, hosts_total: int = 100, cores: int = 2) -> MachineCapacity:
    return MachineCapacity(
        memory_total_bytes=RESERVE_MEMORY_BYTES + hosts_total * HOST_BYTES,
        memory_available_bytes=RESERVE_MEMORY_BYTES + hosts_free * HOST_BYTES,
        cores=cores,
    )


@pytest.mark.parametrize(
    ("enabled", "concurrency", "capacity", "in_use", "admitted", "factor"),
    [
        (8, 2, _machine(), 0, 2, "max_concurrency"),
        (2, 8, _machine(), 0, 2, "enabled_rollouts"),
        (2, 2, _machine(), 0, 2, "enabled_rollouts"),
        (8, 8, _machine(hosts_free=3), 0, 3, "memory"),
        (8, 8, _machine(), 0, 6, "cores"),
        (8, 4, _machine(), 4, 2, "in_use"),
        (8, 4, _machine(), 2, 4, "max_concurrency"),
        (8, 8, _machine(), 60, 0, "in_use"),
        (8, 8, _machine(hosts_free=0), 5, 0, "memory"),
        (0, 8, _machine(), 0, 0, "enabled_rollouts"),
    ],
)
def test_the_smallest_number_wins_and_is_named(
    enabled: int, concurrency: int, capacity: MachineCapacity, in_use: int, admitted: int, factor: str
) -> None:
    """An operator who wants more must know what to change: the config, the machine, or the other batch."""
    admission = admit(
        enabled_rollouts=enabled, max_concurrency=concurrency, capacity=capacity, needs=NEEDS, in_use=in_use
    )

    assert (admitted, factor) == (admission.admitted, admission.limiting_factor)
    assert enabled - admitted == admission.queued
    assert admission.can_ever_fit


def test_memory_that_is_short_now_is_not_memory_that_can_never_do() -> None:
    """Another batch gives its memory back; a small machine does not grow."""
    needs = {"enabled_rollouts": 1, "max_concurrency": 1, "needs": NEEDS, "in_use": 0}

    assert admit(capacity=_machine(hosts_free=0), **needs).can_ever_fit  # type: ignore[arg-type]
    assert not admit(capacity=_machine(hosts_free=0, hosts_total=0), **needs).can_ever_fit  # type: ignore[arg-type]


def test_a_host_costs_less_without_a_desktop_and_without_a_pilot_process() -> None:
    """The paper driver and the shared mode exist to be cheap."""
    librecad = host_needs(driver="librecad", mode="process", scripted=True)
    shared = host_needs(driver="librecad", mode="shared", scripted=True)
    paper = host_needs(driver="paper", mode="shared", scripted=True)
    paced = host_needs(driver="librecad", mode="process", scripted=False)

    assert librecad.memory_bytes > shared.memory_bytes > paper.memory_bytes
    assert librecad.hosts_per_core < paced.hosts_per_core < paper.hosts_per_core


def test_a_plan_shows_what_waits_and_why(plan_world: Any) -> None:
    """Rollouts that do not fit beside another batch wait; that is no issue."""
    plan_world.machine.cores = 1
    plan_world.machine.in_use = 3

    ran = plan_world.plan()

    assert [] == ran.codes
    admission = ran.plan["admission"]
    assert (2, 0, 3, "in_use") == tuple(admission[name] for name in ("wanted", "admitted", "queued", "limiting_factor"))


def test_a_batch_waits_for_memory_that_another_batch_holds(plan_world: Any) -> None:
    """Only memory that nobody of ours will give back is an issue."""
    plan_world.machine.in_use = 1
    plan_world.machine.memory_available_bytes = RESERVE_MEMORY_BYTES

    assert [] == plan_world.plan().codes
