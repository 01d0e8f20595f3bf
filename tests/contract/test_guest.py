"""What an instance is told in its user data comes back whole, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from contract.broker_api import UploadGrant
from contract.errors import StateError
from contract.guest import GuestStart, read_guest_start, start_line

START = GuestStart(host_id="h-1", token_sha256="0" * 64, driver="paper", port=8765, lease_s=900.0, lifetime_s=43_200.0)


def test_a_start_line_is_read_back_from_among_a_script() -> None:
    """User data is a script of the system's own shell; the line stands in it as a comment."""
    script = f"<powershell>\r\n{start_line(START)}\r\nStart-Something\r\n</powershell>"

    assert START == read_guest_start(script)


@pytest.mark.parametrize(
    "text", ["", "echo", f"{start_line(START)}\n{start_line(START)}", "# autocad-bench-start: {}"], ids=repr
)
def test_user_data_of_somebody_else_is_refused(text: str) -> None:
    """A broker that guessed would serve nobody, or two."""
    with pytest.raises(StateError) as caught:
        read_guest_start(text)

    assert caught.value.hint


def test_a_grant_does_not_print_its_url() -> None:
    """Whoever logs a grant by mistake gives no permission away."""
    grant = UploadGrant(url="https://bucket.example/key?X-Amz-Signature=canary", headers={}, bytes_max=1)

    assert "canary" not in f"{grant!r} {grant}"
