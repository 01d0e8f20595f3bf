"""A tiny repository whose config passes every check, and a machine that says what it is told."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from contract.config import Ec2HostConfig
from supervisor.admission import MachineCapacity
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.cli import autocad_bench, batch
from supervisor.cloud.facts import CloudFacts
from supervisor.entry import run
from supervisor.machine import Driver, IsolationAnswer, IsolationChoice, MissingProgram, PluginAnswer

TASKS = ("dot", "line", "box")
GIB = 1024**3

PLAN_CONFIG: dict[str, Any] = {
    "schema": "autocad-bench.config/1",
    "benchmark": "tiny",
    "mode": "process",
    "task_suite": "tiny-suite",
    "task_suites_dir": "suites",
    "expected_rollouts": 3,
    "max_concurrency": 2,
    "broker_version": "1.0",
    "host": {"kind": "local"},
    "evaluator": {"name": "ezdxf", "version": "1.0.0", "gold_cache": "gold"},
    "judge": None,
    "pricing": "prices.json",
    "rollouts": [
        {"rollout_id": f"oracle-{task}", "task": task, "provider": "oracle", "model": "reference"} for task in TASKS
    ],
}


@dataclass(slots=True)
class FakeMachine:
    """A machine of which every answer is a field."""

    memory_total_bytes: int = 16 * GIB
    memory_available_bytes: int = 12 * GIB
    cores: int = 4
    in_use: int = 0
    missing: tuple[MissingProgram, ...] = ()
    is_isolated: bool = True
    display: str | None = None
    free: int = 100 * GIB
    writable: bool = True
    evaluator_version: str = "1.0.0"
    evaluator_digest: str | None = None
    plugin: PluginAnswer = field(default_factory=lambda: PluginAnswer(True, "version 1.2.896.0"))
    # What AWS says; null where nobody may ask.
    cloud: CloudFacts | AwsCredentialsMissing | None = None
    asked: list[Ec2HostConfig] = field(default_factory=list)

    def capacity(self) -> MachineCapacity:
        return MachineCapacity(
            memory_total_bytes=self.memory_total_bytes,
            memory_available_bytes=self.memory_available_bytes,
            cores=self.cores,
        )

    def hosts_in_use(self) -> int:
        return self.in_use

    def missing_programs(self, driver: Driver) -> Sequence[MissingProgram]:
        return self.missing if driver == "librecad" else ()

    def isolation(self, choice: IsolationChoice) -> IsolationAnswer:
        return IsolationAnswer(self.is_isolated, "walls" if self.is_isolated else "bubblewrap is not installed")

    def display_problem(self) -> str | None:
        return self.display

    def evaluator(self) -> tuple[str, str]:
        return "ezdxf", self.evaluator_version

    def evaluator_build(self) -> str | None:
        return self.evaluator_digest

    def session_plugin(self) -> PluginAnswer:
        return self.plugin

    def read_cloud(self, host: Ec2HostConfig) -> CloudFacts | AwsCredentialsMissing:
        self.asked.append(host)
        assert self.cloud is not None, "nobody may ask AWS in this test"
        return self.cloud

    def free_bytes(self, folder: Path) -> int:
        return self.free

    def is_writable(self, folder: Path) -> bool:
        return self.writable


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command line did."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def plan(self) -> dict[str, Any]:
        """stdout as the one JSON document that it must be."""
        document = json.loads(self.stdout)
        assert isinstance(document, dict)
        return document

    @property
    def codes(self) -> list[str]:
        """The codes of all issues, in order."""
        return [issue["code"] for issue in self.plan["issues"]]

    def issue(self, code: str) -> dict[str, Any]:
        """The first issue with this code."""
        return next(issue for issue in self.plan["issues"] if issue["code"] == code)


@dataclass(slots=True)
class PlanWorld:
    """The repository at `root`, its config as a dict to change, and the machine."""

    root: Path
    config: dict[str, Any]
    machine: FakeMachine = field(default_factory=FakeMachine)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def config_path(self) -> Path:
        return self.root / "config.json"

    def write_config(self) -> Path:
        self.config_path.write_text(json.dumps(self.config))
        return self.config_path

    def plan(self, *arguments: str) -> Ran:
        """Write the config as it is now and plan it."""
        return self.batch("--config", str(self.write_config()), *arguments)

    def batch(self, *arguments: str) -> Ran:
        """Run `autocad-bench-batch`."""
        return self._run(batch, "autocad-bench-batch", arguments)

    def bench(self, *arguments: str) -> Ran:
        """Run `autocad-bench`."""
        return self._run(autocad_bench, "autocad-bench", arguments)

    def _run(self, command: Any, program: str, arguments: Sequence[str]) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(command, arguments, program=program, environment=dict(self.environment), machine=self.machine)
        return Ran(code, out.getvalue(), err.getvalue())

    def task_dir(self, task: str) -> Path:
        return self.root / "suites" / "tiny-suite" / task

    def write_oracle(self, task: str, turns: Any) -> None:
        document = {"schema": "autocad-bench.oracle/1", "task_id": task, "turns": turns}
        (self.task_dir(task) / "oracle.json").write_text(json.dumps(document))

    def snapshot(self) -> Mapping[str, tuple[float, bytes]]:
        """Every file below the root with its time and content."""
        return {
            str(path): (path.stat().st_mtime, path.read_bytes() if path.is_file() else b"")
            for path in sorted(self.root.rglob("*"))
        }


@pytest.fixture
def plan_world(tmp_path: Path) -> PlanWorld:
    """A repository whose config passes every check."""
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    world = PlanWorld(root, copy.deepcopy(PLAN_CONFIG))
    suite = root / "suites" / "tiny-suite"
    for task in TASKS:
        _write_task(suite / task, task)
        world.write_oracle(task, ORACLE_TURNS)
    document = {"schema": "autocad-bench.suite/1", "suite": "tiny-suite", "host_notes": "notes", "tasks": list(TASKS)}
    (suite / "suite.json").write_text(json.dumps(document))
    (root / "prices.json").write_text('{"schema": "autocad-bench.prices/1", "rows": {}}')
    write_gold(root / "gold", TASKS)
    return world


ORACLE_TURNS = [
    [{"type": "keypress", "keys": ["ctrl", "m"]}],
    [{"type": "type", "text": "line 0,0 1,1\n"}, {"type": "finish", "status": "done", "summary": "drawn"}],
]


def _write_task(folder: Path, task: str) -> None:
    folder.mkdir(parents=True)
    files = {"start.dxf": f"start of {task}".encode(), "reference.png": f"picture of {task}".encode()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    document = {
        "schema": "autocad-bench.task/1",
        "task_id": task,
        "title": task,
        "prompt": f"Draw a {task}.",
        "start_drawing": "start.dxf",
        "start_drawing_sha256": _sha256(files["start.dxf"]),
        "reference": "reference.png",
        "reference_sha256": _sha256(files["reference.png"]),
        "oracle": "oracle.json",
        "profile": "2d",
        "placement": "absolute",
    }
    (folder / "task.json").write_text(json.dumps(document))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_gold(cache: Path, tasks: Sequence[str]) -> None:
    """A gold cache by the scoring contract, section 5, with empty drawings."""
    entries = {}
    for task in tasks:
        folder = cache / "ezdxf-1.0.0" / task
        folder.mkdir(parents=True)
        entry = {
            "task_id": task,
            "profile": "2d",
            "placement": "absolute",
            "window": [0.0, 0.0, 160.0, 120.0],
            "size_px": [1600, 1200],
            "tolerances": None,
            "self_check": {"deterministic": 1.0, "blank": "invalid"},
        }
        contents = {
            "entry.json": json.dumps(entry).encode(),
            "metadata.json": json.dumps(GOLD_METADATA).encode(),
            "reference.png": f"picture of {task}".encode(),
            "render.png": b"render",
        }
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        files = {name: {"sha256": _sha256(body), "size_bytes": len(body)} for name, body in contents.items()}
        lines = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files))
        entries[task] = {
            "schema_version": 3,
            "profile": "2d",
            "placement": "absolute",
            "files": files,
            "entry_sha256": _sha256(lines.encode()),
        }
    manifest = {
        "manifest_version": 1,
        "evaluator": {"name": "ezdxf", "version": "1.0.0", "config_sha256": "0" * 64},
        "score_version": "1.0",
        "entries": entries,
    }
    (cache / "manifest.json").write_text(json.dumps(manifest))


GOLD_METADATA: dict[str, Any] = {
    "schema_version": 3,
    "evaluator": {"name": "ezdxf", "version": "1.0.0", "application": "ezdxf", "config_sha256": "0" * 64},
    "source": {"format": "DXF", "acad_version": "AC1021", "sha256": "0" * 64, "size_bytes": 1},
    "status": "ok",
    "invalid": None,
    "units": {"insunits": 4, "name": "mm", "to_mm": 1.0, "measurement": 1},
    "layers": [],
    "blocks": [],
    "inserts": [],
    "entities": [],
    "extents": {"visible": None, "all": None},
    "layouts": [],
    "extents_3d": None,
    "counts": {},
    "warnings": [],
}
