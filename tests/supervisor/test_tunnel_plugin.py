"""The Session Manager plugin as a program: its version, its arguments, its environment and its words."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from supervisor.cloud.ports import Agent, PluginAccess, Session
from supervisor.hosts.ssm_plugin import (
    TMPDIR_CHARS_MAX,
    Plugin,
    PluginOutput,
    PluginProblem,
    agent_problem,
    find_plugin,
    make_tmpdir,
    plugin_command,
    plugin_environment,
    proxy_variables,
    remove_tmpdir,
    secrets_of,
    version_problem,
)
from tests.lab.plugin import NAME, StandIn

ID = "operator-0a1b2c3d"
READY = (
    f"\nStarting session with SessionId: {ID}\n\nPort 40123 opened for sessionId {ID}.\nWaiting for connections...\n"
)
RESPONSE = {"SessionId": ID, "TokenValue": "canary-token", "StreamUrl": "wss://example.invalid/canary-stream"}
SESSION = Session(ID, SecretStr(json.dumps(RESPONSE)))
ACCESS = PluginAccess("eu-west-1", "https://ssm.example.invalid", {"AWS_SECRET_ACCESS_KEY": SecretStr("canary-key")})


def output_of(*chunks: str) -> PluginOutput:
    """What is understood of these chunks."""
    output = PluginOutput(ID, secrets_of(SESSION, ACCESS))
    for chunk in chunks:
        output.feed(chunk.encode())
    return output


@pytest.mark.parametrize(
    ("version", "is_good"),
    [
        ("1.2.835.0", True),
        ("1.2.896.0", True),
        ("1.2.1000.0", True),
        ("1.10.0.0", True),
        ("2.0.0.0", True),
        ("1.2.834.99", False),
        ("1.2.99.0", False),
        ("1.2.889.0", False),
        ("", False),
        ("1.2.896.0-beta", False),
        ("-1.2.896.0", False),
        ("\N{SUPERSCRIPT TWO}.2.896.0", False),
        ("9" * 5_000 + ".1", False),
    ],
)
def test_versions_compare_as_numbers(version: str, is_good: bool) -> None:
    """As text, 1.2.1000 would be older than 1.2.835; 1.2.889.0 was withdrawn."""
    assert is_good == (version_problem(version) is None)


@pytest.mark.parametrize(
    ("version", "is_good"),
    [
        ("3.1.1511.0", True),
        ("3.3.40.0", True),
        ("3.10.0.0", True),
        ("3.1.1510.9", False),
        ("3.0.196.0", False),
        ("", False),
    ],
)
def test_an_agent_that_serves_one_client_is_refused(version: str, is_good: bool) -> None:
    """Pilot and heartbeat use the tunnel at the same time."""
    assert is_good == (agent_problem(Agent(is_online=True, version=version)) is None)


def test_the_first_plugin_on_the_path_is_found_with_its_version(tmp_path: Path) -> None:
    """As a shell would find it."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, version in ((first, "1.2.900.0"), (second, "1.2.896.0")):
        folder.mkdir()
        StandIn.installed(folder, version=version)

    found = find_plugin(f"{tmp_path / 'none'}:{first}:{second}")

    assert Plugin(first / NAME, "1.2.900.0") == found


def test_no_plugin_on_the_path_is_a_problem_with_a_hint(tmp_path: Path) -> None:
    """The operator learns what to install."""
    found = find_plugin(str(tmp_path))

    assert isinstance(found, PluginProblem)
    assert "session-manager-plugin is not on PATH" == found.message
    assert "1.2.835.0 or later" in found.hint


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("#!/bin/sh\necho 1.2.700.0\n", "version 1.2.700.0 is too old"),
        ("#!/bin/sh\necho 1.2.889.0\n", "version 1.2.889.0 was withdrawn"),
        ("#!/bin/sh\necho 1.2.896.0; exit 3\n", "ended with exit status 3"),
        ("#!/bin/sh\n", "'' is not a version"),
        ("#!/bin/sh\nprintf '\\377\\n'\n", "is not a version"),
        ("#!/nowhere/interpreter\n", "cannot be run"),
        ("no program at all", "cannot be run"),
    ],
)
def test_a_plugin_that_cannot_be_used_says_why(tmp_path: Path, script: str, says: str) -> None:
    """Each of these is found in the plan, before anything costs money."""
    program = tmp_path / NAME
    program.write_text(script)
    program.chmod(0o755)

    found = find_plugin(f"{tmp_path}:/usr/bin:/bin")

    assert isinstance(found, PluginProblem)
    assert says in found.message


def test_nothing_secret_stands_in_the_arguments() -> None:
    """Every user of the machine reads arguments; the response goes by a variable whose name the plugin knows."""
    command = plugin_command(Plugin(Path("/opt/plugin"), "1.2.896.0"), ACCESS, instance_id="i-1", port=8765)

    request = {
        "Target": "i-1",
        "DocumentName": "AWS-StartPortForwardingSession",
        "Parameters": {"portNumber": ["8765"], "localPortNumber": ["0"]},
    }
    assert ("/opt/plugin", "AWS_SSM_START_SESSION_RESPONSE", "eu-west-1", "StartSession", "") == command[:5]
    assert request == json.loads(command[5])
    assert ("https://ssm.example.invalid",) == command[6:]
    assert "canary" not in " ".join(command)


