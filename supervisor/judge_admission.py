"""Whether a configured judge may be asked, and the judge itself once it may: its key, its address, its price."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from contract.ambient import Ambient
from contract.bridge import ThreadBridge
from contract.config import BatchConfig, JudgeConfig
from contract.errors import EvaluationError
from contract.evaluation_records import EvaluatorName
from contract.pricing import PriceRow, PriceTable
from contract.profiles import PROFILES, base_url
from evaluator_client.judge import Judge
from evaluator_client.judge_calibration import demand_calibrated
from supervisor.catalogs.entries import Catalog, CatalogError
from supervisor.credentials import KEY_VARIABLES, key_problem
from supervisor.issues import Issue, did_you_mean
from supervisor.judge_client import ResponsesJudge
from supervisor.judge_cost import price_name, price_of
from supervisor.prepared import PreparedBatch

UNPRICED: Final = "unpriced"
# One request each; more rollouts than this are seldom evaluated at the same time.
THREADS_MAX: Final = 16
_PROFILE: Final = "openai-responses"


def credential_issues(judge: JudgeConfig, keys: Mapping[str, SecretStr]) -> tuple[Issue, ...]:
    """The judge's key is in the environment, and can be sent."""
    variable = KEY_VARIABLES[judge.provider]
    if judge.provider in keys:
        problem = key_problem(keys[judge.provider])
        if problem is None:
            return ()
        message = f"{variable} {problem}, and the judge {judge.judge_id!r} needs it"
        return (Issue("credential_invalid", message, f"Set {variable} to the key alone.", "judge.provider"),)
    message = f"{variable} is not set, and the judge {judge.judge_id!r} needs it"
    hint = f"Set {variable} in the environment of this command."
    return (Issue("judge_credential_missing", message, hint, "judge.provider"),)


def calibration_issues(judge: JudgeConfig, gold_dir: Path, evaluator: EvaluatorName) -> tuple[Issue, ...]:
    """The gold cache has a calibration of this very judge, and its numbers allow it."""
    try:
        demand_calibrated(judge, gold_dir, evaluator)
    except EvaluationError as error:
        return (Issue("judge_uncalibrated", error.message, error.hint, "judge.judge_id"),)
    return ()


def price_issues(judge: JudgeConfig, pricing: str | None, table: PriceTable | None) -> tuple[Issue, ...]:
    """The judge has a pinned price, or the operator accepts unknown costs. A table that cannot be read is not said."""
    name = price_name(judge)
    if pricing == UNPRICED or (pricing is not None and table is None):
        return ()
    if table is None:
        message = f"the judge {judge.judge_id!r} costs money, but the config names no prices"
        hint = f'Name a price table in `pricing`, or write "{UNPRICED}" to accept unknown costs.'
        return (Issue("judge_unpriced", message, hint, "pricing"),)
    if name in table.rows:
        return ()
    message = f"the price table {pricing} has no row {name!r}, and the judge {judge.judge_id!r} needs it"
    hint = f'Add the row, or write "{UNPRICED}" into `pricing`.{did_you_mean(name, list(table.rows))}'
    return (Issue("judge_unpriced", message, hint, "judge.model"),)


def model_issues(judge: JudgeConfig, answer: Catalog | CatalogError | None) -> tuple[Issue, ...]:
    """The provider's live list has the judge's model, where that list was asked for."""
    if answer is None:
        return ()
    if isinstance(answer, CatalogError):
        return (Issue(answer.code, answer.message, answer.hint, "judge.provider"),)
    if answer.find(judge.model) is not None:
        return ()
    message = f"the judge's model {judge.model!r} is not in the live list of {judge.provider}"
    hint = f"Use an exact id; `autocad-bench-models` prints them.{did_you_mean(judge.model, list(answer.models))}"
    return (Issue("judge_model_unknown", message, hint, "judge.model"),)


def open_judge(
    judge: JudgeConfig, *, endpoint: str | None, key: SecretStr, price: PriceRow | None, ambient: Ambient
) -> Judge:
    """The judge behind its HTTP client. `endpoint` is the operator's own address of the provider, if any."""
    client = ResponsesJudge(
        base=base_url(PROFILES[_PROFILE], endpoint=endpoint, region=None),
        key=key,
        bridge=ThreadBridge(THREADS_MAX, is_abandonable=True),
        utc_now=ambient.utc_now,
    )
    return Judge(config=judge, model=client, price=price, disk=ThreadBridge(4), ambient=ambient)


def judge_of(prepared: PreparedBatch, ambient: Ambient) -> Judge | None:
    """The judge of a batch that passed every check; null when its config has none."""
    config: BatchConfig = prepared.config
    if config.judge is None:
        return None
    assert prepared.judge_key is not None, "a judge without its key is an issue"
    return open_judge(
        config.judge,
        endpoint=config.endpoints.get(config.judge.provider),
        key=prepared.judge_key,
        price=price_of(config.judge, prepared.prices),
        ambient=ambient,
    )
