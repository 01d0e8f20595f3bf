"""The desktop behind a broker: `contract.broker_client`, called through a bounded thread bridge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from contract.actions import Action, Drag, TypeText, Wait
from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.broker_api import ErrorCode, FrameInfo, Health
from contract.broker_client import BrokerClient
from contract.errors import BrokerError
from pilot.ports import Acted

# Generous multiples of what LibreCAD needs on two loaded cores: 0.07 s per settled action, 1,100 typed characters
# and some thousand pointer moves per second. A legal ActionBatch must never meet a deadline that a hang should meet.
ACTION_S: Final = 1.0
CHARACTER_S: Final = 0.01
POINT_S: Final = 0.01
# A drag moves in small steps: 0.06 ms per pixel of its way, measured.
PIXEL_S: Final = 0.0002
# How often a broker that is still busy with the very same ActionBatch is asked again.
BUSY_PAUSE_S: Final = 0.5


class BrokerDesktop:
    """Speaks for one rollout, one call at a time. Every call may raise `BrokerError`."""

    def __init__(self, client: BrokerClient, *, lease_id: str, bridge: Bridge, ambient: Ambient) -> None:
        self._client = client
        self._lease_id = lease_id
        self._bridge = bridge
        self._ambient = ambient

    async def health(self) -> Health:
        """One authenticated round trip."""
        return await self._bridge.call(self._client.health)

    async def act(self, sequence: int, actions: Sequence[Action]) -> Acted:
        """Carry the actions out exactly once, and look.

        A broker that lost its connection to us in the middle goes on acting and answers the repeated request with
        `busy`; it is asked again until it has a receipt, no longer than the ActionBatch may take.
        """
        allowed_s = allowance_s(actions)
        deadline = self._ambient.elapsed_s() + allowed_s
        while True:
            try:
                return await self._bridge.call(partial(self._act_and_look, sequence, actions, allowed_s))
            except BrokerError as error:
                if error.code != ErrorCode.BUSY or self._ambient.elapsed_s() >= deadline:
                    raise
            await self._ambient.sleep(BUSY_PAUSE_S)

    def _act_and_look(self, sequence: int, actions: Sequence[Action], allowed_s: float) -> Acted:
        # One crossing for both: each costs two thread switches.
        receipt = self._client.act(lease_id=self._lease_id, sequence=sequence, actions=actions, wait_s=allowed_s)
        return Acted(receipt, self._client.frame(receipt.frame))

    async def fetch(self, info: FrameInfo) -> bytes:
        """The PNG of this frame, checked for length and SHA-256."""
        return await self._bridge.call(lambda: self._client.frame(info))

    async def aclose(self) -> None:
        """Close the connection; a call that an abandoned thread still waits in ends."""
        self._client.close()


def allowance_s(actions: Sequence[Action]) -> float:
    """Seconds that these actions may take beyond what any ActionBatch may."""
    total_s = 0.0
    for action in actions:
        total_s += ACTION_S
        match action:
            case Wait(seconds=seconds):
                total_s += seconds
            case TypeText(text=text):
                total_s += len(text) * CHARACTER_S
            case Drag(path=path):
                way_px = sum(max(abs(x1 - x0), abs(y1 - y0)) for (x0, y0), (x1, y1) in pairwise(path))
                total_s += len(path) * POINT_S + way_px * PIXEL_S
            case _:
                pass
    return total_s
