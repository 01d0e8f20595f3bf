"""Steps 8 and 9 of the admission sequence against a server that has all six model lists, whole and broken."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from broker.evaluator.version import EVALUATOR_VERSION
from contract.profiles import PROFILES
from supervisor.catalogs.asking import asks_for, control_plane_of
from supervisor.catalogs.entries import Ask, Catalog, CatalogError, ListedModel, bare_model
from supervisor.catalogs.reading import read_catalogs
from supervisor.catalogs.verdicts import find
from supervisor.checks.subject import Options
from supervisor.choices import AwsAccount
from supervisor.config_reading import read_config
from supervisor.preflight import Overrides, run_preflight
from tests.list_server import (
    ACCESS_KEY,
    KEYS,
    PATHS,
    SECRET_KEY,
    Fault,
    ListServer,
    cut,
    cut_json,
    html,
    list_server,
    recorded,
    send,
    status,
    use_all,
)

KEY = SecretStr(KEYS["OPENAI_API_KEY"])


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


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Credentials of the environment, and nothing else of AWS: no shared files, no metadata service."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


@pytest.fixture
def world(plan_world: Any, server: ListServer) -> Any:
    """A config that plays one task with a model of every vendor, with every key set."""
    use_all(plan_world.config, server)
    plan_world.environment.update(KEYS)
    return plan_world


def _entry(world: Any, provider: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in world.config["rollouts"] if entry["provider"] == provider)
    return found


def _only(world: Any, provider: str, **fields: Any) -> None:
    """Play this provider's entry alone, changed by `fields`: the AWS lists cost a quarter of a second each time."""
    world.config["rollouts"] = [{**_entry(world, provider), **fields}]
    world.config["expected_rollouts"] = 1


def test_a_config_with_all_six_providers_is_planned_without_an_issue(world: Any, server: ListServer) -> None:
    """The two steps of the admission sequence, with every vendor's list; each is asked with its own credential."""
    ran = world.plan()

    assert [] == ran.plan["issues"]
    assert 0 == ran.exit_code
    checks = {check["name"]: check for check in ran.plan["checks"]}
    expected = "openai: 2 models, openrouter: 3 models, anthropic: 3 models, fireworks: 3 models"
    assert expected == checks["model_catalogs"]["detail"]
    assert "mantle: 2 models, bedrock: 6 models" == checks["aws_catalogs"]["detail"]
    assert {PATHS_OF[path] for path in PATHS} == {seen.path.split("?")[0].split("/")[1] for seen in server.seen}
    assert "anthropic-fable-messages" == ran.plan["rollouts"][2]["profile"]
    assert f"{server.root}/anthropic" == ran.plan["rollouts"][2]["endpoint"]
    assert "us-east-1" == ran.plan["rollouts"][4]["region"]


PATHS_OF = {path: path.split("/")[1] for path in PATHS}


def test_a_prepared_rollout_carries_its_profile_address_and_region(world: Any, server: ListServer) -> None:
    """What was checked is what is played: nothing is resolved a second time."""
    world.config["profiles"] = {"mine": {"extends": "mantle-kimi-k2.5-chat", "max_output_tokens": 1024}}
    _entry(world, "mantle")["profile"] = "mine"
    keys = {"openai": KEY, "openrouter": KEY, "anthropic": KEY, "fireworks": KEY}

    preflight = run_preflight(
        read_config(world.write_config()), options=Options(), overrides=Overrides(), keys=keys, machine=world.machine
    )

    assert () == preflight.issues
    assert preflight.prepared is not None
    rollouts = {rollout.assignment.provider: rollout for rollout in preflight.prepared.rollouts}
    mantle, openai = rollouts["mantle"], rollouts["openai"]
    assert mantle.facts is not None
    assert ("mine", 1024) == (mantle.profile_name, mantle.facts.max_output_tokens)
    assert (f"{server.root}/mantle/v1", "us-east-1") == (mantle.endpoint, mantle.region)
    assert ("openai-responses", f"{server.root}/openai/v1") == (openai.profile_name, openai.endpoint)
    assert PROFILES["openai-responses"] == openai.facts
    assert openai.region is None


