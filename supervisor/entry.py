"""How a command ends: with its exit code, and for every error with one line and a hint instead of a traceback."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """What a command gets from outside besides its arguments.

    `environment` is the parent's; commands take single names out of it and wrap secrets at once. `machine` is null in
    production: the real one is made when it is asked for.
    """

    environment: Mapping[str, str]
    machine: Any = None
    debug: bool = field(default=False)


def run(
    command: click.Command,
    arguments: Sequence[str],
    *,
    program: str,
    environment: Mapping[str, str],
    machine: Any = None,
) -> int:
    """Run one command line and return its exit code. Never raises for what the outside world does."""
    session = Session(environment=environment, machine=machine)
    try:
        with command.make_context(program, list(arguments), obj=session) as context:
            code = int(command.invoke(context) or 0)
            sys.stdout.flush()
            return code
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.ClickException as error:
        error.show(file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted", hint="")
        return EXIT_INTERRUPTED
    # The last resort of the whole program: what is not expected ends as one line too.
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001
        return _end_with(_first_leaf(error), session)


def debug_option(command: F) -> F:
    """Add `--debug` to a command."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.find_object(Session).debug = True  # type: ignore[union-attr]  # `run` always sets it

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Keep a crash log when something unexpected happens.",
    )(command)


def _end_with(error: BaseException, session: Session) -> int:
    from contract.errors import BenchError

    if isinstance(error, KeyboardInterrupt):
        _say("interrupted", hint="")
        return EXIT_INTERRUPTED
    if isinstance(error, BenchError):
        _say(f"error: {error.message}", hint=error.hint)
        code = error.exit_code
    else:
        message, hint = _describe(error, session)
        _say(f"error: {message}", hint=hint)
        code = EXIT_FAILED
    if session.debug:
        click.echo(f"crash log: {_write_crash_log(error, session)}", err=True)
    return code


def _describe(error: BaseException, session: Session) -> tuple[str, str]:
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename is not None else ""
        return f"{error.strerror or error}{where}", "Check that the file or folder can be used, then try again."
    hint = "Report it with the crash log." if session.debug else "Run the same command with --debug for a crash log."
    return f"unexpected {type(error).__name__}: {_one_line(error)}", hint


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _say(message: str, *, hint: str) -> None:
    click.echo(message, err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def _first_leaf(error: BaseException) -> BaseException:
    """The error inside groups of errors that task groups make; one of ours before any other."""
    from contract.errors import BenchError

    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first_leaf(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, BenchError)), leaves[0])


def _write_crash_log(error: BaseException, session: Session) -> str:
    from contract.redaction import redact
    from supervisor.credentials import keys_in

    text = "".join(traceback.format_exception(error))
    descriptor, path = tempfile.mkstemp(prefix=f"autocad-bench-crash-{int(time.time())}-", suffix=".log")
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(redact(text, keys_in(session.environment).values()))
    return path
