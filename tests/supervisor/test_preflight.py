"""Preflight finds every mistake of a config in one pass, names each by code, field and hint, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.evaluator.version import EVALUATOR_VERSION
from supervisor.issues import CONFIG_CODES, EC2_CODES, PREFLIGHT_CODES
from supervisor.machine import MissingProgram

MIB = 1024**2


def _at(*path: Any, value: Any) -> Callable[[Any], None]:
    """A change of the config: set what stands at `path`."""

    def change(world: Any) -> None:
        holder = world.config
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = value

    return change


def _without(name: str) -> Callable[[Any], None]:
    return lambda world: world.config.pop(name)


def _machine(**fields: Any) -> Callable[[Any], None]:
    def change(world: Any) -> None:
        for name, value in fields.items():
            setattr(world.machine, name, value)

    return change


def _swap(world: Any) -> None:
    rollouts = world.config["rollouts"]
    rollouts[0], rollouts[1] = rollouts[1], rollouts[0]


def _vendor(world: Any) -> None:
    for entry in world.config["rollouts"]:
        entry.update(provider="openai", model="gpt")
    world.environment["OPENAI_API_KEY"] = "sk-canary-0123456789"
    world.config["pricing"] = "unpriced"
    # Nobody listens there: what lists say is tried in test_catalogs.py.
    world.config["endpoints"] = {"openai": "http://127.0.0.1:9/v1"}


def _exploit(name: str) -> Callable[[Any], None]:
    return lambda world: world.config["rollouts"][0].update(provider="exploit", model=name)


def _profile(name: str | None, *, provider: str = "openai", model: str = "gpt", **rows: Any) -> Callable[[Any], None]:
    def change(world: Any) -> None:
        world.config["rollouts"][0].update(provider=provider, model=model)
        if name is not None:
            world.config["rollouts"][0]["profile"] = name
        world.config.pop("task_suite")
        world.config["profiles"] = rows

    return change


def _limited(name: str, pricing: str) -> Callable[[Any], None]:
    def change(world: Any) -> None:
        _vendor_with(pricing=pricing, key=False)(world)
        world.config["limits"] = {name: "5"}

    return change


def _mantle(world: Any) -> None:
    world.config["rollouts"][0].update(provider="mantle", model="moonshotai.kimi-k2.5")
    world.config.pop("task_suite")


def _vendor_with(*, pricing: str | None, key: bool) -> Callable[[Any], None]:
    def change(world: Any) -> None:
        _vendor(world)
        world.config["pricing"] = pricing
        if not key:
            world.environment.clear()

    return change


def _replay(script: str | None) -> Callable[[Any], None]:
    def change(world: Any) -> None:
        (world.root / "empty.jsonl").write_text("")
        world.config["rollouts"][0].update(provider="replay")
        if script is not None:
            world.config["rollouts"][0]["script"] = script
        world.config.pop("task_suite")

    return change


def _oracle(turns: Any) -> Callable[[Any], None]:
    return lambda world: world.write_oracle("line", turns)


def _judge(world: Any) -> None:
    world.config["judge"] = {"judge_id": "vj-1", "provider": "openai", "model": "gpt"}


def _spoil(path: str, content: bytes | None) -> Callable[[Any], None]:
    """Replace a file of the repository, or remove it."""

    def change(world: Any) -> None:
        if content is None:
            (world.root / path).unlink()
        else:
            (world.root / path).write_bytes(content)

    return change


def _edit_task(**fields: Any) -> Callable[[Any], None]:
    def change(world: Any) -> None:
        path = world.task_dir("line") / "task.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def _other_reference(world: Any) -> None:
    content = b"another picture"
    (world.task_dir("line") / "reference.png").write_bytes(content)
    _edit_task(reference_sha256=hashlib.sha256(content).hexdigest())(world)


def _second_suite(world: Any) -> None:
    shutil.copytree(world.root / "suites" / "tiny-suite", world.root / "suites" / "other")
    world.config.pop("task_suite")


FINISH = {"type": "finish", "status": "done", "summary": ""}
SUITE = "suites/tiny-suite"

# What is done to a good repository, and the one code (with its field and exit code) that must come of it.
MISTAKES: list[tuple[str, str | None, int, Callable[[Any], None]]] = [
    ("unknown_field", "colour", 2, _at("colour", value=1)),
    ("unknown_field", "host.colour", 2, _at("host", "colour", value=1)),
    ("unknown_field", "rollouts[1].colour", 2, _at("rollouts", 1, "colour", value=1)),
    ("missing_field", "benchmark", 2, _without("benchmark")),
    ("missing_field", "host.kind", 2, _at("host", value={})),
    ("wrong_type", "expected_rollouts", 2, _at("expected_rollouts", value="3")),
    ("wrong_value", "mode", 2, _at("mode", value="threads")),
    ("wrong_value", "host", 2, _at("host", "kind", value="vm")),
    ("wrong_value", "rollouts[0].provider", 2, _at("rollouts", 0, "provider", value="orcale")),
    ("out_of_range", "max_concurrency", 2, _at("max_concurrency", value=0)),
    ("duplicate_rollout_id", "rollouts[2].rollout_id", 3, _at("rollouts", 2, "rollout_id", value="oracle-dot")),
    ("duplicate_assignment", "rollouts[2]", 3, _at("rollouts", 2, "task", value="dot")),
    ("rollout_count", "expected_rollouts", 3, _at("expected_rollouts", value=4)),
    ("rollout_count", "expected_rollouts", 3, _at("expected_rollouts", value=2)),
    (
        "nothing_enabled",
        "rollouts",
        3,
        lambda world: [entry.update(enabled=False) for entry in world.config["rollouts"]],
    ),
    ("broker_version_unsupported", "broker_version", 3, _at("broker_version", value="9.9")),
    ("endpoint_invalid", "endpoints.openai", 3, _at("endpoints", value={"openai": "http://example.com/v1"})),
    ("endpoint_invalid", "endpoints.openai", 3, _at("endpoints", value={"openai": "https://user:pw@example.com"})),
    ("endpoint_invalid", "endpoints.openai", 3, _at("endpoints", value={"openai": "file:///etc/passwd"})),
    ("endpoint_unknown_provider", "endpoints.opnai", 3, _at("endpoints", value={"opnai": "https://example.com"})),
    ("suite_missing", "task_suite", 3, _at("task_suite", value="tiny-siute")),
    ("suite_invalid", "task_suite", 3, _spoil(f"{SUITE}/suite.json", b"{}")),
    ("suite_order", "rollouts[1]", 3, _swap),
    ("suite_mismatch", "rollouts[1].task", 3, _at("rollouts", 1, "task", value="lime")),
    ("task_missing", "rollouts[1].task", 3, _spoil(f"{SUITE}/line/task.json", None)),
    ("task_ambiguous", "task_suite", 3, _second_suite),
    ("task_invalid", "rollouts[1].task", 3, _spoil(f"{SUITE}/line/task.json", b"{")),
    ("task_invalid", "rollouts[1].task", 3, _edit_task(start_drawing="../dot/start.dxf")),
    ("task_file_missing", "rollouts[1].task", 3, _spoil(f"{SUITE}/line/start.dxf", None)),
    ("task_file_checksum", "rollouts[1].task", 3, _spoil(f"{SUITE}/line/reference.png", b"other")),
    ("oracle_missing", "rollouts[1].task", 3, _edit_task(oracle=None)),
    ("oracle_missing", "rollouts[1].task", 3, _spoil(f"{SUITE}/line/oracle.json", None)),
    ("oracle_invalid", "rollouts[1].task", 3, _spoil(f"{SUITE}/line/oracle.json", b"[]")),
    ("oracle_invalid", "rollouts[1].task", 3, _oracle([[{"type": "move", "x": 1920, "y": 0}], [FINISH]])),
    ("oracle_invalid", "rollouts[1].task", 3, _oracle([[{"type": "wait", "seconds": 1}]])),
    ("oracle_invalid", "rollouts[1].task", 3, _oracle([[FINISH], [FINISH]])),
    ("oracle_invalid", "rollouts[1].task", 3, _oracle([])),
    ("oracle_over_budget", "rollouts[0].task", 3, _at("limits", value={"actions": 2})),
    ("replay_script_missing", "rollouts[0].script", 3, _replay(None)),
    ("replay_script_missing", "rollouts[0].script", 3, _replay("no/such.jsonl")),
    ("replay_script_invalid", "rollouts[0].script", 3, _replay("empty.jsonl")),
    ("exploit_unknown", "rollouts[0].model", 3, _exploit("duplicate")),
    ("profile_unknown", "rollouts[0].profile", 3, _profile("openai-response")),
    ("profile_unknown", "rollouts[0].profile", 3, _profile(None, provider="mantle", model="moonshotai.kimi-k9")),
    ("profile_wrong_provider", "rollouts[0].profile", 3, _profile("mantle-responses")),
    ("profile_invalid", "profiles.mine.images_maxx", 3, _profile(None, mine={"images_maxx": 1})),
    ("profile_invalid", "profiles.m.1.extends", 3, _profile("m.1", **{"m.1": {"extends": "openai-respones"}})),
    ("profile_invalid", "profiles.mine.wire", 3, _profile(None, mine={"extends": "openai-responses", "wire": "x"})),
    ("wrong_value", "aws.region", 2, _at("aws", value={"region": "us east"})),
    ("unknown_field", "aws.regio", 2, _at("aws", value={"region": "us-east-1", "regio": "x"})),
    ("aws_region_missing", "aws.region", 3, _mantle),
    ("cost_limit_unpriced", "limits.cost_usd", 3, _limited("cost_usd", "unpriced")),
    ("cost_limit_unpriced", "limits.batch_cost_usd", 3, _limited("batch_cost_usd", "prices.json")),
    ("credential_missing", "rollouts[0].provider", 3, _vendor_with(pricing="unpriced", key=False)),
    ("pricing_required", "pricing", 3, _vendor_with(pricing=None, key=True)),
    ("price_missing", "rollouts[0].model", 3, _vendor_with(pricing="prices.json", key=True)),
    ("pricing_missing", "pricing", 3, _at("pricing", value="no-prices.json")),
    ("pricing_invalid", "pricing", 3, _spoil("prices.json", b'{"rows": {"a/b": {"input": 1.5, "output": "2"}}}')),
    ("judge_credential_missing", "judge.provider", 3, _judge),
    ("judge_uncalibrated", "judge.judge_id", 3, _judge),
    ("judge_unpriced", "judge.model", 3, _judge),
    ("cache_missing", "evaluator.gold_cache", 3, _at("evaluator", "gold_cache", value="no-gold")),
    ("cache_missing", "evaluator.gold_cache", 3, _spoil("gold/ezdxf-1.0.0/line/render.png", None)),
    ("cache_checksum", "evaluator.gold_cache", 3, _spoil("gold/ezdxf-1.0.0/line/render.png", b"rendez")),
    ("cache_schema", "evaluator.gold_cache", 3, _spoil("gold/manifest.json", b"{}")),
    ("gold_mismatch", "evaluator.gold_cache", 3, _edit_task(placement="translation")),
    ("gold_mismatch", "evaluator.gold_cache", 3, _other_reference),
    ("evaluator_version_mismatch", "evaluator.version", 3, _machine(evaluator_version="2.0.0")),
    ("evaluator_version_mismatch", None, 3, _at("evaluator", "version", value="1.0.1")),
    ("program_missing", "host.driver", 3, _machine(missing=(MissingProgram("Xvfb", "xvfb"),))),
    ("no_isolation", "host.isolation", 3, _machine(is_isolated=False)),
    ("no_display", None, 3, _machine(display="/tmp/.X11-unix is not a folder that we may write to")),
    ("memory_too_small", "host", 3, _machine(memory_total_bytes=500 * MIB, memory_available_bytes=400 * MIB)),
    ("memory_in_use", "host", 3, _machine(memory_available_bytes=400 * MIB)),
]


@pytest.mark.parametrize(
    ("code", "field", "exit_code", "mistake"), MISTAKES, ids=[f"{row[0]}-{index}" for index, row in enumerate(MISTAKES)]
)
def test_each_mistake_has_its_code_its_field_and_a_hint(
    plan_world: Any, code: str, field: str | None, exit_code: int, mistake: Callable[[Any], None]
) -> None:
    """An operator finds the place and the remedy in the plan, without reading our code."""
    mistake(plan_world)

    ran = plan_world.plan()

    assert code in ran.codes
    issue = ran.issue(code)
    assert field is None or field == issue["field"]
    assert len(issue["hint"]) > 5
    assert "\n" not in issue["message"]
    assert exit_code == ran.exit_code
    assert not ran.plan["ok"]
    assert "Traceback" not in ran.stderr


def test_a_right_config_has_no_issue_and_every_check_ran(plan_world: Any) -> None:
    """The table above proves something only if the untouched repository passes."""
    ran = plan_world.plan("--output-dir", str(plan_world.root / "runs" / "new"))

    assert [] == ran.plan["issues"]
    assert 0 == ran.exit_code
    assert ran.plan["ok"]
    assert "tiny" == ran.plan["benchmark"]
    skipped = {check["name"] for check in ran.plan["checks"] if check["status"] == "skipped"}
    no_use = {"aws_account", "aws_catalogs", "judge", "model_catalogs", "replay_scripts", "run_folder"}
    for_ec2 = {check["name"] for check in ran.plan["checks"] if check["detail"] == "no EC2 host"}
    assert no_use | for_ec2 == skipped
    nothing = {"currency": "USD", "expected": "0", "worst_case": "0", "rollouts_not_estimated": 0, "assumptions": {}}
    assert nothing == ran.plan["cost"]


def test_an_unknown_exploit_is_told_the_nearest_known_one(plan_world: Any) -> None:
    """A misspelt adversary would otherwise start a host and end as a pilot's error."""
    _exploit("duplicate")(plan_world)
    wrong = plan_world.plan()
    _exploit("duplicates")(plan_world)
    right = plan_world.plan()

    assert "Did you mean 'duplicates'?" in wrong.issue("exploit_unknown")["hint"]
    assert "exploit_unknown" not in right.codes


