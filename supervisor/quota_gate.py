"""Places in the cloud's vCPU quota, in front of the places on this machine: a quota that shrinks only delays.

The plan admits a wave by `admit_instances`; while the batch runs, the same function admits each rollout by what is
taken at that moment by everybody in the Region. AWS has the last word all the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import anyio

from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.config import Ec2HostConfig
from contract.errors import HostsRefused
from supervisor.admission import HostNeeds
from supervisor.cloud.families import family_of
from supervisor.cloud.ports import Cloud, CloudError, FaultKind, Instance, Quota, Reservation
from supervisor.cloud.quota import COUNTED, QuotaAdmission, admit_instances, count_use, counted_types
from supervisor.equipment import SlotSource
from supervisor.hosts.ec2_asking import SIGNINGS_MAX, jittered_s
from supervisor.hosts.ec2_names import BATCH_TAG, ROLLOUT_TAG

# How old a reading may be that admits somebody.
READING_S_MAX: Final = 10.0
# A place that was given back is seen after this: not each of a hundred ends needs a reading of its own.
AGAIN_S: Final = 2.0
# Standing in line for less is not worth a word.
IN_LINE_S: Final = 2.0
# What AWS refuses to tell now is asked for again, at the latest after this.
REFUSED_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """The account at one moment. `shown` are the rollouts of this batch that have an instance in it."""

    at_s: float
    quota: Quota
    instances: tuple[Instance, ...]
    reservations: tuple[Reservation, ...]
    shown: frozenset[str]


class QuotaGate:
    """A `SlotSource`: a place in the quota first, then one of `inner`, which are the places on this machine."""

    def __init__(
        self, inner: SlotSource, config: Ec2HostConfig, *, cloud: Cloud, bridge: Bridge, batch_id: str, ambient: Ambient
    ) -> None:
        family = family_of(config.instance_type)
        assert family.quota_code is not None, "the preflight refuses types without a quota"
        self._inner = inner
        self._type = config.instance_type
        self._family = family
        self._code = family.quota_code
        self._cloud = cloud
        self._bridge = bridge
        self._batch_id = batch_id
        self._ambient = ambient
        self._vcpus: dict[str, int] = {}
        self._reading: _Reading | None = None
        # Rollouts that hold a place. Those without an instance in the newest reading are still launching.
        self._held: set[str] = set()
        # One asks AWS; the others stand behind it, in order.
        self._line = anyio.Lock()
        self._freed = anyio.Event()

    @asynccontextmanager
    async def slot(
        self,
        needs: HostNeeds,
        *,
        batch_id: str,
        rollout_id: str,
        has_host: bool = False,
        on_wait: Callable[[str], None],
    ) -> AsyncIterator[None]:
        """Wait until the quota has room for one more, however long that takes, then for a place here; hold both.

        `on_wait` is called once for each of the two, with what is waited for. Raises `HostsRefused` when AWS accepts
        no credentials any more.
        """
        if has_host:
            self._held.add(rollout_id)
        else:
            await self._wait_for_room(rollout_id, on_wait)
        try:
            async with self._inner.slot(
                needs, batch_id=batch_id, rollout_id=rollout_id, has_host=has_host, on_wait=on_wait
            ):
                yield
        finally:
            self._held.discard(rollout_id)
            self.expire()

    def expire(self) -> None:
        """What was read last is not true any more: an instance of ours has ended, or AWS refused a launch."""
        self._reading = None
        freed, self._freed = self._freed, anyio.Event()
        freed.set()

    async def _wait_for_room(self, rollout_id: str, on_wait: Callable[[str], None]) -> None:
        is_told = False

        def tell(reason: str) -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                on_wait(reason)

        refusals = signings = 0
        async with self._head_of_the_line(tell):
            while True:
                freed = self._freed
                try:
                    admission = await self._admit()
                    refusals = signings = 0
                except CloudError as error:
                    refusals += 1
                    if error.kind in {FaultKind.DENIED, FaultKind.PERMANENT}:
                        # Nobody can tell, so AWS decides at the launch itself.
                        on_wait(
                            f"AWS says at the launch whether it has room: the quota cannot be read: {error.message}"
                        )
                        self._held.add(rollout_id)
                        return
                    if error.kind is FaultKind.SIGNING:
                        if signings >= SIGNINGS_MAX:
                            raise HostsRefused(error.message, cause=error.cause, hint=error.hint) from error
                        signings += 1
                        # Where there are no new ones the old ones are tried again, and that error is the one to tell.
                        with suppress(CloudError):
                            await self._bridge.call(self._cloud.refresh_credentials)
                    tell(f"the vCPU quota can be read: {error.message}")
                    await self._ambient.sleep(jittered_s(self._ambient, refusals, most_s=REFUSED_S_MAX))
                    continue
                if admission.admitted:
                    self._held.add(rollout_id)
                    return
                tell(_reason(admission))
                with anyio.move_on_after(READING_S_MAX):
                    await freed.wait()
                    # AWS shows the end of an instance a moment after it was accepted.
                    await self._ambient.sleep(AGAIN_S)

    @asynccontextmanager
    async def _head_of_the_line(self, tell: Callable[[str], None]) -> AsyncIterator[None]:
        with anyio.move_on_after(IN_LINE_S) as soon:
            await self._line.acquire()
        if soon.cancelled_caught:
            tell("the vCPU quota has room for those before it and one more instance")
            await self._line.acquire()
        try:
            yield
        finally:
            self._line.release()

    async def _admit(self) -> QuotaAdmission:
        reading = self._reading
        if reading is None or self._ambient.elapsed_s() - reading.at_s >= READING_S_MAX:
            reading = await self._read()
            self._reading = reading
        use = count_use(reading.instances, reading.reservations, self._vcpus, self._family)
        return admit_instances(
            wanted=1,
            vcpus_per_instance=self._vcpus[self._type],
            quota=reading.quota,
            use=use,
            launching=len(self._held - reading.shown),
        )

    async def _read(self) -> _Reading:
        at_s = self._ambient.elapsed_s()
        quota = await self._bridge.call(lambda: self._cloud.read_quota(self._code))
        states = sorted(state.value for state in COUNTED)
        instances = await self._bridge.call(lambda: self._cloud.find_instances({"instance-state-name": states}))
        reservations = await self._read_reservations()
        unknown = (counted_types(instances, reservations, self._family) | {self._type}) - self._vcpus.keys()
        if unknown:
            self._vcpus |= await self._bridge.call(lambda: self._cloud.read_vcpus(unknown))
        if self._type not in self._vcpus:
            raise CloudError(
                f"AWS does not say how many vCPUs {self._type!r} has",
                kind=FaultKind.PERMANENT,
                code="VcpusUnknown",
                action="DescribeInstanceTypes",
            )
        shown = {item.tags.get(ROLLOUT_TAG, "") for item in instances if item.tags.get(BATCH_TAG) == self._batch_id}
        return _Reading(at_s, quota, tuple(instances), tuple(reservations), frozenset(shown))

    async def _read_reservations(self) -> list[Reservation]:
        try:
            return await self._bridge.call(self._cloud.read_reservations)
        except CloudError as error:
            if error.kind is not FaultKind.DENIED:
                raise
            # The plan has said so; what is reserved is then a little less room than it seems.
            return []


def _reason(admission: QuotaAdmission) -> str:
    return (
        f"the vCPU quota {admission.quota.code} has room for one more instance "
        f"({admission.used_vcpus} of {admission.quota.limit_vcpus} vCPUs are taken)"
    )
