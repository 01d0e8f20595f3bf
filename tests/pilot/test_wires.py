"""What is sent to a model, byte for byte.

`python -m tests.pilot.test_wires` writes the golden requests anew; the change is then there to be reviewed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson
import pytest

from contract.actions import tool_schema
from contract.profiles import PROFILES, custom_profiles
from pilot.models.body import Image, length_of
from pilot.models.prompt import NOW_TEXT, digest_text
from pilot.models.wire import Opening, Outcome, Request, Shown
from pilot.models.wires import wire_for
from tests.pilot.wire_cases import (
    OUTCOME,
    PROFILE_OF_FOLDER,
    SESSION,
    START,
    WIRE,
    body_of,
    image,
    later_items,
    make_frames,
    opening_of,
    recorded,
    result_of,
    said_of,
    without_end,
)

GOLDEN: Final = Path(__file__).parent / "golden"
SCHEMA_FILE: Final = "tool_schema"


REFUSED: Final = Outcome(text="The last batch was not valid, and nothing of it was done.", is_error=True)
FAST: Final = "accounts/fireworks/routers/kimi-k2p6-fast"
# Name of a golden request (its profile, and what it shows) -> model, and the turns that come before.
CASES: Final[dict[str, tuple[str, str]]] = {
    "openai-responses-first": ("gpt-5.6-sol", "first"),
    "openai-responses-compact": ("gpt-5.6-sol", "digest"),
    "openrouter-responses-first": ("openai/gpt-5.6-sol", "first"),
    "openrouter-responses-later": ("openai/gpt-5.6-sol", "later"),
    "openrouter-claude-responses-first": ("anthropic/claude-opus-5", "first"),
    "openrouter-claude-responses-later": ("anthropic/claude-opus-5", "later"),
    "openrouter-claude-auto-responses-first": ("anthropic/claude-opus-5.5", "first"),
    "anthropic-messages-first": ("claude-opus-5", "first"),
    "anthropic-messages-later": ("claude-opus-5", "later"),
    "anthropic-messages-compact": ("claude-opus-5", "compacted"),
    "anthropic-messages-auto-first": ("claude-opus-5-5", "first"),
    "anthropic-fable-messages-first": ("claude-fable-5", "first"),
    "anthropic-fable-messages-digest": ("claude-fable-5", "digest"),
    "anthropic-fable-auto-messages-first": ("claude-fable-5-1", "first"),
    "fireworks-kimi-k2p6-fast-chat-first": (FAST, "first"),
    "fireworks-kimi-k2p6-fast-chat-later": (FAST, "later"),
    "fireworks-kimi-k2p6-fast-chat-digest": (FAST, "digest"),
    "mantle-kimi-k2.5-chat-first": ("moonshotai.kimi-k2.5", "first"),
    "mantle-kimi-k2.5-chat-later": ("moonshotai.kimi-k2.5", "later"),
    "mantle-kimi-k2.5-chat-digest": ("moonshotai.kimi-k2.5", "digest"),
    "mantle-responses-first": ("openai.gpt-oss-120b", "first"),
    "mantle-openai-responses-first": ("openai.gpt-5.6-sol", "first"),
    "bedrock-converse-first": ("us.amazon.nova-pro-v1:0", "first"),
    "bedrock-converse-compact": ("us.amazon.nova-pro-v1:0", "digest"),
    "bedrock-any-converse-first": ("mistral.mistral-large-2407-v1:0", "first"),
    "bedrock-auto-converse-first": ("us.anthropic.claude-opus-5-5", "first"),
}
# Requests of the case table that ours have the shape of.
SAME_SHAPE: Final[dict[str, str]] = {
    "openai-responses-first": "openai/request_first_turn",
    "openai-responses-compact": "openai/request_later_turn_compact",
    "openrouter-responses-later": "openrouter/request_later_turn_other",
    "openrouter-claude-responses-first": "openrouter/request_first_turn_claude",
    "openrouter-claude-responses-later": "openrouter/request_later_turn_claude",
    "anthropic-messages-first": "anthropic/request_first_turn",
    "anthropic-messages-later": "anthropic/request_later_turn",
    "anthropic-messages-compact": "anthropic/request_after_compaction",
    "anthropic-messages-auto-first": "anthropic/request_auto_tool_choice",
    "anthropic-fable-messages-digest": "anthropic/request_fable_checkpoint",
    "fireworks-kimi-k2p6-fast-chat-first": "fireworks/request_first_turn",
    "fireworks-kimi-k2p6-fast-chat-later": "fireworks/request_later_turn",
    "mantle-kimi-k2.5-chat-first": "mantle/request_first_turn_chat",
    "mantle-kimi-k2.5-chat-later": "mantle/request_later_turn_chat",
    "mantle-kimi-k2.5-chat-digest": "mantle/request_compacted_chat",
    "mantle-responses-first": "mantle/request_first_turn_responses",
    "bedrock-converse-first": "bedrock/request_first_turn",
    "bedrock-converse-compact": "bedrock/request_later_turn_compact",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run folder with a reference and three frames, none alike."""
    return make_frames(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_a_request_is_the_golden_one(root: Path, name: str) -> None:
    """A change of cost, caching or behaviour is visible in review."""
    expected = json.loads((GOLDEN / f"{name}.json").read_text())

    assert expected == readable(golden_request(name, root))


def test_the_tool_schema_is_the_golden_one() -> None:
    """It stands in every request and is the first thing that is cached."""
    assert json.loads((GOLDEN / f"{SCHEMA_FILE}.json").read_text()) == tool_schema()


def test_every_profile_has_a_golden_request() -> None:
    """A row that nobody looks at is a row that nobody checks. The rows for small contexts differ in a bound alone."""
    assert {name for name in PROFILES if "-200k" not in name} == {name.rpartition("-")[0] for name in CASES}
    assert {f"{name}.json" for name in (*CASES, SCHEMA_FILE)} == {path.name for path in GOLDEN.iterdir()}


@pytest.mark.parametrize("name", SAME_SHAPE)
def test_a_request_has_the_shape_of_the_case_table(root: Path, name: str) -> None:
    """The same fields, nesting, switches and order of blocks; only the words and the tool's schema are our own."""
    handed = json.loads((WIRE / f"{SAME_SHAPE[name]}.json").read_text())
    request = golden_request(name, root)

    expected, actual = shape(handed["body"]), shape(orjson.loads(body_of(request)))
    if name.endswith("-digest"):
        # There the digest and the words beside the frame are one text.
        _drop_text(actual["messages"][-1]["content"])
    assert expected == actual
    assert handed["path"].endswith(request.path)
    ours = {name: value for name, value in request.headers.items() if not name.startswith("anthropic-version")}
    assert ours.items() <= {**handed["headers"], **{name: SESSION for name in ours if name.startswith("x-s")}}.items()


def test_the_shape_of_an_appended_openai_history_is_that_of_the_case_table(root: Path) -> None:
    """A config may choose it: then reasoning goes back before the call that it led to."""
    raw = {"kept": {"extends": "openai-responses", "history": "append", "replays_reasoning": True}}
    wire = wire_for(custom_profiles(raw)["kept"], model="gpt-5.6-sol", session_id=SESSION)

    request = wire.request(later_items(wire, root, "openai/success"))

    handed = json.loads((WIRE / "openai/request_later_turn_append.json").read_text())
    assert shape(handed["body"]) == shape(orjson.loads(body_of(request)))


@pytest.mark.parametrize("name", CASES)
def test_a_request_knows_its_length_and_holds_no_image(root: Path, name: str) -> None:
    """Limits are checked before a byte is read; base64 is made while it is sent."""
    body = golden_request(name, root).body

    assert len(b"".join(body.chunks())) == body.length == length_of(body.pieces)
    assert 2 <= sum(isinstance(piece, Image) for piece in body.pieces)
    assert body.length - sum(p.body_bytes for p in body.pieces if isinstance(p, Image)) < 16_000


@pytest.mark.parametrize("name", PROFILES)
def test_a_longer_conversation_extends_the_bytes_of_a_shorter_one(root: Path, name: str) -> None:
    """The exact prefix is what a cache is found by."""
    wire = wire_for(PROFILES[name], model="a-model", session_id=SESSION)
    items = later_items(wire, root, f"{PROFILES[name].provider}/success") if has_own_wire(name) else []
    items = items or later_items(wire, root, "openai/success")

    bodies = [body_of(wire.request(items[:count])) for count in (1, 3)]

    assert bodies[1].startswith(without_end(bodies[0]) + b",")


@pytest.mark.parametrize("name", PROFILES)
def test_a_turn_that_is_asked_again_extends_its_own_bytes(root: Path, name: str) -> None:
    """A note about a malformed answer comes behind the frame, which is then read from the cache."""
    wire = wire_for(PROFILES[name], model="a-model", session_id=SESSION)
    opening = Opening("Draw it.", image(root, "reference.png"))
    shown = [
        Shown(START, image(root, "frames/000001.png"), notes)
        for notes in ((), ("No usable call.",), ("No usable call.", "Still none."))
    ]

    bodies = [body_of(wire.request([wire.first_user(opening, one)])) for one in shown]

    for shorter, longer in itertools.pairwise(bodies):
        assert longer.startswith(without_end(without_end(shorter)) + b",")


@pytest.mark.parametrize("name", PROFILES)
def test_a_digest_that_grows_extends_its_own_bytes(root: Path, name: str) -> None:
    """A compact history keeps the prefix up to its newest outcome, also beyond the reference."""
    wire = wire_for(PROFILES[name], model="a-model", session_id=SESSION)
    shown = Shown(NOW_TEXT, image(root, "frames/000001.png"))
    texts = [digest_text(["turn 1: done"]), digest_text(["turn 1: done", "turn 2: done"])]

    first, second = (
        body_of(wire.request([wire.first_user(Opening("Draw it.", image(root, "reference.png"), text), shown)]))
        for text in texts
    )

    common = first.index(b"turn 1: done") + len(b"turn 1: done")
    assert first[:common] == second[:common]


@pytest.mark.parametrize("name", PROFILES)
def test_an_old_frame_can_be_left_out(root: Path, name: str) -> None:
    """Its words stay, and the message remains one that the provider takes."""
    wire = wire_for(PROFILES[name], model="a-model", session_id=SESSION)
    opening = Opening("Draw it.", image(root, "reference.png"))

    request = wire.request([wire.first_user(opening, Shown("The frame is left out.", None))])

    assert 1 == sum(isinstance(piece, Image) for piece in request.body.pieces)
    assert b"The frame is left out." in body_of(request)
    orjson.loads(body_of(request))


@pytest.mark.parametrize("name", PROFILES)
def test_the_tool_choice_and_the_words_agree(root: Path, name: str) -> None:
    """Where a call cannot be forced by name, the system prompt asks for exactly one."""
    wire = wire_for(PROFILES[name], model="a-model", session_id=SESSION)

    body = body_of(wire.request([wire.first_user(Opening("Draw.", image(root, "reference.png")), Shown("Now.", None))]))

    assert (PROFILES[name].tool_choice != "forced") == (b"exactly one call" in body)


@pytest.mark.parametrize("outcome", [OUTCOME, REFUSED], ids=["done", "not valid"])
@pytest.mark.parametrize("folder", PROFILE_OF_FOLDER)
def test_a_call_is_followed_by_its_result(root: Path, folder: str, outcome: Outcome) -> None:
    """Every provider refuses a history in which something stands between them."""
    wire = wire_for(PROFILES[PROFILE_OF_FOLDER[folder]], model="m", session_id=SESSION)
    body = orjson.loads(body_of(wire.request(later_items(wire, root, f"{folder}/success", outcome=outcome))))

    result, failed = result_of(body)

    assert outcome.text == result
    assert failed in (outcome.is_error, None)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("anthropic")])