def test_every_listed_code_is_tried() -> None:
    """A code that no test provokes may have stopped working."""
    elsewhere = {
        "config_missing",
        "config_not_json",
        "duplicate_key",
        "secret_in_config",
        # test_bad_configs.py
        "credential_invalid",
        "output_exists",
        "output_in_run_folder",
        "output_not_writable",
        "disk_space",
        "run_folder_invalid",
        "run_folder_in_use",
        "config_changed",
        "check_failed",
        # test_preflight_ec2.py
        *EC2_CODES,
        # test_judge_preflight.py
        "judge_model_unknown",
        # test_catalogs.py
        "aws_credentials_missing",
        "catalog_refused",
        "catalog_unreachable",
        "model_inactive",
        "model_needs_profile",
        "model_no_image_input",
        "model_unknown",
    }

    tried = {row[0] for row in MISTAKES}

    assert CONFIG_CODES | PREFLIGHT_CODES == tried | elsewhere


def test_many_mistakes_are_all_reported_in_one_pass(plan_world: Any) -> None:
    """An operator mends a config once, not once for each mistake; a broken entry hides nothing of its neighbours."""
    config = plan_world.config
    config["colour"] = "red"
    config["host"]["lease_s"] = -1
    config["broker_version"] = "9.9"
    config["pricing"] = "no-prices.json"
    config["rollouts"] += [
        {"rollout_id": "oracle-dot", "task": "dot", "provider": "noop", "model": "m", "colour": 1},
        {"rollout_id": "broken"},
        {"rollout_id": "other", "task": "dot", "provider": "noop", "model": "m"},
    ]
    (plan_world.root / "gold/ezdxf-1.0.0/box/metadata.json").write_bytes(b"{}")
    (plan_world.root / SUITE / "line/start.dxf").unlink()
    plan_world.machine.missing = (MissingProgram("openbox", "openbox"), MissingProgram("librecad", "librecad"))
    (plan_world.root / "out").mkdir()
    (plan_world.root / "out" / "old.txt").write_text("old")

    ran = plan_world.plan("--output-dir", str(plan_world.root / "out"))

    expected = {
        "unknown_field": 2,
        "missing_field": 3,
        "out_of_range": 1,
        "duplicate_rollout_id": 1,
        "duplicate_assignment": 1,
        "rollout_count": 1,
        "broker_version_unsupported": 1,
        "pricing_missing": 1,
        "task_file_missing": 1,
        "cache_checksum": 1,
        "program_missing": 2,
        "output_exists": 1,
    }
    assert expected == {code: ran.codes.count(code) for code in ran.codes}
    assert 2 == ran.exit_code


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "config_not_json"),
        (b"[]", "config_not_json"),
        (b'{"a": 1,}', "config_not_json"),
        (b'{"a": NaN}', "unknown_field"),
        (b"\xff\xfe", "config_not_json"),
        (b"[" * 100_000, "config_not_json"),
        (b'{"mode": "process", "mode": "shared"}', "duplicate_key"),
    ],
)
def test_a_file_that_is_no_json_object_still_gives_a_plan(plan_world: Any, content: bytes, code: str) -> None:
    """stdout is one JSON document whatever stands in the file."""
    plan_world.config_path.write_bytes(content)

    ran = plan_world.batch("--config", str(plan_world.config_path))

    assert code in ran.codes
    assert 2 == ran.exit_code
    assert "autocad-bench.plan/1" == ran.plan["schema"]


