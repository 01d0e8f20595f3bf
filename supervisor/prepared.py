"""A batch that passed every check: all that the execute side needs, read and verified once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from contract.config import Assignment, BatchConfig, Mode, Task
from contract.pricing import PriceRow, PriceTable
from contract.profiles import Profile
from supervisor.admission import Admission
from supervisor.cloud.quota import QuotaAdmission


@dataclass(frozen=True, slots=True)
class PreparedRollout:
    """One enabled assignment with its task.

    `script` is what a scripted model plays: the oracle's `oracle.json`, or a replay's `model_turns.jsonl`. `price` is
    null for models that cost nothing and for those that the operator runs unpriced. The last four are null for scripted
    models: the profile's name and facts, the complete base URL that requests start with, and the AWS region, which only
    `mantle` and `bedrock` have.
    """

    assignment: Assignment
    task: Task
    task_dir: Path
    host_notes: str
    script: Path | None
    price: PriceRow | None
    profile_name: str | None = None
    facts: Profile | None = None
    endpoint: str | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """What `execute` and `resume` are given.

    `config` is the config as run: the command line's `mode` and `max_concurrency` are in it and every path is absolute,
    so that a later command can read it back from the run folder. `config_bytes` is that config as `batch-config.json`
    holds it, `config_sha256` the digest of those bytes. `rollouts` are the enabled ones in the order of the config.
    `credentials` are keys by provider; nothing else here is secret.

    The last three are for EC2 hosts, and null for others: what the vCPU quota held when it was read, the PEM
    certificate for instance identity documents, and the id of the account that launches.
    """

    config: BatchConfig
    config_bytes: bytes
    config_sha256: str
    root: Path
    mode: Mode
    max_concurrency: int
    rollouts: tuple[PreparedRollout, ...]
    gold_dir: Path
    prices: PriceTable | None
    credentials: Mapping[str, SecretStr]
    judge_key: SecretStr | None
    admission: Admission
    quota: QuotaAdmission | None = None
    identity_certificate: bytes | None = None
    account: str | None = None
