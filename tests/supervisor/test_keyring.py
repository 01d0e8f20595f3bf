"""The kernel's keyring: a token that outlives its controller for a while, and no file."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from pydantic import SecretStr

from supervisor.hosts.lease import new_host_id
from supervisor.keyring import KernelKeyring

TOKEN = SecretStr("canary-broker-token-keyring")


@pytest.fixture
def keyring() -> KernelKeyring:
    made = KernelKeyring()
    probe = new_host_id()
    if not made.keep(probe, TOKEN, lifetime_s=5):
        pytest.skip("this kernel or container has no keyring")
    made.forget(probe)
    return made


def test_a_token_is_recalled_until_it_is_forgotten(keyring: KernelKeyring) -> None:
    """And a host that nobody knows has none."""
    host_id = new_host_id()

    keyring.keep(host_id, TOKEN, lifetime_s=30)
    recalled = keyring.recall(host_id)
    keyring.forget(host_id)

    assert recalled is not None
    assert TOKEN.get_secret_value() == recalled.get_secret_value()
    assert keyring.recall(host_id) is None
    assert keyring.recall(new_host_id()) is None


def test_another_process_of_the_same_user_recalls_it(keyring: KernelKeyring) -> None:
    """The controller that stored it is dead by then; the next one is another process, perhaps of another session."""
    host_id = new_host_id()
    keyring.keep(host_id, TOKEN, lifetime_s=30)
    script = (
        "import sys; from supervisor.keyring import KernelKeyring\n"
        "print(KernelKeyring().recall(sys.argv[1]).get_secret_value())"
    )

    said = subprocess.run(
        [sys.executable, "-c", script, host_id], capture_output=True, text=True, check=False, start_new_session=True
    )
    keyring.forget(host_id)

    assert TOKEN.get_secret_value() == said.stdout.strip()


@pytest.mark.slow
def test_the_kernel_forgets_a_token_that_nobody_renews(keyring: KernelKeyring) -> None:
    """A token outlives its host by nothing that matters."""
    host_id = new_host_id()

    keyring.keep(host_id, TOKEN, lifetime_s=1)
    time.sleep(1.5)

    assert keyring.recall(host_id) is None


def test_forgetting_what_is_not_there_is_no_error(keyring: KernelKeyring) -> None:
    """Clean-up runs for hosts that never came up, too."""
    keyring.forget(new_host_id())
