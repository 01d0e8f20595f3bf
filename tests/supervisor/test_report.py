"""`report` says what run folders hold: coverage beside each mean, no void in any, one line for what it cannot read."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from contract.batch_records import Link
from contract.phases import Cause
from supervisor.report.plots import pareto_frontier
from supervisor.summary import print_summary
from tests.run_folders import End, again, write_run

GOOD = [End("good", "a", 0.9), End("good", "b", 0.7), End("good", "c", 1.0)]
POOR = [
    End("poor", "a", 0.5, cost_usd="0.1"),
    End("poor", "b", 0.4, cost_usd="0.1"),
    End("poor", "c", 0.3, cost_usd="0.1"),
]
VOID = End("good", "c", cause=Cause.BROKER_DIED)


def _report(plan_world: Any, *arguments: object) -> tuple[int, dict[str, Any]]:
    ran = plan_world.bench("report", *map(str, arguments), "--json")
    assert "" == ran.stderr
    return ran.exit_code, json.loads(ran.stdout)


def _model(document: dict[str, Any], name: str, group: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = next(
        model for model in document["groups"][group]["models"] if f"openai/{name}" == model["model"]
    )
    return found


def test_models_stand_best_first_with_count_and_coverage(plan_world: Any, tmp_path: Path) -> None:
    """A mean without them is no result."""
    folder = write_run(tmp_path / "one", POOR + GOOD).root

    code, document = _report(plan_world, folder)

    assert 0 == code
    assert ["openai/good", "openai/poor"] == [model["model"] for model in document["groups"][0]["models"]]
    found = _model(document, "good")["deterministic"]
    assert (3, 3, 1.0, 3) == (found["count"], found["expected"], found["coverage"], found["task_count"])
    assert pytest.approx(2.6 / 3) == found["mean"]


@pytest.mark.parametrize("missing", [VOID, End("good", "c")])
def test_what_does_not_count_is_in_no_mean_and_below_the_floor_ends_with_1(
    plan_world: Any, tmp_path: Path, missing: End
) -> None:
    """Neither a void rollout nor one that still waits is a zero."""
    folder = write_run(tmp_path / "one", [*GOOD[:2], missing]).root

    code, document = _report(plan_world, folder)

    found = _model(document, "good")
    assert (1, True) == (code, found["is_below_floor"])
    assert pytest.approx(0.8) == found["deterministic"]["mean"]
    assert (2, 3) == (found["deterministic"]["count"], found["deterministic"]["expected"])
    assert ["r-2"] == [one["rollout_id"] for one in document["groups"][0]["uncounted"]]
    assert {str(missing.cause): 1} if missing.cause else {} == found["causes"]


def test_the_floor_is_the_configs_unless_another_is_named(plan_world: Any, tmp_path: Path) -> None:
    """A batch that expects losses says so before it is played."""
    folder = write_run(tmp_path / "one", [*GOOD[:2], VOID], coverage_floor=0.6).root

    assert 0 == _report(plan_world, folder)[0]
    assert 1 == _report(plan_world, folder, "--coverage-floor", "0.7")[0]


def test_the_batchs_own_summary_says_that_coverage_is_too_low(tmp_path: Path) -> None:
    """Whoever reads only the end of a batch must not take its mean for a result."""
    batch_dir = write_run(tmp_path / "one", [*GOOD[:2], VOID])
    table, document = io.StringIO(), io.StringIO()

    print_summary(batch_dir, as_json=False, stream=table, exit_code=1)
    print_summary(batch_dir, as_json=True, stream=document, exit_code=1)

    assert "below the floor of 0.9" in table.getvalue()
    score = json.loads(document.getvalue())["score"]
    assert (pytest.approx(2 / 3), 0.9) == (score["coverage"], score["coverage_floor"])


def test_models_are_compared_on_the_tasks_they_share(plan_world: Any, tmp_path: Path) -> None:
    """A task that only one of them has says nothing about the other."""
    folder = write_run(tmp_path / "one", [*GOOD, *POOR[:2], End("poor", "c", cause=Cause.DISK)]).root

    _, document = _report(plan_world, folder)

    (pair,) = document["groups"][0]["comparisons"]
    assert ("openai/good", "openai/poor") == (pair["first"], pair["second"])
    assert pytest.approx(0.35) == pair["paired"]["difference"]
    assert (["a", "b"], ["c"]) == (pair["paired"]["tasks"], pair["paired"]["only_first"])


def test_runs_are_apart_unless_pooled_and_then_are_repeats(plan_world: Any, tmp_path: Path) -> None:
    """An assignment is played once in a batch, so pass@k needs several."""
    first = write_run(tmp_path / "runs" / "one", GOOD).root
    second = write_run(tmp_path / "runs" / "two", again(GOOD, score=0.95), day=1).root

    _, apart = _report(plan_world, first, second)
    _, pooled = _report(plan_world, tmp_path / "runs", "--pool")

    assert ["one", "two"] == [group["label"] for group in apart["groups"]]
    (group,) = pooled["groups"]
    found = group["models"][0]
    assert (6, 3) == (found["deterministic"]["count"], found["deterministic"]["task_count"])
    # a 2/2, b 1/2 and c 2/2 pass.
    assert [(1, pytest.approx(5 / 6)), (2, 1.0)] == [(rate["k"], rate["any_of_k"]) for rate in found["pass_rates"]]
    assert pytest.approx([5 / 6, 2 / 3]) == [rate["all_of_k"] for rate in found["pass_rates"]]
    assert "t 95 %" in plan_world.bench("report", str(tmp_path / "runs"), "--pool").stdout


@pytest.mark.parametrize(
    ("change", "said"), [({"score_version": "2.0"}, "score version"), ({"gold": "b"}, "gold of task")]
)
def test_scores_that_were_not_made_alike_are_never_averaged(
    plan_world: Any, tmp_path: Path, change: dict[str, str], said: str
) -> None:
    """The pool is refused; the trend shows both and does not subtract them."""
    folders = [write_run(tmp_path / "one", GOOD).root, write_run(tmp_path / "two", again(GOOD, **change), day=1).root]

    ran = plan_world.bench("report", "--pool", *map(str, folders))
    code, apart = _report(plan_world, *folders)

    assert (2, "") == (ran.exit_code, ran.stdout)
    assert said in ran.stderr
    assert "one and two" in ran.stderr
    last = apart["trends"][0]["points"][-1]
    assert (0, None) == (code, last["change"])
    assert said in last["break_reason"]


def test_scores_made_again_alike_can_be_pooled(plan_world: Any, tmp_path: Path) -> None:
    """The newest later score takes the place of the first one, and only when it is asked for."""
    first = write_run(tmp_path / "one", GOOD)
    second = write_run(tmp_path / "two", again(GOOD, gold="b"), day=1)
    for number in range(3):
        for later in (1, 2):
            target = second.rollout(f"r-{number}").evaluation.rescore(later).score
            target.parent.mkdir(parents=True)
            source = first.rollout(f"r-{number}").evaluation.score.read_text()
            target.write_text(source.replace('"1.0"', f'"1.{later}"'))
        # What an `evaluate` that was killed leaves: a folder that has no score yet.
        second.rollout(f"r-{number}").evaluation.rescore(3).root.mkdir()

    folders = [str(first.root), str(second.root), "--pool"]
    code, document = _report(plan_world, *folders, "--rescored")

    assert 2 == plan_world.bench("report", *folders).exit_code
    assert (0, [0, 3]) == (code, [run["rescored"] for run in document["runs"]])
    assert ["1.2"] == document["runs"][1]["score_versions"]


def test_a_minor_score_version_may_be_averaged(plan_world: Any, tmp_path: Path) -> None:
    """It adds fields and changes no number."""
    folders = [
        write_run(tmp_path / "one", GOOD).root,
        write_run(tmp_path / "two", again(GOOD, score_version="1.1")).root,
    ]

    assert 0 == _report(plan_world, *folders, "--pool")[0]


def test_a_folder_of_runs_gives_the_trend_in_order_of_time(plan_world: Any, tmp_path: Path) -> None:
    """Names do not decide; other folders beside the runs are passed over."""
    write_run(tmp_path / "z-first", GOOD)
    write_run(tmp_path / "a-last", again(GOOD, score=0.5), day=1)
    (tmp_path / "notes").mkdir()

    _, document = _report(plan_world, tmp_path)

    (trend,) = document["trends"]
    assert ["z-first", "a-last"] == [point["run"] for point in trend["points"]]
    assert pytest.approx(0.5 - 2.6 / 3) == trend["points"][1]["change"]["difference"]


def test_a_re_run_is_in_no_pool_and_in_no_trend(plan_world: Any, tmp_path: Path) -> None:
    """A person chose it after seeing a result."""
    write_run(tmp_path / "one", GOOD)
    origin = Link(batch_dir="one", batch_id="b-one", rollout_id="r-0")
    write_run(tmp_path / "two", [End("good", "a", 1.0)], day=1, rerun_of=origin)

    _, document = _report(plan_world, tmp_path, "--pool")

    assert (["two"], []) == (document["left_out"], document["trends"])
    assert 3 == document["groups"][0]["models"][0]["deterministic"]["count"]


def test_an_unknown_cost_stays_unknown_and_a_lower_bound_is_marked(plan_world: Any, tmp_path: Path) -> None:
    """Neither becomes a number that looks paid."""
    known = [End("bound", "a", 0.5, cost_usd="1.5", requests_of_unknown_cost=2), End("bound", "b", 0.5)]
    unknown = [End("unknown", "a", 0.5), End("unknown", "b", 0.5, cost_usd=None)]
    folder = write_run(tmp_path / "one", known + unknown).root

    _, document = _report(plan_world, folder)
    table = plan_world.bench("report", str(folder)).stdout

    bound, open_ended = _model(document, "bound")["cost"], _model(document, "unknown")["cost"]
    assert ("1.000000", True, 2) == (bound["mean_usd"], bound["is_lower_bound"], bound["requests_of_unknown_cost"])
    assert (None, "0.5", 1) == (open_ended["mean_usd"], open_ended["known_usd"], open_ended["rollouts_of_unknown_cost"])
    assert ">= 1.00" in table
    assert "unknown" in table


def test_a_void_rollout_costs_but_makes_no_score_dearer(plan_world: Any, tmp_path: Path) -> None:
    """What was paid is paid; the mean is over what counts."""
    folder = write_run(tmp_path / "one", [*GOOD[:2], End("good", "c", cause=Cause.DISK, cost_usd="7")]).root

    cost = _model(_report(plan_world, folder)[1], "good")["cost"]

    assert ("8.0", "0.500000") == (cost["known_usd"], cost["mean_usd"])


def test_effort_is_over_what_counts_and_turns_are_counted(plan_world: Any, tmp_path: Path) -> None:
    """Tokens, turns, actions and time of a void rollout would say nothing about the model."""
    folder = write_run(tmp_path / "one", [*GOOD[:2], VOID]).root

    found = _model(_report(plan_world, folder)[1], "good")

    assert (2, 4.0, 150.0, 20.0) == (
        found["turns"]["count"],
        found["turns"]["mean"],
        found["input_tokens"]["mean"],
        found["output_tokens"]["median"],
    )
    assert {"acted": 12} == found["turn_results"]
    assert 300 == found["usage"]["input"]


def test_the_judge_stands_beside_the_score_and_is_named(plan_world: Any, tmp_path: Path) -> None:
    """Only `final` holds the judge's part, and far-apart pairs are listed for a person."""
    ends = [End("good", "a", 0.9, judge=0.8), End("good", "b", 0.5, judge=0.9), End("good", "c", 0.2, judge=0.1)]
    folder = write_run(tmp_path / "one", ends).root

    found = _model(_report(plan_world, folder)[1], "good")

    assert (["vj-1"], pytest.approx(0.5)) == (found["judge_ids"], found["agreement"]["spearman"])
    assert pytest.approx((0.1 + 0.4 + 0.1) / 3) == found["agreement"]["mean_absolute_difference"]
    assert ["r-1"] == [review["rollout_id"] for review in found["reviews"]]
    assert pytest.approx((0.88 + 0.58 + 0.18) / 3) == found["final"]["mean"]
    assert pytest.approx(1.6 / 3) == found["deterministic"]["mean"]


