"""The gold cache: facts and canonical renders of the gold drawings, made by the code that evaluates candidates."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from broker.evaluator.export import Facts
from broker.evaluator.render import render_flats
from contract.records import dump_pretty
from evaluator_client.gold_writer import gold_window, write_entry
from evaluator_client.windows import RENDER_SIZE_PX


def gold_cache_files(
    golds: Mapping[str, bytes], starts: Mapping[str, bytes], references: Mapping[str, bytes]
) -> dict[PurePosixPath, bytes]:
    """The whole cache, by path from its own folder; all arguments by task.

    Raises `EvaluationError` (`gold_self_check`) for a gold that does not score 1 against itself.
    """
    with tempfile.TemporaryDirectory(prefix="autocad-bench-gold-") as scratch:
        folder = Path(scratch)
        for task_id, content in golds.items():
            facts = Facts.of(content)
            metadata_json = dump_pretty(facts.metadata(starts[task_id]))
            window = gold_window(metadata_json, what=f"the gold of {task_id}")
            write_entry(
                folder,
                task_id=task_id,
                profile="2d",
                placement="absolute",
                metadata_json=metadata_json,
                render_png=render_flats(facts.flats, window=window, size_px=RENDER_SIZE_PX, offset=(0.0, 0.0)),
                reference_png=references[task_id],
                window=window,
                size_px=RENDER_SIZE_PX,
            )
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {PurePosixPath(path.relative_to(folder)): path.read_bytes() for path in paths}
