"""A rollout reduced to its conversation: observations, answers in any wire's own words, and the trace between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from contract.actions import TOOL_NAME
from contract.profiles import PROFILES, Profile, Wire
from contract.rollout_records import After, ArtifactRef, ModelTurn, RolloutSpec
from contract.run_dir import RunDir
from pilot.models.conversation import Conversation
from pilot.models.history import Reply
from pilot.models.wire import Request, Said, WireFormat
from pilot.models.wires import wire_for
from pilot.ports import Observation
from tests.fakes import FakeHost, batch, click, make_spec, screen_png, small_png

Kind = Literal["valid", "invalid", "malformed"]
AT: Final = datetime(2026, 1, 1, tzinfo=UTC)


def answer_body(
    wire: Wire, kind: Kind, number: int, *, tokens: int = 1000, thought: str = "Left first."
) -> dict[str, Any]:
    """What a model answers on this wire. Malformed ones are words without a call."""
    actions = [click(number % 1900, 20)] if kind == "valid" else []
    arguments = batch(*actions)
    is_call = kind != "malformed"
    text = orjson.dumps(arguments).decode()
    match wire:
        case Wire.RESPONSES:
            thinking = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": thought}
            call = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": TOOL_NAME,
                "arguments": text,
                "status": "completed",
            }
            words = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]}
            usage = {"input_tokens": tokens, "output_tokens": 9}
            return {"status": "completed", "output": [thinking, call if is_call else words], "usage": usage}
        case Wire.CHAT:
            message: dict[str, Any] = {"role": "assistant", "content": "Hm.", "reasoning_content": thought}
            if is_call:
                function = {"name": TOOL_NAME, "arguments": text}
                message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
            usage = {"prompt_tokens": tokens, "completion_tokens": 9}
            finish = "tool_calls" if is_call else "stop"
            return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}
        case Wire.MESSAGES:
            blocks: list[dict[str, Any]] = [{"type": "thinking", "thinking": thought, "signature": f"sig{number}"}]
            blocks.append(
                {"type": "tool_use", "id": f"toolu_{number}", "name": TOOL_NAME, "input": arguments}
                if is_call
                else {"type": "text", "text": "Hm."}
            )
            usage = {"input_tokens": tokens, "output_tokens": 9}
            stop = "tool_use" if is_call else "end_turn"
            return {"role": "assistant", "content": blocks, "stop_reason": stop, "usage": usage}
        case Wire.CONVERSE:
            use = {"toolUse": {"toolUseId": f"tooluse_{number}", "name": TOOL_NAME, "input": arguments}}
            content = [use if is_call else {"text": "Hm."}]
            usage = {"inputTokens": tokens, "outputTokens": 9, "totalTokens": tokens + 9}
            stop = "tool_use" if is_call else "end_turn"
            return {
                "output": {"message": {"role": "assistant", "content": content}},
                "stopReason": stop,
                "usage": usage,
            }


@dataclass
class Talk:
    """One conversation, and the pilot around it that knows no limits and no failures."""

    root: Path
    profile: Profile
    make_png: Callable[[str], bytes] = small_png
    turn: int = 1
    after: After = "start"
    text: str = "This is the desktop at the start. Actions left: 5000 of 5000."
    frames: int = 0
    spec: RolloutSpec = field(init=False)
    wire: WireFormat = field(init=False)
    conversation: Conversation = field(init=False)

    def __post_init__(self) -> None:
        self.spec = make_spec(self.root, FakeHost(make_png=self.make_png))
        self.run_dir.frames.mkdir(parents=True, exist_ok=True)
        self.run_dir.reference.write_bytes(Path(self.spec.task.reference).read_bytes())
        self.frame = self._new_frame()
        self.wire = wire_for(self.profile, model="a-model", session_id="batch-a-rollout-a")
        self.conversation = self.fresh()

    @property
    def run_dir(self) -> RunDir:
        return RunDir(Path(self.spec.run_dir))

    def fresh(self) -> Conversation:
        """As a pilot has it that was just started."""
        return Conversation(self.spec, self.profile, self.wire)

    def resumed(self) -> Conversation:
        """As a pilot has it that goes on from this moment's checkpoint."""
        conversation = self.fresh()
        conversation.restore(orjson.loads(orjson.dumps(self.conversation.state())))
        return conversation

    def observation(self) -> Observation:
        """What the model is shown in this turn."""
        return Observation(
            turn=self.turn,
            sequence=self.frames - 1,
            frame=self.frame,
            frame_path=self.run_dir.root / self.frame.path,
            after=self.after,
            text=self.text,
            actions_left=5000,
        )

    def ask(self) -> Request:
        """The request for this turn."""
        self.conversation.observe(self.observation())
        return self.conversation.request()

    def said(self, body: dict[str, Any]) -> Said:
        """How the wire reads this answer."""
        return self.wire.said(body, {})

    def hear(self, kind: Kind, **more: Any) -> None:
        """An answer of this kind to the turn that was asked for."""
        said = self.said(answer_body(self.profile.wire, kind, self.turn, **more))
        self.conversation.answered(
            Reply(self.turn, said.arguments, said.response),
            context_tokens=said.context_tokens,
            is_context_full=said.is_context_full,
        )
        self.write(kind, said.arguments, said.response)

    def write(self, kind: Kind, arguments: Any, response: dict[str, Any] | None) -> None:
        """The trace's line for this turn, and the next turn's observation."""
        line = ModelTurn(
            turn=self.turn,
            at=AT,
            frame=self.frames - 1,
            artifact=self.frame,
            after=self.after,
            observation=self.text,
            arguments=arguments,
            latency_s=0.0,
            response=response,
        )
        with self.run_dir.model_turns.open("ab") as file:
            file.write(line.model_dump_json().encode() + b"\n")
        self.turn += 1
        match kind:
            case "valid":
                self.after, self.text = (
                    "acted",
                    f"The action was carried out. Actions left: {5000 - self.turn} of 5000.",
                )
                self.frame = self._new_frame()
            case "invalid":
                self.after, self.text = "invalid", "Nothing was carried out, because the ActionBatch is invalid: none."
            case "malformed":
                self.after, self.text = "malformed", f"Nothing was carried out. Response {self.turn} had no call."

    def _new_frame(self) -> ArtifactRef:
        png = self.make_png(f"frame {self.frames}")
        path = self.run_dir.frame(self.frames)
        path.write_bytes(png)
        self.frames += 1
        return ArtifactRef(
            path=str(path.relative_to(self.run_dir.root)), sha256=hashlib.sha256(png).hexdigest(), size_bytes=len(png)
        )


