"""What asking the vision judge about one drawing is likely to cost, and what it can cost at most."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from contract.config import JudgeConfig
from contract.pricing import PriceRow, PriceTable, Usage, cost_of
from evaluator_client.judge import UNUSABLE_MAX
from evaluator_client.judge_prompt import INSTRUCTIONS
from evaluator_client.judge_verdict import EXTRA_REPEATS

CHARS_PER_TOKEN: Final = 4
# The schema and the lines beside the pictures.
_FIXED_TOKENS: Final = 400
# A render of 1600x1200 in high detail has 50 x 38 patches of 32 pixels. The dearest way of counting that is known
# (a base of 2,833 and 5,667 for each of four tiles) comes to 25,501 (OpenAI, "Images and vision", autumn 2026).
IMAGE_TOKENS: Final = 1_900
IMAGE_TOKENS_MAX: Final = 25_501
OUTPUT_TOKENS: Final = 500

JUDGE_ASSUMPTIONS: Final[dict[str, Any]] = {
    "judge_answers": "expected: `judge.repeats` for each rollout; worst case: two more, each after "
    f"{UNUSABLE_MAX - 1} answers of no use",
    "judge_image_tokens": f"{IMAGE_TOKENS} for each of two pictures; worst case {IMAGE_TOKENS_MAX}",
    "judge_output_tokens": f"{OUTPUT_TOKENS}; worst case `judge.max_output_tokens`, once for each repeat twice that",
}


@dataclass(frozen=True, slots=True)
class JudgeEstimate:
    """US dollars for one drawing, and how many answers that is."""

    expected: Decimal
    worst_case: Decimal
    expected_answers: int
    worst_case_answers: int


def judge_estimate(config: JudgeConfig, row: PriceRow) -> JudgeEstimate:
    """The estimate for one drawing. Unanswered requests that a vendor charges are not in it."""
    words = len(INSTRUCTIONS) // CHARS_PER_TOKEN + _FIXED_TOKENS
    answer = cost_of(Usage(input=words + 2 * IMAGE_TOKENS, output=OUTPUT_TOKENS), row)
    worst_input = 2 * words + 2 * IMAGE_TOKENS_MAX
    repeats = config.repeats + EXTRA_REPEATS
    usual = _dearest(worst_input, config.max_output_tokens, row)
    doubled = _dearest(worst_input, 2 * config.max_output_tokens, row)
    return JudgeEstimate(
        expected=config.repeats * answer,
        worst_case=repeats * ((UNUSABLE_MAX - 1) * usual + doubled),
        expected_answers=config.repeats,
        worst_case_answers=repeats * UNUSABLE_MAX,
    )


def price_name(judge: JudgeConfig) -> str:
    """The row of the price table."""
    return f"{judge.provider}/{judge.model}"


def price_of(judge: JudgeConfig, table: PriceTable | None) -> PriceRow | None:
    """The judge's price, null when it is not known."""
    return table.rows.get(price_name(judge)) if table is not None else None


def _dearest(input_tokens: int, output_tokens: int, row: PriceRow) -> Decimal:
    """The same tokens in whichever bucket costs most."""
    buckets = (
        Usage(input=input_tokens, output=output_tokens),
        Usage(cache_write=input_tokens, output=output_tokens),
        Usage(cache_write_long=input_tokens, output=output_tokens),
    )
    return max(cost_of(usage, row) for usage in buckets)
