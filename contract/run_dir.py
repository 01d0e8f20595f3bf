"""Every path of the output tree. Nobody joins strings.

<batch>/
  batch-state.json  batch-config.json  hosts.jsonl  trace-publisher.json  .lock  .reserve
  logs/<rollout_id>.log
  rollouts/<rollout_id>/   RunDir
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EvaluationDir:
    """The `evaluation/` folder of one rollout."""

    root: Path

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def metadata(self) -> Path:
        return self.root / "metadata.json"

    @property
    def render(self) -> Path:
        return self.root / "render.png"

    @property
    def score(self) -> Path:
        return self.root / "score.json"

    @property
    def diff(self) -> Path:
        return self.root / "diff.png"

    @property
    def overlay(self) -> Path:
        """For people: gold and candidate side by side, each with what the other lacks."""
        return self.root / "overlay.png"

    @property
    def vision_judge(self) -> Path:
        return self.root / "vision-judge"

    @property
    def judge_request(self) -> Path:
        return self.vision_judge / "request.json"

    @property
    def judge_responses(self) -> Path:
        """Every attempt to ask the judge, stored before its answer is used."""
        return self.vision_judge / "responses.json"

    @property
    def judge_score(self) -> Path:
        return self.vision_judge / "score.json"

    def rescore(self, number: int) -> EvaluationDir:
        """Where the `number`-th later scoring of the same artifacts stands; the first score is never touched."""
        return EvaluationDir(self.root / "rescored" / f"{number:04d}")


@dataclass(frozen=True, slots=True)
class RunDir:
    """The folder of one rollout."""

    root: Path

    @property
    def rollout_id(self) -> str:
        return self.root.name

    @property
    def run_state(self) -> Path:
        return self.root / "run-state.json"

    @property
    def checkpoint(self) -> Path:
        return self.root / "resume-checkpoint.json"

    @property
    def reference(self) -> Path:
        return self.root / "reference.png"

    @property
    def frames(self) -> Path:
        return self.root / "frames"

    def frame(self, sequence: int) -> Path:
        """The frame that followed ActionBatch `sequence`; 0 is the frame after the reset."""
        return self.frames / f"{sequence:06d}.png"

    @property
    def model_turns(self) -> Path:
        return self.root / "model_turns.jsonl"

    @property
    def model_turn_summaries(self) -> Path:
        return self.root / "model_turn_summaries.jsonl"

    @property
    def input_receipts(self) -> Path:
        return self.root / "input_receipts.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.json"

    @property
    def frame_events(self) -> Path:
        return self.root / "frame_events.json"

    def attempt(self, extension: str) -> Path:
        """The drawing as the model left it: `attempt.dxf` from LibreCAD hosts, `attempt.dwg` from AutoCAD hosts."""
        return self.root / f"attempt.{extension}"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def evaluation(self) -> EvaluationDir:
        return EvaluationDir(self.root / "evaluation")


@dataclass(frozen=True, slots=True)
class BatchDir:
    """The output folder of one batch."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "batch-state.json"

    @property
    def config(self) -> Path:
        return self.root / "batch-config.json"

    @property
    def hosts(self) -> Path:
        """The ledger of launches, append-only."""
        return self.root / "hosts.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the one process that may write this folder's state."""
        return self.root / ".lock"

    @property
    def reserve(self) -> Path:
        """Space kept while the batch runs, given back when the disk is full so that the ends can be recorded."""
        return self.root / ".reserve"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, rollout_id: str) -> Path:
        return self.logs / f"{rollout_id}.log"

    @property
    def rollouts(self) -> Path:
        return self.root / "rollouts"

    def rollout(self, rollout_id: str) -> RunDir:
        return RunDir(self.rollouts / rollout_id)
