"""What a command prints may find nobody: that never ends it, and never changes its exit status."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = "from supervisor.streams import secure_streams; secure_streams(); import os, sys; "


def run_in_shell(program: str, redirections: str) -> subprocess.CompletedProcess[str]:
    """Run `program` after `secure_streams` as a shell command with these redirections."""
    command = f'"$0" -c "$1" {redirections}'
    arguments = ["bash", "-c", command, sys.executable, BEGIN + program]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("redirections", ["2> >(true)", "2>/dev/full", "2>&-", "2>&- >&- <&-"])
def test_words_that_nobody_can_be_told_do_not_end_a_command(redirections: str) -> None:
    """A batch plays for hours; its terminal, or the disk of its log, may not last as long."""
    program = (
        "import rich.console, time; time.sleep(0.1); console = rich.console.Console(stderr=True); "
        "[console.print('a line') for _ in range(3)]; print('more', file=sys.stderr); "
        "print('result'); sys.stdout.flush(); sys.exit(3)"
    )

    done = run_in_shell(program, redirections)

    assert (3, "") == (done.returncode, done.stderr)
    assert ("" if ">&- <&-" in redirections else "result\n") == done.stdout


def test_a_result_that_nobody_reads_is_no_error_and_one_that_a_disk_refuses_is() -> None:
    """`| head -1` has seen enough; a report on a full disk is lost."""
    program = (
        "import time; time.sleep(0.1)\n"
        "try:\n    print('x' * 100_000); sys.stdout.flush(); code = 0\n"
        "except OSError as error:\n    code = error.errno\n"
        # The interpreter flushes once more.
        "sys.exit(code)"
    )

    assert 0 == run_in_shell(program, "> >(true)").returncode
    assert 28 == run_in_shell(program, "> /dev/full").returncode


def test_a_file_of_ours_never_gets_the_number_of_a_closed_stream() -> None:
    """Else what a library prints would stand in the middle of a record."""
    program = "file = open(os.devnull); os._exit(file.fileno() > 2)"

    assert 1 == run_in_shell(program, "<&- >&- 2>&-").returncode
