"""Whatever a config, its path or its surroundings are, a plan is one JSON document with every mistake in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from supervisor.config_reading import read_config


def _issues(ran: Any) -> list[tuple[str, str]]:
    return [(issue["code"], issue.get("field", "")) for issue in ran.plan["issues"]]


def _with_text(world: Any, old: str, new: str) -> Any:
    """Plan the config with a change that no JSON writer would make."""
    text = json.dumps(world.config)
    assert old in text
    world.config_path.write_text(text.replace(old, new))
    return world.batch("--config", str(world.config_path))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        ("NaN", "wrong_type"),
        ("1e400", "wrong_type"),
        ("-Infinity", "wrong_type"),
        ("9" * 30, "out_of_range"),
        ("9" * 5_000, "wrong_type"),
    ],
)
def test_a_number_that_is_none_has_its_field_and_hides_no_other_mistake(
    plan_world: Any, number: str, code: str
) -> None:
    """A limit that is beyond every number must be neither `no limit` nor the only thing that is said."""
    plan_world.config |= {"limits": {"actions": 77}, "colour": 1}

    ran = _with_text(plan_world, "77", number)

    assert [(code, "limits.actions"), ("unknown_field", "colour")] == _issues(ran)
    assert 2 == ran.exit_code


def test_a_limit_of_money_beyond_every_number_is_not_no_limit(plan_world: Any) -> None:
    """JSON writers turn infinity into null, and null means that a rollout may cost whatever it costs."""
    plan_world.config["limits"] = {"cost_usd": 77}

    assert [("wrong_type", "limits.cost_usd")] == _issues(_with_text(plan_world, "77", "1e400"))


@pytest.mark.parametrize("amount", ["1e400", "1e999999999", "1e-999999999", "NaN", "Infinity", "-1", "0"])
def test_an_amount_of_money_is_one_that_can_be_written_down(plan_world: Any, amount: str) -> None:
    """A record holds all digits of an amount; a short text must not become a gigabyte."""
    plan_world.config["limits"] = {"batch_cost_usd": amount}

    assert [("out_of_range", "limits.batch_cost_usd")] == _issues(plan_world.plan())


def test_every_repeated_key_is_said_with_its_place(plan_world: Any) -> None:
    """The last of two values would silently win, in each of the entries."""
    ran = _with_text(plan_world, '"provider": "oracle"', '"provider": "noop", "provider": "oracle"')

    assert [("duplicate_key", f"rollouts[{index}].provider") for index in range(3)] == _issues(ran)
    assert 2 == ran.exit_code


def test_an_entry_without_a_right_id_is_checked_like_the_others(plan_world: Any) -> None:
    """Whoever mends the id has not to plan again to learn that task and key are wrong too."""
    plan_world.config["rollouts"][0] = {"rollout_id": "Not an id", "task": "dto", "provider": "openai", "model": "gpt"}
    plan_world.config |= {"pricing": "unpriced", "task_suite": None}

    ran = plan_world.plan("--skip-direct-model-check")

    assert [
        ("wrong_value", "rollouts[0].rollout_id"),
        ("task_missing", "rollouts[0].task"),
        ("credential_missing", "rollouts[0].provider"),
        ("cache_missing", "evaluator.gold_cache"),
    ] == _issues(ran)
    assert 2 == ran.exit_code


@pytest.mark.parametrize("depth", [150, 205, 300, 20_000])
def test_a_deep_document_is_refused_in_words(plan_world: Any, depth: int) -> None:
    """Three readers take three depths; none of them may end the command."""
    plan_world.config["x"] = 77

    ran = _with_text(plan_world, "77", "[" * depth + "]" * depth)

    expected = ("unknown_field", "x") if depth < 200 else ("config_not_json", "")
    assert [expected] == _issues(ran)


def test_a_config_that_lies_nowhere_is_refused_without_waiting(plan_world: Any) -> None:
    """Nobody may ever write into a named pipe, and relative paths would start nowhere."""
    pipe, loop = plan_world.root / "pipe", plan_world.root / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)

    for path in (pipe, loop, plan_world.root, Path("/dev/null"), plan_world.root / ("x" * 300)):
        assert ["config_missing"] == plan_world.batch("--config", str(path)).codes


def test_a_folder_that_cannot_be_resumed_is_not_told_to_name_a_config(plan_world: Any) -> None:
    """A hint is an order for the command that was given."""
    ran = plan_world.batch("--resume", str(plan_world.root / "none"))

    assert ["config_missing", "run_folder_invalid"] == ran.codes
    assert {"Name the folder of an interrupted batch with --resume."} == {issue["hint"] for issue in ran.plan["issues"]}


@pytest.mark.parametrize(
    ("place", "code_of_null_byte", "code_of_long_name"),
    [
        (("pricing",), "pricing_missing", "pricing_invalid"),
        (("task_suites_dir",), "suite_missing", "suite_invalid"),
        (("evaluator", "gold_cache"), "cache_missing", "cache_missing"),
        (("rollouts", 0, "script"), "replay_script_missing", "replay_script_invalid"),
    ],
)
def test_a_path_that_no_file_can_have_is_one_issue(
    plan_world: Any, place: tuple[Any, ...], code_of_null_byte: str, code_of_long_name: str
) -> None:
    """A name that the system refuses to look up is a mistake like any other, and hides none."""
    if place[-1] == "script":
        plan_world.config["rollouts"][0]["provider"] = "replay"
        plan_world.config.pop("task_suite")
    holder = plan_world.config
    for part in place[:-1]:
        holder = holder[part]

    for name, code in (("a\0b", code_of_null_byte), ("x" * 300, code_of_long_name)):
        holder[place[-1]] = name
        ran = plan_world.plan()

        assert ([code], 3) == (ran.codes, ran.exit_code)


@pytest.mark.parametrize("name", ["y" * 300, "caf\udce9"])
def test_an_output_folder_that_cannot_be_made_is_one_issue(plan_world: Any, name: str) -> None:
    """Not found out after the first host was launched."""
    ran = plan_world.plan("--output-dir", str(plan_world.root / name))

    assert [("output_not_writable", "--output-dir")] == _issues(ran)


@pytest.mark.parametrize("key", ["sk-canary-01234\n", "sk-canary-01\r\nx: y", "sk-canary-01234 ", "sk-canary-é01234"])
def test_a_key_that_no_header_can_carry_is_found_before_launch(plan_world: Any, key: str) -> None:
    """A key that was pasted with its line end would otherwise end a rollout on a host that was paid for."""
    plan_world.config["rollouts"][0].update(provider="openai", model="gpt")
    plan_world.config |= {"pricing": "unpriced", "judge": {"judge_id": "vj-1", "provider": "openai", "model": "gpt"}}
    plan_world.config.pop("task_suite")
    plan_world.environment["OPENAI_API_KEY"] = key

    ran = plan_world.plan()

    invalid = [found for found in _issues(ran) if found[0] == "credential_invalid"]
    assert [("credential_invalid", "rollouts[0].provider"), ("credential_invalid", "judge.provider")] == invalid
    assert "catalog_unreachable" not in ran.codes
    assert "canary" not in ran.stdout + ran.stderr


def test_a_config_without_a_mistake_is_read_as_it_stands(plan_world: Any) -> None:
    """The reader mends nothing that is right."""
    plan_world.config["limits"] = {"cost_usd": "1.50"}

    reading = read_config(plan_world.write_config())

    assert ((), frozenset()) == (reading.issues, reading.draft.unusable)
    assert "1.50" == str(reading.draft.config.limits.cost_usd)