def test_a_missing_config_is_an_issue_and_the_output_folder_is_checked_all_the_same(plan_world: Any) -> None:
    """A check needs what it needs and nothing else."""
    plan_world.machine.writable = False

    ran = plan_world.batch("--config", str(plan_world.root / "no.json"), "--output-dir", str(plan_world.root / "o"))

    assert ["config_missing", "output_not_writable"] == ran.codes
    assert 2 == ran.exit_code


def test_a_check_without_its_input_is_skipped_and_says_what_it_needs(plan_world: Any) -> None:
    """A skipped check is not a passed one."""
    plan_world.config["rollouts"] = "all"

    ran = plan_world.plan()

    checks = {check["name"]: check for check in ran.plan["checks"]}
    assert "skipped" == checks["gold_cache"]["status"]
    assert "needs rollouts" == checks["gold_cache"]["detail"]
    assert "ok" == checks["broker_version"]["status"]
    assert ["wrong_type"] == ran.codes


def test_fewer_rollouts_need_an_explicit_word(plan_world: Any) -> None:
    """A smaller batch is an intention, never an accident."""
    plan_world.config["rollouts"][1]["enabled"] = False

    without, with_flag = plan_world.plan(), plan_world.plan("--allow-partial")

    assert ["rollout_count", "suite_mismatch"] == without.codes
    assert [] == with_flag.codes


