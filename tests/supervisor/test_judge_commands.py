"""`gold calibrate` and `evaluate --judge-config`: a plan that asks nobody, and then answers that are kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.evaluator.version import EVALUATOR_VERSION
from contract.evaluation_records import EvaluatorName, Stage
from contract.judge_records import Calibration, JudgeResponses
from contract.records import read_record, write_record
from contract.run_dir import BatchDir
from contract.score_records import Score
from evaluator_client.collector import parse_metadata
from evaluator_client.gold import load_entry, verify_cache
from evaluator_client.judge_calibration import calibration_path
from evaluator_client.score import score_drawing
from evaluator_client.status import StatusFile
from tests.batch_fakes import START
from tests.judge_fakes import answer_text, calibration, judge_config
from tests.judge_server import JudgeServer, judge_server, refuses, says

GOLD = Path(__file__).resolve().parents[2] / "configs" / "gold"
EZDXF = EvaluatorName(name="ezdxf", version=EVALUATOR_VERSION)
KEY = "sk-canary-judge-0123456789abcdef"
PRICES = {
    "schema": "autocad-bench.prices/1",
    "rows": {"openai/seer-1": {"input": "2", "cached_input": "0.5", "output": "10"}},
}


@dataclass
class Bench:
    """The tiny repository with real golds, a judge in its config, and the stand-in that it is asked at."""

    world: Any
    server: JudgeServer

    @property
    def gold(self) -> Path:
        folder: Path = self.world.root / "gold"
        return folder

    @property
    def record(self) -> Path:
        return calibration_path(self.gold, EZDXF, "vj-1")

    def calibrate(self, *arguments: str) -> Any:
        return self.world.bench("gold", "calibrate", "--config", str(self.world.write_config()), *arguments)

    def record_it(self) -> None:
        """A record as an honest judge gets it."""
        self.record.parent.mkdir()
        write_record(self.record, calibration(judge_config(), f"ezdxf {EVALUATOR_VERSION}"))

    def evaluate(self, batch: Path, *arguments: str) -> Any:
        config = str(self.world.write_config())
        return self.world.bench("evaluate", str(batch), "--judge-config", config, *arguments)


@pytest.fixture
def bench(plan_world: Any) -> Iterator[Bench]:
    shutil.rmtree(plan_world.root / "gold")
    shutil.copytree(GOLD, plan_world.root / "gold", ignore=shutil.ignore_patterns("sources"))
    (plan_world.root / "prices.json").write_text(json.dumps(PRICES))
    plan_world.environment["OPENAI_API_KEY"] = KEY
    plan_world.config["evaluator"]["version"] = EVALUATOR_VERSION
    plan_world.config["judge"] = {"judge_id": "vj-1", "provider": "openai", "model": "seer-1"}
    with judge_server() as server:
        plan_world.config["endpoints"] = {"openai": server.endpoint}
        yield Bench(plan_world, server)


def test_without_execute_nobody_is_asked_and_the_cost_is_known(bench: Bench) -> None:
    """Five golds in six pairs, each three times; the bound is far above the expectation."""
    ran = bench.calibrate()
    cost = ran.plan["cost"]

    assert (0, True, 30) == (ran.exit_code, ran.plan["ok"], ran.plan["drawings"])
    assert 0 < float(cost["expected"]) < float(cost["worst_case"])
    assert not bench.server.seen
    assert not bench.record.exists()


@pytest.mark.slow
def test_an_honest_judge_gets_a_record_with_its_numbers_and_its_cost(bench: Bench, tmp_path: Path) -> None:
    """90 answers of 0.0024 USD each; the cache is as whole as before, and every answer is kept."""
    ran = bench.calibrate("--execute", "--output-dir", str(tmp_path / "answers"))
    record = read_record(bench.record, Calibration)

    assert (0, []) == (ran.exit_code, json.loads(ran.stdout)["faults"])
    assert (90, "0.2160", ["seer-1-2026-09-01"]) == (
        len(bench.server.seen),
        f"{record.cost_usd:.4f}",
        record.models_reported,
    )
    assert all(gold.same >= 0.95 and gold.blank <= 0.1 and gold.other <= 0.3 for gold in record.golds)
    assert 30 == len(list((tmp_path / "answers").rglob("responses.json")))
    assert [] == verify_cache(bench.gold)
    assert KEY not in "".join(path.read_text() for path in (tmp_path / "answers").rglob("*.json"))


@pytest.mark.slow
def test_a_judge_that_flatters_is_refused_with_its_reasons(bench: Bench, tmp_path: Path) -> None:
    """A model that says 4 to everything tells nothing apart, and gets no record."""
    bench.server.usual = says(answer_text(4))
    ran = bench.calibrate("--execute", "--output-dir", str(tmp_path))
    document = json.loads(ran.stdout)

    assert (1, False, None) == (ran.exit_code, document["ok"], document["file"])
    assert any("beside an empty sheet is 1.0" in fault for fault in document["faults"])
    assert not bench.record.exists()


@pytest.mark.slow
def test_a_calibration_that_broke_off_goes_on_where_it_was(bench: Bench, tmp_path: Path) -> None:
    """What was answered is not asked for again."""
    bench.server.answers = [*[bench.server.usual] * 40, *[refuses] * 30]
    first = bench.calibrate("--execute", "--output-dir", str(tmp_path))
    stored = [read_record(path, JudgeResponses) for path in tmp_path.rglob("responses.json")]
    answered = sum(attempt.outcome == "ok" for responses in stored for attempt in responses.attempts)
    bench.server.answers = []
    bench.server.seen.clear()
    again = bench.calibrate("--execute", "--output-dir", str(tmp_path))

    assert (1, 0, 90) == (first.exit_code, again.exit_code, answered + len(bench.server.seen))
    assert answered >= 40 - 4
    assert "judge" in first.stderr


def test_a_record_is_never_written_over(bench: Bench, tmp_path: Path) -> None:
    """A cache is immutable; another calibration is another judge."""
    bench.record_it()
    ran = bench.calibrate("--execute", "--output-dir", str(tmp_path / "b"))

    assert 2 == ran.exit_code
    assert "never edited" in ran.stderr


def test_a_judge_that_cannot_be_asked_is_refused_with_every_reason(bench: Bench) -> None:
    """Key, price and address in one pass; nobody is asked, with --execute or without."""
    bench.world.environment.clear()
    bench.world.config["judge"]["model"] = "seer-2"
    bench.world.config["endpoints"]["openai"] = "http://example.com/v1"
    ran = bench.calibrate("--execute", "--output-dir", "unused")

    assert (3, ["judge_credential_missing", "judge_unpriced", "endpoint_invalid"]) == (ran.exit_code, ran.codes)
    assert not bench.server.seen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config.update(judge=None), "has no judge"),
        (lambda config: config["judge"].update(detail="low"), "detail"),
        (lambda config: config.update(pricing="none.json"), "none.json"),
    ],
)
def test_a_config_that_cannot_be_used_is_wrong_usage(bench: Bench, change: Any, words: str) -> None:
    """One line names what is wrong."""
    change(bench.world.config)
    ran = bench.calibrate()

    assert 2 == ran.exit_code
    assert words in ran.stderr


def test_four_golds_are_too_few(bench: Bench) -> None:
    """The demand is at least five."""
    ran = bench.calibrate(*(part for task in ("plate", "stair", "shaft", "gasket") for part in ("--task", task)))

    assert 1 == ran.exit_code
    assert "at least 5 golds" in ran.stderr


def archived(bench: Bench, folder: Path) -> BatchDir:
    """A batch of three rollouts, of which `oracle-dot` was scored, without a judge."""
    batch_dir = BatchDir(folder)
    run_dir = batch_dir.rollout("oracle-dot")
    status = StatusFile(run_dir.evaluation, EZDXF, utc_now=lambda: START)
    for stage in (Stage.EXPORTING, Stage.EXPORTED, Stage.RENDERING, Stage.RENDERED, Stage.SCORING):
        status.enter(stage)
    entry = bench.gold / f"ezdxf-{EVALUATOR_VERSION}" / "plate"
    for source, dest in (("metadata.json", run_dir.evaluation.metadata), ("render.png", run_dir.evaluation.render)):
        shutil.copyfile(entry / source, dest)
    gold = load_entry(bench.gold, "plate", evaluator_name="ezdxf", evaluator_version=EVALUATOR_VERSION)
    content = run_dir.evaluation.metadata.read_bytes()
    scored = score_drawing(
        candidate=parse_metadata(content, source="metadata.json"),
        render=gold.render,
        gold=gold,
        candidate_sha256=hashlib.sha256(content).hexdigest(),
    )
    run_dir.evaluation.score.write_bytes(scored.score_json)
    status.enter(Stage.SCORED)
    status.enter(Stage.COMPLETE)
    config = {**bench.world.config, "judge": None}
    config["evaluator"] = {**config["evaluator"], "gold_cache": str(bench.gold)}
    batch_dir.config.write_text(json.dumps(config))
    return batch_dir


def test_a_stored_drawing_is_shown_to_a_judge_only_when_it_is_calibrated_and_told_to(
    bench: Bench, tmp_path: Path
) -> None:
    """First refused, then planned, then judged; the first score stays."""
    batch_dir = archived(bench, tmp_path / "batch")
    evaluation = batch_dir.rollout("oracle-dot").evaluation
    before = evaluation.score.read_bytes()
    refused = bench.evaluate(batch_dir.root, "--execute")
    bench.record_it()
    bench.server.seen.clear()
    planned = bench.evaluate(batch_dir.root)
    seen_by_plan = len(bench.server.seen)
    judged = bench.evaluate(batch_dir.root, "oracle-dot", "--execute", "--json")
    again = read_record(evaluation.rescore(1).score, Score)

    assert (3, ["judge_uncalibrated"]) == (refused.exit_code, refused.codes)
    assert str(bench.record) in refused.issue("judge_uncalibrated")["message"]
    assert (0, 1, ["oracle-dot"], 0) == (
        planned.exit_code,
        planned.plan["drawings"],
        planned.plan["rollouts"],
        seen_by_plan,
    )
    assert (0, 3, 1.0, "deterministic+judge") == (
        judged.exit_code,
        len(bench.server.seen),
        again.final,
        again.final_basis,
    )
    assert before == evaluation.score.read_bytes()


def test_no_file_of_an_evaluation_holds_a_secret_a_pixel_or_a_path(bench: Bench, tmp_path: Path) -> None:
    """Not even when the server quotes the key: canaries in the environment, searched for in every file."""
    bench.record_it()
    bench.world.environment |= {"ANTHROPIC_API_KEY": "sk-ant-canary-0123456789", "AWS_SECRET_ACCESS_KEY": "canary-aws"}
    bench.server.usual = says(answer_text(evidence=f"Bearer {KEY} at {bench.server.endpoint}"))
    batch_dir = archived(bench, tmp_path / "batch")
    ran = bench.evaluate(batch_dir.root, "oracle-dot", "--execute")
    texts = {path.name: path.read_text() for path in batch_dir.rollouts.rglob("vision-judge/*.json")}

    assert 0 == ran.exit_code
    assert {"request.json", "responses.json", "score.json"} == set(texts)
    for word in (KEY, "canary", "authorization", "cookie", "data:image", "base64", "ivbor", str(tmp_path)):
        assert word not in "".join(texts.values()).casefold() + ran.stdout + ran.stderr, word


def test_one_rollout_that_cannot_be_judged_does_not_keep_the_others(bench: Bench, tmp_path: Path) -> None:
    """Two were never scored; the table says so, and has final scores beside deterministic ones."""
    bench.record_it()
    ran = bench.evaluate(archived(bench, tmp_path / "batch").root, "--execute")

    assert 1 == ran.exit_code
    assert "new final" in ran.stdout
    assert 2 == ran.stdout.count("never scored")


def test_execute_alone_is_wrong_usage(bench: Bench, tmp_path: Path) -> None:
    """Without a judge nothing here asks anybody."""
    ran = bench.world.bench("evaluate", str(tmp_path), "--execute")

    assert 2 == ran.exit_code


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "seer-2"}, "another model"),
        ({"prompt_version": "0.9"}, "another prompt_version"),
        ({"prompt_sha256": "0" * 64}, "another prompt_sha256"),
        ({"schema_sha256": "0" * 64}, "another schema_sha256"),
        ({"evaluator": "ezdxf 0.0.1"}, "another evaluator"),
        ({"parameters": {"max_output_tokens": 2000, "detail": "high", "reasoning_effort": "high"}}, "parameters"),
        ({"golds": []}, "0 golds"),
        ({"calibration_version": 2}, "calibration_version"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_the_record_of_another_judge_does_not_count(
    bench: Bench, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """A new model, prompt or schema needs new numbers; the message names the file and what differs."""
    bench.record_it()
    record = json.loads(bench.record.read_bytes())
    bench.record.write_text(json.dumps({**record, **change}))
    ran = bench.evaluate(archived(bench, tmp_path / "batch").root)

    assert ["judge_uncalibrated"] == ran.codes
    assert words in ran.issue("judge_uncalibrated")["message"]
    assert str(bench.record) in ran.issue("judge_uncalibrated")["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("same", 0.94, "beside itself"),
        ("blank", 0.11, "empty sheet"),
        ("other", 0.31, "beside"),
        ("missing", [{"share": s, "score": 0.5} for s in (0.25, 0.5, 0.75)], "does not fall"),
        ("missing", [{"share": 0.25, "score": 0.5}], "does not fall"),
    ],
)
def test_numbers_that_were_edited_below_the_demand_do_not_count(
    bench: Bench, tmp_path: Path, field: str, value: Any, words: str
) -> None:
    """Each demand of the contract is checked again whenever the record is read."""
    bench.record_it()
    record = read_record(bench.record, Calibration).model_dump(mode="json")
    record["golds"][2][field] = value
    write_record(bench.record, Calibration.model_validate_json(json.dumps(record)))
    ran = bench.evaluate(archived(bench, tmp_path / "batch").root)

    assert words in ran.issue("judge_uncalibrated")["message"]
