"""The secrets of a batch on EC2 hosts: they are nowhere but where they are used, also when much goes wrong."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest
from pydantic import SecretStr

from contract.batch_records import RolloutRow
from contract.phases import Outcome, Phase
from contract.rollout_records import BROKER_TOKEN_VARIABLE
from supervisor.hosts.folders import SCRATCH, tunnel_folder
from supervisor.keyring import KernelKeyring
from supervisor.ledger import read_ledger
from tests.lab.batches import LabBatch, Strike, lab_batch, signal_plugin
from tests.lab.lab import SECRET_KEY
from tests.lab.plugin import NAME, RESPONSE_VARIABLE, PluginFaults
from tests.process_watch import ProcessWatch, watching

pytestmark = pytest.mark.slow

PRESIGNED = "X-Amz-Signature"
HAS_KEYRING = KernelKeyring().keep("h-probe", SecretStr("x"), lifetime_s=1)
CALLS_THAT_FAIL = ("RunInstances", "StartSession", "DescribeInstances", "PutObject", "GetObject", "TerminateInstances")


@dataclass
class Eye:
    """Looks into the keyring and into the plugins' private folders while a batch runs."""

    batch: LabBatch
    tokens: dict[str, str] = field(default_factory=dict)
    private: dict[str, bytes] = field(default_factory=dict)

    def look(self) -> None:
        """Once."""
        ledger = self.batch.live.batch_dir.hosts
        if not ledger.exists():
            return
        for host_id in read_ledger(ledger):
            token = KernelKeyring().recall(host_id)
            if token is not None:
                self.tokens[host_id] = token.get_secret_value()
            for name, content in contents_below(tunnel_folder(SCRATCH, host_id)):
                self.private[name] = content


def contents_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder by its path; one that goes meanwhile is left out, and so is a socket."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with suppress(OSError):
                yield str(path), path.read_bytes()


def forms_of(secret: str) -> set[bytes]:
    """A text as it may stand in a file: as it is, in JSON, in an address, in base64 at any offset."""
    forms = {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}
    for offset in range(3):
        # Without the characters at both ends that its neighbours change too.
        encoded = base64.b64encode(b"\0" * offset + secret.encode()).decode().rstrip("=")
        forms.add(encoded[4:-2])
    return {form.encode() for form in forms}


def asked_of_aws(batch: LabBatch) -> list[tuple[str, bytes]]:
    """What every call said, user data also as the guest reads it. Uploads go from guests, and are no calls of ours."""
    found = []
    for call in list(batch.lab.calls):
        found.append((call.action, call.body))
        encoded = parse_qs(call.body.decode(errors="replace")).get("UserData", [])
        found += [(f"{call.action}: user data", base64.b64decode(one)) for one in encoded]
    return found


def is_playing(row: RolloutRow) -> bool:
    """Some turns are behind it, and some before it."""
    return row.phase is Phase.HANDED_OFF and row.turns >= 2


def break_calls(batch: LabBatch, row: RolloutRow) -> bool:
    """From here on each kind of call fails once; before it was the preflight that asked."""
    for action in CALLS_THAT_FAIL:
        batch.lab.faults.add(action, code="InternalError", status=500)
    batch.lab.faults.add("RunInstances", "drop_after")
    return True


def kill_plugin(batch: LabBatch, row: RolloutRow) -> bool:
    """Its tunnel dies."""
    pid = batch.plugin_of(row)
    return pid is not None and signal_plugin(pid, signal.SIGKILL)


@pytest.mark.skipif(not HAS_KEYRING, reason="no kernel keyring here: a broker's token cannot be known")
@pytest.mark.parametrize("mode", ["process", "shared"])
def test_the_secrets_of_ec2_hosts_stay_where_they_belong(tmp_path: Path, mode: str) -> None:
    """Broker tokens, AWS's keys, tokens of sessions and presigned requests, while calls and tunnels fail."""
    with lab_batch(tmp_path, count=3, turns=10, wait_s=0.3, mode=mode) as batch:
        batch.lab.plugin.fail_next(PluginFaults(start="exits", says="Cannot perform start session: EOF\n"))
        eye = Eye(batch)
        batch.live.start()

        with watching(ProcessWatch(os.getpid()), also=eye.look) as watch:
            status = batch.go_on(Strike("r-0", lambda row: True, break_calls), Strike("r-1", is_playing, kill_plugin))

        sessions = {token for one in batch.lab.sessions.all.values() for token in one.tokens}
        tokens = set(eye.tokens.values())
        secrets = {*sessions, *tokens, SECRET_KEY}
        forms = {form for secret in secrets for form in forms_of(secret)} | {PRESIGNED.encode()}
        files = [*contents_below(tmp_path), *eye.private.items()]

        assert 0 == status, batch.said()
        assert {Outcome.SCORED} == {row.outcome for row in batch.state().rollouts}
        assert 3 == len(tokens)
        assert len(sessions) >= 5
        assert len(files) > 50
        assert [] == [name for name, content in files if any(form in content for form in forms)]
        assert [] == [name for name, body in asked_of_aws(batch) if any(form in body for form in forms)]
        assert any(name == "RunInstances: user data" for name, _ in asked_of_aws(batch))
        assert [] == [command for command in watch.commands.values() if any(form.decode() in command for form in forms)]
        _assert_held_by_their_own(watch, tokens=tokens, sessions=sessions)
        held = {variables.get(BROKER_TOKEN_VARIABLE, "") for variables in watch.environments.values()} - {""}
        assert (tokens if mode == "process" else set()) == held
        batch.assert_nothing_is_left()


def _assert_held_by_their_own(watch: ProcessWatch, *, tokens: set[str], sessions: set[str]) -> None:
    plugins = watch.named(NAME)
    pilots = {pid for pid, command in watch.commands.items() if command.rstrip().endswith("-m pilot")}
    guests = watch.named("broker.instance")
    controllers = watch.named("supervisor.cli")
    assert plugins
    assert len(guests) >= 3
    for pid, variables in watch.environments.items():
        for name, value in variables.items():
            if pid in plugins and name == RESPONSE_VARIABLE:
                # A plugin knows its own session and no other.
                assert 1 == sum(token in value for token in sessions)
                continue
            assert not any(token in value for token in sessions), (watch.commands[pid], name)
            if any(token in value for token in tokens):
                assert (True, BROKER_TOKEN_VARIABLE) == (pid in pilots, name), watch.commands[pid]
            if SECRET_KEY in value:
                assert pid in plugins | controllers, watch.commands[pid]
            assert PRESIGNED not in value
