"""Where in a JSON text a value stands: for messages about files that people write by hand."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import Final

Place = tuple[str | int, ...]


class Repeated(Exception):
    """An object has a key twice, and most readers silently take one of the two values."""

    def __init__(self, place: Place, first_line: int, line: int) -> None:
        super().__init__(place)
        self.place = place
        self.first_line = first_line
        self.line = line


def lines_of(text: str) -> dict[Place, int]:
    """The line, counted from 1, of every key and every list item of a JSON text, by its path from the top.

    Raises `json.JSONDecodeError`, `RecursionError` for a text that is nested too deeply, and `Repeated`.
    """
    json.loads(text)
    return _Walk(text).lines


class _Walk:
    """One way through a text that is known to be valid JSON, so that only its skeleton has to be told apart."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {(): 1}
        self._text = text
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._at = 0
        self._skip_blanks()
        self._value(())

    def _value(self, place: Place) -> None:
        match self._text[self._at]:
            case "{":
                self._inside(place, is_object=True)
            case "[":
                self._inside(place, is_object=False)
            case '"':
                self._string()
            case _:
                self._skip(_SCALAR)
        self._skip_blanks()

    def _inside(self, place: Place, *, is_object: bool) -> None:
        self._step()
        count = 0
        while self._text[self._at] not in "}]":
            line = bisect_right(self._newlines, self._at) + 1
            key: str | int = count
            if is_object:
                key = self._string()
                self._skip_blanks()
                self._step()
            self._note((*place, key), line)
            self._value((*place, key))
            if self._text[self._at] == ",":
                self._step()
            count += 1
        self._at += 1

    def _note(self, place: Place, line: int) -> None:
        if place in self.lines:
            raise Repeated(place, self.lines[place], line)
        self.lines[place] = line

    def _string(self) -> str:
        value, self._at = _DECODER.raw_decode(self._text, self._at)
        assert isinstance(value, str), "the text is valid JSON"
        return value

    def _step(self) -> None:
        """Over a bracket, a colon or a comma, and the blanks behind it."""
        self._at += 1
        self._skip_blanks()

    def _skip_blanks(self) -> None:
        self._skip(_BLANKS)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None, "the text is valid JSON"
        self._at = match.end()


_DECODER: Final = json.JSONDecoder()
_SCALAR: Final = re.compile(r"[^\s,\]}]+")
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
