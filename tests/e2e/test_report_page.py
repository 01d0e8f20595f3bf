"""The report's page in a real browser: self-contained, without a word on its console, every plot to be seen.

It needs the package `playwright` and Debian's `chromium` (350 MB), which no target installs; else it is skipped.
`.venv/bin/pip install playwright && apt-get install chromium`, then `make e2e`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from contract.phases import Cause
from tests.run_folders import End, write_run

pytestmark = pytest.mark.e2e

CHROMIUM = shutil.which("chromium")
MODELS = {"alpha": 0.7, "beta": 0.5, "gamma-with-a-long-name": 0.86}
TASKS = ("plate", "shaft", "flange", "bracket")
# What a plot needs to be one: a size on the screen, and more in it than its frame.
LOOK = """() => ({
    plots: [...document.querySelectorAll('svg')].map(plot => {
        const box = plot.getBoundingClientRect();
        return box.width > 200 && box.height > 50 && plot.querySelectorAll('*').length > 10;
    }),
    too_wide_px: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nights of three models, one rollout of each night void."""
    folder = tmp_path_factory.mktemp("report")
    for night in range(3):
        ends = [
            End(model, task, score=min(1.0, score + 0.03 * number + 0.02 * night), judge=0.8)
            for model, score in MODELS.items()
            for number, task in enumerate(TASKS)
        ]
        write_run(folder / "runs" / f"night-{night}", [*ends, End("beta", "plate", cause=Cause.HOST_LAUNCH)], day=night)
    from supervisor.report_command import run_report

    with (folder / "tables.txt").open("w") as tables:
        run_report(
            folders=(folder / "runs",),
            is_pooled=False,
            takes_rescored=False,
            coverage_floor=None,
            html=folder / "report.html",
            csv=None,
            as_json=False,
            stream=tables,
        )
    return folder / "report.html"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width_px", [420, 1400])
def test_the_page_opens_alone_and_quietly(page_file: Path, scheme: Any, width_px: int) -> None:
    """It asks for nothing but itself, says nothing on the console, and shows a plot for each that it promises."""
    browsers = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    asked: list[str] = []
    said: list[str] = []
    with browsers.sync_playwright() as playwright:
        # Root may not use the browser's own sandbox; it opens only a page that was made a moment ago.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width_px, "height": 900}, color_scheme=scheme)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(page_file.as_uri())
        page.wait_for_load_state("networkidle")
        look = page.evaluate(LOOK)
        browser.close()

    assert [page_file.as_uri()] == asked
    assert [] == said
    # Cost and score, and a map of tasks, for each run; one trend for each model.
    assert [True] * (2 * 3 + len(MODELS)) == look["plots"]
    assert 0 == look["too_wide_px"]
