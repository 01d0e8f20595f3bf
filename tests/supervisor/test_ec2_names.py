"""The names of an instance, and what its user data makes of it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr

from contract.guest import GuestStart, read_guest_start
from supervisor.hosts.ec2_draft import draft_of
from supervisor.hosts.ec2_names import client_token_of, expires_at_of, tags_of
from supervisor.hosts.ec2_user_data import user_data_of
from tests.ec2_world import Notes, ec2_config

NOW = datetime(2024, 5, 1, 12, 30, 15, 250_000, tzinfo=UTC)


def start(driver: str = "librecad") -> GuestStart:
    return GuestStart.model_validate(
        {
            "host_id": "h-1",
            "token_sha256": "0" * 64,
            "driver": driver,
            "port": 8765,
            "lease_s": 900.5,
            "lifetime_s": 43_200,
        }
    )


def test_a_token_differs_by_each_of_its_parts_and_is_short_ascii() -> None:
    """EC2 takes 64 ASCII characters, and compares tokens within one zone only."""
    parts = {"batch_id": "b", "host_id": "h", "launch_no": 0, "subnet_id": "s"}
    first = client_token_of(**parts)  # type: ignore[arg-type]
    others = {client_token_of(**{**parts, name: 1 if name == "launch_no" else "x"}) for name in parts}  # type: ignore[arg-type]

    assert first == client_token_of(**parts)  # type: ignore[arg-type]
    assert 5 == len({first, *others})
    assert 40 == len(first)
    assert first.isascii()


def test_the_time_at_which_an_instance_should_be_gone_can_be_read_back_from_its_tags() -> None:
    """A sweeper of any later version finds by it what was forgotten."""
    tags = tags_of(batch_id="b", rollout_id="r", host_id="h", owner="me", client_token="t", expires_at=NOW)

    assert "2024-05-01T12:30:15Z" == tags["ExpiresAt"]
    assert NOW.replace(microsecond=0) == expires_at_of(tags)
    assert expires_at_of({}) is None
    assert expires_at_of({"ExpiresAt": "soon"}) is None
    assert expires_at_of({"ExpiresAt": "2024-05-01T12:30:15"}) is None


def test_a_batch_without_a_name_gets_no_tags() -> None:
    """All such batches would be each other's."""
    with pytest.raises(AssertionError):
        tags_of(batch_id="", rollout_id="r", host_id="h", owner="me", client_token="t", expires_at=NOW)


def test_repeated_requests_of_a_host_have_equal_bytes() -> None:
    """EC2 refuses a token that comes with other parameters."""
    order = Notes().order("r-0", "h-1")
    draft = draft_of(ec2_config(), order, SecretStr("secret"), now=NOW)
    first, second = draft.order(0, "subnet-0000000a"), draft.order(0, "subnet-0000000a")

    assert first == second
    assert first.client_token != draft.order(0, "subnet-0000000b").client_token
    assert first.client_token != draft.order(1, "subnet-0000000a").client_token
    assert "secret" not in repr(draft)


@pytest.mark.parametrize("driver", ["autocad", "librecad", "paper"])
def test_the_broker_reads_its_start_from_the_user_data(driver: str) -> None:
    """For the shell that runs the rest, the line is a comment."""
    text = user_data_of(start(driver))

    assert start(driver) == read_guest_start(text)
    assert text == user_data_of(start(driver))
    assert ("<powershell>\n" if driver == "autocad" else "#!/bin/sh\n") == text[: text.index("\n") + 1]
    assert len(text.encode()) < 4096


def test_the_linux_script_is_one_that_a_shell_takes() -> None:
    """A syntax error in it would leave an instance without its dead-man timer."""
    checked = subprocess.run(["sh", "-n"], input=user_data_of(start()), text=True, capture_output=True, check=False)

    assert ("", 0) == (checked.stderr, checked.returncode)


def _deadman(uptime_s: int, deadline: str | None, ends_at: str | None, now: int, folder: str) -> str:
    """The timer's own script with stand-ins for time, files and the shutdown; returns what it ran."""
    text = user_data_of(start())
    body = text.split("<<'SCRIPT'\n")[1].split("\nSCRIPT\n")[0]
    body = body.replace("$(date +%s)", str(now)).replace("$(cut -d. -f1 /proc/uptime)", str(uptime_s))
    body = body.replace("/run/autocad-bench/deadline", f"{folder}/deadline")
    body = body.replace("/var/lib/autocad-bench/ends-at", f"{folder}/ends-at")
    body = body.replace("systemctl poweroff --force", "echo off")
    for name, content in (("deadline", deadline), ("ends-at", ends_at)):
        if content is not None:
            with open(f"{folder}/{name}", "w") as file:
                file.write(content)
    return subprocess.run(["sh"], input=body, text=True, capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    ("uptime_s", "deadline", "ends_at", "is_off"),
    [
        (100, "1000100\n", "1043200\n", False),
        (100, "999999\n", "1043200\n", True),
        (5000, "1000100\n", "999999\n", True),
        # Nobody has called the broker yet: the lease counts from the boot.
        (899, None, "1043200\n", False),
        (901, None, "1043200\n", True),
        # Torn or foreign content is no deadline.
        (901, "soon\n", "1043200\n", True),
        (100, "", "1043200\n", False),
        # A lifetime that nobody wrote down is over.
        (100, "1000100\n", None, True),
    ],
)
def test_the_dead_man_timer_ends_a_silent_instance_and_no_other(
    tmp_path: object, uptime_s: int, deadline: str | None, ends_at: str | None, is_off: bool
) -> None:
    """It is the last thing that keeps a forgotten machine from costing money for ever."""
    said = _deadman(uptime_s, deadline, ends_at, now=1_000_000, folder=str(tmp_path))

    assert ("off\n" if is_off else "") == said
