"""The evaluation of one rollout as a sandbox sees it: on its host, with its lease, against the pinned gold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.broker_client import BrokerClient, Patience
from contract.errors import DiskError
from contract.evaluation_records import EvaluatorName, Stage
from contract.phases import Cause
from contract.run_dir import RunDir
from evaluator_client.evaluate import evaluate_rollout
from evaluator_client.judge import Judge
from evaluator_client.judging import EvaluationResult
from evaluator_client.ports import EvaluationHost, UploadStore
from supervisor.hosts.lease import Host
from supervisor.outcome import Evaluation


@dataclass(frozen=True, slots=True)
class HostEvaluator:
    """The trusted evaluator on the host, and the comparison with the gold here."""

    uploads: UploadStore
    gold_dir: Path
    evaluator: EvaluatorName
    extension: str
    patience: Patience
    host_bridge: Bridge
    score_bridge: Bridge
    ambient: Ambient
    # Null when the config has no judge.
    judge: Judge | None = None

    async def evaluate(
        self,
        *,
        host: Host,
        base_url: str,
        lease_id: str,
        run_dir: RunDir,
        task_id: str,
        on_fetched: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        """Save, export, render and score, and ask the judge. Raises `DiskError`.

        `on_fetched` is called once the host is not needed any more.
        """
        client = BrokerClient(base_url, host.token, patience=self.patience)
        try:
            result = await evaluate_rollout(
                run_dir=run_dir,
                host=EvaluationHost(
                    broker=client,
                    lease_id=lease_id,
                    uploads=self.uploads,
                    host_bridge=self.host_bridge,
                    score_bridge=self.score_bridge,
                    utc_now=self.ambient.utc_now,
                ),
                gold_dir=self.gold_dir,
                task_id=task_id,
                evaluator=self.evaluator,
                extension=self.extension,
                judge=self.judge,
                on_fetched=on_fetched,
            )
        except DiskError as error:
            return Evaluation(state="failed", cause=Cause.DISK, failure=str(error))
        finally:
            client.close()
        return _evaluation(result)


def _evaluation(result: EvaluationResult) -> Evaluation:
    score = result.score
    if result.state is Stage.FAILED or score is None:
        failure = ": ".join(text for text in (result.failure_code, result.failure_message) if text)
        return Evaluation(
            state="failed",
            # Only the judge failed: what the drawing is worth without it stays known.
            score=score.deterministic if score is not None else None,
            cause=result.cause,
            failure=failure or "the evaluation gave no score",
            judge_cost_usd=result.judge_cost_usd,
        )
    return Evaluation(
        state="invalid" if result.state is Stage.INVALID else "complete",
        score=score.deterministic,
        judge_score=score.vision_judge.score,
        final=score.final,
        invalid_code=score.invalid.code if score.invalid is not None else None,
        judge_cost_usd=result.judge_cost_usd,
    )
