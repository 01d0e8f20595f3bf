"""The histories of all wires: what stays, what leaves and when, and that a resumed one is the same to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import orjson
import pytest

from contract.profiles import PROFILES, HistoryKind
from pilot.models.body import Image
from pilot.models.history import Base, Reply
from pilot.models.wire import Request
from pilot.ports import TooLarge
from tests.pilot.talks import SMALL, Talk, bytes_of, large_png, profile, small, without_end

MIB: Final = 1024 * 1024
START: Final = b"This is the desktop at the start."
# Every wire and every kind of history, as they are, and so small that a few turns meet each limit.
WHOLE: Final = (
    "openai-responses", "openrouter-claude-responses", "anthropic-messages", "anthropic-fable-messages",
    "fireworks-kimi-k2p6-fast-chat", "mantle-kimi-k2.5-chat", "bedrock-converse",
)  # fmt: skip


def images_in(request: Request) -> list[str]:
    """The files that a request shows, in order."""
    return [piece.artifact.path for piece in request.body.pieces if isinstance(piece, Image)]


@pytest.mark.parametrize("name", WHOLE)
def test_150_turns_extend_each_other_but_at_planned_cuts(tmp_path: Path, name: str) -> None:
    """Every change of old text costs the provider's cache, so there are as few as the limits allow."""
    talk = Talk(tmp_path, PROFILES[name])
    cuts = []
    before, base = bytes_of(talk.ask()), talk.conversation.base
    for _ in range(150):
        talk.hear("valid", tokens=50_000)
        after = bytes_of(talk.ask())
        is_extended = after.startswith(kept_of(before, name))
        if not is_extended:
            cuts.append(talk.turn)
            assert base != talk.conversation.base
        before, base = after, talk.conversation.base

    assert PLANNED[name] == cuts


def kept_of(body: bytes, name: str) -> bytes:
    """The part of a body that the next one begins with: of a compact history, all that stands before the newest."""
    if PROFILES[name].history is not HistoryKind.COMPACT:
        return without_end(body)
    end = body.find(b'"}', body.index(b"Your latest turns")) if b"Your latest turns" in body else body.index(START)
    return body[:end]