def test_each_list_is_asked_as_its_vendor_wants_it(world: Any, server: ListServer) -> None:
    """Keys go into the vendor's own header; AWS requests are signed for their own service."""
    world.plan()

    seen = {each.path.split("?")[0]: each.headers for each in server.seen}
    assert f"Bearer {KEYS['OPENAI_API_KEY']}" == seen["/openai/v1/models"]["authorization"]
    assert f"Bearer {KEYS['OPENROUTER_API_KEY']}" == seen["/openrouter/api/v1/models"]["authorization"]
    assert KEYS["ANTHROPIC_API_KEY"] == seen["/anthropic/v1/models"]["x-api-key"]
    assert "2023-06-01" == seen["/anthropic/v1/models"]["anthropic-version"]
    signed = "content-type;host;x-amz-content-sha256;x-amz-date"
    mantle = seen["/mantle/v1/models"]["authorization"]
    assert "/us-east-1/bedrock-mantle/aws4_request" in mantle
    assert f"SignedHeaders={signed}," in mantle
    assert "/us-east-1/bedrock/aws4_request" in seen["/bedrock/foundation-models"]["authorization"]
    listed = [each.path for each in server.seen if each.path.startswith("/anthropic")]
    first = "/anthropic/v1/models?limit=1000"
    assert [first, f"{first}&after_id=claude-text-example"] == listed


def test_every_page_of_openrouter_is_read(world: Any, server: ListServer) -> None:
    """A model on the second page is as good as one on the first."""
    page = recorded("openrouter/list_models")
    second = {**page, "data": [{**page["data"][0], "id": "a/second"}], "links": {"next": None}}
    server.bodies["/openrouter/api/v1/models"] = {**page, "links": {"next": "/openrouter/api/v1/models2?offset=3"}}
    server.bodies["/openrouter/api/v1/models2"] = second
    _only(world, "openrouter", model="a/second")

    assert [] == world.plan().codes


@pytest.mark.parametrize(
    ("provider", "model", "code", "near"),
    [
        ("openai", "gpt-5.6-so", "model_unknown", "'gpt-5.6-sol'"),
        ("openrouter", "anthropic/claude-opus5", "model_unknown", "'anthropic/claude-opus-5'"),
        ("openrouter", "example/text-only", "model_no_image_input", ""),
        ("anthropic", "claude-opus-6", "model_unknown", "'claude-opus-5'"),
        ("anthropic", "claude-text-example", "model_no_image_input", ""),
        ("bedrock", "amazon.nova-pro-v1", "model_unknown", "'amazon.nova-pro-v1:0'"),
        ("bedrock", "eu.anthropic.claude-opus-5", "model_unknown", "'us.anthropic.claude-opus-5'"),
        ("bedrock", "openai.gpt-oss-120b-1:0", "model_no_image_input", ""),
        ("bedrock", "anthropic.claude-opus-5", "model_needs_profile", "'us.anthropic.claude-opus-5'"),
        ("bedrock", "example.retired-v1", "model_inactive", ""),
        ("mantle", "openai.gpt-oss-120", "model_unknown", "'openai.gpt-oss-120b'"),
        # Listed, but neither Mantle, nor Bedrock, nor anything here says that it reads images.
        ("mantle", "openai.gpt-oss-120b", "model_no_image_input", '"reads_images": true'),
    ],
)
def test_a_model_that_cannot_play_is_one_issue_with_its_remedy(
    world: Any, provider: str, model: str, code: str, near: str
) -> None:
    """A benchmark that finds this out at its first request has paid for a host already."""
    _only(world, provider, model=model)

    ran = world.plan()

    assert [code] == ran.codes
    issue = ran.issue(code)
    assert f"r-{provider}" == issue["rollout_id"]
    assert issue["field"].endswith("].model")
    assert repr(model) in issue["message"]
    assert near in issue["hint"]
    assert 3 == ran.exit_code


def test_a_models_list_that_cannot_say_is_helped_by_the_profile(world: Any) -> None:
    """The operator may know what no list says, and has to write it down."""
    entry = _entry(world, "mantle")
    entry["model"] = "openai.gpt-oss-120b"
    entry["profile"] = "mine"
    world.config["profiles"] = {"mine": {"extends": "mantle-responses", "reads_images": True}}

    assert [] == world.plan().codes


def test_a_list_that_denies_images_is_not_outvoted_by_a_profile(world: Any) -> None:
    """A fact that is pinned here may be old; the vendor's live word is not."""
    _only(world, "anthropic", model="claude-text-example", profile="mine")
    world.config["profiles"] = {"mine": {"extends": "anthropic-messages", "reads_images": True}}

    assert ["model_no_image_input"] == world.plan().codes


