"""A conversation within its limits: what to send for a turn, when to begin anew, and how to go on after a kill.

Limits are looked at before a request exists, so none is ever sent that breaks one. What leaves a conversation leaves it
in one go and rarely, because every change of old text costs the provider's cache. A change of anything but the end is a
new `Base` and a history that is made from it; a resumed pilot makes the same one from the same lines of the trace.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from contract.broker_api import Sha256
from contract.errors import StateError
from contract.profiles import HistoryKind, Profile, Wire
from contract.records import Record
from contract.rollout_records import ArtifactRef, RolloutSpec
from contract.run_dir import RunDir
from pilot.models import prompt
from pilot.models.history import Base, History, Reply, Seen
from pilot.models.turns import check_image, read_turns
from pilot.models.wire import Request, WireFormat
from pilot.ports import Observation, TooLarge

log = logging.getLogger("pilot.models")

# In the place of a checksum when nothing has been seen.
NO_HISTORY: Final = "0" * 64


class ConversationState(Record):
    """What a checkpoint holds of a conversation. Its size has a bound; the turns themselves are in the trace."""

    schema_: Annotated[Literal["autocad-bench.conversation/1"], Field(alias="schema")] = "autocad-bench.conversation/1"
    first_turn: int
    last_turn: int
    lines: tuple[str, ...]
    frames_left_out: int
    thinking_left_out: int
    context_tokens: int | None
    is_context_full: bool
    context_cuts: int
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class _Context:
    """What the model's answers say about the room that is left. `cuts` counts those made for the open message."""

    tokens: int | None = None
    is_full: bool = False
    cuts: int = 0


