"""Models that need no account: they play what is written down, or chance.

Their files are read at the first turn, so a broken one ends its rollout with a reason and costs nothing before that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson

from contract.actions import SCREEN_HEIGHT_PX, SCREEN_WIDTH_PX
from contract.errors import StateError
from contract.pricing import Usage
from contract.run_dir import RunDir
from pilot.ports import ModelReply, Observation

RANDOM_TURNS: Final = 40
# Words that a beginner might try. None of them quits the program or opens a file.
WORDS: Final = ("line", "circle", "hello", "10,20", "@50,0", "zoom", "4", "rec", "test", "100")
KEYS: Final = (("enter",), ("esc",), ("tab",), ("up",), ("down",), ("ctrl", "z"), ("delete",))
# The part of the screen that is canvas in every layout we have seen: no title bar, menu or dock.
CANVAS: Final = (300, 250, 1600, 850)


class Scripted:
    """Counts the turns that it has played; a turn is all there is to remember."""

    def __init__(self) -> None:
        self._played = 0

    async def next_turn(self, observation: Observation) -> ModelReply:
        """The next reply; it costs nothing."""
        started = time.perf_counter()
        reply = self._reply(self._played)
        self._played += 1
        return ModelReply(arguments=reply, latency_s=time.perf_counter() - started, usage=Usage(), cost_usd=Decimal(0))

    def _reply(self, turn: int) -> Any:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The number of turns played."""
        return {"played": self._played}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on behind that many turns. Raises `StateError`."""
        played = state.get("played")
        if set(state) != {"played"} or not isinstance(played, int) or played < 0:
            raise StateError(f"{state!r} is not the state of a scripted model")
        self._played = played

    async def aclose(self) -> None:
        """Nothing is open."""


class Noop(Scripted):
    """Finishes at once, so the drawing is what the reset left."""

    def _reply(self, turn: int) -> Any:
        return finish("nothing was drawn")


class Oracle(Scripted):
    """Plays the task's reference ActionBatches, one per turn."""

    def __init__(self, script: Path) -> None:
        super().__init__()
        self._script = script

    def _reply(self, turn: int) -> Any:
        turns = _oracle_turns(self._script)
        return {"actions": turns[turn]} if turn < len(turns) else finish("the script has ended")


class Replay(Scripted):
    """Plays what a stored trace's model said: valid, invalid and malformed turns alike."""

    def __init__(self, script: Path) -> None:
        super().__init__()
        self._script = RunDir(script).model_turns if script.is_dir() else script
        self._offset_of = [0]

    def _reply(self, turn: int) -> Any:
        line = self._line(turn)
        return finish("the stored trace has ended") if line is None else line["arguments"]

    def _line(self, turn: int) -> dict[str, Any] | None:
        """Line number `turn`, found from the last known line before it, so that a long trace is read once."""
        try:
            with self._script.open("rb") as file:
                file.seek(self._offset_of[-1])
                while len(self._offset_of) <= turn + 1:
                    line = file.readline()
                    if not line.endswith(b"\n"):
                        return None
                    self._offset_of.append(file.tell())
                file.seek(self._offset_of[turn])
                return self._parsed(file.readline())
        except OSError as error:
            raise _unusable(self._script, error.strerror or str(error)) from error

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise _unusable(self._script, str(error)) from error
        if not isinstance(fields, dict) or "arguments" not in fields:
            raise _unusable(self._script, "a line has no `arguments`")
        return fields


class Random(Scripted):
    """Forty turns of moves, clicks, drags, short words and keys on the canvas, then it says that it is done.

    The same seed gives the same turns. Each turn is drawn from its own generator, so turn 30 needs no turn before it.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def _reply(self, turn: int) -> Any:
        if turn >= RANDOM_TURNS:
            return finish("enough for chance")
        chance = random.Random(f"{self._seed}/{turn}")
        return {"actions": [_random_action(chance) for _ in range(chance.randint(1, 3))]}


def _random_action(chance: random.Random) -> dict[str, Any]:
    left, top, right, bottom = CANVAS

    def point() -> list[int]:
        return [chance.randint(left, right), chance.randint(top, bottom)]

    def move() -> dict[str, Any]:
        x, y = chance.randrange(SCREEN_WIDTH_PX), chance.randrange(SCREEN_HEIGHT_PX)
        return {"type": "move", "x": x, "y": y}

    def click() -> dict[str, Any]:
        x, y = point()
        return {"type": "click", "x": x, "y": y, "button": "left", "clicks": 1, "modifiers": []}

    def drag() -> dict[str, Any]:
        return {"type": "drag", "path": [point(), point()], "button": "left", "modifiers": []}

    def word() -> dict[str, Any]:
        return {"type": "type", "text": chance.choice(WORDS) + chance.choice(("", "\n"))}

    def key() -> dict[str, Any]:
        return {"type": "keypress", "keys": list(chance.choice(KEYS))}

    kinds: tuple[Callable[[], dict[str, Any]], ...] = (move, click, click, drag, word, key)
    return chance.choice(kinds)()


@lru_cache(maxsize=8)
def _oracle_turns(script: Path) -> tuple[list[dict[str, Any]], ...]:
    # Rollouts of one task that share a process share the script, too.
    from contract.config import OracleScript  # imported here: a pilot that plays no oracle does not pay for it
    from contract.records import read_record

    return tuple(read_record(script, OracleScript).turns)


def finish(summary: str) -> dict[str, Any]:
    return {"actions": [{"type": "finish", "status": "done", "summary": summary}]}


def _unusable(script: Path, why: str) -> StateError:
    return StateError(
        f"cannot replay {script}: {why}", hint="Name a model_turns.jsonl, or the rollout folder that holds one."
    )