def test_a_partial_batch_keeps_the_order_of_its_suite(plan_world: Any) -> None:
    """--allow-partial leaves tasks out; it does not shuffle them."""
    rollouts = plan_world.config["rollouts"]
    plan_world.config["rollouts"] = [rollouts[2], rollouts[0]]

    ran = plan_world.plan("--allow-partial")

    assert ["suite_order"] == ran.codes


def test_two_models_may_be_interleaved(plan_world: Any) -> None:
    """The suite's order is a promise to each model, not to the file."""
    noops = [
        {"rollout_id": f"noop-{task}", "task": task, "provider": "noop", "model": "idle"}
        for task in ("dot", "line", "box")
    ]
    oracles = plan_world.config["rollouts"]
    plan_world.config["rollouts"] = [entry for pair in zip(noops, oracles, strict=True) for entry in pair]
    plan_world.config["expected_rollouts"] = 6

    assert [] == plan_world.plan().codes


def test_two_profiles_of_one_model_are_two_assignments(plan_world: Any) -> None:
    """A profile changes what the model is asked with, so it is part of who plays."""
    for entry in list(plan_world.config["rollouts"]):
        other = {**entry, "rollout_id": f"b-{entry['task']}", "profile": "other"}
        plan_world.config["rollouts"].append(other)
    plan_world.config["expected_rollouts"] = 6

    assert [] == plan_world.plan().codes


