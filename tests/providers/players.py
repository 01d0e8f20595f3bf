"""Who answers: the task's own solution, chance, or what a test writes down, in every shape that answers have."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from tests.providers.prompt import Asked

Shape = Literal["call", "two_calls", "text", "refusal", "empty", "cut", "broken", "context_full", "filtered"]
FINISH: Final = {"actions": [{"type": "finish", "status": "done", "summary": "drawn"}]}


@dataclass(frozen=True, slots=True)
class Play:
    """One answer, in no vendor's words. A cut or broken call has only some of the text of its `arguments`."""

    arguments: Any = None
    shape: Shape = "call"
    text: str = ""
    thinking: str = ""

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text, as models write them."""
        text = orjson.dumps(self.arguments).decode()
        return text[: len(text) // 2] if self.shape in ("cut", "broken") else text


# Gets what was asked and which answer of its session this is, from 0.
Player = Callable[[Asked, int], Play]


def script(turns: Sequence[Sequence[Mapping[str, Any]]], *, thinking: str = "") -> Player:
    """Plays these ActionBatches, then finishes."""

    def play(asked: Asked, number: int) -> Play:
        arguments = {"actions": list(turns[number])} if number < len(turns) else FINISH
        return Play(arguments, thinking=thinking)

    return play


def oracle(suite: Path, *, thinking: str = "") -> Player:
    """Plays each task's own solution. The task is known by its reference picture."""
    players: dict[str, Player] = {}
    for folder in sorted(path for path in suite.iterdir() if (path / "oracle.json").exists()):
        task = orjson.loads((folder / "task.json").read_bytes())
        turns = orjson.loads((folder / "oracle.json").read_bytes())["turns"]
        players[task["reference_sha256"]] = script(turns, thinking=thinking)

    def play(asked: Asked, number: int) -> Play:
        return players[asked.task](asked, number)

    return play


def sequence(plays: Sequence[Play]) -> Player:
    """Plays these answers, then finishes."""

    def play(asked: Asked, number: int) -> Play:
        return plays[number] if number < len(plays) else Play(FINISH)

    return play


def chance(seed: int, turns: int) -> Player:
    """Valid batches of moves, clicks, text and keys, and a finish after so many."""

    def play(asked: Asked, number: int) -> Play:
        if number >= turns:
            return Play(FINISH)
        dice = random.Random(f"{seed}/{number}")
        return Play(
            {"actions": [_action(dice) for _ in range(dice.randint(1, 4))]}, thinking="t" * dice.randint(0, 200)
        )

    return play


def _action(dice: random.Random) -> dict[str, Any]:
    x, y = dice.randrange(1920), dice.randrange(1080)
    return dice.choice(
        [
            {"type": "move", "x": x, "y": y},
            {"type": "click", "x": x, "y": y, "button": "left", "clicks": 1, "modifiers": []},
            {"type": "type", "text": dice.choice(["line\n", "10,20\n", "größe 5°", '«quoted» "text"'])},
            {"type": "keypress", "keys": ["esc"]},
            {"type": "scroll", "x": x, "y": y, "dx": 0, "dy": dice.randint(-3, 3), "modifiers": []},
        ]
    )


THINKING: Final = "The line starts at the lower left corner. " * 3


def clicks(turns: int) -> Player:
    """So many turns of one click each, and a finish."""
    return script([[_click(n % 1900, 10)] for n in range(turns)], thinking=THINKING)


def after_turn(turn: int, player: Player, deed: Callable[[], None]) -> Player:
    """Does `deed` once, while this turn's answer is made."""
    done: list[int] = []

    def play(asked: Asked, number: int) -> Play:
        if number == turn and not done:
            done.append(number)
            deed()
        return player(asked, number)

    return play


def _click(x: int, y: int) -> dict[str, Any]:
    return {"type": "click", "x": x, "y": y, "button": "left", "clicks": 1, "modifiers": []}
