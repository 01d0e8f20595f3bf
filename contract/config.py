"""The operator's config, the frozen task suite, and one task: shapes only. `supervisor/preflight.py` checks the rest.

Relative paths in a config are relative to the root of the repository that holds it, or to its own folder when it is
in none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from contract.broker_api import Name, Sha256
from contract.records import Record
from contract.rollout_records import Limits, RolloutId

VENDOR_PROVIDERS: Final = ("openai", "openrouter", "anthropic", "fireworks", "mantle", "bedrock")
SCRIPTED_PROVIDERS: Final = ("oracle", "noop", "random", "replay", "exploit")
Provider = Literal[
    "openai",
    "openrouter",
    "anthropic",
    "fireworks",
    "mantle",
    "bedrock",
    "oracle",
    "noop",
    "random",
    "replay",
    "exploit",
]
Mode = Literal["process", "shared"]
Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]


class LocalHostConfig(Record):
    """A desktop on this machine.

    `orphan_s`: how long a host outlives a controller that died, so that `batch --resume` can go on exactly. 0 ends it
    at once. `memory_bytes`: what admission reserves for each host.
    """

    kind: Literal["local"]
    driver: Literal["librecad", "paper"] = "librecad"
    lease_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    orphan_s: Annotated[float, Field(ge=0, le=3_600)] = 0.0
    isolation: Literal["auto", "bubblewrap", "own_uid", "none"] = "auto"


class Ec2HostConfig(Record):
    """A fresh instance for each rollout, reached through its own SSM port-forward.

    `driver` is the CAD program in the image: AutoCAD on Windows, LibreCAD or the paper driver elsewhere.
    `identity_certificate` is a PEM file with the Region's RSA certificate for instance identity documents, which AWS
    publishes on a page of its own. `lease_s`: a host that hears nothing from its controller for so long shuts itself
    down; `lifetime_s` bounds its whole life. `boot_s` bounds the time from a launch to a broker that answers. With
    `expiry_role_arn` each instance also gets a one-time EventBridge schedule that ends it by this role.
    """

    kind: Literal["ec2"]
    region: Region
    profile: str | None = None
    ami_id: Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")]
    instance_type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")]
    subnet_ids: Annotated[list[Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]], Field(min_length=1)]
    security_group_id: Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")]
    instance_profile: Annotated[str, Field(pattern=r"^[\w+=,.@-]{1,128}$")]
    artifact_bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    identity_certificate: str
    driver: Literal["autocad", "librecad", "paper"] = "autocad"
    # Who launches: the value of the Owner tag, by which one operator's instances are told from another's.
    owner: Name = "autocad-bench"
    broker_port: Annotated[int, Field(ge=1, le=65_535)] = 8765
    lease_s: Annotated[float, Field(ge=60, le=86_400)] = 900.0
    lifetime_s: Annotated[float, Field(ge=600, le=604_800)] = 43_200.0
    boot_s: Annotated[float, Field(ge=10, le=7_200)] = 900.0
    expiry_role_arn: Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/.+$")] | None = None


HostConfig = Annotated[LocalHostConfig | Ec2HostConfig, Field(discriminator="kind")]


class EvaluatorConfig(Record):
    """The one evaluator whose facts are compared, and the gold that it made."""

    name: Literal["ezdxf", "autocad"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    gold_cache: str


class JudgeConfig(Record):
    """The vision judge.

    Its calibration is `judge/<judge_id>.json` beside the gold of the pinned evaluator, its price the row
    `<provider>/<model>` of the price table. It is asked `repeats` times about each drawing, and twice more when its
    answers differ much; `deadline_s` bounds all of that. A null `reasoning_effort` is for models that do not reason.
    """

    judge_id: Name
    provider: Literal["openai"]
    model: Annotated[str, Field(min_length=1, max_length=256)]
    # Two or more, because the pictures change their places.
    repeats: Annotated[int, Field(ge=2, le=7)] = 3
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = "low"
    max_output_tokens: Annotated[int, Field(ge=256, le=100_000)] = 2000
    deadline_s: Annotated[float, Field(ge=10, le=86_400)] = 900.0


class AwsConfig(Record):
    """The AWS account that pays for `mantle` and `bedrock` models. `profile` is a name; null is the default chain."""

    region: Region
    profile: str | None = None


class Assignment(Record):
    """One task and one model, under an id of its own.

    `seed` is for `random`; `script` names the stored trace that `replay` plays (a `model_turns.jsonl` or its rollout
    folder).
    """

    rollout_id: RolloutId
    task: Name
    provider: Provider
    model: Annotated[str, Field(min_length=1, max_length=256)]
    profile: Name | None = None
    enabled: bool = True
    # What a record can hold.
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    script: str | None = None


class BatchConfig(Record):
    """One config file, schema `autocad-bench.config/1`."""

    schema_: Annotated[Literal["autocad-bench.config/1"], Field(alias="schema")]
    benchmark: Name
    mode: Mode = "process"
    task_suite: Name | None = None
    # Where task suites live; one folder per suite.
    task_suites_dir: str = "configs/suites"
    expected_rollouts: Annotated[int, Field(ge=1, le=100_000)]
    max_concurrency: Annotated[int, Field(ge=1, le=10_000)]
    broker_version: str
    host: HostConfig
    evaluator: EvaluatorConfig
    judge: JudgeConfig | None = None
    # A price table, "unpriced" (costs are unknown and the operator accepts it), or null for models that cost nothing.
    pricing: str | None = None
    limits: Limits = Field(default_factory=Limits)
    # The least share of enabled rollouts that must count before a mean may be believed; below it a command ends with 1.
    coverage_floor: Annotated[float, Field(ge=0, le=1)] = 0.9
    # A provider's base URL, as its SDK takes it: https, or http on loopback.
    endpoints: dict[str, str] = Field(default_factory=dict)
    # Null: the host's region and profile, when the host is an instance.
    aws: AwsConfig | None = None
    # Further rows beside those of `contract/profiles.py`: {"extends": "<a known row>", "<field>": <value>, ...}.
    profiles: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    rollouts: Annotated[list[Assignment], Field(min_length=1)]


class Task(Record):
    """`task.json` of one task, beside `reference.png`, the start drawing and the oracle script.

    `start_drawing`, `reference` and `oracle` are file names in the task's own folder.
    """

    schema_: Annotated[Literal["autocad-bench.task/1"], Field(alias="schema")]
    task_id: Name
    title: str
    prompt: str
    start_drawing: str
    start_drawing_sha256: Sha256
    reference: str
    reference_sha256: Sha256
    oracle: str | None
    profile: Literal["2d", "3d", "3d-extents"]
    placement: Literal["absolute", "translation"]


class TaskSuite(Record):
    """`suite.json`: an ordered, frozen list of tasks, and what every model is told about the host."""

    schema_: Annotated[Literal["autocad-bench.suite/1"], Field(alias="schema")]
    suite: Name
    host_notes: str
    tasks: list[Name]


class OracleScript(Record):
    """`oracle.json`: the ActionBatches that reach the gold by mouse and keyboard alone; the last action finishes."""

    schema_: Annotated[Literal["autocad-bench.oracle/1"], Field(alias="schema")]
    task_id: Name
    turns: list[list[dict[str, object]]]


def root_of(config_path: Path) -> Path:
    """The folder that a config's relative paths start from: its repository's root, else the config's own folder."""
    # Neither of these raises, whatever the path leads to.
    folder = Path(os.path.realpath(config_path)).parent
    for candidate in (folder, *folder.parents):
        if os.path.exists(candidate / ".git") or os.path.exists(candidate / "pyproject.toml"):
            return candidate
    return folder


def suite_dir(root: Path, config: BatchConfig) -> Path | None:
    """The folder of the config's suite, or null when it names none."""
    return root / config.task_suites_dir / config.task_suite if config.task_suite else None
