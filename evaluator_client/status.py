"""Keeps `evaluation/status.json`: one writer, replaced at each stage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime

from contract.evaluation_records import (
    EvaluationStatus,
    EvaluatorName,
    Failure,
    Stage,
    StageEntry,
    advance_stage,
)
from contract.records import disk_error, write_record
from contract.run_dir import EvaluationDir


class StatusFile:
    """The state machine of one evaluation, on disk at every moment."""

    def __init__(self, folder: EvaluationDir, evaluator: EvaluatorName, *, utc_now: Callable[[], datetime]) -> None:
        self._folder = folder
        self._utc_now = utc_now
        now = utc_now()
        self.status = EvaluationStatus(
            state=Stage.QUEUED,
            updated_at=now,
            history=[StageEntry(state=Stage.QUEUED, at=now)],
            evaluator=evaluator,
            attempts={},
            failure=None,
            files={},
        )
        try:
            folder.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(folder.root, error) from error
        self._write()

    def enter(self, stage: Stage, *, failure: Failure | None = None) -> None:
        """Go on to `stage`, and note which files stand by then."""
        advance_stage(self.status.state, stage)
        now = self._utc_now()
        self.status = self.status.model_copy(
            update={
                "state": stage,
                "updated_at": now,
                "history": [*self.status.history, StageEntry(state=stage, at=now)],
                "failure": failure,
                "files": self._checksums(stage),
            }
        )
        self._write()

    def count_attempt(self, stage: Stage) -> None:
        """One more call made in `stage`."""
        attempts = dict(self.status.attempts)
        attempts[stage] = attempts.get(stage, 0) + 1
        self.status = self.status.model_copy(update={"attempts": attempts, "updated_at": self._utc_now()})
        self._write()

    def _checksums(self, stage: Stage) -> dict[str, str]:
        folder = self._folder
        # While the judge is asked, its answers come in and the score waits for them.
        growing = {folder.score, folder.judge_responses, folder.judge_score} if stage is Stage.JUDGING else set()
        files = (
            folder.metadata,
            folder.render,
            folder.score,
            folder.diff,
            folder.overlay,
            folder.judge_request,
            folder.judge_responses,
            folder.judge_score,
        )
        return {
            path.relative_to(folder.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if path not in growing and path.is_file()
        }

    def _write(self) -> None:
        write_record(self._folder.status, self.status)
