"""Real controllers and pilots of batches on instances are killed at seeded moments, and everything they own is found.

`scripts/kills_ec2.py --first SEED --count 1` plays one of these again, and any number of others.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from supervisor.keyring import KernelKeyring
from tests.lab.blows import Blow
from tests.lab.death_story import tell
from tests.lab.stories import Story, Told
from tests.seeds import few_and_more

REFUSED = 3
HAS_KEYRING = KernelKeyring().keep("h-probe", SecretStr("x"), lifetime_s=1)
# Undisturbed but for the one death that a test is about.
CALM = Story(
    seed=0,
    rollouts=2,
    mode="process",
    providers=("replay", "replay"),
    turns=20,
    rate=0.0,
    visible_after_s=0.0,
    quota_vcpus=512.0,
    blow=Blow("checkpoint", 3, "controller", (signal.SIGKILL,), how="after"),
    second=Blow("checkpoint", 8, "both", (signal.SIGKILL,), how="after"),
    aftermath="resume",
    waits_s=0.0,
    # However busy this machine is, the hosts outlive it.
    lease_s=3600.0,
)


@pytest.mark.parametrize("seed", few_and_more(2, 50))
def test_a_death_at_any_moment_leaves_no_machine_doubles_none_and_touches_no_stranger(
    tmp_path: Path, seed: int
) -> None:
    """What is left alive costs money for as long as nobody looks."""
    print(f"seed {seed}: scripts/kills_ec2.py --first {seed} --count 1")
    told = tell(seed, tmp_path)

    assert [] == told.broken


@pytest.mark.skipif(not HAS_KEYRING, reason="no kernel keyring here: a token dies with its controller")
@pytest.mark.parametrize(
    "mode", [pytest.param("process", marks=pytest.mark.e2e), pytest.param("shared", marks=pytest.mark.slow)]
)
def test_rollouts_on_instances_that_outlived_their_controller_go_on_exactly(tmp_path: Path, mode: str) -> None:
    """One drawing, with every line of the trace once and in order, although two controllers made it."""
    told = tell(0, tmp_path, story=replace(CALM, mode=mode))

    assert [] == told.broken
    assert [-signal.SIGKILL, 0, 0] == played(told)
    assert (2, 2, []) == (told.launched, told.continued, told.given_up)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_KEYRING, reason="no kernel keyring here: a token dies with its controller")
def test_rollouts_go_on_exactly_after_two_deaths(tmp_path: Path) -> None:
    """The second controller is killed with its pilots while it goes on; the third one ends what the first began."""
    told = tell(0, tmp_path, story=replace(CALM, aftermath="death, resume"))

    assert [] == told.broken
    assert [-signal.SIGKILL, -signal.SIGKILL, 0, 0] == played(told)
    assert (2, 2, []) == (told.launched, told.continued, told.given_up)


def played(told: Told) -> list[int]:
    """The exit statuses without plans that were refused because a busy machine could not ask everything in time."""
    return [code for code in told.codes if code != REFUSED]
