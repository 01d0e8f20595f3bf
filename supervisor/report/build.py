"""From runs to a report: groups, comparisons and trends. Refuses to average what was not measured alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from contract.errors import ConfigError
from evaluator_client.statistics import LEVEL, PASS_THRESHOLD, compare_paired, estimate, holm
from supervisor.report.figures import Comparison, Group, ModelFigures, Report, RunFacts, Trend, TrendPoint, Uncounted
from supervisor.report.models import Sample, model_figures, scores_by_task
from supervisor.report.runs import Played, Run


def build_report(runs: Sequence[Run], *, is_pooled: bool, coverage_floor: float | None) -> Report:
    """The report over `runs`, oldest first. `coverage_floor` takes the place of the runs' own.

    With `is_pooled` all runs but re-runs are one group, and equal assignments are repeats. Raises `ConfigError` when
    scores of one group were not made alike.
    """
    first_plays = [run for run in runs if run.state.rerun_of is None]
    if is_pooled and not first_plays:
        raise ConfigError("only re-runs are named", hint="Name the runs that they come from, or leave --pool out.")
    grouped = {"all runs": first_plays} if is_pooled else {run.label: [run] for run in runs}
    groups = [_group(label, members, coverage_floor) for label, members in grouped.items()]
    trends = _trends(first_plays)
    is_rerun_told = is_pooled or bool(trends)
    return Report(
        is_pooled=is_pooled,
        interval_level=LEVEL,
        pass_threshold=PASS_THRESHOLD,
        runs=[_run_facts(run, coverage_floor) for run in runs],
        groups=groups,
        trends=trends,
        left_out=[run.label for run in runs if run.state.rerun_of is not None] if is_rerun_told else [],
        is_below_floor=any(model.is_below_floor for group in groups for model in group.models),
    )


@dataclass(frozen=True, slots=True)
class _Making:
    """What a score was made with; equal for all scores that may be averaged."""

    score_major: str
    evaluator: str
    gold_of: Mapping[str, str]

    def difference_to(self, other: _Making) -> str | None:
        """Why scores of the two may not be averaged or compared; null when they may."""
        if self.score_major != other.score_major:
            return f"score version {self.score_major}.x and {other.score_major}.x"
        if self.evaluator != other.evaluator:
            return f"evaluator {self.evaluator} and {other.evaluator}"
        changed = [task for task, gold in self.gold_of.items() if other.gold_of.get(task, gold) != gold]
        return f"another gold of task {changed[0]!r}" if changed else None


def _makings(run: Run) -> list[_Making]:
    """One for each counted rollout."""
    return [
        _Making(
            score_major=played.score.score_version.split(".")[0],
            evaluator=played.score.inputs.evaluator,
            gold_of={played.score.task_id: played.score.inputs.gold_entry_sha256},
        )
        for played in run.rollouts
        if played.score is not None
    ]


def _difference(runs: Sequence[Run]) -> str | None:
    """Why scores of these runs may not stand in one mean, naming the two runs; null when they may."""
    whole: _Making | None = None
    origin: dict[str, str] = {}
    for run in runs:
        for making in _makings(run):
            (task,) = making.gold_of
            if whole is not None and (reason := whole.difference_to(making)) is not None:
                return f"{origin.get(task, runs[0].label)} and {run.label} have {reason}"
            origin.setdefault(task, run.label)
            known = whole.gold_of if whole is not None else {}
            whole = _Making(making.score_major, making.evaluator, {**known, **making.gold_of})
    return None


def _group(label: str, runs: Sequence[Run], coverage_floor: float | None) -> Group:
    reason = _difference(runs)
    if reason is not None:
        raise ConfigError(
            f"these scores cannot stand in one mean: {reason}",
            hint="Score them again with `evaluate` and report them with --rescored, or leave --pool out.",
            code="scores_not_alike",
        )
    samples = [Sample(run.label, played) for run in runs for played in run.rollouts]
    # In the order of the config, which is that of the suite.
    tasks = list(dict.fromkeys(sample.played.row.task_id for sample in samples))
    names = list(dict.fromkeys(sample.played.model for sample in samples))
    floor = coverage_floor if coverage_floor is not None else max(run.coverage_floor for run in runs)
    of_model = {name: [sample for sample in samples if sample.played.model == name] for name in names}
    figures = [model_figures(name, of_model[name], tasks=tasks, coverage_floor=floor) for name in names]
    figures.sort(key=_best_first)
    return Group(
        label=label,
        runs=[run.label for run in runs],
        config_count=len({run.state.config_sha256 for run in runs}),
        tasks=tasks,
        models=figures,
        comparisons=_comparisons(figures),
        uncounted=[_uncounted(sample) for sample in samples if not sample.played.is_counted],
    )


def _best_first(model: ModelFigures) -> tuple[float, str]:
    mean = model.deterministic.mean
    return (-mean if mean is not None else 1.0, model.model)


def _comparisons(models: Sequence[ModelFigures]) -> list[Comparison]:
    scores = {model.model: {task.task_id: task.scores for task in model.tasks} for model in models}
    pairs = [(first.model, second.model) for first, second in combinations(models, 2)]
    found = [compare_paired(scores[first], scores[second]) for first, second in pairs]
    raised = holm([paired.p_value for paired in found])
    return [
        Comparison(first=first, second=second, paired=paired, p_holm=p_holm)
        for (first, second), paired, p_holm in zip(pairs, found, raised, strict=True)
    ]


def _uncounted(sample: Sample) -> Uncounted:
    row = sample.played.row
    return Uncounted(
        run=sample.run,
        rollout_id=row.rollout_id,
        model=sample.played.model,
        task_id=row.task_id,
        state=(row.outcome or row.phase).value,
        cause=row.cause,
        detail=row.cause_detail or "",
    )


def _trends(runs: Sequence[Run]) -> list[Trend]:
    """One for each benchmark and model that is in at least two runs."""
    seen: dict[tuple[str, str], list[tuple[Run, list[Played]]]] = {}
    for run in runs:
        for model in dict.fromkeys(played.model for played in run.rollouts):
            mine = [played for played in run.rollouts if played.model == model]
            seen.setdefault((run.state.benchmark, model), []).append((run, mine))
    return [
        Trend(benchmark=benchmark, model=model, points=_points(history))
        for (benchmark, model), history in sorted(seen.items())
        if len(history) > 1
    ]


def _points(history: Sequence[tuple[Run, list[Played]]]) -> list[TrendPoint]:
    points = []
    before: tuple[Run, list[Played]] | None = None
    for run, rollouts in history:
        scores = scores_by_task(rollouts)
        reason = _difference([before[0], run]) if before is not None else None
        is_compared = before is not None and reason is None
        points.append(
            TrendPoint(
                run=run.label,
                created_at=run.state.created_at,
                estimate=estimate(scores, expected=len(rollouts)),
                change=compare_paired(scores, scores_by_task(before[1])) if before and is_compared else None,
                break_reason=reason,
            )
        )
        before = (run, rollouts)
    return points


def _run_facts(run: Run, coverage_floor: float | None) -> RunFacts:
    scores = [played.score for played in run.rollouts if played.score is not None]
    origin = run.state.rerun_of
    return RunFacts(
        label=run.label,
        folder=str(run.folder),
        batch_id=run.state.batch_id,
        benchmark=run.state.benchmark,
        status=run.state.status,
        created_at=run.state.created_at,
        config_sha256=run.state.config_sha256,
        evaluators=sorted({score.inputs.evaluator for score in scores}),
        score_versions=sorted({score.score_version for score in scores}),
        judge_ids=sorted({score.vision_judge.judge_id for score in scores if score.vision_judge.judge_id is not None}),
        counted=len(scores),
        enabled=len(run.rollouts),
        coverage=len(scores) / len(run.rollouts) if run.rollouts else 0.0,
        coverage_floor=coverage_floor if coverage_floor is not None else run.coverage_floor,
        rescored=sum(played.is_rescored for played in run.rollouts),
        rerun_of=f"{origin.batch_id}/{origin.rollout_id}" if origin is not None else None,
    )
