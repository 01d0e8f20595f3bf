"""Ending instances so that none is forgotten: what this controller launched by its own book, all else by the ledger.

AWS accepting TerminateInstances is the end; nobody waits for what follows. A host whose launch nobody has seen the
answer of is not over before its token has been looked for in vain for long enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from contract.ambient import Ambient
from contract.errors import HostError, StateError
from contract.phases import Cause
from supervisor.cloud.ports import ALIVE, CloudError, FaultKind
from supervisor.hosts.ec2_asking import Asker, jittered_s
from supervisor.hosts.ec2_launch import LaunchBook
from supervisor.hosts.ec2_leftovers import UNSEEN, Leftovers, end, look, open_token_of, refuse_young
from supervisor.ledger import HostHistory

# For all that ends one host. It stays below the time that its caller has.
END_S: Final = 130.0
# A look of the reconciler serves the deed that follows it.
LOOK_IS_FRESH_S: Final = 60.0

ReadLedger = Callable[[], Mapping[str, HostHistory]]


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    found: Leftovers


class Ender:
    """Ends the instances of one batch. Every call raises `HostError` when something may still be alive."""

    def __init__(self, asker: Asker, ambient: Ambient, *, batch_id: str, owner: str, ledger: ReadLedger) -> None:
        self._asker = asker
        self._ambient = ambient
        self._batch_id = batch_id
        self._owner = owner
        self._ledger = ledger
        self._last_look: _Look | None = None

    async def end_book(self, book: LaunchBook, *, is_over: Callable[[str], bool]) -> None:
        """End all that these launches may have made. `is_over` says which instances were seen to be over."""
        until_s = self._ambient.elapsed_s() + END_S
        for launch in book.launches:
            if launch.instance is not None and not is_over(launch.instance.instance_id):
                await self._end_one(launch.instance.instance_id, launch.asked_at, until_s)
        unclear = [
            launch for launch in book.launches if launch.instance is None and (launch.is_open or launch.is_doubtful)
        ]
        if not unclear:
            return
        tokens = [launch.order.client_token for launch in unclear]
        found = await self._asker.ask(
            lambda cloud: cloud.find_instances({"client-token": tokens}),
            patience_s=until_s - self._ambient.elapsed_s(),
        )
        asked_at = {launch.order.client_token: launch.asked_at for launch in unclear}
        for instance in found:
            if instance.state in ALIVE:
                await self._end_one(instance.instance_id, asked_at[instance.client_token], until_s)
        seen = {instance.client_token for instance in found}
        for launch in unclear:
            if launch.is_open and launch.order.client_token not in seen:
                refuse_young(launch.order.client_token, launch.asked_at, now=self._ambient.utc_now())

    async def end_host(self, host_id: str) -> None:
        """End a host of which only the ledger knows. One that the ledger does not name is nothing of ours."""
        history = self._read_ledger().get(host_id)
        if history is not None and history.client_tokens:
            await self._end_found(await self._look([history]), [history], {})

    async def end_hosts(self, host_ids: Collection[str], books: Mapping[str, LaunchBook]) -> None:
        """End many in one TerminateInstances, after one look. `books` are of those that this controller launched."""
        histories = self._read_ledger()
        chosen = [histories[host_id] for host_id in host_ids if host_id in histories]
        last = self._last_look
        is_fresh = last is not None and self._ambient.elapsed_s() - last.at_s < LOOK_IS_FRESH_S
        found = last.found if last is not None and is_fresh else await self._look(chosen)
        self._last_look = None
        await self._end_found(found, chosen, books)

    async def find(self, host_ids: Collection[str], *, with_closed: bool) -> dict[str, str]:
        """Which of these hosts have an instance alive, with a line for people.

        `with_closed`: also those that the ledger calls over.
        """
        histories = self._read_ledger()
        found = await self._look(histories.values())
        ours = tuple(
            left for left in found.ours if left.host_id in host_ids or (with_closed and histories[left.host_id].is_over)
        )
        self._last_look = _Look(self._ambient.elapsed_s(), Leftovers(ours, found.strangers))
        return {left.host_id: f"instance {left.instance.instance_id} is {left.instance.state.value}" for left in ours}

    async def _look(self, histories: Iterable[HostHistory]) -> Leftovers:
        chosen = list(histories)
        return await self._asker.ask(
            lambda cloud: look(cloud, chosen, batch_id=self._batch_id, owner=self._owner), patience_s=END_S / 2
        )

    async def _end_found(
        self, found: Leftovers, chosen: Collection[HostHistory], books: Mapping[str, LaunchBook]
    ) -> None:
        host_ids = {history.host_id for history in chosen}
        ours = tuple(left for left in found.ours if left.host_id in host_ids)
        if ours:
            await self._asker.ask(
                lambda cloud: end(cloud, Leftovers(ours), now=self._ambient.utc_now()), patience_s=END_S / 2
            )
        seen = {left.instance.client_token for left in ours}
        for history in chosen:
            for token, asked_at in _open_tokens(history, books.get(history.host_id)):
                if token not in seen:
                    refuse_young(token, asked_at, now=self._ambient.utc_now())

    async def _end_one(self, instance_id: str, asked_at: datetime, until_s: float) -> None:
        """`asked_at` is when its launch was asked for by this machine's clock, which may differ from AWS's."""
        tries = 0
        while True:
            try:
                await self._asker.ask(
                    lambda cloud: cloud.terminate_instances([instance_id]),
                    patience_s=until_s - self._ambient.elapsed_s(),
                )
                return
            except CloudError as error:
                if error.kind is not FaultKind.NOT_FOUND:
                    raise
                if self._ambient.utc_now() - asked_at >= UNSEEN:
                    # Terminated ones are forgotten after an hour.
                    return
                tries += 1
                pause_s = jittered_s(self._ambient, tries)
                if self._ambient.elapsed_s() + pause_s >= until_s:
                    raise
                await self._ambient.sleep(pause_s)

    def _read_ledger(self) -> Mapping[str, HostHistory]:
        try:
            return self._ledger()
        except StateError as error:
            raise HostError(error.message, cause=Cause.UNKNOWN, hint=error.hint) from error


def _open_tokens(history: HostHistory, book: LaunchBook | None) -> list[tuple[str, datetime]]:
    """Tokens that may have launched something nobody knows of, with the time of their last request."""
    if book is not None:
        return [(launch.order.client_token, launch.asked_at) for launch in book.launches if launch.is_open]
    token = open_token_of(history)
    return [] if token is None else [token]
