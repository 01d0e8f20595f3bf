"""One turn of a vendor's model: what is sent again at once, what travels on, and what it has cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from contract.ambient import Ambient
from contract.phases import Cause
from contract.pricing import PriceRow, Usage
from contract.profiles import PROFILES, Profile
from pilot.models.vendor import LOST_BEFORE_SHRINKING, VendorModel, charge_of
from pilot.models.wire import Answer, Request, Said
from pilot.ports import (
    Charge,
    ContextFull,
    CredentialsExpired,
    ModelReply,
    ProviderError,
    Refused,
    ServerError,
    Throttled,
    TooLarge,
    TransportFailed,
)
from tests.pilot.talks import Kind, Talk, answer_body, large_png, profile

pytestmark = pytest.mark.anyio

PRICE: Final = PriceRow(input=Decimal(2), output=Decimal(10))
TOO_LARGE: Final = Answer(413, {"content-type": "text/html"}, b"<html>413</html>")
CONTEXT_FULL: Final = Answer(
    400, {}, b'{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}'
)
EXPIRED: Final = Answer(403, {"x-amzn-errortype": "ExpiredTokenException"}, b'{"message":"expired"}')
THROTTLED: Final = Answer(429, {"retry-after": "7"}, b'{"error":{"message":"slow down"}}')
BROKEN: Final = Answer(500, {}, b"oops")
LOST: Final = TransportFailed("the connection was lost", is_charge_unknown=True)


@dataclass
class ScriptedClient:
    """Answers what it is told to, and keeps what was asked. Callables are asked at the time."""

    answers: list[Answer | Exception | Callable[[], Answer]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    refreshed: int = 0
    is_closed: bool = False

    async def send(self, request: Request) -> Answer:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Answer) else answer()

    async def refresh_credentials(self) -> None:
        self.refreshed += 1

    async def aclose(self) -> None:
        self.is_closed = True


class Played:
    """A talk whose answers go through a `VendorModel`."""

    def __init__(self, root: Path, profile: Profile, price: PriceRow | None = PRICE) -> None:
        self.talk = Talk(root, profile, make_png=large_png(20_000))
        self.talk.spec = self.talk.spec.model_copy(update={"price": price})
        self.client = ScriptedClient()
        self.model = self.fresh()

    def fresh(self) -> VendorModel:
        """As a pilot has it that was just started."""
        seconds = iter(range(10_000))
        ambient = Ambient(elapsed_s=lambda: float(next(seconds)))
        return VendorModel(self.talk.spec, self.talk.profile, self.talk.wire, self.client, ambient=ambient)

    def answer(self, kind: Kind = "valid", **more: Any) -> Answer:
        """A model's answer to this turn."""
        body = answer_body(self.talk.profile.wire, kind, self.talk.turn, **more)
        return Answer(200, {"x-request-id": f"req-{self.talk.turn}"}, orjson.dumps(body))

    async def turn(self, *failures: Answer | Exception, kind: Kind = "valid", **more: Any) -> ModelReply:
        """Play one turn in which these failures come before the answer, without any of them reaching the loop."""
        self.client.answers = [*failures, self.answer(kind, **more)]
        reply = await self.model.next_turn(self.talk.observation())
        self.talk.write(kind, reply.arguments, reply.response)
        return reply

    async def fails(self, *answers: Answer | Exception) -> ProviderError:
        """What travels to the loop after these."""
        self.client.answers = list(answers)
        with pytest.raises(ProviderError) as caught:
            await self.model.next_turn(self.talk.observation())
        assert [] == self.client.answers
        return caught.value

    def lengths(self) -> list[int]:
        """Of all requests, in bytes."""
        return [request.body.length for request in self.client.requests]


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(tmp_path, PROFILES["anthropic-messages"])


async def test_a_reply_says_what_was_said_used_and_paid(played: Played) -> None:
    """What goes into the trace is the provider's own answer, with the headers that tell of it."""
    reply = await played.turn()

    assert {"actions": [{"type": "click", "x": 1, "y": 20, "button": "left", "clicks": 1, "modifiers": []}]} == (
        reply.arguments
    )
    assert Usage(input=1000, output=9) == reply.usage
    assert Decimal("0.00209") == reply.cost_usd
    assert 1.0 == reply.latency_s
    assert reply.response is not None
    assert {"x-request-id": "req-1"} == reply.response["headers"]


@pytest.mark.parametrize("name", ["anthropic-messages", "anthropic-fable-messages", "openai-responses"])
async def test_a_413_is_answered_once_with_fewer_bytes(tmp_path: Path, name: str) -> None:
    """At once, within the turn, and whatever the history is."""
    played = Played(tmp_path, PROFILES[name])
    for _ in range(4):
        await played.turn()
    played.client.requests.clear()
    reply = await played.turn(TOO_LARGE)
    before, after = played.lengths()

    assert after < before
    assert reply.arguments is not None


