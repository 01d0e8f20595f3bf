"""The deeds of a broker: lease, reset, actions, frames, save, export, render. Knows no HTTP and no CAD program.

All deeds of the desktop run on one thread, one after the other, so actions never overlap, and a request that is
repeated while the first is still acting waits for it and finds its receipt. The evaluator has a thread of its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from broker.drivers import Driver
from broker.evaluation import Evaluator
from broker.frame import Frame
from broker.lease import LeaseBook
from broker.receipts import ReceiptBook
from broker.refusal import Refusal, refusal_of
from broker.uploads import upload
from contract.actions import InvalidActions, digest_of, parse_action_batch
from contract.broker_api import (
    ARTIFACT_BYTES_MAX,
    BROKER_VERSION,
    START_DRAWING_BYTES_MAX,
    ActionsRequest,
    ArtifactReply,
    ErrorCode,
    ExportRequest,
    Health,
    InstanceProof,
    Lease,
    LeaseRequest,
    Receipt,
    RenderRequest,
    ResetReply,
    ResetRequest,
    SaveRequest,
    UploadGrant,
    Verdict,
)
from contract.records import Record

RESET_ATTEMPTS_MAX: Final = 2
# The frame that a lost answer may be asked for again, and the one before it.
FRAMES_KEPT: Final = 2
REPLIES_KEPT: Final = 64
# The whole budget of a rollout; the pilot keeps its own account, this only bounds one request.
ACTIONS_MAX: Final = 5_000
CLOSE_S_MAX: Final = 2.0

Reply = ResetReply | ArtifactReply
T = TypeVar("T")
R = TypeVar("R", ResetReply, ArtifactReply)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Who this broker is, for health and identity; `instance` is what only a cloud instance can say of itself."""

    host_id: str
    boot_id: str
    started_at: str
    instance: InstanceProof | None = None