def test_older_lists_without_capabilities_leave_it_to_the_table(world: Any, server: ListServer) -> None:
    """What is missing from a list is unknown, not denied."""
    page = recorded("anthropic/list_models")
    server.bodies["/anthropic/v1/models"] = {
        "data": [{"id": item["id"]} for item in page["data"]],
        "has_more": False,
    }
    _only(world, "anthropic", model="claude-opus-5")
    known = world.plan().codes
    _only(world, "anthropic", model="claude-text-example")
    unknown = world.plan().codes

    assert [] == known
    assert ["model_no_image_input"] == unknown


def test_a_router_counts_where_it_is_listed_and_by_its_model_where_it_is_not(world: Any, server: ListServer) -> None:
    """Fireworks lists its routers for some accounts only; the control plane knows the model behind one."""
    _only(world, "fireworks")
    server.bodies["/fireworks/inference/v1/models"] = recorded("fireworks/list_models_with_router")
    listed = world.plan().codes
    asked = [seen.path for seen in server.seen if "/accounts/" in seen.path]
    server.bodies["/fireworks/inference/v1/models"] = recorded("fireworks/list_models")
    del server.bodies["/fireworks/v1/accounts/fireworks/models/kimi-k2p6"]
    gone = world.plan().codes

    assert [] == listed
    assert [] == asked
    assert ["model_unknown"] == gone


def test_bedrock_profiles_that_may_not_be_listed_are_resolved_by_their_name(world: Any, server: ListServer) -> None:
    """A role may list models and not profiles; the id says which model is behind it."""
    _only(world, "bedrock")
    server.faults["/bedrock/inference-profiles"] = status(403, b'{"message": "no"}')

    assert [] == world.plan().codes


LISTS = [(path.split("/")[1], path) for path in PATHS if "accounts" not in path and "profiles" not in path]


@pytest.mark.slow
@pytest.mark.parametrize(("provider", "path"), LISTS)
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (status(401), "catalog_refused"),
        (status(403), "catalog_refused"),
        (status(429), "catalog_unreachable"),
        (status(500), "catalog_unreachable"),
        (status(301, location="https://example.com/v1/models"), "catalog_unreachable"),
        (html, "catalog_unreachable"),
        (cut, "catalog_unreachable"),
        (cut_json, "catalog_unreachable"),
        (lambda handler: send(handler, 200, b"null"), "catalog_unreachable"),
        (lambda handler: send(handler, 200, b"[1]"), "catalog_unreachable"),
    ],
    ids=["401", "403", "429", "500", "301", "html", "cut", "cut-json", "null", "list"],
)
def test_a_list_that_cannot_be_had_says_why_and_shows_no_key(
    server: ListServer, provider: str, path: str, fault: Fault, code: str
) -> None:
    """A proxy's page, a cut answer or a refused key all end as one line with what to check."""
    server.faults[path] = fault
    keys = {"openai": KEY, "openrouter": KEY, "anthropic": KEY, "fireworks": KEY}
    account = AwsAccount("us-east-1", None)
    asks = asks_for({provider: []}, facts={}, endpoints=server.endpoints, keys=keys, account=account)

    answer = read_catalogs([ask for ask in asks if ask.provider == provider], deadline_s=60)[provider]

    assert isinstance(answer, CatalogError)
    assert code == answer.code
    assert provider in answer.message
    assert len(answer.hint) > 20
    assert not [key for key in (*KEYS.values(), SECRET_KEY) if key in answer.message + answer.hint]


@pytest.mark.parametrize("provider", ["anthropic", "mantle", "bedrock"])
def test_a_list_that_cannot_be_had_is_one_issue_of_that_provider_alone(
    world: Any, server: ListServer, provider: str
) -> None:
    """The other five are checked all the same, however many models of this one are configured."""
    for path in PATHS:
        if path.startswith(f"/{provider}/"):
            server.faults[path] = status(500)
    again = {**_entry(world, provider), "rollout_id": "again", "task": "line"}
    world.config["rollouts"] += [again]
    world.config["expected_rollouts"] += 1

    ran = world.plan()

    assert ["catalog_unreachable"] == ran.codes
    assert f"endpoints.{provider}" == ran.issue("catalog_unreachable")["field"]
    assert "Traceback" not in ran.stderr


