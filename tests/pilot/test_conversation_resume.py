"""A resumed conversation is the same to the byte, or it is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.errors import StateError
from contract.profiles import PROFILES
from tests.fakes import small_png
from tests.pilot.talks import SMALL, Talk, large_png, small


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(kinds=st.lists(st.sampled_from(["valid", "valid", "valid", "invalid", "malformed"]), min_size=1, max_size=12))
def test_a_resumed_conversation_sends_the_same_bytes(tmp_path_factory: Any, name: str, kinds: list[Any]) -> None:
    """Killed after any answer, whatever was said before: the next request is that of the unkilled one."""
    make_png = large_png(20_000) if "bytes" in name else small_png
    talk = Talk(tmp_path_factory.mktemp("talk"), small(name), make_png=make_png)
    talk.ask()
    for kind in kinds:
        talk.hear(kind, tokens=600 + 100 * talk.turn)
        resumed = talk.resumed()
        state = talk.conversation.state()
        resumed_state = resumed.state()
        expected = talk.ask()
        resumed.observe(talk.observation())
        actual = resumed.request()

        assert state == resumed_state
        assert expected.body.fingerprint() == actual.body.fingerprint()
        assert expected == actual
        # The resumed one plays on, so that what it holds is tested as well as what it sends.
        talk.conversation = resumed


def test_a_state_has_a_bounded_size(tmp_path: Path) -> None:
    """It is written twice in each turn."""
    talk = Talk(tmp_path, PROFILES["openai-responses"])
    sizes = []
    talk.ask()
    for _ in range(120):
        talk.hear("valid")
        sizes.append(len(orjson.dumps(talk.conversation.state())))
        talk.ask()

    assert max(sizes[:60]) + 200 >= max(sizes)
    assert max(sizes) < 6000


def test_a_state_says_how_things_stood_after_the_last_answer(tmp_path: Path) -> None:
    """Also in the middle of a turn whose request was made smaller: what was not answered never was."""
    talk = Talk(tmp_path, PROFILES["anthropic-messages"])
    for _ in range(3):
        talk.ask()
        talk.hear("valid")
    expected = talk.conversation.state()
    first = talk.ask()
    talk.conversation.shrink("for a test")
    resumed = talk.resumed()
    resumed.observe(talk.observation())

    assert expected == talk.conversation.state()
    assert first == resumed.request()


@pytest.fixture
def played(tmp_path: Path) -> Talk:
    """Six turns, one of them malformed."""
    talk = Talk(tmp_path, PROFILES["anthropic-messages"])
    for kind in ("valid", "valid", "malformed", "valid", "invalid", "valid"):
        talk.ask()
        talk.hear(kind)
    return talk


def test_later_lines_of_a_trace_are_nothing_to_a_resume(played: Talk) -> None:
    """They were never consumed; a torn one neither."""
    state = played.conversation.state()
    expected = played.resumed()
    played.ask()
    played.hear("valid")
    with played.run_dir.model_turns.open("ab") as file:
        file.write(b'{"turn": 8, "at"')
    later = played.fresh()
    later.restore(state)

    assert expected.state() == later.state()


def change_frame(talk: Talk) -> None:
    path = talk.run_dir.frame(1)
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def cut_frame(talk: Talk) -> None:
    path = talk.run_dir.frame(0)
    path.write_bytes(path.read_bytes()[:-1])


def remove_frame(talk: Talk) -> None:
    talk.run_dir.frame(2).unlink()


def remove_reference(talk: Talk) -> None:
    talk.run_dir.reference.unlink()


def change_reference(talk: Talk) -> None:
    path = talk.run_dir.reference
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def remove_trace(talk: Talk) -> None:
    talk.run_dir.model_turns.unlink()


def edit_lines(edit: Any) -> Any:
    """A deed that changes the trace's lines."""

    def deed(talk: Talk) -> None:
        lines = talk.run_dir.model_turns.read_bytes().splitlines(keepends=True)
        edit(lines)
        talk.run_dir.model_turns.write_bytes(b"".join(lines))

    return deed


def tear_last(lines: list[bytes]) -> None:
    lines[-1] = lines[-1][:-20]


def swap(lines: list[bytes]) -> None:
    lines[1], lines[3] = lines[3], lines[1]


def edit_field(number: int, name: str, value: Any) -> Any:
    """A deed that changes one field of one line."""

    def edit(lines: list[bytes]) -> None:
        fields = orjson.loads(lines[number])
        fields[name] = value
        lines[number] = orjson.dumps(fields) + b"\n"

    return edit_lines(edit)


DAMAGES: Final = {
    "a changed frame": change_frame,
    "a cut frame": cut_frame,
    "a missing frame": remove_frame,
    "a missing reference": remove_reference,
    "a changed reference": change_reference,
    "no trace": remove_trace,
    "a missing line": edit_lines(lambda lines: lines.pop(2)),
    "a missing first line": edit_lines(lambda lines: lines.pop(0)),
    "a missing last line": edit_lines(lambda lines: lines.pop()),
    "a torn line": edit_lines(tear_last),
    "swapped lines": edit_lines(swap),
    "a line that is there twice": edit_lines(lambda lines: lines.insert(2, lines[1])),
    "another observation": edit_field(1, "observation", "All went well."),
    "another answer": edit_field(0, "response", {"headers": {}, "body": {"content": []}}),
    "no answer": edit_field(0, "response", None),
    "no last answer": edit_field(5, "response", None),
    "another last answer": edit_field(5, "response", {"headers": {}, "body": {"content": [{"type": "text"}]}}),
    "a usable answer that was none": edit_field(2, "arguments", {"actions": []}),
    "another story": edit_field(3, "after", "acted"),
    "an unknown field": edit_field(1, "more", 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_resume_from_what_does_not_agree_is_refused(played: Talk, damage: str) -> None:
    """A conversation that never was is not a sample of anything."""
    state = played.conversation.state()
    DAMAGES[damage](played)

    with pytest.raises(StateError):
        played.fresh().restore(state)


@pytest.mark.parametrize(
    "change",
    [{"sha256": "0" * 64}, {"last_turn": 5}, {"first_turn": 2}, {"frames_left_out": 1}, {"lines": ["x"]}, {"more": 1}],
)
def test_a_state_that_the_trace_does_not_make_is_refused(played: Talk, change: dict[str, Any]) -> None:
    """The checkpoint's checksum is over everything that the next request repeats."""
    with pytest.raises(StateError):
        played.fresh().restore({**played.conversation.state(), **change})


def test_a_conversation_that_has_not_begun_can_be_kept(tmp_path: Path) -> None:
    """Nothing was said, so there is nothing to read back."""
    talk = Talk(tmp_path, PROFILES["anthropic-messages"])
    expected = talk.resumed()
    expected.observe(talk.observation())

    assert talk.ask() == expected.request()
