"""What a rollout has used up, as a value: charging it gives the next one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal

from contract.phases import EndedBy
from contract.pricing import Usage
from contract.rollout_records import After, Limits, Retries
from pilot.ports import ProviderError, TransportFailed


@dataclass(frozen=True, slots=True)
class Ledger:
    """Totals and streaks of one rollout.

    `turn` counts replies, `sequence` the ActionBatches that were carried out. `invalid_turns` and
    `malformed_responses` are the streaks that end a rollout; `retries` and `invalid_turns_lifetime` only ever grow and
    decide nothing. `refusals` counts the malformed responses of the streak that were refusals, while all of them are.
    `cost_usd` is None from the first reply whose cost is unknown; `requests_of_unknown_cost` had no reply at all.
    """

    turn: int = 0
    sequence: int = 0
    actions_used: int = 0
    invalid_turns: int = 0
    invalid_turns_lifetime: int = 0
    malformed_responses: int = 0
    refusals: int = 0
    retries: Retries = field(default_factory=Retries)
    usage: Usage = field(default_factory=Usage)
    cost_usd: Decimal | None = Decimal(0)
    requests_of_unknown_cost: int = 0

    def replied(self, usage: Usage | None, cost_usd: Decimal | None) -> Ledger:
        """One reply more, whatever it says: it was paid for."""
        return replace(self, turn=self.turn + 1).paid(usage, cost_usd)

    def paid(self, usage: Usage | None, cost_usd: Decimal | None) -> Ledger:
        """Tokens and money of one response; a cost that is not known makes the sum unknown for good."""
        known = self.cost_usd is not None and cost_usd is not None
        return replace(
            self,
            usage=self.usage if usage is None else self.usage.plus(usage),
            cost_usd=self.cost_usd + cost_usd if known else None,  # type: ignore[operator]  # both are known here
        )

    def failed(self, error: ProviderError) -> Ledger:
        """A request without a reply; some are charged all the same."""
        if isinstance(error, TransportFailed) and error.is_charge_unknown:
            return replace(self, requests_of_unknown_cost=self.requests_of_unknown_cost + 1)
        return self.paid(error.charge.usage, error.charge.cost_usd)

    def malformed(self, *, is_refusal: bool = False) -> Ledger:
        """The reply had no usable call. It says nothing about the streak of invalid turns."""
        all_refused = is_refusal and self.refusals == self.malformed_responses
        return replace(
            self,
            malformed_responses=self.malformed_responses + 1,
            refusals=self.refusals + 1 if all_refused else 0,
            retries=retried(self.retries, malformed=1),
        )

    def invalid(self) -> Ledger:
        """The reply had a usable call whose ActionBatch was refused whole. No action is charged."""
        return replace(
            self,
            invalid_turns=self.invalid_turns + 1,
            invalid_turns_lifetime=self.invalid_turns_lifetime + 1,
            malformed_responses=0,
            refusals=0,
        )

    def valid(self) -> Ledger:
        """The reply's ActionBatch is valid, which ends both streaks."""
        return replace(self, invalid_turns=0, malformed_responses=0, refusals=0)

    def acted(self, actions: int) -> Ledger:
        """The ActionBatch was carried out; every action of it costs one, a finish too."""
        return replace(self, sequence=self.sequence + 1, actions_used=self.actions_used + actions)


def exhausted(ledger: Ledger, limits: Limits) -> EndedBy | None:
    """Which limit ends the rollout here, if any. A limit of ten ends it at the tenth."""
    if ledger.invalid_turns >= limits.invalid_turns:
        return EndedBy.INVALID_TURNS
    if ledger.malformed_responses >= limits.malformed_responses:
        is_refusal = ledger.refusals == ledger.malformed_responses
        return EndedBy.REFUSAL if is_refusal else EndedBy.MALFORMED_RESPONSES
    if ledger.actions_used >= limits.actions:
        return EndedBy.ACTION_BUDGET
    # A cost that is not known cannot be kept below a limit.
    if limits.cost_usd is not None and (ledger.cost_usd is None or ledger.cost_usd >= limits.cost_usd):
        return EndedBy.COST_LIMIT
    return None


def after_of(ledger: Ledger) -> After:
    """What the next observation comes after."""
    if ledger.malformed_responses:
        return "malformed"
    if ledger.invalid_turns:
        return "invalid"
    return "acted" if ledger.turn else "start"


def retried(
    retries: Retries, *, rate_limited: int = 0, server_error: int = 0, transport: int = 0, malformed: int = 0
) -> Retries:
    """The lifetime counts with these added."""
    return Retries(
        rate_limited=retries.rate_limited + rate_limited,
        server_error=retries.server_error + server_error,
        transport=retries.transport + transport,
        malformed=retries.malformed + malformed,
    )
