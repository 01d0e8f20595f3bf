"""The message that shows the model something: the same parts in the same order in every format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pilot.models.body import Piece
from pilot.models.json_pieces import ImageTemplate, listed
from pilot.models.wire import Opening, Shown

ROLE_AND_CONTENT: Final = b'{"role":"user","content":['


@dataclass(frozen=True, slots=True)
class UserMessages:
    """How one format writes them. `text` makes a part of a text; `reference` is for the picture of the task alone."""

    text: Callable[[str], dict[str, Any]]
    image: ImageTemplate
    reference: ImageTemplate
    opened: bytes = ROLE_AND_CONTENT

    def first(self, opening: Opening, shown: Shown, *, behind_reference: Iterable[dict[str, Any]] = ()) -> list[Part]:
        """The task, its picture, what is left of earlier turns, and the desktop."""
        digest = () if opening.digest is None else (self._text(opening.digest),)
        return [
            self._text(opening.text),
            self.reference.filled(opening.reference),
            *((orjson.dumps(part),) for part in behind_reference),
            *digest,
            *self.shown(shown),
        ]

    def shown(self, shown: Shown) -> Iterator[Part]:
        """The desktop: a text, its frame, and the notes."""
        yield self._text(shown.text)
        if shown.frame is not None:
            yield self.image.filled(shown.frame)
        # Behind the frame, so that a request which is asked again extends the bytes of the one before.
        yield from (self._text(note) for note in shown.notes)

    def message(self, parts: Iterable[Part]) -> Part:
        """One message of these parts."""
        return listed(self.opened, parts, b"]}")

    def _text(self, text: str) -> Part:
        return (orjson.dumps(self.text(text)),)


Part = tuple[Piece, ...]