def test_the_csv_holds_every_rollout_and_no_formula(plan_world: Any, tmp_path: Path) -> None:
    """Every number of the report can be made again from it."""
    folder = write_run(tmp_path / "one", [End("=1+1", "a", 0.5), VOID]).root
    path = tmp_path / "rollouts.csv"

    plan_world.bench("report", str(folder), "--csv", str(path))

    first, second = csv.DictReader(io.StringIO(path.read_text()))
    assert ("'=1+1", "0.5", "scored", "0.5") == (first["model"], first["score"], first["outcome"], first["cost_usd"])
    assert ("", "void", "broker_died") == (second["score"], second["outcome"], second["cause"])


def _page(plan_world: Any, tmp_path: Path) -> str:
    write_run(tmp_path / "runs" / "one", [*GOOD, *POOR, End("<script>x</script>", "a", 0.1)])
    write_run(tmp_path / "runs" / "two", again([*GOOD, *POOR], gold="b"), day=1)
    path = tmp_path / "report.html"
    plan_world.bench("report", str(tmp_path / "runs"), "--html", str(path))
    return path.read_text()


def test_the_page_needs_and_runs_nothing(plan_world: Any, tmp_path: Path) -> None:
    """It is read years later, mailed, and opened from a disk; a name in a config is text."""
    page = _page(plan_world, tmp_path)

    assert "default-src 'none'" in page
    assert [] == re.findall(r"<script|<img|<link|@import|url\(|https?://|src=|href=", page)
    assert "&lt;script&gt;" in page
    assert "prefers-color-scheme:dark" in page


