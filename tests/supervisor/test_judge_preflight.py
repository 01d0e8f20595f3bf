"""A judge that cannot be asked is refused in the plan, with file and reason; and the plan says what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from contract.ambient import Ambient
from contract.evaluation_records import EvaluatorName
from contract.records import write_record
from evaluator_client.judge_calibration import calibration_path
from supervisor.checks.subject import Options
from supervisor.config_reading import read_config
from supervisor.credentials import keys_in
from supervisor.judge_admission import judge_of
from supervisor.judge_cost import judge_estimate
from supervisor.preflight import Overrides, Preflight, run_preflight
from tests.judge_fakes import PRICE, calibration, judge_config
from tests.list_server import KEYS, ListServer, list_server

KEY = KEYS["OPENAI_API_KEY"]
PRICES = {
    "schema": "autocad-bench.prices/1",
    "rows": {"openai/seer-1": {"input": "2", "cached_input": "0.5", "output": "10"}},
}
ROW = {"input": "1", "output": "1"}
LIST = "/openai/v1/models"
EZDXF = EvaluatorName(name="ezdxf", version="1.0.0")


@pytest.fixture(scope="module")
def lists() -> Iterator[ListServer]:
    """OpenAI's list, with the judge's model in it."""
    with list_server() as server:
        server.bodies[LIST]["data"].append({"id": "seer-1", "object": "model"})
        yield server


@pytest.fixture
def judged(plan_world: Any, lists: ListServer) -> Any:
    """The tiny repository with a judge that may be used."""
    plan_world.config["endpoints"] = {"openai": lists.endpoints["openai"]}
    plan_world.config["judge"] = {"judge_id": "vj-1", "provider": "openai", "model": "seer-1"}
    plan_world.environment["OPENAI_API_KEY"] = KEY
    (plan_world.root / "prices.json").write_text(json.dumps(PRICES))
    path = calibration_path(plan_world.root / "gold", EZDXF, "vj-1")
    path.parent.mkdir()
    write_record(path, calibration(judge_config(), "ezdxf 1.0.0"))
    return plan_world


def preflight_of(world: Any) -> Preflight:
    return run_preflight(
        read_config(world.write_config()),
        options=Options(),
        overrides=Overrides(),
        keys=keys_in(world.environment),
        machine=world.machine,
    )


def test_a_judge_with_key_record_and_price_is_admitted_and_its_cost_is_in_the_plan(judged: Any) -> None:
    """The model costs nothing here, so the whole cost is the judge's: three drawings."""
    ran = judged.plan()
    one = judge_estimate(judge_config(), PRICE)
    cost = ran.plan["cost"]

    assert (0, True) == (ran.exit_code, ran.plan["ok"])
    assert (9, 45) == (cost["judge"]["expected_answers"], cost["judge"]["worst_case_answers"])
    assert cost["expected"] == cost["judge"]["expected"]
    assert abs(Decimal(cost["expected"]) - 3 * one.expected) <= Decimal("0.0001")
    assert Decimal(cost["worst_case"]) >= 3 * one.worst_case
    assert {"expected": "0", "worst_case": "0"}.items() <= ran.plan["rollouts"][0]["cost"].items()
    assert 3 == ran.plan["rollouts"][0]["cost"]["judge"]["expected_answers"]


def _without_key(world: Any) -> None:
    world.environment.clear()


def _without_record(world: Any) -> None:
    calibration_path(world.root / "gold", EZDXF, "vj-1").unlink()


def _torn_record(world: Any) -> None:
    calibration_path(world.root / "gold", EZDXF, "vj-1").write_bytes(b'{"judge_id": "vj-1"')


def _without_row(world: Any) -> None:
    (world.root / "prices.json").write_text(json.dumps({**PRICES, "rows": {}}))


def _without_prices(world: Any) -> None:
    world.config["pricing"] = None


@pytest.mark.parametrize(
    ("change", "code", "field", "words"),
    [
        (_without_key, "judge_credential_missing", "judge.provider", "OPENAI_API_KEY"),
        (_without_record, "judge_uncalibrated", "judge.judge_id", "vj-1.json"),
        (_torn_record, "judge_uncalibrated", "judge.judge_id", "vj-1.json"),
        (_without_row, "judge_unpriced", "judge.model", "openai/seer-1"),
        (_without_prices, "judge_unpriced", "pricing", "names no prices"),
    ],
)
def test_what_a_judge_lacks_is_one_issue_with_its_place_and_an_order(
    judged: Any, change: Callable[[Any], None], code: str, field: str, words: str
) -> None:
    """Nothing is launched for a judge that could only fail at the end of every rollout."""
    change(judged)
    ran = judged.plan()
    issue = ran.issue(code)

    assert (3, [code], field) == (ran.exit_code, ran.codes, issue["field"])
    assert words in issue["message"]
    assert issue["hint"].endswith(".")


def test_an_operator_may_accept_unknown_costs(judged: Any) -> None:
    """As with models: the word is `unpriced`, and the plan knows no sum then."""
    judged.config["pricing"] = "unpriced"
    ran = judged.plan()

    assert (0, None, None) == (ran.exit_code, ran.plan["cost"]["expected"], ran.plan["cost"]["judge"]["worst_case"])


def test_a_model_that_the_live_list_lacks_is_refused(judged: Any, lists: ListServer) -> None:
    """The list that a rollout's model is looked up in has no `seer-2`."""
    judged.config.pop("task_suite")
    judged.config["judge"]["model"] = "seer-2"
    path = calibration_path(judged.root / "gold", EZDXF, "vj-1")
    write_record(path, calibration(judge_config(model="seer-2"), "ezdxf 1.0.0"))
    judged.config["expected_rollouts"] = 1
    judged.config["rollouts"] = [{"rollout_id": "r", "task": "dot", "provider": "openai", "model": "gpt-5.6-sol"}]
    prices = {**PRICES, "rows": {**PRICES["rows"], "openai/gpt-5.6-sol": ROW, "openai/seer-2": ROW}}  # type: ignore[dict-item]
    (judged.root / "prices.json").write_text(json.dumps(prices))
    ran = judged.plan()

    assert (["judge_model_unknown"], "judge.model") == (ran.codes, ran.issue("judge_model_unknown")["field"])


def test_the_key_goes_to_the_judge_and_to_no_pilot(judged: Any) -> None:
    """No rollout here is OpenAI's, so no rollout is given its key; and no text of the batch holds it."""
    prepared = preflight_of(judged).prepared
    assert prepared is not None
    judge = judge_of(prepared, Ambient())

    assert {} == prepared.credentials
    assert judge is not None
    assert prepared.judge_key is not None
    assert KEY == prepared.judge_key.get_secret_value()
    assert KEY not in repr(prepared) + repr(judge) + prepared.config_bytes.decode()


@pytest.mark.parametrize(
    ("field", "value"),
    [("repeats", 1), ("repeats", 8), ("deadline_s", 5), ("max_output_tokens", 10), ("detail", "low"), ("model", "")],
)
def test_a_judge_that_the_contract_does_not_allow_is_no_config(judged: Any, field: str, value: Any) -> None:
    """One repeat would show one order only; unknown fields are refused."""
    judged.config["judge"][field] = value
    ran = judged.plan()

    assert 2 == ran.exit_code
    assert f"judge.{field}" == ran.plan["issues"][0]["field"]
