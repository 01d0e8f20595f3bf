"""A report as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Final

from rich.console import Console
from rich.table import Table

from supervisor.report import words
from supervisor.report.figures import Group, ModelFigures, Report, Trend
from supervisor.report.side_by_side import side_by_side

# A file or a pipe has no width of its own.
COLUMNS_MIN: Final = 150
# More than this is for the page and the JSON.
COMPARISONS_MAX: Final = 20
UNCOUNTED_MAX: Final = 20
# A folder of nightly runs shows its newest in full, and all of them as trends.
GROUPS_MAX: Final = 4


def print_report(report: Report, stream: IO[str]) -> None:
    """Print the newest groups, then what holds across runs."""
    console = Console(file=stream, highlight=False, markup=False)
    console.width = max(console.width, COLUMNS_MIN)
    shown = report.groups if len(report.groups) <= GROUPS_MAX else report.groups[-1:]
    for group in report.groups:
        if group in shown:
            _print_group(console, group)
        else:
            _print_floors(console, group)
    if len(shown) < len(report.groups):
        _say(console, f"{len(report.groups) - len(shown)} older runs in full: --json or --html")
    elif len(shown) > 1:
        console.print(_side_by_side_table(shown))
    for trend in report.trends:
        console.print(_trend_table(trend))
    if report.left_out:
        _say(console, f"re-runs, in no pool and in no trend: {', '.join(report.left_out)}")
    _say(console, "intervals: 95 %, clustered by task; void rollouts are in no mean and show as coverage")


def _print_group(console: Console, group: Group) -> None:
    console.print(_models_table(group))
    if words.configs(group):
        _say(console, words.configs(group))
    console.print(_effort_table(group))
    if len(group.models) > 1:
        console.print(_comparisons_table(group))
        if len(group.comparisons) > COMPARISONS_MAX:
            _say(console, f"{len(group.comparisons) - COMPARISONS_MAX} more comparisons: --json or --html")
    console.print(_tasks_table(group))
    for model in group.models:
        _print_remarks(console, model)
    _print_floors(console, group)
    for one in group.uncounted[:UNCOUNTED_MAX]:
        why = ": ".join(part for part in (one.cause.value if one.cause else "", one.detail) if part)
        _say(console, f"{one.state}: {one.run}/{one.rollout_id}{': ' if why else ''}{why}")
    if len(group.uncounted) > UNCOUNTED_MAX:
        _say(console, f"{len(group.uncounted) - UNCOUNTED_MAX} more rollouts that do not count: --json or --html")


def _print_floors(console: Console, group: Group) -> None:
    for model in group.models:
        if model.is_below_floor:
            share = f"{model.model} in {group.label}: {words.coverage(model.deterministic)}"
            _say(console, f"below the coverage floor of {model.coverage_floor:g}: {share}")


def _print_remarks(console: Console, model: ModelFigures) -> None:
    if any(rate.k > 1 for rate in model.pass_rates):
        _say(console, f"{model.model}: {words.pass_rates(model)}")
    if model.agreement is not None:
        spearman = words.number(model.agreement.spearman, 3)
        apart = f"mean |J-D| {model.agreement.mean_absolute_difference:.3f} over {model.agreement.count}"
        judges = ", ".join(model.judge_ids)
        said = f"judge {judges} for ${model.cost.judge_usd:.2f}: Spearman {spearman}, {apart}"
        _say(console, f"{model.model}: {said}, {len(model.reviews)} to review")
    for review in model.reviews:
        where = f"{review.run}/{review.rollout_id}"
        _say(console, f"review: {where}: deterministic {review.deterministic:.3f}, judge {review.judge:.3f}")


def _models_table(group: Group) -> Table:
    has_final = any(model.final is not None for model in group.models)
    has_repeats = words.has_repeats(group)
    by_task = ["task mean", "t 95 %"] if has_repeats else []
    names = ["model", "mean", "95 %", *by_task, "bootstrap", "tasks", "coverage", "pass@1"]
    table = _table(group.label, [*names, *(["final", "final 95 %", "judged", "judge"] if has_final else [])], left=1)
    for model in group.models:
        found = model.deterministic
        final = [*words.judged(model.final), ", ".join(model.judge_ids) or words.NOTHING]
        table.add_row(
            model.model,
            words.number(found.mean),
            words.interval(found.clustered),
            *((words.number(found.task_mean), words.interval(found.t)) if has_repeats else ()),
            words.interval(found.bootstrap),
            str(found.task_count),
            words.coverage(found),
            words.number(model.pass_rates[0].any_of_k if model.pass_rates else None, 3),
            *(final if has_final else []),
        )
    return table


def _effort_table(group: Group) -> Table:
    means = ["turns", "actions", "tokens in", "tokens out", "s", "USD each"]
    names = ["model", *means, "USD all", "ended by", "did not count", "invalid", "flags"]
    table = _table("means of the counted rollouts, and how they ended", names, left=1, wide=4)
    for model in group.models:
        table.add_row(
            model.model,
            *(
                words.quantity(spread)
                for spread in (model.turns, model.actions, model.input_tokens, model.output_tokens, model.duration_s)
            ),
            words.mean_cost(model.cost),
            words.total_cost(model.cost),
            words.counts(model.ended_by),
            words.counts(model.causes),
            words.counts(model.invalid_codes),
            words.counts(model.flags),
        )
    return table


def _comparisons_table(group: Group) -> Table:
    names = ["first", "second", "difference", "95 %", "p", "p (Holm)", "tasks", "only one", "says"]
    table = _table("paired by task: first minus second", names, left=2, wide=1)
    for pair in group.comparisons[:COMPARISONS_MAX]:
        paired = pair.paired
        table.add_row(
            pair.first,
            pair.second,
            words.signed(paired.difference),
            words.interval(paired.interval),
            words.p_value(paired.p_value),
            words.p_value(pair.p_holm),
            str(len(paired.tasks)),
            str(len(paired.only_first) + len(paired.only_second)),
            words.verdict(paired, pair.p_holm),
        )
    return table


def _tasks_table(group: Group) -> Table:
    title = "mean by task; counted/expected where not all count; #1 is the first of the models above"
    table = _table(title, ["task", *_numbered(group.models)], left=1)
    for task in group.tasks:
        table.add_row(task, *(_task_cell(model, task) for model in group.models))
    return table


def _numbered(models: Sequence[ModelFigures]) -> Iterable[str]:
    # Names of many models side by side would be wider than any terminal.
    return (model.model for model in models) if len(models) <= 4 else (f"#{rank + 1}" for rank in range(len(models)))


def _task_cell(model: ModelFigures, task: str) -> str:
    found = next((figures for figures in model.tasks if figures.task_id == task), None)
    if found is None:
        return ""
    share = "" if len(found.scores) == found.expected else f" {len(found.scores)}/{found.expected}"
    return f"{words.number(found.mean, 3)}{share}"


def _side_by_side_table(groups: Sequence[Group]) -> Table:
    names, rows = side_by_side(groups)
    table = Table(title="side by side", title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _trend_table(trend: Trend) -> Table:
    title = f"{trend.benchmark}: {trend.model} over time"
    table = _table(title, ["run", "mean", "95 %", "coverage", "change", "p", "remark"], left=1, wide=1)
    for point in trend.points:
        change = point.change
        table.add_row(
            point.run,
            words.number(point.estimate.mean),
            words.interval(point.estimate.clustered),
            words.coverage(point.estimate),
            words.signed(change.difference if change else None),
            words.p_value(change.p_value if change else None),
            f"not comparable: {point.break_reason}" if point.break_reason else "",
        )
    return table


def _table(title: str, names: Sequence[str], *, left: int, wide: int = 0) -> Table:
    """The first `left` columns and the last `wide` ones hold words, which are folded where space is short.

    The rest are numbers, which are never cut: half of a number is another number.
    """
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(names):
        is_words = index < left or index >= len(names) - wide
        table.add_column(name, justify="left" if is_words else "right", no_wrap=not is_words, overflow="fold")
    return table


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True)
