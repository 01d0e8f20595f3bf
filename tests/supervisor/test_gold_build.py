"""`gold build`: a cache made by a host as candidates are, whole or not at all, and never over another."""

from __future__ import annotations

import io
import json
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from broker.evaluator.export import Facts
from broker.evaluator.gold_mark import mark_gold
from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.ambient import Ambient
from contract.bridge import ThreadBridge
from contract.broker_api import START_DRAWING_BYTES_MAX
from contract.config import BatchConfig, LocalHostConfig
from contract.errors import ConfigError, EvaluationError, HostError
from contract.evaluation_records import EvaluatorName
from contract.phases import Cause
from contract.records import read_record
from contract.run_dir import BatchDir
from evaluator_client.gold import load_entry, verify_cache
from supervisor.gold_build import GoldHosts, GoldOrder, build_cache
from supervisor.gold_command import run_build
from supervisor.hosts.local import LocalHosts
from supervisor.keepers import Keepers
from supervisor.keyring import KernelKeyring
from supervisor.ledger import read_ledger
from supervisor.reconcile import end, report
from supervisor.uploads import LoopbackUploads
from tests.batch_fakes import START, FakeUploads, InlineBridge, in_virtual_time, prepare, virtual_ambient
from tests.ec2_world import Ec2World, ec2_config, ec2_host
from tests.fake_cloud import FakeCloud

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GOLD = ROOT / "configs" / "gold"
SOURCES = GOLD / "sources"
EVALUATOR = EvaluatorName(name=EVALUATOR_NAME, version=EVALUATOR_VERSION)
CONFIG = read_record(ROOT / "configs" / "local-demo.json", BatchConfig)
EMPTY = (ROOT / "configs" / "suites" / "local-2d-v1" / "plate" / "start.dxf").read_bytes()


def order(task_id: str = "plate", drawing: bytes | None = None) -> GoldOrder:
    drawing = drawing if drawing is not None else (SOURCES / f"{task_id}.dxf").read_bytes()
    return GoldOrder(task_id, "2d", "absolute", drawing, b"what a model is shown")


def build(
    cache: Path,
    *orders: GoldOrder,
    evaluator: EvaluatorName = EVALUATOR,
    command: tuple[str, ...] = (),
    driver: Any = "paper",
) -> list[str]:
    """Build on a local host; returns what was said to people."""
    said: list[str] = []
    more: dict[str, Any] = {"command": command} if command else {}

    async def run() -> None:
        config = LocalHostConfig(kind="local", driver=driver)
        with LoopbackUploads.opened() as uploads:
            tools = GoldHosts(
                batch_id="gold-1",
                config=CONFIG,
                hosts=LocalHosts(config, bridge=ThreadBridge(2), tokens=KernelKeyring(), **more),
                uploads=uploads,
                bridge=ThreadBridge(2),
                ambient=Ambient(),
                evaluator=evaluator,
                lease_s=60.0,
                say=said.append,
            )
            await build_cache(orders, cache=cache, tools=tools)

    anyio.run(run)
    return said


def test_a_host_makes_the_gold_that_the_suite_has(tmp_path: Path) -> None:
    """A host that hands the drawing back as it got it makes the same entries as the suite's script: it is one code."""
    cache = tmp_path / "new" / "gold"
    build(cache, order("plate"), order("gear-cover"))

    assert [] == verify_cache(cache)
    assert ["gold"] == sorted(path.name for path in cache.parent.iterdir())
    for task_id in ("plate", "gear-cover"):
        made, committed = (
            load_entry(folder, task_id, evaluator_name=EVALUATOR.name, evaluator_version=EVALUATOR.version)
            for folder in (cache, GOLD)
        )
        assert committed.entry == made.entry
        assert committed.render == made.render
        # Only the file differs, by the mark that says what it is.
        assert committed.metadata.model_copy(update={"source": made.metadata.source}) == made.metadata


@pytest.mark.parametrize(
    ("orders", "evaluator", "code"),
    [
        ([order("plate"), order("blank", EMPTY)], EVALUATOR, "gold_invalid"),
        ([order("torn", b"0\nSECTION\n")], EVALUATOR, "gold_invalid"),
        ([order("plate")], EvaluatorName(name="ezdxf", version="9.9.9"), "evaluator_version_mismatch"),
    ],
)
def test_one_gold_that_cannot_be_one_leaves_no_cache(
    tmp_path: Path, orders: list[GoldOrder], evaluator: EvaluatorName, code: str
) -> None:
    """Not even the entries that were made before it, and no scratch folder."""
    with pytest.raises(EvaluationError) as refused:
        build(tmp_path / "gold", *orders, evaluator=evaluator)

    assert code == refused.value.code
    assert [] == list(tmp_path.iterdir())


def test_a_host_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    """Neither a cache nor a ledger of a host that is gone."""
    with pytest.raises(HostError):
        build(tmp_path / "gold", order(), command=("false",))

    assert [] == list(tmp_path.iterdir())


