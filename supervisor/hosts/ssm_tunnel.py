"""The way to a broker on an instance without an open port: an SSM session, and AWS's plugin that forwards a port.

A plugin that says it is ready proves nothing, and neither does its exit status, so a tunnel counts as open when the
broker has answered through it. Whatever happens, the plugin is ended and reaped, its folder removed, and the session
terminated on AWS's side.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import anyio

from contract.ambient import Ambient
from contract.bridge import Bridge
from contract.errors import HostError, HostsRefused
from contract.phases import Cause
from supervisor.child import Child, describe_status
from supervisor.cloud.ports import Cloud, CloudError, FaultKind, PluginAccess, Session
from supervisor.hosts.ec2_asking import REFUSES_ALL
from supervisor.hosts.ssm_plugin import (
    Plugin,
    PluginOutput,
    agent_problem,
    dying_with_us,
    make_tmpdir,
    plugin_command,
    plugin_environment,
    remove_tmpdir,
    secrets_of,
)
from supervisor.hosts.ssm_sessions import SsmSessions, backoff_s
from supervisor.hosts.tunnel import Probe, Probed
from supervisor.race import Broken, first_of

T = TypeVar("T")

# How long an opening may take when its caller does not say: a Windows instance boots in 3 to 10 minutes.
OPEN_S: Final = 1_200.0
# Fresh plugin processes in one opening (operator's guide, admission sequence).
PROCESSES_MAX: Final = 3
# A plugin is ready in 1 s, or it is one of those that stay silent for ever.
READY_S: Final = 20.0
# Between two looks at what is not up yet.
NOT_YET_S: Final = 5.0
REFUSED_S: Final = 2.0
# One probe may meet a channel that is just being made anew.
SILENT_MAX: Final = 2
REFRESHES_MAX: Final = 2
# From SIGINT to the end: 10 ms in a healthy plugin.
GRACE_S: Final = 2.0


class SsmTunnel:
    """A `Tunnel` to `port` of one instance.

    `folder` becomes the plugin's TMPDIR, so it is ours alone, and its path is short (`ssm_plugin.TMPDIR_CHARS_MAX`).
    `search_path` is the PATH that the plugin was found on. The plugin's stderr is appended to `log`; `say` prints one
    line for people. Open it from a thread that lives as long as the program: the plugin dies with that thread.
    """

    def __init__(
        self,
        *,
        cloud: Cloud,
        bridge: Bridge,
        instance_id: str,
        port: int,
        plugin: Plugin,
        search_path: str,
        folder: Path,
        log: Path,
        probe: Probe,
        ambient: Ambient,
        say: Callable[[str], None],
        open_s: float = OPEN_S,
        ready_s: float = READY_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._cloud = cloud
        self._bridge = bridge
        self._instance_id = instance_id
        self._port = port
        self._plugin = plugin
        self._search_path = search_path
        self._folder = folder
        self._log = log
        self._probe = probe
        self._ambient = ambient
        self._say = say
        self._open_s = open_s
        self._ready_s = ready_s
        self._grace_s = grace_s
        self._running: _Running | None = None
        # Held while it is opened or closed; the opening is cancelled by whoever closes.
        self._changing = anyio.Lock()
        self._opening: anyio.CancelScope | None = None
        self._sessions = SsmSessions(cloud, bridge, ambient, instance_id=instance_id, port=port, say=say)
        self._was_open = False
        self._is_agent_good = False
        self._waits_for = "nothing yet"
        self._is_cut_off = False

    async def open(self) -> int:
        """See `Tunnel.open`. Raises `HostError` (`tunnel`) after three plugins, after `open_s`, or for good reason."""
        async with self._changing:
            await self._end()
            with anyio.move_on_after(self._open_s) as in_time, anyio.CancelScope() as self._opening:
                try:
                    return await self._open_some()
                finally:
                    self._opening = None
        if in_time.cancelled_caught:
            raise self._error(f"no tunnel after {self._open_s:.0f} s; it was waiting for this: {self._waits_for}")
        raise self._error("it was closed while it was being opened", hint="The host is being ended; nothing to do.")

    @property
    def is_cut_off(self) -> bool:
        """See `Tunnel.is_cut_off`: AWS was not reached, turned everybody away, or refuses our credentials."""
        return self._is_cut_off

    async def wait_broken(self) -> None:
        """See `Tunnel.wait_broken`. A plugin that lives and carries nothing is not noticed here, but by `healthy`."""
        if self._running is not None:
            await self._running.wait_ended()

    async def healthy(self) -> bool:
        """See `Tunnel.healthy`."""
        running = self._running
        if running is None or running.has_ended or running.output.port is None:
            return False
        port = running.output.port
        result = await first_of(lambda: self._probe(port), running.wait_ended)
        return not isinstance(result, Broken) and result.value is Probed.ANSWERED

    async def close(self) -> None:
        """See `Tunnel.close`. Takes milliseconds, and 20 s at most when plugin and AWS both hang."""
        with anyio.CancelScope(shield=True):
            if self._opening is not None:
                self._opening.cancel()
            async with self._changing:
                await self._end()

    async def _open_some(self) -> int:
        failures: list[str] = []
        while len(failures) < PROCESSES_MAX:
            try:
                return await self._open_once()
            except _PluginFailed as failed:
                failures.append(str(failed))
                self._say(f"tunnel to {self._instance_id}: {failed} (plugin {len(failures)} of {PROCESSES_MAX})")
        raise self._error(f"no tunnel after {PROCESSES_MAX} plugin processes; the last one: {failures[-1]}")

    async def _open_once(self) -> int:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._end)
            session, access = await self._start_session()
            await self._check_agent()
            running = await self._spawn(session, access)
            await self._wait_ready(running)
            await self._wait_answer(running)
            undo.pop_all()
            self._was_open = True
            assert running.output.port is not None, "a ready plugin has a port"
            return running.output.port

    async def _start_session(self) -> tuple[Session, PluginAccess]:
        refreshes = 0
        for attempt in count():
            try:
                access = await self._bridge.call(self._cloud.plugin_access)
                session = await self._sessions.start()
                self._is_cut_off = False
                return session, access
            except CloudError as error:
                self._waits_for = error.message
                self._is_cut_off = error.kind in {FaultKind.THROTTLE, FaultKind.AMBIGUOUS, FaultKind.SIGNING}
                match error.kind:
                    case FaultKind.NOT_CONNECTED | FaultKind.NOT_FOUND:
                        await self._ambient.sleep(NOT_YET_S)
                    case FaultKind.THROTTLE | FaultKind.AMBIGUOUS:
                        await self._ambient.sleep(backoff_s(self._ambient, attempt))
                    # A host that works is worth waiting until the operator has logged in again.
                    case FaultKind.SIGNING if refreshes < REFRESHES_MAX or self._was_open:
                        refreshes += 1
                        with suppress(CloudError):
                            await self._bridge.call(self._cloud.refresh_credentials)
                        if refreshes > REFRESHES_MAX:
                            await self._ambient.sleep(backoff_s(self._ambient, attempt))
                    case _:
                        hint = error.hint or "Correct what AWS complains about; trying again would not help."
                        kind = HostsRefused if error.kind in REFUSES_ALL else HostError
                        raise self._error(error.message, hint=hint, kind=kind) from error
        raise AssertionError("counting has no end")

    async def _check_agent(self) -> None:
        """Refuse an agent that is too old. Raises `HostError`. One that cannot be read is judged by what it carries."""
        if self._is_agent_good:
            return
        try:
            agents = await self._bridge.call(lambda: self._cloud.find_agents([self._instance_id]))
        except CloudError:
            return
        agent = agents.get(self._instance_id)
        if agent is None:
            return
        if problem := agent_problem(agent):
            raise self._error(problem, hint="Update the SSM agent in the image, and bake it again.")
        self._is_agent_good = True

    async def _spawn(self, session: Session, access: PluginAccess) -> _Running:
        command = plugin_command(self._plugin, access, instance_id=self._instance_id, port=self._port)
        environment = plugin_environment(session, access, tmpdir=self._folder, search_path=self._search_path)
        try:
            make_tmpdir(self._folder)
            child = Child.spawn(
                (*dying_with_us(self._search_path), *command), environment=environment, log=self._log, cwd=Path("/")
            )
        except OSError as error:
            raise self._error(f"the plugin cannot be started: {error}", hint="See the error; it is local.") from error
        self._running = _Running(child, PluginOutput(session.session_id, secrets_of(session, access)))
        return self._running

    async def _wait_ready(self, running: _Running) -> None:
        with anyio.move_on_after(self._ready_s):
            while not running.output.is_ready:
                await running.read()
                if running.has_ended:
                    raise _PluginFailed(await running.describe_end())
            return
        said = "opened a port for one client only" if running.output.port is not None else "said nothing"
        raise _PluginFailed(f"the plugin {said} in {self._ready_s:.0f} s")

    async def _wait_answer(self, running: _Running) -> None:
        """Ask until the broker answers. A host that refuses is not up yet; one that is silent has a bad tunnel."""
        port = running.output.port
        assert port is not None, "a ready plugin has a port"
        silent = 0
        while silent < SILENT_MAX:
            result = await first_of(lambda: self._probe(port), running.wait_ended)
            if isinstance(result, Broken):
                raise _PluginFailed(await running.describe_end())
            match result.value:
                case Probed.ANSWERED:
                    return
                case Probed.REFUSED:
                    silent = 0
                    self._waits_for = "the broker to listen"
                    await first_of(lambda: self._ambient.sleep(REFUSED_S), running.wait_ended)
                case Probed.SILENT:
                    silent += 1
                    self._waits_for = "an answer through an open tunnel"
        if running.has_ended:
            raise _PluginFailed(await running.describe_end())
        raise _PluginFailed(f"nothing came through an open port, {silent} times")

    async def _end(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._end_plugin()
            await self._sessions.end()

    async def _end_plugin(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            child = running.child
            # The plugin tells AWS that the session is over; SIGTERM would leave it open, and a socket behind.
            child.signal(signal.SIGINT)
            with anyio.move_on_after(self._grace_s):
                await child.wait()
            await child.end(grace_s=0)
            # A task that waits for the end reads it now; only then may the pipe be closed under it.
            with anyio.move_on_after(GRACE_S):
                await running.wait_ended()
            child.close()
        try:
            remove_tmpdir(self._folder)
        except OSError as error:
            self._say(f"tunnel to {self._instance_id}: {self._folder} cannot be removed: {error.strerror}")

    def _error(self, message: str, *, hint: str = "", kind: type[HostError] = HostError) -> HostError:
        return kind(
            f"tunnel to {self._instance_id}: {message}",
            cause=Cause.TUNNEL,
            hint=hint or "See the rollout's log, and the SSM agent's log on the instance.",
        )


class _PluginFailed(Exception):
    """One plugin process came to nothing; the next may do better."""


@dataclass(slots=True)
class _Running:
    """A plugin process and what it said."""

    child: Child
    output: PluginOutput
    is_silent: bool = False
    _reading: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def has_ended(self) -> bool:
        """True once it said that it is over, or its output is."""
        return self.is_silent or self.output.problem is not None

    async def read(self) -> None:
        """Take what it says next."""
        async with self._reading:
            if not self.has_ended:
                chunk = await self.child.read()
                self.output.feed(chunk)
                self.is_silent = not chunk

    async def wait_ended(self) -> None:
        """Read on until it has ended. Any number of tasks may wait; one of them reads for all."""
        while not self.has_ended:
            await self.read()

    async def describe_end(self) -> str:
        """Why it ended, in one line."""
        if self.is_silent:
            # The end of its output comes a moment before its own, if it ends at all.
            with anyio.move_on_after(GRACE_S):
                status = describe_status(await self.child.wait())
                return f"the plugin ended ({status}): {self.output.problem or 'it did not say why'}"
        return f"the plugin said: {self.output.problem or 'nothing more'}"
