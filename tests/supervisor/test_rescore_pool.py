"""Archived rollouts are scored again side by side: the same bytes in any order, and no bad one hides a good one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.evaluation_records import EvaluatorName
from contract.run_dir import BatchDir
from scripts.bench_rescore import make_archive
from supervisor.rescore_pool import ORDERS_PER_WORKER_MIN, score_all
from supervisor.rescore_worker import NEVER_SCORED, RescoreOrder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GOLD = ROOT / "configs" / "gold"
EVALUATOR = EvaluatorName(name=EVALUATOR_NAME, version=EVALUATOR_VERSION)
COUNT = 2 * ORDERS_PER_WORKER_MIN


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> BatchDir:
    """As many rollouts as two workers are started for."""
    batch_dir = BatchDir(tmp_path_factory.mktemp("rescore") / "batch")
    make_archive(batch_dir, COUNT)
    return batch_dir


def orders(batch_dir: BatchDir) -> list[RescoreOrder]:
    folders = sorted(batch_dir.rollouts.iterdir())
    return [RescoreOrder(run_dir=str(folder), gold_dir=str(GOLD), evaluator=EVALUATOR) for folder in folders]


def made(folder: str | None) -> dict[str, bytes]:
    assert folder is not None
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def test_any_order_and_any_number_of_workers_give_the_same_bytes(archive: BatchDir) -> None:
    """A score depends on nothing but its own drawing and gold; each reply stands where its order stood."""
    forward = score_all(orders(archive), workers_max=2)
    backward = score_all(orders(archive)[::-1], workers_max=3)
    alone = score_all(orders(archive), workers_max=1)

    assert ["0001"] * COUNT == [Path(reply.folder or "").name for reply in forward]
    assert [True] * COUNT == [reply.delta is not None and reply.delta.is_identical for reply in forward]
    assert [made(reply.folder) for reply in alone] == [made(reply.folder) for reply in forward]
    assert [made(reply.folder) for reply in alone] == [made(reply.folder) for reply in backward[::-1]]


def test_rollouts_that_lack_a_file_are_refused_by_name_and_the_others_are_scored(tmp_path: Path) -> None:
    """The reason names the file, and nothing of that rollout is half-scored."""
    batch_dir = BatchDir(tmp_path / "batch")
    make_archive(batch_dir, COUNT)
    folders = sorted(batch_dir.rollouts.iterdir())
    missing = ["metadata.json", "render.png", "diff.png", "overlay.png", "score.json", "status.json"]
    for folder, name in zip(folders, missing, strict=False):
        (folder / "evaluation" / name).unlink()

    replies = score_all(orders(batch_dir), workers_max=2)

    assert [True] * len(missing) == [name in (reply.error or "") for name, reply in zip(missing, replies, strict=False)]
    assert [False] * len(missing) == [
        (folder / "evaluation" / "rescored").exists() for folder in folders[: len(missing)]
    ]
    assert [None] * (COUNT - len(missing)) == [reply.error for reply in replies[len(missing) :]]


def test_a_rollout_that_never_had_a_score_is_told_from_one_that_lost_it(tmp_path: Path) -> None:
    """A void rollout is no damaged archive."""
    (tmp_path / "void").mkdir()
    order = RescoreOrder(run_dir=str(tmp_path / "void"), gold_dir=str(GOLD), evaluator=EVALUATOR)
    (reply,) = score_all([order])

    assert NEVER_SCORED == reply.error


def test_a_worker_that_dies_costs_its_own_rollout_only(archive: BatchDir) -> None:
    """It is replaced for the next one. A reply that is none is said, and never taken for a score."""
    dies = (sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(7)")
    replies = score_all(orders(archive), workers_max=2, command=dies)

    assert COUNT == len(replies)
    assert [True] * COUNT == ["ended without a reply" in (reply.error or "") for reply in replies]
    assert [None] * COUNT == [reply.delta for reply in replies]


def test_workers_are_handed_nothing_of_our_environment(archive: BatchDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the operator's shell must not reach a process that needs none."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-7d1")
    program = """
import json, os, sys
for line in sys.stdin:
    print(json.dumps({"folder": None, "delta": None, "error": " ".join(sorted(os.environ))}), flush=True)
"""
    tells = (sys.executable, "-c", program)
    replies = score_all(orders(archive), workers_max=2, command=tells)

    assert [] == [reply.error for reply in replies if "OPENAI_API_KEY" in (reply.error or "")]
