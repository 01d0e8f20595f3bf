"""What every broker does at its end, also when its desktop does not let go."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.drivers.paper import PaperDriver
from broker.lease import LeaseBook
from broker.service import HostFacts
from broker.serving import EndKind, Order, build_evaluator, serve

pytestmark = pytest.mark.slow


class StuckDriver(PaperDriver):
    """Its `close` hangs until it is let go."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.let_go = threading.Event()

    def close(self) -> None:
        """Hang."""
        self.let_go.wait(60)
        super().close()


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[StuckDriver]:
    """A driver that hangs when it is closed."""
    driver = StuckDriver(tmp_path)
    yield driver
    driver.let_go.set()


def order_of(folder: Path, driver: PaperDriver, *, silence_s: float = 600.0, lifetime_s: float = 600.0) -> Order:
    """A broker on a free port."""
    return Order(
        host_id="h-1",
        token_sha256="0" * 64,
        port=0,
        state_dir=folder,
        facts=HostFacts(host_id="h-1", boot_id="b-1", started_at="2026-01-01T00:00:00+00:00"),
        driver=driver,
        evaluator=build_evaluator({}),
        leases=lambda: LeaseBook(folder, silence_s=silence_s),
        lifetime_left_s=lambda: lifetime_s,
    )


@pytest.mark.parametrize("times", [{"silence_s": 0.0}, {"lifetime_s": 0.0}])
def test_a_desktop_that_does_not_let_go_keeps_no_machine_on(
    tmp_path: Path, stuck: StuckDriver, capsys: pytest.CaptureFixture[str], times: dict[str, float]
) -> None:
    """What follows the broker's end, the shutdown, comes in bounded time. `close` is still hanging then."""
    end = asyncio.run(serve(order_of(tmp_path, stuck, **times)))

    assert EndKind.TIME is end
    assert not stuck.let_go.is_set()
    assert "autocad-bench.broker-ready/1" == json.loads(capsys.readouterr().out)["schema"]


def test_the_first_reason_counts(tmp_path: Path) -> None:
    """A machine that is told to stop its services does not hear a second time that its time is over."""
    end = asyncio.run(
        serve(order_of(tmp_path, PaperDriver(tmp_path), silence_s=0.0), watch=lambda ending: ending.end("told"))
    )

    assert EndKind.ORDER is end
