"""AWS's Session Manager plugin as a program: which versions are good, how it is started, and what its output means.

The facts are those of the plugin's sources (1.2.677) and release notes (to 1.2.896), and of AWS's CLI, which starts it
in the same way. Its exit status says nothing: it is 0 for most failures, and some leave it alive and silent for ever.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
from pydantic import SecretStr

from supervisor.cloud.ports import Agent, PluginAccess, Session

NAME: Final = "session-manager-plugin"
# Before it, a tunnel died silently after its WebSocket was made anew (release notes of 1.2.835.0).
OLDEST: Final = (1, 2, 835, 0)
# Withdrawn by AWS.
WITHDRAWN: Final = frozenset({(1, 2, 889, 0)})
# From this agent on, a port session takes many clients, says so, and has the multiplexer's keep-alive off.
OLDEST_AGENT: Final = (3, 1, 1511)
# `--version` answers in 10 ms; a busy machine may take a hundred times as long.
VERSION_S: Final = 10.0
# The plugin takes what stands in a variable whose name begins like this; any other first argument is the response
# itself, and every user of the machine could read it.
RESPONSE_VARIABLE: Final = "AWS_SSM_START_SESSION_RESPONSE"
DOCUMENT: Final = "AWS-StartPortForwardingSession"
# The kernel's bound for the name of a UNIX socket, which ends in a zero byte (unix(7)), and what the plugin adds to its
# TMPDIR: /<pid>_session_manager_plugin_mux.sock.
SOCKET_CHARS_MAX: Final = 107
TMPDIR_CHARS_MAX: Final = SOCKET_CHARS_MAX - len("/4194304_session_manager_plugin_mux.sock")

_HINT: Final = (
    f"Install AWS's Session Manager plugin {'.'.join(map(str, OLDEST))} or later, but not 1.2.889.0: "
    "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html"
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that may be used."""

    path: Path
    version: str


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """Why there is no plugin that may be used, in one line, and what to do about it."""

    message: str
    hint: str = _HINT