def test_three_of_four_cache_breakpoints_are_used(root: Path, name: str) -> None:
    """System, reference and the automatic one; a fifth would be a 400, and a fourth is kept free."""
    body = orjson.loads(body_of(golden_request(name, root)))

    five_minutes = {"type": "ephemeral", "ttl": "5m"}
    assert five_minutes == body["cache_control"]
    assert five_minutes == body["system"][-1]["cache_control"]
    assert five_minutes == body["messages"][0]["content"][1]["cache_control"]
    assert 3 == json.dumps(body).count('"cache_control"')


@pytest.mark.parametrize("name", [name for name in CASES if "fable" in name])
def test_fable_asks_for_no_compaction(root: Path, name: str) -> None:
    """Neither by a header nor by a field."""
    request = golden_request(name, root)

    assert {"anthropic-version": "2023-06-01"} == request.headers
    assert b"context_management" not in body_of(request)
    assert b"compact" not in body_of(request)


def test_a_long_rollout_id_still_makes_a_cache_key() -> None:
    """OpenAI refuses a key of more than 64 characters, and a cut one could be another rollout's."""
    long = "batch" * 40
    openrouter = wire_for(PROFILES["openrouter-responses"], model="m", session_id=long)

    body = orjson.loads(body_of(openrouter.request([])))

    assert hashlib.sha256(long.encode()).hexdigest() == body["prompt_cache_key"]
    assert long == body["session_id"]