class Conversation:
    """One rollout's conversation with one model.

    `observe` and `answered` take turns; `request` says what to send. An observation that comes again changes nothing.
    """

    def __init__(self, spec: RolloutSpec, profile: Profile, wire: WireFormat) -> None:
        self._spec = spec
        self._profile = profile
        self._wire = wire
        self._run_dir = RunDir(Path(spec.run_dir))
        self._history: History | None = None
        self._context = _Context()
        self._seen_turn = 0
        self._answered_turn = 0
        self._seen: Seen | None = None
        self._request: Request | None = None
        self._state = self._state_now()

    @property
    def base(self) -> Base:
        """What it begins with instead of the turns that are gone."""
        return self._history.base if self._history else Base()

    @property
    def can_shrink_for_context(self) -> bool:
        """Whether the open message has not been the reason of a cut yet."""
        return self._context.cuts == 0

    def observe(self, observation: Observation) -> None:
        """Take in what the model is to see, and make room for it. Raises `StateError`."""
        if observation.turn == self._seen_turn:
            return
        if self._history is None:
            self._history = self._made(Base(first_turn=observation.turn))
        self._seen = Seen.in_observation(observation, self._run_dir.root)
        self._seen_turn = observation.turn
        self._history.see(self._seen)
        if self._seen.after != "malformed":
            self._context = replace(self._context, cuts=0)
        self._request = None
        self._make_room(self._history)

    def request(self) -> Request:
        """The request for the observed turn. Raises `TooLarge` when nothing more can be left out of it."""
        request = self._whole()
        if not self._fits(request):
            limits = self._profile
            raise TooLarge(
                f"the request for turn {self._seen_turn} has {request.body.length} bytes and {self._started.images}"
                f" images after all that could be left out; {limits.body_bytes_max} bytes and {limits.images_max}"
                " images are allowed",
                hint="Use a smaller reference picture, or a profile with a higher limit.",
            )
        return request

    def answered(self, reply: Reply, *, context_tokens: int | None, is_context_full: bool = False) -> None:
        """Take in an answer to the observed turn. What became of it, the next observation says."""
        assert reply.turn == self._seen_turn
        self._started.answer(reply)
        self._answered_turn = reply.turn
        self._context = _Context(context_tokens, is_context_full, self._context.cuts)
        self._state = self._state_now()

    def shrink(self, why: str, *, is_context: bool = False) -> bool:
        """Make the request for the observed turn smaller, whatever its size. False when nothing more can be left out.

        Raises `StateError` when the trace cannot be read back.
        """
        history = self._started
        before = self._whole().body.length
        if is_context:
            self._context = replace(self._context, cuts=self._context.cuts + 1)
        match self._profile.history:
            case HistoryKind.APPEND:
                self._leave_out_frames(
                    history, bytes_max=before - _old_bytes(history) // 2, images_max=history.images - 1
                )
            case _ if history.pairs:
                self._cut(history)
            case _:
                lines = history.base.lines
                kept = replace(history.base, first_turn=history.open_turn, lines=lines[len(lines) - len(lines) // 2 :])
                history.begin_anew(kept)
        self._request = None
        is_smaller = self._whole().body.length < before
        log.info("turn %d: the request was made smaller (%s): %s", self._seen_turn, why, is_smaller)
        return is_smaller

    def state(self) -> dict[str, Any]:
        """What `restore` needs beside the trace up to the last answer: how things stood then."""
        return self._state.model_dump(mode="json")

    def restore(self, state: dict[str, Any]) -> None:
        """Become the conversation that `state` describes, from the trace, with every shown image verified.

        Raises `StateError` when the state, the trace and the images do not agree.
        """
        try:
            told = ConversationState.model_validate(state)
        except ValidationError as error:
            raise StateError(f"the conversation's state is not usable: {error.errors()[0]['msg']}") from error
        self._context = _Context(told.context_tokens, told.is_context_full, told.context_cuts)
        if told.last_turn == 0:
            return
        base = Base(told.first_turn, told.lines, told.frames_left_out, told.thinking_left_out)
        history = self._history = self._rebuilt(base, last_turn=told.last_turn)
        if history.sha256() != told.sha256:
            span = f"turns {told.first_turn} to {told.last_turn}"
            raise StateError(f"{span} of the trace do not make the conversation that the checkpoint has seen")
        for image in history.shown_images():
            check_image(image)
        self._seen_turn = self._answered_turn = told.last_turn
        self._state = told

    @property
    def _started(self) -> History:
        assert self._history is not None, "nothing was observed yet"
        return self._history

    def _state_now(self) -> ConversationState:
        base, context = self.base, self._context
        return ConversationState(
            first_turn=base.first_turn,
            last_turn=self._answered_turn,
            lines=base.lines,
            frames_left_out=base.frames_left_out,
            thinking_left_out=base.thinking_left_out,
            context_tokens=context.tokens,
            is_context_full=context.is_full,
            context_cuts=context.cuts,
            sha256=self._history.sha256() if self._history else NO_HISTORY,
        )

    def _made(self, base: Base) -> History:
        reference = self._run_dir.reference
        try:
            size_bytes = reference.stat().st_size
        except OSError as error:
            raise StateError(f"cannot read {reference}: {error.strerror or error}") from error
        task = self._spec.task
        return History(
            self._wire,
            base,
            text=prompt.opening_text(task, self._spec.limits.actions),
            reference=ArtifactRef(path=reference.name, sha256=task.reference_sha256, size_bytes=size_bytes),
            root=self._run_dir.root,
            lines_min=self._profile.outcomes_kept,
            is_compact=self._profile.history is HistoryKind.COMPACT,
        )

    def _rebuilt(self, base: Base, *, last_turn: int) -> History:
        """The history of the turns in the trace, up to the answer to `last_turn`."""
        history = self._made(base)
        for turn in read_turns(self._run_dir.model_turns, first=base.first_turn, last=last_turn):
            seen = Seen.in_turn(turn, self._run_dir.root)
            if not history.follows(seen):
                raise StateError(f"turn {turn.turn} of the trace does not agree with the answer before it")
            try:
                history.see(seen)
                history.answer(Reply(turn.turn, turn.arguments, turn.response))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise StateError(f"turn {turn.turn} of the trace follows an answer that is not one") from error
        return history

    def _whole(self) -> Request:
        if self._request is None:
            self._request = self._wire.request(self._started.items)
        return self._request

    def _fits(self, request: Request) -> bool:
        profile = self._profile
        return request.body.length <= profile.body_bytes_max and self._started.images <= profile.images_max

    def _make_room(self, history: History) -> None:
        if self._context.is_full:
            self._context = replace(self._context, is_full=False)
            self.shrink("the context was full", is_context=True)
        elif self._profile.history is HistoryKind.DIGEST and history.pairs and self._is_digest_due(history):
            self._cut(history)
        if self._fits(self._whole()):
            return
        if self._profile.history is HistoryKind.APPEND:
            # Half of the limit, so that it takes as long again until old text changes once more.
            limits = self._profile
            self._leave_out_frames(history, bytes_max=limits.body_bytes_max // 2, images_max=limits.images_max // 2)
        elif history.pairs:
            self._cut(history)

    def _is_digest_due(self, history: History) -> bool:
        profile, tokens = self._profile, self._context.tokens
        # In a chat, the tool's result and what the model sees then are two messages.
        messages = 1 + history.pairs * (3 if profile.wire is Wire.CHAT else 2)
        return (
            (profile.digest_turns is not None and history.pairs >= profile.digest_turns)
            or (profile.digest_messages is not None and messages >= profile.digest_messages)
            or (profile.digest_input_tokens is not None and (tokens or 0) >= profile.digest_input_tokens)
        )

    def _cut(self, history: History) -> None:
        """Keep one line of each of the newest turns in the place of all turns."""
        lines = history.newest_lines(self._profile.outcomes_kept)
        history.begin_anew(Base(first_turn=history.open_turn, lines=lines))
        self._context = replace(self._context, tokens=None)
        self._request = None
        log.info("turn %d: a digest of %d outcomes takes the place of older turns", self._seen_turn, len(lines))

    def _leave_out_frames(self, history: History, *, bytes_max: int, images_max: int) -> None:
        """Leave out the oldest frames until both limits hold, or none but the newest is left."""
        length, images = self._whole().body.length, history.images
        last = history.base.frames_left_out
        for turn, body_bytes in history.old_frames:
            if length <= bytes_max and images <= images_max:
                break
            length, images, last = length - body_bytes, images - 1, turn
        if last == history.base.frames_left_out:
            return
        # What a model thought is bound to the text before it, which changes now.
        base = replace(history.base, frames_left_out=last, thinking_left_out=self._answered_turn)
        changed = self._rebuilt(base, last_turn=self._answered_turn)
        assert self._seen is not None
        changed.see(self._seen)
        self._history = changed
        self._request = None
        log.info("turn %d: frames up to turn %d are left out", self._seen_turn, last)


def _old_bytes(history: History) -> int:
    return sum(body_bytes for _, body_bytes in history.old_frames)
