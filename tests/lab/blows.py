"""At which moment whom a seed hits, and an account whose calls are such moments.

The account sees every call of a controller twice: before it is carried out and after, before the answer leaves. So a
controller can be dead at each point at which it may know less than the cloud.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.lab.failpoint import WritePoint
from tests.lab.faults import Call, Fault
from tests.lab.lab import Lab
from tests.lab.victims import Victims, strike

KILL, TERM = signal.SIGKILL, signal.SIGTERM
# How deep into a batch of one rollout each action is still met.
ACTIONS = {
    "": 40,
    "RunInstances": 1,
    "DescribeInstances": 5,
    "DescribeInstanceInformation": 2,
    "StartSession": 1,
    "TerminateInstances": 1,
    "TerminateSession": 1,
    "PutObject": 3,
    "GetObject": 3,
    "GetServiceQuota": 2,
}
WATCH_S = 0.001


@dataclass(frozen=True, slots=True)
class Blow:
    """One strike. `number` counts from 1: calls of `action` (any when empty), writes, or a checkpoint's sequence."""

    at: Literal["call", "write", "checkpoint"]
    number: int
    victims: Victims
    signals: tuple[signal.Signals, ...]
    action: str = ""
    how: Literal["before", "after", "torn"] = "before"
    gap_s: float = 0.0

    @property
    def kills_controller(self) -> bool:
        """True when nothing of it outlives this."""
        return self.victims != "pilots" and KILL in self.signals

    def __str__(self) -> str:
        names = "+".join(one.name.removeprefix("SIG") for one in self.signals)
        return f"{names} {self.victims} {self.how} {self.at} {self.action}#{self.number}"

    def write_point(self, told: Path) -> WritePoint | None:
        """For the command's own failpoint, which makes the file `told` when it strikes; null for other blows."""
        if self.at != "write":
            return None
        signals = tuple(int(one) for one in self.signals)
        return WritePoint(self.number, self.how, self.victims, signals, self.gap_s, str(told))


def blow_of(chance: random.Random, *, rollouts: int, has_pilots: bool) -> Blow:
    """A blow somewhere in a batch of so many rollouts; a few moments lie behind its end."""
    victims: Victims = chance.choice(("controller", "controller", "both", "pilots")) if has_pilots else "controller"
    signals = chance.choice(((KILL,), (KILL,), (KILL,), (TERM,), (TERM, TERM), (TERM, KILL)))
    gap_s = chance.choice((0.0, 0.02, 0.3, 1.5))
    match chance.choice(("call", "call", "write", "write", "checkpoint")):
        case "call":
            action = chance.choice(("", "", *ACTIONS))
            depth = ACTIONS[action] * (rollouts if action else 1) + (12 * (rollouts - 1) if not action else 0)
            how: Literal["before", "after"] = chance.choice(("before", "after"))
            return Blow("call", chance.randint(1, depth), victims, signals, action, how, gap_s)
        case "write":
            number = chance.randint(1, 15 + 20 * rollouts)
            kinds: tuple[Literal["before", "after", "torn"], ...] = ("before", "after", "torn")
            return Blow("write", number, victims, signals, "", chance.choice(kinds), gap_s)
        case _:
            return Blow("checkpoint", chance.randint(1, 8), victims, signals, "", "after", gap_s)


@dataclass
class BlowLab(Lab):
    """The account as a place to strike from. `trouble_of` says what else the calls meet; null is nothing."""

    trouble_of: Callable[[str], Fault | None] = lambda action: None
    is_counting: bool = False
    launches_seen: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _blow: Blow | None = None
    _target: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)
    has_struck: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.faults.trouble = self._before

    def aim(self, blow: Blow | None, controller: int) -> None:
        """From now on this controller's calls are counted, from 1."""
        with self._guard:
            self._blow, self._target, self._counts = blow, controller, {}
            self.has_struck, self.is_counting = False, True
            self.launches_seen = 0

    def rest(self) -> None:
        """Nobody is hit any more, and nothing goes wrong."""
        with self._guard:
            self._blow, self.is_counting = None, False

    def note(self, call: Call, status: int | None) -> None:
        """Add to the journal; the answer leaves after this."""
        super().note(call, status)
        if status is not None and self._is_it(call.action, "after"):
            self._strike()

    def strike_at_checkpoint(self, rollouts: Path, stop: threading.Event) -> None:
        """Watch the checkpoints below this folder until the moment has come or `stop` is set."""
        blow = self._blow
        assert blow is not None
        while not stop.wait(WATCH_S):
            for path in rollouts.glob("*/resume-checkpoint.json"):
                with suppress(OSError, ValueError):
                    if json.loads(path.read_bytes())["sequence"] >= blow.number:
                        self._strike()
                        return

    def _before(self, action: str) -> Fault | None:
        if not self.is_counting:
            return None
        with self._guard:
            for name in ("", action):
                self._counts[name] = self._counts.get(name, 0) + 1
            self.launches_seen += action == "RunInstances"
        if self._is_it(action, "before"):
            self._strike()
            if self._blow is not None and self._blow.kills_controller:
                return Fault("drop_before")
        # What goes wrong in a preflight is an issue, and nothing is played.
        return self.trouble_of(action) if self.launches_seen else None

    def _is_it(self, action: str, how: str) -> bool:
        blow = self._blow
        if blow is None or self.has_struck or (blow.at, blow.how) != ("call", how) or not self.is_counting:
            return False
        # Calls meet each other: by the time one is answered, others have been counted.
        return blow.action in ("", action) and self._counts.get(blow.action, 0) >= blow.number

    def _strike(self) -> None:
        with self._guard:
            blow, target = self._blow, self._target
            if blow is None or self.has_struck:
                return
            self.has_struck = True
        if len(blow.signals) == 1:
            strike(target, blow.victims, blow.signals, gap_s=0.0)
            return
        # The call goes on between the two.
        deed = threading.Thread(
            target=strike, args=(target, blow.victims, blow.signals), kwargs={"gap_s": blow.gap_s}, daemon=True
        )
        deed.start()


@dataclass
class Storm:
    """Refused, lost and late answers, at every action, at this rate."""

    chance: random.Random
    rate: float

    def __call__(self, action: str) -> Fault | None:
        """What this call meets."""
        if self.chance.random() >= self.rate:
            return None
        match self.chance.choice(("throttle", "before", "after", "after", "cut", "delay", "error")):
            case "throttle":
                return _throttle(action)
            case "before":
                return Fault("drop_before")
            case "after":
                return Fault("drop_after")
            case "cut":
                return Fault("cut")
            case "delay":
                return Fault("delay", delay_s=self.chance.uniform(0.05, 1.0))
            case _:
                return Fault("error", "InternalError", 500)


def _throttle(action: str) -> Fault:
    if action.endswith("Object"):
        return Fault("error", "SlowDown", 503, "Please reduce your request rate.")
    if action in ("StartSession", "TerminateSession", "DescribeInstanceInformation", "GetServiceQuota"):
        return Fault("error", "ThrottlingException", 400, "Rate exceeded")
    return Fault("error", "RequestLimitExceeded", 503, "Request limit exceeded.")