def test_disabled_rollouts_need_no_gold_and_no_key(plan_world: Any) -> None:
    """What is not played is not paid for, in checks either."""
    plan_world.config["rollouts"].append(
        {"rollout_id": "later", "task": "nothing", "provider": "openai", "model": "gpt", "enabled": False}
    )

    assert [] == plan_world.plan().codes


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/v1", "http://[::1]/v1", "http://localhost:1", "https://a.b/v1"])
def test_endpoints_are_encrypted_or_loopback(plan_world: Any, url: str) -> None:
    """A test server on this machine needs no certificate."""
    plan_world.config["endpoints"] = {"openai": url}

    assert [] == plan_world.plan().codes


def test_isolation_may_be_waived_in_writing(plan_world: Any) -> None:
    """A machine without walls can be used by an operator who says so in the config."""
    plan_world.machine.is_isolated = False
    plan_world.config["host"]["isolation"] = "none"

    assert [] == plan_world.plan().codes


def test_the_paper_driver_needs_no_program_and_no_display(plan_world: Any) -> None:
    """Tests of whole batches run where nothing is installed."""
    plan_world.config["host"]["driver"] = "paper"
    plan_world.machine.missing = (MissingProgram("Xvfb", "xvfb"),)
    plan_world.machine.display = "no /tmp"
    plan_world.machine.is_isolated = False

    assert [] == plan_world.plan().codes


