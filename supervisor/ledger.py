"""`hosts.jsonl`: every launch of a batch, written and synced before it happens, and how each host ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from contract.ambient import Ambient
from contract.batch_records import HostEvent, HostLine
from contract.bridge import Bridge
from contract.errors import StateError
from contract.records import LineAppender, first_problem, read_lines

# A host with one of these lines is over; every other one may still be alive.
ENDINGS: Final = frozenset({"released", "replaced", "launch_failed", "reconciled"})


class Ledger:
    """The one writer of a batch's `hosts.jsonl`. Its caller holds the folder's lock."""

    def __init__(self, path: Path, *, kind: Literal["local", "ec2"], bridge: Bridge, ambient: Ambient) -> None:
        self._path = path
        self._lines = LineAppender(path)
        # The bridge has several threads, and a file that is opened again must not be closed under another's write.
        self._pen = threading.Lock()
        self._is_torn = False
        self._kind = kind
        self._bridge = bridge
        self._ambient = ambient

    async def note(self, event: HostEvent, *, host_id: str, rollout_id: str, **detail: Any) -> None:
        """Add one line; when this returns, it survives a crash of the machine. Raises `DiskError`."""
        line = HostLine(
            at=self._ambient.utc_now(),
            event=event,
            host_id=host_id,
            rollout_id=rollout_id,
            kind=self._kind,
            detail=detail,
        )

        await self._bridge.call(partial(self._write, line))

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _write(self, line: HostLine) -> None:
        with self._pen:
            if self._is_torn:
                # Opening the file closes off half a line that a full disk left.
                self._lines.close()
                self._lines = LineAppender(self._path)
            self._is_torn = True
            self._lines.append(line)
            self._lines.sync()
            self._is_torn = False


@dataclass(frozen=True, slots=True)
class HostHistory:
    """All that the ledger says about one host. `detail` is the union of its lines' details, later ones on top.

    `client_tokens` and `instance_ids` are all that its lines name, in order: a host may take several launches.
    """

    host_id: str
    rollout_id: str
    kind: Literal["local", "ec2"]
    events: tuple[str, ...]
    detail: dict[str, Any] = field(default_factory=dict)
    client_tokens: tuple[str, ...] = ()
    instance_ids: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """True when somebody has seen this host end."""
        return not ENDINGS.isdisjoint(self.events)

    @property
    def was_handed_off(self) -> bool:
        """True when a sample has begun on it."""
        return "handed_off" in self.events


def read_ledger(path: Path) -> dict[str, HostHistory]:
    """The hosts of a batch by id, in the order of their launches; empty when there is no ledger.

    Raises `StateError` when a whole line is not one of ours.
    """
    hosts: dict[str, HostHistory] = {}
    for number, value in enumerate(read_lines(path), start=1):
        try:
            line = HostLine.model_validate(value)
        except ValidationError as error:
            raise StateError(
                f"{path} line {number} is not a ledger line: {first_problem(error)}",
                hint="The ledger was changed by hand or by another version; restore it.",
            ) from error
        known = hosts.get(line.host_id)
        hosts[line.host_id] = HostHistory(
            host_id=line.host_id,
            rollout_id=line.rollout_id,
            kind=line.kind,
            events=(*(known.events if known else ()), line.event),
            detail={**(known.detail if known else {}), **line.detail},
            client_tokens=_with(known.client_tokens if known else (), line.detail.get("client_token")),
            instance_ids=_with(known.instance_ids if known else (), line.detail.get("instance_id")),
        )
    return hosts


def _with(names: tuple[str, ...], name: object) -> tuple[str, ...]:
    return names if not isinstance(name, str) or name in names else (*names, name)
