"""Plots as inline SVG. Colours are variables of the page, so that they follow its light or dark scheme.

No plot leans on colour alone: points have numbers, cells hold their value, and what is unsure is drawn hollow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from supervisor.report import words
from supervisor.report.figures import Group, ModelFigures, TaskFigures, Trend

PARETO_PX: Final = (760, 380)
TREND_PX: Final = (760, 170)
CELL_PX: Final = (76, 28)
# Costs this many times apart would sit on top of each other on a linear axis.
LOG_FROM_RATIO: Final = 20.0
LABEL_CHARACTERS_MAX: Final = 34


@dataclass(frozen=True, slots=True)
class _Point:
    """One model in the plot of cost and score; `rank` is its number in the table of models."""

    rank: int
    model: ModelFigures
    usd: float
    mean: float

    @property
    def is_unsure(self) -> bool:
        """True when its cost may be higher, or too little counts for its mean."""
        return self.model.cost.is_lower_bound or self.model.is_below_floor


def pareto(group: Group) -> str | None:
    """Mean cost against mean score, with the frontier; null when no model is known to have cost anything."""
    points = [
        _Point(rank, model, float(model.cost.mean_usd), model.deterministic.mean)
        for rank, model in enumerate(group.models, start=1)
        if model.cost.mean_usd is not None and model.deterministic.mean is not None
    ]
    if not any(point.usd for point in points):
        return None
    width, height = PARETO_PX
    place_x, ticks = _cost_axis([point.usd for point in points], left=56, right=width - 24)

    def place_y(score: float) -> float:
        return height - 48 - (height - 72) * min(1.0, max(0.0, score))

    parts = [*_score_grid(place_y, left=56, right=width - 24)]
    parts += [_text(place_x(usd), height - 28, f"${usd:g}", anchor="middle") for usd in ticks]
    parts.append(
        _text((56 + width - 24) / 2, height - 8, "mean cost of a counted rollout, US dollars", anchor="middle")
    )
    frontier = pareto_frontier([(point.usd, point.mean, point.is_unsure) for point in points])
    steps = [(place_x(points[index].usd), place_y(points[index].mean)) for index in frontier]
    parts.append(_steps(steps, end=width - 24))
    for index, point in enumerate(points):
        parts.extend(_pareto_point(point, place_x(point.usd), place_y, is_best=index in frontier))
    return _svg(width, height, "Cost and score of each model", parts)


def pareto_frontier(points: Sequence[tuple[float, float, bool]]) -> list[int]:
    """Positions of (cost, score, is unsure) that nothing cheaper reaches, cheapest first; never what is unsure."""
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1]))
    best = -math.inf
    frontier = []
    for index in order:
        _, score, is_unsure = points[index]
        if score > best and not is_unsure:
            best = score
            frontier.append(index)
    return frontier


def heat_map(group: Group) -> str:
    """Mean score of each model on each task; a dashed cell has no counted rollout, an absent one was not played."""
    left, top = 290, 96
    cell_width, cell_height = CELL_PX
    width = left + cell_width * len(group.tasks) + 60
    height = top + cell_height * len(group.models) + 12
    parts = []
    for column, task in enumerate(group.tasks):
        x = left + cell_width * (column + 0.5)
        parts.append(
            f'<text transform="translate({x:.1f} {top - 8}) rotate(-32)">{escape(_cut(task))}{_title(task)}</text>'
        )
    for row, model in enumerate(group.models):
        y = top + cell_height * row
        label = f"#{row + 1} {model.model}"
        parts.append(_text(left - 8, y + cell_height / 2 + 4, _cut(label), anchor="end", title=label))
        figures = {task.task_id: task for task in model.tasks}
        for column, task in enumerate(group.tasks):
            if task in figures:
                parts.extend(_cell(left + cell_width * column, y, figures[task], model.model))
    return _svg(width, height, "Mean score by model and task", parts, is_fixed=True)


def trend_plot(trend: Trend, floors: Mapping[str, float]) -> str:
    """The mean of one model in each run with its interval; `floors` are the runs' coverage floors, by label."""
    width, height = TREND_PX
    left, right = 56, width - 24

    def place_y(score: float) -> float:
        return height - 40 - (height - 60) * min(1.0, max(0.0, score))

    spacing = (right - left - 40) / max(1, len(trend.points) - 1)
    parts = [*_score_grid(place_y, left=left, right=right)]
    line: list[str] = []
    for index, point in enumerate(trend.points):
        x, found = left + 20 + spacing * index, point.estimate
        if point.break_reason is not None:
            parts.append(
                f'<line class="break" x1="{x - spacing / 2:.1f}" x2="{x - spacing / 2:.1f}" y1="12" y2="{height - 40}">'
                f"{_title(point.break_reason)}</line>"
            )
        if found.mean is None:
            line.append("")
            parts.append(_text(x, place_y(0.5), "none counted", anchor="middle"))
            continue
        is_joined = bool(line) and line[-1] != "" and point.break_reason is None
        line.append(f"{'L' if is_joined else 'M'}{x:.1f} {place_y(found.mean):.1f}")
        if found.clustered is not None:
            parts.append(_bar(x, place_y(found.clustered.low), place_y(found.clustered.high)))
        is_unsure = found.coverage < floors.get(point.run, 0.0)
        title = f"{point.run}: {words.number(found.mean)} {words.interval(found.clustered)}, {words.coverage(found)}"
        parts.append(_dot(x, place_y(found.mean), is_hollow=is_unsure, title=title))
    # Below the dots, which may be hollow.
    parts.insert(0, f'<path class="line" d="{" ".join(part for part in line if part)}"/>')
    first, last = trend.points[0], trend.points[-1]
    parts.append(_text(left + 20, height - 16, f"{first.created_at:%Y-%m-%d} {_cut(first.run)}", anchor="start"))
    parts.append(_text(right, height - 16, f"{last.created_at:%Y-%m-%d} {_cut(last.run)}", anchor="end"))
    return _svg(width, height, f"{trend.model} over time", parts)