def test_the_environment_is_exactly_what_the_plugin_needs() -> None:
    """Nothing of the operator's own environment gets there."""
    found = plugin_environment(SESSION, ACCESS, tmpdir=Path("/tmp/t"), search_path="/bin")

    assert {
        "AWS_SECRET_ACCESS_KEY": "canary-key",
        "AWS_SSM_START_SESSION_RESPONSE": json.dumps(RESPONSE),
        "PATH": "/bin",
        "TMPDIR": "/tmp/t",
    } == found


def test_ready_means_both_lines() -> None:
    """A port alone is what an old agent gives, which serves one client."""
    assert (True, 40123) == (output_of(READY).is_ready, output_of(READY).port)
    assert not output_of(READY.replace("Waiting for connections...\n", "")).is_ready
    assert not output_of("Waiting for connections...\n").is_ready


def test_output_may_be_torn_anywhere() -> None:
    """A pipe gives what there is, not lines."""
    assert [True] * len(READY) == [output_of(READY[:at], READY[at:]).is_ready for at in range(len(READY))]
    assert output_of(*READY).is_ready


def test_noise_around_the_lines_does_no_harm() -> None:
    """Warnings, empty lines, bytes that are no text, and a line without end."""
    output = PluginOutput(ID)
    for chunk in (b"\xff\xfe warning: proxy\r\n", b"x" * 200_000 + b"\n", READY.encode(), b"\n\nConnection accepted\n"):
        output.feed(chunk)

    assert (True, 40123, None) == (output.is_ready, output.port, output.problem)


def test_a_port_of_another_session_is_refused() -> None:
    """Its bytes would reach another host."""
    output = output_of(READY.replace(ID, "operator-99999999"))

    assert (False, None) == (output.is_ready, output.port)
    assert output.problem is not None
    assert "another session" in output.problem


def test_an_id_that_only_begins_like_ours_is_another_session() -> None:
    """The whole id is compared."""
    assert not output_of(READY.replace(ID, ID + "0")).is_ready


@pytest.mark.parametrize(
    "line",
    [
        "Cannot perform start session: unexpected end of JSON input",
        f"SessionId: {ID} : Your session has been terminated",
        f"Exiting session with sessionId: {ID}.",
        f"Session: {ID} timed out.",
        "Can't send message: Connection is closed",
        "panic: runtime error",
    ],
)
def test_an_end_is_understood_with_and_without_a_newline(line: str) -> None:
    """The exit status is 0 for most of them, so the words are all there is."""
    assert line == output_of(READY, f"\n{line}\n").problem
    assert line == output_of(READY, f"\n{line}", "").problem
    assert not output_of(READY, f"\n{line}\n").is_ready


def test_a_destination_that_refuses_is_no_end() -> None:
    """The broker is not up yet; the tunnel is good."""
    assert output_of(READY, "\nConnection to destination port failed, check SSM Agent logs.\n").is_ready


def test_what_the_plugin_prints_of_a_secret_is_not_repeated() -> None:
    """A complaint about the response may quote it."""
    problem = output_of(f"Cannot perform start session: bad token canary-token for {RESPONSE['StreamUrl']}\n").problem

    assert "Cannot perform start session: bad token [secret] for [secret]" == problem


def test_the_folder_of_a_plugin_is_private_and_new() -> None:
    """A socket that a killed predecessor left is gone, and nobody else may enter."""
    # Not in pytest's folder, whose path is too long for a UNIX socket.
    with tempfile.TemporaryDirectory() as short:
        folder = Path(short) / "t"
        folder.mkdir()
        (folder / "17_session_manager_plugin_mux.sock").touch()
        make_tmpdir(folder)
        made = (folder.stat().st_mode & 0o777, list(folder.iterdir()))
        remove_tmpdir(folder)
        remove_tmpdir(folder)
        is_left = folder.exists()

    assert ((0o700, []), False) == (made, is_left)


def test_a_folder_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    """The plugin would fail much later, with words that name no path."""
    folder = tmp_path / ("x" * TMPDIR_CHARS_MAX)

    with pytest.raises(OSError, match="too long for a UNIX socket"):
        make_tmpdir(folder)


def test_the_plugin_takes_the_operators_way_out_and_never_shows_its_password() -> None:
    """Behind a proxy the SDK would reach AWS and the plugin would not; what is empty says nothing."""
    proxy = "http://me:canary-proxy-password@proxy.invalid:3128"
    ways = {"https": proxy, "no": "localhost", "http": "", "ftp": "ftp://proxy.invalid"}
    access = replace(ACCESS, environment={**ACCESS.environment, **proxy_variables(ways)})
    given = plugin_environment(SESSION, access, tmpdir=Path("/t"), search_path="/bin")
    output = PluginOutput(ID, secrets_of(SESSION, access))
    output.feed(f"Cannot perform start session: invalid proxy {proxy} at localhost\n".encode())

    ours = {"AWS_SECRET_ACCESS_KEY", "AWS_SSM_START_SESSION_RESPONSE", "PATH", "TMPDIR"}
    assert {"HTTPS_PROXY": proxy, "NO_PROXY": "localhost"} == {
        name: value for name, value in given.items() if name not in ours
    }
    assert "Cannot perform start session: invalid proxy [secret] at localhost" == output.problem
