"""Everything that a rollout leaves in its run folder, written so that the cost of a turn does not grow with the turns.

Lines are appended, frames are written once, and the documents that are replaced at every turn have a fixed size. The
only file that grows and is rewritten is `frame_events.json`: when the number of frames is a power of four, and at
the end. All calls block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import orjson
from pydantic import ValidationError

from contract.ambient import Ambient
from contract.broker_api import FrameInfo
from contract.errors import StateError
from contract.records import Durability, Record, disk_error, dump_pretty, first_problem, read_record
from contract.rollout_records import (
    ArtifactRef,
    Checkpoint,
    Event,
    EventsFile,
    FrameEvent,
    FrameEventsFile,
    InputReceipt,
    ModelTurn,
    ModelTurnSummary,
    RolloutSpec,
    RunState,
)
from contract.run_dir import RunDir
from pilot.ports import Disk

Line = TypeVar("Line", ModelTurn, ModelTurnSummary, InputReceipt)

REWRITE_FACTOR: Final = 4


class TraceWriter:
    """The one writer of one run folder. Every method may raise `DiskError`."""

    def __init__(self, spec: RolloutSpec, disk: Disk, ambient: Ambient) -> None:
        self.run_dir = RunDir(Path(spec.run_dir))
        self._spec = spec
        self._disk = disk
        self._utc_now = ambient.utc_now
        self._events: list[Event] = []
        self.reference = ArtifactRef(path=self.run_dir.reference.name, sha256=spec.task.reference_sha256, size_bytes=0)

    def make_folder(self) -> None:
        """Make the run folder, so that even a rollout that fails at its first call can say so."""
        try:
            self.run_dir.frames.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(self.run_dir.frames, error) from error

    def open_fresh(self, first_frame_png: bytes) -> ArtifactRef:
        """Copy the reference, store the frame that followed the reset, and return it.

        Lines of a start that was killed before its first checkpoint are dropped. Raises `StateError` when the
        reference is not the picture that the task names.
        """
        for path in (self.run_dir.model_turns, self.run_dir.model_turn_summaries, self.run_dir.input_receipts):
            if path.exists() and path.stat().st_size:
                self._disk.replace(path, b"", Durability.CONTENT)
        self._copy_reference()
        frame = self.store_frame(self._spec.host.first_frame, first_frame_png)
        self.event("sandbox_agent_started", host_id=self._spec.host.host_id, boot_id=self._spec.host.boot_id)
        return frame

    def open_resumed(self, checkpoint: Checkpoint) -> list[ModelTurn]:
        """Go on behind `checkpoint`: drop the lines of what will be played again, and return those of model turns.

        The dropped model turns were answered, and paid for, but nothing that they asked for was done. Raises
        `StateError` when a line that the checkpoint counts is missing or is not what was written; nothing is dropped
        then.
        """
        run_dir, turn, done = self.run_dir, checkpoint.turn, checkpoint.turn - (checkpoint.stage == "intent")
        turns = _split(run_dir.model_turns, ModelTurn, last_turn=turn, count=turn)
        summaries = _split(run_dir.model_turn_summaries, ModelTurnSummary, last_turn=done, count=done)
        receipts = _split(run_dir.input_receipts, InputReceipt, last_turn=done, count=checkpoint.sequence)
        for split in (receipts, summaries, turns):
            if split.is_longer:
                self._disk.replace(split.path, split.kept, Durability.CONTENT)
        self.reference = checkpoint.reference
        if self.run_dir.events.exists():
            self._events = list(read_record(self.run_dir.events, EventsFile).events)
        self.event("rollout_resumed", stage=checkpoint.stage, turn=checkpoint.turn, sequence=checkpoint.sequence)
        return turns.dropped

    def store_frame(self, info: FrameInfo, png: bytes) -> ArtifactRef:
        """Write one frame, whole or not at all, and return how a checkpoint refers to it."""
        path = self.run_dir.frame(info.sequence)
        # Not synced: the checkpoint's checksum shows a frame that a crash of the machine tore.
        self._disk.replace(path, png, Durability.PROCESS)
        return ArtifactRef(
            path=str(path.relative_to(self.run_dir.root)), sha256=info.sha256, size_bytes=info.size_bytes
        )

    def model_turn(self, turn: ModelTurn) -> None:
        """Append what the model was shown and what it said."""
        self._disk.append(self.run_dir.model_turns, turn)

    def summary(self, summary: ModelTurnSummary) -> None:
        """Append the turn in short."""
        self._disk.append(self.run_dir.model_turn_summaries, summary)

    def receipt(self, receipt: InputReceipt) -> None:
        """Append the host's receipt; now and then the list of frames is brought up to date."""
        self._disk.append(self.run_dir.input_receipts, receipt)
        if _is_power(receipt.sequence, REWRITE_FACTOR):
            self._write_frame_events()

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint. Its content is synced, its folder is not (decision 0002)."""
        self._disk.replace(self.run_dir.checkpoint, _compact(checkpoint), Durability.CONTENT)

    def run_state(self, state: RunState) -> None:
        """Replace the run state, for readers of a running rollout."""
        self._disk.replace(self.run_dir.run_state, _compact(state), Durability.PROCESS)

    def event(self, name: str, **detail: Any) -> None:
        """Add to the few events of a rollout's life."""
        self._events.append(Event(at=self._utc_now(), event=name, detail=detail))
        self._disk.replace(self.run_dir.events, dump_pretty(EventsFile(events=self._events)), Durability.PROCESS)

    def close(self, state: RunState) -> None:
        """Write the final run state so that it stays, after everything that it is the end of."""
        if self.run_dir.input_receipts.exists():
            self._write_frame_events()
        self.event(
            "rollout_ended",
            ended_by=state.ended_by,
            turn=state.turn,
            cause=state.error.cause if state.error else None,
        )
        self.final_run_state(state)

    def final_run_state(self, state: RunState) -> None:
        """The run state alone: the pilot's return value, there to stay."""
        self._disk.replace(self.run_dir.run_state, _compact(state), Durability.FULL)

    def _copy_reference(self) -> None:
        source = Path(self._spec.task.reference)
        try:
            content = source.read_bytes()
        except OSError as error:
            raise StateError(
                f"cannot read the reference {source}: {error.strerror or error}",
                hint="Restore the task suite, then run the rollout again.",
            ) from error
        if hashlib.sha256(content).hexdigest() != self._spec.task.reference_sha256:
            raise StateError(
                f"the reference {source} does not have the checksum that its task names",
                hint="Restore the task suite, then run the rollout again.",
            )
        self._disk.replace(self.run_dir.reference, content, Durability.PROCESS)
        self.reference = self.reference.model_copy(update={"size_bytes": len(content)})

    def _write_frame_events(self) -> None:
        # Made from the receipts on disk, so that no list grows in memory; one line each, checked one by one.
        head = orjson.dumps({"schema": FrameEventsFile.model_fields["schema_"].default})[:-1]
        lines = b",\n".join(_compact(event).rstrip() for event in self._frame_events())
        self._disk.replace(self.run_dir.frame_events, head + b',"frames":[\n' + lines + b"\n]}\n", Durability.PROCESS)

    def _frame_events(self) -> Iterator[FrameEvent]:
        yield _frame_event(0, self._spec.host.first_frame)
        for _, receipt in _lines_of(self.run_dir.input_receipts, InputReceipt):
            yield _frame_event(receipt.turn, receipt.frame)