def _cost_axis(costs: Sequence[float], *, left: float, right: float) -> tuple[Callable[[float], float], list[float]]:
    """Where a cost stands, and the costs that are written below the axis."""
    low, high = min(costs), max(costs)
    if low > 0 and high / low >= LOG_FROM_RATIO:
        bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
        scale = (right - left - 40) / (top - bottom)
        return (lambda usd: left + 20 + (math.log10(usd) - bottom) * scale), [10.0**n for n in range(bottom, top + 1)]
    step = 10 ** math.floor(math.log10(high))
    step = next(size for size in (step / 5, step / 2, step, step * 2) if high / size <= 6)
    ticks = [step * n for n in range(math.ceil(high / step) + 1)]
    return (lambda usd: left + 20 + usd / ticks[-1] * (right - left - 40)), ticks


def _pareto_point(point: _Point, x: float, place_y: Callable[[float], float], *, is_best: bool) -> Iterable[str]:
    found, cost = point.model.deterministic, point.model.cost
    if found.clustered is not None:
        yield _bar(x, place_y(found.clustered.low), place_y(found.clustered.high))
    y = place_y(point.mean)
    title = f"{point.model.model}: {words.number(point.mean)}, ${words.mean_cost(cost)}, {words.coverage(found)}"
    yield _dot(x, y, is_hollow=point.is_unsure, title=title, is_strong=is_best)
    arrow = " →" if cost.is_lower_bound else ""
    yield _text(x + 9, y - 7, f"#{point.rank}{arrow}", anchor="start", is_on_lines=True)


def _cell(x: float, y: float, figures: TaskFigures, model: str) -> Iterable[str]:
    width, height = CELL_PX
    share = f"{len(figures.scores)}/{figures.expected}"
    title = _title(f"{model}, {figures.task_id}: {words.number(figures.mean)}, {share} counted")
    shape = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{width - 2}" height="{height - 2}" rx="3"'
    if figures.mean is None:
        yield f'<rect class="void" {shape}>{title}</rect>'
        yield _text(x + width / 2, y + height / 2 + 4, share, anchor="middle")
        return
    yield f'<rect class="heat" {shape} fill-opacity="{0.06 + 0.94 * figures.mean:.3f}">{title}</rect>'
    partial = "" if len(figures.scores) == figures.expected else f" {share}"
    yield _text(x + width / 2, y + height / 2 + 4, f"{figures.mean:.2f}{partial}", anchor="middle")


def _score_grid(place_y: Callable[[float], float], *, left: float, right: float) -> Iterable[str]:
    for score in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = place_y(score)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        if score in (0.0, 0.5, 1.0):
            yield _text(left - 8, y + 4, f"{score:.1f}", anchor="end")


def _steps(corners: Sequence[tuple[float, float]], *, end: float) -> str:
    if not corners:
        return ""
    path = [f"M{corners[0][0]:.1f} {corners[0][1]:.1f}"]
    path += [f"H{x:.1f}V{y:.1f}" for x, y in corners[1:]]
    return f'<path class="line" d="{"".join(path)}H{end:.1f}"/>'


def _bar(x: float, y_low: float, y_high: float) -> str:
    return f'<line class="bar" x1="{x:.1f}" x2="{x:.1f}" y1="{y_low:.1f}" y2="{y_high:.1f}"/>'


def _dot(x: float, y: float, *, is_hollow: bool, title: str, is_strong: bool = True) -> str:
    kind = "dot" + (" hollow" if is_hollow else "") + ("" if is_strong else " weak")
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5">{_title(title)}</circle>'


def _text(x: float, y: float, said: str, *, anchor: str, title: str = "", is_on_lines: bool = False) -> str:
    inner = f"{escape(said)}{_title(title) if title else ''}"
    kind = ' class="label"' if is_on_lines else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{inner}</text>'


def _title(said: str) -> str:
    return f"<title>{escape(said)}</title>"


def _cut(name: str) -> str:
    return name if len(name) <= LABEL_CHARACTERS_MAX else f"{name[: LABEL_CHARACTERS_MAX - 1]}…"


def _svg(width: float, height: float, label: str, parts: Iterable[str], *, is_fixed: bool = False) -> str:
    size = f'width="{width}" height="{height}"' if is_fixed else f'style="max-width:{width}px"'
    return f'<svg viewBox="0 0 {width} {height}" {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