def test_a_vendor_that_quotes_the_key_is_not_quoted_by_us(world: Any, server: ListServer) -> None:
    """OpenAI's 401 shows a part of the key; only its code is repeated."""
    key = KEYS["OPENAI_API_KEY"]
    _only(world, "openai")
    body = json.dumps({"error": {"code": "invalid_api_key", "message": f"Incorrect API key provided: {key}"}})
    server.faults["/openai/v1/models"] = status(401, body.encode())

    issue = world.plan().issue("catalog_refused")

    assert "invalid_api_key" in issue["message"]
    assert "OPENAI_API_KEY" in issue["hint"]
    assert key not in json.dumps(issue)


@pytest.mark.parametrize("key", ["sk-canary-with\nnewline-0123", "sk-canary-\u00e9-\u4e2d-0123456789"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(world: Any, key: str) -> None:
    """HTTP libraries quote such a value in their error."""
    _only(world, "openai")
    world.environment["OPENAI_API_KEY"] = key

    ran = world.plan()
    models = world.bench("models", "--provider", "openai", "--config", str(world.config_path))

    assert ["credential_invalid"] == ran.codes
    assert "no HTTP header may have" in models.stdout
    assert key not in ran.stdout + ran.stderr + models.stdout + models.stderr


def test_the_key_never_follows_a_page_to_another_host(server: ListServer) -> None:
    """A list that points elsewhere would be given the key by whoever follows it."""
    with list_server() as other:
        page = recorded("openrouter/list_models")
        server.bodies["/openrouter/api/v1/models"] = {
            **page,
            "links": {"next": f"{other.root}/openrouter/api/v1/models"},
        }
        ask = Ask("openrouter", f"{server.root}/openrouter/api/v1/models", key=KEY)

        answer = read_catalogs([ask])["openrouter"]

        assert isinstance(answer, CatalogError)
        assert "another host" in answer.message
        assert [] == other.seen


def test_pages_that_never_end_are_not_a_list(server: ListServer) -> None:
    """A server that repeats itself must not keep the plan for ever."""
    page = recorded("openrouter/list_models")
    server.bodies["/openrouter/api/v1/models"] = {**page, "links": {"next": "/openrouter/api/v1/models"}}
    ask = Ask("openrouter", f"{server.root}/openrouter/api/v1/models", key=KEY)

    answer = read_catalogs([ask], deadline_s=60)["openrouter"]

    assert isinstance(answer, CatalogError)
    assert "pages do not end" in answer.message


@pytest.mark.slow
def test_a_list_that_never_comes_costs_the_deadline_and_no_other_list(server: ListServer) -> None:
    """All are asked side by side; one that hangs says so and holds up nobody."""
    server.faults["/openai/v1/models"] = lambda handler: _hang(server)
    asks = [
        Ask("openai", f"{server.root}/openai/v1/models", key=KEY),
        Ask("anthropic", f"{server.root}/anthropic/v1/models", key=KEY),
    ]

    answers = read_catalogs(asks, deadline_s=5)

    slow, quick = answers["openai"], answers["anthropic"]
    assert isinstance(slow, CatalogError)
    assert "did not answer in time" in slow.message
    assert isinstance(quick, Catalog)


def _hang(server: ListServer) -> None:
    server.closing.wait()


def test_skipping_the_direct_check_leaves_the_aws_check(world: Any, server: ListServer) -> None:
    """--skip-direct-model-check is about providers with keys; step 9 has no such option."""
    for path in PATHS:
        if path.split("/")[1] not in ("mantle", "bedrock"):
            server.faults[path] = status(500)
    _entry(world, "bedrock")["model"] = "example.retired-v1"

    ran = world.plan("--skip-direct-model-check")

    assert ["model_inactive"] == ran.codes
    assert {"mantle", "bedrock"} == {seen.path.split("/")[1] for seen in server.seen}
    checks = {check["name"]: check["status"] for check in ran.plan["checks"]}
    assert "skipped" == checks["model_catalogs"]


def test_a_provider_without_a_key_is_not_asked(world: Any, server: ListServer) -> None:
    """The missing key is the issue; a second one about its list would say nothing new."""
    _only(world, "openai")
    del world.environment["OPENAI_API_KEY"]

    ran = world.plan()

    assert ["credential_missing"] == ran.codes
    assert [] == server.seen


def test_bedrocks_list_is_asked_for_mantles_models_too(world: Any, server: ListServer) -> None:
    """Mantle's list does not say what reads images; Bedrock's does."""
    _only(world, "mantle")
    whole = world.plan().codes
    server.faults["/bedrock/foundation-models"] = status(500)
    broken = world.plan()
    del world.config["endpoints"]["bedrock"]
    guessed = world.plan().codes

    assert [] == whole
    assert ["catalog_unreachable"] == broken.codes
    assert "endpoints.bedrock" == broken.issue("catalog_unreachable")["field"]
    # A stand-in for Mantle need not have Bedrock's lists; what is pinned here decides then.
    assert [] == guessed


def test_the_example_config_plans_with_all_its_models_enabled(
    plan_world: Any, server: ListServer, tmp_path: Path
) -> None:
    """What the example shows must work: ids, profiles and prices of all six vendors, and a sum for them."""
    repository = Path(__file__).parents[2]
    config = json.loads((repository / "configs" / "benchmark.example.json").read_text())
    for entry in config["rollouts"]:
        entry["enabled"] = True
    config["expected_rollouts"] = len(config["rollouts"])
    config["endpoints"] = server.endpoints
    config["pricing"] = str(repository / "configs" / "prices.json")
    config["task_suites_dir"] = str(repository / "configs" / "suites")
    config["evaluator"]["gold_cache"] = str(repository / "configs" / "gold")
    plan_world.config = config
    plan_world.environment.update(KEYS)
    plan_world.machine.evaluator_version = EVALUATOR_VERSION

    plan = plan_world.plan().plan

    assert [] == plan["issues"]
    assert 0 == plan["cost"]["rollouts_not_estimated"]
    assert float(plan["cost"]["expected"]) > 1


# --- the AWS account -----------------------------------------------------------------------------------------------


def test_missing_aws_credentials_are_named_before_any_list(
    world: Any, server: ListServer, aws: pytest.MonkeyPatch
) -> None:
    """No credentials is one issue, and AWS is not asked without them."""
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")

    ran = world.plan()

    assert ["aws_credentials_missing"] == ran.codes
    assert "aws.profile" == ran.issue("aws_credentials_missing")["field"]
    assert not {"mantle", "bedrock"} & {seen.path.split("/")[1] for seen in server.seen}


def test_an_unknown_aws_profile_is_answered_with_the_nearest_one(world: Any, tmp_path: Path) -> None:
    """Profiles are named in another file, so they are mistyped."""
    keys = "aws_access_key_id = A\naws_secret_access_key = canary-shared-secret\n"
    (tmp_path / "aws-credentials").write_text(f"[benchmarks]\n{keys}")
    world.config["aws"]["profile"] = "benchmark"
    unknown = world.plan()
    world.config["aws"]["profile"] = "benchmarks"
    known = world.plan()

    assert ["aws_credentials_missing"] == unknown.codes
    assert "'benchmarks'" in unknown.issue("aws_credentials_missing")["hint"]
    assert [] == known.codes
    assert "canary-shared-secret" not in unknown.stdout + known.stdout


def test_an_sso_session_that_is_over_says_how_to_log_in(world: Any, tmp_path: Path, aws: pytest.MonkeyPatch) -> None:
    """The commonest fault of a morning."""
    aws.setenv("HOME", str(tmp_path))
    lines = ["[profile work]", "sso_session = s", "sso_account_id = 123456789012", "sso_role_name = r"]
    lines += ["[sso-session s]", "sso_start_url = https://127.0.0.1:9/", "sso_region = us-east-1"]
    (tmp_path / "aws-config").write_text("\n".join(lines))
    world.config["aws"]["profile"] = "work"

    issue = world.plan().issue("aws_credentials_missing")

    assert "aws sso login --profile work" in issue["hint"]


def test_an_ec2_hosts_region_and_profile_pay_for_models_too() -> None:
    """One account for both is the common case; a config need not say it twice."""
    ask = asks_for(
        {"bedrock": ["m"]},
        facts={},
        endpoints={},
        keys={},
        account=AwsAccount("eu-west-1", "work"),
    )

    assert [Ask("bedrock", None, region="eu-west-1", aws_profile="work")] == ask


# --- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "endpoint", "url"),
    [
        ("openai", None, "https://api.openai.com/v1/models"),
        ("openai", "https://proxy.example/v1/", "https://proxy.example/v1/models"),
        ("openai", "https://proxy.example", "https://proxy.example/v1/models"),
        ("openrouter", None, "https://openrouter.ai/api/v1/models"),
        ("anthropic", None, "https://api.anthropic.com/v1/models"),
        ("anthropic", "http://127.0.0.1:1", "http://127.0.0.1:1/v1/models"),
        ("fireworks", None, "https://api.fireworks.ai/inference/v1/models"),
    ],
)
def test_a_list_is_beside_the_turns_of_its_provider(provider: str, endpoint: str | None, url: str) -> None:
    """Whoever has another address for turns has it for lists too."""
    endpoints = {provider: endpoint} if endpoint is not None else {}

    (ask,) = asks_for({provider: []}, facts={}, endpoints=endpoints, keys={provider: KEY}, account=None)

    assert url == ask.url


def test_mantle_has_one_list_whatever_the_route_of_a_model() -> None:
    """GPT models have a base path of their own, and stand in the same list."""
    asks = asks_for(
        {"mantle": ["openai.gpt-5.5"]},
        facts={"mantle": PROFILES["mantle-openai-responses"]},
        endpoints={},
        keys={},
        account=AwsAccount("us-west-2", None),
    )

    assert "https://bedrock-mantle.us-west-2.api.aws/v1/models" == asks[0].url
    assert Ask("bedrock", None, region="us-west-2") == asks[1]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (None, None),
        ("https://bedrock-runtime.us-east-1.amazonaws.com", "https://bedrock.us-east-1.amazonaws.com"),
        ("https://bedrock-runtime-fips.us-east-1.amazonaws.com", "https://bedrock-fips.us-east-1.amazonaws.com"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ],
)
def test_bedrocks_lists_are_on_its_control_plane(endpoint: str | None, expected: str | None) -> None:
    """The runtime's host has no lists; a stand-in has all paths."""
    assert expected == control_plane_of(endpoint)


