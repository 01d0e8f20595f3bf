"""The action union, the ActionBatch, and the strict tool schema made from them.

Pixels are those of the 1920x1080 desktop: 0 <= x < 1920, 0 <= y < 1080, origin at the top left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

SCREEN_WIDTH_PX: Final = 1920
SCREEN_HEIGHT_PX: Final = 1080
WAIT_S_MAX: Final = 30.0
# Not in the design: bounds that keep one action from being a program of its own. The longest proven oracle script
# types 300 characters at once; a drag over 10,000 points would take the mouse half a minute.
TEXT_CHARS_MAX: Final = 20_000
PATH_POINTS_MAX: Final = 10_000
NOTCHES_MAX: Final = 100
KEYS_MAX: Final = 8
# A reason quotes what was wrong, and a model may have written megabytes of it.
QUOTE_CHARS_MAX: Final = 300

TOOL_NAME: Final = "computer_action"
TOOL_DESCRIPTION: Final = (
    "Run a batch of mouse and keyboard actions in order on the 1920x1080 desktop. "
    "Only the frame after the last one is returned. Each action costs one from the action budget."
)

PixelX = Annotated[int, Field(ge=0, lt=SCREEN_WIDTH_PX)]
PixelY = Annotated[int, Field(ge=0, lt=SCREEN_HEIGHT_PX)]
Point = tuple[PixelX, PixelY]
Button = Literal["left", "right", "middle"]
Modifier = Literal["shift", "ctrl", "alt"]
Notches = Annotated[int, Field(ge=-NOTCHES_MAX, le=NOTCHES_MAX)]

# The names that `keypress` understands besides every single character that a keyboard can type.
NAMED_KEYS: Final[frozenset[str]] = frozenset(
    {"shift", "ctrl", "alt", "super", "enter", "esc", "tab", "space", "backspace", "delete", "insert"}
    | {
        "home",
        "end",
        "pageup",
        "pagedown",
        "up",
        "down",
        "left",
        "right",
        "capslock",
        "numlock",
        "menu",
        "print",
    }
    | {f"f{n}" for n in range(1, 13)}
)


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Move(_Shape):
    """Move the pointer to (x, y)."""

    type: Literal["move"] = "move"
    x: PixelX
    y: PixelY


class Click(_Shape):
    """Press and release a button at (x, y), `clicks` times, with modifiers held."""

    type: Literal["click"] = "click"
    x: PixelX
    y: PixelY
    button: Button
    clicks: Literal[1, 2, 3]
    modifiers: list[Modifier]


class Drag(_Shape):
    """Press at the first point of the path, move through the rest, release at the last."""

    type: Literal["drag"] = "drag"
    path: Annotated[list[Annotated[list[int], Field(min_length=2, max_length=2)]], Field(min_length=2)]
    button: Button
    modifiers: list[Modifier]


class Scroll(_Shape):
    """Turn the wheel at (x, y) by dx, dy notches; +dy scrolls down, +dx scrolls right."""

    type: Literal["scroll"] = "scroll"
    x: PixelX
    y: PixelY
    dx: Notches
    dy: Notches
    modifiers: list[Modifier]


class TypeText(_Shape):
    """Type the text; a newline is Enter."""

    type: Literal["type"] = "type"
    text: Annotated[str, Field(max_length=TEXT_CHARS_MAX)]


class Keypress(_Shape):
    """Press one chord: keys go down in order and up in reverse."""

    type: Literal["keypress"] = "keypress"
    keys: Annotated[list[str], Field(min_length=1, max_length=KEYS_MAX)]


class Wait(_Shape):
    """Let `seconds` pass, 0 to 30."""

    type: Literal["wait"] = "wait"
    seconds: Annotated[float, Field(ge=0, le=WAIT_S_MAX, allow_inf_nan=False)]


class Finish(_Shape):
    """Say that the drawing is done, or that the task cannot be done. Only as the last action."""

    type: Literal["finish"] = "finish"
    status: Literal["done", "infeasible"]
    summary: Annotated[str, Field(max_length=TEXT_CHARS_MAX)]


Action = Move | Click | Drag | Scroll | TypeText | Keypress | Wait | Finish
ACTION_TYPES: Final[tuple[type[_Shape], ...]] = (Move, Click, Drag, Scroll, TypeText, Keypress, Wait, Finish)

# Built at first use: a pilot that has not been answered yet does not pay for it.
_ACTIONS: Final[TypeAdapter[list[Action]]] = TypeAdapter(
    list[Annotated[Action, Field(discriminator="type")]], config=ConfigDict(defer_build=True)
)


@dataclass(frozen=True, slots=True)
class InvalidActions:
    """Why an ActionBatch was not carried out. It is the model's next observation, not an error."""

    reason: str