def test_no_output_stands_inside_of_another_batch(plan_world: Any) -> None:
    """A re-run of the nightly's rollout must not end up in the nightly's record."""
    nightly = plan_world.root / "nightly"
    (nightly / "rollouts" / "r-1").mkdir(parents=True)
    (nightly / "batch-state.json").write_text("{}")
    (plan_world.root / "link").symlink_to(nightly / "rollouts")

    assert ["output_in_run_folder"] == plan_world.plan("--output-dir", str(nightly / "rollouts/r-1/again")).codes
    assert ["output_in_run_folder"] == plan_world.plan("--output-dir", str(plan_world.root / "link" / "again")).codes
    assert [] == plan_world.plan("--output-dir", str(plan_world.root / "nightly-again")).codes


def test_the_output_folder_may_be_empty_but_not_used(plan_world: Any) -> None:
    """A batch never writes into an old one."""
    out = plan_world.root / "out"
    out.mkdir()
    empty = plan_world.plan("--output-dir", str(out))
    (out / "batch-state.json").write_text("{}")
    used = plan_world.plan("--output-dir", str(out))
    a_file = plan_world.plan("--output-dir", str(plan_world.config_path))
    below_a_file = plan_world.plan("--output-dir", str(plan_world.config_path / "out"))

    assert [[], ["output_exists"], ["output_exists"]] == [empty.codes, used.codes, a_file.codes]
    assert "output_not_writable" in below_a_file.codes or "output_exists" in below_a_file.codes
    assert 3 == used.exit_code


def test_a_full_or_read_only_disk_is_found_before_launch(plan_world: Any) -> None:
    """A disk that fills up in the middle voids rollouts that were paid for."""
    plan_world.machine.free = 210 * MIB
    full = plan_world.plan("--output-dir", str(plan_world.root / "out"))
    plan_world.machine.writable = False
    read_only = plan_world.plan("--output-dir", str(plan_world.root / "a" / "b"))

    assert ["disk_space"] == full.codes
    assert ["output_not_writable", "disk_space"] == read_only.codes


def test_a_check_that_stops_is_an_issue_and_the_others_go_on(plan_world: Any) -> None:
    """One bug of ours must not hide what the other checks found."""

    def refuse() -> str | None:
        raise RuntimeError("no answer")

    plan_world.machine.display = None
    broken = type("Broken", (type(plan_world.machine),), {"display_problem": lambda self: refuse()})
    plan_world.machine = broken()
    plan_world.config["broker_version"] = "0"

    ran = plan_world.plan()

    assert ["broker_version_unsupported", "check_failed"] == ran.codes
    assert 3 == ran.exit_code


