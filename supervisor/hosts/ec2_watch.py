"""One reader of all instances of a batch, for everybody who waits for one of them.

A hundred rollouts that each described their own instance would use up EC2's rate for the whole account. Here one
filtered DescribeInstances and, while something boots, one DescribeInstanceInformation serve all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio

from contract.ambient import Ambient
from supervisor.cloud.ports import Agent, CloudError, FaultKind, Instance, InstanceState
from supervisor.hosts.ec2_asking import Asker, jittered_s
from supervisor.hosts.ec2_names import BATCH_TAG, OWNER_TAG

# From one look to the next while something boots, and else. Filtered describe calls have a bucket of 100 requests and
# 20 more a second for the account ("Request throttling for the Amazon EC2 API").
POLL_S: Final = (5.0, 10.0)
# While AWS refuses looks they are spread out up to this.
REFUSED_S_MAX: Final = 60.0
# An operator hears of it when this many looks in a row were refused.
REFUSALS_TOLD: Final = 3
# A machine in one of these is over for us: a stopped one comes back as another boot.
ENDED: Final = frozenset(
    {InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED, InstanceState.STOPPING, InstanceState.STOPPED}
)


@dataclass(slots=True)
class _Watched:
    instance: Instance
    is_booting: bool
    agent: Agent | None = None


class Watcher:
    """Knows the newest state of every watched instance. `run` must run for as long as anybody waits."""

    def __init__(
        self,
        asker: Asker,
        ambient: Ambient,
        *,
        batch_id: str,
        owner: str,
        say: Callable[[str], None],
        poll_s: tuple[float, float] = POLL_S,
    ) -> None:
        """`poll_s`: the seconds between two looks while something boots, and else."""
        self._asker = asker
        self._ambient = ambient
        self._filters = {f"tag:{BATCH_TAG}": [batch_id], f"tag:{OWNER_TAG}": [owner]}
        self._say = say
        self._booting_s, self._calm_s = poll_s
        self._watched: dict[str, _Watched] = {}
        # Set and replaced at each look that told something new, and at each change of what is watched.
        self._news = anyio.Event()
        self._wanted = anyio.Event()

    def watch(self, instance: Instance, *, is_booting: bool = True) -> None:
        """Look at this instance from now on. `is_booting`: its agent is asked for too."""
        self._watched[instance.instance_id] = _Watched(instance, is_booting)
        self._wanted.set()

    def forget(self, instance_id: str) -> None:
        """Nobody waits for it any more."""
        self._watched.pop(instance_id, None)

    def latest(self, instance_id: str) -> Instance | None:
        """The instance as it was last seen; null when it is not watched."""
        watched = self._watched.get(instance_id)
        return None if watched is None else watched.instance

    def has_ended(self, instance_id: str) -> bool:
        """True when it is watched and was seen to be over."""
        watched = self._watched.get(instance_id)
        return watched is not None and watched.instance.state in ENDED

    async def wait_past_pending(self, instance_id: str) -> Instance:
        """The instance once it runs, or once it is over. Never returns for one that stays pending."""
        while True:
            instance = self.latest(instance_id)
            if instance is not None and instance.state is not InstanceState.PENDING:
                return instance
            await self._news.wait()

    async def wait_agent(self, instance_id: str) -> Agent:
        """Its SSM agent, once that is online."""
        while True:
            watched = self._watched.get(instance_id)
            if watched is not None and watched.agent is not None and watched.agent.is_online:
                return watched.agent
            await self._news.wait()

    async def wait_ended(self, instance_id: str) -> Instance:
        """The instance once it is over. Never returns for one that lives, or that nobody watches."""
        while True:
            instance = self.latest(instance_id)
            if instance is not None and instance.state in ENDED:
                return instance
            await self._news.wait()

    async def run(self) -> None:
        """Look, again and again, while there is anything to look at. What AWS refuses is asked for again later."""
        refusals = 0
        while True:
            if not self._watched:
                self._wanted = anyio.Event()
                await self._wanted.wait()
            try:
                await self._look()
                refusals = 0
            except CloudError as error:
                refusals += 1
                await self._note_refusal(error, refusals)
            await self._pause(refusals)

    async def _look(self) -> None:
        booting = [name for name, watched in self._watched.items() if self._is_awaited(watched)]
        found = await self._asker.once(lambda cloud: cloud.find_instances(self._filters))
        self._take_in(found)
        if booting:
            agents = await self._asker.once(lambda cloud: cloud.find_agents(booting))
            for name, agent in agents.items():
                if name in self._watched:
                    self._watched[name].agent = agent
        self._news.set()
        self._news = anyio.Event()

    def _take_in(self, found: list[Instance]) -> None:
        for instance in found:
            watched = self._watched.get(instance.instance_id)
            # An index that lags behind must not bring back what was seen to be over, or make a running one pending.
            if watched is not None and _rank(instance) >= _rank(watched.instance):
                watched.instance = instance

    async def _note_refusal(self, error: CloudError, refusals: int) -> None:
        if refusals == REFUSALS_TOLD:
            self._say(f"the instances of this batch cannot be looked at for now: {error.message}")
        if error.kind is FaultKind.SIGNING:
            await self._asker.renew_credentials()

    async def _pause(self, refusals: int) -> None:
        pause_s = self._booting_s if self._is_anything_booting() else self._calm_s
        if refusals:
            pause_s += jittered_s(self._ambient, refusals, first_s=pause_s, most_s=REFUSED_S_MAX)
        looked_s = self._ambient.elapsed_s()
        while (left_s := looked_s + pause_s - self._ambient.elapsed_s()) > 0:
            self._wanted = anyio.Event()
            with anyio.move_on_after(left_s):
                await self._wanted.wait()
                # Something boots from now on, so the next look comes sooner.
                pause_s = min(pause_s, self._booting_s) if not refusals else pause_s

    def _is_anything_booting(self) -> bool:
        return any(self._is_awaited(watched) for watched in self._watched.values())

    def _is_awaited(self, watched: _Watched) -> bool:
        is_reached = watched.agent is not None and watched.agent.is_online
        return watched.is_booting and not is_reached and watched.instance.state not in ENDED


def _rank(instance: Instance) -> int:
    if instance.state is InstanceState.PENDING:
        return 0
    if instance.state is InstanceState.RUNNING:
        return 1
    return 3 if instance.state is InstanceState.TERMINATED else 2
