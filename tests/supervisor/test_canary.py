"""Planted secrets: they are in no file, argv, log or environment but their own, while a batch runs and afterwards."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from pydantic import SecretStr

from contract.phases import Cause, Outcome
from contract.profiles import base_url, profile_of
from contract.rollout_records import BROKER_TOKEN_VARIABLE, PROVIDER_KEY_VARIABLE, ModelChoice
from supervisor.launch import PilotEnd, PilotSecrets, SharedPilot
from tests.fakes import TOKEN, FakeBroker, make_spec
from tests.live_batch import TASKS, LiveBatch
from tests.process_watch import ProcessWatch, watching
from tests.providers.faults import echo
from tests.providers.players import script
from tests.providers.playing import MODELS, PROVIDER_MODELS, REGION, frame_of, host_for_tests
from tests.providers.sigv4 import AwsSession
from tests.providers.simulator import Simulator

pytestmark = pytest.mark.slow

PLANTED = {
    "OPENAI_API_KEY": "canary-openai-2b7e151628aed2a6",
    "ANTHROPIC_API_KEY": "canary-anthropic-abf7158809cf4f3c",
    "AWS_SECRET_ACCESS_KEY": "canary-aws-3ad77bb40d7a3660",
    "AWS_PROFILE": "canary-profile-a89ecaf32466ef97",
    "HTTPS_PROXY": "http://canary-proxy-user:canary-f5d3d58503b9699d@127.0.0.1:1",
}
ALLOWED = {"PATH", "LANG", "TZ", "HOME", "LC_CTYPE"}
TAGS = {"AUTOCAD_BENCH_HOST_ID", "AUTOCAD_BENCH_BATCH_ID", "AUTOCAD_BENCH_ROLLOUT_ID"}
# What the broker sets for its evaluator, so that the same drawing gives the same bytes.
EVALUATOR = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED"}


def watch_of(batch: LiveBatch) -> ProcessWatch:
    """Everything below the controller. Between fork and exec a child still is a copy of it."""
    assert batch.process is not None
    return ProcessWatch(batch.process.pid, is_left_out=lambda command: "supervisor.cli" in command)


def broker_tokens(watch: ProcessWatch) -> set[str]:
    """The broker tokens of all pilots that were seen."""
    found = {variables.get(BROKER_TOKEN_VARIABLE) for variables in watch.environments.values()}
    return {token for token in found if token}


@pytest.mark.parametrize("mode", ["process", "shared"])
def test_secrets_stay_where_they_belong(tmp_path: Path, mode: str) -> None:
    """The controller's own environment is the only one that holds what was planted in it."""
    batch = LiveBatch(tmp_path / "batch", count=2, max_concurrency=2, turns=10, mode=mode, environment=PLANTED)
    batch.start()
    with watching(watch_of(batch)) as watch:
        code = batch.wait()
    secrets = {*PLANTED.values(), *broker_tokens(watch), "canary-"}
    files = [path for path in batch.folder.rglob("*") if path.is_file()]
    leaks = [(str(path), secret) for path in files for secret in secrets if secret.encode() in path.read_bytes()]

    assert 0 == code
    assert [Outcome.SCORED] * 2 == [row.outcome for row in batch.state().rollouts]
    assert [] == leaks
    assert [] == [command for command in watch.commands.values() if any(secret in command for secret in secrets)]
    pilots = {pid for pid, command in watch.commands.items() if command.rstrip().endswith("-m pilot")}
    brokers = {pid for pid, command in watch.commands.items() if command.rstrip().endswith("-m broker")}
    assert (2 if mode == "process" else 0, 2) == (len(pilots), len(brokers))
    for pid, variables in watch.environments.items():
        allowed = ALLOWED | ({BROKER_TOKEN_VARIABLE} if pid in pilots else TAGS | EVALUATOR)
        assert variables.keys() <= allowed, f"{watch.commands[pid]} has {sorted(variables.keys() - allowed)}"
        assert PROVIDER_KEY_VARIABLE not in variables
        if pid not in pilots:
            assert not any(secret in value for secret in secrets for value in variables.values())
    assert len(pilots) == len(broker_tokens(watch))