PLANNED: Final[dict[str, list[int]]] = {
    # Twice sixteen outcomes, then sixteen again: the 33rd is there at turn 34.
    "openai-responses": list(range(34, 152, 17)),
    "bedrock-converse": list(range(34, 152, 17)),
    "openrouter-claude-responses": [],
    "anthropic-messages": [],
    "anthropic-fable-messages": list(range(25, 152, 24)),
    # A turn is three messages: eight turns and the opening are 25.
    "fireworks-kimi-k2p6-fast-chat": list(range(9, 152, 8)),
    "mantle-kimi-k2.5-chat": list(range(9, 152, 8)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_no_request_is_over_a_limit_and_none_loses_the_task(tmp_path: Path, name: str) -> None:
    """Also with frames so large that bytes are what is met first."""
    facts = PROFILES[name]
    limits = {"body_bytes_max": min(facts.body_bytes_max, 4 * MIB), "images_max": min(facts.images_max, 20)}
    talk = Talk(tmp_path, profile(name, **limits), make_png=large_png(300_000))
    requests = [talk.ask()]
    for _ in range(40):
        talk.hear("valid")
        requests.append(talk.ask())

    for turn, request in enumerate(requests):
        text = b"".join(piece for piece in request.body.pieces if isinstance(piece, bytes))
        shown = images_in(request)
        assert request.body.length <= limits["body_bytes_max"]
        assert len(shown) <= limits["images_max"]
        assert ("reference.png", f"frames/{turn:06}.png") == (shown[0], shown[-1])
        assert b"Draw the bracket of the reference picture." in text
        assert b"You operate a CAD program" in text


def test_a_body_length_is_that_of_its_bytes(tmp_path: Path) -> None:
    """Limits are kept by lengths that no file was read for."""
    talk = Talk(tmp_path, PROFILES["anthropic-messages"])
    talk.ask()
    talk.hear("valid")
    request = talk.ask()

    assert len(bytes_of(request)) == request.body.length
    assert orjson.loads(bytes_of(request))


def test_fable_digests_after_24_turns_and_keeps_16_outcomes(tmp_path: Path) -> None:
    """Turn 25 begins anew with the newest sixteen; invalid turns are turns, malformed answers are none."""
    talk = Talk(tmp_path, PROFILES["anthropic-fable-messages"])
    talk.ask()
    for number in range(24):
        if number == 5:
            talk.hear("malformed")
            talk.ask()
        talk.hear("invalid" if number == 20 else "valid")
        before = talk.conversation.base
        request = talk.ask()
    lines = talk.conversation.base.lines

    assert Base() == before
    assert (26, 16) == (talk.conversation.base.first_turn, len(lines))
    assert "Turn 10: left click (10, 20). The action was carried out. Actions left: 4989 of 5000." == lines[0]
    assert "Turn 22: no actions. Nothing was carried out, because the ActionBatch is invalid: none." == lines[12]
    assert ["reference.png", "frames/000023.png"] == images_in(request)
    assert b"thinking" not in bytes_of(request)


@pytest.mark.parametrize(("tokens", "is_cut"), [(89_999, False), (90_000, True)])
def test_fable_digests_at_90_000_input_tokens(tmp_path: Path, tokens: int, is_cut: bool) -> None:
    """Of the last answer, and once: the next answer says anew how much there is."""
    talk = Talk(tmp_path, PROFILES["anthropic-fable-messages"])
    talk.ask()
    talk.hear("valid", tokens=100)
    talk.ask()
    talk.hear("valid", tokens=tokens)
    talk.ask()

    assert (3 if is_cut else 1) == talk.conversation.base.first_turn

    talk.hear("valid", tokens=100)
    talk.ask()

    assert (3 if is_cut else 1) == talk.conversation.base.first_turn


@pytest.mark.parametrize(
    ("name", "limit_bytes"), [("mantle-kimi-k2.5-chat", 3 * MIB), ("fireworks-kimi-k2p6-fast-chat", 8 * MIB)]
)
def test_a_chat_begins_anew_before_its_bytes_are_too_many(tmp_path: Path, name: str, limit_bytes: int) -> None:
    """The request that would have been too long is the one that is cut."""
    talk = Talk(tmp_path, PROFILES[name], make_png=large_png(limit_bytes // 7))
    lengths = [talk.ask().body.length]
    while talk.conversation.base.first_turn == 1:
        talk.hear("valid")
        lengths.append(talk.ask().body.length)

    assert max(lengths) <= limit_bytes < max(lengths) + (lengths[1] - lengths[0]) + 2000
    assert talk.turn < 9


def test_old_frames_leave_in_one_go(tmp_path: Path) -> None:
    """At the guard half of the limit is freed, and thoughts about what has changed go with it, newer ones stay."""
    talk = Talk(tmp_path, profile("anthropic-messages", body_bytes_max=2 * MIB), make_png=large_png(100_000))
    bases = [talk.conversation.base]
    talk.ask()
    while len(bases) < 3:
        talk.hear("valid")
        request = talk.ask()
        if bases[-1] != talk.conversation.base:
            bases.append(talk.conversation.base)
            lengths = request.body.length
            first = bytes_of(request)
    talk.hear("valid", thought="A new thought.")
    later = bytes_of(talk.ask())

    assert lengths <= MIB
    assert b"The frame of turn 1 is left out here." in first
    assert b"thinking" not in first
    assert later.startswith(without_end(first))
    assert 1 == later.count(b"A new thought.")
    assert first.count(b"tool_use_id") == talk.turn - 2


def test_the_guard_of_24_mib_leaves_out_frames_and_nothing_else(tmp_path: Path) -> None:
    """Far below the provider's own limit; every call and every result stays."""
    talk = Talk(tmp_path, PROFILES["anthropic-messages"], make_png=large_png(2_000_000))
    lengths = [talk.ask().body.length]
    for _ in range(14):
        talk.hear("valid")
        request = talk.ask()
        lengths.append(request.body.length)
    text = b"".join(piece for piece in request.body.pieces if isinstance(piece, bytes))

    assert max(lengths) <= 24 * MIB < max(lengths) + (lengths[1] - lengths[0]) + 2000
    assert min(lengths[9:]) <= 12 * MIB
    assert (14, 14) == (text.count(b'"type":"tool_use"'), text.count(b'"type":"tool_result"'))
    assert 14 == talk.turn - 1
    assert text.count(b"is left out here") + len(images_in(request)) == 16


def test_a_reference_that_fits_nowhere_is_said(tmp_path: Path) -> None:
    """Nothing is sent that the provider is known to refuse."""
    talk = Talk(tmp_path, profile("mantle-kimi-k2.5-chat", body_bytes_max=10_000), make_png=large_png(20_000))

    with pytest.raises(TooLarge, match="after all that could be left out") as caught:
        talk.ask()
    assert "a smaller reference" in caught.value.hint


def test_an_observation_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    """A turn is asked for again after each failure."""
    talk = Talk(tmp_path, PROFILES["anthropic-messages"])
    talk.ask()
    talk.hear("valid")
    first, again = talk.ask(), talk.ask()

    assert first is again


def test_malformed_answers_stay_outside_and_invalid_ones_go_in(tmp_path: Path) -> None:
    """The first is asked about again in the same message; the second is answered with an error."""
    talk = Talk(tmp_path, PROFILES["anthropic-messages"])
    first = bytes_of(talk.ask())
    talk.hear("malformed")
    again = orjson.loads(bytes_of(talk.ask()))
    talk.hear("malformed")
    talk.ask()
    talk.hear("invalid")
    request = bytes_of(talk.ask())
    messages = orjson.loads(request)["messages"]

    assert 1 == len(again["messages"])
    assert "Nothing was carried out. Response 2 had no call." == again["messages"][0]["content"][-1]["text"]
    assert request.startswith(without_end(first))
    assert ["user", "assistant", "user"] == [message["role"] for message in messages]
    assert messages[2]["content"][0]["is_error"]


@pytest.mark.parametrize("content", ["What was done so far.", None])
def test_a_compaction_block_is_given_back_as_it_came(tmp_path: Path, content: str | None) -> None:
    """One that failed, too: it does nothing there, and nothing before either of them is dropped by us."""
    talk = Talk(tmp_path, PROFILES["anthropic-messages"])
    before = bytes_of(talk.ask())
    block = {"type": "compaction", "content": content, "encrypted_content": "abc"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "computer_action", "input": {"actions": []}}
    said = talk.said({"content": [block, call], "stop_reason": "tool_use", "usage": {}})
    assert said.arguments is not None
    talk.conversation.answered(Reply(talk.turn, said.arguments, said.response), context_tokens=None)
    talk.write("valid", said.arguments, said.response)
    resumed = talk.resumed()
    after = bytes_of(talk.ask())
    resumed.observe(talk.observation())

    assert after.startswith(without_end(before))
    assert [block, call] == orjson.loads(after)["messages"][1]["content"]
    assert after == bytes_of(resumed.request())


@pytest.mark.parametrize("name", SMALL)
def test_a_forced_cut_makes_a_request_smaller_until_it_cannot(tmp_path: Path, name: str) -> None:
    """Each rewrite has fewer bytes than the one before, and the task, the reference and the newest frame stay."""
    talk = Talk(tmp_path, small(name))
    talk.ask()
    for _ in range(4):
        talk.hear("valid")
        request = talk.ask()
    while talk.conversation.shrink("for a test"):
        smaller = talk.conversation.request()
        assert smaller.body.length < request.body.length
        request = smaller
    talk.hear("valid")
    resumed = talk.resumed()
    expected = talk.ask()
    resumed.observe(talk.observation())

    assert ["reference.png", "frames/000004.png"] == images_in(request)
    assert expected == resumed.request()
