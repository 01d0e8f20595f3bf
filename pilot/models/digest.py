"""What became of a turn, on one line: all that remains of it once the turn itself has left the conversation.

The same turn gives the same line, in this process and in one that resumes it; no model is asked to summarize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

# Sixteen lines of this size are two thousand tokens at most, beside fifty thousand of the turns that they stand for.
ACTIONS_CHARS_MAX: Final = 240
RESULT_CHARS_MAX: Final = 240
TEXT_CHARS_MAX: Final = 60
ACTIONS_SHOWN_MAX: Final = 12


def outcome_line(turn: int, arguments: Any, result: str) -> str:
    """The turn, its actions in short, and what the next observation said about them. Never longer than a bound."""
    said = _cut(actions_in_short(arguments), ACTIONS_CHARS_MAX)
    return f"Turn {turn}: {said}. {_cut(_on_one_line(result), RESULT_CHARS_MAX)}"


def actions_in_short(arguments: Any) -> str:
    """The actions of a call as a person would note them; of an invalid call whatever can be told."""
    actions = arguments.get("actions") if isinstance(arguments, dict) else None
    if not isinstance(actions, list) or not actions:
        return "no actions"
    noted = [_in_short(action) for action in actions[:ACTIONS_SHOWN_MAX]]
    if len(actions) > ACTIONS_SHOWN_MAX:
        noted.append(f"{len(actions) - ACTIONS_SHOWN_MAX} more")
    return ", ".join(noted)


def lines_kept(lines: Sequence[str], *, at_least: int) -> tuple[str, ...]:
    """The lines to show: all of them until they are twice as many as needed, then the newest alone.

    So a text of these lines extends the one of the turn before, but once in so many turns.
    """
    return tuple(lines) if len(lines) <= 2 * at_least else tuple(lines[-at_least:])


def _in_short(action: Any) -> str:
    if not isinstance(action, dict):
        return "something that is no action"
    match action:
        case {"type": "move" | "scroll" as kind, "x": x, "y": y}:
            return f"{kind} {_place(x, y)}"
        case {"type": "click", "x": x, "y": y, "button": button, "clicks": clicks}:
            times = "" if clicks == 1 else f" x{_word(clicks)}"
            return f"{_word(button)} click{times} {_place(x, y)}"
        case {"type": "drag", "path": [[x, y], *_, [to_x, to_y]]}:
            return f"drag {_place(x, y)} to {_place(to_x, to_y)}"
        case {"type": "type", "text": str(text)}:
            return f'type "{_cut(_on_one_line(text), TEXT_CHARS_MAX)}"'
        case {"type": "keypress", "keys": [*keys]}:
            return f"press {'+'.join(map(_word, keys[:8]))}"
        case {"type": "wait", "seconds": seconds}:
            return f"wait {_word(seconds)} s"
        case {"type": kind}:
            return _word(kind)
        case _:
            return "something that is no action"


def _place(x: Any, y: Any) -> str:
    return f"({_word(x)}, {_word(y)})"


def _word(value: Any) -> str:
    return _cut(_on_one_line(str(value)), 20) if isinstance(value, str | int | float) else "?"


def _on_one_line(text: str) -> str:
    return text.replace("\n", "⏎").replace("\r", "⏎").replace("\t", " ")


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
