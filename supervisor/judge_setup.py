"""What `gold calibrate` and `evaluate --judge-config` read of a config: the judge, its price, its address, its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from contract.ambient import Ambient
from contract.config import BatchConfig, JudgeConfig
from contract.errors import ConfigError, StateError
from contract.pricing import PriceTable, read_prices
from evaluator_client.judge import Judge
from supervisor.addresses import url_problem
from supervisor.config_reading import read_config
from supervisor.issues import Issue
from supervisor.judge_admission import UNPRICED, credential_issues, open_judge, price_issues
from supervisor.judge_cost import JudgeEstimate, judge_estimate, price_of


@dataclass(frozen=True, slots=True)
class JudgeSetup:
    """A readable config with a judge. `issues` are about key, price and address, not about calibration."""

    config: BatchConfig
    root: Path
    judge: JudgeConfig
    prices: PriceTable | None
    key: SecretStr | None
    issues: tuple[Issue, ...]

    @property
    def estimate(self) -> JudgeEstimate | None:
        """For one pair of pictures; null when the price is not known."""
        row = price_of(self.judge, self.prices)
        return judge_estimate(self.judge, row) if row is not None else None

    @property
    def gold_dir(self) -> Path:
        """The config's gold cache."""
        return self.root / self.config.evaluator.gold_cache

    def opened(self, ambient: Ambient) -> Judge:
        """The judge, to be asked. Only for a setup without issues."""
        assert self.key is not None, "a judge without its key is an issue"
        return open_judge(
            self.judge,
            endpoint=self.config.endpoints.get(self.judge.provider),
            key=self.key,
            price=price_of(self.judge, self.prices),
            ambient=ambient,
        )


def read_judge_setup(path: Path, keys: Mapping[str, SecretStr]) -> JudgeSetup:
    """Read the config at `path`. Raises `ConfigError` when it cannot be read, or has no judge or no readable prices."""
    reading = read_config(path)
    if reading.issues:
        first = reading.issues[0]
        raise ConfigError(first.message, hint=first.hint, code=first.code, field=first.field)
    config, root = reading.draft.config, reading.draft.root
    if config.judge is None:
        raise ConfigError(
            f"{path} has no judge", hint="Name a config whose `judge` is set.", code="judge_missing", field="judge"
        )
    prices = _read_prices(config, root)
    issues = credential_issues(config.judge, keys) + price_issues(config.judge, config.pricing, prices)
    endpoint = config.endpoints.get(config.judge.provider)
    problem = url_problem(endpoint) if endpoint is not None else None
    if problem is not None:
        field = f"endpoints.{config.judge.provider}"
        hint = "Give an https URL, or http on a loopback address, without user, query or fragment."
        issues += (Issue("endpoint_invalid", f"the endpoint of {config.judge.provider!r} {problem}", hint, field),)
    return JudgeSetup(config, root, config.judge, prices, keys.get(config.judge.provider), issues)


def _read_prices(config: BatchConfig, root: Path) -> PriceTable | None:
    if config.pricing is None or config.pricing == UNPRICED:
        return None
    try:
        return read_prices(root / config.pricing)
    except StateError as error:
        raise ConfigError(error.message, hint=error.hint, code="pricing_invalid", field="pricing") from error
