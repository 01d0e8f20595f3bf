"""A save that found no room is no drawing of the model's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.drivers.librecad import LibreCadDriver
from broker.refusal import Refusal
from contract.actions import TypeText
from contract.broker_api import ErrorCode

pytestmark = pytest.mark.desktop

CIRCLE = TypeText(text="circle 60,40 22 k\n")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    argv = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can make a small disk here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def code_of_save(driver: LibreCadDriver) -> ErrorCode:
    """With which code a save is refused."""
    with pytest.raises(Refusal) as caught:
        driver.save()
    return caught.value.code


def test_a_drawing_that_a_full_disk_cut_off_is_refused(small_disk: Path, seed: bytes) -> None:
    """It would be scored as if the model had drawn no more. LibreCAD takes it for saved, so room again is too late."""
    driver = LibreCadDriver(small_disk, base_env={"PATH": os.environ["PATH"]})
    driver.reset(seed)
    driver.act([CIRCLE])
    filler = small_disk / "filler"
    facts = os.statvfs(small_disk)
    filler.write_bytes(bytes(facts.f_bavail * facts.f_frsize))
    codes = [code_of_save(driver)]
    filler.unlink()
    codes.append(code_of_save(driver))
    driver.close()

    assert [ErrorCode.SAVE_FAILED] * 2 == codes
