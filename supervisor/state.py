"""`batch-state.json`: kept by one owner, moved only along the table of phases, written at once when a phase changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio

from contract.ambient import Ambient
from contract.batch_records import BatchState, RolloutRow
from contract.bridge import Bridge
from contract.errors import StateError
from contract.phases import BatchStatus, Phase, advance
from contract.records import Durability, read_record, write_record
from contract.rollout_records import RunState

PROGRESS_EVERY_S: Final = 1.0

OnPhase = Callable[[RolloutRow, Phase], None]


class StateBook:
    """The rows of one batch. Its owner holds the folder's lock; nobody else writes the file."""

    def __init__(self, path: Path, state: BatchState, *, bridge: Bridge, ambient: Ambient) -> None:
        self._path = path
        self._state = state
        self._rows = {row.rollout_id: row for row in state.rollouts}
        self._bridge = bridge
        self._ambient = ambient
        self._pen: anyio.Lock | None = None
        self._version = 1
        self._written = 0
        self._listeners: list[OnPhase] = []

    @property
    def state(self) -> BatchState:
        """The batch as it is now, whether it is on disk yet or not."""
        return self._state.model_copy(
            update={"rollouts": list(self._rows.values()), "updated_at": self._ambient.utc_now()}
        )

    def row(self, rollout_id: str) -> RolloutRow:
        """One rollout as it is now."""
        return self._rows[rollout_id]

    def on_phase(self, listener: OnPhase) -> None:
        """Call `listener(row, phase before)` at each change of a phase."""
        self._listeners.append(listener)

    async def advance(self, rollout_id: str, to: Phase, **changes: Any) -> RolloutRow:
        """Move a rollout to `to`, change the named fields, and return once that is on disk. Raises `DiskError`."""
        before = self._rows[rollout_id]
        row = self._changed(before, {**changes, "phase": advance(before.phase, to)})
        for listener in self._listeners:
            listener(row, before.phase)
        await self.flush()
        return row

    async def amend(self, rollout_id: str, **changes: Any) -> RolloutRow:
        """Change fields without a change of phase, and return once that is on disk. Raises `DiskError`."""
        row = self._changed(self._rows[rollout_id], changes)
        await self.flush()
        return row

    def note_progress(self, rollout_id: str, **changes: Any) -> None:
        """Change fields that may be written a little later."""
        self._changed(self._rows[rollout_id], changes)

    async def set_status(self, status: BatchStatus) -> None:
        """Say where the whole batch is. Raises `DiskError`."""
        self._state = self._state.model_copy(update={"status": status})
        self._version += 1
        await self.flush()

    async def flush(self, *, durability: Durability = Durability.FULL) -> None:
        """Return once all that is known now is on disk; writers that wait together share one write."""
        wanted = self._version
        if self._pen is None:
            self._pen = anyio.Lock()
        async with self._pen:
            if self._written >= wanted:
                return
            writing = self._version
            document = self.state
            await self._bridge.call(lambda: write_record(self._path, document, durability=durability))
            self._written = writing

    async def keep_current(self) -> None:
        """Write progress about once a second, for as long as this runs. A disk that refuses is met by `advance`."""
        while True:
            await self._ambient.sleep(PROGRESS_EVERY_S)
            if self._written < self._version:
                await self.flush(durability=Durability.PROCESS)

    def _changed(self, row: RolloutRow, changes: dict[str, Any]) -> RolloutRow:
        unknown = changes.keys() - RolloutRow.model_fields.keys()
        assert not unknown, f"a rollout's row has no {sorted(unknown)}"
        if all(getattr(row, name) == value for name, value in changes.items()):
            return row
        changed = row.model_copy(update=changes)
        self._rows[row.rollout_id] = changed
        self._version += 1
        return changed


def read_run_state(path: Path) -> RunState | None:
    """The pilot's state, or null when it left none that can be read."""
    try:
        return read_record(path, RunState)
    except StateError:
        return None
