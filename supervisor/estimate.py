"""What a rollout is likely to cost, and what it can cost at most, from its profile, its prices and its limits.

The expected cost plays the rollout's history turn by turn with typical sizes. The worst case is a bound: as many
responses as the limits allow, each as long and as badly cached as the profile allows. The sizes are estimates of ours;
the plan prints them beside the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from contract.pricing import PriceRow, Usage, cost_of
from contract.profiles import HistoryKind, Profile, Wire
from contract.rollout_records import Limits

# A model looks more often than a script that knows the way: an oracle's ActionBatch has about seven actions.
TURNS_PER_ORACLE_TURN: Final = 3
TURNS_WITHOUT_ORACLE: Final = 60
# The system text has 700 characters, the tool with its schema 3,700 (contract/actions.py, pilot/models/prompt.py).
FIXED_TOKENS: Final = 1_300
CHARS_PER_TOKEN: Final = 4
# One turn's words: the tool's result, the budget, what stands beside the frame.
TEXT_TOKENS: Final = 80
TEXT_TOKENS_MAX: Final = 1_000
# One line of a digest; its characters are bounded in pilot/models/digest.py.
LINE_TOKENS: Final = 40
LINE_TOKENS_MAX: Final = 250
OUTPUT_TOKENS: Final = 400
SUMMARY_TOKENS: Final = 2_000
# A 1920x1080 frame of a CAD screen as PNG, in base64: 120 kB of drawing, or at least 15 kB of empty screen.
FRAME_BODY_BYTES: Final = 160_000
FRAME_BODY_BYTES_MIN: Final = 20_000
# The longest context of a model that a profile is known for (OpenRouter's list, autumn 2026).
CONTEXT_TOKENS_MAX: Final = 1_050_000
# A chat turn is an answer, a tool's result and a desktop.
MESSAGES_PER_TURN: Final = {Wire.CHAT: 3}

ASSUMPTIONS: Final[dict[str, Any]] = {
    "expected_turns": f"{TURNS_PER_ORACLE_TURN} for each turn of the task's oracle script; {TURNS_WITHOUT_ORACLE} "
    "without a script; never more than `limits.actions`",
    "expected_output_tokens_per_turn": OUTPUT_TOKENS,
    "expected_text_tokens_per_turn": TEXT_TOKENS,
    "prompt_and_tool_tokens": FIXED_TOKENS,
    "task_tokens": f"one for {CHARS_PER_TOKEN} characters",
    "frame_tokens": "the profile's `frame_tokens`; the reference picture costs as much as a frame",
    "history": "by the profile: rebuilt (compact), kept (append), or replaced by a digest at the profile's limits; "
    f"a server's compaction writes {SUMMARY_TOKENS} tokens",
    "caching": "expected: all that an earlier request had before it is read from the cache, the rest is written to it, "
    "on profiles that cache; worst case: nothing is ever read, and everything is written at the dearest rate",
    "worst_case_turns": "`limits.actions`, each action alone in its turn, times `limits.invalid_turns`, times "
    "`limits.malformed_responses`: each streak as long as it may be",
    "worst_case_turn": "the longest request of the profile, and `max_output_tokens` in answer",
    "limits": "with `limits.cost_usd` a rollout costs at most that and one worst turn; with `limits.batch_cost_usd` "
    "the batch costs at most that and one worst turn of each rollout that plays at once",
    "not_counted": "failed requests that a provider charges, retries of unanswered ones, server compactions that fail "
    "again and again, and prices that change",
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """US dollars of one rollout. `worst_turn` is the dearest single response, which a cost limit may be passed by."""

    expected_turns: int
    expected: Decimal
    worst_turns: int
    worst_turn: Decimal
    worst_case: Decimal


def estimate(facts: Profile, row: PriceRow, limits: Limits, *, task_chars: int, oracle_turns: int | None) -> Estimate:
    """The estimate for one rollout of a task whose words have `task_chars` characters."""
    opening = FIXED_TOKENS + task_chars // CHARS_PER_TOKEN + facts.frame_tokens
    usual = oracle_turns * TURNS_PER_ORACLE_TURN if oracle_turns else TURNS_WITHOUT_ORACLE
    expected_turns = min(usual, limits.actions)
    expected = sum((cost_of(usage, row) for usage in _usages(facts, row, opening, expected_turns)), Decimal(0))
    worst_turns = limits.actions * limits.invalid_turns * limits.malformed_responses
    # Half as many characters for a token: the task may be in any language.
    worst_turn = _worst_turn(facts, row, opening + task_chars // CHARS_PER_TOKEN, worst_turns)
    worst = worst_turn * worst_turns
    if limits.cost_usd is not None:
        worst = min(worst, limits.cost_usd + worst_turn)
    # A limit or a short script may make the bound smaller than what is usual.
    return Estimate(expected_turns, min(expected, worst), worst_turns, worst_turn, worst)


def _usages(facts: Profile, row: PriceRow, opening: int, turns: int) -> list[Usage]:
    """The responses of a usual rollout, in order."""
    output = min(OUTPUT_TOKENS, facts.max_output_tokens)
    trigger = _compaction_trigger(facts)
    history = _History(facts, output)
    usages = []
    for turn in range(turns):
        # What an earlier request had sent: nothing before the first turn, the opening alone after a cut.
        repeated = 0 if turn == 0 else opening + history.advance()
        whole = opening + history.tokens + facts.frame_tokens + TEXT_TOKENS
        if trigger is not None and whole > trigger:
            usages.append(_usage(facts, row, whole, cached=repeated, output=SUMMARY_TOKENS))
            history.tokens = SUMMARY_TOKENS
            history.turns = 0
            repeated = opening
            whole = opening + history.tokens + facts.frame_tokens + TEXT_TOKENS
        usages.append(_usage(facts, row, whole, cached=repeated, output=output))
    return usages


class _History:
    """How many tokens the turns behind us have in the next request."""

    def __init__(self, facts: Profile, output: int) -> None:
        self._facts = facts
        self._per_turn = facts.frame_tokens + TEXT_TOKENS + output
        self._turns_max = _turns_kept_max(facts, FRAME_BODY_BYTES)
        self._lines = 0
        self.tokens = 0
        self.turns = 0

    def advance(self) -> int:
        """Take one more turn in. Returns how many of these tokens earlier requests had sent."""
        facts = self._facts
        if facts.history is HistoryKind.COMPACT:
            is_cut = self._lines >= 2 * facts.outcomes_kept
            self._lines = facts.outcomes_kept if is_cut else self._lines + 1
            self.tokens = self._lines * LINE_TOKENS
            return 0 if is_cut else self.tokens - LINE_TOKENS
        is_full = self.turns + 1 > self._turns_max or self._is_over_tokens()
        if not is_full:
            self.turns += 1
            self.tokens += self._per_turn
            return self.tokens
        if facts.history is HistoryKind.DIGEST:
            self.turns = 0
            self.tokens = facts.outcomes_kept * LINE_TOKENS
            return 0
        # Old frames are left out, down to half of what fits; the words stay.
        left_out = self.turns // 2
        self.turns -= left_out
        self.tokens = max(0, self.tokens - left_out * facts.frame_tokens)
        return 0

    def _is_over_tokens(self) -> bool:
        limit = self._facts.digest_input_tokens
        return limit is not None and self.tokens + self._per_turn > limit


def _usage(facts: Profile, row: PriceRow, whole: int, *, cached: int, output: int) -> Usage:
    if not facts.caches:
        return Usage(input=whole, output=output)
    fresh = whole - cached
    if row.cache_write is None:
        return Usage(input=fresh, cached_input=cached, output=output)
    return Usage(cached_input=cached, cache_write=fresh, output=output)


def _worst_turn(facts: Profile, row: PriceRow, opening: int, turns: int) -> Decimal:
    """The cost of the dearest response that the profile allows."""
    per_turn = facts.frame_tokens + TEXT_TOKENS_MAX + facts.max_output_tokens
    trigger = _compaction_trigger(facts)
    # Appended without end, a conversation ends where the longest context does.
    longest = min(CONTEXT_TOKENS_MAX, opening + turns * per_turn)
    if facts.history is HistoryKind.COMPACT:
        longest = opening + 2 * facts.outcomes_kept * LINE_TOKENS_MAX + per_turn
    elif facts.history is HistoryKind.DIGEST:
        kept = _turns_kept_max(facts, FRAME_BODY_BYTES_MIN) * per_turn
        if facts.digest_input_tokens is not None:
            kept = min(kept, facts.digest_input_tokens + per_turn)
        longest = min(longest, opening + 2 * facts.outcomes_kept * LINE_TOKENS_MAX + kept + per_turn)
    elif trigger is not None:
        longest = min(longest, trigger + per_turn)
    rates = {"input": row.input, "cache_write": row.cache_write or 0, "cache_write_long": row.cache_write_long or 0}
    if facts.cache_ttl != "1h":
        del rates["cache_write_long"]
    dearest = max(rates, key=lambda bucket: rates[bucket])
    cost = cost_of(Usage.model_validate({dearest: longest, "output": facts.max_output_tokens}), row)
    # The response that compacts is two runs over the same input.
    return cost * 2 if trigger is not None else cost


def _turns_kept_max(facts: Profile, frame_bytes: int) -> int:
    """How many turns a conversation holds before something is taken out of it, by its frames and messages."""
    # The reference and the current frame are there as well.
    held = min(facts.images_max, facts.body_bytes_max // frame_bytes) - 2
    if facts.digest_turns is not None:
        held = min(held, facts.digest_turns)
    if facts.digest_messages is not None:
        held = min(held, (facts.digest_messages - 1) // MESSAGES_PER_TURN.get(facts.wire, 2))
    return max(1, held)


def _compaction_trigger(facts: Profile) -> int | None:
    """From how many input tokens the server compacts, where the profile asks for it."""
    management = facts.extra_body.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) else None
    for edit in edits if isinstance(edits, list) else []:
        trigger = edit.get("trigger") if isinstance(edit, dict) else None
        value = trigger.get("value") if isinstance(trigger, dict) else None
        if isinstance(value, int):
            return value
    return None
