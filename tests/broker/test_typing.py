"""Typing that opens a dialog half-way, with more signs than there are spare keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contract.actions import Keypress, Move, TypeText

pytestmark = pytest.mark.desktop


def test_what_follows_enter_goes_into_the_dialog_that_it_opened(
    build_librecad: Callable[..., Any], seed: bytes
) -> None:
    """One `type` action is enough for a command, its dialog and its text; 300 signs need three changes of the map."""
    import ezdxf

    text = "".join(chr(0x4E00 + 7 * n) for n in range(300))
    driver = build_librecad()
    driver.reset(seed)
    for row in range(3):
        driver.act([TypeText(text=f"text\n{text}"), Keypress(keys=["enter"])])
        driver.act([Move(x=700, y=300), Move(x=706, y=304), Keypress(keys=["ctrl", "m"])])
        driver.act([TypeText(text=f"10,{row * 10}\nk\n")])
    found = [entity.dxf.text for entity in ezdxf.readfile(driver.save()).modelspace().query("TEXT")]

    assert [text] * 3 == found
