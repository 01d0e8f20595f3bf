"""How AWS is asked: paced where its rates are low, and again where that is safe. Two small tools, no decisions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from contract.ambient import Ambient
from contract.bridge import Bridge
from supervisor.cloud.ports import Cloud, CloudError, FaultKind

T = TypeVar("T")

# RunInstances has a bucket of 5 requests and 2 more a second for the account and Region ("Request throttling for the
# Amazon EC2 API"); what is left of it is for others.
LAUNCH_BURST: Final = 4
LAUNCHES_PER_S: Final = 1.5
# The longest pause between two tries of a throttled or unclear call.
PAUSE_S_MAX: Final = 30.0
PAUSE_S: Final = 1.0
# With fresh credentials a request is signed anew; more than this says that they are wrong.
SIGNINGS_MAX: Final = 3
# Credentials or permissions that are refused for good are so for every host of the batch.
REFUSES_ALL: Final = frozenset({FaultKind.SIGNING, FaultKind.DENIED})
# A pause of no length would make a loop of an error that comes at once.
_PAUSE_S_MIN: Final = 0.05


class Pace:
    """A token bucket, in the order in which it is asked. A caller that is cancelled while it waits loses its turn."""

    def __init__(self, ambient: Ambient, *, burst: int = LAUNCH_BURST, per_s: float = LAUNCHES_PER_S) -> None:
        self._ambient = ambient
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._at_s = ambient.elapsed_s()

    async def turn(self) -> None:
        """Return when one more call may leave."""
        now_s = self._ambient.elapsed_s()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s) - 1
        self._at_s = now_s
        # Below zero it is a debt: those that came before have taken the turns until then.
        await self._ambient.sleep(max(0.0, -self._left / self._per_s))


def jittered_s(ambient: Ambient, number: int, *, first_s: float = PAUSE_S, most_s: float = PAUSE_S_MAX) -> float:
    """The pause before try `number` (1, 2, ...): full jitter below a bound that doubles up to `most_s` seconds."""
    bound_s = min(most_s, first_s * 2.0 ** min(number - 1, 30))
    return max(_PAUSE_S_MIN, ambient.chance.uniform(0, bound_s))


class Asker:
    """Calls that may be repeated: reads, and deeds that are the same when they are done twice."""

    def __init__(self, cloud: Cloud, bridge: Bridge, ambient: Ambient) -> None:
        self.cloud = cloud
        self._bridge = bridge
        self._ambient = ambient

    async def once(self, work: Callable[[Cloud], T]) -> T:
        """One call, whatever comes of it. Raises `CloudError`."""
        return await self._bridge.call(lambda: work(self.cloud))

    async def renew_credentials(self) -> None:
        """Look for new ones. Where there are none the old ones are tried again, and that error is the one to tell."""
        with suppress(CloudError):
            await self.once(lambda cloud: cloud.refresh_credentials())

    async def ask(self, work: Callable[[Cloud], T], *, patience_s: float) -> T:
        """Call until there is a definite answer. Raises the last `CloudError` when `patience_s` seconds are over."""
        until_s = self._ambient.elapsed_s() + patience_s
        tries = signings = 0
        while True:
            try:
                return await self.once(work)
            except CloudError as error:
                tries += 1
                pause_s = jittered_s(self._ambient, tries)
                if self._ambient.elapsed_s() + pause_s >= until_s:
                    raise
                if error.kind is FaultKind.SIGNING and signings < SIGNINGS_MAX:
                    signings += 1
                    await self.renew_credentials()
                elif error.kind not in {FaultKind.THROTTLE, FaultKind.AMBIGUOUS}:
                    raise
                await self._ambient.sleep(pause_s)
