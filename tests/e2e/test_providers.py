"""All six providers draw on the real CAD program, by the command that an operator types, against simulated vendors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.batch_records import BatchState, RolloutRow
from contract.phases import Outcome
from contract.records import read_record
from contract.run_dir import BatchDir
from tests.providers import players
from tests.providers.playing import MODELS, PROVIDER_MODELS, REGION
from tests.providers.sigv4 import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN
from tests.providers.simulator import Simulator

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "configs" / "suites" / "local-2d-v1"
TASKS = ("plate", "shaft", "flange", "bracket", "gasket", "stair", "floor-plan", "gear-cover")
PLAY_S_MAX = 1_200

pytestmark = [pytest.mark.e2e, pytest.mark.desktop]


@dataclass(frozen=True)
class Batch:
    """A batch that was played: its rows, its folder, what it printed, and the vendors that saw it."""

    rows: dict[str, RolloutRow]
    folder: Path
    printed: str
    simulator: Simulator


def config_of(simulator: Simulator) -> dict[str, object]:
    """Each provider plays two tasks, so that together they play all of them."""
    rollouts = []
    for place, name in enumerate(PROVIDER_MODELS):
        provider, model = MODELS[name]
        rollouts += [
            {"rollout_id": f"{name}-{task}", "task": task, "provider": provider, "model": model}
            for number, task in enumerate(TASKS)
            if number in (place, (place + 5) % len(TASKS))
        ]
    return {
        "schema": "autocad-bench.config/1",
        "benchmark": "simulated-vendors",
        "task_suite": "local-2d-v1",
        "task_suites_dir": str(SUITE.parent),
        "expected_rollouts": len(rollouts),
        "max_concurrency": 2,
        "broker_version": "1.0",
        "host": {"kind": "local"},
        "evaluator": {
            "name": EVALUATOR_NAME,
            "version": EVALUATOR_VERSION,
            "gold_cache": str(ROOT / "configs" / "gold"),
        },
        "pricing": str(ROOT / "configs" / "prices.json"),
        "endpoints": simulator.endpoints,
        "aws": {"region": REGION},
        "rollouts": rollouts,
    }


def environment_of(simulator: Simulator, home: Path) -> dict[str, str]:
    """An operator's environment: a key for each vendor, and an AWS session."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        **{f"{provider.upper()}_API_KEY": key for provider, key in simulator.keys.items()},
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SESSION_TOKEN": SESSION_TOKEN,
    }


@pytest.fixture(scope="module", params=["process", "shared"])
def batch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """The batch, played once in each mode."""
    home = tmp_path_factory.mktemp(str(request.param))
    with Simulator(players.oracle(SUITE, thinking="I shall follow the picture.")) as simulator:
        config = home / "config.json"
        config.write_text(json.dumps(config_of(simulator)))
        command = [Path(sys.executable).with_name("autocad-bench-batch"), "--config", config, "--mode", request.param]
        ended = subprocess.run(
            [*command, "--output-dir", home / "run", "--allow-partial", "--execute"],
            env=environment_of(simulator, home),
            capture_output=True,
            text=True,
            timeout=PLAY_S_MAX,
            check=False,
        )
    assert 0 == ended.returncode, (ended.stdout[-2000:], ended.stderr[-3000:])
    state = read_record(BatchDir(home / "run").state, BatchState)
    rows = {row.rollout_id: row for row in state.rollouts}
    return Batch(rows, home / "run", ended.stdout + ended.stderr, simulator)


def test_every_provider_reaches_the_gold(batch: Batch) -> None:
    """The reference solution, said in each vendor's words, is drawn as it is by the oracle."""
    scores = {rollout_id: row.score for rollout_id, row in batch.rows.items()}

    assert {Outcome.SCORED} == {row.outcome for row in batch.rows.values()}
    assert [] == [rollout_id for rollout_id, score in scores.items() if score is None or score < 0.99]
    assert [] == batch.simulator.refused


def test_every_row_costs_what_the_vendors_charged(batch: Batch) -> None:
    """The totals of the batch are those of the bill."""
    costs = [row.cost_usd for row in batch.rows.values()]

    assert len(PROVIDER_MODELS) * 2 == len(costs)
    assert None not in costs
    assert batch.simulator.account.cost_usd() == sum(cost for cost in costs if cost is not None)


def test_no_key_is_in_any_file_or_line(batch: Batch) -> None:
    """Keys go into request headers and nowhere else."""
    secrets = [*batch.simulator.keys.values(), SECRET_KEY, SESSION_TOKEN]
    files = [path for path in batch.folder.rglob("*") if path.is_file()]

    assert [] == [path.name for path in files for secret in secrets if secret.encode() in path.read_bytes()]
    assert [] == [secret for secret in secrets if secret in batch.printed]
