"""`models`: one document or one table with every vendor's list, and an exit code that a script can trust."""

from __future__ import annotations

import contextlib
import io
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.config import VENDOR_PROVIDERS
from supervisor.cli import VENDORS, autocad_bench
from supervisor.entry import run
from tests.list_server import ACCESS_KEY, KEYS, SECRET_KEY, ListServer, list_server, status, use_all


@pytest.fixture(scope="module")
def running() -> Iterator[ListServer]:
    """One server for all tests."""
    with list_server() as server:
        yield server


@pytest.fixture
def server(running: ListServer) -> ListServer:
    """All lists as recorded."""
    running.reset()
    return running


@pytest.fixture
def world(plan_world: Any, server: ListServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A config with a model of every vendor, every key, and AWS credentials of the environment."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    use_all(plan_world.config, server)
    plan_world.environment.update(KEYS)
    return plan_world


def _models(world: Any, *arguments: str) -> Any:
    return world.bench("models", "--config", str(world.write_config()), *arguments)


def test_every_list_is_in_one_document(world: Any) -> None:
    """Ids, image input with its source, and which rollouts use a model; unknown is null and stays null."""
    ran = _models(world)

    document = ran.plan
    assert 0 == ran.exit_code
    assert "autocad-bench.models/1" == document["schema"]
    assert document["ok"]
    assert "us-east-1" == document["region"]
    assert list(VENDOR_PROVIDERS) == [provider["provider"] for provider in document["providers"]]
    assert {"ok"} == {provider["status"] for provider in document["providers"]}
    images = {
        f"{provider['provider']}/{model['model']}": (model["image_input"], model["image_source"])
        for provider in document["providers"]
        for model in provider["models"]
    }
    assert (True, "table") == images["openai/gpt-5.6-sol"]
    assert (True, "list") == images["openrouter/anthropic/claude-opus-5"]
    assert (False, "list") == images["anthropic/claude-text-example"]
    assert (True, "list") == images["fireworks/accounts/fireworks/routers/kimi-k2p6-fast"]
    assert (True, "bedrock") == images["mantle/moonshotai.kimi-k2.5"]
    assert (None, None) == images["mantle/openai.gpt-oss-120b"]
    assert (False, "list") == images["bedrock/openai.gpt-oss-120b-1:0"]
    (sol,) = [model for model in document["providers"][0]["models"] if model["model"] == "gpt-5.6-sol"]
    assert ["r-openai"] == sol["rollouts"]


def test_a_configured_model_that_is_gone_ends_with_3(world: Any) -> None:
    """Disabled entries count: somebody asks before enabling them."""
    entry = world.config["rollouts"][0]
    entry.update(model="gpt-5.7", enabled=False)

    ran = _models(world, "--provider", "openai")

    assert 3 == ran.exit_code
    assert ["model_unknown"] == ran.codes
    assert "rollouts[0].model" == ran.issue("model_unknown")["field"]
    assert not ran.plan["ok"]


def test_a_list_that_cannot_be_had_ends_with_1_and_hides_no_other(world: Any, server: ListServer) -> None:
    """Seven of eight answers are worth printing."""
    server.faults["/openai/v1/models"] = status(401)

    ran = _models(world)

    states = {provider["provider"]: provider["status"] for provider in ran.plan["providers"]}
    assert {"openai": "failed"} == {name: state for name, state in states.items() if state != "ok"}
    assert "OPENAI_API_KEY" in ran.plan["providers"][0]["detail"]
    assert 1 == ran.exit_code


def test_one_provider_can_be_asked_alone(world: Any, server: ListServer) -> None:
    """A look at one list waits for no other."""
    ran = _models(world, "--provider", "anthropic", "--json")

    assert ["anthropic"] == [provider["provider"] for provider in ran.plan["providers"]]
    assert {"anthropic"} == {seen.path.split("/")[1] for seen in server.seen}
    assert 0 == ran.exit_code


@pytest.mark.parametrize(("arguments", "exit_code"), [((), 0), (("--provider", "openai"), 1)])
def test_a_provider_without_a_credential_is_skipped_unless_it_was_asked_for(
    plan_world: Any, arguments: tuple[str, ...], exit_code: int
) -> None:
    """Few people have accounts with all six."""
    ran = plan_world.bench("models", *arguments)

    assert {"skipped"} == {provider["status"] for provider in ran.plan["providers"]}
    assert "OPENAI_API_KEY is not set" == ran.plan["providers"][0]["detail"]
    assert exit_code == ran.exit_code


def test_the_region_of_the_command_line_outranks_the_configs(world: Any, server: ListServer) -> None:
    """Is the model there too? One option answers it."""
    ran = _models(world, "--region", "eu-west-1", "--provider", "mantle")

    assert "eu-west-1" == ran.plan["region"]
    mantle = next(seen for seen in server.seen if seen.path.startswith("/mantle"))
    assert "/eu-west-1/bedrock-mantle/" in mantle.headers["authorization"]


@pytest.mark.parametrize("region", ["useast1", "us-east-1.evil.example/", "us east 1", ""])
def test_a_region_that_is_none_is_refused(plan_world: Any, region: str) -> None:
    """It becomes part of a host name, to which a signed request goes."""
    ran = plan_world.bench("models", "--region", region)

    assert 2 == ran.exit_code
    assert "no AWS region" in ran.stderr


def test_a_config_that_cannot_be_read_ends_with_2(world: Any) -> None:
    """A list beside a config that was not understood would look like a check of it."""
    world.config["colour"] = 1

    ran = _models(world)

    assert 2 == ran.exit_code
    assert "colour" in ran.stderr
    assert "" == ran.stdout


def test_a_terminal_gets_a_table(world: Any) -> None:
    """People read tables, programs read JSON; --json gives it to people too."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def said(*more: str) -> str:
        out = Terminal()
        arguments = ["models", "--config", str(world.write_config()), "--provider", "openrouter", *more]
        with contextlib.redirect_stdout(out):
            run(autocad_bench, arguments, program="autocad-bench", environment=dict(world.environment))
        return out.getvalue()

    table, document = said(), said("--json")

    assert "example/text-only" in table
    assert "openrouter: 3 models" in table
    assert "autocad-bench.models/1" == json.loads(document)["schema"]


def test_no_key_is_printed(world: Any, server: ListServer) -> None:
    """Lists are pasted into issues."""
    for path in list(server.bodies):
        server.faults[path] = status(401, json.dumps({"error": {"code": KEYS["OPENAI_API_KEY"]}}).encode())

    ran = _models(world)

    assert not [key for key in (*KEYS.values(), SECRET_KEY) if key in ran.stdout + ran.stderr]


def test_the_command_names_every_vendor_and_is_a_script() -> None:
    """`--help` must not import the config's shapes, so the names stand twice."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    assert VENDOR_PROVIDERS == VENDORS
    assert "supervisor.cli:models_main" == project["scripts"]["autocad-bench-models"]
