"""The plan says what a batch is likely to cost, what it can cost at most, and what it assumed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from contract.pricing import LongContext, PriceRow, Usage, cost_of
from contract.profiles import PROFILES, Profile
from contract.rollout_records import Limits
from supervisor.estimate import (
    FIXED_TOKENS,
    LINE_TOKENS_MAX,
    OUTPUT_TOKENS,
    TEXT_TOKENS,
    TEXT_TOKENS_MAX,
    TURNS_PER_ORACLE_TURN,
    TURNS_WITHOUT_ORACLE,
    Estimate,
    estimate,
)

ROW = PriceRow(input=Decimal(4), cached_input=Decimal("0.4"), output=Decimal(20))
PLAIN = Limits(actions=100, invalid_turns=1, malformed_responses=1)


def _estimate(facts: Profile, row: PriceRow = ROW, limits: Limits = PLAIN, oracle_turns: int | None = 10) -> Estimate:
    return estimate(facts, row, limits, task_chars=400, oracle_turns=oracle_turns)


def _uncached(facts: Profile) -> Profile:
    return facts.model_copy(update={"caches": False})


def test_one_turn_is_priced_by_hand() -> None:
    """The smallest case, in which nothing can be cached: opening, one frame, one answer."""
    facts = PROFILES["openai-responses"]

    found = _estimate(facts, limits=PLAIN.model_copy(update={"actions": 1}))

    tokens = FIXED_TOKENS + 100 + facts.frame_tokens + facts.frame_tokens + TEXT_TOKENS
    assert 1 == found.expected_turns
    assert cost_of(Usage(input=tokens, output=OUTPUT_TOKENS), ROW) == found.expected


def test_an_appended_history_is_priced_by_hand() -> None:
    """Three turns without a cache: each sends all frames and answers before it again."""
    facts = _uncached(PROFILES["openrouter-responses"])

    found = _estimate(facts, oracle_turns=1)

    turn = facts.frame_tokens + TEXT_TOKENS
    opening = FIXED_TOKENS + 100 + facts.frame_tokens
    sizes = [opening + (before + 1) * turn + before * OUTPUT_TOKENS for before in range(3)]
    assert TURNS_PER_ORACLE_TURN == found.expected_turns
    expected = sum((cost_of(Usage(input=size, output=OUTPUT_TOKENS), ROW) for size in sizes), Decimal(0))
    assert expected == found.expected


def test_a_task_without_a_script_has_a_usual_length() -> None:
    """Not every suite has oracles."""
    assert TURNS_WITHOUT_ORACLE == _estimate(PROFILES["openai-responses"], oracle_turns=None).expected_turns


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_has_an_estimate_below_its_bound(name: str) -> None:
    """A bound that what is usual passes is none; a cache only ever saves on what is read from it."""
    facts = PROFILES[name]

    cached = _estimate(facts, limits=Limits())
    without = _estimate(_uncached(facts), limits=Limits())

    assert Decimal(0) < cached.expected <= without.expected
    assert without.expected < cached.worst_case
    assert cached.worst_turn * cached.worst_turns == cached.worst_case


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ("anthropic-fable-messages", "openrouter-responses"),
        ("anthropic-messages", "openrouter-responses"),
        ("mantle-kimi-k2.5-chat", "openrouter-responses"),
        ("openai-responses", "openrouter-responses"),
    ],
)
def test_a_history_that_is_cut_costs_less_than_one_that_is_kept(shorter: str, longer: str) -> None:
    """Digests, server compaction and rebuilt histories are why 150 turns can be paid at all."""
    limits = Limits(actions=150, invalid_turns=1, malformed_responses=1)

    cut = _estimate(_uncached(PROFILES[shorter]), limits=limits, oracle_turns=50)
    kept = _estimate(_uncached(PROFILES[longer]), limits=limits, oracle_turns=50)

    assert cut.expected < kept.expected / 2


def test_the_worst_case_is_every_streak_at_its_longest() -> None:
    """One action a turn; before each valid turn nine invalid ones, and before each of those nine malformed ones."""
    facts = PROFILES["openai-responses"]

    found = _estimate(facts, limits=Limits(actions=5, invalid_turns=10, malformed_responses=10))

    opening = FIXED_TOKENS + 100 + 100 + facts.frame_tokens
    lines = 2 * facts.outcomes_kept * LINE_TOKENS_MAX
    longest = opening + lines + facts.frame_tokens + TEXT_TOKENS_MAX + facts.max_output_tokens
    turn = cost_of(Usage(input=longest, output=facts.max_output_tokens), ROW)
    assert (500, turn, turn * 500) == (found.worst_turns, found.worst_turn, found.worst_case)


def test_the_worst_case_writes_everything_to_the_cache_and_reads_nothing() -> None:
    """Writes are dearer than plain input; a cache that is never hit costs more than none."""
    dear = ROW.model_copy(update={"cache_write": Decimal(5), "cache_write_long": Decimal(10)})
    facts = PROFILES["anthropic-messages"]

    plain, written = _estimate(facts), _estimate(facts, dear)
    long = _estimate(facts.model_copy(update={"cache_ttl": "1h"}), dear)

    assert plain.worst_turn < written.worst_turn < long.worst_turn


def test_long_context_rates_are_in_the_bound() -> None:
    """A conversation that is kept may pass the threshold."""
    long = LongContext(threshold_input_tokens=200_000, input_multiplier=Decimal(2))
    row = ROW.model_copy(update={"long_context": long})
    facts = PROFILES["openrouter-responses"]

    assert _estimate(facts).worst_turn < _estimate(facts, row).worst_turn


def test_a_cost_limit_bounds_a_rollout_by_one_turn_more() -> None:
    """The limit is looked at between turns, so one more can be paid."""
    facts = PROFILES["anthropic-fable-messages"]

    free = _estimate(facts)
    limited = _estimate(facts, limits=PLAIN.model_copy(update={"cost_usd": Decimal("0.5")}))
    roomy = _estimate(facts, limits=PLAIN.model_copy(update={"cost_usd": Decimal(1_000_000)}))

    assert Decimal("0.5") + free.worst_turn == limited.worst_case
    assert limited.expected <= limited.worst_case
    assert free == roomy


# --- in the plan ---------------------------------------------------------------------------------------------------


def _paid(world: Any, *, price: bool = True, **limits: Any) -> None:
    """Play the three tasks with a model that costs money; its list is not asked."""
    for entry in world.config["rollouts"]:
        entry.update(provider="openai", model="gpt-5.6-sol")
    world.environment["OPENAI_API_KEY"] = "sk-canary-0123456789"
    row = '"openai/gpt-5.6-sol": {"input": "4", "cached_input": "0.4", "cache_write": "5", "output": "20"}'
    rows = row if price else ""
    (world.root / "prices.json").write_text(f'{{"schema": "autocad-bench.prices/1", "rows": {{{rows}}}}}')
    world.config["limits"] = limits


def test_the_plan_adds_up_and_says_what_it_assumed(plan_world: Any) -> None:
    """An operator who doubts a sum finds its parts beside it."""
    _paid(plan_world)

    plan = plan_world.plan("--skip-direct-model-check").plan

    assert [] == plan["issues"]
    costs = [entry["cost"] for entry in plan["rollouts"]]
    cost = plan["cost"]
    assert abs(Decimal(cost["expected"]) - sum(Decimal(each["expected"]) for each in costs)) <= Decimal("0.0003")
    assert abs(Decimal(cost["worst_case"]) - sum(Decimal(each["worst_case"]) for each in costs)) <= Decimal("0.0003")
    assert 0 == cost["rollouts_not_estimated"]
    # Each oracle of this suite has two turns.
    assert {2 * TURNS_PER_ORACLE_TURN} == {each["expected_turns"] for each in costs}
    stated = {"expected_turns", "frame_tokens", "history", "caching", "worst_case_turns", "worst_case_turn", "limits"}
    assert stated <= cost["assumptions"].keys()


def test_a_batch_limit_bounds_the_batch_by_one_turn_of_each_that_plays(plan_world: Any) -> None:
    """Two play at once here, and each may be in the middle of its dearest turn."""
    _paid(plan_world, batch_cost_usd="1")

    plan = plan_world.plan("--skip-direct-model-check").plan

    turn = Decimal(plan["rollouts"][0]["cost"]["worst_case_turn"])
    assert abs(Decimal(1) + 2 * turn - Decimal(plan["cost"]["worst_case"])) <= Decimal("0.0002")


def test_an_unpriced_batch_has_no_sum_and_says_how_many_are_missing(plan_world: Any) -> None:
    """Unknown is not zero, and one unknown part makes the sum unknown."""
    _paid(plan_world)
    plan_world.config["pricing"] = "unpriced"

    plan = plan_world.plan("--skip-direct-model-check").plan

    assert [] == plan["issues"]
    cost = plan["cost"]
    assert (None, None, 3) == (cost["expected"], cost["worst_case"], cost["rollouts_not_estimated"])
    assert {"expected": None, "worst_case": None} == plan["rollouts"][0]["cost"]


def test_a_limit_that_nobody_could_keep_is_an_issue(plan_world: Any) -> None:
    """A batch with a limit and without prices would end at its first turn, or never."""
    _paid(plan_world, cost_usd="5", batch_cost_usd="50")
    with_prices = plan_world.plan("--skip-direct-model-check").codes
    plan_world.config["pricing"] = "unpriced"
    without = plan_world.plan("--skip-direct-model-check").codes

    assert [] == with_prices
    assert ["cost_limit_unpriced", "cost_limit_unpriced"] == without


def test_scripted_rollouts_beside_paid_ones_cost_nothing(plan_world: Any) -> None:
    """Oracles and baselines in the same batch change no sum."""
    _paid(plan_world)
    entry = plan_world.config["rollouts"][0]
    entry.update(provider="noop", model="idle")
    plan_world.config.pop("task_suite")

    plan = plan_world.plan("--skip-direct-model-check").plan

    assert {"expected": "0", "worst_case": "0"} == plan["rollouts"][0]["cost"]
    assert plan["rollouts"][1]["cost"]["expected"] != "0"
