"""The gold cache on disk: `manifest.json` and `entry.json` (scoring contract, section 5)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal

from contract.broker_api import Sha256
from contract.records import Record

Profile = Literal["2d", "3d", "3d-extents"]
Placement = Literal["absolute", "translation"]

ENTRY_FILES: Final = ("entry.json", "metadata.json", "reference.png", "render.png")


class PinnedEvaluator(Record):
    """The one evaluator that made this cache and may make its candidates."""

    name: str
    version: str
    config_sha256: Sha256


class FileDigest(Record):
    """What one file of an entry must be."""

    sha256: Sha256
    size_bytes: int


class ManifestEntry(Record):
    """One task's gold; `entry_sha256` is over all its files."""

    schema_version: Literal[3, 4]
    profile: Profile
    placement: Placement
    files: dict[str, FileDigest]
    entry_sha256: Sha256


class Manifest(Record):
    """`manifest.json`."""

    manifest_version: Literal[1] = 1
    evaluator: PinnedEvaluator
    score_version: str
    entries: dict[str, ManifestEntry]


class GoldTolerances(Record):
    """Tolerances as fractions of the gold's diagonal, where a task needs others than the defaults."""

    tau0: float
    tau1: float


class SelfCheck(Record):
    """What the gold scored against itself, and what an empty drawing came to, when the entry was written."""

    deterministic: float
    blank: Literal["invalid"]


class Entry(Record):
    """`entry.json`: how candidates of one task are compared. `window` is xmin, ymin, xmax, ymax in drawing units."""

    task_id: str
    profile: Profile
    placement: Placement
    window: tuple[float, float, float, float]
    size_px: tuple[int, int]
    tolerances: GoldTolerances | None
    self_check: SelfCheck


def entry_digest(files: Mapping[str, FileDigest]) -> str:
    """The SHA-256 over the lines `name sha256`, in name order."""
    lines = "".join(f"{name} {files[name].sha256}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()
