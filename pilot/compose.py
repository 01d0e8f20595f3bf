"""The pilot's composition root: the same world for a process of its own and for a shared one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio
from pydantic import SecretStr

from contract.ambient import Ambient
from contract.broker_client import BrokerClient, Patience
from contract.errors import PilotError
from contract.rollout_records import RolloutSpec, RunState
from pilot.bridge import Threads
from pilot.desktop import BrokerDesktop
from pilot.disk import RunFolderDisk
from pilot.models.registry import AbsentModel, build_model
from pilot.ports import Model, World, ignore_progress

if TYPE_CHECKING:
    from pilot.models.clients import Clients

_REAL: Final = Ambient()


def build_world(
    spec: RolloutSpec,
    *,
    broker_token: SecretStr,
    provider_key: SecretStr | None,
    on_progress: Callable[[RunState], None] = ignore_progress,
    threads: Threads | None = None,
    clients: Clients | None = None,
    ambient: Ambient = _REAL,
    stop: anyio.Event | None = None,
) -> World:
    """Model, desktop and disk for `spec`, to be handed to `run_rollout`, which closes them.

    Rollouts in one process share one `threads` and one `clients`; without `clients` the model's connections are its
    own. They are closed with the last model that uses them. `on_progress` is called in the event loop and must not
    block. A model that cannot be built ends the rollout at its first turn, with the reason in its run state.
    """
    threads = threads or Threads()
    model: Model
    try:
        model = build_model(spec, provider_key, clients, ambient=ambient)
    except PilotError as error:
        model = AbsentModel(error)
    desktop = BrokerDesktop(
        BrokerClient(spec.host.base_url, broker_token, patience=Patience(lost_s=spec.host.lost_s)),
        lease_id=spec.host.lease_id,
        bridge=threads.broker,
        ambient=ambient,
    )
    return World(
        model=model,
        desktop=desktop,
        disk=RunFolderDisk(),
        disk_bridge=threads.disk,
        ambient=ambient,
        on_progress=on_progress,
        stop=stop or anyio.Event(),
    )