@pytest.mark.parametrize(
    ("model", "bare"),
    [
        ("us.anthropic.claude-opus-5", "anthropic.claude-opus-5"),
        ("global.anthropic.claude-opus-5", "anthropic.claude-opus-5"),
        ("anthropic.claude-opus-5", "anthropic.claude-opus-5"),
        ("plain", "plain"),
    ],
)
def test_a_geography_in_front_of_an_id_is_no_part_of_the_model(model: str, bare: str) -> None:
    """Bedrock names inference profiles so."""
    assert bare == bare_model(model)


def test_an_alias_is_found_and_another_spelling_is_not() -> None:
    """Exact ids only: a model that is nearly the one is another model."""
    catalog = Catalog("openrouter", {"a/b": ListedModel("a/b")}, {"a/b-2026": "a/b"})

    assert "a/b" == getattr(find(catalog, "a/b-2026"), "model", None)
    assert find(catalog, "A/b") is None


# --- what a plan imports -------------------------------------------------------------------------------------------

SDKS = ("openai", "anthropic", "boto3", "botocore", "httpx", "httpx2")


def _planned(world: Any) -> tuple[list[str], set[str]]:
    arguments = ["--config", str(world.write_config())]
    code = (
        "import json, sys\n"
        "from supervisor.cli import batch\n"
        "from supervisor.entry import run\n"
        f"run(batch, {arguments!r}, program='p', environment={dict(world.environment)!r})\n"
        f"print(json.dumps(sorted(set({SDKS!r}) & set(sys.modules))), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    issues = json.loads(done.stdout)["issues"]
    return [issue["code"] for issue in issues], set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.slow
def test_a_plan_imports_no_sdk_and_boto3_only_for_aws(world: Any) -> None:
    """Anthropic's SDK alone takes three seconds to import; a plan asks lists and no model."""
    for entry in world.config["rollouts"]:
        entry["enabled"] = entry["provider"] not in ("mantle", "bedrock")
    world.config["expected_rollouts"] = 4
    direct_codes, direct = _planned(world)
    for entry in world.config["rollouts"]:
        entry["enabled"] = True
    world.config["expected_rollouts"] = 6
    _, all_six = _planned(world)

    assert not {code for code in direct_codes if code.startswith(("catalog", "model"))}
    assert set() == direct
    assert {"boto3", "botocore"} == all_six
