"""A disk that refuses and a folder that is not ours are told in one line, each time the same way."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.drivers.paper import PaperDriver
from broker.lease import LeaseBook
from broker.receipts import ReceiptBook
from broker.refusal import refusal_of
from broker.service import HostFacts
from broker.serving import CannotStart, Order, build_evaluator, serve
from contract.broker_api import ErrorCode, LeaseRequest
from contract.errors import BrokerError, DiskError, StateError

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.UnsupportedFieldAttributeWarning")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk(PaperDriver):
    """A desktop whose files find no room."""

    def prepare(self) -> None:
        """Fails."""
        raise FULL


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FULL, "the host's system refused a write: No space left on device"),
        (FileNotFoundError(2, "No such file or directory", "setpriv"), "setpriv: No such file or directory"),
        (DiskError("cannot write /x: full", hint="Free it."), "cannot write /x: full"),
        (KeyError("secret"), "the broker has a bug: KeyError"),
    ],
)
def test_every_error_has_a_line_for_the_caller(error: Exception, message: str) -> None:
    """Only what is our own fault is called a bug, and its text, which may hold anything, stays here."""
    refusal = refusal_of(error)

    assert refusal.code is ErrorCode.INTERNAL
    assert refusal.message.endswith(message)
    assert refusal.hint


def test_a_desktop_that_finds_no_room_at_its_start_is_told_to_the_owner(tmp_path: Path) -> None:
    """The line goes into the rollout's record; a traceback in a log would not."""
    order = Order(
        host_id="h-1",
        token_sha256="0" * 64,
        port=0,
        state_dir=tmp_path,
        facts=HostFacts(host_id="h-1", boot_id="b-1", started_at="2026-01-01T00:00:00+00:00"),
        driver=FullDisk(tmp_path),
        evaluator=build_evaluator({}),
        leases=lambda: LeaseBook(tmp_path, silence_s=60),
    )
    with pytest.raises(CannotStart, match="No space left on device"):
        asyncio.run(serve(order))


def test_a_reset_that_finds_no_room_is_refused_in_one_line(
    serve: Any, seed: bytes, make_reset_request: Callable[..., Any]
) -> None:
    """The start drawing cannot be written where a folder has its name."""
    broker = serve()
    (broker.state_dir / "start.dxf").mkdir()
    client = broker.client()
    lease = client.lease(LeaseRequest(request_id="lease-1", rollout_id="rollout", lease_s=60))
    with pytest.raises(BrokerError, match=r"the host's system refused .*start\.dxf: Is a directory") as caught:
        client.reset(make_reset_request(lease, seed))

    assert caught.value.code == ErrorCode.INTERNAL


@pytest.mark.parametrize("line", [{"kind": "started", "lease_id": "l"}, {"kind": "other"}])
def test_receipts_of_another_shape_are_named(tmp_path: Path, line: dict[str, str]) -> None:
    """Nothing may be acted on top of what cannot be read."""
    (tmp_path / "receipts.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(StateError, match=r"receipts\.jsonl holds no receipts"):
        ReceiptBook(tmp_path)


def test_a_receipt_file_that_is_a_folder_is_named(tmp_path: Path) -> None:
    """The owner hears which."""
    (tmp_path / "receipts.jsonl").mkdir()
    with pytest.raises(DiskError, match=r"receipts\.jsonl: Is a directory"):
        ReceiptBook(tmp_path)
