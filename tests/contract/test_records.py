"""How documents are written and read: whole or not at all."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest

from contract.broker_api import FrameInfo
from contract.errors import DiskError, StateError
from contract.phases import Cause, EndedBy, Outcome, Phase
from contract.pricing import PriceRow, Usage
from contract.records import (
    Durability,
    LineAppender,
    Record,
    dump_pretty,
    parse_record,
    read_lines,
    read_record,
    replace_file,
    write_compact_record,
    write_record,
)
from contract.rollout_records import (
    ArtifactRef,
    Checkpoint,
    Event,
    EventsFile,
    FrameEvent,
    FrameEventsFile,
    HostAddress,
    InputReceipt,
    Limits,
    ModelChoice,
    ModelTurn,
    ModelTurnSummary,
    PilotProblem,
    Result,
    Retries,
    RolloutSpec,
    RunState,
    TaskBrief,
    Waiting,
)

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SHA = "0123456789abcdef" * 4
FRAME = FrameInfo(
    sequence=1, sha256=SHA, size_bytes=80_000, width_px=1920, height_px=1080, verdict="ok", settle_s=0.044
)
RUN_STATE = RunState(
    rollout_id="oracle-bracket",
    phase=Phase.HANDED_OFF,
    turn=3,
    actions_used=7,
    actions_max=5000,
    invalid_turns=0,
    invalid_turns_lifetime=1,
    retries=Retries(rate_limited=2),
    usage=Usage(input=10, output=5),
    cost_usd=Decimal("0.000012"),
    updated_at=AT,
    waiting=Waiting(for_="rate_limited", since=AT, until=AT + timedelta(seconds=90)),
    ended_by=EndedBy.HOST_LOST,
    error=PilotProblem(cause=Cause.CAD_DIED, message="gone", hint="look"),
)
SPEC = RolloutSpec(
    batch_id="b",
    rollout_id="r",
    run_dir="/out/rollouts/r",
    task=TaskBrief(task_id="t", prompt="p", host_notes="n", reference="/t/reference.png", reference_sha256=SHA),
    choice=ModelChoice(provider="random", model="reference", seed=3),
    host=HostAddress(
        host_id="h", boot_id="b", base_url="http://127.0.0.1:1", lease_id="l", lease_generation=1, first_frame=FRAME
    ),
    limits=Limits(),
    price=PriceRow(input=Decimal("2.50"), output=Decimal(10)),
)
CHECKPOINT = Checkpoint(
    rollout_id="r",
    stage="intent",
    host_id="h",
    boot_id="b",
    lease_id="l",
    lease_generation=1,
    sequence=2,
    intent_digest=SHA,
    intent_actions=[{"type": "wait", "seconds": 1.5}],
    turn=3,
    actions_used=7,
    invalid_turns=0,
    invalid_turns_lifetime=1,
    malformed_responses=0,
    retries=Retries(),
    usage=Usage(),
    cost_usd=None,
    frame=ArtifactRef(path="frames/000002.png", sha256=SHA, size_bytes=80_000),
    reference=ArtifactRef(path="reference.png", sha256=SHA, size_bytes=10),
    observation="Actions left: 4993 of 5000.",
    model_state={"played": 3},
)
SHOWN = CHECKPOINT.frame
EXAMPLES: list[Record] = [
    RUN_STATE,
    SPEC,
    CHECKPOINT,
    ModelTurn(
        turn=1,
        at=AT,
        frame=0,
        artifact=SHOWN,
        after="start",
        observation="o",
        arguments={"actions": [1, None, "x"]},
        latency_s=0.5,
    ),
    ModelTurnSummary(
        turn=1, at=AT, sequence=1, actions=2, kinds={"click": 2}, result="acted", actions_left=9, cost_usd=None
    ),
    InputReceipt(
        turn=1, at=AT, sequence=1, digest=SHA, actions=2, performed=2, took_s=0.1, is_replay=False, frame=FRAME
    ),
    EventsFile(events=[Event(at=AT, event="sandbox_agent_started", detail={"host_id": "h"})]),
    FrameEventsFile(
        frames=[
            FrameEvent(
                turn=1, sequence=1, file="frames/000001.png", sha256=SHA, size_bytes=9, verdict="ok", settle_s=0.1
            )
        ]
    ),
    Result(
        batch_id="b",
        rollout_id="r",
        task_id="t",
        provider="noop",
        model="m",
        profile=None,
        outcome=Outcome.VOID,
        cause=Cause.UNKNOWN,
        cause_detail=None,
        ended_by=None,
        score=None,
        judge_score=None,
        final=None,
        invalid_code=None,
        turns=0,
        actions_used=0,
        usage=Usage(),
        cost_usd=None,
        host_id=None,
        host_replacements=0,
        started_at=None,
        finished_at=AT,
        duration_s=None,
    ),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_what_is_written_is_what_is_read(tmp_path: Path, record: Record) -> None:
    """Pretty or on one line, and money and times exactly."""
    for write in (write_record, lambda path, rec: write_compact_record(path, rec, durability=Durability.CONTENT)):
        write(tmp_path / "document.json", record)
        assert record == read_record(tmp_path / "document.json", type(record))


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_an_unknown_field_is_refused(record: Record) -> None:
    """It was written by another version, and we do not know what it means."""
    content = dump_pretty(record).replace(b"{\n", b'{\n  "zzz": 1,\n', 1)

    with pytest.raises(StateError, match="zzz: Extra inputs are not permitted"):
        parse_record(content, type(record), source="it")


def test_the_run_state_is_written_like_this() -> None:
    """Other programs read it."""
    assert (
        b'{\n  "actions_max": 5000,\n  "actions_used": 7,\n  "cost_usd": "0.000012",\n  "ended_by": "host_lost",\n'
        b'  "error": {\n    "cause": "cad_died",\n    "hint": "look",\n    "message": "gone"\n  },\n'
        b'  "finish_status": null,\n  "invalid_turns": 0,\n  "invalid_turns_lifetime": 1,\n  "phase": "handed_off",\n'
        b'  "requests_of_unknown_cost": 0,\n'
        b'  "retries": {\n    "malformed": 0,\n    "rate_limited": 2,\n    "server_error": 0,\n'
        b'    "transport": 0\n  },\n'
        b'  "rollout_id": "oracle-bracket",\n  "schema": "autocad-bench.run-state/1",\n  "turn": 3,\n'
        b'  "updated_at": "2026-01-02T03:04:05.678901Z",\n'
        b'  "usage": {\n    "cache_write": 0,\n    "cache_write_long": 0,\n    "cached_input": 0,\n'
        b'    "input": 10,\n    "output": 5,\n'
        b'    "reasoning": 0\n  },\n'
        b'  "waiting": {\n    "alarm": null,\n    "for": "rate_limited",\n    "since": "2026-01-02T03:04:05.678901Z",\n'
        b'    "until": "2026-01-02T03:05:35.678901Z"\n  }\n}\n'
    ) == dump_pretty(RUN_STATE)


def test_times_are_utc_whatever_they_came_in() -> None:
    """One zone on disk, so that strings sort as times."""
    local = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))

    assert dump_pretty(Event(at=AT, event="e")) == dump_pretty(Event(at=local, event="e"))


@pytest.mark.parametrize("price", ["0.1", 3])
def test_money_is_exact(price: object) -> None:
    """A decimal string or an integer; a binary float is refused, because 0.1 is not 0.1 there."""
    assert Decimal(str(price)) == PriceRow.model_validate({"input": price, "output": 1}).input
    with pytest.raises(ValueError, match="not a float"):
        PriceRow.model_validate({"input": 0.1, "output": 1})


def test_numbers_are_finite() -> None:
    """JSON has no other."""
    with pytest.raises(ValueError, match="finite number"):
        ModelTurn(
            turn=1,
            at=AT,
            frame=0,
            artifact=SHOWN,
            after="start",
            observation="",
            arguments=None,
            latency_s=float("inf"),
        )


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"schema": "autocad-bench.run-state/2"}']
)
def test_a_torn_or_foreign_document_is_one_error(tmp_path: Path, content: bytes) -> None:
    """With the file's name and what to do."""
    path = tmp_path / "run-state.json"
    path.write_bytes(content)

    with pytest.raises(StateError, match=r"run-state\.json is not a valid RunState") as caught:
        read_record(path, RunState)

    assert "restore it" in caught.value.hint


