"""Why a batch gets no host any more: credentials and permissions that refuse one rollout refuse all of them."""

from __future__ import annotations

from collections.abc import Callable

from contract.errors import HostsRefused
from contract.phases import Cause
from supervisor.costs import BatchCosts


class Refusal:
    """The first such error of a batch, told once for all of its rollouts."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.error: HostsRefused | None = None

    def note(self, error: HostsRefused) -> None:
        """From now on nothing is started any more."""
        if self.error is None:
            self.error = error
            self._say(
                f"{error.message}; no rollout is started any more, and those that play go on. {error.hint}".rstrip()
            )

    def check(self) -> None:
        """Raises `HostsRefused` when no host can be had."""
        if self.error is not None:
            raise HostsRefused(self.error.message, cause=self.error.cause, hint=self.error.hint)


def why_none_starts(costs: BatchCosts, refusal: Refusal) -> dict[str, object] | None:
    """What the row of a rollout that waits says once no more is started; null while more may start."""
    if costs.reached is not None:
        return {"cause": Cause.COST_LIMIT, "cause_detail": costs.reached}
    if refusal.error is not None:
        return {"cause": refusal.error.cause, "cause_detail": str(refusal.error)}
    return None
