"""Sees every process below one of ours, over and over: with which command and which environment it ran."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.01


@dataclass(slots=True)
class ProcessWatch:
    """What was seen so far, also of processes that have ended. A copy that a fork has not yet turned is not kept.

    `is_left_out` says of which commands nothing is kept.
    """

    root: int
    is_left_out: Callable[[str], bool] = lambda command: False
    environments: dict[int, dict[str, str]] = field(default_factory=dict)
    commands: dict[int, str] = field(default_factory=dict)

    def named(self, part: str) -> set[int]:
        """Processes whose command has this in it."""
        return {pid for pid, command in self.commands.items() if part in command}

    def look(self) -> None:
        """Once, at everything that lives now."""
        for pid in list(descendants(self.root)):
            self._look_at(pid)

    def _look_at(self, pid: int) -> None:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            return
        # One that has just ended shows nothing any more.
        if not command or not content or self.is_left_out(command):
            return
        self.commands[pid] = command
        self.environments[pid] = dict(item.split("=", 1) for item in content.split("\0") if "=" in item)


@contextmanager
def watching(watch: ProcessWatch, also: Callable[[], None] = lambda: None) -> Iterator[ProcessWatch]:
    """Looks without pause until the block ends; `also` is called at each look. What a look raises is raised then."""
    stop = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            while not stop.is_set():
                watch.look()
                also()
                time.sleep(LOOK_S)
        except Exception as error:  # noqa: BLE001  (one that has stopped looking would find nothing)
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def descendants(pid: int) -> Iterator[int]:
    """All processes below this one that live now."""
    try:
        children = [int(child) for task in os.listdir(f"/proc/{pid}/task") for child in _children_of(pid, task)]
    except OSError:
        return
    for child in children:
        yield child
        yield from descendants(child)


def _children_of(pid: int, task: str) -> list[str]:
    return Path(f"/proc/{pid}/task/{task}/children").read_text().split()
