"""One line of a turn that has left the conversation: short, whole, and the same in every process."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.models.digest import ACTIONS_CHARS_MAX, RESULT_CHARS_MAX, actions_in_short, lines_kept, outcome_line

LINE_CHARS_MAX = ACTIONS_CHARS_MAX + RESULT_CHARS_MAX + 20
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["type", "x", "y", "keys"]), inner),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ({"type": "move", "x": 1, "y": 2}, "move (1, 2)"),
        ({"type": "click", "x": 1, "y": 2, "button": "left", "clicks": 1, "modifiers": []}, "left click (1, 2)"),
        ({"type": "click", "x": 1, "y": 2, "button": "right", "clicks": 2, "modifiers": []}, "right click x2 (1, 2)"),
        (
            {"type": "drag", "path": [[1, 2], [5, 5], [3, 4]], "button": "left"},
            "drag (1, 2) to (3, 4)",
        ),
        ({"type": "scroll", "x": 1, "y": 2, "dx": 0, "dy": 3, "modifiers": []}, "scroll (1, 2)"),
        ({"type": "type", "text": "line\n0,0\n"}, 'type "line⏎0,0⏎"'),
        ({"type": "type", "text": "x" * 100}, f'type "{"x" * 59}…"'),
        ({"type": "keypress", "keys": ["ctrl", "s"]}, "press ctrl+s"),
        ({"type": "wait", "seconds": 1.5}, "wait 1.5 s"),
        ({"type": "finish", "status": "done", "summary": "all"}, "finish"),
        ({"type": "fly"}, "fly"),
        ({"kind": "click"}, "something that is no action"),
        ("click", "something that is no action"),
    ],
)
def test_an_action_is_noted_as_a_person_would(action: Any, expected: str) -> None:
    """An invalid one as far as it can be told."""
    assert expected == actions_in_short({"actions": [action]})


def test_a_long_batch_is_told_by_its_beginning() -> None:
    """What it was about stands there."""
    actions = [{"type": "keypress", "keys": ["tab"]}] * 15

    assert ", ".join(["press tab"] * 12 + ["3 more"]) == actions_in_short({"actions": actions})


@given(arguments=st.one_of(JSON, st.fixed_dictionaries({"actions": st.lists(JSON)})), result=st.text())
def test_whatever_a_model_said_is_one_short_line(arguments: Any, result: str) -> None:
    """It goes into a request, and into the checkpoint of every turn."""
    line = outcome_line(7, arguments, result)

    assert len(line) <= LINE_CHARS_MAX
    assert "\n" not in line
    assert orjson.dumps(line)


def test_lines_are_cut_once_in_so_many_turns() -> None:
    """Between two cuts a text of them is only added to."""
    lines: tuple[str, ...] = ()
    lengths = []
    for number in range(8):
        lines = lines_kept((*lines, str(number)), at_least=2)
        lengths.append(len(lines))

    assert [1, 2, 3, 4, 2, 3, 4, 2] == lengths
    assert ("6", "7") == lines
