"""The SSM sessions of one tunnel: started one after the other, all ended on AWS's side, also one whose id was lost."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import anyio

from contract.ambient import Ambient
from contract.bridge import Bridge
from supervisor.cloud.ports import Cloud, CloudError, FaultKind, Session

# StartSession's answer is waited for through a cancellation, to know what to end: longer than the client's own timeouts
# (5 s to connect and 20 s to read).
START_S: Final = 30.0
BACKOFF_S: Final = 1.0
BACKOFF_S_MAX: Final = 30.0
# TerminateSession is tried so often, for so long in all.
TERMINATIONS_MAX: Final = 3
TERMINATE_S: Final = 15.0
# A session that should have begun so long ago and is not listed never did: AWS's lists follow within seconds.
LISTED_S: Final = 30.0


class SsmSessions:
    """Sessions to `port` of one instance. `say` prints one line for people."""

    def __init__(
        self,
        cloud: Cloud,
        bridge: Bridge,
        ambient: Ambient,
        *,
        instance_id: str,
        port: int,
        say: Callable[[str], None],
    ) -> None:
        self._cloud = cloud
        self._bridge = bridge
        self._ambient = ambient
        self._instance_id = instance_id
        self._port = port
        self._say = say
        # By this reason AWS lists them all, those too whose id was lost on its way.
        self._reason = f"autocad-bench {secrets.token_hex(8)}"
        # Those that AWS may still have open.
        self._ids: list[str] = []
        self._lost_at_s: float | None = None

    async def start(self) -> Session:
        """Start one, and learn its id even when nobody wants it any more. Raises `CloudError`."""
        with anyio.move_on_after(START_S, shield=True):
            try:
                session = await self._bridge.call(
                    lambda: self._cloud.start_session(self._instance_id, port=self._port, reason=self._reason)
                )
            except CloudError as error:
                if error.kind is FaultKind.AMBIGUOUS:
                    self._miss_one(error.code)
                raise
            self._ids.append(session.session_id)
            return session
        self._miss_one("NoAnswer")
        message = "StartSession had no answer"
        raise CloudError(message, kind=FaultKind.AMBIGUOUS, code="NoAnswer", action="ssm:StartSession")

    async def end(self) -> None:
        """End all of them. Bounded in time; what could not be ended is said, and tried again the next time."""
        with anyio.move_on_after(TERMINATE_S):
            for attempt in range(TERMINATIONS_MAX):
                await self._find_lost()
                for session_id in tuple(self._ids):
                    await self._end_one(session_id)
                if not self._ids:
                    break
                if attempt + 1 < TERMINATIONS_MAX:
                    await self._ambient.sleep(backoff_s(self._ambient, attempt))
        if self._ids or self._lost_at_s is not None:
            which = ", ".join(self._ids) or "one whose id was lost"
            self._say(f"tunnel to {self._instance_id}: sessions may stay open until their idle timeout: {which}")

    def _miss_one(self, code: str) -> None:
        self._lost_at_s = self._ambient.elapsed_s()
        lost = "the answer to StartSession is lost; a session that it opened is looked for when the tunnel is closed"
        self._say(f"tunnel to {self._instance_id}: {lost} ({code})")

    async def _find_lost(self) -> None:
        """Note the id of a session whose id was lost."""
        if self._lost_at_s is None:
            return
        try:
            found = await self._bridge.call(lambda: self._cloud.find_sessions(self._instance_id, reason=self._reason))
        except CloudError:
            return
        new = [session_id for session_id in found if session_id not in self._ids]
        self._ids += new
        if new or self._ambient.elapsed_s() - self._lost_at_s >= LISTED_S:
            self._lost_at_s = None

    async def _end_one(self, session_id: str) -> None:
        try:
            await self._bridge.call(lambda: self._cloud.terminate_session(session_id))
        except CloudError as error:
            if error.kind is not FaultKind.NOT_FOUND:
                return
        self._ids.remove(session_id)


def backoff_s(ambient: Ambient, attempt: int) -> float:
    """The pause after try `attempt` (0, 1, ...) of a call that was throttled or had no answer."""
    return ambient.chance.uniform(BACKOFF_S, min(BACKOFF_S_MAX, BACKOFF_S * 2.0 ** min(attempt + 1, 10)))
