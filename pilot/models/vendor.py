"""A model behind a vendor's API: one conversation, one request format, one client.

A turn is one request, and now and then a second one at once: smaller after "too large", or signed with new
credentials. All other failures travel to `pilot.retry`, which asks for the same turn again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from pydantic import SecretStr

from contract.ambient import Ambient
from contract.phases import Cause
from contract.pricing import PriceRow, Usage, cost_of
from contract.profiles import Profile
from contract.rollout_records import RolloutSpec
from pilot.models.answers import failed_body, read_answer, telemetry
from pilot.models.conversation import Conversation
from pilot.models.history import Reply
from pilot.models.wire import Answer, Client, Said, WireFormat
from pilot.ports import (
    Charge,
    ContextFull,
    CredentialsExpired,
    ModelReply,
    Observation,
    ProviderError,
    Refused,
    TooLarge,
    TransportFailed,
)

log = logging.getLogger("pilot.models")

# Some gateways drop the connection instead of answering 413. After this many in a row a large body is suspected.
LOST_BEFORE_SHRINKING: Final = 3
_REAL: Final = Ambient()
_NOTHING: Final = Charge(Usage(), Decimal(0))


class VendorModel:
    """A `Model` for one rollout. `wire` and `client` are its own; the connections behind `client` may be shared."""

    def __init__(
        self,
        spec: RolloutSpec,
        profile: Profile,
        wire: WireFormat,
        client: Client,
        *,
        secrets: Sequence[SecretStr] = (),
        ambient: Ambient = _REAL,
    ) -> None:
        self._conversation = Conversation(spec, profile, wire)
        self._profile = profile
        self._price = spec.price
        self._wire = wire
        self._client = client
        self._secrets = tuple(secrets)
        self._ambient = ambient
        self._turn = 0
        # Of the turn that is asked for: connections lost in a row, and whether its request was made smaller for size.
        self._lost = 0
        self._is_shrunk = False

    async def next_turn(self, observation: Observation) -> ModelReply:
        """Ask for the next ActionBatch. Raises `ProviderError`; then the same observation may come again."""
        self._conversation.observe(observation)
        if observation.turn != self._turn:
            self._turn, self._lost, self._is_shrunk = observation.turn, 0, False
        self._suspect_size()
        started_s = self._ambient.elapsed_s()
        swallowed = _NOTHING
        has_new_credentials = False
        while True:
            try:
                said = await self._said()
                break
            except (TooLarge, ContextFull, CredentialsExpired) as error:
                self._lost = 0
                error.charge = _sum(swallowed, error.charge)
                if isinstance(error, CredentialsExpired):
                    if has_new_credentials:
                        raise _not_accepted(error) from error
                    has_new_credentials = True
                    await self._client.refresh_credentials()
                elif not self._shrink_after(error):
                    raise
                swallowed = error.charge
            except ProviderError as error:
                self._lost = self._lost + 1 if isinstance(error, TransportFailed) else 0
                error.charge = _sum(swallowed, error.charge)
                raise
        self._lost = 0
        charge = _sum(swallowed, charge_of(said, self._price))
        return self._reply(observation, said, charge, latency_s=self._ambient.elapsed_s() - started_s)

    def state(self) -> dict[str, Any]:
        """The conversation's."""
        return self._conversation.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with the conversation that `state` and the trace describe. Raises `StateError`."""
        self._conversation.restore(state)

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    async def _said(self) -> Said:
        answer = await self._client.send(self._conversation.request())
        try:
            body = read_answer(answer, self._profile, now=self._ambient.utc_now(), secrets=self._secrets)
        except ProviderError as error:
            error.charge = self._charge_of_failed(answer)
            raise
        return self._wire.said(body, telemetry(answer.headers))

    def _charge_of_failed(self, answer: Answer) -> Charge:
        """What a failed answer says that it has used; one that says nothing was not charged."""
        body = failed_body(answer)
        said = None if body is None else self._wire.said(body, telemetry(answer.headers))
        return charge_of(said, self._price) if said is not None and said.usages else _NOTHING

    def _reply(self, observation: Observation, said: Said, charge: Charge, *, latency_s: float) -> ModelReply:
        conversation = self._conversation
        if said.is_context_full and said.arguments is None and not conversation.can_shrink_for_context:
            error = ContextFull("the model's context is full, also after older turns were left out")
            error.charge = charge
            raise error
        conversation.answered(
            Reply(observation.turn, said.arguments, said.response),
            context_tokens=said.context_tokens,
            is_context_full=said.is_context_full,
        )
        return ModelReply(
            arguments=said.arguments,
            latency_s=latency_s,
            # Half a surrogate pair cannot be written down, and is no reason to lose the call beside it.
            text=said.text.encode(errors="replace").decode(),
            usage=charge.usage,
            cost_usd=charge.cost_usd,
            response=said.response,
            is_refusal=said.is_refusal,
        )

    def _shrink_after(self, error: TooLarge | ContextFull) -> bool:
        """Make the request smaller, once for each of the two reasons. False when it is as it was."""
        if isinstance(error, ContextFull):
            conversation = self._conversation
            return conversation.can_shrink_for_context and conversation.shrink("the context is full", is_context=True)
        if self._is_shrunk:
            return False
        self._is_shrunk = True
        return self._conversation.shrink("the provider said that it is too large")

    def _suspect_size(self) -> None:
        """Ask with less once a large request was lost again and again."""
        if self._lost < LOST_BEFORE_SHRINKING or self._is_shrunk:
            return
        if self._conversation.request().body.length > self._profile.body_bytes_max // 2:
            self._is_shrunk = True
            self._conversation.shrink(f"it was lost {self._lost} times")


def charge_of(said: Said, price: PriceRow | None) -> Charge:
    """What an answer has used and cost: what it says itself where the price row trusts that, else by the row.

    Each of its runs is priced alone. Null is unknown: there is no price, or no usage.
    """
    usage: Usage | None = None
    for one in said.usages:
        usage = one if usage is None else usage.plus(one)
    if price is None:
        return Charge(usage, None)
    if price.use_reported_cost and said.reported_cost_usd is not None:
        return Charge(usage, said.reported_cost_usd)
    if usage is None:
        return Charge(None, None)
    return Charge(usage, sum((cost_of(one, price) for one in said.usages), Decimal(0)))


def _sum(one: Charge, other: Charge) -> Charge:
    if one == _NOTHING:
        return other
    usage = None if one.usage is None or other.usage is None else one.usage.plus(other.usage)
    cost = None if one.cost_usd is None or other.cost_usd is None else one.cost_usd + other.cost_usd
    return Charge(usage, cost)


def _not_accepted(error: CredentialsExpired) -> Refused:
    refused = Refused(
        error.message,
        hint=error.hint or "Check the AWS profile of the batch: new credentials were not accepted either.",
        cause=Cause.PROVIDER_AUTH,
    )
    refused.charge = error.charge
    return refused
