"""The command line: options only. Each command imports what it needs when it runs, so that `--help` is quick.

This is a composition root: the environment is read here and nowhere else in this room.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final, NoReturn

import click

from supervisor.entry import Session, debug_option, run
from supervisor.score_command import score
from supervisor.signals import ending_signals
from supervisor.streams import secure_streams

FOLDER: Final = click.Path(path_type=Path)
# The names of contract/config.py, which is too heavy to import for `--help`; a test compares them.
VENDORS: Final = ("openai", "openrouter", "anthropic", "fireworks", "mantle", "bedrock")
EXIT_CODES: Final = (
    "Exit status: 0 all well; 1 something is void or could not be evaluated; 2 the command line or the config is "
    "wrong; 3 preflight found an issue and nothing was launched; 130 interrupted."
)


def main() -> None:
    """`autocad-bench`."""
    _begin()
    _end(run(autocad_bench, sys.argv[1:], program="autocad-bench", environment=os.environ))


def batch_main() -> None:
    """`autocad-bench-batch`."""
    _begin()
    _end(run(batch, sys.argv[1:], program="autocad-bench-batch", environment=os.environ))


def models_main() -> None:
    """`autocad-bench-models`."""
    _begin()
    _end(run(models, sys.argv[1:], program="autocad-bench-models", environment=os.environ))


def score_main() -> None:
    """`autocad-bench-score`."""
    _begin()
    _end(run(score, sys.argv[1:], program="autocad-bench-score", environment=os.environ))


def _begin() -> None:
    """Take every signal that ends a batch as SIGINT: clean up and exit with 130.

    A batch listens to them by itself once it has something to end.
    """
    secure_streams()
    # A shell without job control has its background commands ignore SIGINT, and SIGTERM would be lost with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ending_signals():
        if number is not signal.SIGINT:
            signal.signal(number, lambda number, frame: signal.raise_signal(signal.SIGINT))


def _end(code: int) -> NoReturn:
    """Exit with this status, whatever comes now.

    The interpreter gives its signals back to the kernel while it ends: a late one would take the status' place.
    """
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


@click.group(epilog=EXIT_CODES)
@debug_option
def autocad_bench() -> None:
    """Measure how well models draw in a CAD program by looking at its screen and moving its mouse and keyboard."""


@autocad_bench.command(epilog=EXIT_CODES)
@click.option("--config", "config_path", type=FOLDER, help="The batch's config (JSON).")
@click.option("--resume", "resumed", type=FOLDER, help="Go on with the interrupted batch in this folder.")
@click.option("--output-dir", type=FOLDER, help="A new folder for the output.")
@click.option("--execute", is_flag=True, help="Play the rollouts. Without it: check everything and print the plan.")
@click.option("--allow-partial", is_flag=True, help="Accept fewer enabled rollouts than the config expects.")
@click.option("--skip-direct-model-check", is_flag=True, help="Do not ask the providers for their model lists.")
@click.option("--mode", type=click.Choice(["process", "shared"]), help="One process per rollout, or one for all.")
@click.option("--max-concurrency", type=click.IntRange(1, 10_000), help="At most this many rollouts at once.")
@click.option("--json", "as_json", is_flag=True, help="With --execute: print the result as JSON instead of a table.")
@debug_option
@click.pass_obj
def batch(
    session: Session,
    *,
    config_path: Path | None,
    resumed: Path | None,
    output_dir: Path | None,
    execute: bool,
    allow_partial: bool,
    skip_direct_model_check: bool,
    mode: str | None,
    max_concurrency: int | None,
    as_json: bool,
) -> int:
    """Plan a batch (default), or plan it and play its rollouts (--execute)."""
    if (config_path is None) == (resumed is None):
        raise click.UsageError("Give either --config or --resume.")
    if resumed is not None and output_dir is not None:
        raise click.UsageError("--resume goes on in its own folder; leave --output-dir out.")
    if execute and resumed is None and output_dir is None:
        raise click.UsageError("--execute needs --output-dir, a new folder for the output.")
    from supervisor.batch_command import run_batch

    return run_batch(
        session,
        config_path=config_path,
        resumed=resumed,
        output_dir=output_dir,
        is_execute=execute,
        allow_partial=allow_partial,
        skip_direct_model_check=skip_direct_model_check,
        mode=mode,
        max_concurrency=max_concurrency,
        as_json=as_json,
    )


@autocad_bench.command(epilog=EXIT_CODES)
@click.argument("folder", type=FOLDER)
@click.argument("rollout_id")
@click.option("--output-dir", type=FOLDER, help="A new folder for the re-run.")
@click.option("--execute", is_flag=True, help="Play it. Without it: check everything and print the plan.")
@click.option("--mode", type=click.Choice(["process", "shared"]), help="Another mode than the first batch's.")
@click.option("--json", "as_json", is_flag=True, help="With --execute: print the result as JSON instead of a table.")
@debug_option
@click.pass_obj
def rollout(
    session: Session,
    *,
    folder: Path,
    rollout_id: str,
    output_dir: Path | None,
    execute: bool,
    mode: str | None,
    as_json: bool,
) -> int:
    """Play one rollout of the batch in FOLDER again, in a new folder that links back to it."""
    if execute and output_dir is None:
        raise click.UsageError("--execute needs --output-dir, a new folder for the re-run.")
    from supervisor.batch_command import run_rollout

    return run_rollout(
        session,
        folder=folder,
        rollout_id=rollout_id,
        output_dir=output_dir,
        is_execute=execute,
        mode=mode,
        as_json=as_json,
    )


@autocad_bench.command(
    epilog="Exit status: 0 all well; 1 a list could not be had; 2 the command line or the config is wrong; 3 a "
    "configured model is missing or cannot play."
)
@click.option("--region", help="The AWS region of Mantle and Bedrock; the config's when left out.")
@click.option("--provider", "providers", multiple=True, type=click.Choice(VENDORS), help="Ask only this one (repeat).")
@click.option("--config", "config_path", type=FOLDER, help="Check the models of this config too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; always so when stdout is no terminal.")
@debug_option
@click.pass_obj
def models(
    session: Session, *, region: str | None, providers: tuple[str, ...], config_path: Path | None, as_json: bool
) -> int:
    """Print the live model lists of all providers whose credentials are there. No model is asked anything."""
    from supervisor.models_command import run_models

    return run_models(session, region=region, providers=providers, config_path=config_path, as_json=as_json)


@autocad_bench.command(epilog="Exit status: 0 nothing is left; 1 something is left alive, or could not be ended.")
@click.option("--run-dir", type=FOLDER, help="Look at this batch.")
@click.option("--all", "everything", is_flag=True, help="Look at every batch below --runs.")
@click.option("--runs", type=FOLDER, default=Path("runs"), show_default=True, help="Where run folders are.")
@click.option("--execute", is_flag=True, help="End what is left. Without it: report.")
@debug_option
def reconcile(*, run_dir: Path | None, everything: bool, runs: Path, execute: bool) -> int:
    """Find hosts that a batch left alive, and end them with --execute. Running batches are left alone."""
    if (run_dir is None) == (not everything):
        raise click.UsageError("Give either --run-dir or --all.")
    from supervisor.reconcile_command import run_reconcile

    return run_reconcile(run_dir=run_dir, runs=runs, is_execute=execute)


@autocad_bench.command(
    epilog="Exit status: 0 all re-scored; 1 something could not be re-scored; 2 the folder or a config cannot be used; "
    "3 the judge cannot be asked."
)
@click.argument("folder", type=FOLDER)
@click.argument("rollout_id", required=False)
@click.option("--gold-cache", type=FOLDER, help="Another gold cache than the batch's own.")
@click.option("--judge-config", type=FOLDER, help="Show the drawings to the judge of this config.")
@click.option("--execute", is_flag=True, help="With --judge-config: ask it. Without: print what that would cost.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@debug_option
@click.pass_obj
def evaluate(
    session: Session,
    *,
    folder: Path,
    rollout_id: str | None,
    gold_cache: Path | None,
    judge_config: Path | None,
    execute: bool,
    as_json: bool,
) -> int:
    """Score the stored artifacts of the batch in FOLDER again. The first score is never changed.

    Stored answers of a judge are used as they are, and nobody is asked, unless --judge-config names a judge.
    """
    if judge_config is None:
        if execute:
            raise click.UsageError("--execute is for --judge-config; nothing else here asks anybody.")
        from supervisor.evaluate_command import run_evaluate

        return run_evaluate(
            folder=folder, rollout_id=rollout_id, gold_cache=gold_cache, as_json=as_json, stream=sys.stdout
        )
    from contract.ambient import Ambient
    from supervisor.credentials import keys_in
    from supervisor.judge_command import run_judge_again

    return run_judge_again(
        folder=folder,
        rollout_id=rollout_id,
        gold_cache=gold_cache,
        judge_config=judge_config,
        is_execute=execute,
        as_json=as_json,
        keys=keys_in(session.environment),
        ambient=Ambient(),
        stream=sys.stdout,
    )


@autocad_bench.command(
    epilog="Exit status: 0 every mean has its coverage; 1 one is below the floor; 2 a folder or a file cannot be used."
)
@click.argument("folders", type=FOLDER, nargs=-1, required=True)
@click.option("--pool", "is_pooled", is_flag=True, help="One table over all runs; equal assignments are repeats.")
@click.option(
    "--rescored", "takes_rescored", is_flag=True, help="Take the newest score of `evaluate` where there is one."
)
@click.option("--coverage-floor", type=click.FloatRange(0, 1), help="Another floor than the runs' own.")
@click.option("--html", type=FOLDER, help="Write one self-contained page with plots.")
@click.option("--csv", type=FOLDER, help="Write the rollouts, one a line.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@debug_option
def report(
    *,
    folders: tuple[Path, ...],
    is_pooled: bool,
    takes_rescored: bool,
    coverage_floor: float | None,
    html: Path | None,
    csv: Path | None,
    as_json: bool,
) -> int:
    """Scores with coverage and intervals, comparisons, costs and failures of the runs in FOLDERS.

    Each is a run folder, or a folder of run folders. Several runs stand side by side, and show a trend.
    """
    from supervisor.report_command import run_report

    return run_report(
        folders=folders,
        is_pooled=is_pooled,
        takes_rescored=takes_rescored,
        coverage_floor=coverage_floor,
        html=html,
        csv=csv,
        as_json=as_json,
        stream=sys.stdout,
    )


@autocad_bench.group()
def gold() -> None:
    """Gold caches: the pinned truth that drawings are compared with."""


@gold.command(epilog="Exit status: 0 the cache is whole; 1 it is not.")
@click.option("--gold-cache", type=FOLDER, help="The cache; configs/gold of this repository when left out.")
@debug_option
def verify(*, gold_cache: Path | None) -> int:
    """Check every file of a gold cache against its size and digest."""
    from supervisor.gold_command import run_verify

    return run_verify(gold_cache, stream=sys.stdout)


@gold.command(
    epilog="Exit status: 0 the cache is made; 1 the host failed, or a drawing cannot be a gold; 2 the config, the "
    "drawings or the folder cannot be used. Nothing is written unless it is 0."
)
@click.option(
    "--config", "config_path", type=FOLDER, required=True, help="A config with the host, suite and evaluator."
)
@click.option("--drawings", type=FOLDER, required=True, help="A folder with <task>.dxf of each task.")
@click.option("--gold-cache", type=FOLDER, required=True, help="A new folder for the cache.")
@click.option("--task", "tasks", multiple=True, help="Only this task (repeat); all of the suite when left out.")
@debug_option
def build(*, config_path: Path, drawings: Path, gold_cache: Path, tasks: tuple[str, ...]) -> int:
    """Make a gold cache: a host opens, saves, exports and renders each gold as it does a candidate."""
    from contract.ambient import Ambient
    from supervisor.gold_command import run_build

    return run_build(
        config_path=config_path,
        drawings=drawings,
        gold_cache=gold_cache,
        tasks=tasks,
        stream=sys.stdout,
        errors=sys.stderr,
        ambient=Ambient(),
    )


@gold.command(
    epilog="Exit status: 0 the judge may be used; 1 it may not; 2 the config is wrong; 3 the judge cannot be asked."
)
@click.option("--config", "config_path", type=FOLDER, required=True, help="A config with the judge and its gold cache.")
@click.option("--task", "tasks", multiple=True, help="A gold to ask about; the first five of the cache when left out.")
@click.option("--output-dir", type=FOLDER, help="Where every answer is kept; the same folder again goes on.")
@click.option("--execute", is_flag=True, help="Ask the judge. Without it: print what that would cost.")
@debug_option
@click.pass_obj
def calibrate(
    session: Session, *, config_path: Path, tasks: tuple[str, ...], output_dir: Path | None, execute: bool
) -> int:
    """Ask a config's judge about drawings whose worth is known. Without that record no judge may be used."""
    if execute and output_dir is None:
        raise click.UsageError("--execute needs --output-dir, a folder for the answers.")
    from contract.ambient import Ambient
    from supervisor.credentials import keys_in
    from supervisor.judge_command import run_calibrate

    return run_calibrate(
        config_path=config_path,
        tasks=tasks,
        output_dir=output_dir,
        is_execute=execute,
        keys=keys_in(session.environment),
        ambient=Ambient(),
        stream=sys.stdout,
    )


@autocad_bench.group()
def broker() -> None:
    """The service on the CAD host. A local batch starts its own, and an EC2 image at every boot."""


@broker.command(epilog="Exit status: 0 its owner, a signal or its lease ended it; 1 it could not start.")
def serve() -> int:
    """Serve one desktop of this machine: a start line on stdin (JSON), a ready line on stdout. Ends with stdin."""
    from broker.__main__ import main as serve_desktop

    return serve_desktop()


@broker.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def instance(*, options: tuple[str, ...]) -> int:
    """Serve this EC2 instance, as its user data says. `--help` lists its options."""
    from broker.instance import main as serve_instance

    return serve_instance(options)


autocad_bench.add_command(score)


if __name__ == "__main__":
    main()
