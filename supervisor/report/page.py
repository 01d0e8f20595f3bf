"""A report as one page that needs nothing else: no script, no font, no request; light or dark as its reader has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from supervisor.report import words
from supervisor.report.figures import Group, ModelFigures, Report
from supervisor.report.plots import heat_map, pareto, trend_plot
from supervisor.report.side_by_side import side_by_side

# Whatever a name in a config may hold, the page loads and runs nothing.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
STYLE: Final = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--soft:#59636e;--rule:#d1d9e0;--accent:#0b62c4;--heat:#86b9f5}
@media(prefers-color-scheme:dark){:root{--page:#0f1318;--ink:#e8edf2;--soft:#9aa6b2;--rule:#333c46;--accent:#6fb1ff;
--heat:#265b9c}}
body{background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.5rem;border-top:1px solid var(--rule);padding-top:1rem}
h3{font-size:1rem;margin:1.5rem 0 .5rem}p,li{max-width:60rem}.note{color:var(--soft)}.warn{font-weight:600}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:600}.w{text-align:left}td.w:last-child{white-space:normal;min-width:18rem}
svg{display:block;height:auto;width:100%}svg[width]{width:auto}svg text{fill:var(--ink);font-size:12px}
.grid{stroke:var(--rule)}.bar{stroke:var(--soft);stroke-width:1.5}.break{stroke:var(--ink);stroke-dasharray:3 4}
.line{fill:none;stroke:var(--accent);stroke-width:1.5}.dot{fill:var(--accent);stroke:var(--accent);stroke-width:2}
.weak{fill:var(--soft);stroke:var(--soft)}.hollow{fill:var(--page)}.heat{fill:var(--heat)}
.void{fill:none;stroke:var(--soft);stroke-dasharray:4 3}.label{paint-order:stroke;stroke:var(--page);stroke-width:4px}
"""


def page_bytes(report: Report) -> bytes:
    """The whole page, UTF-8. The same report gives the same bytes."""
    floors = {run.label: run.coverage_floor for run in report.runs}
    parts = [
        "<h1>Benchmark report</h1>",
        _note(
            "Scores are deterministic unless a column says final. Intervals are 95 %, with errors clustered by task. "
            "Void rollouts are in no mean; they show as coverage, which is counted over enabled rollouts. "
            "Costs with >= are lower bounds: some requests were never answered."
        ),
        *([_warning("At least one mean is below its coverage floor.")] if report.is_below_floor else []),
        "<h2>Runs</h2>",
        _runs_table(report),
        *_side_by_side(report),
        *(part for group in report.groups for part in _group(group)),
    ]
    if report.trends:
        parts += [
            "<h2>Over time</h2>",
            _note("A dashed line parts runs that cannot be compared; hollow points are below their coverage floor."),
        ]
    for trend in report.trends:
        parts += [f"<h3>{escape(trend.benchmark)}: {escape(trend.model)}</h3>", trend_plot(trend, floors)]
        reasons = [f"{point.run}: {point.break_reason}" for point in trend.points if point.break_reason]
        parts += [_note("; ".join(reasons))] if reasons else []
    if report.left_out:
        parts.append(_note(f"Re-runs, in no pool and in no trend: {', '.join(report.left_out)}"))
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Benchmark report</title><style>{STYLE}</style></head><body>"
    )
    return "\n".join([head, *parts, "</body></html>\n"]).encode()


def _runs_table(report: Report) -> str:
    rows = [
        (
            run.label,
            run.benchmark,
            run.status.value,
            f"{run.created_at:%Y-%m-%d %H:%M}",
            f"{run.counted}/{run.enabled} ({run.coverage:.1%})"
            + (f", {run.rescored} scored again" if run.rescored else ""),
            ", ".join(run.evaluators),
            ", ".join(run.score_versions),
            ", ".join(run.judge_ids) or words.NOTHING,
            run.batch_id + (f", re-run of {run.rerun_of}" if run.rerun_of else ""),
        )
        for run in report.runs
    ]
    names = ("run", "benchmark", "status", "begun (UTC)", "counted", "evaluator", "score version", "judge", "batch")
    return _table(names, rows, words_in={0, 1, 2, 3, 5, 6, 7, 8})


def _side_by_side(report: Report) -> Iterable[str]:
    if len(report.groups) < 2:
        return
    yield "<h2>Side by side</h2>"
    names, rows = side_by_side(report.groups)
    yield _table(names, rows, words_in={0})


