"""Processes of this machine: who they are, whether they live, and how a host's are found and ended.

A process number alone proves nothing, because numbers are used again. A process is known here by its number together
with its start time, and one is only ever signalled through a descriptor that was opened before that was checked.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Every process of a host inherits these three from the broker's environment.
HOST_ID_VARIABLE: Final = "AUTOCAD_BENCH_HOST_ID"
BATCH_ID_VARIABLE: Final = "AUTOCAD_BENCH_BATCH_ID"
ROLLOUT_ID_VARIABLE: Final = "AUTOCAD_BENCH_ROLLOUT_ID"

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")
# Zombies and the dying have no memory, no files and no sockets: they are not alive in any sense that matters here.
_DEAD_STATES: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the kernel says about one process. `started_s` counts from the machine's boot."""

    pid: int
    started_s: float
    session: int
    uid: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A live process that carries a host's tags, or is in the session of one that does."""

    pid: int
    started_s: float
    uid: int
    host_id: str
    batch_id: str


def facts_of(pid: int) -> ProcessFacts | None:
    """What is known of this process number now, or null when there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
        uid = (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None
    # The command's name may hold spaces and parentheses; the fields begin after the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    return ProcessFacts(
        pid=pid,
        started_s=int(fields[19]) / _TICKS_PER_S,
        session=int(fields[3]),
        uid=uid,
        is_alive=fields[0] not in _DEAD_STATES,
    )


def is_alive(pid: int, started_s: float) -> bool:
    """True while the process that had this number and start time lives; a zombie does not."""
    facts = facts_of(pid)
    return facts is not None and facts.is_alive and facts.started_s == started_s


def open_process(pid: int, started_s: float) -> int | None:
    """A descriptor for exactly that process, readable once it has ended; null when it is gone. The caller closes it."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    facts = facts_of(pid)
    if facts is None or facts.started_s != started_s:
        os.close(descriptor)
        return None
    return descriptor


def processes_of_hosts(host_ids: Collection[str], *, batch_id: str) -> list[HostProcess]:
    """The live processes of these hosts of this batch, by their tags, and whoever shares a session with one.

    Only processes of this user are named; root's hosts may have users of their own, so for root all users count.
    """
    our_uid = os.geteuid()
    live = [facts for facts in _all_facts() if facts.is_alive and (our_uid == 0 or facts.uid == our_uid)]
    found: dict[int, HostProcess] = {}
    host_of_session: dict[int, str] = {}
    for facts in live:
        tags = _tags_of(facts.pid)
        host_id = tags.get(HOST_ID_VARIABLE)
        if host_id is None or host_id not in host_ids or tags.get(BATCH_ID_VARIABLE) != batch_id:
            continue
        found[facts.pid] = HostProcess(facts.pid, facts.started_s, facts.uid, host_id, batch_id)
        host_of_session[facts.session] = host_id
    # A host's processes have sessions of their own; the session that we are in ourselves is none of theirs.
    host_of_session.pop(os.getsid(0), None)
    for facts in live:
        sharing = host_of_session.get(facts.session)
        if sharing is not None and facts.pid not in found:
            found[facts.pid] = HostProcess(facts.pid, facts.started_s, facts.uid, sharing, batch_id)
    return list(found.values())


def kill(processes: Collection[HostProcess]) -> None:
    """SIGKILL all of them at once. One that has ended meanwhile, or that we may not signal, is passed over."""
    for process in processes:
        descriptor = open_process(process.pid, process.started_s)
        if descriptor is None:
            continue
        try:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _all_facts() -> Iterator[ProcessFacts]:
    for entry in os.listdir(_PROC):
        if entry.isdecimal():
            facts = facts_of(int(entry))
            if facts is not None:
                yield facts


def _tags_of(pid: int) -> dict[str, str]:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    tags: dict[str, str] = {}
    for item in environment.split(b"\0"):
        if item.startswith(b"AUTOCAD_BENCH_"):
            name, _, value = item.partition(b"=")
            tags[name.decode("ascii", "replace")] = value.decode("ascii", "replace")
    return tags
