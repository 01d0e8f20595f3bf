"""Which key, with or without shift, gives which character on one X server; binds what no key gives.

Characters that the layout lacks are put on unused keycodes, all of a text in one request: Qt takes milliseconds for one
change of the keyboard map and seconds for nineteen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from Xlib import XK

# Signs that drawings are full of, bound before the CAD program starts, so that typing them costs nothing.
CAD_SIGNS: Final = "Øø°±²³µ×÷½¼¾⌀≤≥≈√äöüßÄÖÜéè–—·αβπΔΩ"
# X protocol: a Unicode character without a keysym of its own has this bit set (keysyms of Latin-1 are their code).
UNICODE_KEYSYM: Final = 0x0100_0000
_MULTIMEDIA_KEYSYMS: Final = range(0x1008_FE00, 0x1009_0000)

NAMED_KEYSYMS: Final[dict[str, int]] = {
    "shift": XK.XK_Shift_L,
    "ctrl": XK.XK_Control_L,
    "alt": XK.XK_Alt_L,
    "super": XK.XK_Super_L,
    "enter": XK.XK_Return,
    "esc": XK.XK_Escape,
    "tab": XK.XK_Tab,
    "space": XK.XK_space,
    "backspace": XK.XK_BackSpace,
    "delete": XK.XK_Delete,
    "insert": XK.XK_Insert,
    "home": XK.XK_Home,
    "end": XK.XK_End,
    "pageup": XK.XK_Page_Up,
    "pagedown": XK.XK_Page_Down,
    "up": XK.XK_Up,
    "down": XK.XK_Down,
    "left": XK.XK_Left,
    "right": XK.XK_Right,
    "capslock": XK.XK_Caps_Lock,
    "numlock": XK.XK_Num_Lock,
    "menu": XK.XK_Menu,
    "print": XK.XK_Print,
} | {f"f{n}": XK.XK_F1 + n - 1 for n in range(1, 13)}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the keyboard, and whether shift must be down for what is wanted."""

    keycode: int
    needs_shift: bool


class Keyboard:
    """The keyboard map of one X server, read once, changed by us alone."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._first = display.display.info.min_keycode
        count = display.display.info.max_keycode - self._first + 1
        rows = [list(row) for row in display.get_keyboard_mapping(self._first, count)]
        self._keys: dict[int, Key] = {}
        # Unused keycodes first, then keys for volume and mail that no drawing needs.
        spare = [code for code, row in enumerate(rows, self._first) if not any(row)]
        spare += [code for code, row in enumerate(rows, self._first) if any(row) and _is_multimedia(row)]
        for code, row in enumerate(rows, self._first):
            if code not in spare:
                for level, keysym in enumerate(row[:2]):
                    if keysym and keysym not in self._keys:
                        self._keys[keysym] = Key(code, needs_shift=level == 1)
        self._spare = spare
        # Bound characters, the one used longest ago first.
        self._bound: OrderedDict[int, int] = OrderedDict()
        self.bind(CAD_SIGNS)

    @property
    def chars_at_once(self) -> int:
        """How many different characters can be bound at one time."""
        return len(self._spare)

    def key_for(self, char: str) -> Key | None:
        """The key for a character, None when it must be bound first. Newline is Enter."""
        keysym = keysym_of(char)
        if keysym in self._bound:
            self._bound.move_to_end(keysym)
            return Key(self._bound[keysym], needs_shift=False)
        return self._keys.get(keysym)

    def named(self, name: str) -> Key:
        """The key that `keypress` calls by this name: one of `NAMED_KEYS`, or a character that is bound."""
        if name in NAMED_KEYSYMS:
            return self._keys[NAMED_KEYSYMS[name]]
        key = self.key_for(name)
        assert key is not None, f"{name!r} was not bound"
        return key

    def bind(self, chars: Iterable[str]) -> bool:
        """Make all of `chars` typable, at most `chars_at_once` new ones. True when the map has changed."""
        wanted = list(dict.fromkeys(keysym_of(char) for char in chars))
        missing = [keysym for keysym in wanted if keysym not in self._bound and keysym not in self._keys]
        assert len(missing) <= len(self._spare), "more characters than keycodes"
        if not missing:
            return False
        for keysym in wanted:
            if keysym in self._bound:
                self._bound.move_to_end(keysym)
        free = [code for code in self._spare if code not in self._bound.values()]
        for keysym in missing:
            code = free.pop(0) if free else self._bound.popitem(last=False)[1]
            self._bound[keysym] = code
        self._write()
        return True

    def _write(self) -> None:
        first = min(self._bound.values())
        last = max(self._bound.values())
        rows = [list(row) for row in self._display.get_keyboard_mapping(first, last - first + 1)]
        for keysym, code in self._bound.items():
            # The same on every level: neither shift nor a lock may change it.
            rows[code - first] = [keysym] * len(rows[code - first])
        self._display.change_keyboard_mapping(first, rows)
        self._display.sync()


def keysym_of(char: str) -> int:
    """The X keysym of one typable character."""
    if char == "\n":
        return int(XK.XK_Return)
    if char == "\t":
        return int(XK.XK_Tab)
    code = ord(char)
    return code if code < 0x100 else UNICODE_KEYSYM | code


def _is_multimedia(row: list[int]) -> bool:
    return all(keysym == 0 or keysym in _MULTIMEDIA_KEYSYMS for keysym in row)