AWS_KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIACANARYLONGLIVED0",
    "AWS_SECRET_ACCESS_KEY": "canary-aws-long-lived-9f86d081884c7d65",
}
AWS_SESSION = AwsSession(
    "ASIACANARYSESSION000", "canary-aws-session-secret-2c26b46b", "canary-aws-session-token-fcde2b2e"
)


@contextmanager
def sts() -> Iterator[str]:
    """An STS that makes one session out of whatever keys sign the request. Gives its address."""
    ends = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    body = (
        '<GetSessionTokenResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetSessionTokenResult><Credentials>'
        f"<AccessKeyId>{AWS_SESSION.access_key}</AccessKeyId><SecretAccessKey>{AWS_SESSION.secret_key}</SecretAccessKey>"
        f"<SessionToken>{AWS_SESSION.token}</SessionToken><Expiration>{ends}</Expiration>"
        "</Credentials></GetSessionTokenResult></GetSessionTokenResponse>"
    ).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("mode", ["process", "shared"])
def test_the_secrets_of_vendors_stay_with_the_pilots_that_they_are_for(tmp_path: Path, mode: str) -> None:
    """All six providers play at once, and each of them repeats the caller's credentials, in an error and in an answer.

    A pilot of an AWS model has a token in the place of a key; the profile's keys and the session's stay where they are.
    """
    waits = [[{"type": "wait", "seconds": 0.1}]] * 3
    with Simulator(script(waits)) as simulator, sts() as sts_url:
        # The preflight reads lists with the operator's own keys; turns are asked for with the session's.
        simulator.aws.sessions += [AwsSession(*AWS_KEYS.values(), None), AWS_SESSION]
        for provider in simulator.endpoints:
            simulator.inject(provider, [echo(500), echo(200)])
        environment = {
            "OPENAI_API_KEY": simulator.keys["openai"],
            "OPENROUTER_API_KEY": simulator.keys["openrouter"],
            "ANTHROPIC_API_KEY": simulator.keys["anthropic"],
            "FIREWORKS_API_KEY": simulator.keys["fireworks"],
            **AWS_KEYS,
            "AWS_ENDPOINT_URL_STS": sts_url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }
        choices = [MODELS[name] for name in PROVIDER_MODELS]
        rollouts = [
            {"rollout_id": f"r-{provider}", "task": TASKS[number], "provider": provider, "model": model}
            for number, (provider, model) in enumerate(choices)
        ]
        config = {
            "rollouts": rollouts,
            "endpoints": simulator.endpoints,
            "aws": {"region": REGION},
            "pricing": "unpriced",
        }
        batch = LiveBatch(
            tmp_path / "batch",
            count=len(rollouts),
            max_concurrency=len(rollouts),
            mode=mode,
            environment=environment,
            config=config,
            options=("--skip-direct-model-check",),
        )
        batch.start()
        with watching(watch_of(batch)) as watch:
            code = batch.wait(180)
        refused, turns = simulator.refused, simulator.turns

    keys = dict(simulator.keys)
    held = {variables.get(PROVIDER_KEY_VARIABLE, "") for variables in watch.environments.values()}
    loans = held - {"", *keys.values()}
    aws = {*AWS_KEYS.values(), AWS_SESSION.secret_key, AWS_SESSION.token or ""}
    secrets = {*keys.values(), *aws, *loans, *broker_tokens(watch), "canary"}
    files = [path for path in batch.folder.rglob("*") if path.is_file()]
    said = (batch.folder / "stderr.txt").read_text()

    assert [] == refused
    signed = [seen.headers["authorization"] for seen in turns if seen.provider in simulator.signing_services]
    assert signed
    assert all(AWS_SESSION.access_key in header for header in signed)
    assert {"echo"} == {seen.fault for seen in turns if seen.status == 500}
    assert (0, [Outcome.SCORED] * len(rollouts)) == (code, [row.outcome for row in batch.state().rollouts]), said
    assert [] == [(str(path), secret) for path in files for secret in secrets if secret.encode() in path.read_bytes()]
    assert [] == [command for command in watch.commands.values() if any(secret in command for secret in secrets)]
    if mode == "process":
        assert 2 == len(loans)
    # A process that a pilot forks shows as a copy of it until it has become something else.
    holders: set[str] = set()
    for pid, variables in watch.environments.items():
        key = variables.pop(PROVIDER_KEY_VARIABLE, None)
        variables.pop(BROKER_TOKEN_VARIABLE, None)
        assert not any(secret in value for secret in secrets for value in variables.values()), watch.commands[pid]
        if key is not None:
            assert watch.commands[pid].rstrip().endswith("-m pilot")
            holders.add(key)
    assert ({*keys.values(), *loans} if mode == "process" else set()) == holders


