"""The published policy allows what whole batches were seen to ask, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.commands import ROOT, run_command, write_config
from tests.lab.lab import Lab

pytestmark = pytest.mark.slow

# Permissions that no request of the controller shows: what AWS checks behind another call, and the plugin's own calls.
BEHIND = {
    "ec2:CreateTags": "tags that are given with RunInstances",
    "iam:PassRole": "the roles of instances and schedules",
    "ssm:ResumeSession": "the plugin, when its connection is made anew",
    "ssm:DescribeSessions": "a session whose id was lost on its way",
    "ssmmessages:OpenDataChannel": "the plugin, when it opens a tunnel",
    "servicequotas:GetAWSDefaultServiceQuota": "accounts without a quota of their own",
}
# The permission that a call needs where it has another name.
PERMISSIONS = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:HeadObject": "s3:GetObject",
}


def actions_of(policy: Path) -> set[str]:
    """Every action that a policy allows."""
    found: set[str] = set()
    for statement in json.loads(policy.read_text())["Statement"]:
        actions = statement["Action"]
        found |= {actions} if isinstance(actions, str) else set(actions)
    return found


def test_the_policy_is_what_a_batch_asks_for(tmp_path: Path) -> None:
    """An operator who grants exactly this can run batches, and grants nothing in vain."""
    with Lab.opened(tmp_path) as lab:
        role = f"arn:aws:iam::{lab.account}:role/expiry"
        config = write_config(lab, count=2, host={"expiry_role_arn": role})
        played = run_command(lab, "batch", "--config", str(config), "--execute", "--output-dir", str(tmp_path / "out"))
        reconciled = run_command(lab, "reconcile", "--run-dir", str(tmp_path / "out"))
        asked = {f"{call.service}:{call.action}" for call in lab.calls}

    assert 0 == played.returncode, played.stderr
    assert 0 == reconciled.returncode, reconciled.stderr
    needed = {PERMISSIONS.get(action, action) for action in asked}
    assert needed | BEHIND.keys() == actions_of(ROOT / "docs" / "iam" / "controller.json")


def test_the_expiry_role_may_only_end_instances() -> None:
    """A schedule acts without anybody watching."""
    assert {"ec2:TerminateInstances"} == actions_of(ROOT / "docs" / "iam" / "expiry-role.json")
