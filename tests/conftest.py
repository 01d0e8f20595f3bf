"""What holds for every test: it never leaves this machine, has no real key, and is not timed."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

import pytest
from hypothesis import settings

# A busy machine is no failure of a property, and a change is judged by the same examples as the one before.
settings.register_profile("same", deadline=None, derandomize=True)
# For those who look for more: pytest --hypothesis-profile=chance
settings.register_profile("chance", deadline=None, derandomize=False)
settings.load_profile("same")

REAL_KEYS = (
    "OPENAI_API_KEY",
    "OPENROUTER_API_KEY",
    "ANTHROPIC_API_KEY",
    "FIREWORKS_API_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_BEARER_TOKEN_BEDROCK",
)
for name in REAL_KEYS:
    os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to anywhere but loopback fails the test. Processes that it starts are not seen from here."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded(self: socket.socket, address: Any) -> None:
        refuse_outside(self, address)
        connect(self, address)

    def guarded_ex(self: socket.socket, address: Any) -> int:
        refuse_outside(self, address)
        return connect_ex(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_ex)


def refuse_outside(connection: socket.socket, address: Any) -> None:
    """Raise when `address` is an Internet address that is not of this machine."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    host = str(address[0]).partition("%")[0]
    try:
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = False
    assert is_here, f"a test connects to {address!r}; only this machine is allowed"
