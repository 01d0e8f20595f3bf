"""One evaluation, from the drawing on the host to a score on disk. Start reading at `evaluate_rollout`.

    queued -> exporting -> exported -> rendering -> rendered -> scoring -> scored -> judging -> complete
                 +------------+------------+------> invalid                        any of them -> failed

A fault of ours ends as `failed` and never as a zero; a drawing that the model broke ends as `invalid` and never as a
failure. Evaluation files hold no times, host names or paths, so the same drawing gives the same bytes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from contract.broker_api import (
    ARTIFACT_BYTES_MAX,
    FACTS_BYTES_MAX,
    ArtifactReply,
    ErrorCode,
    ExportRequest,
    RenderRequest,
    SaveRequest,
    UploadGrant,
)
from contract.errors import BenchError, BrokerError, DiskError, EvaluationError
from contract.evaluation_records import FINAL_STAGES, EvaluatorName, Stage
from contract.metadata import Metadata
from contract.phases import Cause
from contract.records import replace_file
from contract.run_dir import EvaluationDir, RunDir
from evaluator_client.collector import parse_metadata
from evaluator_client.gold import GoldEntry, load_entry
from evaluator_client.judge import Judge
from evaluator_client.judge_prompt import Pictures
from evaluator_client.judging import EvaluationResult, fail, judge_rollout
from evaluator_client.ports import EvaluationHost
from evaluator_client.score import ScoredDrawing, missing_artifact_score, placement_offset, score_drawing
from evaluator_client.status import StatusFile

# Scoring contract, section 11: an idempotent call to the evaluator is made up to three times.
TRIES: Final = 3
_RETRYABLE: Final = frozenset(
    {ErrorCode.UNREACHABLE, ErrorCode.PROTOCOL, ErrorCode.UPLOAD_FAILED, ErrorCode.EVALUATOR_TIMEOUT, ErrorCode.BUSY}
)
# These say that the host is gone: a further try would only meet a corpse.
_HOST_GONE: Final = frozenset({ErrorCode.CAD_DIED, ErrorCode.CAD_HUNG, ErrorCode.DISPLAY_DIED})


async def evaluate_rollout(
    *,
    run_dir: RunDir,
    host: EvaluationHost,
    gold_dir: Path,
    task_id: str,
    evaluator: EvaluatorName,
    extension: str,
    judge: Judge | None = None,
    on_fetched: Callable[[], None] = lambda: None,
) -> EvaluationResult:
    """Save, export, render and score on the host that the rollout was played on, then ask the judge if there is one.

    `on_fetched` is called once everything has been fetched and the host is not needed any more.
    Never raises for what the host, the gold, the drawing or the judge did: that is in the result and in `status.json`,
    which says `failed` too when this was cut off.
    """
    status = StatusFile(run_dir.evaluation, evaluator, utc_now=host.utc_now)
    try:
        return await _evaluate(
            run_dir,
            host,
            status,
            gold_dir=gold_dir,
            task_id=task_id,
            extension=extension,
            judge=judge,
            on_fetched=on_fetched,
        )
    except BrokerError as error:
        return fail(status, code="evaluator_transport", error=error, cause=error.cause)
    except EvaluationError as error:
        return fail(status, code=error.code, error=error, cause=Cause.EVALUATION_FAILED)
    except BaseException as error:
        # Whoever cut it off, or caught a bug of ours, decides what that means; the file says where it stood.
        _note_break(status, error)
        raise


def _note_break(status: StatusFile, error: BaseException) -> None:
    if status.status.state in FINAL_STAGES:
        return
    is_bug = isinstance(error, Exception)
    broken = EvaluationError(
        f"it stopped on {type(error).__name__}: {error}" if is_bug else "it was cut off",
        code="evaluation_error" if is_bug else "evaluation_interrupted",
        is_retryable=not is_bug,
        hint="Evaluate the rollout again.",
    )
    # A disk that took the last word away takes no other.
    with suppress(DiskError):
        fail(status, code=broken.code, error=broken, cause=Cause.EVALUATION_FAILED)


async def _evaluate(
    run_dir: RunDir,
    host: EvaluationHost,
    status: StatusFile,
    *,
    gold_dir: Path,
    task_id: str,
    extension: str,
    judge: Judge | None,
    on_fetched: Callable[[], None],
) -> EvaluationResult:
    evaluation = run_dir.evaluation
    evaluator = status.status.evaluator
    gold = await host.score_bridge.call(
        lambda: load_entry(gold_dir, task_id, evaluator_name=evaluator.name, evaluator_version=evaluator.version)
    )

    status.enter(Stage.EXPORTING)
    save = partial(_request_save, host)
    drawing = await _fetch(host, status, "attempt", dest=run_dir.attempt(extension), request=save)
    if drawing is None:
        return _finish_invalid(status, missing_artifact_score(gold), evaluation)
    await _fetch(host, status, "metadata", dest=evaluation.metadata, request=partial(_request_export, host))
    metadata, digest = await host.score_bridge.call(lambda: _read_metadata(evaluation.metadata, evaluator))
    # The scorer may find what the evaluator lets pass, such as nothing left to compare: no render is asked for then.
    verdict = await host.score_bridge.call(
        lambda: score_drawing(candidate=metadata, render=None, gold=gold, candidate_sha256=digest)
    )
    if not verdict.score.valid:
        return _finish_invalid(status, verdict, evaluation)
    status.enter(Stage.EXPORTED)

    status.enter(Stage.RENDERING)
    offset = await host.score_bridge.call(lambda: placement_offset(metadata, gold))
    render = partial(_request_render, host, gold, offset)
    await _fetch(host, status, "render", dest=evaluation.render, request=render)
    status.enter(Stage.RENDERED)
    on_fetched()

    status.enter(Stage.SCORING)
    picture = evaluation.render.read_bytes()
    scored = await host.score_bridge.call(
        lambda: score_drawing(candidate=metadata, render=picture, gold=gold, candidate_sha256=digest)
    )
    if scored.pictures is not None:
        replace_file(evaluation.diff, scored.pictures.diff_png)
        replace_file(evaluation.overlay, scored.pictures.overlay_png)
    if judge is not None:
        pictures = Pictures(reference=gold.render, candidate=picture)
        return await judge_rollout(evaluation, status, judge, scored.score, pictures)
    replace_file(evaluation.score, scored.score_json)
    status.enter(Stage.SCORED)
    status.enter(Stage.COMPLETE)
    return EvaluationResult(state=Stage.COMPLETE, score=scored.score)


async def _fetch(
    host: EvaluationHost,
    status: StatusFile,
    name: str,
    *,
    dest: Path,
    request: Callable[[str, UploadGrant], Callable[[], ArtifactReply]],
) -> Path | None:
    """Have the host make and upload one file; null when the model left none. Each try has a URL of its own."""
    stage = status.status.state
    bytes_max = FACTS_BYTES_MAX if name == "metadata" else ARTIFACT_BYTES_MAX
    lost: BenchError | None = None
    for _ in range(TRIES):
        status.count_attempt(stage)
        try:
            # Signing one may have to renew credentials first, which takes a while and may fail for a while.
            grant = await host.host_bridge.call(partial(host.uploads.grant, name, bytes_max=bytes_max, dest=dest))
            reply = await host.host_bridge.call(request(f"{name}-{secrets.token_hex(8)}", grant))
            if not reply.is_present:
                return None
            if name == "attempt" and reply.size_bytes > ARTIFACT_BYTES_MAX:
                # It stays on the host, whose facts about it say so.
                return dest
            assert reply.sha256 is not None
            return await host.uploads.collect(grant, sha256=reply.sha256, size_bytes=reply.size_bytes)
        except BrokerError as error:
            if error.code in _HOST_GONE:
                raise
            if error.code not in _RETRYABLE:
                raise EvaluationError(error.message, code=f"evaluator_{name}", hint=error.hint) from error
            lost = error
        except EvaluationError as error:
            if not error.is_retryable:
                raise
            lost = error
    assert lost is not None
    raise EvaluationError(
        f"{name} did not arrive in {TRIES} tries: {lost.message}", code="evaluator_transport", hint=lost.hint
    ) from lost


def _request_save(host: EvaluationHost, request_id: str, grant: UploadGrant) -> Callable[[], ArtifactReply]:
    request = SaveRequest(request_id=request_id, lease_id=host.lease_id, upload=grant)
    return lambda: host.broker.save(request)


def _request_export(host: EvaluationHost, request_id: str, grant: UploadGrant) -> Callable[[], ArtifactReply]:
    request = ExportRequest(request_id=request_id, lease_id=host.lease_id, upload=grant)
    return lambda: host.broker.export(request)


def _request_render(
    host: EvaluationHost, gold: GoldEntry, offset: tuple[float, float, float], request_id: str, grant: UploadGrant
) -> Callable[[], ArtifactReply]:
    request = RenderRequest(
        request_id=request_id,
        lease_id=host.lease_id,
        upload=grant,
        window=gold.window,
        size_px=gold.size_px,
        offset=offset,
    )
    return lambda: host.broker.render(request)


def _read_metadata(path: Path, pinned: EvaluatorName) -> tuple[Metadata, str]:
    """The facts and the digest of the file that they stand in."""
    content = path.read_bytes()
    try:
        metadata = parse_metadata(content, source=path.name)
    except BenchError as error:
        raise EvaluationError(error.message, code="metadata_schema", hint=error.hint) from error
    made_by = (metadata.evaluator.name, metadata.evaluator.version)
    if made_by != (pinned.name, pinned.version):
        raise EvaluationError(
            f"the host's evaluator is {' '.join(made_by)}, the gold was made by {pinned.name} {pinned.version}",
            code="evaluator_version_mismatch",
            hint="Run a host with the pinned evaluator, or pin another gold cache.",
        )
    return metadata, hashlib.sha256(content).hexdigest()


def _finish_invalid(status: StatusFile, scored: ScoredDrawing, folder: EvaluationDir) -> EvaluationResult:
    """A drawing that cannot be compared has a complete record of zeros, and no picture."""
    replace_file(folder.score, scored.score_json)
    status.enter(Stage.INVALID)
    return EvaluationResult(state=Stage.INVALID, score=scored.score)