class Service:
    """One broker. Deeds return futures; facts are answered at once, from any thread."""

    def __init__(
        self,
        *,
        state_dir: Path,
        facts: HostFacts,
        driver: Driver,
        evaluator: Evaluator,
        leases: LeaseBook,
        receipts: ReceiptBook,
        send: Callable[[Path, UploadGrant], None] = upload,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state_dir` takes the start drawing and what is about to be uploaded."""
        self.facts = facts
        self.leases = leases
        self._state_dir = state_dir
        self._driver = driver
        self._evaluator = evaluator
        self._receipts = receipts
        self._send = send
        self._elapsed_s = elapsed_s
        self._frames: OrderedDict[int, Frame] = OrderedDict()
        self._replies: OrderedDict[str, tuple[str, Reply]] = OrderedDict()
        self._desktop_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="desktop")
        self._evaluator_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluator")
        self._deeds_under_way = 0
        self._counting = threading.Lock()

    # -- facts ------------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """What the broker and its CAD program are doing."""
        lease_id = self.leases.lease_id
        return Health(
            broker_version=BROKER_VERSION,
            boot_id=self.facts.boot_id,
            host_id=self.facts.host_id,
            driver=self._driver.name,
            driver_state=self._driver.state(),
            lease_generation=self.leases.generation,
            last_sequence=self._receipts.last_sequence(lease_id) if lease_id else 0,
        )

    def frame(self, sequence: int) -> Frame:
        """One of the last frames. Raises `not_found`."""
        frame = self._frames.get(sequence)
        if frame is None:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"frame {sequence} is not held",
                hint=f"Only the last {FRAMES_KEPT} frames are; fetch each before the next actions.",
            )
        return frame

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called, on any thread, when the driver's state may have become another."""
        self._driver.watch(on_change)

    def is_busy(self) -> bool:
        """True while a deed is under way: that is no silence."""
        return self._deeds_under_way > 0

    # -- deeds ------------------------------------------------------------------------------------------------------

    def prepare(self) -> Future[None]:
        """Bring up what the first reset will need."""
        return self._on_desktop(self._driver.prepare)

    def lease(self, request: LeaseRequest) -> Lease:
        """Take the lease, or get the same one again."""
        return self.leases.grant(request)

    def release(self, lease_id: str) -> Future[Health]:
        """Give the lease back and end the desktop."""

        def deed() -> Health:
            self.leases.release(lease_id)
            if self.leases.lease_id is None:
                self._driver.close()
                self._frames.clear()
            return self.health()

        return self._on_desktop(deed)

    def reset(self, request: ResetRequest) -> Future[ResetReply]:
        """A fresh CAD program on a fresh copy of the start drawing, in at most two clean attempts."""
        return self._on_desktop(lambda: self._once(request, ResetReply, lambda: self._reset(request)))

    def act(self, request: ActionsRequest) -> Future[Receipt]:
        """Carry the actions out exactly once."""
        return self._on_desktop(lambda: self._act(request))

    def save(self, request: SaveRequest) -> Future[ArtifactReply]:
        """Have the CAD program write its drawing, and hand it over."""
        return self._on_desktop(lambda: self._once(request, ArtifactReply, lambda: self._save(request)))

    def export(self, request: ExportRequest) -> Future[ArtifactReply]:
        """Facts about the saved drawing, handed over."""
        return self._on_evaluator(lambda: self._once(request, ArtifactReply, lambda: self._export(request)))

    def render(self, request: RenderRequest) -> Future[ArtifactReply]:
        """The canonical render of the saved drawing, handed over."""
        return self._on_evaluator(lambda: self._once(request, ArtifactReply, lambda: self._render(request)))

    def abort(self) -> None:
        """End the CAD program and the evaluator at once, from any thread."""
        self._driver.abort()
        self._evaluator.close()

    def close(self) -> None:
        """End everything and clean up. Blocks for at most a few seconds."""
        self.abort()
        self._desktop_thread.submit(self._driver.close).exception(timeout=CLOSE_S_MAX)
        self._desktop_thread.shutdown(wait=False, cancel_futures=True)
        self._evaluator_thread.shutdown(wait=False, cancel_futures=True)
        self._receipts.close()

    # -- how --------------------------------------------------------------------------------------------------------

    def _reset(self, request: ResetRequest) -> ResetReply:
        if self._receipts.last_sequence(request.lease_id):
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "this lease has acted already",
                hint="A rollout begins once; take a fresh host for another.",
            )
        drawing = _start_drawing(request)
        start_path = self._state_dir / "start.dxf"
        start_path.write_bytes(drawing)
        began = self._elapsed_s()
        for attempt in range(1, RESET_ATTEMPTS_MAX + 1):
            try:
                frame = self._clean_attempt(drawing)
            except Refusal as error:
                _log.warning("reset attempt %d failed: %s", attempt, error)
                self._driver.close()
                last = error
                continue
            self._frames.clear()
            self._frames[0] = frame
            self._evaluator_thread.submit(self._warm_evaluator)
            return ResetReply(frame=frame.info(0), attempts=attempt, reset_s=round(self._elapsed_s() - began, 6))
        raise Refusal(
            ErrorCode.RESET_FAILED,
            f"the desktop was not ready after {RESET_ATTEMPTS_MAX} clean attempts: {last.message}",
            hint=last.hint or "End this host and take another.",
        )

    def _clean_attempt(self, drawing: bytes) -> Frame:
        frame = self._driver.reset(drawing)
        if frame.verdict is not Verdict.OK:
            raise Refusal(ErrorCode.RESET_FAILED, f"the first frame is {frame.verdict}", hint="Look at its screen.")
        return frame

    def _act(self, request: ActionsRequest) -> Receipt:
        self.leases.demand(request.lease_id)
        stored = self._receipts.stored(request.lease_id, request.sequence, request.digest)
        if stored is not None:
            return stored
        actions = parse_action_batch({"actions": request.actions}, budget=ACTIONS_MAX)
        if isinstance(actions, InvalidActions):
            raise Refusal(ErrorCode.INVALID_ACTIONS, actions.reason, hint="Nothing was carried out.")
        if digest_of(actions) != request.digest:
            raise Refusal(
                ErrorCode.DIGEST_MISMATCH,
                "the digest is not that of the actions that arrived",
                hint="Send the same request again; something on the way changes bytes.",
            )
        if self._driver.state() == "stopped":
            raise Refusal(ErrorCode.NOT_RESET, "the desktop was not reset", hint="Reset it first.")
        self._receipts.begin(request.lease_id, request.sequence, request.digest)
        began = self._elapsed_s()
        try:
            acted = self._driver.act(actions)
        except Exception as error:  # whatever it was, the sequence has an end that a retry is told too
            refusal = refusal_of(error)
            self._receipts.fail(request.lease_id, request.sequence, request.digest, refusal.body())
            raise refusal from error
        receipt = Receipt(
            sequence=request.sequence,
            digest=request.digest,
            performed=acted.performed,
            took_s=round(self._elapsed_s() - began, 6),
            frame=acted.frame.info(request.sequence),
        )
        self._frames[request.sequence] = acted.frame
        self._receipts.finish(request.lease_id, receipt)
        while len(self._frames) > FRAMES_KEPT:
            self._frames.popitem(last=False)
        return receipt

    def _save(self, request: SaveRequest) -> ArtifactReply:
        if self._driver.state() == "stopped":
            raise Refusal(ErrorCode.NOT_RESET, "the desktop was not reset", hint="Reset it first.")
        drawing = self._driver.save()
        # Export says that it is too large, and that is what it is worth: no fault of ours.
        if not drawing.is_symlink() and drawing.is_file() and drawing.stat().st_size > ARTIFACT_BYTES_MAX:
            return _described(drawing, self._driver.artifact_name)
        return self._hand_over(drawing, self._driver.artifact_name, request.upload)

    def _export(self, request: ExportRequest) -> ArtifactReply:
        drawing, out = self._drawing(), self._scratch("metadata.json")
        start = self._state_dir / "start.dxf"
        self._evaluator.export(drawing=drawing, start_drawing=start if start.exists() else None, out=out)
        return self._hand_over(out, "metadata.json", request.upload)

    def _render(self, request: RenderRequest) -> ArtifactReply:
        drawing, out = self._drawing(), self._scratch("render.png")
        self._evaluator.render(
            drawing=drawing, window=request.window, size_px=request.size_px, offset=request.offset, out=out
        )
        return self._hand_over(out, "render.png", request.upload)

    def _drawing(self) -> Path:
        drawing = self._state_dir / "drawing" / self._driver.artifact_name
        if drawing.is_symlink() or not drawing.is_file():
            raise Refusal(
                ErrorCode.ARTIFACT_MISSING,
                "there is no saved drawing",
                hint="Save first; a missing file is invalid.",
            )
        return drawing

    def _scratch(self, name: str) -> Path:
        folder = self._state_dir / "uploads"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / name

    def _hand_over(self, path: Path, name: str, grant: UploadGrant) -> ArtifactReply:
        # What the model left may be anything, also a link to somewhere else or a folder.
        if path.is_symlink() or not path.is_file():
            return ArtifactReply(name=name, is_present=False, sha256=None, size_bytes=0)
        reply = _described(path, name)
        self._send(path, grant)
        return reply

    def _once(self, request: ResetRequest | SaveRequest | ExportRequest | RenderRequest, kind: type[R], do: Any) -> R:
        """The same reply for the same request id. What failed is tried again."""
        self.leases.demand(request.lease_id)
        fingerprint = _fingerprint(request)
        known = self._replies.get(request.request_id)
        if known is not None:
            if known[0] != fingerprint:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST,
                    f"request id {request.request_id!r} was used for another request",
                    hint="Give each request its own id.",
                )
            assert isinstance(known[1], kind)
            return known[1]
        reply: R = do()
        self._replies[request.request_id] = (fingerprint, reply)
        while len(self._replies) > REPLIES_KEPT:
            self._replies.popitem(last=False)
        return reply

    def _warm_evaluator(self) -> None:
        try:
            self._evaluator.warm()
        except Refusal as error:
            # It is started again, and its failure told, when it is needed.
            _log.warning("the evaluator did not start: %s", error)

    def _on_desktop(self, deed: Callable[[], T]) -> Future[T]:
        return self._counted(self._desktop_thread, deed)

    def _on_evaluator(self, deed: Callable[[], T]) -> Future[T]:
        return self._counted(self._evaluator_thread, deed)

    def _counted(self, thread: ThreadPoolExecutor, deed: Callable[[], T]) -> Future[T]:
        with self._counting:
            self._deeds_under_way += 1
        future = thread.submit(deed)
        future.add_done_callback(self._uncount)
        return future

    def _uncount(self, _: Future[Any]) -> None:
        self.leases.touch()
        with self._counting:
            self._deeds_under_way -= 1


def _start_drawing(request: ResetRequest) -> bytes:
    try:
        drawing = base64.b64decode(request.start_drawing_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(ErrorCode.INVALID_REQUEST, "start_drawing_base64 is not base64", hint="Encode it.") from error
    if len(drawing) > START_DRAWING_BYTES_MAX:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"the start drawing has {len(drawing)} bytes, at most {START_DRAWING_BYTES_MAX} are taken",
            hint="Start the task from a smaller drawing.",
        )
    if hashlib.sha256(drawing).hexdigest() != request.start_drawing_sha256:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, "the start drawing arrived damaged", hint="Send the same request again."
        )
    return drawing


def _described(path: Path, name: str) -> ArtifactReply:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return ArtifactReply(name=name, is_present=True, sha256=sha256, size_bytes=path.stat().st_size)


def _fingerprint(request: Record) -> str:
    return hashlib.sha256((type(request).__name__ + request.model_dump_json()).encode()).hexdigest()