def bytes_of(request: Request) -> bytes:
    """The body as it is sent."""
    return b"".join(request.body.chunks())


def without_end(body: bytes) -> bytes:
    """The body but for the brackets that close its growing list, and the message in it."""
    return body.rstrip(b"]}")


# Every wire and every kind of history, so small that a few turns meet each limit.
SMALL: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "compact": ("openai-responses", {"outcomes_kept": 2}),
    "compact converse": ("bedrock-converse", {"outcomes_kept": 2}),
    "append": ("openrouter-responses", {"images_max": 6}),
    "append with reasoning": ("openrouter-responses", {"images_max": 6, "replays_reasoning": True}),
    "append messages": ("anthropic-messages", {"images_max": 6}),
    "append converse": ("bedrock-converse", {"history": "append", "images_max": 6, "replays_reasoning": True}),
    "append by bytes": ("anthropic-messages", {"body_bytes_max": 160_000}),
    "digest messages": ("anthropic-fable-messages", {"digest_turns": 3, "outcomes_kept": 2}),
    "digest by tokens": ("anthropic-fable-messages", {"digest_input_tokens": 900, "outcomes_kept": 2}),
    "digest chat": ("fireworks-kimi-k2p6-fast-chat", {"digest_messages": 9, "outcomes_kept": 4}),
    "digest by images": ("mantle-kimi-k2.5-chat", {"images_max": 4, "outcomes_kept": 3}),
}


def profile(name: str, **changes: Any) -> Profile:
    """A profile with some of its facts changed."""
    return Profile.model_validate({**PROFILES[name].model_dump(), **changes})


def small(name: str) -> Profile:
    """A profile whose limits a few turns meet."""
    base, changes = SMALL[name]
    return profile(base, **changes)


def large_png(size_bytes: int) -> Any:
    """Makes frames of about this size."""
    return lambda label: screen_png(label, size_bytes=size_bytes)
