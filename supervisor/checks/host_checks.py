"""This machine as a place for local hosts: programs, walls, display, memory and cores."""

from __future__ import annotations

from contract.config import LocalHostConfig
from supervisor.admission import MIB, RESERVE_MEMORY_BYTES
from supervisor.checks.subject import Subject
from supervisor.issues import Finding, Issue

SETUP_HINT = "Run scripts/setup-desktop"


def programs(subject: Subject) -> Finding:
    """Everything that the driver starts is installed."""
    host = _local(subject)
    if host is None:
        return Finding("no local host", skipped=True)
    issues = tuple(
        Issue(
            "program_missing",
            f"the program {item.program!r} is not installed",
            f"{SETUP_HINT}, or install the Debian package {item.package}.",
            "host.driver",
        )
        for item in subject.machine.missing_programs(host.driver)
    )
    return Finding(f"driver {host.driver}", issues)


def isolation(subject: Subject) -> Finding:
    """Each CAD program has walls around it, or the operator says that it need not."""
    host = _local(subject)
    if host is None:
        return Finding("no local host", skipped=True)
    if host.driver == "paper":
        return Finding("the paper driver starts no program", skipped=True)
    answer = subject.machine.isolation(host.isolation)
    if host.isolation == "none" or answer.is_isolated:
        return Finding("none, by choice" if host.isolation == "none" else answer.reason)
    hint = f'{SETUP_HINT} for bubblewrap, run as root, or accept it with "isolation": "none" in `host`.'
    return Finding(answer.reason, (Issue("no_isolation", answer.reason, hint, "host.isolation"),))


def display(subject: Subject) -> Finding:
    """An X server can open a display."""
    host = _local(subject)
    if host is None or host.driver == "paper":
        return Finding("no X display needed", skipped=True)
    problem = subject.machine.display_problem()
    if problem is None:
        return Finding("X displays can be opened")
    message = f"no X display can be opened: {problem}"
    hint = "Make room in /dev/shm, or /tmp/.X11-unix a folder that we may write to with a display number that is free."
    return Finding(message, (Issue("no_display", message, hint, "host.driver"),))


def admission(subject: Subject) -> Finding:
    """At least one host fits beside what other batches use. Anything that does not fit now waits in the queue."""
    admitted = subject.admission
    if admitted is None:
        return Finding("no local host", skipped=True)
    detail = f"{admitted.admitted} of {admitted.wanted} at once, limited by {admitted.limiting_factor}"
    need = admitted.needs.memory_bytes + RESERVE_MEMORY_BYTES
    if not admitted.can_ever_fit:
        message = f"one host needs {need // MIB} MiB; this machine has {admitted.capacity.memory_total_bytes // MIB}"
        hint = 'Use a larger machine, or "mode": "shared".'
        return Finding(detail, (Issue("memory_too_small", message, hint, "host"),))
    if admitted.fits_memory == 0 and admitted.in_use == 0:
        free = admitted.capacity.memory_available_bytes // MIB
        message = f"one host needs {need // MIB} MiB; {free} MiB are free, and no batch of ours holds the rest"
        return Finding(detail, (Issue("memory_in_use", message, "End what uses this machine's memory.", "host"),))
    return Finding(detail)


def _local(subject: Subject) -> LocalHostConfig | None:
    host = subject.config.host
    return host if isinstance(host, LocalHostConfig) else None
