"""The words that every model is given beside its pictures. Every provider gets the same ones.

What happened in a turn, and what is left of the budget, is said by `pilot.observe`; this is what frames it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from contract.actions import SCREEN_HEIGHT_PX, SCREEN_WIDTH_PX, TOOL_NAME
from contract.rollout_records import TaskBrief

# Beside a frame whose story the tool result before it has told.
NOW_TEXT: Final = "The desktop now."

_SYSTEM: Final = (
    f"You operate a CAD program on a {SCREEN_WIDTH_PX}x{SCREEN_HEIGHT_PX} desktop with mouse and keyboard. "
    f"Your only tool is {TOOL_NAME}, which carries out a list of actions in order. "
    "Coordinates are pixels of the desktop as it is shown: x from 0 at the left edge to "
    f"{SCREEN_WIDTH_PX - 1}, y from 0 at the top edge to {SCREEN_HEIGHT_PX - 1}. "
    "You see only the frame that follows the last action of a list, so end a list where you need to look. "
    "A list is checked whole before anything happens; one that is not valid does nothing, and you are told why. "
    "When the task is done, or cannot be done, say so with the action finish, as the last action of a list: "
    'status "done" or "infeasible", and a short summary. Nothing can be corrected after it.'
)
_MUST_CALL: Final = f" Every answer must be exactly one call of {TOOL_NAME}; an answer in words does nothing."


def system_text(*, must_call: bool) -> str:
    """The system prompt. `must_call`: the request cannot force the tool, so the words ask for it."""
    return _SYSTEM + _MUST_CALL if must_call else _SYSTEM


def opening_text(task: TaskBrief, actions_max: int) -> str:
    """The task; the reference picture follows it. It is the same from the first turn to the last."""
    parts = [task.prompt.strip()]
    if task.host_notes.strip():
        parts.append(f"About this machine:\n{task.host_notes.strip()}")
    parts.append(f"You have {actions_max} actions in all; each action of a list costs one.")
    parts.append("This is the reference picture:")
    return "\n\n".join(parts)


def digest_text(lines: Sequence[str]) -> str:
    """What became of earlier turns, oldest first. With one line more it is this text and that line."""
    return "".join(["Your latest turns before this one, oldest first. Older ones are not listed.", *_listed(lines)])


def left_out_text(turn: int) -> str:
    """In the place of an old frame."""
    return f"The frame of turn {turn} is left out here."


def _listed(lines: Sequence[str]) -> list[str]:
    return [f"\n- {line}" for line in lines]