def test_the_instance_of_a_build_that_was_killed_is_found_and_ended_by_its_folder(tmp_path: Path) -> None:
    """While the build lives its folder is locked and nobody touches its host; a killed one holds no lock."""
    config = prepare(tmp_path, host=ec2_host()).config
    scratch, killed = tmp_path / ".gold.gold-1.building", tmp_path / "killed"
    cloud = FakeCloud()
    world = Ec2World(cloud=cloud)
    keepers = Keepers(lambda config: cloud, utc_now=lambda: START)
    seen: list[Any] = []

    async def die(step: str, rollout_id: str) -> None:
        seen.append(report([BatchDir(scratch)], keepers=keepers)[0].is_owned)
        shutil.copytree(scratch, killed)
        seen.append(report([BatchDir(killed)], keepers=keepers)[0].left[0].instance_id)
        # As its command does, in a loop of its own; virtual time stands still meanwhile.
        clock, now_s = cloud.now_s, cloud.now_s()
        cloud.now_s = lambda: now_s
        ambient = replace(virtual_ambient(), utc_now=lambda: START)
        ending = partial(end, [BatchDir(killed)], keepers=keepers, ambient=ambient)
        command = threading.Thread(target=lambda: seen.append([len(found.ended) for found in anyio.run(ending)]))
        command.start()
        command.join()
        cloud.now_s = clock
        seen.append(cloud.alive())
        raise HostError("enough", cause=Cause.TUNNEL)

    world.trouble = die

    async def run() -> None:
        ledger = scratch / "hosts.jsonl"
        async with world.hosts(ec2_config(), ledger=lambda: read_ledger(ledger), batch_id="gold-1") as hosts:
            tools = GoldHosts(
                batch_id="gold-1",
                config=config,
                hosts=hosts,
                uploads=FakeUploads(),
                bridge=InlineBridge(),
                ambient=virtual_ambient(),
                evaluator=EVALUATOR,
                lease_s=300.0,
                say=lambda line: None,
            )
            with pytest.raises(HostError, match="enough"):
                await build_cache([order()], cache=tmp_path / "gold", tools=tools)

    in_virtual_time(run, seed=1)

    assert [True, cloud.ours()[0].instance_id, [1], []] == seen
    assert not scratch.exists()


def test_a_cache_is_never_overwritten_and_nothing_is_launched_for_it(tmp_path: Path) -> None:
    """An empty folder is somebody's too."""
    (tmp_path / "gold").mkdir()
    with pytest.raises(ConfigError) as refused:
        build(tmp_path / "gold", order(), command=("must-not-be-started",))

    assert "output_exists" == refused.value.code


def test_a_drawing_that_no_host_takes_is_refused_before_the_launch(tmp_path: Path) -> None:
    """A host takes so much and no more as a start drawing."""
    large = replace(order(), drawing=b"x" * START_DRAWING_BYTES_MAX)
    with pytest.raises(ConfigError) as refused:
        build(tmp_path / "gold", large, command=("must-not-be-started",))

    assert "gold_too_large" == refused.value.code


def test_the_command_builds_a_config_s_tasks_and_names_a_missing_drawing(tmp_path: Path) -> None:
    """Its stdout is one document, what it does goes to people; a missing drawing starts no host."""
    config = json.loads((ROOT / "configs" / "local-demo.json").read_text())
    config |= {"host": {"kind": "local", "driver": "paper"}, "task_suites_dir": str(ROOT / "configs" / "suites")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked: dict[str, Any] = {"config_path": tmp_path / "config.json", "ambient": Ambient()}
    out, errors = io.StringIO(), io.StringIO()

    code = run_build(
        **asked, drawings=SOURCES, gold_cache=tmp_path / "gold", tasks=("plate",), stream=out, errors=errors
    )
    document = json.loads(out.getvalue())

    assert (0, True, ["plate"]) == (code, document["ok"], list(document["entries"]))
    assert "plate: opening" in errors.getvalue()
    with pytest.raises(ConfigError, match=r"cannot read the gold drawing .*shaft\.dxf"):
        run_build(**asked, drawings=tmp_path, gold_cache=tmp_path / "g2", tasks=("shaft",), stream=out, errors=errors)


@pytest.mark.desktop
def test_librecad_makes_a_gold_that_equals_the_suite_s(tmp_path: Path) -> None:
    """A real CAD program opens and saves it; what comes of that is worth one against the committed gold."""
    from evaluator_client.score import score_drawing

    build(tmp_path / "gold", order("bracket"), driver="librecad")
    made, committed = (
        load_entry(folder, "bracket", evaluator_name=EVALUATOR.name, evaluator_version=EVALUATOR.version)
        for folder in (tmp_path / "gold", GOLD)
    )

    score = score_drawing(candidate=made.metadata, render=None, gold=committed).score
    assert score.deterministic >= 0.99


def test_only_the_start_drawing_says_that_it_is_the_gold() -> None:
    """A model that saves the mark gains nothing: an unchanged drawing is still untouched."""
    content = (SOURCES / "plate.dxf").read_bytes()
    marked = mark_gold(content)
    verdicts = [
        Facts.of(drawing).metadata(start).invalid
        for drawing, start in ((marked, content), (content, marked), (marked, marked))
    ]

    assert ["untouched", None, None] == [verdict and verdict.code for verdict in verdicts]
    assert marked == mark_gold(marked)
