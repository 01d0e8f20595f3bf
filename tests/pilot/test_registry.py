"""Which model plays, and what is said when none can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from contract.errors import PilotError
from contract.profiles import PROFILES
from pilot.models.clients import Clients
from pilot.models.registry import VENDORS, build_model, session_id_of
from pilot.models.vendor import VendorModel
from tests.fakes import FakeHost, make_spec

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("provider", VENDORS)
async def test_every_vendor_has_a_model(tmp_path: Path, provider: str) -> None:
    """With or without shared clients, nothing is sent or imported before the first turn."""
    facts = next(row for row in PROFILES.values() if row.provider == provider)
    spec = make_spec(tmp_path, FakeHost(), provider=provider)
    told = {"endpoint": "http://127.0.0.1:1", "region": "us-east-1", "credentials_url": "http://127.0.0.1:1/x"}
    spec = spec.model_copy(update={"choice": spec.choice.model_copy(update={**told, "facts": facts})})
    shared = Clients()
    own, sharing = (build_model(spec, SecretStr("k" * 20), clients) for clients in (None, shared))

    assert isinstance(own, VendorModel)
    assert isinstance(sharing, VendorModel)
    await own.aclose()
    await sharing.aclose()
    await shared.aclose()


@pytest.mark.parametrize(("missing", "words"), [("facts", "the facts of openai"), ("endpoint", "has no endpoint")])
def test_a_choice_that_does_not_say_enough_is_refused(tmp_path: Path, missing: str, words: str) -> None:
    """The rollout ends with a reason and a remedy."""
    spec = make_spec(tmp_path, FakeHost(), provider="openai")
    told: dict[str, Any] = {"endpoint": "http://127.0.0.1:1", "facts": PROFILES["openai-responses"], missing: None}
    spec = spec.model_copy(update={"choice": spec.choice.model_copy(update=told)})

    with pytest.raises(PilotError, match=words) as caught:
        build_model(spec, SecretStr("k" * 20))
    assert caught.value.hint


def test_a_session_is_the_rollouts_own(tmp_path: Path) -> None:
    """The same after a resume, and never longer than the shortest limit."""
    spec = make_spec(tmp_path, FakeHost())
    long = spec.model_copy(update={"batch_id": "b" * 300})

    assert "batch-a-rollout-a" == session_id_of(spec)
    assert 256 == len(session_id_of(long))