@pytest.mark.parametrize("folder", PROFILE_OF_FOLDER)
def test_what_is_replayed_survives_the_trace(folder: str) -> None:
    """A resumed pilot reads the response from there, and sends what the killed one would have sent."""
    wire = wire_for(PROFILES[PROFILE_OF_FOLDER[folder]], model="m", session_id=SESSION)
    response = said_of(f"{folder}/success").response

    again = orjson.loads(orjson.dumps(response))

    assert wire.assistant(response, keeps_thinking=True) == wire.assistant(again, keeps_thinking=True)


@pytest.mark.parametrize("file", ["success", "success_compaction", "success_compaction_failed"])
def test_blocks_of_claude_go_back_as_they_came(file: str) -> None:
    """Thinking with its signature, compaction with its content or without: byte for byte and in order."""
    wire = wire_for(PROFILES["anthropic-messages"], model="claude-opus-5", session_id=SESSION)
    content = recorded(f"anthropic/{file}")["body"]["content"]

    pieces = wire.assistant(said_of(f"anthropic/{file}").response, keeps_thinking=True)

    assert (orjson.dumps({"role": "assistant", "content": content}),) == pieces


@pytest.mark.parametrize(
    ("name", "file", "thought"),
    [
        ("anthropic-messages", "anthropic/success", b"EuYBexample=="),
        ("fireworks-kimi-k2p6-fast-chat", "fireworks/success", b"reasoning_content"),
        ("openrouter-responses", "openai/success", b"gAAAAABexample=="),
    ],
)
def test_thinking_is_left_out_once_the_turns_before_it_changed(name: str, file: str, thought: bytes) -> None:
    """It is bound to them, and a request with both is refused for ever."""
    profile = PROFILES[name].model_copy(update={"replays_reasoning": True})
    wire = wire_for(profile, model="m", session_id=SESSION)
    response = wire.said(recorded(file)["body"], {}).response

    kept, dropped = (b"".join(wire.assistant(response, keeps_thinking=keeps)) for keeps in (True, False))  # type: ignore[arg-type]

    assert thought in kept
    assert thought not in dropped
    assert b"computer_action" in dropped


