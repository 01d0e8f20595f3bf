"""Many paper guests in one process: `python -m tests.lab.farm`, so that a fleet leaves the machine to its controller.

Each guest is the real broker of an instance: its metadata, its HTTP application, its lease and dead-man file; only the
process and the evaluator are shared. Orders come as JSON lines on stdin, `{"boot": {...}}` or `{"end": instance_id}`;
events go out on stdout as lines of `instance_id`, `event` and `at_s` (monotonic): `up`, `reset` with `took_s`, `down`.
It ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from broker.drivers.paper import PaperDriver
from broker.evaluator.process import EvaluatorProcess
from broker.frame import Frame
from broker.instance import Settings, order_of
from broker.serving import CannotStart, Ending, serve

SWITCH_S = 0.0005
Tell = Callable[..., None]


class TimedPaper(PaperDriver):
    """Tells how long a reset took: that is the host's own time, not its controller's."""

    def __init__(self, state_dir: Path, *, tell: Tell) -> None:
        super().__init__(state_dir)
        self._tell = tell

    def reset(self, start_drawing: bytes) -> Frame:
        began_s = time.monotonic()
        frame = super().reset(start_drawing)
        self._tell("reset", took_s=time.monotonic() - began_s)
        return frame


class SharedEvaluator:
    """One evaluator's process for all guests, one request after the other. It outlives each of them."""

    def __init__(self) -> None:
        self._inner = EvaluatorProcess({"PATH": os.environ["PATH"]})
        self._lock = threading.Lock()

    def warm(self) -> None:
        """See `Evaluator`."""
        with self._lock:
            self._inner.warm()

    def export(self, **what: Any) -> None:
        """See `Evaluator`."""
        with self._lock:
            self._inner.export(**what)

    def render(self, **what: Any) -> None:
        """See `Evaluator`."""
        with self._lock:
            self._inner.render(**what)

    def close(self) -> None:
        """It ends with the process."""


class Farm:
    """All guests of this process."""

    def __init__(self) -> None:
        self._evaluator = SharedEvaluator()
        self._endings: dict[str, Ending] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Take orders until stdin ends."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            if "boot" in order:
                boot = order["boot"]
                self._tasks[boot["instance_id"]] = asyncio.create_task(self._live(boot))
            else:
                self._end(order["end"])

    async def _live(self, boot: dict[str, Any]) -> None:
        name = boot["instance_id"]

        def tell(event: str, **facts: float) -> None:
            print(json.dumps({"instance_id": name, "event": event, "at_s": time.monotonic(), **facts}), flush=True)

        def up(ending: Ending) -> None:
            self._endings[name] = ending
            tell("up")

        try:
            order = await asyncio.to_thread(order_of, _settings(boot), {"PATH": os.environ["PATH"]})
            assert isinstance(order.driver, PaperDriver), "a farm has paper guests only"
            timed = TimedPaper(order.state_dir, tell=tell)
            await serve(replace(order, driver=timed, evaluator=self._evaluator), watch=up)
        except CannotStart as error:
            logging.getLogger("farm").error("%s: %s", name, error)
        finally:
            self._endings.pop(name, None)
            tell("down")

    def _end(self, name: str) -> None:
        ending, task = self._endings.get(name), self._tasks.pop(name, None)
        if ending is not None:
            ending.end("the instance is gone")
        elif task is not None:
            task.cancel()


def _settings(boot: dict[str, Any]) -> Settings:
    folder = Path(boot["folder"])
    return Settings(
        imds_url=boot["imds"],
        imds_wait_s=60.0,
        state_dir=folder / "state",
        deadline_file=folder / "deadline",
        port=boot["port"],
        shutdown=(),
        boot_count=boot["boots"],
        booted_at=datetime.fromisoformat(boot["booted_at"]),
    )


def main() -> None:
    """Serve until stdin ends."""
    # Threads that draw must not keep the loop from the guests that only answer: those would be machines of their own.
    sys.setswitchinterval(SWITCH_S)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Farm().run())
    sys.stdout.flush()
    # Threads of guests may wait for something.
    os._exit(0)


if __name__ == "__main__":
    main()
