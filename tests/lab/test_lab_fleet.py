"""A whole batch that wants more instances than its account has, by the command that an operator types."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from contract.batch_records import BatchState
from contract.phases import Outcome
from contract.records import read_record
from contract.run_dir import BatchDir
from tests.lab.commands import run_command, write_config
from tests.lab.faults import Fault
from tests.lab.fleet import FleetLab

# More than a minute; `tests/sim/test_ec2_quota.py` shows the same in virtual time.
pytestmark = pytest.mark.e2e
ROLLOUTS = 30
VCPUS = 4
QUOTA = "L-DB2E81BA"
FULL = Fault("error", "InsufficientInstanceCapacity", 500, "We currently do not have sufficient capacity.")
REFUSED = Fault("error", "VcpuLimitExceeded", 400, "You have requested more vCPU capacity than your current limit.")


class Account:
    """Its limit is that of the plan until the batch asks for it, then eight instances, later five, at last ten.

    One launch is refused although there was room a moment ago, and each fourth finds its zone without machines.
    """

    def __init__(self, lab: FleetLab) -> None:
        self._lab = lab
        self._quota_reads = itertools.count(1)
        self._launches = itertools.count(1)
        self._is_playing = False

    def trouble(self, action: str) -> Fault | None:
        """What the call that is here now meets."""
        if action == "GetServiceQuota" and next(self._quota_reads) == 2:
            self._is_playing = True
            self._limit(8)
        if action != "RunInstances" or not self._is_playing:
            return None
        match next(self._launches):
            case 6:
                return REFUSED
            case 12:
                self._limit(5)
            case 20:
                self._limit(10)
            case number if number % 4 == 0:
                return FULL
        return None

    def _limit(self, instances: int) -> None:
        self._lab.quota[QUOTA] = float(instances * VCPUS)


def test_a_quota_that_shrinks_costs_no_rollout(tmp_path: Path) -> None:
    """Refusals of quota and of capacity only delay: every rollout is scored, and nothing is left."""
    with FleetLab.of_paper(tmp_path / "lab") as lab:
        config = write_config(lab, count=ROLLOUTS)
        lab.faults.trouble = Account(lab).trouble
        arguments = ("batch", "--config", str(config), "--execute", "--mode", "shared")
        ran = run_command(lab, *arguments, "--output-dir", str(tmp_path / "out"), timeout_s=600)
        left, doubles, sessions = lab.alive(), lab.double_launches(), lab.sessions.open_ids()
        most, quota = lab.vcpus_used_max, lab.quota[QUOTA]

    state = read_record(BatchDir(tmp_path / "out").state, BatchState)
    outcomes = Counter(row.outcome for row in state.rollouts)
    assert ({Outcome.SCORED: ROLLOUTS}, 0) == (outcomes, ran.returncode), ran.stderr[-3000:]
    assert ([], [], []) == (left, doubles, sessions)
    assert 10 * VCPUS == quota
    # Whatever was asked for, there was never more than the limit.
    assert most <= 10 * VCPUS