def test_a_call_without_its_reasoning_loses_its_item_id() -> None:
    """OpenAI's routes refuse a call by an id whose reasoning is missing; it is paired by `call_id` all the same."""
    wire = wire_for(PROFILES["openrouter-responses"], model="m", session_id=SESSION)
    response = wire.said(recorded("openai/success")["body"], {}).response

    (call,) = wire.assistant(response, keeps_thinking=False)

    assert isinstance(call, bytes)
    assert ("call_Zk3a", False) == (orjson.loads(call)["call_id"], "id" in orjson.loads(call))


def has_own_wire(name: str) -> bool:
    """True when the answers of this profile's provider are in its own format, in the case table."""
    return PROFILES[name].wire == PROFILES[PROFILE_OF_FOLDER[PROFILES[name].provider]].wire


def golden_request(name: str, root: Path) -> Request:
    """The request of this name."""
    model, history = CASES[name]
    profile = PROFILES[name.rpartition("-")[0]]
    wire = wire_for(profile, model=model, session_id=SESSION)
    match history:
        case "first":
            items = later_items(wire, root)
        case "later":
            items = later_items(wire, root, f"{profile.provider}/success")
        case "compacted":
            items = later_items(wire, root, "anthropic/success", "anthropic/success_compaction")
        case _:
            digest = digest_text(["turn 1: 2 actions (click, type), carried out", "turn 2: not valid, nothing done"])
            items = [wire.first_user(opening_of(root, digest), Shown(NOW_TEXT, image(root, "frames/000003.png")))]
    return wire.request(items)


def readable(request: Request) -> dict[str, Any]:
    """A request as a person reads it: images by name, the tool's schema by the file it stands in."""
    marked = b"".join(
        piece if isinstance(piece, bytes) else f"$image:{piece.artifact.path}".encode() for piece in request.body.pieces
    )
    return {"path": request.path, "headers": dict(request.headers), "body": _named(orjson.loads(marked))}


_SCHEMA: Final = tool_schema()


def _named(value: Any) -> Any:
    if isinstance(value, dict) and value == _SCHEMA:
        return {"$file": f"{SCHEMA_FILE}.json"}
    if isinstance(value, dict):
        return {name: _named(below) for name, below in value.items()}
    if isinstance(value, list):
        return [_named(below) for below in value]
    if isinstance(value, str) and "$image:" in value:
        before, _, name = value.partition("$image:")
        return {"$image": name, "after": before} if before else {"$image": name}
    return value


def shape(value: Any) -> Any:
    """Fields, nesting, switches and numbers; words are only said to be there."""
    if isinstance(value, dict):
        if value.get("type") == "object" and "properties" in value:
            return "a tool schema"
        return {name: shape(below) for name, below in value.items()}
    if isinstance(value, list):
        return [shape(below) for below in value]
    return "words" if isinstance(value, str) else value


def _drop_text(content: list[Any]) -> None:
    texts = [number for number, part in enumerate(content) if "text" in part]
    del content[texts[-1]]


def write_golden() -> None:
    """Write every golden request anew."""
    GOLDEN.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        root = make_frames(Path(folder))
        requests = {name: readable(golden_request(name, root)) for name in CASES}
    for name, content in {**requests, SCHEMA_FILE: tool_schema()}.items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write_golden()
