"""A manual re-run: one rollout of an earlier batch, in a folder of its own that links back to the first.

The first folder is only read, so it may belong to a batch that is still running.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from contract.batch_records import BatchState, Link
from contract.config import root_of
from contract.errors import ConfigError, StateError
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.config_reading import Reading, parse_config
from supervisor.issues import did_you_mean, few


@dataclass(frozen=True, slots=True)
class Rerun:
    """The config of the re-run (that one rollout, enabled) and where it came from."""

    reading: Reading
    link: Link


def read_rerun(folder: Path, rollout_id: str) -> Rerun:
    """Take one rollout out of the batch in `folder`. Raises `ConfigError` when there is no such batch or rollout."""
    batch_dir = BatchDir(folder)
    try:
        state = read_record(batch_dir.state, BatchState)
        document = orjson.loads(batch_dir.config.read_bytes())
        entries = document["rollouts"]
        ids = [entry["rollout_id"] for entry in entries]
    except (StateError, OSError, ValueError, KeyError, TypeError) as error:
        message = error.message if isinstance(error, StateError) else f"{batch_dir.config} cannot be used: {error}"
        raise ConfigError(message, hint="Name the output folder of a batch.", code="run_folder_invalid") from error
    if rollout_id not in ids:
        raise ConfigError(
            f"{folder} has no rollout {rollout_id!r}",
            hint=f"Name one of {few(ids)}.{did_you_mean(rollout_id, ids)}",
            code="rollout_unknown",
        )
    entry = {**entries[ids.index(rollout_id)], "enabled": True}
    document |= {"rollouts": [entry], "expected_rollouts": 1, "max_concurrency": 1}
    reading = parse_config(orjson.dumps(document), root=root_of(batch_dir.config), source=str(batch_dir.config))
    link = Link(batch_dir=str(folder.resolve()), batch_id=state.batch_id, rollout_id=rollout_id)
    return Rerun(reading, link)