def shapes_of_keys() -> list[str]:
    """Forty: the prefixes that vendors use, each before four kinds of random text. None of them is or was a key."""
    prefixes = (
        "sk-",
        "sk-proj-",
        "sk-svcacct-",
        "sk-or-v1-",
        "sk-ant-api03-",
        "sk-ant-oat01-",
        "fw_",
        "xai-",
        "AKIA",
        "",
    )
    shapes = []
    for prefix in prefixes:
        content = hashlib.sha256(f"canary {prefix}".encode()).digest()
        tails = (
            content.hex(),
            base64.urlsafe_b64encode(content).decode().rstrip("="),
            base64.b64encode(content).decode(),
            ".".join((content.hex()[:12], content.hex()[12:30], content.hex()[30:44])),
        )
        shapes += [prefix + tail for tail in tails]
    return shapes


def written_forms(secret: str) -> list[bytes]:
    """A text as it may stand in a file: as it is, in JSON, in an address, in base64."""
    forms = {secret, json.dumps(secret)[1:-1], secret.replace("/", "\\/"), quote(secret, safe="")}
    forms.add(base64.b64encode(secret.encode()).decode().rstrip("="))
    return [form.encode() for form in forms]


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_a_key_of_any_shape_leaves_no_trace(tmp_path: Path, name: str, capfd: Any, caplog: Any) -> None:
    """A provider that repeats it in an answer, and then in the refusal that ends the rollout, in forty shapes."""
    provider, model = MODELS[name]
    profile_name, facts = profile_of(provider, model)
    shapes = shapes_of_keys()
    ends: list[PilotEnd] = []

    async def play_all(simulator: Simulator) -> None:
        pilot = SharedPilot(max_concurrency=2)
        choice = ModelChoice(
            provider=provider,
            model=model,
            profile=profile_name,
            facts=facts,
            endpoint=base_url(facts, endpoint=simulator.endpoints[provider], region=None),
        )
        for number, shape in enumerate(shapes):
            folder = tmp_path / f"shape-{number}"
            reference = folder / "task" / "reference.png"
            reference.parent.mkdir(parents=True)
            reference.write_bytes(frame_of("reference"))
            simulator.keys[provider] = shape
            simulator.inject(provider, [echo(200), echo(401)])
            host = host_for_tests()
            with FakeBroker(host) as broker:
                spec = make_spec(folder, host, base_url=broker.base_url).model_copy(update={"choice": choice})
                secrets = PilotSecrets(SecretStr(TOKEN), SecretStr(shape))
                log, stop = folder / "log", anyio.Event()
                ends.append(await pilot.play(spec, secrets, log=log, stop=stop, on_progress=lambda progress: None))
        await pilot.aclose()

    with Simulator(script([[{"type": "wait", "seconds": 0.0}]] * 3)) as simulator:
        anyio.run(play_all, simulator)
    captured = capfd.readouterr()
    said = (captured.out + captured.err + caplog.text).encode()
    contents = [(str(path), path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()]

    assert 40 == len(set(shapes))
    states = [end.state for end in ends]
    assert [(1, Cause.PROVIDER_AUTH)] * 40 == [
        (state.turn, state.error.cause) if state is not None and state.error is not None else None for state in states
    ]
    for shape in shapes:
        forms = written_forms(shape)
        assert [] == [path for path, content in contents if any(form in content for form in forms)]
        assert not any(form in said for form in forms)
