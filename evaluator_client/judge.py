"""Asks the vision judge about one pair of pictures (scoring contract, 10.2, 10.4 and section 11). Start at `ask_judge`.

Every attempt is on disk before its answer is used, so a crash never pays twice. What goes wrong here is a failure of
the judge, with its code; it is never a zero, and nothing here knows the deterministic score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
from pydantic import ValidationError

from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.config import JudgeConfig
from contract.errors import EvaluationError
from contract.judge_records import (
    JudgeAnswer,
    JudgeAttempt,
    JudgeRequest,
    JudgeResponses,
    JudgeUsage,
    Order,
    Outcome,
)
from contract.pricing import PriceRow
from contract.records import disk_error, first_problem, read_record, write_record
from contract.run_dir import EvaluationDir
from evaluator_client.judge_prompt import Pictures, request_of
from evaluator_client.judge_verdict import order_of, repeat_score, repeats_needed

# Scoring contract, section 11.
BACKOFF_S_MAX: Final = 60.0
TRANSPORT_MAX: Final = 10
UNUSABLE_MAX: Final = 3
_BACKOFF_S: Final = 1.0
_UNUSABLE: Final = frozenset[Outcome]({"refusal", "incomplete", "malformed"})


@dataclass(frozen=True, slots=True)
class Question:
    """One request to the model. `images` are IMAGE 1 and IMAGE 2 as PNG, in the order that `order` names."""

    request: JudgeRequest
    order: Order
    images: tuple[bytes, bytes]
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one request.

    `ok` has an `output_text` that nobody has read yet. `is_final`: asking again would not help. `is_cut`: an
    `incomplete` answer that reached its output limit. `error` is a line without the vendor's prose.
    """

    outcome: Outcome
    http_status: int | None = None
    response_id: str | None = None
    model_reported: str | None = None
    usage: JudgeUsage | None = None
    output_text: str | None = None
    error: str | None = None
    retry_after_s: float | None = None
    is_final: bool = False
    is_cut: bool = False


class JudgeModel(Protocol):
    """The way to the model. It holds the key; nobody else does."""

    async def ask(self, question: Question) -> Reply:
        """One request, bounded in time. Never raises for what the outside world does."""
        ...


@dataclass(frozen=True, slots=True)
class Judge:
    """A configured judge. `price` is null when the operator runs unpriced."""

    config: JudgeConfig
    model: JudgeModel
    price: PriceRow | None
    disk: Bridge
    ambient: Ambient


def _nothing() -> None:
    """For a caller that counts no attempts."""


def open_judging(
    folder: EvaluationDir, config: JudgeConfig, pictures: Pictures, *, known: Sequence[JudgeAttempt] = ()
) -> JudgeRequest:
    """Write `request.json`, and `responses.json` with the attempts that are known, before anything is asked.

    Raises `EvaluationError` for pictures that cannot be compared, and `DiskError`.
    """
    request = request_of(config, pictures)
    try:
        folder.vision_judge.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder.vision_judge, error) from error
    # Where there is a request there are responses, whenever this process dies.
    write_record(folder.judge_responses, JudgeResponses(attempts=list(known)))
    write_record(folder.judge_request, request)
    return request


async def ask_judge(
    folder: EvaluationDir,
    judge: Judge,
    request: JudgeRequest,
    pictures: Pictures,
    *,
    known: Sequence[JudgeAttempt] = (),
    on_attempt: Callable[[], None] = _nothing,
) -> list[JudgeAttempt]:
    """Ask until every repeat has a usable answer; repeats that `known` answers are not asked again.

    Returns all attempts, those of `known` first. Raises `EvaluationError` (`judge_transport`, `judge_unusable`), and
    `DiskError` when an attempt cannot be stored.
    """
    hearing = _Hearing(folder, judge, request, pictures, list(known), on_attempt)
    with anyio.move_on_after(judge.config.deadline_s):
        await hearing.run()
        return hearing.attempts
    raise hearing.out_of_time("its deadline is over")


def known_attempts(evaluation: EvaluationDir, request: JudgeRequest) -> list[JudgeAttempt]:
    """The attempts of the newest scoring that asked exactly this; empty when none did. Raises `StateError`."""
    for folder in _newest_first(evaluation):
        if folder.judge_request.exists() and read_record(folder.judge_request, JudgeRequest) == request:
            return read_record(folder.judge_responses, JudgeResponses).attempts
    return []


def _newest_first(evaluation: EvaluationDir) -> Iterator[EvaluationDir]:
    later: list[EvaluationDir] = []
    while (folder := evaluation.rescore(len(later) + 1)).root.exists():
        later.append(folder)
    yield from reversed(later)
    yield evaluation


