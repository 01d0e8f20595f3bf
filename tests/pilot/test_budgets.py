"""Bookkeeping is a value: charging it gives the next one."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.phases import EndedBy
from contract.pricing import Usage
from contract.rollout_records import Limits, Retries
from pilot.budgets import Ledger, exhausted
from pilot.ports import (
    Charge,
    ContextFull,
    CredentialsExpired,
    ProviderError,
    Refused,
    ServerError,
    Throttled,
    TooLarge,
    TransportFailed,
)
from pilot.retry import RetryLedger, delay_s


def test_throttling_and_server_errors_consume_no_budget() -> None:
    """They can go on for ever, because nothing has happened yet."""
    ledger = RetryLedger(transport=9)

    assert RetryLedger(transport=9, throttled=1) == ledger.charge(Throttled("429"))
    assert RetryLedger(transport=9, server_errors=1) == ledger.charge(ServerError("503"))


def test_the_tenth_lost_answer_in_a_row_is_final() -> None:
    """A limit of ten ends at the tenth, not after it."""
    assert RetryLedger(transport=9) == RetryLedger(transport=8).charge(TransportFailed("read"))
    assert RetryLedger(transport=9).charge(TransportFailed("read")) is None
    assert RetryLedger().charge(TransportFailed("read"), transport_max=1) is None


@pytest.mark.parametrize("error", [Refused("401"), TooLarge("413"), CredentialsExpired("403"), ContextFull("400")])
def test_what_cannot_heal_is_not_asked_again(error: ProviderError) -> None:
    """A key that is refused once is refused ten times; what can be done about the others was done by the model."""
    assert RetryLedger().charge(error) is None


FAILURES = st.sampled_from([Throttled("429"), ServerError("503"), TransportFailed("reset")])


@given(st.lists(FAILURES, max_size=60), st.integers(1, 12))
def test_no_failure_consumes_another_kinds_budget(failures: list[ProviderError], transport_max: int) -> None:
    """In whatever order they come, only the lost answers are limited, and each is counted as what it is."""
    ledger: RetryLedger | None = RetryLedger()
    counts = {Throttled: 0, ServerError: 0, TransportFailed: 0}
    for error in failures:
        assert ledger is not None
        counts[type(error)] += 1
        ledger = ledger.charge(error, transport_max=transport_max)
        assert (ledger is None) == (counts[TransportFailed] == transport_max)
        if ledger is None:
            return

    assert RetryLedger(counts[TransportFailed], counts[Throttled], counts[ServerError]) == ledger


@given(FAILURES, st.integers(1, 10**9), st.integers())
def test_no_wait_is_negative_or_longer_than_a_minute_by_itself(error: ProviderError, tries: int, seed: int) -> None:
    """After a night of failures the exponent does not run away."""
    ledger = RetryLedger(transport=tries, throttled=tries, server_errors=tries)

    assert 0.5 <= delay_s(error, ledger, random.Random(seed)) <= 60


@pytest.mark.parametrize("error", [Throttled("429"), ServerError("503"), TransportFailed("reset")])
def test_waits_double_up_to_a_minute(error: ProviderError) -> None:
    """Jitter takes away up to half, so that many rollouts do not come back at once."""
    ledger: RetryLedger | None = RetryLedger()
    waits = []
    for _ in range(9):
        assert ledger is not None
        ledger = ledger.charge(error, transport_max=99)
        assert ledger is not None
        waits.append(delay_s(error, ledger, random.Random(1)))

    assert all(full / 2 <= wait <= full for wait, full in zip(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True)), (
        waits
    )


def test_a_longer_wait_that_the_provider_asks_for_is_honoured_and_a_shorter_one_is_not() -> None:
    """Its header is a lower bound to our backoff."""
    chance = random.Random(1)

    assert 3_600 == delay_s(Throttled("429", retry_after_s=3_600), RetryLedger(throttled=1), chance)
    assert delay_s(Throttled("429", retry_after_s=0.1), RetryLedger(throttled=9), chance) >= 30


def test_after_a_server_error_no_header_makes_us_wait_more_than_a_minute() -> None:
    """An unconsumed turn costs nothing to send again, and servers guess."""
    chance = random.Random(1)

    assert 60 == delay_s(ServerError("503", retry_after_s=3_600), RetryLedger(server_errors=1), chance)
    assert 17 == delay_s(ServerError("503", retry_after_s=17), RetryLedger(server_errors=1), chance)


def test_a_valid_batch_ends_both_streaks_and_the_lifetime_counts_stay() -> None:
    """The streak is about now, the lifetime count is about the model."""
    ledger = Ledger().invalid().invalid().malformed().valid()

    assert Ledger(invalid_turns_lifetime=2, retries=Retries(malformed=1)) == ledger


def test_malformed_and_invalid_streaks_do_not_consume_one_another() -> None:
    """A malformed response is no invalid turn; an invalid batch is a well-formed response."""
    assert 2 == Ledger().invalid().malformed().invalid().invalid_turns
    assert 1 == Ledger().malformed().malformed().invalid().malformed().malformed_responses


def test_limits_end_at_their_count() -> None:
    """Nine are nine."""
    limits = Limits()

    assert exhausted(Ledger(invalid_turns=9, malformed_responses=9, actions_used=4_999), limits) is None
    assert EndedBy.INVALID_TURNS == exhausted(Ledger(invalid_turns=10), limits)
    assert EndedBy.MALFORMED_RESPONSES == exhausted(Ledger(malformed_responses=10), limits)
    assert EndedBy.ACTION_BUDGET == exhausted(Ledger(actions_used=5_000), limits)


def test_money_is_exact_and_unknown_stays_unknown() -> None:
    """Binary floats and silent zeros are both wrong sums."""
    paid = Ledger().paid(Usage(input=1), Decimal("0.1")).paid(Usage(input=2), Decimal("0.2"))

    assert (Decimal("0.3"), 3) == (paid.cost_usd, paid.usage.input)
    assert paid.paid(None, None).paid(None, Decimal(1)).cost_usd is None


def test_a_failure_is_paid_when_it_was_charged_and_counted_when_nobody_knows() -> None:
    """A run that failed in the middle was charged for its tokens; an answer that never came may have been."""
    failed, lost = ServerError("failed"), TransportFailed("read", is_charge_unknown=True)
    failed.charge = Charge(Usage(input=5), Decimal("0.1"))

    assert Ledger(usage=Usage(input=5), cost_usd=Decimal("0.1")) == Ledger().failed(failed)
    assert Ledger(requests_of_unknown_cost=1) == Ledger().failed(lost)
    assert Ledger() == Ledger().failed(Throttled("429")).failed(ServerError("503")).failed(TransportFailed("409"))


def test_only_ten_refusals_are_a_refusal() -> None:
    """One other malformed response among them, and the model was confused, not unwilling."""
    unwilling = confused = Ledger()
    for number in range(10):
        unwilling = unwilling.malformed(is_refusal=True)
        confused = confused.malformed(is_refusal=number != 3)

    assert EndedBy.REFUSAL == exhausted(unwilling, Limits())
    assert EndedBy.MALFORMED_RESPONSES == exhausted(confused, Limits())


def test_a_cost_limit_ends_it_where_it_is_reached_and_where_it_cannot_be_known() -> None:
    """A limit that is kept only as long as prices are known is none."""
    limits = Limits(cost_usd=Decimal(1))

    assert exhausted(Ledger(cost_usd=Decimal("0.999999")), limits) is None
    assert EndedBy.COST_LIMIT == exhausted(Ledger(cost_usd=Decimal(1)), limits)
    assert EndedBy.COST_LIMIT == exhausted(Ledger(cost_usd=None), limits)
    assert exhausted(Ledger(cost_usd=None), Limits()) is None
