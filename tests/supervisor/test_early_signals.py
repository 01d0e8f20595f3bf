"""Signals before a batch listens to them: while it loads, and while it makes its folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.phases import BatchStatus, Phase
from tests.live_batch import LiveBatch

pytestmark = pytest.mark.slow


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[LiveBatch]:
    made = LiveBatch(tmp_path, count=2)
    yield made
    made.end_everything()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_state_says_interrupted_however_early_it_was(batch: LiveBatch, number: signal.Signals) -> None:
    """Its first version says `running`, half a second before anything could be ended by a listener."""
    batch.start()
    batch.wait_for(lambda state: True)
    assert batch.process is not None
    batch.process.send_signal(number)
    code = batch.wait(20)

    state = batch.state()
    assert (130, BatchStatus.INTERRUPTED) == (code, state.status)
    assert [Phase.QUEUED] * 2 == [row.phase for row in state.rollouts]
    assert [] == batch.torn
    assert "Traceback" not in (batch.folder / "stderr.txt").read_text()


def test_sigterm_is_heard_by_a_background_command_of_a_shell(batch: LiveBatch) -> None:
    """Without job control a shell has it ignore SIGINT, as some cron jobs are started."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        batch.start()
    finally:
        signal.signal(signal.SIGINT, before)
    batch.wait_for(lambda state: True)
    assert batch.process is not None
    batch.process.send_signal(signal.SIGTERM)
    code = batch.wait(20)

    assert (130, BatchStatus.INTERRUPTED) == (code, batch.state().status)
