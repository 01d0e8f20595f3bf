"""`gold verify` says all that is wrong with a gold cache at once; `gold build` makes a new one on a host."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

import anyio

from contract.ambient import Ambient
from contract.bridge import ThreadBridge
from contract.config import BatchConfig, LocalHostConfig, Task, root_of
from contract.errors import ConfigError, EvaluationError
from contract.evaluation_records import EvaluatorName
from evaluator_client.gold import GoldEntry, read_manifest, verify_cache
from supervisor.config_reading import read_config
from supervisor.equipment import HostTools
from supervisor.gold_build import GoldHosts, GoldOrder, build_cache, demand_new, scratch_of
from supervisor.issues import did_you_mean
from supervisor.suite import LoadedTask, load_tasks

GOLD_SCHEMA: Final = "autocad-bench.gold-verify/1"
BUILD_SCHEMA: Final = "autocad-bench.gold-build/1"
# Calls to one host, and lines of its ledger.
_THREADS: Final = 4


def run_verify(gold_cache: Path | None, *, stream: IO[str]) -> int:
    """Verify the cache, by default `configs/gold` of the repository around the working folder. Returns 0 or 1."""
    cache = gold_cache if gold_cache is not None else root_of(Path.cwd() / "any") / "configs" / "gold"
    issues = verify_cache(cache)
    document = {
        "schema": GOLD_SCHEMA,
        "ok": not issues,
        "gold_cache": str(cache),
        "entries": _entries(cache),
        "issues": [asdict(issue) for issue in issues],
    }
    stream.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    stream.flush()
    return 1 if issues else 0


def run_build(
    *,
    config_path: Path,
    drawings: Path,
    gold_cache: Path,
    tasks: tuple[str, ...],
    stream: IO[str],
    errors: IO[str],
    ambient: Ambient,
) -> int:
    """Make a gold cache for a config's tasks, from `DRAWINGS/<task>.dxf`, on a host of the config's kind. Returns 0.

    Raises `ConfigError` before anything is launched, and what `build_cache` raises.
    """
    reading = read_config(config_path)
    if reading.issues:
        issue = reading.issues[0]
        raise ConfigError(issue.message, hint=issue.hint, code=issue.code, field=issue.field)
    config, root = reading.draft.config, reading.draft.root
    demand_new(gold_cache)
    orders = _orders(config, root, drawings, tasks)

    def say(line: str) -> None:
        errors.write(line + "\n")
        errors.flush()

    entries = anyio.run(_build, config, root, orders, gold_cache, say, ambient)
    document = {
        "schema": BUILD_SCHEMA,
        "ok": True,
        "gold_cache": str(gold_cache),
        "evaluator": f"{config.evaluator.name} {config.evaluator.version}",
        "entries": {entry.task_id: entry.entry_sha256 for entry in entries},
    }
    stream.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    stream.flush()
    return 0


async def _build(
    config: BatchConfig, root: Path, orders: list[GoldOrder], cache: Path, say: Callable[[str], None], ambient: Ambient
) -> list[GoldEntry]:
    batch_id = f"gold-{secrets.token_hex(6)}"
    async with _tools(config, root, scratch_of(cache, batch_id), batch_id, ambient) as tools:
        hosts = GoldHosts(
            batch_id=batch_id,
            config=config,
            hosts=tools.hosts,
            uploads=tools.uploads,
            bridge=ThreadBridge(_THREADS),
            ambient=ambient,
            evaluator=EvaluatorName(name=config.evaluator.name, version=config.evaluator.version),
            lease_s=config.host.lease_s,
            say=say,
        )
        return await build_cache(orders, cache=cache, tools=hosts)


@asynccontextmanager
async def _tools(
    config: BatchConfig, root: Path, scratch: Path, batch_id: str, ambient: Ambient
) -> AsyncIterator[HostTools]:
    from supervisor.compose import local_tools

    if isinstance(config.host, LocalHostConfig):
        # A build that ends takes its host along, also when it is killed.
        with local_tools(config.host.model_copy(update={"orphan_s": 0.0}), ambient) as tools:
            yield tools
        return
    from supervisor.compose_ec2 import Ec2Facts, HostFiles, ec2_tools

    facts = Ec2Facts(
        certificate=_certificate(root / config.host.identity_certificate),
        broker_version=config.broker_version,
        account=None,
        max_concurrency=1,
    )
    files = HostFiles(ledger=scratch / "hosts.jsonl", log_of=lambda _: scratch / "host.log")
    async with ec2_tools(config.host, facts, files=files, batch_id=batch_id, ambient=ambient) as tools:
        yield tools


def _certificate(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the identity certificate {path}: {error.strerror or error}",
            hint="See docs/ec2.md for where it comes from.",
            code="identity_certificate",
            field="host.identity_certificate",
        ) from error


def _orders(config: BatchConfig, root: Path, drawings: Path, names: tuple[str, ...]) -> list[GoldOrder]:
    """The named tasks, else all of the config's suite, else all that its rollouts play. Raises `ConfigError`."""
    loaded = load_tasks(config, root, list(names))
    if not names:
        played = list(dict.fromkeys(entry.task for entry in config.rollouts))
        loaded = load_tasks(config, root, loaded.suite.tasks if loaded.suite is not None else played)
    if loaded.suite_issues:
        issue = loaded.suite_issues[0]
        raise ConfigError(issue.message, hint=issue.hint, code=issue.code)
    return [_order(task, drawings) for task in loaded.tasks.values()]


def _order(loaded: LoadedTask, drawings: Path) -> GoldOrder:
    if loaded.task is None:
        issue = loaded.issues[0]
        raise ConfigError(issue.message, hint=issue.hint, code=issue.code)
    task: Task = loaded.task
    path = drawings / f"{task.task_id}.dxf"
    try:
        drawing = path.read_bytes()
    except OSError as error:
        there = sorted(other.stem for other in drawings.glob("*.dxf"))
        raise ConfigError(
            f"cannot read the gold drawing {path}: {error.strerror or error}",
            hint=f"Put the drawing of each task there as <task>.dxf.{did_you_mean(task.task_id, there)}",
            code="gold_drawing_missing",
            field="--drawings",
        ) from error
    return GoldOrder(
        task_id=task.task_id,
        profile=task.profile,
        placement=task.placement,
        drawing=drawing,
        reference_png=(loaded.folder / task.reference).read_bytes(),
    )


def _entries(cache: Path) -> list[str]:
    try:
        return sorted(read_manifest(cache).entries)
    except EvaluationError:
        # `verify_cache` has said why.
        return []
