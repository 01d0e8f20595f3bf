"""The way to one instance: a tunnel that may be replaced, behind a port that stays the same for the host's whole life.

Pilots, evaluator and heartbeats keep one address; who opens the tunnel again behind it they never learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import anyio
import anyio.abc

from contract.errors import HostError
from contract.phases import Cause
from supervisor.hosts.lease import Host
from supervisor.hosts.tunnel import Tunnel

# Three plugin processes, each of which may be silent for 20 s and then asked twice for 8 s.
MEND_S: Final = 110.0
# One lost answer may be a frame in the way; after two a tunnel that looks whole is taken for a dead one.
MISSES_MAX: Final = 2


class Relay(Protocol):
    """A port on loopback that leads wherever it is pointed to; `relay.StablePort` is the one in use."""

    port: int

    def point_to(self, port: int | None) -> None: ...

    async def serve(self) -> None: ...

    def close(self) -> None: ...


Say = Callable[[str], None]
"""Prints one line for people."""

MakeTunnel = Callable[[Host, str, Say], Tunnel]
"""A tunnel, not open yet, to the broker of a host on the instance with this id."""

MakeRelay = Callable[[Say], Relay]
"""A relay on a free port. Raises `OSError`."""


class Way:
    """Opened by one task, mended by one at a time, closed by any."""

    def __init__(self, tunnel: Tunnel, relay: Relay) -> None:
        self._tunnel = tunnel
        self._relay = relay
        self._mending = anyio.Lock()
        self._is_closed = False
        # A break is told once: whoever was told mends it, or looks again at its own pace.
        self._is_told = False

    @property
    def address(self) -> str:
        """Where the broker is reached, as long as this way exists."""
        return f"http://127.0.0.1:{self._relay.port}"

    async def open(self, group: anyio.abc.TaskGroup, *, within_s: float) -> None:
        """Open the tunnel and serve the port in `group`. Raises `HostError` (`tunnel`)."""
        group.start_soon(self._relay.serve)
        await self._open_tunnel(within_s)

    async def wait_broken(self) -> None:
        """Return when the tunnel is known to have ended, once for each tunnel. Else this never returns."""
        if not self._is_told:
            await self._tunnel.wait_broken()
            self._is_told = True
            return
        await anyio.sleep_forever()

    async def mend(self, *, misses: int) -> None:
        """Open a new tunnel when the old one was told to have ended, or had `MISSES_MAX` misses and carries nothing.

        Raises `HostError` (`tunnel`).
        """
        async with self._mending:
            if self._is_closed or (misses < MISSES_MAX and not self._is_told):
                return
            if await self._tunnel.healthy():
                # The broker answers again: it was slow, or another watch has had the tunnel opened meanwhile.
                return
            if self._is_closed:
                # While the broker was asked; a tunnel that is opened now nobody would close.
                return
            self._relay.point_to(None)
            try:
                await self._open_tunnel(MEND_S)
            except HostError:
                if not self._tunnel.is_cut_off:
                    raise
                # The host may be well, and for as long as its lease it waits for us: the next miss tries again.
                self._is_told = True

    async def close(self) -> None:
        """End tunnel and port. Idempotent."""
        self._is_closed = True
        self._relay.close()
        await self._tunnel.close()

    async def _open_tunnel(self, within_s: float) -> None:
        with anyio.move_on_after(within_s):
            port = await self._tunnel.open()
            self._is_told = False
            self._relay.point_to(port)
            return
        raise HostError(
            f"no broker answered through a tunnel within {within_s:.0f} s",
            cause=Cause.TUNNEL,
            hint="See the rollout's log; the broker of the image may not start, or listens on another port.",
        )