def test_keys_appear_nowhere_even_when_the_operator_pasted_one(plan_world: Any) -> None:
    """The plan is printed, stored and mailed around."""
    canaries = {
        "OPENAI_API_KEY": "sk-canary-openai-123",
        "OPENROUTER_API_KEY": "sk-canary-router-123",
        "ANTHROPIC_API_KEY": "sk-canary-anthropic-123",
        "FIREWORKS_API_KEY": "sk-canary-fireworks-123",
        "AWS_SECRET_ACCESS_KEY": "canary-aws-123",
    }
    plan_world.environment.update(canaries)
    _vendor_with(pricing="prices.json", key=True)(plan_world)
    plan_world.environment.update(canaries)
    plan_world.config["rollouts"][0]["model"] = canaries["OPENAI_API_KEY"]
    plan_world.config["endpoints"] = {"openai": f"https://{canaries['ANTHROPIC_API_KEY']}@example.com"}
    plan_world.config[canaries["FIREWORKS_API_KEY"]] = 1

    ran = plan_world.plan()

    assert "secret_in_config" in ran.codes
    assert [] == [name for name, value in canaries.items() if value in ran.stdout + ran.stderr]


def test_a_plan_writes_nothing_and_reads_no_other_environment(
    plan_world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan may run beside a nightly, on a read-only disk, by a user who may not write."""
    plan_world.write_config()
    monkeypatch.chdir(tmp_path)
    before, environment = plan_world.snapshot(), dict(os.environ)

    plan_world.batch("--config", str(plan_world.config_path), "--output-dir", str(plan_world.root / "out"))

    assert before == plan_world.snapshot()
    assert environment == dict(os.environ)
    assert ["repository"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("digest", ["0" * 64, "1" * 64])
def test_a_gold_that_another_font_or_library_made_is_a_warning(plan_world: Any, digest: str) -> None:
    """What may differ is small: the operator decides, before anything is paid for."""
    plan_world.machine.evaluator_digest = digest
    ran = plan_world.plan()
    (check,) = [check for check in ran.plan["checks"] if check["name"] == "gold_cache"]

    is_other = digest == "1" * 64
    assert (0, "ok", is_other) == (ran.exit_code, check["status"], "another font" in check["detail"])
    assert is_other == ("warning: 3 gold entries wanted" in ran.stderr)


@pytest.mark.parametrize("name", ["local-demo.json", "benchmark.example.json"])
def test_shipped_configs_pass_every_check(plan_world: Any, name: str) -> None:
    """The demo and the example are played from an empty clone without a key."""
    plan_world.machine.evaluator_version = EVALUATOR_VERSION

    ran = plan_world.batch("--config", str(Path(__file__).parents[2] / "configs" / name))

    assert [] == ran.plan["issues"]
    assert 0 == ran.exit_code


@pytest.mark.parametrize(
    ("profile", "rows", "near"),
    [
        ("openai-response", {}, "'openai-responses'"),
        ("openai-mien", {"openai-mine": {"extends": "openai-responses"}}, "'openai-mine'"),
    ],
)
def test_an_unknown_profile_is_answered_with_the_nearest_one(
    plan_world: Any, profile: str, rows: dict[str, Any], near: str
) -> None:
    """A letter that was mistyped is mended without opening our code; rows of the config count too."""
    _profile(profile, **rows)(plan_world)

    assert near in plan_world.plan().issue("profile_unknown")["hint"]


def test_an_unknown_provider_is_answered_with_the_nearest_one(plan_world: Any) -> None:
    """The first field that people mistype."""
    plan_world.config["rollouts"][0]["provider"] = "antropic"

    assert "'anthropic'" in plan_world.plan().issue("wrong_value")["hint"]


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/v1",
        "http://127.0.0.1.example.com",
        "https://key@example.com",
        "https://example.com/v1?key=1",
        "https://example.com/v1?",
        "https://example.com/#top",
        "https://exa mple.com",
        "ftp://127.0.0.1",
        "example.com",
        "",
    ],
)
def test_a_key_is_never_sent_to_an_address_that_is_not_right(plan_world: Any, url: str) -> None:
    """Neither readable on the way, nor beside another secret; the plan does not ask there either."""
    _vendor(plan_world)
    plan_world.config["endpoints"] = {"openai": url}

    codes = plan_world.plan().codes

    assert "endpoint_invalid" in codes
    assert "catalog_unreachable" not in codes