class _Hearing:
    """The attempts of one pair of pictures, and the counters that end it."""

    def __init__(
        self,
        folder: EvaluationDir,
        judge: Judge,
        request: JudgeRequest,
        pictures: Pictures,
        attempts: list[JudgeAttempt],
        on_attempt: Callable[[], None],
    ) -> None:
        self.attempts = attempts
        self._folder = folder
        self._judge = judge
        self._request = request
        self._pictures = pictures
        self._on_attempt = on_attempt
        self._ends_at = judge.ambient.elapsed_s() + judge.config.deadline_s
        # Requests in a row that were never answered, over all repeats.
        self._lost = 0
        # Failures in a row that ask for a pause.
        self._pauses = 0

    async def run(self) -> None:
        scores: list[float] = []
        while len(scores) < repeats_needed(scores, self._request.repeats):
            answer = await self._answer(len(scores) + 1)
            scores.append(repeat_score(answer))

    def out_of_time(self, why: str) -> EvaluationError:
        last = self.attempts[-1] if self.attempts else None
        seen = f"; the last attempt: {last.outcome}{f', {last.error}' if last.error else ''}" if last else ""
        return EvaluationError(
            f"the judge {self._request.judge_id} did not answer within {self._judge.config.deadline_s:.0f} s:"
            f" {why}{seen}",
            code="judge_transport",
            is_retryable=True,
            hint="Judge this rollout again later, with `autocad-bench evaluate` and --judge-config.",
        )

    async def _answer(self, repeat: int) -> JudgeAnswer:
        """The first usable answer of one repeat."""
        limit = self._request.parameters.max_output_tokens
        unusable = 0
        has_doubled = False
        for attempt in self.attempts:
            if attempt.repeat == repeat and attempt.parsed is not None:
                return attempt.parsed
        while True:
            reply, attempt = await self._ask_once(repeat, limit)
            limit = self._request.parameters.max_output_tokens
            if attempt.parsed is not None:
                self._lost = self._pauses = 0
                return attempt.parsed
            if attempt.outcome in _UNUSABLE:
                self._lost = self._pauses = 0
                unusable += 1
                if unusable >= UNUSABLE_MAX:
                    raise self._unusable(attempt)
                if reply.is_cut and not has_doubled:
                    has_doubled = True
                    limit *= 2
                continue
            if attempt.outcome == "transport":
                self._lost += 1
                if reply.is_final or self._lost >= TRANSPORT_MAX:
                    raise self._unreachable(attempt, is_refused=reply.is_final)
            await self._pause(reply)

    async def _ask_once(self, repeat: int, limit: int) -> tuple[Reply, JudgeAttempt]:
        """One request, stored before anybody uses its answer."""
        order = order_of(repeat)
        number = 1 + sum(attempt.repeat == repeat for attempt in self.attempts)
        question = Question(self._request, order, self._pictures.in_order(order), limit)
        started_s = self._judge.ambient.elapsed_s()
        self._on_attempt()

        def attempt_of(reply: Reply) -> JudgeAttempt:
            latency_s = max(0.0, self._judge.ambient.elapsed_s() - started_s)
            return _attempt(reply, repeat=repeat, order=order, number=number, latency_s=latency_s)

        try:
            reply = await self._judge.model.ask(question)
        except anyio.get_cancelled_exc_class():
            # It may have been answered and charged; that nobody waited for it is part of the record.
            with anyio.CancelScope(shield=True):
                await self._store(attempt_of(Reply("transport", error="the answer was not waited for")))
            raise
        attempt = attempt_of(reply)
        with anyio.CancelScope(shield=True):
            await self._store(attempt)
        return reply, attempt

    async def _store(self, attempt: JudgeAttempt) -> None:
        self.attempts.append(attempt)
        responses = JudgeResponses(attempts=list(self.attempts))
        await self._judge.disk.call(lambda: write_record(self._folder.judge_responses, responses))

    async def _pause(self, reply: Reply) -> None:
        ambient = self._judge.ambient
        backoff_s = min(BACKOFF_S_MAX, _BACKOFF_S * 2 ** min(self._pauses, 10))
        self._pauses += 1
        pause_s = max(backoff_s * ambient.chance.uniform(0.5, 1.0), reply.retry_after_s or 0.0)
        left_s = self._ends_at - ambient.elapsed_s()
        if pause_s >= left_s:
            # The host is held meanwhile: what can only end after the deadline ends now.
            raise self.out_of_time(f"it is to be asked again in {pause_s:.0f} s, and {max(0.0, left_s):.0f} s are left")
        await ambient.sleep(pause_s)

    def _unusable(self, attempt: JudgeAttempt) -> EvaluationError:
        why = f" ({attempt.error})" if attempt.error else ""
        return EvaluationError(
            f"the judge {self._request.judge_id} gave {UNUSABLE_MAX} answers of no use to repeat {attempt.repeat},"
            f" the last: {attempt.outcome}{why}",
            code="judge_unusable",
            is_retryable=True,
            hint=f"Read {self._folder.judge_responses.name} of this evaluation, then judge it again.",
        )

    def _unreachable(self, attempt: JudgeAttempt, *, is_refused: bool) -> EvaluationError:
        why = attempt.error or "no answer"
        what = "refused the request" if is_refused else f"could not be reached {TRANSPORT_MAX} times in a row"
        return EvaluationError(
            f"the judge {self._request.judge_id} {what}: {why}",
            code="judge_transport",
            is_retryable=not is_refused,
            hint="Check the judge's model, key and endpoint, then judge this rollout again.",
        )


def _attempt(reply: Reply, *, repeat: int, order: Order, number: int, latency_s: float) -> JudgeAttempt:
    """The record of one reply, its answer checked."""
    outcome, parsed, error = reply.outcome, None, reply.error
    if outcome == "ok":
        try:
            # Strict mode is a promise of the vendor's; ranges and names are checked here again.
            parsed = JudgeAnswer.model_validate_json(reply.output_text or "", strict=True)
        except ValidationError as problem:
            outcome, error = "malformed", f"the answer is not as asked for: {first_problem(problem)}"
    return JudgeAttempt(
        repeat=repeat,
        order=order,
        attempt=number,
        outcome=outcome,
        http_status=reply.http_status,
        response_id=reply.response_id,
        model_reported=reply.model_reported,
        latency_s=round(latency_s, 3),
        usage=reply.usage,
        output_text=reply.output_text,
        parsed=parsed,
        error=error,
    )
