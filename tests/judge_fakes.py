"""A vision judge that says what it is told, and pictures for it."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import anyio
from PIL import Image

from contract.ambient import Ambient
from contract.config import JudgeConfig
from contract.judge_records import Calibration, GoldCalibration, JudgeUsage, MissingContent
from contract.pricing import PriceRow
from evaluator_client.judge import Judge, Question, Reply
from evaluator_client.judge_calibration import MISSING_SHARES
from evaluator_client.judge_prompt import PROMPT_SHA256, PROMPT_VERSION, SCHEMA_SHA256, Pictures, parameters_of
from tests.batch_fakes import START, InlineBridge

GRADES = ("shape_fidelity", "proportions", "completeness", "annotation", "extraneous")
PRICE = PriceRow(input=Decimal(2), cached_input=Decimal("0.5"), output=Decimal(10))
USAGE = JudgeUsage(
    input_tokens=1000,
    cached_input_tokens=400,
    cache_write_tokens=0,
    output_tokens=100,
    reasoning_tokens=20,
    total_tokens=1100,
)
# 600 fresh, 400 cached and 100 output tokens.
ANSWER_USD = Decimal("0.0024")
THROTTLED = Reply("throttled", http_status=429, error="HTTP 429 rate_limit_exceeded")
BROKEN = Reply("server_error", http_status=500, error="HTTP 500 server_error")
LOST = Reply("transport", error="no connection")
REFUSED = Reply("refusal", http_status=200, usage=USAGE, error="the model refused")
CUT = Reply("incomplete", http_status=200, usage=USAGE, error="incomplete: max_output_tokens", is_cut=True)


def answer_text(grade: int = 4, *errors: str, addressed: bool = False, **grades: Any) -> str:
    """An answer as the model writes it; all grades are `grade` unless they are named."""
    facts = {
        **dict.fromkeys(GRADES, grade),
        "critical_errors": list(errors) or ["none"],
        "text_addresses_evaluator": addressed,
        "evidence": "seen",
        **grades,
    }
    return json.dumps(facts)


def says(text: str) -> Reply:
    """A completed response with this text."""
    return Reply("ok", http_status=200, response_id="resp_1", model_reported="seer-1", usage=USAGE, output_text=text)


def grades(grade: int) -> Reply:
    """An answer that is worth `grade` / 4."""
    return says(answer_text(grade))


@dataclass(slots=True)
class ScriptedModel:
    """Gives its replies in order, and the last of them for ever; `before` is awaited with each question."""

    replies: Sequence[Reply]
    before: Callable[[Question], Awaitable[None]] | None = None
    asked: list[Question] = field(default_factory=list)
    _left: Iterator[Reply] = field(init=False)

    def __post_init__(self) -> None:
        self._left = iter(self.replies)

    async def ask(self, question: Question) -> Reply:
        self.asked.append(question)
        await anyio.lowlevel.checkpoint()
        if self.before is not None:
            await self.before(question)
        return next(self._left, self.replies[-1])


def judge_config(**fields: Any) -> JudgeConfig:
    return JudgeConfig.model_validate({"judge_id": "vj-1", "provider": "openai", "model": "seer-1", **fields})


def judge_of(*replies: Reply, **fields: Any) -> tuple[Judge, ScriptedModel]:
    """A judge in virtual time, and its model."""
    model = ScriptedModel(replies)
    return judge_with(model, **fields), model


def judge_with(model: Any, **fields: Any) -> Judge:
    """A judge in virtual time over any model."""
    ambient = Ambient(
        elapsed_s=anyio.current_time,
        utc_now=lambda: START + timedelta(seconds=anyio.current_time()),
        chance=random.Random(1),
    )
    return Judge(config=judge_config(**fields), model=model, price=PRICE, disk=InlineBridge(), ambient=ambient)


def sheet(grey: int = 255, size: tuple[int, int] = (40, 30)) -> bytes:
    """A PNG of one tone."""
    out = io.BytesIO()
    Image.new("L", size, grey).save(out, "PNG")
    return out.getvalue()


PICTURES = Pictures(reference=sheet(0), candidate=sheet(128))


def calibration(config: JudgeConfig, evaluator: str) -> Calibration:
    """The record of a judge that may be used."""
    golds = [
        GoldCalibration(
            task_id=f"task-{number}",
            gold_entry_sha256="0" * 64,
            same=0.95,
            blank=0.1,
            other_task_id="another",
            other=0.3,
            missing=[MissingContent(share=share, score=1 - share) for share in MISSING_SHARES],
        )
        for number in range(5)
    ]
    return Calibration(
        judge_id=config.judge_id,
        provider=config.provider,
        model=config.model,
        models_reported=["seer-1-2026-09-01"],
        prompt_version=PROMPT_VERSION,
        prompt_sha256=PROMPT_SHA256,
        schema_sha256=SCHEMA_SHA256,
        parameters=parameters_of(config),
        repeats=config.repeats,
        evaluator=evaluator,
        calibrated_at=START,
        golds=golds,
        cost_usd=Decimal("0.216"),
        cost_note=None,
        usage_total=USAGE,
    )
