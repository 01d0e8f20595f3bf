"""The real command on the lab: answers are lost, instances hide, decoys stand around, and all ends as it must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.hosts.ec2_names import BATCH_TAG, OWNER_TAG
from tests.lab.commands import run_command, write_config
from tests.lab.lab import Lab

pytestmark = pytest.mark.slow

OWNER = "lab-owner"


def test_a_cloud_that_loses_answers_gets_each_host_once(tmp_path: Path) -> None:
    """Launch, session and ending are carried out and their answers lost; what was launched is not visible at once."""
    with Lab.opened(tmp_path, visible_after_s=1.5) as lab:
        decoys = lab.decoys({OWNER_TAG: OWNER})
        for action in ("RunInstances", "StartSession", "TerminateInstances"):
            lab.faults.add(action, "drop_after")
        config = write_config(lab, count=2, host={"owner": OWNER})

        played = run_command(lab, "batch", "--config", str(config), "--execute", "--output-dir", str(tmp_path / "out"))

        ours = [machine for machine in lab.machines.all.values() if machine.start is not None]
        assert 0 == played.returncode, played.stderr
        assert 2 == len(ours)
        assert [] == lab.double_launches()
        ended = {name for call in lab.called("TerminateSession") for name in call.resources}
        # Also the one whose id nobody was told.
        assert lab.sessions.all.keys() == ended
        assert set(lab.alive()) < set(decoys)
        assert 4 == len(lab.alive())
        named = {instance_id for call in lab.called("TerminateInstances") for instance_id in call.resources}
        assert {machine.instance_id for machine in ours} == named


def test_decoys_of_the_very_batch_are_left_alone(tmp_path: Path) -> None:
    """Tags can be copied: what the ledger does not prove is reported, and nobody ends it."""
    with Lab.opened(tmp_path) as lab:
        config, folder = write_config(lab, host={"owner": OWNER}), tmp_path / "out"
        played = run_command(lab, "batch", "--config", str(config), "--execute", "--output-dir", str(folder))
        batch_id = json.loads((folder / "batch-state.json").read_text())["batch_id"]
        lab.decoys({BATCH_TAG: batch_id, OWNER_TAG: OWNER}, each=2)
        before, endings = lab.alive(), len(lab.called("TerminateInstances"))

        reconciled = run_command(lab, "reconcile", "--run-dir", str(folder), "--execute")

        assert 0 == played.returncode, played.stderr
        assert 8 == len(before)
        assert before == lab.alive()
        assert endings == len(lab.called("TerminateInstances")), reconciled.stderr
