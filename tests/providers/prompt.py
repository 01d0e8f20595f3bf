"""A request as the model sees it: a sequence of units with their tokens, in which prefixes are compared."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tests.providers.images import ImageFacts

# Text is compared in pieces of this many bytes, so that a text which grew at its end shares a prefix with the old one.
PIECE_BYTES: Final = 64
BYTES_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of the prompt. `chain` identifies it together with everything before it; `end` are the tokens so far."""

    chain: int
    end: int


@dataclass(slots=True)
class Prompt:
    """The units of one request in order, and where in it something happens.

    `breakpoints` maps the number of units before a cache breakpoint to its lifetime; `blocks` are the numbers of units
    at the ends of content blocks, which look-back counts. `head` identifies all up to the first image: tools, system,
    task and reference.
    """

    units: list[Unit] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    breakpoints: dict[int, str] = field(default_factory=dict)
    head: int | None = None

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.units[-1].end if self.units else 0

    @property
    def chain(self) -> int:
        """Identifies the whole prompt."""
        return self.units[-1].chain if self.units else 0

    def tokens_before(self, count: int) -> int:
        """Tokens of the first `count` units."""
        return self.units[count - 1].end if count else 0

    def add(self, key: Hashable, tokens: int) -> None:
        """One unit."""
        self.units.append(Unit(hash((self.chain, key)), self.tokens + tokens))

    def text(self, text: str) -> None:
        """A block of text."""
        content = text.encode()
        for start in range(0, len(content), PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            self.add(piece, -(-len(piece) // BYTES_PER_TOKEN))
        self.end_block()

    def json(self, value: Any) -> None:
        """A block of anything else that is read as text. Key order does not matter, nor do cache marks."""
        self.text(orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode())

    def image(self, provider: str, image: ImageFacts) -> None:
        """A block that is an image."""
        self.add(image.key, image.tokens(provider))
        if self.head is None:
            self.head = self.chain
        self.end_block()

    def end_block(self) -> None:
        """A content block ends here."""
        self.blocks.append(len(self.units))

    def mark(self, ttl: str) -> None:
        """A cache breakpoint stands here."""
        self.breakpoints[len(self.units)] = ttl

    def cut_to(self, start: int, then: Iterable[tuple[Hashable, int]]) -> Prompt:
        """A new prompt: the units before `start`, then those of `then`."""
        out = Prompt(
            units=self.units[:start],
            blocks=[block for block in self.blocks if block <= start],
            breakpoints={count: ttl for count, ttl in self.breakpoints.items() if count <= start},
            head=self.head,
        )
        for key, tokens in then:
            out.add(key, tokens)
            out.end_block()
        return out


@dataclass(slots=True)
class Asked:
    """What a checked request asks for.

    `session` groups the requests of one rollout, `task` is the checksum of the first image: the reference picture.
    `facts` is what only this API's answers need.
    """

    provider: str
    api: str
    model: str
    session: str
    prompt: Prompt
    images: Sequence[ImageFacts]
    tool: str
    is_forced: bool
    output_tokens_max: int
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """Which picture is to be drawn."""
        return self.images[0].sha256 if self.images else ""