def written_turns(run_dir: RunDir) -> Iterator[ModelTurn]:
    """The model turns of a trace. Raises `StateError` for a line that is none."""
    return (turn for _, turn in _lines_of(run_dir.model_turns, ModelTurn))


@dataclass(frozen=True, slots=True)
class _Split(Generic[Line]):
    """The lines of one file up to a turn as they stand there, and those behind it."""

    path: Path
    kept: bytes
    is_longer: bool
    dropped: list[Line]


def _split(path: Path, kind: type[Line], *, last_turn: int, count: int) -> _Split[Line]:
    """Raises `StateError` unless the kept lines are all `count` of them: a crash of the machine may have lost some."""
    kept: list[bytes] = []
    dropped: list[Line] = []
    for raw, line in _lines_of(path, kind):
        if line.turn > last_turn:
            dropped.append(line)
            continue
        kept.append(raw + b"\n")
        number = line.sequence if isinstance(line, InputReceipt) else line.turn
        if number != len(kept):
            raise StateError(f"{path.name} has {number} in the place of {len(kept)}")
    if len(kept) != count:
        raise StateError(f"{path.name} has {len(kept)} lines where the checkpoint needs {count}")
    content = b"".join(kept)
    return _Split(path, content, path.exists() and path.stat().st_size != len(content), dropped)


def _lines_of(path: Path, kind: type[Line]) -> Iterator[tuple[bytes, Line]]:
    """Each whole line, raw and as a record; a torn one is passed over. Raises `StateError` for one of another shape."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for raw in content.split(b"\n"):
        try:
            fields = orjson.loads(raw)
        except orjson.JSONDecodeError:
            continue
        try:
            yield raw, kind.model_validate(fields)
        except ValidationError as error:
            raise StateError(f"a line of {path.name} is not a {kind.__name__}: {first_problem(error)}") from error


def _frame_event(turn: int, info: FrameInfo) -> FrameEvent:
    return FrameEvent(
        turn=turn,
        sequence=info.sequence,
        file=str(RunDir(Path()).frame(info.sequence)),
        sha256=info.sha256,
        size_bytes=info.size_bytes,
        verdict=info.verdict,
        settle_s=info.settle_s,
    )


def _compact(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _is_power(number: int, base: int) -> bool:
    while number > 1 and number % base == 0:
        number //= base
    return number == 1