async def test_a_second_413_in_a_turn_ends_it(played: Played) -> None:
    """Also when a throttled request came between: no request is sent twice, and none more than twice."""
    for _ in range(4):
        await played.turn()
    played.client.requests.clear()
    first = await played.fails(TOO_LARGE, THROTTLED)
    second = await played.fails(TOO_LARGE)
    fingerprints = [request.body.fingerprint() for request in played.client.requests]

    assert isinstance(first, Throttled)
    assert isinstance(second, TooLarge)
    assert 2 == len(set(fingerprints))
    assert fingerprints[0] not in fingerprints[1:]


async def test_a_request_that_cannot_be_smaller_is_not_sent_again(played: Played) -> None:
    """The first turn has the task, the reference and the desktop, and none of them can go."""
    error = await played.fails(TOO_LARGE)

    assert isinstance(error, TooLarge)
    assert 1 == len(played.client.requests)


async def test_a_413_in_each_of_two_turns_is_two_rewrites(played: Played) -> None:
    """Only one that follows another at once is final."""
    for _ in range(6):
        await played.turn()
    await played.turn(TOO_LARGE)
    played.client.requests.clear()
    await played.turn(TOO_LARGE)
    before, after = played.lengths()

    assert after < before


async def test_a_full_context_is_cut_once(tmp_path: Path) -> None:
    """The code says so before anything was generated."""
    played = Played(tmp_path, profile("openrouter-responses"))
    for _ in range(4):
        await played.turn()
    played.client.requests.clear()
    reply = await played.turn(CONTEXT_FULL)
    before, after = played.lengths()
    error = await played.fails(CONTEXT_FULL, CONTEXT_FULL)

    assert after < before
    assert reply.arguments is not None
    assert isinstance(error, ContextFull)


async def test_an_answer_that_met_the_end_of_the_context_is_malformed_once(tmp_path: Path) -> None:
    """The next request is shorter; when that does not help, the rollout ends, and what it cost is not lost."""
    played = Played(tmp_path, PROFILES["anthropic-messages"])
    for _ in range(4):
        await played.turn()
    full = answer_body(played.talk.profile.wire, "malformed", 5)
    full["stop_reason"] = "model_context_window_exceeded"
    answer = Answer(200, {}, orjson.dumps(full))
    played.client.answers = [answer]
    reply = await played.model.next_turn(played.talk.observation())
    played.talk.write("malformed", reply.arguments, reply.response)
    resumed = played.fresh()
    resumed.restore(played.model.state())
    error = await played.fails(answer)
    played.model = resumed
    again = await played.fails(answer)
    _, _, _, _, before, after, resumed_after = played.client.requests

    assert reply.arguments is None
    assert after.body.length < before.body.length
    assert after == resumed_after
    for one in (error, again):
        assert isinstance(one, ContextFull)
        assert Charge(Usage(input=1000, output=9), Decimal("0.00209")) == one.charge


async def test_expired_credentials_are_renewed_once_for_a_request(tmp_path: Path) -> None:
    """A night of throttling may outlive any number of them; new ones that do not help are final."""
    played = Played(tmp_path, PROFILES["mantle-kimi-k2.5-chat"])
    throttled = [await played.fails(EXPIRED, THROTTLED) for _ in range(3)]
    reply = await played.turn(EXPIRED)
    error = await played.fails(EXPIRED, EXPIRED)

    assert {Throttled} == {type(one) for one in throttled}
    assert reply.arguments is not None
    assert isinstance(error, Refused)
    assert not isinstance(error, CredentialsExpired)
    assert (Cause.PROVIDER_AUTH, 5) == (error.cause, played.client.refreshed)


@pytest.mark.parametrize("frames", ["large", "small"])
async def test_large_requests_that_are_lost_again_and_again_are_made_smaller(tmp_path: Path, frames: str) -> None:
    """Some gateways drop the connection instead of saying 413. A small request was not lost for its size."""
    limit = 220_000 if frames == "large" else 2_000_000
    played = Played(tmp_path, profile("anthropic-messages", body_bytes_max=limit))
    for _ in range(4):
        await played.turn()
    played.client.requests.clear()
    for _ in range(8):
        await played.fails(LOST)
    lengths = played.lengths()

    assert 1 == len(set(lengths[:LOST_BEFORE_SHRINKING]))
    assert 1 == len(set(lengths[LOST_BEFORE_SHRINKING:]))
    assert (frames == "large") == (lengths[-1] < lengths[0])


async def test_answers_between_losses_clear_the_suspicion(played: Played) -> None:
    """A server that answers has read the request."""
    for _ in range(4):
        await played.turn()
    played.client.requests.clear()
    for answer in (LOST, LOST, BROKEN, LOST, LOST, THROTTLED, LOST):
        await played.fails(answer)

    assert 1 == len(set(played.lengths()))


