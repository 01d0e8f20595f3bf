"""Traces of which each turn draws a line of its own, so that a drawing tells what was done, how often, and in order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from contract.records import read_lines

WAIT_S = 0.1


def replay_of_lines(path: Path, *, turns: int, number: int) -> Path:
    """A stored trace whose model draws `turns` lines, one a turn, and then finishes. `number` tells traces apart."""
    batches: list[list[dict[str, Any]]] = [
        [{"type": "type", "text": f"line {_line(turn, number)}\n"}, {"type": "wait", "seconds": WAIT_S}]
        for turn in range(turns)
    ]
    batches.append([{"type": "finish", "status": "done", "summary": "drawn"}])
    path.write_text("".join(json.dumps({"arguments": {"actions": batch}}) + "\n" for batch in batches))
    return path


def drawn_lines(drawing: Path, number: int) -> list[int]:
    """The turns whose lines stand in a drawing, in its order; a line that stands there twice is named twice."""
    import ezdxf

    turn_of = {_line(turn, number): turn for turn in range(1_000)}
    found = []
    for entity in ezdxf.readfile(drawing).modelspace().query("LINE"):
        start, end = entity.dxf.start, entity.dxf.end
        turn = turn_of.get(f"{start.x:.3f},{start.y:.3f} {end.x:.3f},{end.y:.3f}")
        if turn is not None:
            found.append(turn)
    return found


def twice_done(receipts: Path) -> list[int]:
    """Sequences that a file of receipts, a pilot's or a broker's, says were begun or done more than once."""
    counts: Counter[tuple[str, str, int]] = Counter()
    for line in read_lines(receipts):
        told = line.get("receipt", line)
        counts[str(line.get("kind", "receipt")), str(line.get("lease_id", "")), int(told["sequence"])] += 1
    return sorted({sequence for (_, _, sequence), count in counts.items() if count > 1})


def _line(turn: int, number: int) -> str:
    return f"{100 + turn:.3f},{50 + number:.3f} {100 + turn:.3f},{350 + number:.3f}"
