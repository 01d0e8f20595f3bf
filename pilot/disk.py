"""The real disk: atomic documents and append-only lines."""

from __future__ import annotations

from pathlib import Path

from contract.records import Durability, LineAppender, Record, replace_file


class RunFolderDisk:
    """Writes the files of run folders. Holds none of them open, so hundreds of rollouts fit in one process."""

    def replace(self, path: Path, content: bytes, durability: Durability) -> None:
        """Put `content` in the place of the file at `path`, atomically. Raises `DiskError`."""
        replace_file(path, content, durability=durability)

    def append(self, path: Path, record: Record) -> None:
        """Add one line to a JSON-lines file; a torn last line is closed off first. Raises `DiskError`."""
        appender = LineAppender(path)
        try:
            appender.append(record)
        finally:
            appender.close()
