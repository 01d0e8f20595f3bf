"""The checkpoint as a value: made from where the loop stands, and turned back into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contract.actions import Action, Finish, InvalidActions, action_to_json, digest_of, parse_action_batch
from contract.errors import StateError
from contract.rollout_records import ArtifactRef, Checkpoint, RolloutSpec
from pilot.budgets import Ledger


@dataclass(frozen=True, slots=True)
class Place:
    """Where the loop stands between two turns, or in the middle of one.

    `frame` is the newest one, `text` what the next observation says. `finish` is set once the model has finished.
    `pending` is an ActionBatch that the host may or may not have carried out: the turn in `ledger` asked for it.
    """

    ledger: Ledger
    frame: ArtifactRef
    text: str
    finish: Finish | None = None
    pending: tuple[Action, ...] | None = None


def make_checkpoint(
    spec: RolloutSpec, place: Place, *, reference: ArtifactRef, model_state: dict[str, Any]
) -> Checkpoint:
    """The document for this place: an intent when an ActionBatch is pending, else a commit."""
    actions: Sequence[Action] | None = place.pending
    if actions is None and place.finish is not None:
        actions = (place.finish,)
    ledger = place.ledger
    return Checkpoint(
        rollout_id=spec.rollout_id,
        stage="commit" if place.pending is None else "intent",
        host_id=spec.host.host_id,
        boot_id=spec.host.boot_id,
        lease_id=spec.host.lease_id,
        lease_generation=spec.host.lease_generation,
        sequence=ledger.sequence,
        intent_digest=None if place.pending is None else digest_of(place.pending),
        intent_actions=None if actions is None else [action_to_json(action) for action in actions],
        turn=ledger.turn,
        actions_used=ledger.actions_used,
        invalid_turns=ledger.invalid_turns,
        invalid_turns_lifetime=ledger.invalid_turns_lifetime,
        malformed_responses=ledger.malformed_responses,
        refusals=ledger.refusals,
        retries=ledger.retries,
        usage=ledger.usage,
        cost_usd=ledger.cost_usd,
        requests_of_unknown_cost=ledger.requests_of_unknown_cost,
        frame=place.frame,
        reference=reference,
        observation=place.text,
        model_state=model_state,
    ).sealed()


def place_of(checkpoint: Checkpoint) -> Place:
    """Where the loop stood when it wrote this. Raises `StateError` when the document contradicts itself."""
    ledger = Ledger(
        turn=checkpoint.turn,
        sequence=checkpoint.sequence,
        actions_used=checkpoint.actions_used,
        invalid_turns=checkpoint.invalid_turns,
        invalid_turns_lifetime=checkpoint.invalid_turns_lifetime,
        malformed_responses=checkpoint.malformed_responses,
        refusals=checkpoint.refusals,
        retries=checkpoint.retries,
        usage=checkpoint.usage,
        cost_usd=checkpoint.cost_usd,
        requests_of_unknown_cost=checkpoint.requests_of_unknown_cost,
    )
    place = Place(ledger=ledger, frame=checkpoint.frame, text=checkpoint.observation)
    if checkpoint.intent_actions is None:
        if checkpoint.stage == "intent":
            raise StateError("the checkpoint is an intent without actions")
        return place
    actions = parse_action_batch({"actions": checkpoint.intent_actions}, budget=len(checkpoint.intent_actions))
    if isinstance(actions, InvalidActions):
        raise StateError(f"the checkpoint's actions are not valid: {actions.reason}")
    if checkpoint.stage == "commit":
        finish = actions[-1]
        return Place(ledger, place.frame, place.text, finish=finish if isinstance(finish, Finish) else None)
    if digest_of(actions) != checkpoint.intent_digest:
        raise StateError("the checkpoint's actions do not have the digest that it names")
    return Place(ledger, place.frame, place.text, pending=actions)
