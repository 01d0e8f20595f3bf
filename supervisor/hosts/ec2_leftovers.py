"""Which instances of a batch are still alive, which of them the batch can prove to be its own, and their end.

What was launched seconds ago may be missing from one index and shown by another, so three are asked: the tags, the
instance ids and the client tokens of the ledger. Only the last two prove anything: tags can be copied.

Everything in here blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from contract.errors import HostError
from contract.phases import Cause
from supervisor.cloud.ports import ALIVE, Cloud, CloudError, FaultKind, Instance
from supervisor.hosts.ec2_names import BATCH_TAG, OWNER_TAG, expires_at_of
from supervisor.ledger import HostHistory

# A filter of DescribeInstances takes 200 values.
VALUES_MAX: Final = 200
# What was launched is described after seconds and, at worst, two minutes (EC2 developer guide, eventual consistency);
# until then nothing found is no proof, and an unknown id only says "not yet".
UNSEEN: Final = timedelta(seconds=120)
# TerminateInstances takes 1000 ids.
ENDED_AT_ONCE_MAX: Final = 1000
_ALIVE_FILTER: Final[Mapping[str, Sequence[str]]] = {"instance-state-name": sorted(state.value for state in ALIVE)}


@dataclass(frozen=True, slots=True)
class Left:
    """An instance that is alive, and the host of the ledger that it belongs to."""

    host_id: str
    instance: Instance


@dataclass(frozen=True, slots=True)
class Leftovers:
    """`ours` are proven by the ledger. `strangers` carry our tags and are in no ledger: nobody may touch them."""

    ours: tuple[Left, ...] = ()
    strangers: tuple[Instance, ...] = ()

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """Those of `ours`, in order."""
        return tuple(left.instance.instance_id for left in self.ours)


def look(cloud: Cloud, histories: Iterable[HostHistory], *, batch_id: str, owner: str) -> Leftovers:
    """What is alive of one batch. Changes nothing. Raises `CloudError`, or `HostError` without a batch id."""
    if not batch_id or not owner:
        raise HostError(
            "a batch without an id, or an owner without a name, has no instances to look for",
            cause=Cause.UNKNOWN,
            hint="Restore the batch's state and config.",
        )
    host_of_id: dict[str, str] = {}
    host_of_token: dict[str, str] = {}
    for history in histories:
        host_of_id |= dict.fromkeys(history.instance_ids, history.host_id)
        host_of_token |= dict.fromkeys(history.client_tokens, history.host_id)

    found: dict[str, Instance] = {}
    tags: Mapping[str, Sequence[str]] = {f"tag:{BATCH_TAG}": [batch_id], f"tag:{OWNER_TAG}": [owner]}
    for filters in (tags, *_filters("instance-id", host_of_id), *_filters("client-token", host_of_token)):
        found |= {item.instance_id: item for item in cloud.find_instances({**filters, **_ALIVE_FILTER})}

    ours, strangers = [], []
    for instance in found.values():
        host_id = host_of_id.get(instance.instance_id) or host_of_token.get(instance.client_token)
        if host_id is None:
            strangers.append(instance)
        else:
            ours.append(Left(host_id, instance))
    return Leftovers(tuple(ours), tuple(strangers))


def end(cloud: Cloud, leftovers: Leftovers, *, now: datetime) -> None:
    """One TerminateInstances for all of `ours`, and no look afterwards. Raises `CloudError`.

    One wrong id makes AWS refuse the whole call, so ids that the answer does not know are left out and the rest is sent
    again. An old one of those is gone; a young one is not known yet, and then this raises `HostError` at the end.
    """
    unknown = _end_instances(cloud, leftovers.instance_ids)
    young = [
        left.instance.instance_id
        for left in leftovers.ours
        if left.instance.instance_id in unknown and now - left.instance.launched_at < UNSEEN
    ]
    if young:
        raise HostError(
            f"{', '.join(young)} is shown as alive and cannot be ended yet: AWS does not know it everywhere",
            cause=Cause.UNKNOWN,
            hint=f"Run autocad-bench reconcile again in {UNSEEN.total_seconds():.0f} s.",
        )


def open_token_of(history: HostHistory) -> tuple[str, datetime] | None:
    """The token that may have launched something nobody knows of, and when it was asked with; null when there is none.

    A launch begins only when the one before it is settled, so the last token alone may be open.
    """
    steps = [event for event in history.events if event in {"intent", "instance"}]
    if not history.client_tokens or steps[-1] == "instance":
        return None
    return history.client_tokens[-1], datetime.fromisoformat(history.detail["asked_at"])


def refuse_young(token: str, asked_at: datetime, *, now: datetime) -> None:
    """Raises `HostError` when a launch with this token may be missing from what was found because it is so young."""
    if now - asked_at < UNSEEN:
        raise HostError(
            f"nobody knows yet whether the launch with the token {token} made an instance",
            cause=Cause.HOST_LAUNCH,
            hint="It is looked for again when the batch ends; later: autocad-bench reconcile.",
        )


def _end_instances(cloud: Cloud, instance_ids: Sequence[str]) -> set[str]:
    """End these, which the caller has proven to be its own. Returns those that AWS does not know."""
    unknown: set[str] = set()
    for begin in range(0, len(instance_ids), ENDED_AT_ONCE_MAX):
        ids = list(instance_ids[begin : begin + ENDED_AT_ONCE_MAX])
        while ids:
            try:
                cloud.terminate_instances(ids)
                break
            except CloudError as error:
                if error.kind is not FaultKind.NOT_FOUND or not set(ids) & set(error.names):
                    raise
                unknown |= set(ids) & set(error.names)
                ids = [instance_id for instance_id in ids if instance_id not in error.names]
    return unknown


def find_owned(cloud: Cloud, *, owner: str) -> list[Instance]:
    """Every instance that is alive and carries this owner's tag, of whichever batch. Raises `CloudError`."""
    assert owner, "an owner without a name has no instances"
    return cloud.find_instances({f"tag:{OWNER_TAG}": [owner], **_ALIVE_FILTER})


def find_expired(cloud: Cloud, *, owner: str, now: datetime) -> list[Instance]:
    """Those of this owner's instances that have outlived their `ExpiresAt`. Raises `CloudError`."""
    return [instance for instance in find_owned(cloud, owner=owner) if is_expired(instance, now)]


def is_expired(instance: Instance, now: datetime) -> bool:
    """True when the instance says of itself that it should be gone."""
    expires_at = expires_at_of(instance.tags)
    return expires_at is not None and expires_at < now


def _filters(name: str, values: Iterable[str]) -> Iterator[Mapping[str, Sequence[str]]]:
    wanted = list(values)
    for begin in range(0, len(wanted), VALUES_MAX):
        yield {name: wanted[begin : begin + VALUES_MAX]}
