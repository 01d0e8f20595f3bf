"""`python -m tests.providers.light --turns N --latency-s S`: an OpenRouter that answers and checks nothing.

For measurements of many rollouts with large requests: bodies are read and dropped, so that the machine is left to the
pilots. Prints its address, then for each line on stdin how many requests it has had, and at stdin's end, with which it
ends, how many requests and bytes that were.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from typing import Any, Final

import orjson

from contract.actions import TOOL_NAME
from tests.providers.http import Reply, Request, Server
from tests.providers.refusals import JSON

# Where the rollout's own id stands: before the list that grows.
KEPT_BYTES: Final = 64 * 1024
SESSION: Final = re.compile(rb'"session_id":"([^"]+)"')
CLICK: Final = {"type": "click", "x": 700, "y": 500, "button": "left", "clicks": 1, "modifiers": []}
FINISH: Final = {"type": "finish", "status": "done", "summary": "measured"}


class LightProvider:
    """Answers every rollout with one click a turn, and then with a finish."""

    def __init__(self, *, turns: int, latency_s: float) -> None:
        self.requests = 0
        self.body_bytes = 0
        self.largest_bytes = 0
        self._turns = turns
        self._latency_s = latency_s
        self._played: dict[bytes, int] = {}

    async def answer(self, request: Request) -> Reply:
        """The next turn of the rollout that asks."""
        self.requests += 1
        self.body_bytes += request.body_bytes
        self.largest_bytes = max(self.largest_bytes, request.body_bytes)
        found = SESSION.search(request.body)
        session = found[1] if found else b""
        number = self._played[session] = self._played.get(session, 0) + 1
        await asyncio.sleep(self._latency_s)
        action = CLICK if number <= self._turns else FINISH
        return Reply(200, orjson.dumps(_body(number, action)), dict(JSON))


def _body(number: int, action: dict[str, Any]) -> dict[str, Any]:
    call = {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": TOOL_NAME,
        "arguments": orjson.dumps({"actions": [action]}).decode(),
        "status": "completed",
    }
    usage = {
        "input_tokens": 5_000,
        "input_tokens_details": {"cached_tokens": 4_000},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5_050,
        "cost": 0.01,
    }
    return {
        "id": f"gen-{number}",
        "object": "response",
        "created_at": 1790000000,
        "model": "openai/gpt-5.6-sol",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "output": [call],
        "usage": usage,
    }


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--latency-s", type=float, required=True)
    options = parser.parse_args()
    provider = LightProvider(turns=options.turns, latency_s=options.latency_s)
    with Server(["openrouter"], provider.answer, kept_bytes=KEPT_BYTES) as server:
        print(server.url("openrouter"), flush=True)
        for _ in sys.stdin:
            print(provider.requests, flush=True)
    counts = {"requests": provider.requests, "bytes": provider.body_bytes, "largest": provider.largest_bytes}
    print(orjson.dumps(counts).decode(), flush=True)


if __name__ == "__main__":
    main()
