"""Keeps Python's collector from looking through drawings again and again while they are read and compared."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from contract.metadata import Metadata
from contract.records import parse_record


@contextmanager
def collector_paused() -> Iterator[None]:
    """Two large drawings are a million objects that all live on: collecting in between frees nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_metadata(content: bytes, *, source: str) -> Metadata:
    """One `metadata.json`; `source` is how the error names it. Raises `StateError`."""
    with collector_paused():
        return parse_record(content, Metadata, source=source)
