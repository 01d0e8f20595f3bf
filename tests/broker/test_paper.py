"""The faults of the paper driver, which other tests build on."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.drivers.paper import PaperDriver, PaperFaults
from broker.refusal import Refusal
from contract.actions import Keypress, Move, TypeText
from contract.broker_api import ErrorCode, Verdict


@pytest.mark.parametrize(
    ("faults", "code", "state"),
    [
        (PaperFaults(cad_dies_at=2), ErrorCode.CAD_DIED, "cad_died"),
        (PaperFaults(cad_hangs_at=2), ErrorCode.CAD_HUNG, "cad_hung"),
        (PaperFaults(display_dies_at=2), ErrorCode.DISPLAY_DIED, "display_died"),
    ],
)
def test_it_fails_where_it_is_told_to(tmp_path: Path, faults: PaperFaults, code: ErrorCode, state: str) -> None:
    """And stays failed until the next reset, as a real CAD program does."""
    driver = PaperDriver(tmp_path, faults=faults)
    driver.reset(b"start")
    told: list[str] = []
    driver.watch(lambda: told.append(driver.state()))
    driver.act([Move(x=1, y=1)])
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            driver.act([Move(x=2, y=2)])

        assert caught.value.code is code
    assert driver.state() == state
    assert [state] == told


def test_any_verdict_can_be_shown(tmp_path: Path) -> None:
    """The pilot's treatment of bad frames is tested with it."""
    driver = PaperDriver(tmp_path, faults=PaperFaults(verdict=Verdict.BLACK))

    assert driver.reset(b"start").verdict is Verdict.BLACK


def test_undo_gives_the_former_picture(tmp_path: Path) -> None:
    """Frames depend on what is on the sheet, not on how it got there."""
    driver = PaperDriver(tmp_path)
    before = driver.reset(b"start")
    driver.act([TypeText(text="line 10,10 500,500\n")])
    after = driver.act([Keypress(keys=["ctrl", "z"])]).frame

    assert before.sha256 == after.sha256
    assert driver.save().read_bytes() == b"start"
