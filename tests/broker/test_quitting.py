"""A model that spoils its drawing and quits the program: that is its own doing, and is scored as what it left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.drivers.librecad import LibreCadDriver
from contract.actions import Keypress, Wait
from contract.broker_api import Verdict

pytestmark = pytest.mark.desktop

QUIT = Keypress(keys=["ctrl", "q"])


def replace_by_folder(drawing: Path) -> None:
    """As its file dialog could."""
    drawing.unlink()
    drawing.mkdir()


def replace_by_picture(drawing: Path) -> None:
    """As an export under that name would."""
    drawing.write_bytes(b"\x89PNG\r\n" + os.urandom(5_000))


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [(Path.unlink, Verdict.OK), (replace_by_folder, Verdict.OK), (replace_by_picture, Verdict.MODAL)],
)
def test_a_model_that_spoils_its_drawing_and_quits_is_shown_what_is_left(
    build_librecad: Callable[..., LibreCadDriver],
    seed: bytes,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    verdict: Verdict,
) -> None:
    """No host has failed: the rollout goes on, and the drawing is what it is when it ends."""
    driver = build_librecad()
    driver.reset(seed)
    drawing = tmp_path / "librecad-0" / "drawing" / "attempt.dxf"
    spoil(drawing)
    left = drawing.read_bytes() if drawing.is_file() else None
    shown = driver.act([QUIT]).frame
    driver.act([Wait(seconds=0)])
    saved = driver.save()

    assert verdict is shown.verdict
    assert "ready" == driver.state()
    assert left == (saved.read_bytes() if saved.is_file() else None)
