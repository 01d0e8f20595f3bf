"""The configs that we ship are right, and a config's paths start at its repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from contract.config import BatchConfig, root_of, suite_dir
from contract.pricing import read_prices

REPOSITORY = Path(__file__).parents[2]
SHIPPED = ("local-demo.json", "benchmark.example.json")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_are_valid_as_they_stand(name: str) -> None:
    """They are what an operator copies first."""
    config = BatchConfig.model_validate_json((REPOSITORY / "configs" / name).read_bytes(), strict=True)

    enabled = [entry for entry in config.rollouts if entry.enabled]
    assert config.expected_rollouts == len(enabled)
    assert len(config.rollouts) == len({entry.rollout_id for entry in config.rollouts})


def test_the_demo_plays_every_task_of_its_suite_with_the_oracle() -> None:
    """The demo is the proof that the whole path runs."""
    config = BatchConfig.model_validate_json((REPOSITORY / "configs" / "local-demo.json").read_bytes())
    folder = suite_dir(REPOSITORY, config)
    assert folder is not None
    suite = json.loads((folder / "suite.json").read_text())

    assert suite["tasks"] == [entry.task for entry in config.rollouts]
    assert {("oracle", "reference")} == {(entry.provider, entry.model) for entry in config.rollouts}


def test_the_example_has_a_price_for_each_model_that_costs_money() -> None:
    """Enabling a vendor in the example needs no further row."""
    config = BatchConfig.model_validate_json((REPOSITORY / "configs" / "benchmark.example.json").read_bytes())
    rows = read_prices(REPOSITORY / "configs" / "prices.json").rows

    paid = {f"{entry.provider}/{entry.model}" for entry in config.rollouts if not entry.enabled}
    assert set() == paid - rows.keys()


def test_unknown_fields_are_rejected_at_every_level() -> None:
    """A field that we ignored would be a setting that the operator believes in."""
    good = json.loads((REPOSITORY / "configs" / "local-demo.json").read_text())
    for holder in (good, good["host"], good["evaluator"], good["limits"], good["rollouts"][0]):
        holder["colour"] = 1
        with pytest.raises(ValidationError, match="colour"):
            BatchConfig.model_validate(good)
        del holder["colour"]
    BatchConfig.model_validate(good)


def test_paths_start_at_the_repository_or_else_at_the_config(tmp_path: Path) -> None:
    """A config works from whatever folder the command is started in."""
    nested = tmp_path / "repository" / "configs" / "deep"
    nested.mkdir(parents=True)
    (tmp_path / "repository" / "pyproject.toml").write_text("")
    loose = tmp_path / "loose"
    loose.mkdir()

    assert tmp_path / "repository" == root_of(nested / "c.json")
    assert loose == root_of(loose / "c.json")