def parse_action_batch(arguments: object, *, budget: int) -> tuple[Action, ...] | InvalidActions:
    """Check `{"actions": [...]}` whole, before anything happens.

    `budget` is the number of actions that the rollout has left; a longer list is refused whole.
    """
    if not isinstance(arguments, dict) or set(arguments) != {"actions"}:
        return InvalidActions('The call must be one JSON object with the single field "actions".')
    try:
        actions = _ACTIONS.validate_python(arguments["actions"])
    except ValidationError as error:
        return InvalidActions(_first_problems(error))
    return _whole_batch_problem(actions, budget=budget) or tuple(actions)


def _whole_batch_problem(actions: Sequence[Action], *, budget: int) -> InvalidActions | None:
    if not actions:
        return InvalidActions("actions: the list is empty; give at least one action.")
    if len(actions) > budget:
        return InvalidActions(f"actions: {len(actions)} actions do not fit the {budget} left in the action budget.")
    for index, action in enumerate(actions):
        problem = _action_problem(action, is_last=index == len(actions) - 1)
        if problem:
            return InvalidActions(f"actions[{index}]: {problem}")
    return None


def _action_problem(action: Action, *, is_last: bool) -> str | None:
    match action:
        case Finish() if not is_last:
            return "finish may only be the last action."
        case Click(modifiers=held) | Drag(modifiers=held) | Scroll(modifiers=held) if len(set(held)) != len(held):
            return "a modifier stands twice."
        case Drag(path=path):
            if len(path) > PATH_POINTS_MAX:
                return f"path has {len(path)} points; at most {PATH_POINTS_MAX} are allowed."
            for x, y in path:
                if not (0 <= x < SCREEN_WIDTH_PX and 0 <= y < SCREEN_HEIGHT_PX):
                    return (
                        f"path point {_quoted(str([x, y]))} is outside the {SCREEN_WIDTH_PX}x{SCREEN_HEIGHT_PX} screen."
                    )
        case TypeText(text=text):
            bad = sorted({char for char in text if not is_typable(char)})
            if bad:
                return f"text has characters that no keyboard types: {', '.join(f'U+{ord(c):04X}' for c in bad[:5])}."
        case Keypress(keys=keys):
            for key in keys:
                if key not in NAMED_KEYS and not (len(key) == 1 and is_typable(key) and key not in "\n\t"):
                    named = ", ".join(sorted(NAMED_KEYS))
                    return f"unknown key {_quoted(repr(key))}; use one character or one of {named}."
            if len(set(keys)) != len(keys):
                return "a key stands twice in one chord."
        case _:
            pass
    return None


def is_typable(char: str) -> bool:
    """True for characters that have an X keysym: printable Unicode, newline and tab; no control or surrogate."""
    if char in "\n\t":
        return True
    code = ord(char)
    # X11 keysyms cover Unicode up to U+10FFFF less controls, surrogates and non-characters (X protocol, appendix A).
    is_control = code < 0x20 or 0x7F <= code < 0xA0
    return not (is_control or 0xD800 <= code <= 0xDFFF or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF)


def _first_problems(error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False)[:3]:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
        problems.append(f"actions{_quoted(where)}: {_quoted(item['msg'])}")
    return "; ".join(problems) + "."


def _quoted(text: str) -> str:
    return text if len(text) <= QUOTE_CHARS_MAX else text[: QUOTE_CHARS_MAX - 1] + "…"


def action_to_json(action: Action) -> dict[str, Any]:
    """The action as the wire, the receipt and the trace carry it."""
    return action.model_dump(mode="json")


def digest_of(actions: Sequence[Action]) -> str:
    """SHA-256 (hex) over the canonical JSON of the actions: equal lists, equal digests, on both ends of a tunnel."""
    body = orjson.dumps([action_to_json(action) for action in actions], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(body).hexdigest()


def tool_schema() -> dict[str, Any]:
    """The strict JSON schema of the tool's arguments: every field required, no unknown field.

    Range keywords are left to our own validation, because strict modes do not enforce them everywhere and some refuse
    them; of a list's length they all take only that it is not empty. Variants are told apart by their first key.
    """
    return {
        "type": "object",
        "properties": {
            "actions": {"type": "array", "minItems": 1, "items": {"anyOf": [_strict(shape) for shape in ACTION_TYPES]}}
        },
        "required": ["actions"],
        "additionalProperties": False,
    }


_KEPT_KEYWORDS: Final = frozenset({"type", "enum", "items", "properties", "required", "additionalProperties"})


def _strict(shape: type[_Shape]) -> dict[str, Any]:
    schema = shape.model_json_schema()
    properties = {name: _plain(field) for name, field in schema["properties"].items()}
    return {
        "type": "object",
        "description": schema["description"],
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _plain(field: dict[str, Any]) -> dict[str, Any]:
    field = dict(field)
    if "const" in field:
        field["enum"] = [field["const"]]
    plain = {name: value for name, value in field.items() if name in _KEPT_KEYWORDS}
    if "enum" in plain and "type" not in plain:
        plain["type"] = "integer" if all(isinstance(value, int) for value in plain["enum"]) else "string"
    if "items" in plain:
        if field.get("minItems"):
            plain["minItems"] = 1
        plain["items"] = _plain(plain["items"])
    return plain
