"""Several runs in one table: a row for each model, a column for each run."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.report import words
from supervisor.report.figures import Group


def side_by_side(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the rows. A cell is mean, interval and coverage; empty where a model is not."""
    found = {(group.label, model.model): model.deterministic for group in groups for model in group.models}
    models = dict.fromkeys(model.model for group in groups for model in group.models)
    rows = []
    for model in models:
        row = [model]
        for group in groups:
            estimate = found.get((group.label, model))
            row.append(
                ""
                if estimate is None
                else f"{words.number(estimate.mean)} {words.interval(estimate.clustered)} {words.coverage(estimate)}"
            )
        rows.append(row)
    return ["model", *(group.label for group in groups)], rows