def find_plugin(search_path: str) -> Plugin | PluginProblem:
    """The plugin that stands first on `search_path` (as in PATH). Runs it once for its version, for 10 s at most."""
    found = shutil.which(NAME, path=search_path)
    if found is None:
        return PluginProblem(f"{NAME} is not on PATH")
    try:
        answer = subprocess.run(
            [found, "--version"],
            env={"PATH": search_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return PluginProblem(f"{found} --version did not answer within {VERSION_S:.0f} s")
    except OSError as error:
        return PluginProblem(f"{found} cannot be run: {error.strerror or error}")
    version = answer.stdout.decode(errors="replace").strip()
    problem = version_problem(version)
    if answer.returncode != 0:
        problem = f"--version ended with exit status {answer.returncode}"
    if problem is not None:
        return PluginProblem(f"{found}: {problem}")
    return Plugin(Path(found).absolute(), version)


def version_problem(version: str) -> str | None:
    """Why this version of the plugin may not be used; null when it may."""
    numbers = read_version(version)
    if numbers is None:
        return f"{version[:80]!r} is not a version"
    if numbers < OLDEST:
        return f"version {version} is too old; its tunnels die silently"
    if numbers in WITHDRAWN:
        return f"version {version} was withdrawn by AWS"
    return None


def agent_problem(agent: Agent) -> str | None:
    """Why no tunnel can be had through this SSM agent; null when one can."""
    numbers = read_version(agent.version)
    if numbers is None:
        return f"the SSM agent's version {agent.version[:80]!r} is not a version"
    if numbers < OLDEST_AGENT:
        return f"SSM agent {agent.version} is older than {'.'.join(map(str, OLDEST_AGENT))}, so it serves one client"
    return None


def read_version(version: str) -> tuple[int, ...] | None:
    """`1.2.835.0` as numbers, which compare as versions do; null for anything else."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){1,5}", version):
        return None
    return tuple(map(int, version.split(".")))


def plugin_command(plugin: Plugin, access: PluginAccess, *, instance_id: str, port: int) -> tuple[str, ...]:
    """The arguments of the plugin for one session to `port` of the instance. Nothing in them is secret.

    The profile is empty: the credentials are in the environment.
    """
    request = {
        "Target": instance_id,
        "DocumentName": DOCUMENT,
        # A free port of the plugin's choice: it says which, so there is no race for one.
        "Parameters": {"portNumber": [str(port)], "localPortNumber": ["0"]},
    }
    return (
        str(plugin.path),
        RESPONSE_VARIABLE,
        access.region,
        "StartSession",
        "",
        orjson.dumps(request).decode(),
        access.ssm_endpoint,
    )


def plugin_environment(session: Session, access: PluginAccess, *, tmpdir: Path, search_path: str) -> dict[str, str]:
    """The whole environment of the plugin: what `access` lends, the response, PATH and a TMPDIR of its own.

    Since 1.2.764 the plugin signs the opening of its data channel, hence the credentials.
    """
    lent = {name: secret.get_secret_value() for name, secret in access.environment.items()}
    return {
        **lent,
        RESPONSE_VARIABLE: session.response.get_secret_value(),
        "PATH": search_path,
        "TMPDIR": str(tmpdir),
    }


def dying_with_us(search_path: str) -> tuple[str, ...]:
    """What makes the kernel kill the plugin when the thread that started it ends: start it from one that lives on.

    SIGKILL, because a plugin whose channel hangs may never come to handle another signal.
    """
    setpriv = shutil.which("setpriv", path=search_path)
    return () if setpriv is None else (setpriv, "--pdeathsig", "KILL", "--")


# What the plugin reads, by the names of `urllib.request.getproxies`, which the SDK asks for its own way out.
PROXY_VARIABLES: Final = {"https": "HTTPS_PROXY", "http": "HTTP_PROXY", "no": "NO_PROXY"}


def proxy_variables(ways: Mapping[str, str]) -> dict[str, SecretStr]:
    """The variables by which the plugin goes out as the SDK does. A proxy's address may hold a password."""
    return {variable: SecretStr(ways[way]) for way, variable in PROXY_VARIABLES.items() if ways.get(way)}


# What the plugin prints in one line is shorter by far; of a longer one only the end is looked at.
LINE_BYTES_MAX: Final = 16_384
_PORT: Final = re.compile(r"Port (?P<port>[0-9]{1,5}) opened for sessionId (?P<session_id>\S+?)\.?$")
_WAITING: Final = "Waiting for connections"
_FAILURE: Final = re.compile(
    r"Cannot perform start session|^SessionId: \S+ : |Exiting session with sessionId|^Session: \S+ timed out"
    r"|Can't send message|^panic:"
)


@dataclass(slots=True)
class PluginOutput:
    """What a plugin has said so far. Bytes are fed as they come; lines may be torn and mixed with noise."""

    session_id: str
    # Never shown, whatever the plugin prints.
    secrets: Sequence[str] = ()
    port: int | None = None
    # What it said of its end or its failure.
    problem: str | None = None
    _is_waiting: bool = False
    _rest: bytes = b""

    @property
    def is_ready(self) -> bool:
        """True once it listens for our session, on `port`, for many clients."""
        return self.port is not None and self._is_waiting and self.problem is None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; an empty chunk is the end of the output."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-LINE_BYTES_MAX:]
        if not chunk:
            lines, self._rest = [self._rest], b""
        for line in lines:
            self._take(line.decode(errors="replace").strip())

    def _take(self, line: str) -> None:
        if opened := _PORT.search(line):
            if opened["session_id"] == self.session_id:
                self.port = int(opened["port"])
            else:
                self._fail(f"it opened a port for another session: {line}")
        elif _WAITING in line:
            self._is_waiting = True
        elif _FAILURE.search(line):
            self._fail(line)

    def _fail(self, line: str) -> None:
        for secret in self.secrets:
            line = line.replace(secret, "[secret]")
        # The first complaint is the cause, later ones follow from it.
        self.problem = self.problem or line[:300]


def secrets_of(session: Session, access: PluginAccess) -> tuple[str, ...]:
    """What the plugin is given and may never be shown: the parts of its session's response, credentials, proxies."""
    response = session.response.get_secret_value()
    lent = {name: secret.get_secret_value() for name, secret in access.environment.items()}
    parts = [response, *(value for name, value in lent.items() if value and name != "NO_PROXY")]
    try:
        found = orjson.loads(response)
    except orjson.JSONDecodeError:
        return tuple(parts)
    if isinstance(found, Mapping):
        parts += [str(found[name]) for name in ("TokenValue", "StreamUrl") if found.get(name)]
    return tuple(parts)


def make_tmpdir(folder: Path) -> None:
    """A folder that only we may enter, new and empty. Raises `OSError`; `ENAMETOOLONG` when no socket fits into it."""
    if len(os.fsencode(folder)) > TMPDIR_CHARS_MAX:
        raise OSError(errno.ENAMETOOLONG, "the path is too long for a UNIX socket of the plugin", str(folder))
    # What a predecessor left when it was killed.
    remove_tmpdir(folder)
    folder.mkdir(mode=0o700)


def remove_tmpdir(folder: Path) -> None:
    """Remove it with the socket that a killed plugin leaves there. One that is gone is no error. Raises `OSError`."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
