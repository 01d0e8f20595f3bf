"""Which model plays, by the provider's name. A new wire adds one row here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from contract.errors import PilotError
from contract.phases import Cause
from contract.rollout_records import RolloutSpec
from pilot.models.scripted import Noop, Oracle, Random, Replay
from pilot.ports import Model, ModelReply, Observation


def build_model(spec: RolloutSpec, provider_key: SecretStr | None) -> Model:
    """The model that `spec.choice` names. Raises `PilotError` for a provider that cannot play yet."""
    provider = spec.choice.provider
    build = BUILDERS.get(provider)
    if build is None:
        raise PilotError(
            f"provider {provider!r} cannot play in this version",
            cause=Cause.PILOT_ERROR,
            hint=f"Use one of {', '.join(BUILDERS)}; the model APIs and `exploit` arrive in later versions.",
        )
    return build(spec, provider_key)


class AbsentModel:
    """Stands in for a model that could not be built, so that the rollout ends, and is recorded, like every other."""

    def __init__(self, error: PilotError) -> None:
        self._error = error

    async def next_turn(self, observation: Observation) -> ModelReply:
        """Raises the reason why there is no model."""
        raise self._error

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to become."""

    async def aclose(self) -> None:
        """Nothing is open."""


def _script(spec: RolloutSpec) -> Path:
    if spec.choice.script is None:
        raise PilotError(
            f"provider {spec.choice.provider!r} needs a script and got none",
            cause=Cause.PILOT_ERROR,
            hint="Give the task an oracle script, or the rollout a stored trace in `script`.",
        )
    return Path(spec.choice.script)


BUILDERS: Final[dict[str, Callable[[RolloutSpec, SecretStr | None], Model]]] = {
    "oracle": lambda spec, key: Oracle(_script(spec)),
    "noop": lambda spec, key: Noop(),
    "random": lambda spec, key: Random(spec.choice.seed),
    "replay": lambda spec, key: Replay(_script(spec)),
}