def test_a_missing_document_is_one_error(tmp_path: Path) -> None:
    """Not a traceback of the file system."""
    with pytest.raises(StateError, match=r"cannot read .*none: No such file"):
        read_record(tmp_path / "none", RunState)


def test_a_write_that_the_disk_refuses_leaves_the_old_document_and_no_scratch(tmp_path: Path) -> None:
    """Here the target is a folder, which no rename replaces."""
    target = tmp_path / "document.json"
    (target / "child").mkdir(parents=True)

    with pytest.raises(DiskError, match=r"cannot write .*document\.json: Is a directory") as caught:
        replace_file(target, b"new")

    assert "Free space" in caught.value.hint
    assert [target] == list(tmp_path.iterdir())


def test_a_full_disk_is_a_disk_error(tmp_path: Path) -> None:
    """/dev/full says so at every write."""
    path = tmp_path / "lines.jsonl"
    path.symlink_to("/dev/full")

    with pytest.raises(DiskError, match="No space left on device"):
        LineAppender(path).append({"n": 1})


def test_lines_are_appended_and_a_torn_one_is_stepped_over(tmp_path: Path) -> None:
    """The next writer closes it off, so that it does not swallow the first good line."""
    path = tmp_path / "lines.jsonl"
    first = LineAppender(path)
    first.append({"n": 1})
    first.close()
    with path.open("ab") as file:
        file.write(b'{"n": 2, "to')
    second = LineAppender(path)
    second.append(Event(at=AT, event="e"))
    second.close()
    second.close()

    assert [1, None] == [line.get("n") for line in read_lines(path)]
    assert b"\n" == path.read_bytes()[-1:]


def test_a_line_that_a_full_disk_cut_off_swallows_no_later_one(tmp_path: Path) -> None:
    """Its writer lives on, and there may be room again."""
    path = tmp_path / "lines.jsonl"
    lines = LineAppender(path)
    lines.append({"n": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(DiskError, match="File too large"):
                lines.append({"n": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    lines.append({"n": 3})
    lines.close()

    assert b'{"n":1}\n{"n"' == path.read_bytes()[:12]
    assert [1, 3] == [line["n"] for line in read_lines(path)]


def test_lines_of_a_missing_file_are_none(tmp_path: Path) -> None:
    """Nothing happened yet."""
    assert [] == list(read_lines(tmp_path / "none.jsonl"))


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_document(tmp_path: Path) -> None:
    """At any moment: the old one or the new one."""
    path = tmp_path / "document.json"
    program = (
        "import sys; from pathlib import Path; from contract.records import *\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    replace_file(Path(sys.argv[1]), b'%d ' % n * 20_000, durability=Durability.PROCESS)\n"
    )
    for _ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", program, str(path)])
        while not path.exists():
            time.sleep(0.01)
        for _ in range(20):
            assert 1 == len(set(path.read_bytes().split()))
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        assert (20_000, 1) == (len(path.read_bytes().split()), len(set(path.read_bytes().split())))
