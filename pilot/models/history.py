"""The items of one conversation, as a wire renders them: appended to, never edited, each serialized once.

It knows nothing of limits. `pilot.models.conversation` decides when it begins anew, and with what.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contract.rollout_records import After, ArtifactRef, ModelTurn
from pilot.models import prompt
from pilot.models.body import Image, Piece, merged
from pilot.models.digest import actions_in_short, lines_kept, outcome_line
from pilot.models.wire import Opening, Outcome, Shown, WireFormat
from pilot.ports import Observation

Item = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation, as the trace keeps it."""

    turn: int
    after: After
    text: str
    frame: Image

    @classmethod
    def in_observation(cls, observation: Observation, root: Path) -> Seen:
        """What the pilot shows now."""
        return cls(observation.turn, observation.after, observation.text, Image(root, observation.frame))

    @classmethod
    def in_turn(cls, turn: ModelTurn, root: Path) -> Seen:
        """What a turn has shown."""
        return cls(turn.turn, turn.after, turn.observation, Image(root, turn.artifact))


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer to a turn. `arguments` and `response` are null when it had no usable call."""

    turn: int
    arguments: dict[str, Any] | None
    response: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Base:
    """What a history begins with, instead of the turns that are gone. Its size has a bound.

    `first_turn` is the turn of its first message. `lines` tell of turns before that one. Up to `frames_left_out` old
    frames are left out, up to `thinking_left_out` answers are given back without what the model thought.
    """

    first_turn: int = 1
    lines: tuple[str, ...] = ()
    frames_left_out: int = 0
    thinking_left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    """The newest message: more may be said in it until the model gives a usable answer."""

    seen: Seen
    # The answer whose result it begins with; null for the first message.
    call: tuple[dict[str, Any], Outcome] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Pending:
    """A usable answer that becomes part of the conversation with the next observation."""

    reply: Reply
    item: Item
    digest: bytes = b""


class History:
    """What the model has seen and said since `base`.

    With `is_compact` it never has more than one message: each turn begins anew with one more line.
    """

    def __init__(
        self,
        wire: WireFormat,
        base: Base,
        *,
        text: str,
        reference: ArtifactRef,
        root: Path,
        lines_min: int,
        is_compact: bool,
    ) -> None:
        self.base = base
        self.items: list[Item] = []
        # Turn and size of each old frame that is still shown.
        self.old_frames: list[tuple[int, int]] = []
        # Calls with their results.
        self.pairs = 0
        self._wire = wire
        self._opening_text = text
        self._reference = Image(root, reference)
        self._lines_min = lines_min
        self._is_compact = is_compact
        self._lines: deque[str] = deque(base.lines, maxlen=2 * lines_min + 1)
        self._open: _Open | None = None
        self._pending: _Pending | None = None
        self._sealed = hashlib.sha256()

    @property
    def open_turn(self) -> int:
        """The turn that the newest message began with."""
        assert self._open is not None
        return self._open.seen.turn

    @property
    def images(self) -> int:
        """How many images a request shows: the reference, the newest frame and the old ones."""
        return 2 + len(self.old_frames)

    def newest_lines(self, count: int) -> tuple[str, ...]:
        """What became of the newest turns."""
        return tuple(self._lines)[-count:] if count else ()

    def follows(self, seen: Seen) -> bool:
        """Whether this observation agrees with the answer before it: usable ones are acted on, others are not."""
        return self._open is None or (seen.after == "malformed") == (self._pending is None)

    def see(self, seen: Seen) -> None:
        """Add an observation: to the open message after an answer without a usable call, else as a message."""
        pending, self._pending = self._pending, None
        if self._open is None:
            self._show(_Open(seen))
        elif seen.after == "malformed":
            self._show(replace(self._open, notes=(*self._open.notes, seen.text)))
        else:
            assert pending is not None, f"turn {seen.turn} follows no usable answer"
            self._go_on(pending, seen)

    def answer(self, reply: Reply) -> None:
        """Take note of an answer. It stays outside of the conversation until it is known what became of it."""
        assert self._open is not None
        if reply.arguments is None or reply.response is None:
            self._pending = None
            return
        if self._is_compact:
            short = actions_in_short(reply.arguments).encode()
            self._pending = _Pending(reply, (), digest=short)
            return
        keeps_thinking = reply.turn > self.base.thinking_left_out
        item = merged(self._wire.assistant(reply.response, keeps_thinking=keeps_thinking))
        self._pending = _Pending(reply, item)

    def begin_anew(self, base: Base) -> None:
        """Drop all turns before the open message, which becomes the first one."""
        assert self._open is not None
        assert base.first_turn == self.open_turn
        assert self._pending is None
        self.base = base
        self._lines = deque(base.lines, maxlen=2 * self._lines_min + 1)
        self.items = []
        self.old_frames = []
        self.pairs = 0
        self._sealed = hashlib.sha256()
        self._show(replace(self._open, call=None))

    def sha256(self) -> str:
        """Hex digest of everything that the next request is made of; images count by their checksums."""
        digest = self._sealed.copy()
        for item in (*self.items[-1:], self._pending.item if self._pending else ()):
            _update(digest, item)
        digest.update(self._pending.digest if self._pending else b"")
        return digest.hexdigest()

    def shown_images(self) -> list[Image]:
        """Every image that the next request will hold."""
        return [piece for item in self.items for piece in item if isinstance(piece, Image)]

    def _go_on(self, pending: _Pending, seen: Seen) -> None:
        assert self._open is not None
        reply = pending.reply
        self._lines.append(outcome_line(reply.turn, reply.arguments, seen.text))
        if self._is_compact:
            lines = lines_kept(tuple(self._lines), at_least=self._lines_min)
            self._open = _Open(seen)
            self.begin_anew(replace(self.base, first_turn=seen.turn, lines=lines))
            return
        assert reply.response is not None
        if self._is_shown(self._open.seen):
            self.old_frames.append((self.open_turn, self._open.seen.frame.body_bytes))
        _update(self._sealed, self.items[-1])
        _update(self._sealed, pending.item)
        self.items.append(pending.item)
        self.pairs += 1
        self.items.append(())
        self._show(_Open(seen, call=(reply.response, Outcome(seen.text, is_error=seen.after == "invalid"))))

    def _show(self, message: _Open) -> None:
        self._open = message
        self.items[-1:] = [merged(self._rendered(message))]

    def _rendered(self, message: _Open) -> Item:
        seen = message.seen
        is_shown = self._is_shown(seen)
        frame = seen.frame if is_shown else None
        if message.call is not None:
            text = prompt.NOW_TEXT if is_shown else prompt.left_out_text(seen.turn)
            response, outcome = message.call
            return self._wire.next_user(response, outcome, Shown(text, frame, message.notes))
        lines = prompt.digest_text(self.base.lines) if self.base.lines else None
        text = seen.text if seen.after == "start" else f"{prompt.NOW_TEXT} {seen.text}"
        if not is_shown:
            text = f"{seen.text} {prompt.left_out_text(seen.turn)}"
        return self._wire.first_user(
            Opening(self._opening_text, self._reference, lines), Shown(text, frame, message.notes)
        )

    def _is_shown(self, seen: Seen) -> bool:
        return seen.turn > self.base.frames_left_out


def _update(digest: Any, item: Item) -> None:
    for piece in item:
        # The separators keep a byte that moves from one piece to the next from going unseen.
        digest.update(b"%d:" % (len(piece) if isinstance(piece, bytes) else piece.artifact.size_bytes))
        digest.update(piece if isinstance(piece, bytes) else piece.artifact.sha256.encode())
