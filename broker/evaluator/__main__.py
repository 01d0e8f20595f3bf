"""`python -I -m broker.evaluator`: answers requests, one JSON object a line, until its input ends.

    {"op": "warm"}
    {"op": "export", "drawing": PATH, "start_drawing": PATH or null, "out": PATH}
    {"op": "render", "drawing": PATH, "window": [4], "size_px": [2], "offset": [2 or 3], "out": PATH}

It first says {"ready": true}. Replies: {"ok": true, "sha256", "size_bytes", "status", "invalid_code"} or
{"ok": false, "code", "message"}. Paths are the caller's; a drawing that is not a regular file counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import stat
import sys
from pathlib import Path
from typing import Any, Final

from broker.evaluator.export import Facts, drawing_digest
from broker.evaluator.settings import DRAWING_BYTES_MAX, MEMORY_BYTES_MAX, FontMissing, identity
from contract.records import dump_pretty

Reply = dict[str, Any]

_MISSING: Final = b""


class Service:
    """Keeps the facts of the last drawing: a render follows its export. An inspection also reads DWG files."""

    def __init__(self, *, is_inspection: bool = False) -> None:
        self._is_inspection = is_inspection
        self._digest: str | None = None
        self._facts: Facts | None = None

    def answer(self, request: dict[str, Any]) -> Reply:
        """Do what one request asks. What goes wrong is in the reply."""
        try:
            match request.get("op"):
                case "warm":
                    return self._warm()
                case "export":
                    return self._export(request)
                case "render":
                    return self._render(request)
                case other:
                    return _refused("unknown_op", f"there is no operation {other!r}")
        except FontMissing as error:
            return _refused("font_missing", str(error))
        except MemoryError:
            self._facts = self._digest = None
            return _refused("out_of_memory", "the drawing needs more memory than an evaluation may have")
        except Exception as error:  # noqa: BLE001 - the caller decides what a fault of ours means; it must be told
            return _refused("crashed", f"{type(error).__name__}: {error}")

    @staticmethod
    def _warm() -> Reply:
        import broker.evaluator.render  # noqa: F401 - so that the first render need not import it

        identity()
        return {"ok": True}

    def _export(self, request: dict[str, Any]) -> Reply:
        start = request.get("start_drawing")
        start_bytes = _read(Path(start)) if start else None
        metadata = self._facts_of(_read(Path(request["drawing"]))).metadata(start_bytes)
        reply = _written(Path(request["out"]), dump_pretty(metadata))
        invalid_code = metadata.invalid.code if metadata.invalid else None
        return reply | {"status": metadata.status, "invalid_code": invalid_code}

    def _render(self, request: dict[str, Any]) -> Reply:
        from broker.evaluator.render import render_flats

        facts = self._facts_of(_read(Path(request["drawing"])))
        if facts.walk is None:
            return _refused("invalid_drawing", "an invalid drawing is not rendered")
        window, size_px, offset = request["window"], request["size_px"], request.get("offset", (0.0, 0.0))
        png = render_flats(facts.flats, window=tuple(window), size_px=tuple(size_px), offset=tuple(offset))
        return _written(Path(request["out"]), png) | {"status": "ok", "invalid_code": None}

    def _facts_of(self, content: bytes) -> Facts:
        digest = drawing_digest(content)
        if self._facts is None or self._digest != digest:
            self._facts = None
            self._facts, self._digest = Facts.of(content, is_inspection=self._is_inspection), digest
        return self._facts


def _read(path: Path) -> bytes:
    """At most one byte more than a drawing may have. What the model left may be a link or a folder: then nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return _MISSING
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _MISSING
        return file.read(DRAWING_BYTES_MAX + 1)


def _written(path: Path, content: bytes) -> Reply:
    path.write_bytes(content)
    return {"ok": True, "sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}


def _refused(code: str, message: str) -> Reply:
    return {"ok": False, "code": code, "message": message}


def main() -> None:
    """Serve standard input for as long as our owner lives.

    The first argument is the memory that we may have in bytes; a second one, `inspect`, makes it an inspection.
    """
    _bind(memory_bytes_max=int(sys.argv[1]) if len(sys.argv) > 1 else MEMORY_BYTES_MAX)
    service = Service(is_inspection=sys.argv[2:] == ["inspect"])
    answers = sys.stdout
    # What a library prints must not be taken for an answer.
    sys.stdout = sys.stderr
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(service.answer(json.loads(line))), file=answers, flush=True)


def _bind(*, memory_bytes_max: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes_max, memory_bytes_max))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
