"""JSON in pieces: text that is serialized once, with images between that stay files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pilot.models.body import Body, Image, Piece, merged

# Where the image goes in a template. JSON escapes it, so it cannot be mistaken for anything else of a template.
HOLE: Final = "\x1f"
_ESCAPED_HOLE: Final = b"\\u001f"


@dataclass(frozen=True, slots=True)
class ImageTemplate:
    """The JSON around an image's base64."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, value: dict[str, Any]) -> ImageTemplate:
        """The template that is `value` with `HOLE` in the place of the base64."""
        before, after = orjson.dumps(value).split(_ESCAPED_HOLE)
        return cls(before, after)

    def filled(self, image: Image) -> tuple[Piece, ...]:
        """The JSON with this image in it."""
        return (self.before, image, self.after)


def listed(prefix: bytes, parts: Iterable[tuple[Piece, ...]], suffix: bytes) -> tuple[Piece, ...]:
    """The parts with commas between, in `prefix` and `suffix`."""
    pieces: list[Piece] = [prefix]
    for number, part in enumerate(parts):
        if number:
            pieces.append(b",")
        pieces.extend(part)
    pieces.append(suffix)
    return merged(pieces)


@dataclass(frozen=True, slots=True)
class BodyHead:
    """A body but for its growing list, which stands last. `first` are items that every such list begins with."""

    text: bytes

    @classmethod
    def of(cls, fields: dict[str, Any], growing: str, first: Sequence[dict[str, Any]] = ()) -> BodyHead:
        """The body with these fields, then the list `growing`."""
        kept = {name: value for name, value in fields.items() if name != growing}
        opened = orjson.dumps({**kept, growing: list(first)})
        return cls(opened[: -len(b"]}")])

    def body(self, items: Sequence[tuple[Piece, ...]]) -> Body:
        """The whole body with these items."""
        pieces: list[Piece] = [self.text]
        # What the text ends with tells whether an item stands there already.
        needs_comma = not self.text.endswith(b"[")
        for item in items:
            if needs_comma:
                pieces.append(b",")
            pieces.extend(item)
            needs_comma = True
        pieces.append(b"]}")
        return Body.of(pieces)