def test_the_pages_plots_are_whole(plan_world: Any, tmp_path: Path) -> None:
    """Cost and score, tasks, and time; each is well-formed and says what it is."""
    svgs = [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", _page(plan_world, tmp_path), re.DOTALL)]
    labels = [svg.attrib["aria-label"] for svg in svgs]

    assert 2 == labels.count("Cost and score of each model")
    assert 2 == labels.count("Mean score by model and task")
    assert {"openai/good over time", "openai/poor over time"} <= set(labels)
    assert not any("nan" in ET.tostring(svg, encoding="unicode") for svg in svgs)


def test_the_same_runs_give_the_same_bytes(plan_world: Any, tmp_path: Path) -> None:
    """In any order of the folders."""
    folders = [str(write_run(tmp_path / name, GOOD, day=day).root) for day, name in enumerate(("one", "two"))]

    assert (
        plan_world.bench("report", *folders, "--json").stdout
        == plan_world.bench("report", *reversed(folders), "--json").stdout
    )


def test_nothing_cheaper_reaches_the_frontier_and_what_is_unsure_is_never_on_it() -> None:
    """A cost that may be higher proves nothing, nor does a mean of the few that counted."""
    points = [(1.0, 0.5, False), (2.0, 0.4, False), (0.1, 0.9, True), (3.0, 0.8, False), (1.0, 0.6, False)]

    assert [4, 3] == pareto_frontier(points)


def test_many_runs_fit_a_terminal(plan_world: Any, tmp_path: Path) -> None:
    """The newest in full; all of them as trends, and every shortfall by name."""
    for day in range(6):
        write_run(tmp_path / f"night-{day}", [*GOOD[:2], VOID] if day == 2 else GOOD, day=day)

    ran = plan_world.bench("report", str(tmp_path))

    assert 1 == ran.exit_code
    assert "below the coverage floor of 0.9: openai/good in night-2: 2/3 (66.7%)" in ran.stdout
    assert "5 older runs in full" in ran.stdout


def test_no_number_is_cut_for_want_of_space(plan_world: Any, tmp_path: Path) -> None:
    """Names are folded instead: half of a number is another number."""
    long = again(POOR, model="a-vendor/with-a-long-name-" * 4, requests_of_unknown_cost=1, judge=0.4)
    for day in range(2):
        write_run(tmp_path / f"night-{day}", [*again(GOOD, judge=0.9, cost_usd="123.4567"), *long], day=day)

    for pool in ([], ["--pool"]):
        assert "…" not in plan_world.bench("report", str(tmp_path), *pool).stdout


@pytest.mark.parametrize(
    ("spoiled", "content"),
    [
        ("batch-state.json", None),
        ("batch-state.json", b'{"schema": "autocad-ben'),
        ("batch-config.json", None),
        ("batch-config.json", b"[]"),
        ("rollouts/r-0/result.json", None),
        ("rollouts/r-0/result.json", b'{"schema": "autocad-bench.result/9"}'),
        ("rollouts/r-0/evaluation/score.json", None),
        ("rollouts/r-0/evaluation/score.json", b"\xff\xfe\x00"),
        ("rollouts/r-0/model_turn_summaries.jsonl", b'{"colour": 1}\n'),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    plan_world: Any, tmp_path: Path, spoiled: str, content: bytes | None
) -> None:
    """One line, exit 2, and nothing is written."""
    path = write_run(tmp_path / "runs" / "one", GOOD).root / spoiled
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    ran = plan_world.bench("report", str(tmp_path / "runs"), "--html", str(tmp_path / "report.html"))

    assert (2, "") == (ran.exit_code, ran.stdout)
    assert str(path) in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["result.json", "evaluation/score.json"])
def test_a_file_of_another_rollout_is_refused(plan_world: Any, tmp_path: Path, name: str) -> None:
    """A whole file in the wrong place is worse than a torn one."""
    folder = write_run(tmp_path / "one", GOOD).root / "rollouts"
    (folder / "r-0" / name).write_bytes((folder / "r-1" / name).read_bytes())

    ran = plan_world.bench("report", str(tmp_path / "one"))

    assert 2 == ran.exit_code
    assert f"{folder / 'r-0' / name} belongs to another rollout" in ran.stderr


def test_folders_without_runs_and_runs_named_twice_are_refused(plan_world: Any, tmp_path: Path) -> None:
    """A mistyped path must not look like an empty result, nor one run like two."""
    one = str(write_run(tmp_path / "one", GOOD).root)
    (tmp_path / "empty").mkdir()

    for arguments in ([], [str(tmp_path / "empty")], [str(tmp_path / "nowhere")], [one, one], [one, str(tmp_path)]):
        ran = plan_world.bench("report", *arguments)
        assert (2, "") == (ran.exit_code, ran.stdout)
    ran = plan_world.bench("report", one, "--csv", str(tmp_path / "nowhere" / "x.csv"))
    assert (2, "") == (ran.exit_code, ran.stdout)
