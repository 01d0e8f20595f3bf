"""The request format that a profile names. A new format adds one row here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from contract.profiles import Profile, Wire
from pilot.models.chat import ChatWire
from pilot.models.converse import ConverseWire
from pilot.models.messages import MessagesWire
from pilot.models.responses import ResponsesWire
from pilot.models.wire import WireFormat


class _Makes(Protocol):
    def __call__(self, profile: Profile, *, model: str, session_id: str) -> WireFormat: ...


WIRES: Final[Mapping[Wire, _Makes]] = {
    Wire.RESPONSES: ResponsesWire,
    Wire.CHAT: ChatWire,
    Wire.MESSAGES: MessagesWire,
    Wire.CONVERSE: ConverseWire,
}


def wire_for(profile: Profile, *, model: str, session_id: str) -> WireFormat:
    """The wire of one rollout, whose own id `session_id` is."""
    return WIRES[profile.wire](profile, model=model, session_id=session_id)
