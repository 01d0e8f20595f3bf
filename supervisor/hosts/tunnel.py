"""A way to a broker that is not on this machine, whatever carries it; `ssm_tunnel.py` is the one that there is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, Protocol

from pydantic import SecretStr

from contract.bridge import Bridge
from contract.broker_api import ErrorCode
from contract.broker_client import BrokerClient, Patience
from contract.errors import BrokerError

# A small answer crosses a good tunnel in some 100 ms. A tunnel that carries a frame at the same time may need as long
# as the frame does: 0.5 s, and 5 s where the guest's timer ticks at 15.6 ms (AWS reference, section 4).
PROBE_S: Final = 8.0


class Tunnel(Protocol):
    """One way to one port of one host, opened and opened again by one task at a time. All else any task may call."""

    @property
    def is_cut_off(self) -> bool:
        """True when the newest opening came to nothing because nobody could be asked for a way at all.

        Then it says nothing about the host: this machine's own way out may be down for a while.
        """
        ...

    async def open(self) -> int:
        """A port on loopback behind which the broker answers; what was open before is closed. Raises `HostError`.

        Waits for a host that has not come up yet. Cancelled or failed, it leaves nothing behind.
        """
        ...

    async def wait_broken(self) -> None:
        """Return as soon as the open way is known to have ended; at once when there is none."""
        ...

    async def healthy(self) -> bool:
        """True when the broker answered through it just now. Takes up to `PROBE_S` seconds."""
        ...

    async def close(self) -> None:
        """End the way and all that belongs to it, also one that is being opened: that fails with `HostError`.

        Idempotent, cannot be cancelled, bounded in time.
        """
        ...


class Probed(StrEnum):
    """What came back from the other end of a tunnel."""

    # Somebody speaks the broker's language there. Who it is, is for its identity to prove.
    ANSWERED = "answered"
    # The connection was closed without an answer: the host is reached, and no broker listens yet.
    REFUSED = "refused"
    # Nothing came in time, or bytes that no broker sends: the tunnel itself may be bad.
    SILENT = "silent"


Probe = Callable[[int], Awaitable[Probed]]
"""Asks once through a port on loopback. Never raises for what the other end does."""


class BrokerProbe:
    """Asks the broker how it is, with the host's token: the only proof that a tunnel carries anything."""

    def __init__(self, token: SecretStr, bridge: Bridge, *, read_s: float = PROBE_S) -> None:
        self._token = token
        self._bridge = bridge
        self._read_s = read_s

    async def __call__(self, port: int) -> Probed:
        return await self._bridge.call(lambda: self._ask(port))

    def _ask(self, port: int) -> Probed:
        patience = Patience(connect_s=self._read_s, read_s=self._read_s, tries=1)
        client = BrokerClient(f"http://127.0.0.1:{port}", self._token, patience=patience)
        try:
            client.health(read_s=self._read_s)
        except BrokerError as error:
            if error.code not in {ErrorCode.UNREACHABLE, ErrorCode.PROTOCOL}:
                return Probed.ANSWERED
            is_closed = error.code == ErrorCode.UNREACHABLE and not isinstance(error.__cause__, TimeoutError)
            return Probed.REFUSED if is_closed else Probed.SILENT
        finally:
            client.close()
        return Probed.ANSWERED