def _group(group: Group) -> Iterable[str]:
    yield f"<h2>{escape(group.label)}</h2>"
    yield _models_table(group)
    if words.configs(group):
        yield _note(words.configs(group))
    for model in group.models:
        if model.is_below_floor:
            share = words.coverage(model.deterministic)
            yield _warning(f"{model.model} is below the coverage floor of {model.coverage_floor:g}: {share}")
    yield "<h3>Cost and score</h3>"
    plot = pareto(group)
    unknown = [model.model for model in group.models if model.cost.mean_usd is None]
    yield plot if plot is not None else _note("No plot: no model is known to have cost anything.")
    if plot is not None:
        yield _note(
            "#1 is the first model of the table. The line is what nothing cheaper reaches. Hollow points are never on "
            "it: their coverage is below the floor, or (→) their cost is a lower bound."
        )
    if unknown:
        yield _note(f"Of unknown cost: {', '.join(unknown)}")
    yield f'<h3>By task</h3><div class="wide">{heat_map(group)}</div>'
    if group.comparisons:
        yield "<h3>Paired by task: first minus second</h3>"
        yield _comparisons_table(group)
    yield "<h3>Effort and ends</h3>"
    yield _effort_table(group)
    yield from _judge(group.models)
    if group.uncounted:
        yield "<h3>Rollouts that do not count</h3>"
        rows = [
            (
                one.run,
                one.rollout_id,
                one.model,
                one.task_id,
                one.state,
                one.cause.value if one.cause else "",
                one.detail,
            )
            for one in group.uncounted
        ]
        names = ("run", "rollout", "model", "task", "state", "cause", "detail")
        yield _table(names, rows, words_in=set(range(len(names))))


def _models_table(group: Group) -> str:
    has_final = any(model.final is not None for model in group.models)
    has_repeats = words.has_repeats(group)
    rows = []
    for rank, model in enumerate(group.models, start=1):
        found = model.deterministic
        judged = (*words.judged(model.final), ", ".join(model.judge_ids) or words.NOTHING)
        rows.append(
            (
                f"#{rank} {model.model}",
                words.number(found.mean),
                words.interval(found.clustered),
                *((words.number(found.task_mean), words.interval(found.t)) if has_repeats else ()),
                words.interval(found.bootstrap),
                words.coverage(found),
                str(found.task_count),
                *(judged if has_final else ()),
                words.mean_cost(model.cost),
                words.total_cost(model.cost),
                words.pass_rates(model),
            )
        )
    by_task = ("task mean", "t 95 %") if has_repeats else ()
    final = ("final", "final 95 %", "judged", "judge") if has_final else ()
    means = ("mean", "95 %", *by_task, "bootstrap", "coverage", "tasks", *final)
    names = ("model", *means, "USD each", "USD all", "at 0.9")
    return _table(names, rows, words_in={0, len(names) - 1})


def _comparisons_table(group: Group) -> str:
    rows = [
        (
            pair.first,
            pair.second,
            words.signed(pair.paired.difference),
            words.interval(pair.paired.interval),
            words.p_value(pair.paired.p_value),
            words.p_value(pair.p_holm),
            str(len(pair.paired.tasks)),
            str(len(pair.paired.only_first) + len(pair.paired.only_second)),
            words.verdict(pair.paired, pair.p_holm),
        )
        for pair in group.comparisons
    ]
    names = ("first", "second", "difference", "95 %", "p", "p (Holm)", "tasks", "only one", "says")
    return _table(names, rows, words_in={0, 1, 8})


def _effort_table(group: Group) -> str:
    rows = [
        (
            model.model,
            *(
                words.quantity(spread)
                for spread in (model.turns, model.actions, model.input_tokens, model.output_tokens, model.duration_s)
            ),
            words.counts(model.turn_results),
            words.counts(model.ended_by),
            words.counts(model.causes),
            words.counts(model.invalid_codes),
            words.counts(model.flags),
        )
        for model in group.models
    ]
    means = ("turns", "actions", "tokens in", "tokens out", "s")
    names = ("model", *means, "all turns", "ended by", "did not count", "invalid", "flags")
    return _table(names, rows, words_in={0, 6, 7, 8, 9, 10})


def _judge(models: Sequence[ModelFigures]) -> Iterable[str]:
    rows = [
        (
            model.model,
            ", ".join(model.judge_ids),
            str(model.agreement.count),
            words.number(model.agreement.spearman, 3),
            words.number(model.agreement.mean_absolute_difference, 3),
            ", ".join(
                f"{one.run}/{one.rollout_id} ({one.deterministic:.2f}, judge {one.judge:.2f})" for one in model.reviews
            ),
        )
        for model in models
        if model.agreement is not None
    ]
    if rows:
        yield "<h3>Judge beside deterministic score</h3>"
        names = ("model", "judge", "rollouts", "Spearman", "mean |J − D|", "to review")
        yield _table(names, rows, words_in={0, 1, 5})


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], *, words_in: set[int]) -> str:
    def cell(tag: str, index: int, said: str) -> str:
        kind = ' class="w"' if index in words_in else ""
        return f"<{tag}{kind}>{escape(said)}</{tag}>"

    head = "".join(cell("th", index, name) for index, name in enumerate(names))
    body = "".join(f"<tr>{''.join(cell('td', index, said) for index, said in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _note(said: str) -> str:
    return f'<p class="note">{escape(said)}</p>'


def _warning(said: str) -> str:
    return f'<p class="warn">⚠ {escape(said)}</p>'
