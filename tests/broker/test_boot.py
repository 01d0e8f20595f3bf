"""The name of a boot: the same for every start of the broker in it, another after a reboot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from broker.boot import CLOCK_SLACK_S, FILE_NAME, SystemBoot, boot_id_of, read_system_boot, settle_boot
from tests.metadata_service import INSTANCE_ID, LAUNCHED_AT

BOOT = SystemBoot(mark="7", count=7, booted_at=LAUNCHED_AT + timedelta(seconds=29))


def named(boot: SystemBoot, *, instance_id: str = INSTANCE_ID) -> str:
    """The boot id on our instance."""
    return boot_id_of(boot, instance_id=instance_id, pending_time=LAUNCHED_AT)


def test_a_clock_that_is_set_does_not_change_the_boot(tmp_path: Path) -> None:
    """The system derives its boot time from the clock: across a minute's edge the name would be another."""
    first = settle_boot(BOOT, tmp_path)
    later = settle_boot(replace(BOOT, booted_at=BOOT.booted_at + timedelta(seconds=31)), tmp_path)

    assert first == later
    assert named(first) == named(later)


def test_each_boot_has_a_name_of_its_own(tmp_path: Path) -> None:
    """By its counter, also when it follows within the same minute; by its time, where the counter is not told apart."""
    again = SystemBoot(mark="8", count=8, booted_at=BOOT.booted_at + timedelta(seconds=1))
    much_later = replace(BOOT, booted_at=BOOT.booted_at + timedelta(seconds=CLOCK_SLACK_S + 61))
    names = [named(settle_boot(boot, tmp_path)) for boot in (BOOT, again, BOOT, much_later)]

    assert names[0] == names[2]
    assert 3 == len(set(names))


def test_clones_of_one_image_differ() -> None:
    """Two instances of one image may boot in the same minute with the same counter."""
    assert named(BOOT) != named(BOOT, instance_id="i-0123456789abcdef1")


def test_a_name_is_24_digits_of_a_hash() -> None:
    """It stands in records and logs."""
    boot_id = named(BOOT)

    assert ("b-", 26) == (boot_id[:2], len(boot_id))
    assert int(boot_id[2:], 16)


@pytest.mark.parametrize("content", ["", '{"mark": "7"', "[]"])
def test_a_torn_file_is_of_a_boot_that_is_over(tmp_path: Path, content: str) -> None:
    """The machine went down while it was written."""
    (tmp_path / FILE_NAME).write_text(content)

    assert BOOT == settle_boot(BOOT, tmp_path)
    assert BOOT == settle_boot(replace(BOOT, booted_at=BOOT.booted_at + timedelta(seconds=5)), tmp_path)


def test_this_machine_has_a_boot() -> None:
    """The mark is the kernel's own id: no counter exists on Linux."""
    found = read_system_boot()

    assert found.count is None
    assert len("12345678-1234-1234-1234-123456789abc") == len(found.mark)
    assert psutil.boot_time() == pytest.approx(found.booted_at.timestamp(), abs=2)
