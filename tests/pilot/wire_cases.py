"""The case table of recorded requests and answers, as tests use it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from contract.profiles import PROFILES
from contract.rollout_records import ArtifactRef
from pilot.models.body import Image
from pilot.models.prompt import NOW_TEXT
from pilot.models.wire import Opening, Outcome, Request, Said, Shown, WireFormat
from pilot.models.wires import wire_for

WIRE: Final = Path(__file__).parent / "wire"
SESSION: Final = "batch7-rollout3"
OUTCOME: Final = Outcome(text="The last batch was carried out. 4998 actions are left.", is_error=False)
START: Final = "The desktop at the start: nothing was done yet. 5000 actions are left."
PROFILE_OF_FOLDER: Final = {
    "openai": "openai-responses",
    "openrouter": "openrouter-claude-responses",
    "anthropic": "anthropic-messages",
    "fireworks": "fireworks-kimi-k2p6-fast-chat",
    "mantle": "mantle-kimi-k2.5-chat",
    "bedrock": "bedrock-converse",
}


def recorded(file: str) -> dict[str, Any]:
    """An answer of the case table."""
    answer: dict[str, Any] = json.loads((WIRE / f"{file}.json").read_text())
    return answer


def wire_of(file: str) -> WireFormat:
    """The wire that reads this answer of the case table."""
    profile = PROFILES[PROFILE_OF_FOLDER[file.partition("/")[0]]]
    return wire_for(profile, model="a-model", session_id=SESSION)


def said_of(file: str) -> Said:
    """What this answer of the case table says."""
    answer = recorded(file)
    return wire_of(file).said(answer["body"], answer["headers"])


def make_frames(root: Path) -> Path:
    """A run folder. The pictures only need to differ: nothing here looks into them."""
    (root / "frames").mkdir()
    for number, name in enumerate(["reference.png", *(f"frames/{n:06}.png" for n in (1, 2, 3))]):
        (root / name).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes([number]) * (100 + number))
    return root


def image(root: Path, name: str) -> Image:
    """A picture of the run folder."""
    content = (root / name).read_bytes()
    return Image(root, ArtifactRef(path=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content)))


def opening_of(root: Path, digest: str | None = None) -> Opening:
    """How every golden conversation begins."""
    return Opening("Redraw the reference.\n\nThis is the reference picture:", image(root, "reference.png"), digest)


def later_items(wire: WireFormat, root: Path, *files: str, outcome: Outcome = OUTCOME) -> list[tuple[Any, ...]]:
    """A conversation in which the model said what these files hold."""
    items = [wire.first_user(opening_of(root), Shown(START, image(root, "frames/000001.png")))]
    for number, file in enumerate(files, start=2):
        answer = recorded(file)
        response = wire.said(answer["body"], answer["headers"]).response
        items.append(wire.assistant(response, keeps_thinking=True))
        items.append(wire.next_user(response, outcome, Shown(NOW_TEXT, image(root, f"frames/{number:06}.png"))))
    return items


def body_of(request: Request) -> bytes:
    """The bytes that are sent."""
    return b"".join(request.body.chunks())


def without_end(body: bytes) -> bytes:
    """Up to the closing brackets of the growing list."""
    assert body.endswith(b"]}")
    return body[: -len(b"]}")]


def result_of(body: dict[str, Any]) -> tuple[str, bool | None]:
    """The words right behind the one call of this history; whether they are marked as an error, where that exists."""
    items = body.get("input") or body["messages"]
    match items:
        case [*_, {"type": "function_call", "call_id": one}, {"type": "function_call_output", "call_id": other}, _]:
            assert one == other
            return items[-2]["output"], None
        case [*_, {"tool_calls": [{"id": one}]}, {"role": "tool", "tool_call_id": other}, {"role": "user"}]:
            assert one == other
            return items[-2]["content"], None
        case [_, {"content": [*_, {"toolUse": use}]}, {"content": [{"toolResult": result}, *_]}]:
            assert use["toolUseId"] == result["toolUseId"]
            return result["content"][0]["text"], result["status"] == "error"
        case _:
            use, result = items[1]["content"][-1], items[2]["content"][0]
            assert ("tool_use", use["id"]) == (use["type"], result["tool_use_id"])
            return result["content"][0]["text"], result.get("is_error", False)
