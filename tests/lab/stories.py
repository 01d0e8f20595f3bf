"""What a seed decides about a batch that is struck, and what became of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final, Literal

from tests.lab.blows import KILL, Blow, blow_of

AFTERMATHS: Final = ("nobody", "reconcile", "reconcile twice", "resume", "resume", "resume", "death", "death, resume")

# The shortest that a config takes.
LEASE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Story:
    """What a seed decides. `second` strikes the one that resumes, `at_reconcile` the first of two reconcilers."""

    seed: int
    rollouts: int
    mode: str
    providers: tuple[str, ...]
    turns: int
    rate: float
    visible_after_s: float
    quota_vcpus: float
    blow: Blow
    second: Blow
    aftermath: str
    waits_s: float
    at_reconcile: Blow | None = None
    lease_s: float = LEASE_S

    @classmethod
    def of(cls, seed: int) -> Story:
        """The story of a seed."""
        chance = random.Random(seed)
        count = chance.randint(1, 3)
        mode = chance.choice(("process", "process", "shared"))
        has_pilots = mode == "process"
        return cls(
            seed=seed,
            rollouts=count,
            mode=mode,
            providers=tuple(chance.choice(("replay", "replay", "replay", "noop", "random")) for _ in range(count)),
            turns=chance.randint(4, 12),
            rate=chance.choice((0.0, 0.0, 0.05, 0.15)),
            visible_after_s=chance.choice((0.0, 0.0, 0.5, 2.0)),
            quota_vcpus=chance.choice((512.0, 512.0, 8.0)),
            blow=blow_of(chance, rollouts=count, has_pilots=has_pilots),
            second=blow_of(chance, rollouts=count, has_pilots=has_pilots),
            aftermath=chance.choice(AFTERMATHS),
            waits_s=chance.choice((0.0, 0.0, 0.5, 2.0)),
            at_reconcile=_blow_at_reconcile(chance),
        )


@dataclass
class Told:
    """What one seed came to.

    `codes` are the exit statuses in order, negative for signals.

    `continued` rollouts went on after their controller's death, the `given_up` ones are void, with the reason.
    """

    story: Story
    codes: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    has_struck: bool = False
    launched: int = 0
    calls: int = 0
    continued: int = 0
    given_up: list[str] = field(default_factory=list)
    # The plan's issue, when nothing was launched because of one.
    refused: str = ""
    took_s: float = 0.0

    def expect(self, is_so: bool, promise: str) -> None:
        """Note the promise when it does not hold."""
        if not is_so:
            self.broken.append(promise)


def _blow_at_reconcile(chance: random.Random) -> Blow | None:
    """It asks three times who is alive, ends all in one call, and writes a line for each host and the state."""
    match chance.choice(("nothing", "call", "write")):
        case "call":
            how: Literal["before", "after"] = chance.choice(("before", "after"))
            return Blow("call", chance.randint(1, 8), "controller", (KILL,), how=how)
        case "write":
            return Blow("write", chance.randint(1, 6), "controller", (KILL,), how=chance.choice(("before", "after")))
        case _:
            return None
