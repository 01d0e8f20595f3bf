"""Which model plays, by the provider's name.

A model without an account adds one row here; a vendor's is a row of facts in `contract.profiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr

from contract.ambient import Ambient
from contract.errors import PilotError
from contract.phases import Cause
from contract.rollout_records import RolloutSpec
from pilot.models.exploits import Exploit
from pilot.models.scripted import Noop, Oracle, Random, Replay
from pilot.ports import Model, ModelReply, Observation

if TYPE_CHECKING:
    from pilot.models.clients import Clients

# OpenRouter's limit, the shortest of all.
SESSION_ID_CHARS_MAX: Final = 256
_REAL: Final = Ambient()


def build_model(
    spec: RolloutSpec, provider_key: SecretStr | None, clients: Clients | None = None, *, ambient: Ambient = _REAL
) -> Model:
    """The model that `spec.choice` names. Raises `PilotError` when nothing can play it.

    Rollouts in one process share `clients`; without them the model has connections of its own. `ambient` is for the
    models of vendors alone.
    """
    provider = spec.choice.provider
    build = BUILDERS.get(provider)
    if build is not None:
        return build(spec)
    if provider in VENDORS:
        return _vendor_model(spec, provider_key, clients, ambient)
    raise PilotError(
        f"provider {provider!r} cannot play in this version",
        cause=Cause.PILOT_ERROR,
        hint=f"Use one of {', '.join((*BUILDERS, *VENDORS))}.",
    )


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


def _vendor_model(
    spec: RolloutSpec, provider_key: SecretStr | None, clients: Clients | None, ambient: Ambient
) -> Model:
    # Imported here: a pilot whose model needs no account pays for no wire.
    from pilot.models.clients import Clients
    from pilot.models.vendor import VendorModel
    from pilot.models.wires import wire_for

    choice, profile = spec.choice, spec.choice.facts
    if profile is None:
        raise PilotError(
            f"the facts of {choice.provider}/{choice.model} are missing",
            cause=Cause.PILOT_ERROR,
            hint="Name a `profile` for this model, or start the rollout with the supervisor of the same version.",
        )
    wire = wire_for(profile, model=choice.model, session_id=session_id_of(spec))
    client = (clients or Clients()).client_for(choice, provider_key, profile)
    secrets = () if provider_key is None else (provider_key,)
    return VendorModel(spec, profile, wire, client, secrets=secrets, ambient=ambient)


def session_id_of(spec: RolloutSpec) -> str:
    """What sticky routing and caches know this rollout by: the same after a resume, and nobody else's."""
    return f"{spec.batch_id}-{spec.rollout_id}"[:SESSION_ID_CHARS_MAX]


def _script(spec: RolloutSpec) -> Path:
    if spec.choice.script is None:
        raise PilotError(
            f"provider {spec.choice.provider!r} needs a script and got none",
            cause=Cause.PILOT_ERROR,
            hint="Give the task an oracle script, or the rollout a stored trace in `script`.",
        )
    return Path(spec.choice.script)


BUILDERS: Final[dict[str, Callable[[RolloutSpec], Model]]] = {
    "oracle": lambda spec: Oracle(_script(spec)),
    "noop": lambda spec: Noop(),
    "random": lambda spec: Random(spec.choice.seed),
    "replay": lambda spec: Replay(_script(spec)),
    "exploit": Exploit,
}
VENDORS: Final = ("openai", "openrouter", "anthropic", "fireworks", "mantle", "bedrock")
