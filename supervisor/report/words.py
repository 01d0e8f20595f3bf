"""Numbers as people read them, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from evaluator_client.statistics import Estimate, Interval, Paired
from supervisor.report.figures import Cost, Group, ModelFigures, Spread

NOTHING: Final = "–"


def number(value: float | None, digits: int = 4) -> str:
    """A fixed number of decimals."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def interval(found: Interval | None) -> str:
    """Both ends."""
    return NOTHING if found is None else f"[{found.low:.3f}, {found.high:.3f}]"


def coverage(found: Estimate) -> str:
    """Counted of expected, and the share."""
    return f"{found.count}/{found.expected} ({found.coverage:.1%})"


def judged(final: Estimate | None) -> tuple[str, str, str]:
    """Mean, interval and coverage of final scores, which may cover fewer rollouts than the deterministic ones."""
    if final is None:
        return NOTHING, NOTHING, NOTHING
    return number(final.mean), interval(final.clustered), coverage(final)


def signed(value: float | None) -> str:
    """A difference, with its sign."""
    return NOTHING if value is None else f"{value:+.4f}"


def p_value(value: float | None) -> str:
    """Three decimals, or that it is smaller."""
    if value is None:
        return NOTHING
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def verdict(paired: Paired, p_holm: float | None) -> str:
    """What a comparison says at the level of its interval."""
    if paired.difference is None:
        return "no task in common"
    if p_holm is None:
        return "too few tasks" if len(paired.tasks) < 2 else "no spread to judge by"
    return "differs" if p_holm < 0.05 else "no difference shown"


def quantity(spread: Spread) -> str:
    """The mean of something that is counted."""
    if spread.mean is None:
        return NOTHING
    return f"{spread.mean:,.1f}" if spread.mean < 1000 else f"{spread.mean:,.0f}"


def mean_cost(cost: Cost) -> str:
    """US dollars a counted rollout; `>=` marks a lower bound."""
    return "unknown" if cost.mean_usd is None else _bounded(cost.mean_usd, is_bound=cost.is_lower_bound)


def total_cost(cost: Cost) -> str:
    """US dollars of all rollouts; `>=` marks that some of them or some requests are of unknown cost."""
    if cost.rollouts_of_unknown_cost and not cost.known_usd:
        return "unknown"
    is_bound = bool(cost.rollouts_of_unknown_cost or cost.requests_of_unknown_cost)
    return _bounded(cost.known_usd, is_bound=is_bound)


def _bounded(usd: Decimal, *, is_bound: bool) -> str:
    shown = f"{usd:.4f}" if 0 < usd < 1 else f"{usd:.2f}"
    return f">= {shown}" if is_bound else shown


def counts(found: Mapping[str, int]) -> str:
    """Names with their counts."""
    return ", ".join(f"{name} {count}" for name, count in found.items()) or NOTHING


def has_repeats(group: Group) -> bool:
    """True when the clustered interval and that of the task means may differ."""
    return any(task.expected > 1 for model in group.models for task in model.tasks)


def configs(group: Group) -> str:
    """What to know about a pool of several configs; empty for one."""
    return f"pooled from {group.config_count} different configs" if group.config_count > 1 else ""


def pass_rates(model: ModelFigures) -> str:
    """Every k, with the number of tasks behind it."""
    return "; ".join(
        f"pass@{rate.k} {rate.any_of_k:.3f}, pass^{rate.k} {rate.all_of_k:.3f} ({rate.task_count} tasks)"
        for rate in model.pass_rates
    )
