"""The command line: usage, exit codes, one line for every error, and no work before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from contract.errors import BenchError, ConfigError
from supervisor.entry import Session, debug_option, run


def _failing(error: BaseException) -> click.Command:
    @click.command()
    @debug_option
    def fail() -> int:
        raise error

    return fail


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--config or --resume"),
        (["--config", "c", "--resume", "d"], "--config or --resume"),
        (["--config", "c", "--execute"], "--output-dir"),
        (["--resume", "d", "--output-dir", "e"], "--output-dir"),
        (["--config", "c", "--max-concurrency", "0"], "--max-concurrency"),
        (["--config", "c", "--max-concurrency", "10001"], "--max-concurrency"),
        (["--config", "c", "--mode", "threads"], "threads"),
        (["--confg", "c"], "--config"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_option(plan_world: Any, arguments: list[str], said: str) -> None:
    """A script can tell its own mistake from a failed batch."""
    ran = plan_world.batch(*arguments)

    assert 2 == ran.exit_code
    assert said in ran.stderr
    assert "" == ran.stdout


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (BenchError("the disk is full", hint="Free space."), 1, "error: the disk is full\nhint: Free space.\n"),
        (ConfigError("no such batch", hint="Name one."), 2, "error: no such batch\nhint: Name one.\n"),
        (FileNotFoundError(2, "No such file or directory", "/x/y"), 1, "error: No such file or directory (/x/y)\n"),
        (ValueError("odd\nthing"), 1, "error: unexpected ValueError: odd thing\n"),
        (ExceptionGroup("tasks", [ValueError("a"), BenchError("b", hint="c")]), 1, "error: b\nhint: c\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BaseExceptionGroup("tasks", [KeyboardInterrupt()]), 130, "interrupted\n"),
    ],
)
def test_every_error_is_one_line_and_never_a_traceback(
    capsys: pytest.CaptureFixture[str], error: BaseException, exit_code: int, line: str
) -> None:
    """A traceback helps nobody who starts batches."""
    code = run(_failing(error), [], program="p", environment={})

    assert exit_code == code
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert "Traceback" not in said


def test_debug_keeps_a_crash_log_without_keys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash log is mailed to us: it says where, and holds no key."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    key = "sk-canary-0123456789"
    error = ValueError(f"refused {key}")

    run(_failing(error), ["--debug"], program="p", environment={"OPENAI_API_KEY": key})

    (log,) = tmp_path.iterdir()
    assert str(log) in capsys.readouterr().err
    assert "Traceback" in log.read_text()
    assert key not in log.read_text()


def test_a_command_knows_only_the_environment_that_it_is_given(plan_world: Any) -> None:
    """The environment is handed in, so that a key of the test machine never decides anything."""
    plan_world.config["judge"] = {"judge_id": "vj-1", "provider": "openai", "model": "gpt"}
    without = plan_world.plan("--skip-direct-model-check")
    plan_world.environment["OPENAI_API_KEY"] = "sk-canary-0123456789"

    assert "judge_credential_missing" in without.codes
    assert "judge_credential_missing" not in plan_world.plan("--skip-direct-model-check").codes


def test_an_issue_prevents_the_launch_and_prints_the_plan(plan_world: Any) -> None:
    """Nothing is launched, nothing is written, and stdout says why."""
    plan_world.config["broker_version"] = "0"
    out = plan_world.root / "out"

    ran = plan_world.plan("--output-dir", str(out), "--execute")

    assert 3 == ran.exit_code
    assert ["broker_version_unsupported"] == ran.codes
    assert not out.exists()
    assert "nothing was launched" in ran.stderr


def test_the_command_line_outranks_the_config(plan_world: Any) -> None:
    """A trial in another mode needs no second config."""
    plan_world.config["mode"] = "proces"
    plan_world.config["max_concurrency"] = 1

    plan = plan_world.plan("--mode", "shared", "--max-concurrency", "3").plan

    assert "shared" == plan["admission"]["mode"]
    assert 3 == plan["admission"]["max_concurrency"]


@pytest.mark.parametrize(
    ("arguments", "program"),
    [(["broker", "serve"], "python -I -m broker"), (["broker", "instance", "--nope"], "python -I -m broker.instance")],
)
def test_the_broker_is_a_command_too(arguments: list[str], program: str) -> None:
    """Whoever looks for the service on the CAD host finds it in the one program, and it is the same service."""
    module = program.split()[-1]
    command = [sys.executable, "-m", "supervisor.cli", *arguments]
    alone = [sys.executable, "-I", "-m", module, *arguments[2:]]

    ours, theirs = (
        subprocess.run(argv, input="{}\n", capture_output=True, text=True, check=False) for argv in (command, alone)
    )

    assert (theirs.returncode, theirs.stdout, theirs.stderr) == (ours.returncode, ours.stdout, ours.stderr)
    assert (ours.stdout + ours.stderr).strip()
    assert ours.returncode in (1, 2)


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    """Completion and curiosity should not wait for pydantic."""
    code = (
        "import sys, supervisor.cli\n"
        "heavy = {'pydantic', 'anyio', 'rich', 'psutil', 'numpy', 'requests', 'contract', 'pilot', 'broker'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout


def test_a_reader_that_went_away_is_no_traceback(plan_world: Any) -> None:
    """`autocad-bench-batch ... | head -1` is a normal thing to do."""
    path = plan_world.write_config()
    command = f"{sys.executable} -m supervisor.cli batch --config {path} | true"

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_session_has_a_debug_flag_that_is_off() -> None:
    """Crash logs are kept only when they are asked for."""
    assert not Session(environment={}).debug


def test_a_signal_that_comes_while_the_program_ends_does_not_change_its_exit_status() -> None:
    """A second SIGTERM of an impatient service manager must not turn 130, or 0, into a death by signal."""
    program = (
        "import builtins, os, signal, sys\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):\n"
        "        kill(pid, number)\n"
        "from supervisor.cli import batch_main\n"
        # The interpreter takes this apart after it has given its signals back.
        "sys.modules['late'] = Late()\n"
        "batch_main()\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert 2 == ended.returncode
