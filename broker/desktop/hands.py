"""Moves the mouse and the keyboard of one X server by XTEST, as a person would; knows nothing of the CAD program."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from Xlib import X
from Xlib.ext import xtest

from broker.desktop.keyboard import NAMED_KEYSYMS, Key, Keyboard
from contract.actions import Action, Click, Drag, Finish, Keypress, Move, Scroll, TypeText, Wait

BUTTONS: Final = {"left": 1, "middle": 2, "right": 3}
WHEEL_UP, WHEEL_DOWN, WHEEL_LEFT, WHEEL_RIGHT = 4, 5, 6, 7

# LibreCAD handles 1,100 to 2,000 characters a second and we send ten times that: wait for it every so often.
CHARS_PER_BARRIER: Final = 128
POINTS_PER_BARRIER: Final = 64
NOTCHES_PER_BARRIER: Final = 16
# A drag that jumps is not seen as one: programs want to see the pointer leave the spot, and arrive.
DRAG_STEP_PX: Final = 12
# Qt takes two clicks within 400 ms and 5 px for a double click; two actions at one spot must not become one.
DOUBLE_CLICK_S: Final = 0.42
DOUBLE_CLICK_PX: Final = 8
# Measured: typing at once after a change of the keyboard map corrupts text, 20 ms later it never did.
KEYMAP_PAUSE_S: Final = 0.02

Pause = Callable[[float], None]


class Hands:
    """Performs single actions.

    `catch_up` returns once window manager and application have handled all input so far, `rest` once the screen has
    also stopped changing.
    """

    def __init__(self, display: Any, *, catch_up: Callable[[], None], rest: Callable[[], object], pause: Pause) -> None:
        """`pause` waits so many seconds, and raises when the desktop is being ended meanwhile."""
        self._display = display
        self._catch_up = catch_up
        self._rest = rest
        self._pause = pause
        self._keyboard = Keyboard(display)
        self._last_click: tuple[int, int, str, float] | None = None
        # A key that is held must not repeat while the application is slow.
        display.change_keyboard_control(auto_repeat_mode=X.AutoRepeatModeOff)
        display.sync()

    def perform(self, action: Action) -> None:
        """Carry out one action. On an error keys may be down; `release_all` lets go."""
        match action:
            case Move(x=x, y=y):
                self._move(x, y)
            case Click():
                self._click(action)
            case Drag():
                self._drag(action)
            case Scroll():
                self._scroll(action)
            case TypeText(text=text):
                self._type(text)
            case Keypress(keys=keys):
                self._chord(keys)
            case Wait(seconds=seconds):
                self._pause(seconds)
            case Finish():
                pass
        self._display.flush()

    def rest_pointer(self, x: int, y: int) -> None:
        """Put the pointer somewhere, as part of a reset."""
        self._last_click = None
        self._move(x, y)
        self._display.sync()

    def release_all(self) -> None:
        """Release every key, button and lock that the server says is down."""
        for index, byte in enumerate(self._display.query_keymap()):
            for bit in range(8):
                if byte >> bit & 1:
                    self._key(index * 8 + bit, is_down=False)
        mask = self.root.query_pointer().mask
        for button in range(1, 6):
            if mask & (X.Button1Mask << (button - 1)):
                self._button(button, is_down=False)
        self._display.flush()

    def unlock(self) -> None:
        """Switch caps lock off, as part of a reset."""
        if self.root.query_pointer().mask & X.LockMask:
            self._tap(self._keyboard.named("capslock"))
            self._display.sync()

    @property
    def root(self) -> Any:
        """The root window."""
        return self._display.screen().root

    # -- mouse ------------------------------------------------------------------------------------------------------

    def _click(self, action: Click) -> None:
        self._keep_apart(action)
        self._move(action.x, action.y)
        with self._held(action.modifiers):
            for _ in range(action.clicks):
                self._press_button(BUTTONS[action.button])
        self._last_click = (action.x, action.y, action.button, time.monotonic())

    def _keep_apart(self, action: Click) -> None:
        if self._last_click is None:
            return
        x, y, button, at = self._last_click
        is_same_spot = abs(action.x - x) <= DOUBLE_CLICK_PX and abs(action.y - y) <= DOUBLE_CLICK_PX
        if is_same_spot and button == action.button:
            self._pause(max(0.0, at + DOUBLE_CLICK_S - time.monotonic()))

    def _drag(self, action: Drag) -> None:
        self._move(*action.path[0])
        with self._held(action.modifiers):
            self._button(BUTTONS[action.button], is_down=True)
            # What is dragged depends on what the press has hit, so the application must have seen it.
            self._catch_up()
            for count, (x, y) in enumerate(_steps(action.path), 1):
                self._move(x, y)
                if count % POINTS_PER_BARRIER == 0:
                    self._catch_up()
            self._catch_up()
            self._button(BUTTONS[action.button], is_down=False)

    def _scroll(self, action: Scroll) -> None:
        self._move(action.x, action.y)
        notches = [WHEEL_DOWN if action.dy > 0 else WHEEL_UP] * abs(action.dy)
        notches += [WHEEL_RIGHT if action.dx > 0 else WHEEL_LEFT] * abs(action.dx)
        with self._held(action.modifiers):
            for count, wheel in enumerate(notches, 1):
                self._press_button(wheel)
                if count % NOTCHES_PER_BARRIER == 0:
                    self._catch_up()

    def _move(self, x: int, y: int) -> None:
        xtest.fake_input(self._display, X.MotionNotify, x=x, y=y)

    def _press_button(self, button: int) -> None:
        self._button(button, is_down=True)
        self._button(button, is_down=False)

    def _button(self, button: int, *, is_down: bool) -> None:
        xtest.fake_input(self._display, X.ButtonPress if is_down else X.ButtonRelease, button)

    # -- keyboard ---------------------------------------------------------------------------------------------------

    def _type(self, text: str) -> None:
        """Type all of the text, exactly: caps lock, if on, is off meanwhile."""
        is_locked = bool(self.root.query_pointer().mask & X.LockMask)
        if is_locked:
            self._tap(self._keyboard.named("capslock"))
        typed = 0
        for piece in self._bindable_pieces(text):
            self._bind(piece)
            for char in piece:
                self._tap(self._keyboard.named(char))
                typed += 1
                if char == "\n" and typed < len(text):
                    # Enter may open a dialog, which must have the keyboard before the next character comes. On a busy
                    # machine the program may answer its pings before the dialog's text field has it.
                    self._rest()
                elif typed % CHARS_PER_BARRIER == 0:
                    self._catch_up()
        if is_locked:
            self._tap(self._keyboard.named("capslock"))

    def _bindable_pieces(self, text: str) -> Iterator[str]:
        """Cut the text so that no piece needs more new characters than there are keycodes for them."""
        start = 0
        seen: set[str] = set()
        for index, char in enumerate(text):
            seen.add(char)
            if len(seen) > self._keyboard.chars_at_once:
                yield text[start:index]
                start, seen = index, {char}
        yield text[start:]

    def _bind(self, chars: str) -> None:
        if all(self._keyboard.key_for(char) for char in set(chars)):
            return
        # Keys still under way must be read by the old map.
        self._catch_up()
        self._keyboard.bind(chars)
        self._catch_up()
        self._pause(KEYMAP_PAUSE_S)

    def _chord(self, names: Sequence[str]) -> None:
        self._bind("".join(name for name in names if name not in NAMED_KEYSYMS))
        keys = [self._keyboard.named(name) for name in names]
        shift = self._keyboard.named("shift")
        if any(key.needs_shift for key in keys) and "shift" not in names:
            keys.insert(0, shift)
        for key in keys:
            self._key(key.keycode, is_down=True)
        for key in reversed(keys):
            self._key(key.keycode, is_down=False)

    def _tap(self, key: Key) -> None:
        with self._held(["shift"] if key.needs_shift else []):
            self._key(key.keycode, is_down=True)
            self._key(key.keycode, is_down=False)

    @contextlib.contextmanager
    def _held(self, modifiers: Sequence[str]) -> Iterator[None]:
        codes = [self._keyboard.named(name).keycode for name in modifiers]
        for code in codes:
            self._key(code, is_down=True)
        yield
        for code in reversed(codes):
            self._key(code, is_down=False)

    def _key(self, keycode: int, *, is_down: bool) -> None:
        xtest.fake_input(self._display, X.KeyPress if is_down else X.KeyRelease, keycode)


def _steps(path: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Every point after the first, with points between those that lie far apart."""
    for (x0, y0), (x1, y1) in itertools.pairwise(path):
        count = max(1, -(-max(abs(x1 - x0), abs(y1 - y0)) // DRAG_STEP_PX))
        for i in range(1, count + 1):
            yield x0 + (x1 - x0) * i // count, y0 + (y1 - y0) * i // count