@pytest.mark.parametrize(
    ("answer", "kind"), [(THROTTLED, Throttled), (BROKEN, ServerError), (LOST, TransportFailed), (EXPIRED, Refused)]
)
async def test_a_failure_travels_with_its_own_charge(played: Played, answer: Any, kind: type[Exception]) -> None:
    """None of these has used a token, and the next try sends the very same request."""
    first = await played.fails(answer)
    await played.turn()

    assert isinstance(first, kind)
    assert Charge(Usage(), Decimal(0)) == first.charge
    assert played.client.requests[0] == played.client.requests[-1]


async def test_a_failed_answer_with_a_usage_is_paid_for(tmp_path: Path) -> None:
    """HTTP 200 with `status: failed` may have generated something; one without a usage has not."""
    played = Played(tmp_path, PROFILES["openai-responses"])
    failed: dict[str, Any] = {"status": "failed", "error": {"code": "server_error", "message": "x"}, "output": []}
    paid = {**failed, "usage": {"input_tokens": 100, "output_tokens": 10}}
    first = await played.fails(Answer(200, {}, orjson.dumps(paid)))
    second = await played.fails(Answer(200, {}, orjson.dumps(failed)))

    assert isinstance(first, ServerError)
    assert isinstance(second, ServerError)
    assert first.charge.usage is not None
    assert (100, 10) == (first.charge.usage.input, first.charge.usage.output)
    assert Decimal("0.0003") == first.charge.cost_usd
    assert Charge(Usage(), Decimal(0)) == second.charge


async def test_the_charge_of_a_failure_within_a_turn_is_in_its_reply(tmp_path: Path) -> None:
    """The loop never hears of it otherwise."""
    played = Played(tmp_path, PROFILES["openrouter-responses"])
    for _ in range(3):
        await played.turn()
    failed = {"status": "failed", "error": {"code": "context_length_exceeded", "message": "x"}, "output": []}
    answer = Answer(200, {}, orjson.dumps({**failed, "usage": {"input_tokens": 100, "output_tokens": 10}}))
    reply = await played.turn(answer)

    assert Decimal("0.00209") + Decimal("0.0003") == reply.cost_usd
    assert reply.usage is not None
    assert (1100, 19) == (reply.usage.input, reply.usage.output)


RUN: Final = Usage(input=100, output=10, reasoning=4)
LONG: Final = Usage(input=300_000, output=10, reasoning=None)
LONG_PRICE: Final = PriceRow.model_validate(
    {"input": "2", "output": "10", "long_context": {"threshold_input_tokens": 272_000, "input_multiplier": "2"}}
)


@pytest.mark.parametrize(
    ("said", "price", "expected"),
    [
        (Said(None, {}, usages=(RUN,)), PRICE, Charge(RUN, Decimal("0.0003"))),
        (Said(None, {}, usages=(RUN, RUN)), PRICE, Charge(RUN.plus(RUN), Decimal("0.0006"))),
        (Said(None, {}, usages=(RUN, LONG)), LONG_PRICE, Charge(RUN.plus(LONG), Decimal("1.2004"))),
        (Said(None, {}, usages=(RUN,)), None, Charge(RUN, None)),
        (Said(None, {}), PRICE, Charge(None, None)),
        (Said(None, {}), None, Charge(None, None)),
        (Said(None, {}, usages=(RUN,), reported_cost_usd=Decimal("0.5")), PRICE, Charge(RUN, Decimal("0.0003"))),
        (
            Said(None, {}, usages=(RUN,), reported_cost_usd=Decimal("0.5")),
            PRICE.model_copy(update={"use_reported_cost": True}),
            Charge(RUN, Decimal("0.5")),
        ),
        (
            Said(None, {}, usages=(RUN,)),
            PRICE.model_copy(update={"use_reported_cost": True}),
            Charge(RUN, Decimal("0.0003")),
        ),
    ],
)
def test_an_answer_costs_what_it_says_or_what_its_runs_cost(said: Said, price: Any, expected: Charge) -> None:
    """Each run is long or not by itself, and what is not known is not zero."""
    assert expected == charge_of(said, price)


async def test_a_resumed_model_sends_what_the_killed_one_would_have(played: Played) -> None:
    """Through the model's own state, as the checkpoint carries it."""
    for kind in ("valid", "invalid", "malformed", "valid"):
        await played.turn(kind=kind)
    state = orjson.loads(orjson.dumps(played.model.state()))
    resumed = played.fresh()
    resumed.restore(state)
    await played.fails(THROTTLED)
    played.model = resumed
    await played.fails(THROTTLED)
    expected, actual = played.client.requests[-2:]

    assert expected == actual
    assert b"".join(expected.body.chunks()) == b"".join(actual.body.chunks())


async def test_closing_lets_go_of_the_client(played: Played) -> None:
    """Its connections may be shared; that is the client's own matter."""
    await played.model.aclose()

    assert played.client.is_closed
